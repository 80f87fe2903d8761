//! `megapage doctor --why` of real processes, each with one obstacle to its huge pages.

use megapage_testing::{PoolGuard, require_root, skip};
use megapage_units::PageSize;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Start of every child's script. `fresh(size, flags, file)` maps memory at a multiple of 2 MiB,
/// and returns its address. The memory lies between pages of other permissions, so that the kernel
/// merges it with no neighbour.
const PRELUDE: &str = r#"
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for name in "madvise", "mlock", "mprotect":
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
M, HUGE, NOHUGE = 1 << 20, 14, 15
def ok(result):
    if result not in (0, None):
        raise OSError(ctypes.get_errno())
def fresh(size, flags=0x22, file=-1):
    around = libc.mmap(None, size + 4 * M, 0, 0x4022, -1, 0)
    aligned = (around + 2 * M) // (2 * M) * (2 * M)
    if libc.mmap(aligned, size, 3, flags | 0x10, file, 0) != aligned:
        raise OSError(ctypes.get_errno())
    return aligned
def touch(start, size, step=4096):
    for at in range(start, start + size, step):
        ctypes.memset(at, 1, 1)
def say(start):
    print("%x" % start, flush=True)
    sys.stdin.read()
"#;

/// A python3 that has prepared its memory, printed an address, and waits. It ends with the test.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    /// Returns `None`, and the test is reported as skipped, if there is no python3.
    fn start(script: &str) -> Option<Program> {
        let started = Command::new("python3")
            .args(["-c", &format!("{PRELUDE}\n{script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(child) = started else {
            skip("needs python3");
            return None;
        };
        let mut program = Program { child, address: String::new() };
        let stdout = program.child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut program.address).unwrap();
        program.address = program.address.trim().to_string();
        assert!(!program.address.is_empty(), "the program has failed: {script}");
        Some(program)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the answer for the address that the program printed.
    fn why(&self) -> Value {
        json(&format!("{}:{}", self.pid(), self.address))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_megapage")).arg("doctor").args(arguments).output().unwrap()
}

fn json(target: &str) -> Value {
    let output = doctor(&["--why", target, "--json"]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema"], "megapage.doctor-why/1");
    let groups = value["groups"].as_array().unwrap();
    let weighty = groups.iter().any(|group| group["reasons"][0]["severity"] != "note");
    assert_eq!(output.status.code(), Some(i32::from(weighty)), "{value:#}");
    value
}

/// Returns the identifiers of the reasons for the one range in `value`.
fn reasons(value: &Value) -> Vec<&str> {
    let Some(reasons) = value["groups"][0]["reasons"].as_array() else { return Vec::new() };
    reasons.iter().map(|reason| reason["id"].as_str().unwrap()).collect()
}

/// Returns the word in brackets of a setting of transparent huge pages, from the file that the
/// doctor gives as evidence.
fn setting(name: &str) -> String {
    let text = fs::read_to_string(megapage_kernel::thp::path(name)).unwrap_or_default();
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(String::new(), |(word, _)| word.into())
}

#[test]
fn a_range_that_was_advised_against_says_so_before_the_setting() {
    let Some(program) = Program::start("a = fresh(8*M); libc.madvise(a, 8*M, NOHUGE); touch(a, 2*M); say(a)")
    else {
        return;
    };
    let value = program.why();
    assert_eq!(reasons(&value)[0], "advised-against", "{value:#}");
    assert_eq!((&value["at"]["present"], &value["at"]["on"]), (&512.into(), &"base pages".into()));
    let text =
        String::from_utf8(doctor(&["--why", &format!("{}:{}", program.pid(), program.address)]).stdout);
    let text = text.unwrap();
    assert!(text.contains("blocker: The program asked for base pages here [advised-against]"));
    assert!(text.contains(&format!("Whether it is worth it: megapage advise {}", program.pid())), "{text}");
}

#[test]
fn a_mapping_without_room_says_so() {
    let Some(program) = Program::start(
        "a = fresh(4*M); libc.munmap(ctypes.c_void_p(a), 4096)\n\
        libc.munmap(ctypes.c_void_p(a + M), 3*M); touch(a + 4096, 64*1024); say(a + 4096)",
    ) else {
        return;
    };
    let value = program.why();
    assert_eq!(reasons(&value)[0], "mapping-small", "{value:#}");
}

#[test]
fn a_program_that_may_not_have_huge_pages_says_so() {
    let Some(program) =
        Program::start("ok(libc.prctl(41, 1, 0, 0, 0)); a = fresh(4*M); touch(a, 2*M); say(a)")
    else {
        return;
    };
    let value = program.why();
    assert_eq!(reasons(&value)[0], "thp-disabled-for-process", "{value:#}");
    assert_eq!(value["groups"][0]["reasons"][0]["evidence"][0]["value"], "0");
}

#[test]
fn memory_that_never_asked_says_so_under_madvise() {
    if setting("enabled") != "madvise" {
        return skip("needs 'madvise' in enabled");
    }
    let Some(program) = Program::start("a = fresh(6*M); touch(a, 6*M); say(a + 2*M + 77)") else { return };
    let value = program.why();
    assert_eq!(reasons(&value), ["not-advised"], "{value:#}");
    // The whole process: the three regions are one range of one mapping, and the largest group.
    let all = json(&program.pid().to_string());
    let groups = all["groups"].as_array().unwrap();
    let own = groups.iter().find(|group| group["present_bytes"] == 6 << 20).expect("the group of 6 MiB");
    assert_eq!((&own["ranges"], &own["reasons"][0]["id"]), (&1.into(), &"not-advised".into()), "{own:#}");
    let first = u64::from_str_radix(&program.address, 16).unwrap() - (2 << 20) - 77;
    assert_eq!(own["first"][0], format!("{first:x}"));
    assert!(all["at"].is_null());
}

#[test]
fn what_was_touched_before_it_asked_waits_for_khugepaged_and_locked_memory_does_not_matter() {
    if setting("enabled") != "madvise" {
        return skip("needs 'madvise' in enabled");
    }
    // One huge page is free: the one that the pool releases.
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 1) else { return };
    drop(pool);
    // khugepaged may be faster, and cannot be stopped without waking it.
    let waits = (0..20).find_map(|_| {
        let program = Program::start(
            "a = fresh(4*M); touch(a, M); ok(libc.mlock(a, M)); touch(a + 2*M, 2*M); ok(libc.mlock(a, 4*M))\n\
             libc.madvise(a, 4*M, HUGE); say(a)",
        )?;
        Some(program.why()).filter(|value| value["at"]["on"] == "base pages")
    });
    let Some(value) = waits else { return skip("needs python3, and khugepaged not to be faster 20 times") };
    assert_eq!(reasons(&value), ["not-collapsed-yet"], "{value:#}");
}

#[test]
fn half_a_region_is_counted() {
    let Some(program) = Program::start(
        "a = fresh(2*M); libc.madvise(a, 2*M, NOHUGE); touch(a, M); ctypes.string_at(a + M, 1); say(a)",
    ) else {
        return;
    };
    let at = &program.why()["at"];
    if require_root() {
        assert_eq!(
            at["folios"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>(),
            256,
            "{at:#}"
        );
    }
    assert_eq!((&at["present"], &at["zero_page"], &at["swapped"]), (&256.into(), &1.into(), &0.into()));
}

#[test]
fn a_file_is_up_to_its_file_system_and_shared_memory_has_a_setting_of_its_own() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor_why.data");
    fs::write(&path, vec![7u8; 4 << 20]).unwrap();
    let script = format!(
        "f = os.open('{}', os.O_RDONLY); a = fresh(4*M, 0x02, f); [ctypes.string_at(a + n, 1) for n in range(0, 4*M, 4096)]; say(a)",
        path.display()
    );
    let Some(file) = Program::start(&script) else { return };
    let value = file.why();
    // The file is huge on a file system that reads in large folios, or on a kernel that collapses
    // files.
    if value["at"]["on"] == "base pages" && value["at"]["mapping"].as_str().unwrap().contains(" file ") {
        assert_eq!(reasons(&value)[0], "file-pages", "{value:#}");
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    let Some(shared) = Program::start("a = fresh(4*M, 0x21); touch(a, 4*M); say(a)") else { return };
    let value = shared.why();
    match setting("shmem_enabled").as_str() {
        "never" | "deny" => assert_eq!(reasons(&value)[0], "shmem-thp-off", "{value:#}"),
        "advise" => assert_eq!(reasons(&value)[0], "shared-not-advised", "{value:#}"),
        _ => skip("shared memory is given huge pages unasked"),
    }
}

#[test]
fn memory_that_a_fork_shares_says_so() {
    if setting("enabled") != "madvise" {
        return skip("needs 'madvise' in enabled");
    }
    let Some(program) = Program::start(
        // Advised after the fork: khugepaged may be faster than the fork.
        "a = fresh(2*M); touch(a, 2*M)\n\
         r, w = os.pipe()\n\
         if os.fork() == 0:\n    os.close(w); os.read(r, 1); os._exit(0)\n\
         os.close(r); libc.madvise(a, 2*M, HUGE); say(a)",
    ) else {
        return;
    };
    let value = program.why();
    assert_eq!(reasons(&value), ["shared-by-fork"], "{value:#}");
    let evidence = value["groups"][0]["reasons"][0]["evidence"].as_array().unwrap();
    assert_eq!((&evidence[0]["value"], &evidence[2]["value"]), (&"512".into(), &"1".into()), "{value:#}");
}

#[test]
fn memory_that_userfaultfd_watches_says_so() {
    if !require_root() {
        return;
    }
    // Advised last: khugepaged collapses no memory that userfaultfd watches.
    let Some(program) = Program::start(
        "import fcntl, struct\n\
         u = libc.syscall(323, 0)\n\
         if u < 0: say(0)\n\
         a = fresh(4*M); touch(a, M)\n\
         fcntl.ioctl(u, 0xc018aa3f, struct.pack('QQQ', 0xaa, 0, 0))\n\
         fcntl.ioctl(u, 0xc020aa00, struct.pack('QQQQ', a, 4*M, 1, 0))\n\
         libc.madvise(a, 4*M, HUGE); say(a)",
    ) else {
        return;
    };
    if program.address == "0" {
        return skip("needs userfaultfd(2)");
    }
    let value = program.why();
    let found = reasons(&value);
    assert_eq!(found.last(), Some(&"userfault"), "{value:#}");
}

#[test]
fn hugetlb_pages_are_huge_and_nothing_more_is_said() {
    if !require_root() {
        return;
    }
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let Some(program) = Program::start("a = fresh(4*M, 0x40022); touch(a, 2*M); say(a)") else { return };
    let value = program.why();
    assert_eq!(value["at"]["on"], "a hugetlb page of 2 MiB", "{value:#}");
    assert!(reasons(&value).is_empty());
    let next = u64::from_str_radix(&program.address, 16).unwrap() + (2 << 20);
    let value = json(&format!("{}:{next:x}", program.pid()));
    assert_eq!(value["at"]["on"], "no page yet; hugetlb pages come with the first touch");
}

#[test]
fn a_process_that_is_not_ours_is_one_line() {
    if !require_root() {
        return;
    }
    let Some(program) = Program::start("say(fresh(2*M))") else { return };
    // Another user may not be able to reach the build directory.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("megapage");
    // Copied by a child. If the file were open here, the fork of another test would keep it open,
    // and execve(2) would fail.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_megapage")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let output = Command::new(&copy)
        .args(["doctor", "--why", &program.pid().to_string()])
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.contains("denied to us") && said.contains("as root"), "{said}");
}

#[test]
fn a_process_is_found_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    // A unique command name, for tests run in parallel.
    let name = format!("why-{}", std::process::id());
    let path = directory.path().join(&name);
    std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
    let mut child = Command::new(&path).arg("600").spawn().unwrap();
    let target = format!("^{name}$");
    // It has its name only a moment after it was started.
    let start = std::time::Instant::now();
    while !doctor(&["--why", &target]).stderr.is_empty() && start.elapsed().as_secs() < 180 {
        assert_eq!(child.try_wait().unwrap(), None, "the program has been ended by another");
    }
    let value = json(&target);
    assert_eq!((&value["pid"], &value["name"]), (&child.id().into(), &name.as_str().into()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_bad_target_is_one_line_and_status_2() {
    let own = std::process::id();
    let cases = [
        ("no-such-program".to_string(), "no process matches 'no-such-program'"),
        ("(".to_string(), "neither a process identifier nor a regular expression"),
        (format!("{own}:heap"), "'heap' is not an address in hexadecimal"),
        (format!("{own}:ffffffff81000000"), "is an address of the kernel's"),
        (format!("{own}:10"), "nothing is mapped there; the nearest mapping is "),
        ("2147483647".to_string(), "there is no process 2147483647"),
        ("2".to_string(), "process 2"),
    ];
    for (target, what) in cases {
        let output = doctor(&["--why", &target]);
        let said = String::from_utf8(output.stderr).unwrap();
        if target == "2" && !said.contains("kernel thread") {
            skip("needs the kernel's own process 2");
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{target}: {said}");
        assert!(
            output.stdout.is_empty() && said.lines().count() == 1 && said.contains(what),
            "{target}: {said}"
        );
    }
    let both = doctor(&["--why", "1", "--user", "root"]);
    assert_eq!(both.status.code(), Some(2));
    assert!(String::from_utf8(both.stderr).unwrap().contains("cannot be used with"));
}
