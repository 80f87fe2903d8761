//! `megapage-lab observe`: the exactness of observations, their cost, and the correctness of the
//! advice.

mod advice;
mod cost;
mod exact;
mod exactness;
pub(crate) mod programs;
pub(crate) mod rank;
#[cfg(test)]
mod recordings;
mod slowdown;
mod table;

use crate::arguments::scale;
use crate::bench::Gate;
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage, found_or_why};
use anyhow::{Result, ensure};
use megapage_kernel::KernelRoot;
use megapage_observe::{Observer, Options as ObserverOptions, Sampling, TrackerKind};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

pub use advice::{Advice, Distinguished, Predicted, ProgramReport, Seconds};
pub use cost::Cost;
pub use exact::Exact;
pub use slowdown::Slowdown;

/// Check that observations are exact and advice is right, and measure the cost of observing
#[derive(Clone, Debug, clap::Args)]
pub struct Observe {
    /// exact, cost, slowdown, advice [default: all]
    pub cases: Vec<String>,
    /// Multiply sizes by this, up to 1
    #[arg(long, default_value_t = 1.0, value_parser = scale(1.0))]
    pub scale: f64,
    /// Programs that advice is judged on, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Sample accessed bits in this way [default: the best that works]
    #[arg(long, value_parser = tracker)]
    pub tracker: Option<TrackerKind>,
    /// Ask 'megapage advise' with this argument as well, such as --trial; may be repeated
    #[arg(long, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub advise: Vec<String>,
    /// Write what each prediction was made from, and what was measured, into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub record: Option<PathBuf>,
}

/// Returns the tracker of this name.
pub(crate) fn tracker(text: &str) -> Result<TrackerKind, String> {
    TrackerKind::ALL
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| format!("the trackers are {}", TrackerKind::ALL.map(TrackerKind::name).join(", ")))
}

/// Findings of the experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ObserveFound {
    /// Factor for sizes.
    pub scale: f64,
    /// The way in which accessed bits were sampled; `None` if that was not needed.
    pub sampling: Option<Sampling>,
    /// Exactness of the observations.
    pub exact: Option<Exact>,
    /// Cost of observing for the observer.
    pub cost: Option<Cost>,
    /// Cost of observing for the observed.
    pub slowdown: Option<Slowdown>,
    /// Correctness of the advice.
    pub advice: Option<Advice>,
    /// Cases that could not be run, each with the reason.
    pub failed: Vec<(&'static str, String)>,
}

impl Experiment for Observe {
    const NAME: &'static str = "observe";
    const RUNS: [u32; 3] = [5, 2, 1000];
    const CASES: &'static [&'static str] = &["exact", "cost", "slowdown", "advice"];
    type Found = ObserveFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        advice::validate(&self.programs)
    }

    fn needs(&self) -> Needs {
        let mut packages = Vec::new();
        if self.wants("advice") {
            packages.extend(crate::redis::lacks());
            packages.extend(crate::postgres::lacks());
        }
        Needs { packages, ..Needs::default() }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let cases = Self::CASES.iter().filter(|case| self.wants(case));
        cases.map(|case| format!("# {case}, {} rounds at scale {}", plan.runs, self.scale)).collect()
    }

    /// Runs the cases one after the other: a failure of one does not prevent the next.
    fn measure(&self, stage: &mut Stage<'_>) -> Result<ObserveFound> {
        let mut found = ObserveFound { scale: self.scale, ..ObserveFound::default() };
        for case in Self::CASES.iter().filter(|case| self.wants(case)) {
            if let Err(why) = found_or_why(found.measure(case, self, stage))? {
                found.failed.push((case, why));
            }
        }
        Ok(found)
    }
}

impl ObserveFound {
    fn measure(&mut self, case: &str, asked: &Observe, stage: &mut Stage<'_>) -> Result<()> {
        if case == "advice" {
            self.advice = Some(advice::run(asked, stage)?);
            return Ok(());
        }
        let mut observer = observer(asked)?;
        self.sampling = observer.sampling().cloned();
        match case {
            "exact" => self.exact = Some(exact::run(asked, &mut observer, stage.progress)?),
            "cost" => self.cost = Some(cost::run(asked, stage, &mut observer)?),
            _ => self.slowdown = Some(slowdown::run(asked, stage, &mut observer)?),
        }
        Ok(())
    }
}

impl Found for ObserveFound {
    fn gates(&self) -> Vec<Gate> {
        let exact = self.exact.iter().flat_map(Exact::gates);
        let cost = self.cost.iter().flat_map(Cost::gates);
        let slowdown = self.slowdown.iter().map(Slowdown::gate);
        exact.chain(cost).chain(slowdown).chain(self.advice.iter().flat_map(Advice::gates)).collect()
    }

    fn sections(&self) -> Vec<Section> {
        table::sections(self)
    }

    fn notes(&self) -> Vec<String> {
        self.failed.iter().map(|(case, why)| format!("{case} did not run: {why}")).collect()
    }
}

fn observer(options: &Observe) -> Result<Observer> {
    let usual = ObserverOptions::default();
    // Rounds are shorter at a smaller scale, and so is the sampling window.
    let window = usual.window.mul_f64(options.scale).max(Duration::from_millis(10));
    let asked = ObserverOptions { tracker: options.tracker, window, ..usual };
    let observer = Observer::start(&KernelRoot::live(), asked)?;
    ensure!(observer.sampling().is_some(), "no way to sample accessed bits works here");
    Ok(observer)
}
