//! What `megapage run` finds out about a program, keeps, and uses at its next start.

use crate::run_support;

use megapage_kernel::effective_uid;
use megapage_kernel::program_memory::{OwnPagemap, is_filtered};
use megapage_kernel::thp_is_possible;
use megapage_testing::skip;
use run_support::*;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = include_str!("../programs/learned.c");
/// What `--heap thp` leaves out: pools that a machine may have change nothing.
const THP: [&str; 2] = ["--heap", "thp"];

/// A program and a directory of profiles.
struct Place {
    directory: tempfile::TempDir,
    program: String,
}

impl Place {
    fn new() -> Option<Place> {
        let directory = tempfile::tempdir().unwrap();
        let program = compile("gcc", directory.path(), "learned", PROGRAM, &[])?;
        Some(Place { directory, program })
    }

    fn profiles(&self) -> PathBuf {
        self.directory.path().join("state/profiles")
    }

    /// A run of a program, as a command and its report.
    fn report_of(&self, options: &[&str], program: &[&str], variables: &[(&str, &str)]) -> (i32, Value) {
        let file = self.directory.path().join("report.json");
        let report = ["--json", "--report", file.to_str().unwrap()];
        let all = [&report, options, &["--"], program].concat();
        let output =
            run(&all).env(PROFILES, self.profiles()).envs(variables.iter().copied()).output().unwrap();
        let report = serde_json::from_slice(&fs::read(&file).unwrap());
        (status(&output), report.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// A run of the program that ends as it should.
    fn report(&self, options: &[&str], arguments: &[&str]) -> Value {
        let program = [&[self.program.as_str()], arguments].concat();
        let (status, report) = self.report_of(options, &program, &[]);
        assert_eq!(status, 3, "{report:#}");
        report
    }

    /// A run that goes on until its report tells what `accept` looks for.
    fn hold(
        &self,
        file: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        accept: impl Fn(&Value) -> bool,
    ) {
        let report = ["--json", "--report", file.to_str().unwrap()];
        let mut command = run(&[&report, &THP[..], &["--", &self.program], arguments].concat());
        command.env(PROFILES, self.profiles()).env("HOLD", "1").envs(variables.iter().copied());
        let child = start(command);
        until_reported(&child, file, "its memory on huge pages", accept);
        assert_eq!(status(&finish(child)), 3);
    }

    /// The first report of twenty runs that `accept` takes. Where others have the processors, the library's looks at a block may
    /// take longer than they are allowed to, and the launcher miss a program's last moment; other tests take huge pages as well.
    fn until(&self, arguments: &[&str], accept: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = (0..20).any(|_| {
            last = self.report(&THP, arguments);
            accept(&last)
        });
        assert!(found, "{last:#}");
        last
    }

    fn state(&self, options: &[&str], arguments: &[&str]) -> String {
        self.report(options, arguments)["profile"]["state"].as_str().unwrap().to_string()
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.profiles()) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn the_file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    fn profile(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
        command.arg("profile").args(arguments).env(PROFILES, self.profiles()).output().unwrap()
    }
}

fn can_learn() -> bool {
    let can = thp_is_possible() && OwnPagemap::open().is_some() && !is_filtered();
    if !can {
        skip("needs transparent huge pages, Linux 6.7 and no filter of system calls");
    }
    can
}

fn peak_mib(report: &Value) -> u64 {
    mib(report, "peak_rss_bytes")
}

fn known(report: &Value) -> String {
    report["profile"]["known"].to_string()
}

#[test]
fn a_block_that_is_hardly_touched_gets_base_pages_the_next_time() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    for what in ["block", "freed"] {
        // One page of 32: 2 MiB of 64.
        let arguments = [what, "64", "32"];
        let plain = peak_mib(&place.report(&["--heap", "none"], &arguments));
        let first = place.report(&THP, &arguments);
        assert_eq!(first["profile"]["state"], "none-yet", "{first:#}");
        assert_eq!(first["profile"]["written"], true, "{first:#}");
        assert!(peak_mib(&first) >= plain + 50, "all of it is huge: {} and {plain}", peak_mib(&first));
        // Twice: what it finds out then is the same.
        for _ in 0..2 {
            let sparse =
                |next: &Value| known(next).contains("large blocks of the heap from 64 MiB are sparse");
            let next = place.until(&arguments, sparse);
            assert_eq!(next["profile"]["state"], "used", "{next:#}");
            assert!(peak_mib(&next) <= plain + 16, "{what}: {} and {plain}", peak_mib(&next));
        }
        let files = place.files();
        let without = place.report(&["--heap", "thp", "--no-profile"], &arguments);
        assert_eq!(without["profile"]["state"], "off");
        assert!(peak_mib(&without) >= plain + 50, "{}", peak_mib(&without));
        assert_eq!(place.files(), files);
    }
}

#[test]
fn what_is_required_does_not_hang_on_what_is_known() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["block", "64", "32"];
    for expected in ["none-yet", "used"] {
        assert_eq!(place.state(&THP, &arguments), expected);
    }
    let report = place.report(&["--heap", "thp", "--require"], &arguments);
    assert_eq!(report["profile"]["state"], "not-used", "{report:#}");
    assert!(report["profile"]["reason"].as_str().unwrap().starts_with("--require"), "{report:#}");
}

#[test]
fn a_block_that_is_filled_stays_huge() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["block", "96", "1"];
    place.report(&THP, &arguments);
    let next = place.until(&arguments, |next| mib(next, "end.heap.thp_bytes") >= 94);
    assert_eq!(next["profile"]["state"], "used", "{next:#}");
    assert!(!known(&next).contains("sparse"), "{next:#}");
}

#[test]
fn a_block_that_was_sparse_and_is_filled_becomes_huge_and_is_known_to_be() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["block", "96", "32"];
    place.report(&THP, &arguments);
    let file = place.directory.path().join("held.json");
    let is_dense_now = |_| {
        place.hold(&file, &arguments, &[("EVERY", "1")], |report| {
            report["profile"]["state"] == "used"
                && report["end"]["heap"]["thp_bytes"].as_u64() >= Some(90 << 20)
        });
        // This one finds it sparse again.
        !known(&place.report(&THP, &arguments)).contains("sparse")
    };
    assert!((0..20).any(is_dense_now), "it stays sparse");
}

#[test]
fn what_a_program_shows_that_took_the_place_of_another_is_not_kept() {
    let Some(place) = Place::new() else { return };
    let program = [place.program.as_str(), "again", &place.program, "heap", "100"];
    let (status, report) = place.report_of(&THP, &program, &[]);
    assert_eq!(status, 3);
    let why = &report["profile"]["not_written"];
    assert_eq!(why, "the process has executed another program");
    assert!(place.files().is_empty());
}

#[test]
fn a_heap_that_grows_is_huge_from_its_start_the_next_time() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let small = |report: &Value| {
        let fall_backs = report["account"]["fall_backs"].as_array().unwrap();
        let small = fall_backs.iter().find(|it| it["reason"] == "too-small");
        small.map_or(0, |it| it["bytes"].as_u64().unwrap() >> 20)
    };
    let first = place.report(&THP, &["heap", "100"]);
    assert_eq!(small(&first), 4, "{first:#}");
    let next = place.report(&THP, &["heap", "100"]);
    assert!(known(&next).contains("the heap grows to 1"), "{next:#}");
    // What the C library allocates before the library knows stays.
    assert!(small(&next) <= 2, "{next:#}");
    assert!(peak_mib(&next) <= peak_mib(&first) + 4);
    // One that does not grow so far starts as before.
    for _ in 0..2 {
        assert_eq!(small(&place.report(&THP, &["heap", "20"])), 4);
    }
}

#[test]
fn mappings_that_are_filled_are_huge_from_the_first_the_next_time() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["maps", "10"];
    let first = mib(&place.report(&THP, &arguments), "end.own_mappings.thp_bytes");
    let next = place.until(&arguments, |next| {
        mib(next, "end.own_mappings.thp_bytes") >= 8.max(first + 1)
            && known(next).contains("own mappings below 2 MiB are dense")
    });
    assert_eq!(next["profile"]["state"], "used", "{next:#}");
}

#[test]
fn a_large_mapping_that_is_filled_is_huge_from_its_first_touch_the_next_time() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["map", "96"];
    let file = place.directory.path().join("held.json");
    place.hold(&file, &arguments, &[], |report| {
        report["end"]["own_mappings"]["thp_bytes"].as_u64() >= Some(90 << 20)
    });
    let next = place.until(&arguments, |next| {
        mib(next, "end.own_mappings.thp_bytes") >= 94
            && known(next).contains("own mappings from 32 MiB on are dense")
    });
    let without = place.report(&["--heap", "thp", "--no-profile"], &arguments);
    let faults = |report: &Value| report["totals"]["minor_faults"].as_u64().unwrap();
    // Without, 16 MiB at least come first.
    assert!(faults(&next) + 3_000 < faults(&without), "{} and {}", faults(&next), faults(&without));
}

#[test]
fn another_program_is_told_nothing() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["heap", "80"];
    assert_eq!(place.state(&THP, &arguments), "none-yet");
    assert_eq!(place.state(&THP, &arguments), "used");
    assert_eq!(place.state(&THP, &["heap", "81"]), "none-yet", "other arguments");
    assert_eq!(place.state(&["--heap", "thp", "--fork", "cheap"], &arguments), "none-yet", "other options");
    let script = place.directory.path().join("x.py");
    let with_script = ["heap", "80", script.to_str().unwrap()];
    fs::write(&script, "one").unwrap();
    assert_eq!(place.state(&THP, &with_script), "none-yet");
    assert_eq!(place.state(&THP, &with_script), "used");
    fs::write(&script, "other").unwrap();
    assert_eq!(place.state(&THP, &with_script), "none-yet", "another script");
    let source = format!("{PROGRAM}\nint another;");
    compile("gcc", place.directory.path(), "learned", &source, &["-DOTHER", "-O2"]);
    assert_eq!(place.state(&THP, &arguments), "none-yet", "another binary");
    assert_eq!(place.state(&THP, &arguments), "used");
    // By its contents alone.
    for every in ["1", "2"] {
        let source = format!("{PROGRAM}\nint another = {every};");
        compile("gcc", place.directory.path(), "learned", &source, &["-Wl,--build-id=none"]);
        assert_eq!(place.state(&THP, &arguments), "none-yet");
        assert_eq!(place.state(&THP, &arguments), "used");
    }
}

#[test]
fn a_profile_that_others_may_have_written_is_ignored() {
    let Some(place) = Place::new() else { return };
    let arguments = ["heap", "80"];
    place.report(&THP, &arguments);
    let file = place.the_file();
    let good = fs::read_to_string(&file).unwrap();
    let check = |expected: &str| {
        let report = place.report(&THP, &arguments);
        assert_eq!(report["profile"]["state"], "not-used", "{report:#}");
        let reason = report["profile"]["reason"].as_str().unwrap();
        assert!(reason.contains(expected), "expected '{expected}' in: {reason}");
        // It is replaced by a good one.
        assert_eq!(report["profile"]["written"], true, "{report:#}");
        assert_eq!(place.report(&THP, &arguments)["profile"]["reason"], Value::Null);
    };
    let write = |text: &str| fs::write(&file, text).unwrap();
    write("{");
    check("it cannot be read");
    write(&good.replacen("\"findings\"", "\"more\": 1, \"findings\"", 1));
    check("unknown field");
    write(&good.replace("megapage.profile/1", "megapage.profile/2"));
    check("its schema is not");
    let blocks = r#"[{ "from_bytes": 67108864, "seen_bytes": 5, "touched_bytes": 6, "starts": 0 }]"#;
    assert!(good.contains("\"large_blocks\": []"), "{good}");
    write(&good.replace("\"large_blocks\": []", &format!("\"large_blocks\": {blocks}")));
    check("cannot be true");
    write(&good.replace("\"program\": \"", "\"program\": \"/x"));
    check("it is another program's");
    write(&format!("{good}{}", " ".repeat(65 << 10)));
    check("longer than");
    write(&good);
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    check("may be written to by others");
    let beside = place.directory.path().join("beside");
    fs::rename(&file, &beside).unwrap();
    let linked = fs::read_to_string(&beside).unwrap();
    symlink(&beside, &file).unwrap();
    check("symbolic link");
    assert_eq!(fs::read_to_string(&beside).unwrap(), linked, "nothing is written through the link");
    if effective_uid() != 0 {
        return skip("needs root, to give a file to another user");
    }
    chown(&file, Some(12345), None).unwrap();
    check("belongs to user 12345");
}

#[test]
fn a_run_goes_on_without_a_place_for_profiles() {
    let Some(place) = Place::new() else { return };
    let arguments = ["heap", "80"];
    fs::create_dir_all(place.profiles()).unwrap();
    fs::set_permissions(place.profiles(), Permissions::from_mode(0o777)).unwrap();
    let report = place.report(&THP, &arguments);
    let said = report["profile"]["not_written"].as_str().unwrap();
    assert!(said.contains("may be written to by others"), "{report:#}");
    let program = [&[place.program.as_str()], &arguments[..]].concat();
    for (directory, expected) in [("none", "MEGAPAGE_PROFILES is none"), ("here", "no absolute path")] {
        let (status, report) = place.report_of(&THP, &program, &[(PROFILES, directory)]);
        assert_eq!(status, 3);
        assert!(report["profile"]["reason"].as_str().unwrap().contains(expected), "{report:#}");
    }
    assert!(place.files().is_empty());
    // A short run of which nothing is found out is not kept.
    fs::set_permissions(place.profiles(), Permissions::from_mode(0o700)).unwrap();
    let report = place.report(&THP, &["nothing"]);
    if report["totals"]["elapsed_ms"].as_u64() < Some(100) {
        assert!(
            report["profile"]["not_written"].as_str().unwrap().contains("the run was short"),
            "{report:#}"
        );
        assert!(place.files().is_empty());
    }
}

#[test]
fn runs_beside_each_other_leave_a_whole_profile() {
    let Some(place) = Place::new() else { return };
    let children: Vec<_> = (0..8)
        .map(|_| {
            let mut command = run(&["--heap", "thp", "--", &place.program, "heap", "70"]);
            command.env(PROFILES, place.profiles()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
    let profile: Value = serde_json::from_slice(&fs::read(place.the_file()).unwrap()).unwrap();
    assert_eq!(profile["schema"], "megapage.profile/1");
    assert_eq!(place.state(&THP, &["heap", "70"]), if can_learn() { "used" } else { "nothing-to-use" });
}

#[test]
fn a_crash_of_a_program_that_was_told_something_forgets_it() {
    let Some(place) = Place::new() else { return };
    if !can_learn() {
        return;
    }
    let arguments = ["crash", "100"];
    let program = [place.program.as_str(), "crash", "100"];
    place.report(&THP, &arguments);
    let (status, report) = place.report_of(&THP, &program, &[("CRASH", "1")]);
    assert_eq!((status, &report["profile"]["state"]), (1000 + 6, &Value::from("used")));
    assert_eq!(place.state(&THP, &arguments), "nothing-to-use");
    assert_eq!(place.state(&THP, &arguments), "used");
}

#[test]
fn profiles_are_listed_shown_and_forgotten() {
    let Some(place) = Place::new() else { return };
    let said = |output: &std::process::Output| text(&output.stdout);
    assert!(said(&place.profile(&["list"])).starts_with("No profiles in "));
    place.report(&THP, &["heap", "80"]);
    place.report(&["--heap", "none"], &["heap", "150"]);
    let listed: Value = serde_json::from_slice(&place.profile(&["list", "--json"]).stdout).unwrap();
    assert_eq!(listed["schema"], "megapage.profile-list/1");
    let entries = listed["profiles"].as_array().unwrap();
    assert!(
        entries.iter().any(|entry| entry["known"].to_string().contains("the heap grows to")),
        "{listed:#}"
    );
    assert!(entries.iter().all(|entry| entry["program"] == place.program.as_str()));
    let list = said(&place.profile(&["list"]));
    assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
    let shown = said(&place.profile(&["show", "learned"]));
    assert!(shown.contains("known: the heap grows to") && shown.contains("heap thp"), "{shown}");
    let all: Value = serde_json::from_slice(&place.profile(&["show", "learned", "--json"]).stdout).unwrap();
    assert_eq!(all["profiles"][0]["profile"]["schema"], "megapage.profile/1");
    let none = place.profile(&["show", "other"]);
    assert_refused(&none, 2, "no profile of other: megapage profile list shows all");
    let files = place.files();
    let lines = said(&place.profile(&["forget", "--all", "--dry-run"]));
    assert_eq!(lines.lines().count(), files.len(), "{lines}");
    assert_eq!(place.files(), files);
    let key = Path::new(&files[0]).file_stem().unwrap().to_str().unwrap();
    assert!(place.profile(&["forget", &key[..12]]).status.success());
    assert!(!files[0].exists());
    assert!(place.profile(&["forget", "--all"]).status.success());
    assert!(place.files().is_empty());
    assert!(!place.profile(&["forget"]).status.success(), "it says what");
}
