//! `megapage run` with the JVM: its switches, checks before the start, repairs, and proofs.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::cgroup::Cgroups;
use megapage_testing::{PoolGuard, is_root, require_root, skip};
use megapage_units::PageSize;
use run_support::{status as status_of, *};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A user who owns nothing, and needs no account.
const USER: &str = "61234";

/// Program that fills a number of blocks of 900,000 bytes, says "ready", and waits for the end of
/// its input.
const JAVA: &str = "public class Heap { public static void main(String[] a) throws Exception { \
    int n = Integer.parseInt(a[0]); byte[][] b = new byte[n][]; for (int i = 0; i < n; i++) { \
    b[i] = new byte[900000]; java.util.Arrays.fill(b[i], (byte) 1); } System.out.println(\"ready\"); \
    System.out.flush(); System.in.read(); System.exit(b[n - 1][3] == 1 ? 0 : 9); } }";

/// Returns a directory with the class, which every user may read; `None`, after a loud skip,
/// without a JDK.
fn class() -> Option<TempDir> {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let source = directory.path().join("Heap.java");
    fs::write(&source, JAVA).unwrap();
    match Command::new("javac").arg("-d").arg(directory.path()).arg(&source).status() {
        Ok(status) => assert!(status.success(), "javac"),
        Err(error) => {
            skip(&format!("needs javac: {error}"));
            return None;
        }
    }
    Some(directory)
}

fn path(directory: &TempDir) -> &str {
    directory.path().to_str().unwrap()
}

/// Returns the verdict on the runtime's switch: true if it was used, and the reason.
fn switch(report: &Value) -> (bool, String) {
    let considered = report["considered"].as_array().unwrap();
    let found = considered.iter().find(|it| it["mechanism"] == "runtime").unwrap();
    (found["used"].as_bool().unwrap(), found["reason"].as_str().unwrap().to_string())
}

/// Returns true, after a loud skip, if a control group could refuse a page after its mapping: then
/// the default is THP.
fn limited() -> bool {
    let limited = Cgroups::read(&KernelRoot::live(), None).unwrap().hugetlb_fault_may_be_refused();
    if limited {
        skip("needs a control group without a hugetlb limit: with one, the default is THP");
    }
    limited
}

#[test]
fn a_heap_that_is_not_sized_gets_thp() {
    let Some(class) = class() else { return };
    let program = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", path(&class), "Heap", "100"];
    let (status, report, said) = held_report(&["--heap", "thp"], &program, "32 MiB on THP", |report| {
        mib(report, "peak.heap.thp_bytes") >= 32
    });
    assert_eq!((status, said.as_str()), (0, ""), "the JVM says nothing about it: {report:#}");
    assert_eq!(switch(&report).1, "-XX:+UseTransparentHugePages reaches the whole Java heap");
    assert_eq!(mib(&report, "java.max_heap_bytes"), 512);

    let own = ["java", "-XX:-UseTransparentHugePages", "-Xmx512m", "Heap"];
    let planned = text(&output(&[&["--dry-run", "--"][..], &own].concat()).stdout);
    assert!(planned.contains("runtime not used: the arguments choose already"), "{planned}");
}

#[test]
fn the_shared_heap_of_zgc_is_made_huge_from_outside() {
    let Some(class) = class() else { return };
    let program = ["java", "-XX:+UseZGC", "-Xmx512m", "-cp", path(&class), "Heap", "100"];
    let (status, report, said) =
        held_report(&[], &program, "32 MiB on THP", |report| mib(report, "end.heap.shmem_pmd_bytes") >= 32);
    assert_eq!((status, said.as_str()), (0, ""), "{report:#}");
}

/// Returns every JVM that Debian's packages have installed.
fn installed_jvms() -> Vec<PathBuf> {
    let directories = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let files = directories.filter_map(|entry| fs::canonicalize(entry.path().join("bin/java")).ok());
    files.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// Returns resident bytes, and those on THP, of the mappings that begin in `range`. Parses smaps
/// without megapage's reader.
fn by_hand(pid: u32, range: std::ops::Range<u64>) -> (u64, u64) {
    let (mut inside, mut sums) = (false, (0, 0));
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let mut words = line.split_whitespace();
        let (first, value) = (words.next().unwrap(), words.next().unwrap_or_default());
        if let Some((start, _)) = first.split_once('-') {
            inside = range.contains(&u64::from_str_radix(start, 16).unwrap());
        }
        let kib = || value.parse::<u64>().unwrap() << 10;
        match first {
            "Rss:" if inside => sums.0 += kib(),
            "AnonHugePages:" if inside => sums.1 += kib(),
            _ => {}
        }
    }
    sums
}

#[test]
fn the_heap_of_the_report_is_the_one_that_the_jvm_names() {
    let Some(class) = class() else { return };
    let jvms = installed_jvms();
    if jvms.is_empty() {
        return skip("needs a JVM below /usr/lib/jvm");
    }
    for java in jvms {
        for (collector, archive) in [("G1", "auto"), ("Serial", "auto"), ("Parallel", "auto"), ("G1", "off")]
        {
            let (log, file) = (class.path().join("heap.log"), class.path().join("report.json"));
            let logged = format!("-Xlog:gc+heap+coops=debug:file={}", log.display());
            let (collector, archive) = (format!("-XX:+Use{collector}GC"), format!("-Xshare:{archive}"));
            let program = [
                java.to_str().unwrap(),
                &collector,
                &archive,
                &logged,
                "-Xmx256m",
                "-cp",
                path(&class),
                "Heap",
                "100",
            ];
            let options = ["--heap", "thp", "--json", "--report", file.to_str().unwrap(), "--"];
            let child = start(run(&[&options[..], &program].concat()));
            let named = fs::read_to_string(&log).unwrap();
            let address = named.split("Heap address: 0x").nth(1).unwrap().split(',').next().unwrap();
            let start = u64::from_str_radix(address, 16).unwrap();
            until_reported(&child, &file, "the JVM's heap", |report| {
                let told = |name: &str| report["end"]["heap"][name].as_u64();
                let (resident, thp) =
                    by_hand(report["program"]["pid"].as_u64().unwrap() as u32, start..start + (256 << 20));
                resident >= 90 << 20
                    && (told("total_bytes"), told("thp_bytes")) == (Some(resident), Some(thp))
            });
            assert_eq!(status_of(&finish(child)), 0, "{collector} {archive}");
        }
    }
}

#[test]
fn a_jvm_is_seen_to_its_end_where_that_is_required() {
    let Some(class) = class() else { return };
    let program = ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", path(&class), "Heap", "100"];
    let is_seen = |_| is_seen_to_its_end(&program, 0, 95.0);
    assert!((0..10).any(is_seen), "the program's last moment was missed 10 times");
}

#[test]
fn a_pool_that_holds_the_jvm_gives_it_its_heap() {
    let Some(class) = class() else { return };
    // 128 + 120 pages for heap and code cache, and some for the tables.
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 300) else { return };
    if limited() {
        return;
    }
    for (heap, collector) in [("2m", "-XX:+UseSerialGC"), ("auto", "-XX:+UseG1GC"), ("2m", "-XX:+UseZGC")] {
        let program = ["java", collector, "-Xmx256m", "-cp", path(&class), "Heap", "100"];
        let (status, report, said) =
            held_report(&["--heap", heap, "--require"], &program, "64 MiB on hugetlb", |report| {
                mib(report, "peak.heap.hugetlb_2m_bytes") >= 64
            });
        assert_eq!((status, said.as_str()), (0, ""), "{collector}: {report:#}");
        assert!(switch(&report).1.starts_with("-XX:+UseLargePages"), "{report:#}");
        assert_eq!(report["peak"]["heap"]["base_bytes"], 0, "the kernel's word: {report:#}");
        assert_eq!(report["java"]["obstacles"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn where_it_is_too_short_the_reason_comes_before_the_start() {
    if Command::new("java").arg("-version").output().is_err() {
        return skip("needs java");
    }
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    // A heap larger than all pages that are reserved here.
    let heap = format!("-Xmx{}m", 2 * (pool.former().total + 512));
    let program = ["java", &heap, "-version"];
    let required = output(&[&["--heap", "2m", "--require", "--"], &program[..]].concat());
    let said = text(&required.stderr);
    assert_eq!(status_of(&required), 125, "{said}");
    // With an empty pool the general reason comes first.
    assert!(said.contains("megapage pool set 2m") && said.lines().count() == 1, "{said}");
    let planned = text(&output(&[&["--heap", "2m", "--dry-run", "--"], &program[..]].concat()).stdout);
    assert!(planned.contains("and the JVM takes") && planned.contains("code cache 240 MiB"), "{planned}");
    assert!(
        planned.contains("# for large pages, once") && planned.contains("#   megapage pool set 2m:+"),
        "{planned}"
    );
}

/// Installs the command and its library where every user may run them.
fn installed() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (source, target) in [(Path::new(env!("CARGO_BIN_EXE_megapage")), "bin"), (library(), "lib/megapage")]
    {
        let target = directory.path().join(target);
        fs::create_dir_all(&target).unwrap();
        // Copied by another process, so that a child that starts meanwhile holds no descriptor open
        // for writing.
        let copied = Command::new("cp").arg(source).arg(&target).status().unwrap();
        assert!(copied.success());
    }
    directory
}

/// Returns `megapage run` by an ordinary user, in an empty directory of that user.
fn as_user(prefix: &TempDir, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
    for name in ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"] {
        command.env_remove(name);
    }
    command.arg(prefix.path().join("bin/megapage")).arg("run").args(arguments).current_dir(home);
    command
}

#[test]
fn an_ordinary_user_gets_large_pages_once_root_has_run_the_printed_lines() {
    if !require_root() {
        return;
    }
    let Some(class) = class() else { return };
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    if limited() {
        return;
    }
    let (prefix, home) = (installed(), class.path().join("home"));
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER.parse().unwrap()), None).unwrap();
    // A heap larger than the pool can be by chance.
    let heap = format!("-Xmx{}m", 2 * pool.former().total + 160);
    let program = [
        "java",
        "-XX:+UseSerialGC",
        &heap,
        "-XX:ReservedCodeCacheSize=32m",
        "-cp",
        path(&class),
        "Heap",
        "64",
    ];

    let planned = as_user(&prefix, &home, &[&["--heap", "2m", "--dry-run", "--"], &program[..]].concat());
    let planned = { planned }.output().unwrap();
    let lines = text(&planned.stdout);
    assert_eq!(status_of(&planned), 0, "{}", text(&planned.stderr));
    let printed: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix("#   megapage ")).collect();
    assert_eq!(printed.len(), 1, "{lines}");

    // Root runs the printed line; the guard restores the pool.
    let status = Command::new(env!("CARGO_BIN_EXE_megapage")).args(printed[0].split(' ')).status().unwrap();
    assert!(status.success(), "{}", printed[0]);

    let file = home.join("report.json");
    let options = ["--heap", "2m", "--require", "--json", "--report", file.to_str().unwrap(), "--"];
    let child = start(as_user(&prefix, &home, &[&options[..], &program].concat()));
    // The sample must also be late, so that most of the run lies before it: this JVM can end within
    // a fifth of a second.
    until_reported(&child, &file, "32 MiB on hugetlb, for a while", |report| {
        let at = |moment: &str| report[moment]["at_ms"].as_u64().unwrap_or(0);
        mib(report, "peak.heap.hugetlb_2m_bytes") >= 32 && at("peak").max(at("end")) >= 1000
    });
    let ended = finish(child);
    assert_eq!((status_of(&ended), text(&ended.stderr).as_str()), (0, ""));
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["peak"]["heap"]["base_bytes"], 0, "{report:#}");
    assert_eq!(fs::metadata(&file).unwrap().uid().to_string(), USER, "it was that user's run");
}

#[test]
fn what_the_jvm_says_into_a_file_is_explained() {
    let Some(class) = class() else { return };
    // Enough pages for the JVM's trial at its start, but too few for a mapping.
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let heap = format!("-Xmx{}m", 2 * (pool.former().total + 128));
    let (log, report): (PathBuf, PathBuf) = (class.path().join("log"), class.path().join("report"));
    let program = ["java", "-XX:+UseSerialGC", "-XX:+UseLargePages", &heap, "-cp", path(&class), "Heap", "1"];
    let options = ["--json", "--report", report.to_str().unwrap(), "--"];
    let mut command = run(&[&options[..], &program].concat());
    let ended = command.stderr(File::create(&log).unwrap()).output().unwrap();
    assert_eq!(status_of(&ended), 0);
    let written = fs::read_to_string(&log).unwrap();
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let said = &found["said"][0];
    assert_eq!(said["program"], "JVM", "{found:#} {written}");
    assert!(said["meaning"].as_str().unwrap().contains("too few pages"), "{found:#}");
    assert!(
        found["notes"].to_string().contains("large pages of the JVM: the pool of 2m pages has"),
        "{found:#}"
    );

    let doctor = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_megapage")).arg("doctor").args(arguments).output().unwrap()
    };
    let explained = doctor(&["--log", log.to_str().unwrap()]);
    let lines = text(&explained.stdout);
    assert_eq!(status_of(&explained), 1, "{lines}");
    assert!(lines.starts_with("JVM, ") && lines.contains("means") && lines.contains("helps"), "{lines}");
    assert!(lines.lines().all(|line| line.chars().count() <= 100), "{lines}");
    let nothing = doctor(&["--log", "/dev/null"]);
    assert_eq!((status_of(&nothing), text(&nothing.stdout).lines().count()), (0, 1));
    let json = doctor(&["--log", log.to_str().unwrap(), "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["schema"], &json["messages"]), (&"megapage.doctor-log/1".into(), &found["said"]));
    let absent = doctor(&["--log", "/nonexistent"]);
    assert_eq!(status_of(&absent), 2);
    assert!(text(&absent.stderr).contains("--log /nonexistent"), "{}", text(&absent.stderr));
}

#[test]
fn a_script_that_starts_a_jvm_is_told_by_the_variable() {
    let Some(class) = class() else { return };
    let script_path = class.path().join("start");
    script(
        &script_path,
        &format!("#!/bin/sh\nexec java -XX:+UseSerialGC -Xmx256m -cp '{}' Heap 100\n", path(&class)),
    );
    let program = [script_path.to_str().unwrap()];
    let arguments = ["--jvm", "--heap", "thp"];
    let file = class.path().join("report.json");
    let options = [&arguments[..], &["--json", "--report", file.to_str().unwrap(), "--"], &program].concat();
    let child = start(run(&options));
    until_reported(&child, &file, "32 MiB on THP", |report| mib(report, "peak.anonymous.thp_bytes") >= 32);
    let ended = finish(child);
    let said = text(&ended.stderr);
    assert_eq!(status_of(&ended), 0, "{said}");
    assert!(said.starts_with("Picked up JAVA_TOOL_OPTIONS: -XX:+UseTransparentHugePages"), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(switch(&report).1.contains("by JAVA_TOOL_OPTIONS"), "{report:#}");
    // The release is that of the java in PATH.
    assert!(report["java"]["version"].as_u64().is_some_and(|version| version >= 8), "{report:#}");
    assert!(is_root() || report["considered"].is_array());
}
