//! One run of the workload program under one peer.

use super::Place;
use crate::peers::{FOREIGN_VARIABLES, Peer, Start};
use anyhow::{Context, Result, bail};
use megapage_bench::signals::{SIGNAL_INTERVAL, check};
use megapage_bench::workload::{Measurement, Spent, nanoseconds};
use megapage_kernel::spawn::{
    ChildEvent, Signals, open_pidfd, poll_child, send_signal, signal, wait_readable,
};
use megapage_units::{Bytes, Pid};
use std::io::{Read, pipe};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What became of one run.
#[derive(Debug)]
pub(super) enum Ran {
    /// It ended well.
    Well(Measurement),
    /// It ended otherwise: how.
    Failed(String),
}

/// Starts `command`, a workload under a peer, and waits for it, `longest` at most. An error is one of the runner itself, or the
/// user's request to stop.
pub(super) fn run(mut command: Command, longest: Duration, signals: &Signals) -> Result<Ran> {
    let (mut out, out_end) = pipe().context("pipe")?;
    let (mut said, stderr_end) = pipe().context("pipe")?;
    command.stdin(Stdio::null()).stdout(out_end).stderr(stderr_end);
    let start = Instant::now();
    let pid =
        signals.spawn(&mut command).with_context(|| format!("{:?} did not start", command.get_program()))?;
    // The command holds our copies of the pipes' writing ends.
    drop(command);
    let (event, spent) = wait(pid, start, longest, signals)?;

    let (mut line, mut complaint) = (String::new(), String::new());
    out.read_to_string(&mut line).context("what the workload printed")?;
    said.read_to_string(&mut complaint).context("what the workload said")?;
    let complaint = complaint.lines().next().unwrap_or("").trim();
    let suffix = if complaint.is_empty() { String::new() } else { format!(": {complaint}") };
    match event {
        ChildEvent::Exited(0) if line.is_empty() => Ok(Ran::Well(startup(spent))),
        ChildEvent::Exited(0) => match serde_json::from_str::<Measurement>(&line) {
            Ok(mut measurement) => {
                measurement.phases.0.insert("process".into(), spent);
                Ok(Ran::Well(measurement))
            }
            Err(error) => Ok(Ran::Failed(format!("printed no measurement ({error})"))),
        },
        ChildEvent::Exited(status) => Ok(Ran::Failed(format!("exit status {status}{suffix}"))),
        ChildEvent::Died(signal::SIGKILL) if spent.wall_ns > longest.as_nanos() as u64 => {
            Ok(Ran::Failed(format!("killed after {} s", longest.as_secs())))
        }
        ChildEvent::Died(number) => Ok(Ran::Failed(format!("died of signal {number}{suffix}"))),
        ChildEvent::Stopped(_) | ChildEvent::Continued => bail!("waited for an end and heard of {event:?}"),
    }
}

/// The measurement of a program that prints none: what the whole process took.
fn startup(spent: Spent) -> Measurement {
    let mut measurement = Measurement { workload: "startup".into(), ..Measurement::default() };
    measurement.phases.0.insert("process".into(), spent);
    measurement
}

/// The workload program of `place` with `arguments` under `peer`; it takes `memory`, and `hugetlbfs` is mounted for it.
pub fn command_under(
    peer: &Peer,
    place: &Place,
    arguments: &[String],
    memory: Bytes,
    hugetlbfs: Option<&Path>,
) -> Result<Command> {
    let mut command = match peer.start {
        Start::Run(options) => {
            let mut command = Command::new(&place.megapage);
            command.args(["run", "--no-profile"]).args(options).arg("--").arg(&place.workload);
            command
        }
        _ => Command::new(&place.workload),
    };
    for name in FOREIGN_VARIABLES {
        command.env_remove(name);
    }
    let preload = |command: &mut Command, library: &Path| {
        command.env("LD_PRELOAD", library);
    };
    match peer.start {
        Start::Plain | Start::Run(_) => {}
        Start::OwnLibrary => preload(&mut command, &place.library),
        Start::Preload(library) => {
            let path = library.find().with_context(|| format!("{} is gone", library.file))?;
            preload(&mut command, &path);
        }
    }
    command.envs(peer.environment(memory, hugetlbfs)).args(arguments);
    Ok(command)
}

/// Waits until `pid` ends: how, and what it took.
fn wait(pid: Pid, start: Instant, longest: Duration, signals: &Signals) -> Result<(ChildEvent, Spent)> {
    let ended = open_pidfd(pid).context("pidfd_open")?;
    let mut killed = false;
    loop {
        let ready = wait_readable(ended.as_fd(), SIGNAL_INTERVAL).context("poll")?;
        let wall = start.elapsed();
        if ready
            && let Some((event, usage)) = poll_child(pid).context("wait4")?
            && matches!(event, ChildEvent::Exited(_) | ChildEvent::Died(_))
        {
            let cpu_ns = nanoseconds(usage.user + usage.system);
            return Ok((event, Spent { wall_ns: nanoseconds(wall), cpu_ns }));
        }
        if let Err(stopped) = check(signals) {
            // The pool is put back on the way out; the child must not outlive it. SIGTERM first: a launcher
            // passes that on.
            for number in [signal::SIGTERM, signal::SIGKILL] {
                send_signal(pid, number).ok();
                if wait_readable(ended.as_fd(), Duration::from_secs(3)).unwrap_or(false) {
                    break;
                }
            }
            poll_child(pid).ok();
            return Err(stopped);
        }
        if wall > longest && !killed {
            killed = true;
            send_signal(pid, signal::SIGKILL).ok();
        }
    }
}
