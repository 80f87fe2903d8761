//! `megapage daemon` as a user meets it: its configuration, its actions on processes, signals, a
//! second daemon.

use crate::user;

use megapage_daemon::Config;
use megapage_kernel::KernelRoot;
use megapage_kernel::cgroup::{CgroupVersion, Cgroups};
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{require_root, skip};
use megapage_units::{Bytes, Pid};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, Said, busy_program, checking_program, megapage, until, until_unlocked};

fn ended(arguments: &[&str]) -> Said {
    megapage(&[&["daemon"][..], arguments].concat())
}

fn refused(arguments: &[&str], expected: &str) {
    user::refused(&[&["daemon"][..], arguments].concat(), expected);
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }

    /// Returns its anonymous memory on huge pages.
    fn huge(&self) -> Bytes {
        let mappings = read_smaps(&KernelRoot::live(), self.pid()).unwrap_or_default();
        mappings.iter().map(|mapping| mapping.anon_huge).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon over `pids`, with all its files in `directory`.
struct Daemon {
    running: Running,
    config: PathBuf,
    log: PathBuf,
}

fn configure(directory: &Path, pids: &[Pid], general: &str) -> PathBuf {
    let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
    let of = directory.display();
    let text = format!(
        "lock_file = '{of}/lock'\nstate_file = '{of}/state.json'\n{general}\n[processes]\n\
         include = ['^no-such-name$']\npids = [{}]\n[metrics]\nsocket = ''\n",
        pids.join(", ")
    );
    let path = directory.join("daemon.toml");
    std::fs::write(&path, text).unwrap();
    path
}

impl Daemon {
    fn start(directory: &Path, pids: &[Pid], general: &str) -> Daemon {
        let config = configure(directory, pids, general);
        until_unlocked(&directory.join("lock"));
        let log = directory.join("log");
        let to = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(MEGAPAGE);
        command.args(["daemon", "--config", config.to_str().unwrap()]).stdout(Stdio::null()).stderr(to);
        Daemon { running: Running(command.spawn().unwrap()), config, log }
    }

    fn signal(&self, number: i32) {
        send_signal(self.running.pid(), number).unwrap();
    }

    fn until_logged(&self, what: &str) {
        until(what, || std::fs::read_to_string(&self.log).unwrap().contains(what).then_some(()));
    }

    /// Stops it by SIGTERM.
    fn stop(mut self) -> String {
        self.signal(signal::SIGTERM);
        let status = until("end of the daemon", || self.running.0.try_wait().unwrap());
        let log = std::fs::read_to_string(&self.log).unwrap();
        assert!(status.success(), "{status}: {log}");
        log
    }
}

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["--policy", "best"], "the policies are linux");
    refused(&["--config", "/nonexistent/x.toml"], "/nonexistent/x.toml: cannot be read");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    let file = path.to_str().unwrap();
    std::fs::write(&path, "policy = 'megapage'\n[observe]\nwindow = '5ns'\n").unwrap();
    refused(&["--config", file], "x.toml:3: ");
    std::fs::write(&path, "[[claim]]\nname = 'a'\n").unwrap();
    refused(&["--config", file, "--policy", "ingens", "--check-config"], "only policy 'megapage'");
    refused(&["--config", file, "*"], "'*' is not a regular expression");
}

#[test]
fn the_configuration_in_effect_is_shown_and_can_be_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    std::fs::write(&path, "interval = '5s'\n[processes]\nexclude = ['sshd']\n").unwrap();
    let Said { status, out, err } =
        ended(&["--config", path.to_str().unwrap(), "--check-config", "--policy", "ingens", "redis", "4711"]);
    assert_eq!(status, 0, "{err}");
    let shown = Config::parse("shown", &out).unwrap();
    assert_eq!((shown.policy.as_str(), shown.interval), ("ingens", Duration::from_secs(5)));
    assert_eq!((shown.processes.include, shown.processes.pids), (vec!["redis".to_string()], vec![4711]));
    assert_eq!(shown.processes.exclude, ["sshd"]);
}

#[test]
fn a_dry_run_shows_what_would_be_done_and_does_nothing() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = Running(busy_program());
    let before = target.huge();
    let config = configure(directory.path(), &[target.pid()], "policy = 'ingens'");
    let config = config.to_str().unwrap();
    let Said { status, out, err } = ended(&["--config", config, "--once", "--dry-run", "--json"]);
    assert_eq!(status, 0, "{err}");
    let pass: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&pass["schema"], &pass["watched"]), (&"megapage.daemon/2".into(), &1.into()), "{out}");
    // Each action of a dry run comes with its call.
    for done in pass["done"].as_array().unwrap() {
        assert!(done["why"].as_str().is_some_and(|why| !why.is_empty()), "{out}");
    }
    let Said { status, out, err } = ended(&["--config", config, "--once", "--dry-run"]);
    assert!(status == 0 && out.starts_with("pass 1: policy ingens, 1 process watched"), "{out}{err}");
    assert!(out.lines().all(|line| line.len() <= 100), "{out}");
    assert_eq!(target.huge(), before);
    assert!(!directory.path().join("lock").exists() && !directory.path().join("state.json").exists());
}

#[test]
fn what_is_hot_is_promoted_and_undone_in_the_end_if_so_wished() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = Running(busy_program());
    if target.huge() > Bytes::ZERO {
        return skip("this system gives huge pages unasked: nothing is left to promote");
    }
    let daemon = Daemon::start(directory.path(), &[target.pid()], "policy = 'ingens'\non_exit = 'undo'");
    until("promotion", || (target.huge() >= Bytes::mib(8)).then_some(()));

    // A machine runs only one daemon.
    let Said { status, err, .. } = ended(&["--config", daemon.config.to_str().unwrap(), "--once"]);
    assert_eq!(status, 2);
    assert!(
        err.contains(&format!("another megapage daemon is running: process {}", daemon.running.0.id())),
        "{err}"
    );

    // A mistake in the configuration is reported, and the former one stays.
    std::fs::write(&daemon.config, "policy = 'no such'").unwrap();
    daemon.signal(signal::SIGHUP);
    daemon.until_logged("the former configuration stays in force");
    configure(directory.path(), &[target.pid()], "policy = 'linux-4k'\non_exit = 'undo'");
    daemon.signal(signal::SIGHUP);
    daemon.until_logged("configuration read again: policy linux-4k");

    let log = daemon.stop();
    assert!(log.contains("are split again"), "{log}");
    let state = std::fs::read_to_string(directory.path().join("state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["schema"], "megapage.state/1");
    assert_eq!(state["processes"][0]["pid"], target.0.id());
    // Pages that something else held at that moment stay huge, but not all of them.
    assert!(target.huge() <= Bytes::mib(32), "{} of 64 MiB are left", target.huge());
}

#[test]
fn a_configuration_that_became_a_pipe_or_endless_is_refused_and_the_daemon_ends() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), &[Pid(i32::MAX)], "interval = '10m'");
    daemon.until_logged("policy megapage");
    std::fs::remove_file(&daemon.config).unwrap();
    assert!(Command::new("mkfifo").arg(&daemon.config).status().unwrap().success());
    daemon.signal(signal::SIGHUP);
    daemon.until_logged("cannot be read: not a regular file");
    std::fs::remove_file(&daemon.config).unwrap();
    std::fs::File::create(&daemon.config).unwrap().set_len(1 << 40).unwrap();
    daemon.signal(signal::SIGHUP);
    daemon.until_logged("cannot be read: it is longer than");
    let log = daemon.stop();
    assert_eq!(log.matches("the former configuration stays in force").count(), 2, "{log}");
}

/// A process that ends during its sample must not keep the daemon busy, or stop it from answering.
#[test]
fn a_process_that_ends_in_its_window_is_no_matter() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = Running(busy_program());
    let general = "policy = 'hawkeye-g'\ninterval = '10m'\n[observe]\nwindow = '1s'";
    let daemon = Daemon::start(directory.path(), &[target.pid()], general);
    daemon.until_logged("policy hawkeye-g");
    // The first pass starts the sample, which promotions would follow.
    std::thread::sleep(Duration::from_millis(200));
    drop(target);
    let cpu = || megapage_kernel::cpu_time_of(daemon.running.pid()).unwrap();
    // The daemon's start may take long on a slow machine, but it ends.
    until("rest", || {
        let before = cpu();
        std::thread::sleep(Duration::from_secs(2));
        (cpu() - before < Duration::from_millis(500)).then_some(())
    });
    daemon.stop();
}

#[test]
fn killed_at_any_moment_it_leaves_the_process_as_it_is() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut target = Running(checking_program());
    for wait in [300, 700, 1100] {
        let mut daemon = Daemon::start(directory.path(), &[target.pid()], "policy = 'ingens'");
        // A wait for no result: any moment will do.
        std::thread::sleep(Duration::from_millis(wait));
        daemon.running.0.kill().unwrap();
        daemon.running.0.wait().unwrap();
        assert_eq!(target.0.try_wait().unwrap(), None, "the process has ended");
    }
    // The next daemon starts, no matter how the last one ended.
    let daemon = Daemon::start(directory.path(), &[target.pid()], "policy = 'ingens'");
    daemon.until_logged("policy ingens");
    until("huge memory", || (target.huge() > Bytes::mib(32)).then_some(()));
    daemon.stop();
    // Every byte has its value.
    send_signal(target.pid(), signal::SIGTERM).unwrap();
    assert_eq!(target.0.wait().unwrap().code(), Some(0));
}

/// A control group with a memory limit, removed when this is dropped.
struct Limited {
    directory: PathBuf,
    /// File with the bytes that are charged to the group.
    usage: &'static str,
}

impl Limited {
    fn make(limit: Bytes) -> Option<Limited> {
        let memory = Cgroups::read(&KernelRoot::live(), None).ok()?.memory?;
        let (file, usage, name) = match memory.version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory"),
            CgroupVersion::V2 => ("memory.max", "memory.current", ""),
        };
        let mounts = megapage_kernel::mounts::mounts(&KernelRoot::live()).ok()?;
        let mount = mounts.into_iter().find(|mount| match memory.version {
            CgroupVersion::V1 => mount.super_options.iter().any(|option| option == name),
            CgroupVersion::V2 => mount.fs_type == "cgroup2",
        })?;
        let directory = mount.point.join(format!("megapage-test-{}", std::process::id()));
        let group = Limited { directory, usage };
        std::fs::create_dir(&group.directory).ok()?;
        std::fs::write(group.directory.join(file), limit.0.to_string()).ok()?;
        // The result must not depend on the machine's swap. A kernel without swap accounting has no
        // such file.
        let no_swap = if name.is_empty() { "memory.swap.max" } else { "memory.swappiness" };
        let _ = std::fs::write(group.directory.join(no_swap), "0");
        Some(group)
    }

    fn usage(&self) -> Bytes {
        let text = std::fs::read_to_string(self.directory.join(self.usage)).unwrap();
        Bytes(text.trim().parse().unwrap())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The last process leaves the group a moment after its end was reported.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// `tests/programs/bloat.c` in a control group.
struct Bloat {
    running: Running,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Bloat {
    /// Returns `None`, after a loud skip, if there are not enough free huge pages.
    fn start(directory: &Path, group: &Limited) -> Option<Bloat> {
        let program = directory.join("bloat");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/bloat.c");
        let status =
            Command::new("cc").args(["-O1", "-o", program.to_str().unwrap(), source]).status().unwrap();
        assert!(status.success(), "cc failed");
        let into = group.directory.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec {} 192 160", into.display(), program.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (ask, told) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut bloat = Bloat { running: Running(child), ask, told };
        if bloat.line() != "sparse" {
            skip("needs 192 MiB of free huge pages");
            return None;
        }
        Some(bloat)
    }

    /// Returns its next line; empty if it has been killed.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Makes it fill another tenth, and returns its answer.
    fn fill(&mut self) -> String {
        // It may have been killed.
        let _ = self.ask.write_all(b"go\n");
        self.line()
    }
}

/// The essential test. Data exceeds the limit of a control group while its huge pages are bloat.
/// The same data fits once the daemon has taken the bloat back.
#[test]
fn bloat_is_taken_back_before_a_control_group_reaches_its_limit() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(group) = Limited::make(Bytes::mib(288)) else {
        return skip("no control group with a memory limit can be made here");
    };
    // 192 MiB, an eighth of it used, and 160 MiB: 352 MiB with bloat, 184 MiB without.
    let Some(mut alone) = Bloat::start(directory.path(), &group) else { return };
    let filled = (0..10).take_while(|_| alone.fill() == "part").count();
    assert!(filled < 10, "without the daemon it exceeds the limit");
    drop(alone);

    let Some(mut bloat) = Bloat::start(directory.path(), &group) else { return };
    let bloated = bloat.running.huge();
    assert!(bloated >= Bytes::mib(180), "{bloated}");
    let daemon = Daemon::start(directory.path(), &[bloat.running.pid()], "policy = 'megapage'");
    daemon.until_logged("policy megapage");
    for _ in 0..10 {
        // With 85 % of the limit in use, memory is short in the group. The program asks for 16 MiB
        // more only when that is repaired, no matter how long it takes.
        until("recovery", || (group.usage() <= Bytes::mib(256)).then_some(()));
        assert_eq!(
            bloat.fill(),
            "part",
            "killed at its limit: {}",
            std::fs::read_to_string(&daemon.log).unwrap()
        );
    }
    assert_eq!(bloat.line(), "filled", "every byte is as it was written");
    daemon.stop();
}
