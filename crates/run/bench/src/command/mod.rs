//! `megapage bench run`: runs the user's own command as it is and in other ways, in pairs.
//!
//! A round runs the command once in each way, in a drawn order, one run right after the other.
//! Ratios are taken within a round, so that slow changes of the machine cancel out. The first round
//! does not count: it warms caches and memory. Only this round looks at the command's memory, so
//! that no counted run is disturbed.

mod measure;
mod report;
mod ways;

pub use report::{CommandReport, Finding, Ratios, Samples, WayReport};
pub use ways::{PLAIN, WAYS, Way};

use crate::head::Head;
use crate::random::Random;
use crate::signals::{check, stop_signals};
use crate::statistics::Clock;
use anyhow::{Context, Result, ensure};
use measure::{Heap, Runner};
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of a bench.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The ways by name. The plain one always runs.
    pub ways: Vec<String>,
    /// Rounds that count, 1 to 1000.
    pub runs: u32,
    /// The clock that the finding is taken from.
    pub clock: Clock,
    /// The exit status of a command that ends well.
    pub status: i32,
    /// Seed that selects the order within each round.
    pub seed: u64,
    /// Further options for `megapage run`.
    pub options: Vec<OsString>,
    /// File for the output of each run, which replaces that of the run before. `None`: a file that
    /// is removed at the end.
    pub log: Option<PathBuf>,
}

/// Returns the commands of a bench, as shell lines. Runs none of them.
pub fn dry_run(options: &Options) -> Result<Vec<String>> {
    let ways = Way::select(&options.ways)?;
    let mut lines =
        vec![format!("# {} rounds in a drawn order, after one that does not count, each:", options.runs)];
    for way in ways {
        lines.push(way.recipe(&options.options, &options.command));
        if let Some(why) = way.absence() {
            lines.push(format!("# not run: {why}"));
        }
    }
    Ok(lines)
}

/// Runs the command in every way, and calls `progress` with a line for each run. A run that does
/// not end as expected ends the bench; the error holds the last line that the command wrote.
pub fn run(
    options: &Options,
    megapage: &std::path::Path,
    progress: &mut dyn FnMut(&str),
) -> Result<CommandReport> {
    ensure!((1..=1000).contains(&options.runs), "{} runs: from 1 to 1000 are possible", options.runs);
    let ways = Way::select(&options.ways)?;
    let mut report = CommandReport::begin(options, &ways, Head::begin("run")?);
    let present: Vec<Way> = ways.into_iter().filter(|way| way.absence().is_none()).collect();
    ensure!(present.len() > 1, "there is nothing to compare with: give --ways {}", {
        let others: Vec<_> = WAYS.iter().map(|way| way.name).filter(|name| *name != PLAIN).collect();
        others.join(",")
    });
    for way in report.ways.iter().filter(|way| way.absent.is_some()) {
        progress(&format!("absent: {}: {}", way.way, way.absent.as_deref().unwrap_or_default()));
    }
    let directory = tempfile::tempdir().context("a directory for the log")?;
    let signals = stop_signals()?;
    let runner = Runner {
        megapage,
        options: &options.options,
        command: &options.command,
        status: options.status,
        log: options.log.clone().unwrap_or_else(|| directory.path().join("log")),
        signals: &signals,
    };
    let total = (options.runs as usize + 1) * present.len();
    let mut done = 0;
    // The plain way comes first: if the command fails by itself, no other way is to blame.
    for way in &present {
        let mut heap = Heap::default();
        let took = runner.run(way, Some(&mut heap))?;
        done += 1;
        progress(&format!("{done}/{total} {}, not counted: {}", way.name, report::brief(&took)));
        report.note_heap(way, heap);
    }
    let mut random = Random::new(options.seed);
    let mut order: Vec<usize> = (0..present.len()).collect();
    for _ in 0..options.runs {
        random.shuffle(&mut order);
        for &at in &order {
            check(&signals)?;
            let way = &present[at];
            let took = runner.run(way, None)?;
            done += 1;
            progress(&format!("{done}/{total} {}: {}", way.name, report::brief(&took)));
            report.note(way, &took);
        }
    }
    report.finish();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_drawn_about_as_often() {
        let mut random = Random::new(7);
        let mut counts = std::collections::BTreeMap::new();
        let mut order = vec![0, 1, 2];
        for _ in 0..6000 {
            random.shuffle(&mut order);
            *counts.entry(order.clone()).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
