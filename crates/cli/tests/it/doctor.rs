//! `megapage doctor` on the running machine: as root, for another user, as another user, and with
//! bad input.

use megapage_testing::{MachineLock, PoolGuard, require_root, skip};
use megapage_units::PageSize;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const ORDINARY: &str = "65534";

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_megapage")).arg("doctor").args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema"], "megapage.doctor/1");
    let weighty = value["findings"].as_array().unwrap().iter().any(|finding| finding["severity"] != "note");
    assert_eq!(output.status.code(), Some(i32::from(weighty)));
    value
}

/// Returns the verdict whose way contains these words.
fn verdict<'a>(value: &'a Value, way: &str) -> &'a Value {
    let verdicts = value["verdicts"].as_array().unwrap();
    let found = verdicts.iter().find(|verdict| verdict["way"].as_str().unwrap().contains(way));
    found.unwrap_or_else(|| panic!("{way}: {value:#}"))
}

fn has_finding(value: &Value, id: &str) -> bool {
    value["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == id)
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// Unmounts; lazily if another process that visits every mount is in there now.
fn unmount(point: &Path) {
    let unmounted = |arguments: &[&str]| {
        Command::new("umount").args(arguments).arg(point).output().is_ok_and(|output| output.status.success())
    };
    if !unmounted(&[]) && !unmounted(&["--lazy"]) {
        // A panic in a drop would hide the test's panic.
        eprintln!("{} stays mounted", point.display());
    }
}

/// A setting of the machine, restored when dropped.
struct Setting {
    name: &'static str,
    former: String,
    _lock: MachineLock,
}

impl Setting {
    fn set(name: &'static str, value: &str) -> Setting {
        let lock = MachineLock::take();
        let former = run("sysctl", &["-n", name]);
        let setting = Setting { name, former, _lock: lock };
        run("sysctl", &["-qw", &format!("{name}={value}")]);
        setting
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = Command::new("sysctl").args(["-qw", &format!("{}={}", self.name, self.former)]).status();
    }
}

/// A hugetlbfs mount, unmounted when dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Mounted {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        run(
            "mount",
            &["-t", "hugetlbfs", "-o", "pagesize=2M,mode=0700", "none", directory.path().to_str().unwrap()],
        );
        Mounted(directory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.0.path());
    }
}

#[test]
fn an_empty_pool_is_errno_12_and_a_missing_group_errno_1() {
    if !require_root() {
        return;
    }
    // The guard keeps other tests from filling the pool meanwhile.
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    if pool.counts().total != 0 || pool.counts().overcommit != Some(0) {
        return skip("needs an empty pool of 2m");
    }
    let value = json(&doctor(&["--user", "nobody", "--json"]));
    assert_eq!((&value["user"], &value["uid"]), (&"nobody".into(), &65_534.into()));
    let mapped = verdict(&value, "mmap(MAP_HUGETLB) of 2m");
    assert_eq!((&mapped["errno"], &mapped["basis"]), (&12.into(), &"tried".into()), "{mapped:#}");
    assert_eq!(
        mapped["sentence"],
        "Fails for user nobody with errno 12 (ENOMEM) because no page of 2m is reserved."
    );
    let segment = verdict(&value, "shmget");
    assert_eq!((&segment["errno"], &segment["basis"]), (&1.into(), &"tried".into()), "{segment:#}");
    assert!(has_finding(&value, "pool-empty") && has_finding(&value, "shm-not-permitted"));
    // Both are notes: a program that requests no hugetlb pages needs neither.
    let severities = |value: &Value| -> Vec<String> {
        let findings = value["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["severity"].as_str().unwrap().to_string()).collect()
    };
    let of =
        |id: &str| value["findings"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap().clone();
    assert_eq!(
        (&of("pool-empty")["severity"], &of("shm-not-permitted")["severity"]),
        (&"note".into(), &"note".into())
    );
    let is_calm = severities(&value).iter().all(|severity| severity == "note");
    assert_eq!(value["summary"].as_str().unwrap().starts_with("Nothing is wrong: "), is_calm, "{value:#}");
    assert!(!has_finding(&value, "refused-unexplained"), "{value:#}");

    // Root has the permission, and is refused because of the pool.
    let value = json(&doctor(&["--json"]));
    assert_eq!(verdict(&value, "shmget")["errno"], 12);
    assert!(!has_finding(&value, "shm-not-permitted"));
}

#[test]
fn it_concludes_about_a_program() {
    let output = doctor(&["--for", "sort"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let summary = text.split("\n\n").next().unwrap().replace('\n', " ");
    assert!(summary.contains("sort gets them by: megapage run -- sort ("), "{summary}");
    if Command::new("redis-server").arg("--version").output().is_err() {
        return skip("redis-server is not installed");
    }
    let value = json(&doctor(&["--for", "redis-server", "--json"]));
    let summary = value["summary"].as_str().unwrap();
    assert!(summary.contains("megapage run --fork snapshot -- redis-server --disable-thp no"), "{summary}");
}

#[test]
fn a_journal_is_read_by_its_unit() {
    let directory = tempfile::tempdir().unwrap();
    let journalctl = |script: &str| {
        let path = directory.path().join("journalctl");
        let text = directory.path().join("text");
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Written by another process. A child of a parallel test could keep a file open that this
        // process opens for writing (ETXTBSY).
        run("install", &["-m", "755", text.to_str().unwrap(), path.to_str().unwrap()]);
    };
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let log = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
        let output = command.arg("doctor").args(arguments).env("PATH", &path).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    journalctl(
        "case \"$*\" in *--unit=postgresql@15-main.service*) \
         echo 'server process (PID 81) was terminated by signal 7: Bus error';; esac",
    );
    let (status, out, _) = log(&["--log", "-u", "postgresql@15-main"]);
    assert_eq!(status, 1);
    assert!(out.contains("was terminated by signal 7") && out.contains("hugepages-2Mi"), "{out}");
    let (status, _, err) = log(&["--log", "--unit", "other"]);
    assert_eq!((status, err.lines().count()), (2, 1));
    assert!(err.contains("the journal shows nothing of other.service"), "{err}");
    journalctl("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1");
    let (status, _, err) = log(&["--log", "-u", "redis", "--json"]);
    assert_eq!(status, 2);
    assert!(err.contains("insufficient permissions"), "{err}");
    for (arguments, expected) in [
        (&["--log"][..], "give a file, - for standard input, or --unit UNIT"),
        (&["--log", "/dev/null", "-u", "redis"], "not both"),
        (&["--log", "-u", "a b"], "'a b' is not the name of a unit"),
        (&["-u", "redis"], "required"),
    ] {
        let (status, out, err) = log(arguments);
        assert!(status == 2 && out.is_empty() && err.contains(expected), "{arguments:?}: {err}");
    }
}

#[test]
fn the_remedies_help() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 4) else { return };
    let before = json(&doctor(&["--user", "nobody", "--json"]));
    assert_eq!(verdict(&before, "mmap(MAP_HUGETLB) of 2m")["outcome"], "works");
    assert_eq!(verdict(&before, "shmget")["errno"], 1);

    let _group = Setting::set("vm.hugetlb_shm_group", ORDINARY);
    let after = json(&doctor(&["--user", "nobody", "--json"]));
    let segment = verdict(&after, "shmget");
    assert_eq!((&segment["outcome"], &segment["basis"]), (&"works".into(), &"tried".into()));
    assert!(!has_finding(&after, "shm-not-permitted"));

    let mounted = Mounted::new();
    let denied = json(&doctor(&["--user", "nobody", "--json"]));
    let file = verdict(&denied, mounted.0.path().to_str().unwrap());
    assert_eq!((&file["errno"], &file["basis"]), (&13.into(), &"tried".into()), "{file:#}");
    fs::set_permissions(mounted.0.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let allowed = json(&doctor(&["--user", "nobody", "--json"]));
    assert_eq!(verdict(&allowed, mounted.0.path().to_str().unwrap())["outcome"], "works");
    assert_eq!(fs::read_dir(mounted.0.path()).unwrap().count(), 0, "a trial leaves nothing behind");
    assert!(!has_finding(&allowed, "hugetlbfs-denied"));
}

/// A control group with a limit on faults of hugetlb pages, removed when dropped.
struct Group {
    mount: tempfile::TempDir,
    _lock: MachineLock,
}

impl Group {
    /// Returns `None`, after a loud skip, if the kernel's hugetlb controller is not available on
    /// version 1.
    fn with_limit(bytes: u64) -> Option<Group> {
        let lock = MachineLock::take();
        let mount = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "cgroup", "-o", "hugetlb", "none"])
            .arg(mount.path())
            .output()
            .unwrap();
        if !mounted.status.success() {
            skip(&format!("needs a hugetlb cgroup: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
            return None;
        }
        let group = Group { mount, _lock: lock };
        fs::create_dir(group.path()).unwrap();
        fs::write(group.path().join("hugetlb.2MB.limit_in_bytes"), bytes.to_string()).unwrap();
        Some(group)
    }

    fn path(&self) -> std::path::PathBuf {
        self.mount.path().join("megapage-doctor-test")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group is busy until the last of its processes has been reaped.
        for _ in 0..40 {
            match fs::remove_dir(self.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                _ => break,
            }
        }
        unmount(self.mount.path());
    }
}

#[test]
fn a_control_group_that_would_kill_is_found_out() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 4) else { return };
    let inside = |group: &Group| {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$1\" doctor --json";
        json(
            &Command::new("sh")
                .args(["-c", script])
                .arg(group.path())
                .arg(env!("CARGO_BIN_EXE_megapage"))
                .output()
                .unwrap(),
        )
    };
    let Some(group) = Group::with_limit(0) else { return };
    let value = inside(&group);
    let mapped = verdict(&value, "mmap(MAP_HUGETLB) of 2m");
    assert_eq!((&mapped["outcome"], &mapped["basis"]), (&"kills".into(), &"tried".into()), "{mapped:#}");
    assert_eq!(mapped["because"][0], "cgroup-hugetlb-full");
    assert!(mapped["sentence"].as_str().unwrap().contains("SIGBUS"));
    drop(group);

    let Some(group) = Group::with_limit(4 << 20) else { return };
    let value = inside(&group);
    assert_eq!(verdict(&value, "mmap(MAP_HUGETLB) of 2m")["sentence"], "Works for user root, up to 4 MiB.");
    assert!(has_finding(&value, "cgroup-hugetlb-sigbus"));
}

#[test]
fn a_user_without_rights_gets_a_true_answer_too() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("megapage");
    megapage_testing::copied(env!("CARGO_BIN_EXE_megapage"), &copy);
    let as_nobody = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups"])
            .arg(&copy)
            .arg("doctor")
            .args(arguments)
            .output()
            .unwrap()
    };
    let own = json(&as_nobody(&["--json"]));
    assert_eq!((&own["uid"], &own["untried"]), (&65_534.into(), &Value::Null));
    let segment = verdict(&own, "shmget");
    assert_eq!((&segment["errno"], &segment["basis"]), (&1.into(), &"tried".into()));
    assert_eq!(verdict(&own, "another process")["errno"], 1);

    let other = json(&as_nobody(&["--user", "root", "--json"]));
    assert_eq!(other["untried"], "trying as user root needs root");
    assert_eq!(verdict(&other, "shmget")["basis"], "reasoned");
}

#[test]
fn a_program_is_looked_at() {
    // Statically linked programs are rare; the shell is everywhere, and forks.
    let value = json(&doctor(&["--for", "sh", "--only-read", "--json"]));
    assert!(value["program"].as_str().unwrap().starts_with('/'), "{value:#}");
    assert!(has_finding(&value, "program-forks"), "{value:#}");
    assert_eq!(value["untried"], "only what can be read was asked for");
    let verdicts = value["verdicts"].as_array().unwrap();
    assert!(verdicts.iter().all(|verdict| verdict["basis"] == "reasoned"));

    if Path::new("/usr/bin/java").exists() {
        assert!(has_finding(&json(&doctor(&["--for", "java", "--only-read", "--json"])), "program-jvm"));
    } else {
        skip("needs java");
    }
}

#[test]
fn rights_that_a_program_gives_are_seen_from_the_user() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("privileged");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let of =
        |user| json(&doctor(&["--user", user, "--for", program.to_str().unwrap(), "--only-read", "--json"]));
    assert!(has_finding(&of("nobody"), "program-privileged"));
    assert!(!has_finding(&of("root"), "program-privileged"), "it is root's program");
}

#[test]
fn the_human_form_fits_a_terminal() {
    let output = doctor(&["--user", "nobody", "--for", "sh", "--only-read"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n\nHuge pages for user nobody (uid 65534) and /"), "{text}");
    assert!(!text.contains('\x1b'), "no colour without a terminal");
    let too_wide = text.lines().find(|line| line.chars().count() > 100 && !line.starts_with("    fix "));
    assert_eq!(too_wide, None);
}

#[test]
fn bad_input_has_one_clear_line() {
    for (arguments, expected) in [
        (&["--user", "no-such-user-here"][..], "megapage: --user no-such-user-here: there is no such user"),
        (&["--user", ""], "megapage: --user : there is no such user"),
        (&["--for", "no-such-program-here"], "megapage: --for no-such-program-here: not found in PATH"),
        (&["--for", "/no/such/program"], "megapage: --for /no/such/program: no such file"),
        (&["--for", "/usr"], "megapage: --for /usr: is a directory, not a program"),
        (&["--for", "/etc/passwd"], "megapage: --for /etc/passwd: no permission to execute it"),
    ] {
        let output = doctor(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(output.stdout.is_empty());
        assert!(said.starts_with(expected), "expected '{expected}' in: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for (arguments, expected) in [
        (&["--colour"][..], "--colour"),
        (&["--user"], "--user <NAME>"),
        (&["java"], "unexpected argument 'java'"),
    ] {
        let output = doctor(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(output.stdout.is_empty() && said.contains(expected), "{said}");
    }
}

/// The variable of libhugetlbfs, which glibc ignores since 2.34: in the environment of the caller,
/// and of a process.
#[test]
fn a_dead_morecore_is_named() {
    let dead = megapage_kernel::glibc::glibc_version().is_none_or(|version| version >= (2, 34));
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    let value = json(
        &command.args(["doctor", "--only-read", "--json"]).env("HUGETLB_MORECORE", "yes").output().unwrap(),
    );
    assert_eq!(has_finding(&value, "morecore-dead"), dead);
    assert!(!has_finding(&json(&doctor(&["--only-read", "--json"])), "morecore-dead"));

    let mut sleeping = Command::new("sleep").arg("60").env("HUGETLB_MORECORE", "2M").spawn().unwrap();
    // Waits until the process executes the program, and has its C library.
    let mut value = Value::Null;
    for _ in 0..100 {
        let output = doctor(&["--why", &sleeping.id().to_string(), "--json"]);
        value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if value["name"] == "sleep" && (!dead || !value["start"].as_array().unwrap().is_empty()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    assert_eq!(value["start"][0]["id"] == "morecore-dead", dead, "{value:#}");
}
