//! Memory of the commands that observe: in a small control group, beside a large program in another
//! group.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{MemoryGroup, require_root, skip};
use megapage_units::{Bytes, Pid};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use user::MEGAPAGE;

/// Limit of the group, and the part of it (`MOST`) that a command and its helpers may take at once.
const LIMIT: Bytes = Bytes::mib(64);
const MOST: Bytes = Bytes::mib(32);
/// Memory of the large program, which is in another group.
const LARGE: Bytes = Bytes::mib(300);

fn group(what: &str, limit: Bytes) -> Option<MemoryGroup> {
    let name = format!("megapage-own-memory-{what}-{}", std::process::id());
    MemoryGroup::create(&KernelRoot::live(), &name, limit)
        .map_err(|error| skip(&format!("no memory group can be made here: {error}")))
        .ok()
}

/// Returns a command that begins in the group.
fn within(group: &MemoryGroup, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]);
    command.arg(group.directory()).arg(program).args(arguments);
    command
}

/// A program that writes to its memory again and again; killed when it is dropped.
struct Large {
    child: Child,
    group: MemoryGroup,
}

impl Large {
    /// Starts it in a group that leaves it `room`.
    fn start(room: Bytes) -> Option<Large> {
        let group = group("large", LARGE + room)?;
        let script = "my ($size, $text) = ($ARGV[0], ''); $text .= 'x' x (1 << 20) while length $text < $size; \
                      $| = 1; print qq(ready\\n); \
                      while (1) { for (my $at = 0; $at < $size; $at += 4096) { substr($text, $at, 1) = 'y'; } }";
        let mut command = within(&group, Path::new("perl"), &["-e", script, &LARGE.0.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Some(Large { child, group })
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Asserts that the program lives, and that the kernel killed nothing in its group.
    fn check(&mut self, what: &str) {
        assert_eq!(self.child.try_wait().unwrap(), None, "{what}: the program has ended");
        assert_eq!(self.group.usage().unwrap().oom_kills, 0, "{what}");
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `megapage ARGUMENTS` in a group of [`LIMIT`], and stops it after `seconds` if given.
/// Returns its output. Asserts that it ends in order, that nothing is killed, and that it takes no
/// more than [`MOST`].
fn modest(large: &mut Large, arguments: &[&str], seconds: Option<u64>) -> String {
    let what = arguments.join(" ");
    let group = group("own", LIMIT).expect("one could be made before");
    let mut command = within(&group, Path::new(MEGAPAGE), arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if let Some(seconds) = seconds {
        std::thread::sleep(Duration::from_secs(seconds));
        send_signal(Pid(child.id().cast_signed()), signal::SIGTERM).unwrap();
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    let usage = group.usage().unwrap();
    assert!(status.code().is_some_and(|code| code < 2), "{what}: {status}: {usage:?}: {text}");
    assert_eq!(usage.oom_kills, 0, "{what}: {usage:?}: {text}");
    match usage.peak {
        Some(peak) => assert!(peak <= MOST, "{what}: {usage:?}: {text}"),
        None => skip("the most that a group was charged with: needs Linux 5.19"),
    }
    large.check(&what);
    text
}

#[test]
fn commands_that_observe_keep_within_32_mib_and_kill_nothing() {
    if !require_root() {
        return;
    }
    let Some(mut large) = Large::start(Bytes::mib(40)) else { return };
    // Pages of megapage's own file are charged to the group that reads them first.
    assert_eq!(user::megapage(&["--version"]).status, 0);
    let (directory, pid) = (tempfile::tempdir().unwrap(), large.pid());
    let of = directory.path().display();
    let recording = format!("{of}/recording");
    for arguments in [
        &["top", "--once"][..],
        &["map", &pid],
        &["advise", &pid, "--seconds", "2"],
        &["record", "--every", "1", "--seconds", "3", "--budget", "100", "--output", &recording],
        &["doctor"],
        &["doctor", "--why", &pid],
    ] {
        let said = modest(&mut large, arguments, None);
        println!("{}", said.lines().next().unwrap_or_default());
    }
    let config = format!("{of}/daemon.toml");
    let text = format!(
        "lock_file = '{of}/lock'\nstate_file = '{of}/state.json'\ninterval = '1s'\n[processes]\n\
         include = ['^no-such-name$']\npids = [{pid}]\nleast_resident = '1m'\n[metrics]\nsocket = '{of}/socket'\n"
    );
    std::fs::write(&config, text).unwrap();
    let log = modest(&mut large, &["daemon", "--config", &config], Some(8));
    assert!(log.contains("access bits by"), "a group of 64 MiB leaves room for a tracker: {log}");
    assert!(log.contains("accesses could not be timed: it takes 128 MiB of memory"), "{log}");
}

#[test]
fn a_program_in_the_same_group_is_not_killed() {
    if !require_root() {
        return;
    }
    let Some(mut large) = Large::start(Bytes::mib(100)) else { return };
    let pid = large.pid();
    for arguments in [&["top", "--once"][..], &["map", &pid], &["advise", &pid, "--seconds", "1"]] {
        let said = user::said(within(&large.group, Path::new(MEGAPAGE), arguments).output().unwrap());
        assert!(said.status < 2, "{arguments:?}: {}", said.err);
        large.check(arguments[0]);
    }
}

#[test]
fn without_memory_for_a_test_nothing_is_sampled_and_the_reason_is_shown() {
    if !require_root() {
        return;
    }
    let Some(mut large) = Large::start(Bytes::mib(40)) else { return };
    let Some(small) = group("small", Bytes::mib(24)) else { return };
    let arguments = ["map", &large.pid()];
    let output = within(&small, Path::new(MEGAPAGE), &arguments).output().unwrap();
    let said = user::said(output);
    assert_eq!((said.status, small.usage().unwrap().oom_kills), (0, 0), "{}", said.err);
    let reason = "not sampled: no tracker can be tested: it takes 10 MiB of memory";
    assert!(said.err.contains(reason) && said.err.contains("its control group leaves"), "{}", said.err);
    large.check("map");
}
