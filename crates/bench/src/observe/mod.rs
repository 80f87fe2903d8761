//! `megapage bench observe`: is what is observed true, what does observing cost, and is the advice right?

mod advice;
mod cost;
mod exact;
mod programs;
mod rank;
#[cfg(test)]
mod recordings;
mod slowdown;
mod table;

use crate::child::stop_signals;
use crate::run::{Gate, Head, Place};
use anyhow::{Result, bail, ensure};
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::Signals;
use megapage_observe::{Observer, Options as ObserverOptions, Sampling, TrackerKind};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

pub use advice::{Advice, Predicted, ProgramReport, Seconds, Told};
pub use cost::Cost;
pub use exact::Exact;
pub use slowdown::Slowdown;
pub use table::human;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Whether what is read of accessed bits is true.
    Exact,
    /// What reading and clearing accessed bits costs us.
    Cost,
    /// What it costs the program that is observed.
    Slowdown,
    /// Whether the advice ranks programs as huge pages do.
    Advice,
}

impl Case {
    /// All, in the order in which they run.
    pub const ALL: [Case; 4] = [Case::Exact, Case::Cost, Case::Slowdown, Case::Advice];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Case::Exact => "exact",
            Case::Cost => "cost",
            Case::Slowdown => "slowdown",
            Case::Advice => "advice",
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cases by name; all where none is named.
    pub cases: Vec<String>,
    /// The programs of the advice by name; all where none is named.
    pub programs: Vec<String>,
    /// Rounds that medians are taken of, at least 2.
    pub runs: u32,
    /// Multiplies sizes, above 0, at most 1; 1 is what results are published at.
    pub scale: f64,
    /// Sample with this tracker; `None`: the best that works.
    pub tracker: Option<TrackerKind>,
    /// Further arguments of `megapage advise`.
    pub advise: Vec<String>,
    /// Where recordings go (`megapage_observe::cost::recording`), one file for each program; `None`: nowhere.
    pub record: Option<PathBuf>,
}

/// What a case tells while it works.
type Progress<'a> = &'a mut dyn FnMut(&str);

/// The whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// What sizes were multiplied by.
    pub scale: f64,
    /// How access bits were sampled; `None` where that was not needed.
    pub sampling: Option<Sampling>,
    /// Whether what is observed is true.
    pub exact: Option<Exact>,
    /// What observing costs us.
    pub cost: Option<Cost>,
    /// What it costs the observed.
    pub slowdown: Option<Slowdown>,
    /// What the advice is worth.
    pub advice: Option<Advice>,
    /// Cases that could not be run, each with the reason.
    pub failed: Vec<(&'static str, String)>,
    /// What is demanded, and whether it holds.
    pub gates: Vec<Gate>,
}

impl Report {
    /// Whether every gate holds and nothing failed.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.gates.iter().all(|gate| gate.holds)
    }
}

/// Runs the cases one after the other. `progress` is given a line now and then. All that was started is ended, also
/// after a failure or a signal to stop.
pub fn run(options: &Options, place: &Place, progress: Progress<'_>) -> Result<Report> {
    ensure!((2..=1000).contains(&options.runs), "{} runs: from 2 to 1000 are possible", options.runs);
    let cases = select(&options.cases)?;
    let signals = stop_signals()?;
    let mut report = Report {
        head: Head::begin("observe")?,
        scale: options.scale,
        sampling: None,
        exact: None,
        cost: None,
        slowdown: None,
        advice: None,
        failed: Vec::new(),
        gates: Vec::new(),
    };
    for case in cases {
        if let Err(error) = report.run(case, options, place, &signals, progress) {
            // A wish to stop or a wrong name ends the bench; what stands in the way of one case does not.
            if error.is::<crate::child::Stopped>() || error.is::<advice::UnknownProgram>() {
                return Err(error);
            }
            report.failed.push((case.name(), format!("{error:#}")));
        }
    }
    Ok(report)
}

impl Report {
    fn run(
        &mut self,
        case: Case,
        options: &Options,
        place: &Place,
        signals: &Signals,
        progress: Progress<'_>,
    ) -> Result<()> {
        match case {
            Case::Exact => {
                let mut observer = observer(options)?;
                self.sampling = observer.sampling().cloned();
                let exact = exact::run(options, &mut observer, progress)?;
                self.gates.extend(exact.gates());
                self.exact = Some(exact);
            }
            Case::Cost => {
                let mut observer = observer(options)?;
                self.sampling = observer.sampling().cloned();
                let cost = cost::run(options, place, signals, &mut observer, progress)?;
                self.gates.extend(cost.gates());
                self.cost = Some(cost);
            }
            Case::Slowdown => {
                let mut observer = observer(options)?;
                self.sampling = observer.sampling().cloned();
                let slowdown = slowdown::run(options, place, signals, &mut observer, progress)?;
                self.gates.push(slowdown.gate());
                self.slowdown = Some(slowdown);
            }
            Case::Advice => {
                let advice = advice::run(options, place, signals, progress)?;
                self.gates.extend(advice.gates());
                self.advice = Some(advice);
            }
        }
        Ok(())
    }
}

fn select(names: &[String]) -> Result<Vec<Case>> {
    if let Some(unknown) = names.iter().find(|name| Case::ALL.iter().all(|case| case.name() != **name)) {
        let known: Vec<_> = Case::ALL.iter().map(|case| case.name()).collect();
        bail!("'{unknown}' is no case of bench observe; its cases are {}", known.join(", "));
    }
    let chosen = |case: &Case| names.is_empty() || names.iter().any(|name| name == case.name());
    Ok(Case::ALL.into_iter().filter(chosen).collect())
}

fn observer(options: &Options) -> Result<Observer> {
    let usual = ObserverOptions::default();
    // Rounds are shorter at a smaller scale; so is what is sampled in them.
    let window = usual.window.mul_f64(options.scale).max(Duration::from_millis(10));
    let asked = ObserverOptions { tracker: options.tracker, window, ..usual };
    let observer = Observer::start(&KernelRoot::live(), asked)?;
    ensure!(observer.sampling().is_some(), "no way to sample accessed bits works here");
    Ok(observer)
}
