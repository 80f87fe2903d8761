//! `megapage` as a user meets it: its output, its exit status, and waiting for it.

#![allow(dead_code, reason = "each test file uses its part")]

use megapage_kernel::KernelRoot;
use megapage_kernel::process::{list_processes, read_stat};
use megapage_testing::assert_refused;
#[allow(unused_imports, reason = "each test file uses its part")]
pub use megapage_testing::{until, until_within};
use megapage_units::Pid;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

pub const MEGAPAGE: &str = env!("CARGO_BIN_EXE_megapage");

/// Output and status of a command that has ended.
#[derive(Debug)]
pub struct Said {
    pub status: i32,
    pub out: String,
    pub err: String,
}

pub fn said(output: Output) -> Said {
    Said {
        status: output.status.code().expect("not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `megapage ARGUMENTS` to its end.
pub fn megapage(arguments: &[&str]) -> Said {
    said(Command::new(MEGAPAGE).args(arguments).output().unwrap())
}

/// Asserts exit status 2, no standard output, and one line that starts with `megapage: ` and
/// contains `expected`.
pub fn refused(arguments: &[&str], expected: &str) {
    assert_refused(&Command::new(MEGAPAGE).args(arguments).output().unwrap(), 2, expected);
}

/// Waits until no process holds a daemon's lock. If the daemon was killed, a child that tests the
/// kernel outlives it for a moment.
pub fn until_unlocked(lock: &Path) {
    until("daemon that is gone", || {
        File::open(lock).map_or(true, |file| file.try_lock_shared().is_ok()).then_some(())
    });
}

/// Starts a program that writes to 64 MiB again and again, in the background.
pub fn busy_program() -> Child {
    let script = "my $text = 'x' x (64 << 20); $| = 1; print qq(ready\\n); \
                  while (1) { for (my $at = 0; $at < 64 << 20; $at += 4096) { substr($text, $at, 1) = 'y'; } }";
    let mut command = Command::new("nice");
    command.args(["perl", "-e", script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    child
}

/// Starts the same program with a check. It knows the value of every byte, and sums all bytes on
/// each pass. It ends with status 3 if one is wrong, and on SIGTERM, after a last pass, with 0.
pub fn checking_program() -> Child {
    let script = "my $text = 'x' x (64 << 20); my $sum = (64 << 20) * ord('x'); my $end; $SIG{TERM} = sub { $end = 1 }; \
                  $| = 1; print qq(ready\\n); \
                  for (my $pass = 0; ; $pass++) { \
                      my $last = $end; \
                      for (my $at = 0; $at < 64 << 20; $at += 4096) { \
                          my $new = ord('a') + $pass % 26; \
                          $sum += $new - ord(substr($text, $at, 1)); \
                          substr($text, $at, 1) = chr($new); \
                      } \
                      exit 3 if unpack('%64C*', $text) != $sum; \
                      exit 0 if $last; \
                  }";
    let mut command = Command::new("nice");
    command.args(["perl", "-e", script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    child
}

/// Returns the processes that `parent` has started, each with its start time. The kernel's list of
/// children is approximate; this reads all processes.
pub fn children(parent: Pid) -> Vec<(Pid, u64)> {
    let root = KernelRoot::live();
    let pids = list_processes(&root).unwrap();
    let stats = pids.into_iter().filter_map(|pid| Some((pid, read_stat(&root, pid).ok()?)));
    stats.filter(|(_, stat)| stat.parent == parent).map(|(pid, stat)| (pid, stat.start_ticks)).collect()
}
