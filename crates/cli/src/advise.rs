//! `megapage advise`.

use crate::output::{answer, progress, say};
use anyhow::{Context, Result, bail};
use megapage_advise::{Advice, AdviseError, Advisor, Basis, Options, SCHEMA, Trial, Verdict, Watch, groups};
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::ChildEvent;
use megapage_kernel::trusted::write_report;
use megapage_observe::select_processes;
use megapage_snapshot::TrackerKind;
use serde::Serialize;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Estimate a program's gain from huge pages, and show the best kind, how to get it, and its cost.
///
/// Observes each process for some seconds, from outside, at less than 1 % of the process's time
/// (--trial: 10 %). With COMMAND, megapage starts the program, observes it, prints the advice, and
/// waits for the program's end. Exit status: 0 done; 1 a process could not be judged, or the
/// program failed; 2 bad input, or nothing could be judged.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Processes: PIDs, or names (regular expressions, as for pgrep)
    #[arg(value_name = "PID|NAME", required_unless_present = "command")]
    processes: Vec<String>,
    /// Seconds to observe each process
    #[arg(long, value_name = "N", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// After observing, put part of the memory on huge pages, compare the process's speed, and undo
    /// the change; needs root
    #[arg(long)]
    trial: bool,
    /// Memory that --trial makes huge, in percent of all that could be huge
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent, requires = "trial")]
    trial_share: f64,
    /// Method to observe memory: bpf, idle-pages or pagemap [default: the best that works]
    #[arg(long, value_name = "HOW", value_parser = crate::sampling::tracker)]
    tracker: Option<TrackerKind>,
    /// Print JSON (schema megapage.advise/1); the started program's standard output then goes to
    /// standard error
    #[arg(long)]
    json: bool,
    /// End the started program (SIGTERM) after the observation
    #[arg(long)]
    stop: bool,
    /// Write the input of the last estimate to this file: for tests of the estimate
    #[arg(long, value_name = "FILE", hide = true)]
    record: Option<PathBuf>,
    /// A program to start and observe, with its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "processes")]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (1.0..=3600.0).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err("the time is 1 to 3600 seconds".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.5..=50.0).contains(&number) => Ok(number / 100.0),
        _ => Err("the share is 0.5 to 50 percent".into()),
    }
}

/// Largest slow-down of the process while a trial lasts, as a share of its processor time.
const TRIAL_BUDGET: f64 = 0.1;

/// The document that `--json` prints.
#[derive(Serialize)]
struct Document {
    basis: Basis,
    processes: Vec<Advice>,
    missed: Vec<String>,
}

impl Args {
    /// Returns true if the command starts a program, which then has the terminal.
    pub fn starts_a_program(&self) -> bool {
        !self.command.is_empty()
    }
}

/// Runs the command; see [`Args`].
pub fn main(args: Args) -> Result<ExitCode> {
    if args.stop && args.command.is_empty() {
        bail!("--stop goes with a program to start: -- COMMAND (see megapage advise --help)");
    }
    let root = KernelRoot::live();
    let trial =
        args.trial.then_some(Trial { share: args.trial_share, time: args.seconds, budget: TRIAL_BUDGET });
    let options = Options { time: args.seconds, tracker: args.tracker, trial, ..Options::default() };
    let pids = select_processes(&root, &args.processes)?;
    let mut advisor = Advisor::start(&root, options)?;
    let (mut watch, pids) = match args.command.split_first() {
        None => (Watch::idle().context("signals")?, pids),
        Some((program, arguments)) => {
            let (mut watch, pid) = start(program, arguments, args.json)?;
            advisor.settle(pid, &mut |time| watch.wait(time));
            (watch, vec![pid])
        }
    };
    let mut document = Document { basis: advisor.basis(), processes: Vec::new(), missed: Vec::new() };
    let groups = groups(&root, &pids, &mut |time| watch.wait(time));
    let count = groups.len();
    for (number, group) in groups.iter().enumerate() {
        if watch.interrupted() {
            break;
        }
        let others = match group.members.len() - 1 {
            0 => String::new(),
            others => format!(", for {others} more that share its memory"),
        };
        let (pid, seconds) = (group.leader, args.seconds.as_secs_f64());
        let what = format!("observing process {pid}{others}, {seconds} s ({} of {count})", number + 1);
        // A started program has the terminal: print one line before it runs, and no more.
        match args.starts_a_program() {
            false => progress(what),
            true if std::io::stderr().is_terminal() => say(what),
            true => {}
        }
        match advisor.advise(group, &mut |time| watch.wait(time)) {
            Ok(advice) => document.processes.push(advice),
            Err(AdviseError::Missed { what, .. }) => document.missed.push(what),
            Err(error) => return Err(error.into()),
        }
    }
    let cut_short = watch.interrupted();
    if let (Some(path), Some(recording)) = (&args.record, advisor.recording()) {
        let text = serde_json::to_string(recording).context("the recording")?;
        write_report(path, text.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if !document.processes.is_empty() {
        answer(args.json, SCHEMA, &document, || megapage_report::advise::human(&document.processes))?;
    }
    if args.stop {
        watch.stop();
    }
    let failed = match watch.finish().context("waiting for the program")? {
        Some(ended) if !args.stop && !watch.interrupted() => failure(ended.event),
        _ => None,
    };
    if document.processes.is_empty() {
        let missed = document.missed.join("; ");
        bail!("{}", if missed.is_empty() { "interrupted before anything was observed" } else { &missed });
    }
    if cut_short {
        let seen = document.processes.last().map_or(0.0, |advice| advice.observed.as_secs_f64());
        let left = count - document.processes.len() - document.missed.len();
        let others = if left > 0 { format!(", and {left} were not looked at") } else { String::new() };
        say(format!("interrupted: the last verdict is based on {seen:.1} s of observation{others}"));
    }
    for what in document.missed.iter().chain(&failed) {
        say(what);
    }
    if let Some(why) = &document.basis.not_timed {
        say(format!("accesses were not timed here, so that gains are a guess: {why}"));
    }
    let unknown = document.processes.iter().any(|advice| advice.verdict == Verdict::Unknown);
    Ok(ExitCode::from(u8::from(unknown || !document.missed.is_empty() || failed.is_some())))
}

/// Starts the program. With `json`, its standard output goes to standard error, to stay out of the
/// JSON.
fn start(program: &OsString, arguments: &[OsString], json: bool) -> Result<(Watch, megapage_units::Pid)> {
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        let other = std::io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
        command.stdout(Stdio::from(other));
    }
    Watch::start(&mut command).with_context(|| format!("{}", program.display()))
}

/// Returns a line on a program that did not end well.
fn failure(event: ChildEvent) -> Option<String> {
    match event {
        ChildEvent::Exited(0) => None,
        ChildEvent::Exited(status) => Some(format!("the program ended with status {status}")),
        ChildEvent::Died(number) => Some(format!("the program died of signal {number}")),
        ChildEvent::Stopped(_) | ChildEvent::Continued => None,
    }
}
