//! `megapage advise` on real processes: bad input, small programs, programs that it starts, trials
//! that are undone.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_stat;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_testing::{MachineLock, require_root, skip, wait_for};
use megapage_units::{Bytes, Pid};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn megapage() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.arg("advise");
    command
}

fn advise(arguments: &[&str]) -> Output {
    megapage().args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(value["schema"], "megapage.advise/1");
    value
}

/// A child that is killed at the end of the test, also after a failure.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    fn pid(&self) -> Pid {
        Pid(self.0.id() as i32)
    }
}

/// Perl program that holds 64 MiB, and reads bytes at random places without end. Every Debian has
/// Perl.
const RANDOM_READER: &str =
    "$s = 'x' x (64 << 20); for (;;) { $n += ord(substr($s, int(rand(64 << 20)), 1)) }";

fn random_reader() -> Killed {
    let child = Command::new("perl").args(["-e", RANDOM_READER]).stdout(Stdio::null()).spawn().unwrap();
    let child = Killed(child);
    // Perl builds the string once, and holds it a second time during the assignment.
    wait_for("perl's start", || resident(child.pid()) >= Bytes::mib(64));
    child
}

fn resident(pid: Pid) -> Bytes {
    megapage_kernel::process::read_status(&KernelRoot::live(), pid).map_or(Bytes::ZERO, |status| status.rss)
}

fn huge(pid: Pid) -> Bytes {
    read_smaps(&KernelRoot::live(), pid).unwrap().iter().map(|mapping| mapping.anon_huge).sum()
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    for (arguments, what) in [
        (&["--seconds", "0", "1"][..], "1 to 3600 seconds"),
        (&["--trial", "--trial-share", "90", "1"], "0.5 to 50 percent"),
        (&["--trial-share", "5", "1"], "--trial"),
        (&["--tracker", "magic", "1"], "the trackers are bpf, idle-pages, pagemap"),
        (&["--stop", "1"], "COMMAND"),
        (&[], "PID|NAME"),
        (&["999999999"], "999999999"),
        (&["no-such-program-runs-here"], "no process matches"),
        (&["--", "/no/such/program"], "/no/such/program: No such file"),
    ] {
        let output = advise(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(what), "{arguments:?}: {}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_small_program_is_told_not_to() {
    let small = Killed(Command::new("sleep").arg("86400").spawn().unwrap());
    let pid = small.pid().to_string();
    let output = advise(&["--seconds", "1", "--json", &pid]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let value = json(&output);
    let process = &value["processes"][0];
    assert_eq!(process["pid"].as_i64().unwrap().to_string(), pid);
    assert_eq!((&process["verdict"], &process["recommended"]), (&"do-not-use".into(), &false.into()));
    let output = advise(&["--seconds", "1", &pid]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("do not use huge pages"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_program_that_is_started_is_waited_for_and_its_failure_told() {
    let output = advise(&["--seconds", "1", "--json", "--", "sh", "-c", "echo mine; sleep 20; exit 3"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("the program ended with status 3"), "{}", said(&output));
    // Its output is not lost, and does not go into the document.
    assert!(said(&output).contains("mine"), "{}", said(&output));
    assert_eq!(json(&output)["processes"][0]["recommended"], false);
}

#[test]
fn a_program_that_ends_at_once_leaves_nothing_to_judge() {
    let output = advise(&["--seconds", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
}

#[test]
fn what_no_tracker_can_tell_is_unknown_with_the_reason_and_status_1() {
    if !require_root() {
        return;
    }
    let reader = random_reader();
    // The page map shows every user which pages are present, but no accesses.
    let pid = reader.pid().to_string();
    let output = advise(&["--seconds", "1", "--tracker", "pagemap", "--json", &pid]);
    if said(&output).contains("tracker pagemap") {
        return skip("this kernel has no PAGEMAP_SCAN");
    }
    let value = json(&output);
    let process = &value["processes"][0];
    if process["translation"]["source"] == "measured" {
        return skip("this processor counts page walks: nothing is unknown");
    }
    assert_eq!((output.status.code(), &process["verdict"]), (Some(1), &"unknown".into()), "{value:#}");
    let why = process["why"].to_string();
    assert!(why.contains("does not tell which pages are accessed"), "{why}");
}

#[test]
fn a_program_that_ends_meanwhile_is_said_to_have_ended() {
    if !can_try() {
        return;
    }
    // If megapage had hardly begun when the program ended, there is nothing to judge: try longer.
    let observed = [2, 8, 32, 128].into_iter().find_map(|seconds| {
        let reader = random_reader();
        let mut advisor = megapage();
        advisor.args(["--seconds", "600", "--json", &reader.pid().to_string()]);
        let advisor = advisor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        drop(reader);
        let output = advisor.wait_with_output().unwrap();
        output.status.success().then_some(output)
    });
    let output = observed.expect("it looks within two minutes");
    let value = json(&output);
    let process = &value["processes"][0];
    assert_eq!(process["ended"], true);
    assert!(process["observed_seconds"].as_f64().unwrap() < 600.0, "{value:#}");
    let why = process["why"].as_array().unwrap();
    assert!(why.iter().any(|why| why.as_str().unwrap().starts_with("it has ended, after")), "{value:#}");
    let how = process["how"].to_string();
    assert!(!how.contains("--attach") && !how.contains("No such file"), "{how}");
}

/// Returns true if a trial can be made here: as root, with a tracker that sees single pages.
fn can_try() -> bool {
    if !require_root() {
        return false;
    }
    let works = megapage_observe::tracker::select(&KernelRoot::live(), None)
        .is_ok_and(|selected| selected.tracker.kind() <= megapage_snapshot::TrackerKind::IdlePages);
    if !works {
        skip("no tracker here tells single pages");
    }
    // If memory is huge from the start, there is nothing to try.
    let always = settings(&KernelRoot::live())
        .is_ok_and(|thp| thp.is_some_and(|thp| thp.enabled == ThpEnabled::Always));
    if always {
        skip("a trial needs transparent huge pages at 'madvise' or 'never'");
    }
    works && !always
}

#[test]
fn a_trial_leaves_nothing_huge_behind() {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    // If the program hardly gets a processor, there may be nothing to judge: try longer. The guard
    // demotes a page that something else held for longer than the undoing took.
    let (value, reader, before) = [1, 4, 16, 64]
        .into_iter()
        .find_map(|seconds: u32| {
            let reader = random_reader();
            let before = huge(reader.pid());
            let (seconds, pid) = (seconds.to_string(), reader.pid().to_string());
            let output = advise(&["--seconds", &seconds, "--trial", "--trial-share", "25", "--json", &pid]);
            wait_for("the end of the trial's huge pages", || huge(reader.pid()) <= before);
            assert_eq!(huge(reader.pid()), before);
            (output.status.code() == Some(0)).then(|| (json(&output), reader, before))
        })
        .expect("it can be judged within two minutes");
    let trial = &value["processes"][0]["trial"];
    assert_eq!((&trial["undone"], &trial["left_huge"]), (&true.into(), &0.into()), "{value:#}");
    assert!(trial["promoted"].as_u64().unwrap() > 0, "{value:#}");
    assert!(trial["slowdown"].as_f64().unwrap() > 0.0, "{value:#}");
    assert_eq!(huge(reader.pid()), before);
}

fn is_alive((pid, start): &(Pid, u64)) -> bool {
    let stat = read_stat(&KernelRoot::live(), *pid);
    stat.is_ok_and(|stat| stat.start_ticks == *start && !stat.is_zombie())
}

/// Ends a trial by a signal. Checks that the memory that the trial had promoted is on base pages
/// again.
fn ended_by(number: i32) {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    let reader = random_reader();
    let (before, pid) = (huge(reader.pid()), reader.pid().to_string());
    // As above there may be nothing to judge, and so no trial. Or the trial may be over before the
    // first look. In both cases try longer.
    let mut advisor = [1, 4, 16, 64]
        .into_iter()
        .find_map(|seconds: u32| {
            let seconds = seconds.to_string();
            let arguments = ["--seconds", &seconds, "--trial", "--trial-share", "25", "--json", &pid];
            let mut advisor = Killed(megapage().args(arguments).stdout(Stdio::null()).spawn().unwrap());
            while huge(reader.pid()) == before {
                if advisor.0.try_wait().unwrap().is_some() {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(advisor)
        })
        .expect("a trial begins within two minutes");
    let children = user::children(advisor.pid());
    assert!(!children.is_empty(), "a guard");
    megapage_kernel::spawn::send_signal(advisor.pid(), number).unwrap();
    advisor.0.wait().unwrap();
    // After a kill, the guard needs a while. Until it is done, a call that was under way may still
    // complete.
    wait_for("the end of its children", || !children.iter().any(is_alive));
    assert_eq!(huge(reader.pid()), before);
}

#[test]
fn a_trial_that_a_signal_ends_is_undone() {
    ended_by(megapage_kernel::spawn::signal::SIGTERM);
}

#[test]
fn a_trial_that_is_killed_is_undone() {
    ended_by(megapage_kernel::spawn::signal::SIGKILL);
}

/// 64 MiB of huge pages, in which one base page in eight is not zero (see programs/bloat.c).
#[test]
fn bloat_in_huge_pages_is_told_with_what_takes_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("bloat");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/bloat.c");
    match Command::new("gcc").args(["-O1", source, "-o"]).arg(&program).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return skip(&format!("needs gcc: {error}")),
    }
    let mut child = Command::new(&program);
    child.args(["64", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Killed(child.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line != "sparse\n" {
        return skip("needs 64 MiB of free huge pages and MADV_COLLAPSE");
    }
    let pid = child.pid().to_string();
    let output = advise(&["--seconds", "1", "--json", &pid]);
    let process = &json(&output)["processes"][0];
    assert_eq!(process["verdict"], "already-huge", "{process:#} {}", said(&output));
    // Zeros: seven of eight pages of 64 MiB.
    let zeros = process["memory"]["zero_bytes"].as_u64().unwrap() >> 20;
    assert!((50..=62).contains(&zeros), "{process:#}");
    assert_eq!(process["how"][0]["what"], format!("sudo megapage reclaim {pid}"));
    assert_eq!(process["how"][1]["what"], "sudo megapage daemon");
    let human = String::from_utf8(advise(&["--seconds", "1", &pid]).stdout).unwrap();
    assert!(human.contains("hold only zeros (bloat)") && !human.contains("nothing to do"), "{human}");
}
