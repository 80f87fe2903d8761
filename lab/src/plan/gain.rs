//! Gain of each kind of program by huge pages, measured: two copies take turns, one of them on huge
//! pages.

use super::kinds::{KINDS, Kind, Programs};
use crate::bench::Spread;
use crate::child::{Server, check};
use crate::experiment::Stage;
use crate::observe::programs::promote;
use crate::observe::rank::median_interval;
use crate::workload::pattern::Case;
use anyhow::{Context, Result};
use megapage_kernel::spawn::Signals;
use serde::Serialize;

/// Units that are done to measure the speed of a program.
const PROBE_UNITS: u64 = 100;
/// Turns of each copy in a round, and the time of a turn, in seconds.
const TURNS: u32 = 15;
const TURN: f64 = 0.1;

/// Factor by which it is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The median of the rounds, each the median of its turns.
    pub median: f64,
    /// The interval that holds it with 90 % (sign test over the rounds).
    pub interval: [f64; 2],
}

/// Measures every kind, in as many rounds as the experiment has runs. Each round starts both copies
/// again. The page frames that a program gets change a stream's speed by some percent for its whole
/// life. Turns of one start would therefore give too small an interval.
pub(super) fn measure(
    programs: &Programs,
    scale: f64,
    stage: &mut Stage<'_>,
) -> Result<Vec<(&'static str, Measured)>> {
    let Stage { signals, progress, plan, .. } = stage;
    let mut found = Vec::new();
    for kind in KINDS {
        let rounds: Result<Vec<f64>> =
            (0..plan.runs).map(|_| round(programs, kind, scale, signals)).collect();
        let rounds = rounds?;
        let median = Spread::median_of(&rounds).context("no round")?;
        let interval = median_interval(&rounds).context("no round")?;
        progress(&format!("{}: {median:.3} times as fast on huge pages", kind.name));
        found.push((kind.name, Measured { median, interval }));
    }
    Ok(found)
}

/// Runs one round: two copies, one of them on huge pages, take turns. Returns the median of the
/// turns' ratios.
fn round(programs: &Programs, kind: Kind, scale: f64, signals: &Signals) -> Result<f64> {
    check(signals)?;
    let mut base = programs.start(kind, scale, signals)?;
    let mut huge = programs.start(kind, scale, signals)?;
    // A program without large memory has nothing to promote.
    if kind.case != Case::Compute {
        promote(huge.pid())?;
    }
    // The first for the caches, the second for the time.
    rate(&mut base, PROBE_UNITS, signals)?;
    rate(&mut huge, PROBE_UNITS, signals)?;
    let speed = rate(&mut base, PROBE_UNITS, signals)?;
    let units = ((speed * TURN) as u64).clamp(1, 1_000_000);
    let ratios: Result<Vec<f64>> = (0..TURNS)
        .map(|turn| {
            // The machine is different for the copy that goes first: they alternate.
            if turn % 2 == 0 {
                let on_base = rate(&mut base, units, signals)?;
                Ok(rate(&mut huge, units, signals)? / on_base)
            } else {
                let on_huge = rate(&mut huge, units, signals)?;
                Ok(on_huge / rate(&mut base, units, signals)?)
            }
        })
        .collect();
    Spread::median_of(&ratios?).context("no turn")
}

/// Returns the units for each second of processor time.
fn rate(server: &mut Server, units: u64, signals: &Signals) -> Result<f64> {
    server.ask(units)?;
    let measurement = server.answer(signals)?;
    let spent = measurement.phases.0.get("work").context("the workload timed no work")?;
    Ok(units as f64 / (spent.cpu_ns.max(1) as f64 / 1e9))
}
