//! A program under `megapage daemon` forks a child, as a database does that saves itself. Its
//! writes split huge pages meanwhile. They are huge again once the child has ended, before the
//! daemon's next pass would come anyway.

use crate::user;

use megapage_daemon::client;
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{require_root, skip};
use megapage_units::{Bytes, Pid};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use user::{MEGAPAGE, until, until_unlocked};

/// Size of the program's memory, and the part that has to be huge before the test begins. The rest
/// lies at the ends of its mapping, or something held it then.
const SIZE: u64 = 64 << 20;
const MOST_OF_IT: Bytes = Bytes::mib(40);
/// Much longer than it takes to make split pages huge again.
const LONG: Duration = Duration::from_secs(40);

/// Program that follows orders, one a line: it forks a child that lives on, writes a byte of each
/// 64 KiB, or ends the child. It answers with the same line. `vec` makes a string whose bytes perl
/// shares with no other string. No page of it stays a page of zeros.
const PROGRAM: &str = "my $size = shift; my $text = ''; vec($text, $size - 1, 8) = 1; $| = 1; my ($child, $end); \
    for (my $at = 0; $at < $size; $at += 4096) { substr($text, $at, 1) = 'x' } \
    print qq(ready\n); \
    while (my $order = <STDIN>) { \
        if ($order eq qq(fork\\n)) { \
            pipe(my $from, $end); \
            if (!($child = fork)) { close($end); <$from>; exit 0 } \
            close($from); \
        } \
        if ($order eq qq(write\\n)) { \
            for (my $at = 0; $at < $size; $at += 65536) { substr($text, $at, 1) = 'y' } \
        } \
        if ($order eq qq(end\\n)) { close($end); waitpid($child, 0) } \
        print $order; \
    }";

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of [`PROGRAM`]. Its child reads from a pipe, and ends when that is closed.
struct Target {
    running: Running,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Target {
    fn start() -> Target {
        let mut command = Command::new("perl");
        command.args(["-e", PROGRAM, &SIZE.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (ask, told) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut target = Target { running: Running(child), ask, told };
        target.must_say("ready");
        target
    }

    fn must_say(&mut self, expected: &str) {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }

    fn order(&mut self, what: &str) {
        self.ask.write_all(format!("{what}\n").as_bytes()).unwrap();
        self.must_say(what);
    }

    /// Returns its anonymous memory on huge pages.
    fn huge(&self) -> Bytes {
        let mappings = read_smaps(&KernelRoot::live(), self.running.pid()).unwrap_or_default();
        mappings.iter().map(|mapping| mapping.anon_huge).sum()
    }
}

/// A daemon over one process. It makes a pass when it starts, when it has to read its configuration
/// again, and otherwise each hour.
struct Daemon {
    running: Running,
    socket: PathBuf,
}

impl Daemon {
    fn start(directory: &Path, target: &Target) -> Daemon {
        let (at, pid) = (directory.display(), target.running.pid());
        // A policy that checks only that a region is full, so that no sample has to be waited for.
        let text = format!(
            "policy = 'freebsd'\ninterval = '1h'\nlock_file = '{at}/lock'\nstate_file = ''\n\
             [processes]\ninclude = ['^no-such-name$']\npids = [{pid}]\n\
             [limits]\nsettle = '0s'\nfork_quiet = '1ms'\nback_off = '1s'\nback_off_most = '1s'\n\
             [pace]\nregions = 65536\ninterval = '10ms'\n\
             [act]\ntime = '10s'\nlatency_guard = '10s'\n\
             [metrics]\nsocket = '{at}/socket'\n"
        );
        let config = directory.join("daemon.toml");
        std::fs::write(&config, text).unwrap();
        until_unlocked(&directory.join("lock"));
        let log = File::create(directory.join("log")).unwrap();
        let mut command = Command::new(MEGAPAGE);
        command.args(["daemon", "--config", config.to_str().unwrap()]).stdout(Stdio::null()).stderr(log);
        Daemon { running: Running(command.spawn().unwrap()), socket: directory.join("socket") }
    }

    /// Waits until it has made a pass that began after this call.
    fn pass(&self) {
        let passes =
            || client::status(&self.socket).ok().map(|status| status.passes).filter(|passes| *passes > 0);
        let before = until("pass", passes);
        until("further passes", || {
            send_signal(self.running.pid(), signal::SIGHUP).unwrap();
            // The first of these passes may have been under way.
            passes().filter(|passes| *passes >= before + 2)
        });
    }
}

#[test]
fn what_a_fork_has_split_is_huge_again_when_the_child_has_ended() {
    if !require_root() {
        return;
    }
    if Command::new("perl").args(["-e", "1"]).status().is_err() {
        return skip("there is no perl here, which is the program that forks");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut target = Target::start();
    if target.huge() > Bytes::ZERO {
        return skip("this system gives huge pages unasked: the kernel may bring them back by itself");
    }
    let daemon = Daemon::start(directory.path(), &target);
    until("promotion", || {
        daemon.pass();
        (target.huge() >= MOST_OF_IT).then_some(())
    });
    // The daemon has seen the result of the promotions.
    daemon.pass();
    let before = target.huge();
    target.order("fork");
    target.order("write");
    assert!(target.huge() < Bytes(SIZE / 8), "{} are huge though they were written", target.huge());
    daemon.pass();
    assert!(target.huge() < Bytes(SIZE / 8), "{} are huge though a child shares them", target.huge());
    target.order("end");
    // Without a reason the next pass would come in an hour.
    let end = Instant::now() + LONG;
    while target.huge().0 < before.0 - before.0 / 8 {
        let log = || std::fs::read_to_string(directory.path().join("log")).unwrap();
        assert!(Instant::now() < end, "{} are huge after the child: {}", target.huge(), log());
        std::thread::sleep(Duration::from_millis(20));
    }
}
