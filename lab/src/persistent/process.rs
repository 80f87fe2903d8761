//! A program that is run to its end, and its times.

use crate::bench::Spread;
use crate::child::Child;
use anyhow::{Context, Result, ensure};
use megapage_kernel::spawn::{ChildEvent, Signals};
use std::io::{Write, pipe};
use std::process::Command;
use std::time::Duration;

/// Longest time of a run: then it is killed.
const LONGEST: Duration = Duration::from_secs(900);

/// Times of a run, in milliseconds, and its output.
#[derive(Clone, Debug, Default)]
pub(super) struct Took {
    pub wall_ms: f64,
    pub user_ms: f64,
    pub system_ms: f64,
    pub printed: String,
}

/// Runs `command` with `input` (at most 4 KiB) as its standard input. Fails if it does not exit
/// with 0.
pub(super) fn timed(command: &mut Command, input: &str, signals: &Signals) -> Result<Took> {
    let (input_end, mut writer) = pipe().context("pipe")?;
    // Less than a pipe holds: this returns without a reader.
    writer.write_all(input.as_bytes()).context("pipe")?;
    drop(writer);
    let ended = Child::run_on_input(signals, command.stdin(input_end), LONGEST)?;
    let what = command.get_program().to_string_lossy();
    let event = ended.event.with_context(|| format!("'{what}' took longer than {} s", LONGEST.as_secs()))?;
    let printed = String::from_utf8_lossy(&ended.printed).into_owned() + &ended.said;
    let last = printed.lines().last().unwrap_or_default().trim();
    ensure!(event == ChildEvent::Exited(0), "'{what}' ended with {event:?}: {last}");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Took {
        wall_ms: ended.spent.wall_ns as f64 / 1e6,
        user_ms: ms(ended.usage.user),
        system_ms: ms(ended.usage.system),
        printed,
    })
}

pub(super) fn spread(runs: &[Took], value: impl Fn(&Took) -> f64) -> Spread {
    Spread::of(runs.iter().map(value)).unwrap_or_default()
}
