//! Every command, and the daemon, beside a process that holds its own mmap lock without end: any
//! user can have one.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{HeldLock, require_root};
use megapage_units::{Bytes, Pid};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, Said, busy_program, until, until_unlocked};

/// Time limit: far more than any command needs on a loaded machine.
const LONGEST: Duration = Duration::from_secs(90);

/// Runs a command, which must end without a signal.
fn ended(arguments: &[&str]) -> Said {
    let mut command = Command::new(MEGAPAGE);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid(child.id().cast_signed());
    let (done, over) = std::sync::mpsc::channel::<()>();
    let killer = std::thread::spawn(move || {
        let late = over
            .recv_timeout(LONGEST)
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            send_signal(pid, signal::SIGKILL).unwrap();
        }
        late
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(!killer.join().unwrap(), "{arguments:?} did not end within {LONGEST:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { status: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn no_command_waits_for_it() {
    if !require_root() {
        return;
    }
    let Some(held) = HeldLock::start(100) else { return };
    let pid = held.pid().to_string();
    let top = ended(&["top", "--once"]);
    assert!(top.status == 0 && top.out.contains("its memory map is locked"), "{top:?}");
    // `pool list` needs no process to answer, and says how many it could not read.
    let list = ended(&["pool", "list"]);
    assert!(list.status == 0, "{list:?}");
    for arguments in
        [&["doctor", "--why", &pid][..], &["map", &pid], &["advise", &pid], &["top", "--once", &pid]]
    {
        let said = ended(arguments);
        let (told, expected) = match arguments[0] {
            "top" => (&said.out, 0),
            _ => (&said.err, 2),
        };
        assert!(
            said.status == expected && told.contains("does not answer: its memory map is locked"),
            "{said:?}"
        );
        assert!(said.err.lines().count() <= 1, "{said:?}");
    }
    let attach = ended(&["run", "--attach", &pid]);
    assert!(attach.status == 125 && attach.err.contains("its memory map is locked"), "{attach:?}");
    let once = ended(&["daemon", "--once", "--dry-run"]);
    assert!(once.status == 0 && once.out.contains("its memory map is locked"), "{once:?}");
}

fn huge(pid: Pid) -> Bytes {
    let mappings = read_smaps(&KernelRoot::live(), pid).unwrap_or_default();
    mappings.iter().map(|mapping| mapping.anon_huge).sum()
}

fn metrics(socket: &Path) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn the_daemon_starts_answers_promotes_others_and_ends() {
    if !require_root() {
        return;
    }
    let Some(held) = HeldLock::start(100) else { return };
    let directory = tempfile::tempdir().unwrap();
    let of = directory.path().display();
    let mut honest = busy_program();
    let honest_pid = Pid(honest.id().cast_signed());
    // The processes are named by number, so that the daemon touches no other on this machine. The
    // locked one comes first, and misses its deadline first.
    let config = format!(
        "policy = 'ingens'\nlock_file = '{of}/lock'\nstate_file = '{of}/state.json'\n[processes]\n\
         include = ['^no-such-name$']\npids = [{}, {honest_pid}]\n[metrics]\nsocket = '{of}/socket'\n",
        held.pid()
    );
    let path = directory.path().join("daemon.toml");
    std::fs::write(&path, config).unwrap();
    until_unlocked(&directory.path().join("lock"));
    let log = directory.path().join("log");
    let mut command = Command::new(MEGAPAGE);
    command.args(["daemon", "--config", path.to_str().unwrap()]).stdout(Stdio::null());
    let mut daemon = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let socket = directory.path().join("socket");
    until("promotion of the honest process", || (huge(honest_pid) >= Bytes::mib(8)).then_some(()));
    let wanted = ["megapage_locked_processes 1", "megapage_stuck_helpers 0"];
    until("metrics", || metrics(&socket).filter(|text| wanted.iter().all(|line| text.contains(line))));
    send_signal(Pid(daemon.id().cast_signed()), signal::SIGTERM).unwrap();
    let status = until("end of the daemon", || daemon.try_wait().unwrap());
    honest.kill().unwrap();
    honest.wait().unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("its memory map is locked").count(), 1, "said once: {log}");
    drop(held);
}
