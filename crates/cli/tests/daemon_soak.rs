//! Integrity with the whole daemon: a program uses memory in every way at once and checks every byte, while daemons act on
//! it and are killed, or stopped with their promotions undone, at any moment. 20 s by default; `MEGAPAGE_SOAK_SECONDS` for
//! longer (`make soak`).

mod user;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{require_root, skip};
use megapage_units::{Bytes, Pid};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use user::{MEGAPAGE, until_unlocked};

const SECONDS: &str = "MEGAPAGE_SOAK_SECONDS";
/// Longer than anything takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(600);
/// As often, and as much, as it goes. The program forks all the time, and is acted on nevertheless.
const FAST: &str = "interval = '100ms'\non_exit = 'undo'\n[observe]\nown_percent = 100.0\nown_percent_busy = 100.0\n\
                    window = '50ms'\n[act]\npromoted_per_second = '64g'\npromoted_per_second_of_process = '64g'\n\
                    latency_guard = '10s'\npause = '1ms'\n[limits]\nsettle = '0ms'\ncool_down = '0ms'\n\
                    changed_pages = 0\nback_off = '0ms'\nback_off_most = '1ms'\nfork_quiet = '0ms'\n";
/// The two that promote most here, the second by samples.
const POLICIES: [&str; 2] = ["freebsd", "megapage"];

/// Killed when it is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }

    /// Waits for its end; what that was.
    fn end(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon over all processes of this name.
fn daemon(directory: &Path, name: &str, policy: &str) -> Running {
    let of = directory.display();
    let config = directory.join("daemon.toml");
    let text = format!(
        "lock_file = '{of}/lock'\nstate_file = '{of}/state.json'\npolicy = '{policy}'\n{FAST}[processes]\n\
         include = ['^{name}$']\nleast_resident = '1m'\n[metrics]\nsocket = ''\n"
    );
    std::fs::write(&config, text).unwrap();
    until_unlocked(&directory.join("lock"));
    let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = Command::new(MEGAPAGE);
    command.args(["daemon", "--config"]).arg(config).stdout(Stdio::null()).stderr(log);
    Running(command.spawn().unwrap())
}

fn huge(pid: Pid) -> Bytes {
    let mappings = read_smaps(&KernelRoot::live(), pid).unwrap_or_default();
    mappings.iter().map(|mapping| mapping.anon_huge).sum()
}

#[test]
fn no_byte_is_lost_however_daemons_end() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = format!("soak{}", std::process::id());
    let executable = directory.path().join(&name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../act/tests/soak/workload.c");
    let compiled = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&executable).arg(source).status();
    match compiled {
        Ok(status) => assert!(status.success(), "cc: {status}"),
        Err(error) => return skip(&format!("needs a C compiler, cc: {error}")),
    }
    let mut command = Command::new(&executable);
    command.arg(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut workload = Running(command.spawn().unwrap());
    let mut said = BufReader::new(workload.0.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");

    let log = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    let check = |workload: &mut Running, said: &mut BufReader<ChildStdout>| {
        if let Some(status) = workload.0.try_wait().unwrap() {
            let mut text = String::new();
            said.read_to_string(&mut text).unwrap();
            panic!("the program ended with {status}: {text}; {}", log());
        }
    };
    // It is to be no rest cure, however busy the machine is.
    let started = Instant::now();
    let first = daemon(directory.path(), &name, POLICIES[0]);
    while huge(workload.pid()) < Bytes::mib(8) {
        check(&mut workload, &mut said);
        assert!(started.elapsed() < PATIENCE, "nothing became huge: {}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(first);

    let time = Duration::from_secs(std::env::var(SECONDS).map_or(20, |text| text.parse().unwrap()));
    let started = Instant::now();
    let (mut killed, mut stopped) = (0, 0);
    while started.elapsed() < time || killed == 0 || stopped == 0 {
        let number = killed + stopped;
        let mut running = daemon(directory.path(), &name, POLICIES[number % POLICIES.len()]);
        // From before its self-tests are over to some passes later, as evenly as it goes without chance.
        std::thread::sleep(Duration::from_millis(20 + number as u64 * 7919 % 2500));
        check(&mut workload, &mut said);
        assert_eq!(running.0.try_wait().unwrap(), None, "the daemon ended by itself: {}", log());
        if number % 3 == 2 {
            send_signal(running.pid(), signal::SIGTERM).unwrap();
            // Before it waits for signals, one ends it as any program.
            running.end();
            stopped += 1;
        } else {
            running.0.kill().unwrap();
            running.end();
            killed += 1;
        }
    }
    check(&mut workload, &mut said);
    send_signal(workload.pid(), signal::SIGTERM).unwrap();
    let status = workload.end();
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert!(status.success() && text.contains("OK, "), "the program ended with {status}: {text}");
    println!("{killed} daemons killed, {stopped} stopped: {}", text.trim());
}
