//! `megapage-lab promote`, `bloat`, `fair` and `cost`: the papers' experiments on a live machine,
//! under the kernel's own settings and under the daemon.
//!
//! Architecture invariant: the settings of transparent huge pages are changed as one transaction.
//! They are restored at the end, after a failure, a signal, and when the bench is killed. All
//! processes that the bench started end with it.

mod bloat;
mod configuration;
mod cost;
mod daemon;
mod fair;
mod ksm;
mod promote;
mod redis;
mod stalls;
mod table;
mod trial;
mod worker;

use crate::arguments::scale;
use crate::bench::{Gate, Place, REPORTED_AFTER, can_give, warm_while};
use crate::chart::Chart;
use crate::child::check;
use crate::experiment::{Experiment, Found, Needs, Plan, Section, found_or_why};
use anyhow::{Context, Result, bail};
use configuration::{ASKED, AT_REST};
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::Signals;
use megapage_testing::thp_change::ThpChange;
use megapage_units::Bytes;
use serde::Serialize;
use std::time::Duration;

pub use crate::experiment::Failure;
pub use bloat::{Bloat, BloatRow};
pub use configuration::{CONFIGURATIONS, Configuration, ConfigurationReport, Who};
pub use cost::{Cost, Slowdown};
pub(crate) use daemon::Daemon;
pub use fair::{Fair, FairRow, FairSample, Person};
pub use ksm::{Merging, RecoveryRow, RecoverySample};
pub use promote::{Promote, PromoteRow};
pub use stalls::StallReport;

/// Options of all experiments on a live machine.
#[derive(Clone, Debug, clap::Args)]
pub struct Live {
    /// Configurations to compare, separated by commas: thp-never, thp-hard, megapage... [default:
    /// all]
    #[arg(long, value_delimiter = ',')]
    pub configurations: Vec<String>,
    /// Multiply sizes and waits by this, up to 1
    #[arg(long, default_value_t = 1.0, value_parser = scale(1.0))]
    pub scale: f64,
}

impl Live {
    fn chosen(&self) -> Result<Vec<Configuration>> {
        Configuration::select(&self.configurations)
    }

    /// Returns the demands for `bytes` of memory at scale 1.
    fn needs(&self, bytes: u64) -> Needs {
        Needs {
            root: Some("the settings of huge pages and other processes are root's"),
            memory: Bytes((bytes as f64 * self.scale) as u64),
            smaller: "a smaller --scale",
            ..Needs::default()
        }
    }

    /// Sets the machine, and measures on it.
    fn measure<T: Measured>(
        &self,
        stage: &mut crate::experiment::Stage<'_>,
        configurations: Vec<Configuration>,
        run: impl FnOnce(&mut Stage<'_>) -> Result<T>,
    ) -> Result<LiveFound<T>> {
        let mut change =
            ThpChange::begin(&KernelRoot::live()).context("the settings of transparent huge pages")?;
        change.recovered().iter().for_each(|setting| eprintln!("megapage-lab: {setting}"));
        change.set(&AT_REST).context("the settings of transparent huge pages")?;
        let reports = configurations.iter().map(ConfigurationReport::from).collect();
        let mut stage = Stage {
            runs: stage.plan.runs,
            scale: self.scale,
            configurations,
            place: stage.place,
            signals: stage.signals,
            change,
            progress: &mut *stage.progress,
        };
        let found = run(&mut stage)?;
        Ok(LiveFound { scale: self.scale, configurations: reports, found })
    }
}

fn dry_run(configurations: Result<Vec<Configuration>>) -> Vec<String> {
    let mut lines = Vec::new();
    for configuration in configurations.unwrap_or_default() {
        lines.push(format!("# {}", configuration.name));
        lines.extend(configuration.shell_lines());
    }
    lines.push("# in between, and put back to what was found at the end:".into());
    lines.extend(AT_REST.shell_lines());
    lines
}

/// Measure how soon khugepaged and the daemon relieve a program of its page walks
#[derive(Clone, Debug, clap::Args)]
pub struct PromoteExperiment {
    /// Options of all live experiments.
    #[command(flatten)]
    pub live: Live,
}

impl Experiment for PromoteExperiment {
    const NAME: &'static str = "promote";
    type Found = LiveFound<Promote>;

    fn validate(&self) -> Result<()> {
        self.live.chosen().map(|_| ())
    }

    fn needs(&self) -> Needs {
        self.live.needs(promote::HEAP + promote::HEAP / 16)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        dry_run(self.live.chosen())
    }

    fn measure(&self, stage: &mut crate::experiment::Stage<'_>) -> Result<LiveFound<Promote>> {
        self.live.measure(stage, self.live.chosen()?, promote::run)
    }
}

/// Check that Redis stays within its memory limit, and measure the daemon's effect on it
#[derive(Clone, Debug, clap::Args)]
pub struct BloatExperiment {
    /// redis, recovery [default: both]
    pub cases: Vec<String>,
    /// Options of all live experiments.
    #[command(flatten)]
    pub live: Live,
}

impl Experiment for BloatExperiment {
    const NAME: &'static str = "bloat";
    const RUNS: [u32; 3] = [3, 1, 100];
    const CASES: &'static [&'static str] = &bloat::CASES;
    type Found = LiveFound<Bloat>;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        self.live.chosen().map(|_| ())
    }

    fn needs(&self) -> Needs {
        let packages = if self.wants(bloat::CASES[0]) { crate::redis::lacks() } else { Vec::new() };
        Needs { packages, must_install: true, ..self.live.needs(bloat::LIMIT + bloat::LIMIT / 4) }
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        let mut lines = dry_run(self.live.chosen());
        for setting in ksm::SETTINGS.iter().filter(|_| self.wants(bloat::CASES[1])) {
            lines.push(format!(
                "# {}, for a program marked by prctl(PR_SET_MEMORY_MERGE); put back then",
                setting.name
            ));
            lines.extend(setting.shell_lines());
        }
        lines
    }

    fn measure(&self, stage: &mut crate::experiment::Stage<'_>) -> Result<LiveFound<Bloat>> {
        let wanted = bloat::CASES.map(|case| self.wants(case));
        self.live.measure(stage, self.live.chosen()?, |stage| bloat::run(stage, wanted))
    }
}

/// Measure when each program finishes where programs that gain from huge pages compete with others
#[derive(Clone, Debug, clap::Args)]
pub struct FairExperiment {
    /// Options of all live experiments.
    #[command(flatten)]
    pub live: Live,
}

impl Experiment for FairExperiment {
    const NAME: &'static str = "fair";
    type Found = LiveFound<Fair>;

    fn validate(&self) -> Result<()> {
        self.live.chosen().map(|_| ())
    }

    fn needs(&self) -> Needs {
        // The same memory is touched once more before each run.
        self.live.needs(2 * fair::MEMORY)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        dry_run(self.live.chosen())
    }

    fn measure(&self, stage: &mut crate::experiment::Stage<'_>) -> Result<LiveFound<Fair>> {
        self.live.measure(stage, self.live.chosen()?, fair::run)
    }
}

/// Measure the daemon's own processor time, and its cost to others, with nothing to do
#[derive(Clone, Debug, clap::Args)]
pub struct CostExperiment {
    /// The options. Only configurations with a policy can be chosen.
    #[command(flatten)]
    pub live: Live,
}

impl CostExperiment {
    fn chosen(&self) -> Result<Vec<Configuration>> {
        let chosen = self.live.chosen()?;
        let is_daemon = |one: &Configuration| matches!(one.who, Who::Daemon(..));
        if self.live.configurations.is_empty() {
            return Ok(chosen.into_iter().filter(is_daemon).collect());
        }
        if let Some(kernel) = chosen.iter().find(|one| !is_daemon(one)) {
            bail!("cost is about the daemon: '{}' is none of its policies", kernel.name);
        }
        Ok(chosen)
    }
}

impl Experiment for CostExperiment {
    const NAME: &'static str = "cost";
    const RUNS: [u32; 3] = [3, 1, 100];
    type Found = LiveFound<Cost>;

    fn validate(&self) -> Result<()> {
        self.chosen().map(|_| ())
    }

    fn needs(&self) -> Needs {
        self.live.needs(cost::LEAST_RESIDENT + cost::LEAST_RESIDENT / 16)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        dry_run(self.chosen())
    }

    fn measure(&self, stage: &mut crate::experiment::Stage<'_>) -> Result<LiveFound<Cost>> {
        self.live.measure(stage, self.chosen()?, cost::run)
    }
}

/// Findings of an experiment on a live machine.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "T: Measured")]
pub struct LiveFound<T: Measured> {
    /// Factor for sizes and times.
    pub scale: f64,
    /// The configurations that were compared.
    pub configurations: Vec<ConfigurationReport>,
    /// The findings, under the experiment's name.
    #[serde(flatten, serialize_with = "named")]
    pub found: T,
}

/// Serialises them as the one entry of a map.
fn named<T: Measured, S: serde::Serializer>(found: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([(T::KEY, found)])
}

/// Findings of an experiment on a live machine.
pub trait Measured: Serialize {
    /// Their name in the report.
    const KEY: &'static str;

    /// Returns runs that did not end well, each with the configuration and the reason.
    fn failures(&self) -> &[Failure];

    /// Returns the demands, judged.
    fn gates(&self) -> Vec<Gate>;

    /// Returns its tables.
    fn sections(&self) -> Vec<Section>;

    /// Returns pictures, each with a name for its file.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        Vec::new()
    }
}

impl<T: Measured> Found for LiveFound<T> {
    fn gates(&self) -> Vec<Gate> {
        self.found.gates()
    }

    fn title(&self, runs: u32) -> String {
        format!("{runs} interleaved rounds at the most")
    }

    fn sections(&self) -> Vec<Section> {
        self.found.sections()
    }

    fn notes(&self) -> Vec<String> {
        Failure::notes(self.found.failures())
    }

    fn charts(&self) -> Vec<(&'static str, Chart)> {
        self.found.charts()
    }
}

/// Resources of a run.
struct Stage<'a> {
    runs: u32,
    scale: f64,
    configurations: Vec<Configuration>,
    place: &'a Place,
    signals: &'a Signals,
    change: ThpChange,
    progress: &'a mut dyn FnMut(&str),
}

impl Stage<'_> {
    /// Returns `bytes` at this scale, in whole huge pages.
    fn scaled(&self, bytes: u64) -> u64 {
        (((bytes as f64 * self.scale) as u64) >> 21 << 21).max(2 << 21)
    }

    /// Returns the largest power of two that is not above `bytes` at this scale.
    fn scaled_power(&self, bytes: u64) -> u64 {
        1 << self.scaled(bytes).ilog2()
    }

    /// Touches free memory, as huge pages, and releases it. The memory is at most `bytes`, and
    /// never below the safe floor. The host has then backed the memory that a run takes next:
    /// otherwise it would charge the run that touches it first. Memory that is freed as base pages
    /// stays in queues of the processor, where it does not merge into a huge page: so huge pages
    /// are used. Returns the bytes touched.
    fn warm(&mut self, bytes: u64) -> Result<Bytes> {
        self.warm_for(bytes, Duration::ZERO)
    }

    /// Does the same as [`Stage::warm`], for work that begins at once and takes no longer than 2 s.
    /// In that time a host that gets reports of free memory does not take it back.
    fn warm_now(&mut self, bytes: u64) -> Result<Bytes> {
        self.warm_for(bytes, REPORTED_AFTER)
    }

    fn warm_for(&mut self, bytes: u64, rest: Duration) -> Result<Bytes> {
        self.change.set(&ASKED).context("the settings of transparent huge pages")?;
        let mut ended = Ok(());
        let warmed = warm_while(Bytes(bytes).min(can_give()?), rest, &mut || {
            ended = check(self.signals);
            ended.is_ok()
        });
        self.change.set(&AT_REST).context("the settings of transparent huge pages")?;
        ended.map(|()| warmed)
    }

    fn say(&mut self, line: &str) {
        (self.progress)(line);
    }

    /// Turns an error into a failed run, as a finding, with the machine idle again. Fails if the
    /// user asked to stop.
    fn failed(&mut self, configuration: &'static str, error: anyhow::Error) -> Result<Failure> {
        let why = match found_or_why::<()>(Err(error))? {
            Err(why) => why,
            Ok(()) => String::new(),
        };
        self.change.set(&AT_REST).context("the settings of transparent huge pages")?;
        Ok(Failure { configuration, why })
    }

    /// Returns true if the error ends the experiment: the user asked to stop.
    fn is_final(error: &anyhow::Error) -> bool {
        error.is::<crate::child::Stopped>()
    }
}
