//! One run of the workload program under one peer.

use super::Place;
use crate::child::Child;
use crate::peers::{FOREIGN_VARIABLES, Peer, Start};
use crate::workload::measurement::Measurement;
use anyhow::{Context, Result};
use megapage_bench::statistics::Spent;
use megapage_kernel::spawn::{ChildEvent, Signals};
use megapage_units::Bytes;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Result of one run.
#[derive(Debug)]
pub(super) enum Ran {
    /// It ended well.
    Well(Measurement),
    /// It ended otherwise; the way in which it did.
    Failed(String),
}

/// Starts `command`, a workload under a peer, and waits for it, `longest` at most. An error is one
/// of the runner itself, or the user's request to stop.
pub(super) fn run(mut command: Command, longest: Duration, signals: &Signals) -> Result<Ran> {
    let ended = Child::run(signals, &mut command, longest)?;
    let complaint = ended.said.lines().next().unwrap_or("").trim();
    let suffix = if complaint.is_empty() { String::new() } else { format!(": {complaint}") };
    Ok(match ended.event {
        Some(ChildEvent::Exited(0)) if ended.printed.is_empty() => Ran::Well(startup(ended.spent)),
        Some(ChildEvent::Exited(0)) => match serde_json::from_slice::<Measurement>(&ended.printed) {
            Ok(mut measurement) => {
                measurement.phases.0.insert("process".into(), ended.spent);
                Ran::Well(measurement)
            }
            Err(error) => Ran::Failed(format!("printed no measurement ({error})")),
        },
        Some(ChildEvent::Exited(status)) => Ran::Failed(format!("exit status {status}{suffix}")),
        Some(ChildEvent::Died(number)) => Ran::Failed(format!("died of signal {number}{suffix}")),
        _ => Ran::Failed(format!("ended after {} s", longest.as_secs())),
    })
}

/// Returns the measurement of a program that prints none: the time of the whole process.
fn startup(spent: Spent) -> Measurement {
    let mut measurement = Measurement { workload: "startup".into(), ..Measurement::default() };
    measurement.phases.0.insert("process".into(), spent);
    measurement
}

/// Returns the command for the workload program of `place` with `arguments` under `peer`. It takes
/// `memory`, and `hugetlbfs` is mounted for it.
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
            command.arg("run").args(options).arg("--").arg(&place.workload);
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
