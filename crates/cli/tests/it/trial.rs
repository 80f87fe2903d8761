//! `megapage trial` on real processes: bad input, decisions and their effects, signals, and the
//! next start.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_testing::{MachineLock, require_root, skip, wait_for};
use megapage_units::{Bytes, Pid};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use user::refused;

/// Perl program with 8 MiB, which reads bytes at random places without end; each request of 200
/// reads ends with a write. On SIGUSR1 it says if every byte is as it was. Every Debian has Perl.
const READER: &str = "$| = 1; open(F, '>', '/dev/null'); $s = 'x' x (8 << 20); $SIG{USR1} = sub { $asked = 1 }; print \"ready\\n\"; \
                      for (;;) { for (1 .. 200) { $n += ord(substr($s, int(rand(8 << 20)), 1)) } syswrite F, 'x'; \
                      if ($asked) { $asked = 0; print(($s =~ tr/x//) == (8 << 20) ? \"whole\\n\" : \"lost\\n\") } }";

struct Reader {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reader {
    fn start() -> Reader {
        let mut child =
            Command::new("perl").args(["-e", READER]).stdout(Stdio::piped()).spawn().expect("perl starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Reader { child, lines }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    fn huge(&self) -> Bytes {
        read_smaps(&KernelRoot::live(), self.pid()).unwrap().iter().map(|mapping| mapping.anon_huge).sum()
    }

    fn is_whole(&mut self) -> bool {
        send_signal(self.pid(), signal::SIGUSR1).unwrap();
        self.lines.next().unwrap().unwrap() == "whole"
    }

    /// Returns a metric that is twice as large while the process has huge pages.
    fn metric(&self) -> String {
        let pid = self.pid();
        format!(
            "command:awk '/AnonHuge/ {{ sum += $2 }} END {{ print(sum > 1000 ? 2 : 1) }}' /proc/{pid}/smaps"
        )
    }
}

fn trial(verdicts: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.arg("trial").args(arguments).env("MEGAPAGE_TRIALS", verdicts);
    command
}

fn megapage(verdicts: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.args(arguments).env("MEGAPAGE_TRIALS", verdicts).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output, schema: &str) -> Value {
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(value["schema"], schema);
    value
}

/// Returns true if memory can be promoted and demoted here.
fn can_try() -> bool {
    if !require_root() {
        return false;
    }
    let root = KernelRoot::live();
    if megapage_act::promote::lacking_ability(&root).is_some() {
        skip("the kernel collapses nothing on request (Linux 6.1)");
        return false;
    }
    // If memory is huge from the start, there is nothing to try.
    let always = settings(&root).is_ok_and(|thp| thp.is_some_and(|thp| thp.enabled == ThpEnabled::Always));
    if always {
        skip("a trial needs transparent huge pages at 'madvise' or 'never'");
    }
    !always
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let own = std::process::id().to_string();
    refused(&["trial"], "SERVICE|PROCESS");
    refused(&["trial", "999999999"], "no process 999999999");
    refused(&["trial", "no-such-program-runs-here"], "no process matches");
    refused(&["trial", "no-such-unit.service"], "no-such-unit.service");
    refused(&["trial", &own, "--metric", "speed"], "'speed' is no metric");
    refused(&["trial", &own, "--metric", "prometheus:https://a x"], "begins with http://");
    refused(&["trial", &own, "--least-gain", "0"], "give 0.1 to 100 percent");
    refused(&["trial", &own, "--most", "5"], "write it like 500ms");
    refused(&["trial", &own, "--period", "100ms"], "--period 100ms: give 200ms");
    refused(&["trial", &own, "--lower-is-better"], "go with prometheus, scrape and command");
    refused(&["trial", &own, "--metric", "command:echo 1", "--per", "cpu"], "--kind counter");
    let directory = tempfile::tempdir().unwrap();
    let output = trial(directory.path(), &["--forget", "no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("no trial of no-such-program is known"), "{}", said(&output));
    refused(&["trial", "--list", "1"], "cannot be used with");
    refused(&["trial", "--forget", ""], "the name is empty");
}

#[test]
fn what_has_nothing_to_move_is_refused_with_the_reason() {
    if !can_try() {
        return;
    }
    let mut idle = Command::new("sleep").arg("86400").spawn().unwrap();
    let (pid, directory) = (idle.id().to_string(), tempfile::tempdir().unwrap());
    let output = trial(directory.path(), &[&pid, "--metric", "command:echo 1"]).output().unwrap();
    idle.kill().unwrap();
    idle.wait().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("nothing can be made huge and base again"), "{}", said(&output));
}

#[test]
fn a_metric_that_cannot_be_read_is_refused_before_anything_is_done() {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    let (reader, directory) = (Reader::start(), tempfile::tempdir().unwrap());
    let pid = reader.pid().to_string();
    for (metric, what) in [
        ("command:echo none", "printed no number"),
        ("command:exit 3", "status 3"),
        ("prometheus:http://127.0.0.1:9 up", "prometheus:http://127.0.0.1:9 up:"),
    ] {
        let output = trial(directory.path(), &[&pid, "--metric", metric]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains(what) && said(&output).lines().count() == 1, "{}", said(&output));
    }
    let output = trial(directory.path(), &[&pid, "--dry-run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = printed(&output);
    assert!(text.contains(&format!("megapage run --attach {pid} --once")), "{text}");
    assert!(text.contains("calls that read and write per CPU second"), "{text}");
    assert_eq!(reader.huge(), Bytes::ZERO);
}

/// Options for short windows, and enough time for a machine with expensive switches, which make
/// windows long.
const BRIEF: [&str; 6] = ["--period", "400ms", "--settle", "50ms", "--most", "1200s"];

#[test]
fn what_gains_is_kept_and_what_hurts_is_stopped_and_both_are_known_at_the_next_start() {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let verdicts = directory.path();
    let mut reader = Reader::start();
    let (pid, metric) = (reader.pid().to_string(), reader.metric());
    let of = |more: &[&str]| {
        let arguments = [&[&pid, "--metric", &metric, "--json"], &BRIEF[..], more].concat();
        trial(verdicts, &arguments).output().unwrap()
    };
    // Reverted, in spite of the gain.
    let output = of(&["--revert-always"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output, "megapage.trial/1");
    assert_eq!((&report["decision"], &report["is_huge"]), (&"gains".into(), &false.into()), "{report:#}");
    // Cost and metric depend on the machine; models test the bounds (crates/decide/src/judge).
    assert!(report["gain"]["low"].as_f64().unwrap() > 0.0, "{report:#}");
    assert!(report["cost_share"].as_f64().unwrap() > 0.0, "{report:#}");
    assert!(report["share"].as_f64().unwrap() > 0.0 && report["promoted_regions"].as_u64().unwrap() > 0);
    wait_for("memory on base pages", || reader.huge() == Bytes::ZERO);
    assert!(reader.is_whole());
    // It hurts: one window is enough.
    let output = of(&["--lower-is-better"]);
    let report = json(&output, "megapage.trial/1");
    assert_eq!((&report["decision"], &report["is_huge"]), (&"hurts".into(), &false.into()), "{report:#}");
    assert!(report["harm"]["drop"].as_f64().unwrap() > 0.0, "{report:#}");
    wait_for("memory on base pages", || reader.huge() == Bytes::ZERO);
    // The next start does not promote again, and says why.
    let attach = |more: &[&str]| megapage(verdicts, &[&["run", "--attach", &pid, "--once"], more].concat());
    let output = attach(&[]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said(&output).contains("found that it hurts") && said(&output).contains("--forget"));
    assert_eq!(reader.huge(), Bytes::ZERO, "nothing was made huge");
    let output = megapage(verdicts, &["run", "--dry-run", "--mechanism", "outside", "--", "perl"]);
    assert!(printed(&output).contains("--mechanism outside overrides it"), "{}", printed(&output));
    let left_alone = left_alone_by_the_daemon(verdicts, &reader, "");
    assert!(left_alone.is_some_and(|why| why.contains("found that it hurts")));
    assert_eq!(left_alone_by_the_daemon(verdicts, &reader, "heed_trials = false\n"), None);
    let named = format!("pids = [{pid}]\n");
    assert_eq!(left_alone_by_the_daemon(verdicts, &reader, &named), None, "it was asked for by number");
    let output = megapage(verdicts, &["status", "--json"]);
    let status = json(&output, "megapage.status/1");
    assert_eq!(status["trials"][0]["decision"], "hurts", "{status:#}");
    assert!(printed(&megapage(verdicts, &["status"])).contains("hurts"));
    assert_eq!(attach(&["--ignore-trial"]).status.code(), Some(0));
    assert!(reader.huge() > Bytes::ZERO, "it was asked for by name");
    assert!(reader.is_whole());
    // A trial of another process of the same build. The gain stays, and replaces the former
    // finding.
    let mut other = Reader::start();
    let (pid, metric) = (other.pid().to_string(), other.metric());
    let arguments = [&[&*pid, "--metric", &metric], &BRIEF[..]].concat();
    let output = trial(verdicts, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(printed(&output).contains("stays huge until the service ends"), "{}", printed(&output));
    assert!(printed(&output).lines().all(|line| line.chars().count() <= 100), "{}", printed(&output));
    assert!(other.huge() > Bytes::ZERO && other.is_whole());
    let list = json(&trial(verdicts, &["--list", "--json"]).output().unwrap(), "megapage.trial-list/1");
    let known = list["verdicts"].as_array().unwrap();
    assert_eq!((known.len(), &known[0]["current"]), (1, &true.into()), "{list:#}");
    assert_eq!(known[0]["verdict"]["decision"], "gains");
    assert_eq!(left_alone_by_the_daemon(verdicts, &reader, ""), None);
    // All of it is huge now: nothing is left to try, and nothing of it is split.
    let before = other.huge();
    let output = trial(verdicts, &arguments).output().unwrap();
    assert!(said(&output).contains("are huge already") || output.status.code() == Some(0), "{output:?}");
    assert!(other.huge() >= before);
    assert_eq!(trial(verdicts, &["--forget", "perl"]).status().unwrap().code(), Some(0));
    let list = trial(verdicts, &["--list"]).output().unwrap();
    assert!(printed(&list).starts_with("No trials in"), "{}", printed(&list));
}

/// Returns the reason why the daemon skips this reader; `None` if it watches it. `more` is added to
/// the configuration.
fn left_alone_by_the_daemon(verdicts: &Path, reader: &Reader, more: &str) -> Option<String> {
    let config = verdicts.join("daemon.toml");
    let of = verdicts.display();
    let text = format!(
        "lock_file = '{of}/lock'\nstate_file = ''\n[observe]\ntracker = 'pagemap'\n[metrics]\nsocket = ''\n\
         [processes]\ninclude = ['^perl$']\nleast_resident = '4m'\n{more}"
    );
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let output = megapage(verdicts, &["daemon", "--config", config, "--once", "--dry-run", "--json"]);
    let pass = json(&output, "megapage.daemon/2");
    let missed = pass["missed"].as_array().unwrap().iter().find(|it| it["pid"] == reader.pid().0);
    let why = missed.map(|missed| {
        assert_eq!(missed["why"], "vetoed", "{missed}");
        missed["what"].as_str().unwrap().to_string()
    });
    assert!(why.is_some() || pass["watched"].as_u64().unwrap() > 0, "{pass:#}");
    why
}

/// Waits for a window on huge pages, after the switch that the trial makes as a test.
fn in_a_window(reader: &Reader) {
    wait_for("a switch that is tried", || reader.huge() > Bytes::ZERO);
    wait_for("its end", || reader.huge() == Bytes::ZERO);
    wait_for("a window on huge pages", || reader.huge() > Bytes::ZERO);
}

/// Ends a trial by a signal in a window on huge pages.
fn ended_by(number: i32) {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    let (mut reader, directory) = (Reader::start(), tempfile::tempdir().unwrap());
    let pid = reader.pid().to_string();
    let arguments = [&pid, "--metric", "command:echo 1", "--period", "5s", "--json"];
    let mut running = trial(directory.path(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    in_a_window(&reader);
    send_signal(Pid(running.id().cast_signed()), number).unwrap();
    let status = running.wait().unwrap();
    // After a kill, the guard needs a while.
    wait_for("memory on base pages", || reader.huge() == Bytes::ZERO);
    assert!(reader.is_whole());
    if number != signal::SIGKILL {
        assert_eq!(status.code(), Some(1), "undecided");
    }
    let list = trial(directory.path(), &["--list"]).output().unwrap();
    assert!(printed(&list).starts_with("No trials in"), "nothing is known: {}", printed(&list));
}

#[test]
fn a_trial_that_is_asked_to_end_is_undone() {
    ended_by(signal::SIGTERM);
}

#[test]
fn a_trial_that_is_killed_is_undone() {
    ended_by(signal::SIGKILL);
}

#[test]
fn a_service_that_ends_ends_its_trial() {
    if !can_try() {
        return;
    }
    let _lock = MachineLock::take();
    let (reader, directory) = (Reader::start(), tempfile::tempdir().unwrap());
    let pid = reader.pid().to_string();
    let arguments = [&pid, "--metric", "command:echo 1", "--period", "5s", "--json"];
    let running = trial(directory.path(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    in_a_window(&reader);
    drop(reader);
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output, "megapage.trial/1");
    assert_eq!(report["decision"], "undecided");
    assert!(report["notes"].to_string().contains("the service has ended"), "{report:#}");
}
