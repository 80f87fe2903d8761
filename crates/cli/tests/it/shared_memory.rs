//! Shared memory promoted from outside: each kind, several processes, writers, one that dies, the
//! daemon.

use crate::run_support;
use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_testing::{MachineLock, ThpSetting, require_root};
use megapage_units::{Pid, VirtRange};
use run_support::{compile, mib, signal, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, until};

const MIB: u64 = 64;

/// Processes of `tests/programs/src/shared.c`, which share memory. They end with its standard
/// input, at the latest when this is dropped.
struct Sharers {
    child: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
    address: u64,
    /// Its processes. The first maps the memory and writes to none of it.
    pids: Vec<i32>,
}

impl Sharers {
    fn start(program: &str, layout: &str) -> Sharers {
        let mut command = Command::new(program);
        let mut child =
            command.args(layout.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (ask, told) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut sharers = Sharers { child, ask, told, address: 0, pids: Vec::new() };
        let line = sharers.line();
        let mut words = line.split(' ').skip(1);
        sharers.address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        sharers.pids = words.map(|pid| pid.parse().unwrap()).collect();
        sharers
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Asserts that every byte is what its writer wrote.
    fn assert_intact(&mut self) {
        self.ask.write_all(b"check\n").unwrap();
        let line = self.line();
        assert!(line.starts_with("ok "), "{line}");
    }

    /// Returns the mapping in the process number `index`.
    fn mapping(&self, index: usize) -> Option<Mapping> {
        let mappings = read_smaps(&KernelRoot::live(), Pid(self.pids[index])).unwrap_or_default();
        let page = VirtRange::new(self.address, self.address + 4096).unwrap();
        mappings.into_iter().find(|mapping| mapping.range.intersection(page).is_some())
    }

    fn huge_mib(&self, index: usize) -> u64 {
        self.mapping(index).map_or(0, |mapping| mapping.shmem_pmd.0 >> 20)
    }
}

impl Drop for Sharers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon that ends with the test, also after a failure.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `megapage run --attach` on one of them. Returns exit status, report and standard error.
fn attach(pid: i32, options: &[&str]) -> (i32, Value, String) {
    let pid = pid.to_string();
    let arguments = [&["run", "--attach", &pid, "--once", "--json", "--report", "-"], options].concat();
    let output = Command::new(MEGAPAGE).args(arguments).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().expect("no signal"), report, text(&output.stderr))
}

fn program(directory: &Path) -> Option<String> {
    let source = include_str!("../../../../tests/programs/src/shared.c");
    if !require_root() {
        return None;
    }
    compile("gcc", directory, "shared", source, &[])
}

#[test]
fn each_kind_is_promoted_once_for_all_that_map_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    // One of these tests changes a setting of the machine.
    let _lock = MachineLock::take();
    let file = format!("/dev/shm/megapage-test-{}", std::process::id());
    for kind in ["anonymous", "memfd", "sysv", &file] {
        let mut sharers = Sharers::start(&program, &format!("{kind} {MIB} 3"));
        // The first process has touched none of it: resident memory counts.
        let (status, report, err) = attach(sharers.pids[0], &["--require"]);
        assert_eq!(status, 0, "{kind}: {err} {report:#}");
        assert_eq!((sharers.huge_mib(0), sharers.huge_mib(2)), (MIB, 0), "{kind}");
        assert_eq!(mib(&report, "promotion.obtained_bytes"), MIB, "{kind}: {report:#}");
        assert_eq!(mib(&report, "shared_memory.resident_bytes"), MIB, "{kind}");
        assert_eq!(mib(&report, "shared_memory.huge_bytes"), MIB, "{kind}");
        assert_eq!(mib(&report, "end.shared.shmem_pmd_bytes"), MIB, "{kind}");
        sharers.assert_intact();
        // Nothing is left to do for the others: the kernel maps the huge pages at their next
        // access.
        let (_, report, _) = attach(sharers.pids[0], &[]);
        assert_eq!(report["promotion"]["asked_bytes"], 0, "{kind}: {report:#}");
        let (status, report, _) = attach(sharers.pids[2], &["--require"]);
        assert_eq!((status, sharers.huge_mib(2)), (0, MIB), "{kind}: {report:#}");
        sharers.assert_intact();
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_cannot_be_mapped_huge_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    // One of these tests changes a setting of the machine.
    let _lock = MachineLock::take();
    let mut misplaced = Sharers::start(&program, &format!("memfd {MIB} 2 misplaced"));
    let (_, report, _) = attach(misplaced.pids[1], &[]);
    assert_eq!(
        (mib(&report, "shared_memory.misplaced_bytes"), misplaced.huge_mib(1)),
        (MIB, 0),
        "{report:#}"
    );
    assert_eq!(report["promotion"]["asked_bytes"], 0, "{report:#}");
    let (status, _, err) = attach(misplaced.pids[1], &["--require"]);
    assert_eq!(status, 125, "{err}");
    for words in ["64 MiB of shared memory", "4 KiB beyond a multiple of 2 MiB", "shmem_enabled at 'advise'"]
    {
        assert!(err.contains(words), "{words}: {err}");
    }
    misplaced.assert_intact();

    let mut sparse = Sharers::start(&program, &format!("anonymous {MIB} 2 sparse"));
    let (_, report, _) = attach(sparse.pids[1], &[]);
    assert_eq!(mib(&report, "shared_memory.sparse_bytes"), MIB / 16, "{report:#}");
    assert_eq!(sparse.huge_mib(1), 0, "one page of 16 is not worth a huge one");
    sparse.assert_intact();
}

#[test]
fn with_deny_nothing_is_promoted_and_the_setting_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    // One of these tests changes a setting of the machine.
    let _lock = MachineLock::take();
    let mut sharers = Sharers::start(&program, &format!("memfd {MIB} 2"));
    let Some(deny) = ThpSetting::write("shmem_enabled", "deny") else { return };
    let (status, report, err) = attach(sharers.pids[1], &["--require"]);
    drop(deny);
    assert_eq!((status, mib(&report, "shared_memory.refused_bytes")), (125, MIB), "{err} {report:#}");
    assert!(err.contains("shmem_enabled is 'deny'"), "{err}");
    sharers.assert_intact();
}

#[test]
fn no_byte_is_lost_while_all_write_and_one_dies() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    // One of these tests changes a setting of the machine.
    let _lock = MachineLock::take();
    let mut sharers = Sharers::start(&program, &format!("memfd {MIB} 4 busy"));
    let launcher = Command::new(MEGAPAGE)
        .args(["run", "--attach", &sharers.pids[4].to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("huge page", || (sharers.huge_mib(4) > 0).then_some(()));
    // In the middle of a collapse, or right after it: the launcher ends with its process.
    signal(sharers.pids[4].cast_unsigned(), "KILL");
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.code().is_some_and(|status| status <= 1), "{}", text(&output.stderr));
    sharers.assert_intact();
    let (status, report, err) = attach(sharers.pids[1], &["--require"]);
    assert_eq!(status, 0, "{err} {report:#}");
    assert!(sharers.huge_mib(1) >= MIB * 95 / 100);
    sharers.assert_intact();
}

#[test]
fn the_daemon_promotes_each_block_once() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    // One of these tests changes a setting of the machine.
    let _lock = MachineLock::take();
    let mut sharers = Sharers::start(&program, &format!("anonymous {MIB} 1 busy"));
    let at = directory.path().display();
    let pids: Vec<String> = sharers.pids.iter().map(ToString::to_string).collect();
    // FreeBSD's policy promotes full regions at once, so that the time of accesses does not matter
    // here.
    let config = format!(
        "policy = 'freebsd'\nlock_file = '{at}/lock'\nstate_file = ''\n\
         [processes]\ninclude = ['^no-such-name$']\npids = [{}]\n\
         [act]\nlatency_guard = '10s'\n\
         [metrics]\nsocket = '{at}/socket'\n",
        pids.join(", ")
    );
    let (path, log) = (directory.path().join("daemon.toml"), directory.path().join("log"));
    std::fs::write(&path, config).unwrap();
    // The check makes the first process touch all of it, as the other one has.
    sharers.assert_intact();
    let daemon = Command::new(MEGAPAGE)
        .args(["daemon", "--config", path.to_str().unwrap()])
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut daemon = Daemon(daemon);
    until("all of it huge", || (sharers.huge_mib(1) == MIB).then_some(()));
    sharers.assert_intact();
    assert_eq!(sharers.huge_mib(0), MIB, "for both");
    std::thread::sleep(Duration::from_secs(3));
    signal(daemon.0.id(), "TERM");
    daemon.0.wait().unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    let of_pass = |line: &str| {
        let value = line.split("promoted_bytes=").nth(1)?.split(' ').next()?;
        line.contains("INFO pass ").then(|| value.parse::<u64>().unwrap())
    };
    let promoted: u64 = log.lines().filter_map(of_pass).sum();
    // The bytes are those of the object, counted once for both processes. Their private few
    // megabytes may come on top.
    assert!((MIB..2 * MIB).contains(&(promoted >> 20)), "{}: {log}", promoted >> 20);
    sharers.assert_intact();
}
