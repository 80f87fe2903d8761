//! `megapage bench promote|bloat|fair|cost`: the papers' experiments on a live machine, under the kernel's own settings
//! and under the daemon.
//!
//! Architecture invariant: the settings of transparent huge pages are changed as one transaction, and put back at the
//! end, after a failure, a signal, and when the bench is killed; whatever the bench started ends with it.

mod bloat;
mod configuration;
mod cost;
mod daemon;
mod fair;
mod promote;
mod redis;
mod stalls;
mod table;
mod worker;

use crate::child::{Stopped, check, stop_signals};
use crate::run::{Gate, Head, Place, must_fit};
use anyhow::{Context, Result, bail, ensure};
use configuration::AT_REST;
use megapage_kernel::spawn::Signals;
use megapage_kernel::thp_change::ThpChange;
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_report::chart::Chart;
use megapage_units::Bytes;
use serde::Serialize;

pub use bloat::{Bloat, BloatRow};
pub use configuration::{CONFIGURATIONS, Configuration, ConfigurationReport, Who};
pub use cost::{Cost, Slowdown};
pub(crate) use daemon::Daemon;
pub use fair::{Fair, FairRow, FairSample, Person};
pub use promote::{Promote, PromoteRow};
pub use stalls::StallReport;
pub use table::human;

/// One of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// How soon a program is relieved of its page walks.
    Promote,
    /// Whether Redis stays within its limit.
    Bloat,
    /// Who finishes when.
    Fair,
    /// What the daemon takes for itself when there is nothing to do.
    Cost,
}

impl Bench {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Bench::Promote => "promote",
            Bench::Bloat => "bloat",
            Bench::Fair => "fair",
            Bench::Cost => "cost",
        }
    }

    /// Memory that it needs at scale 1.
    fn memory(self) -> Bytes {
        match self {
            Bench::Promote => Bytes(promote::HEAP + promote::HEAP / 16),
            Bench::Bloat => Bytes(bloat::LIMIT + bloat::LIMIT / 4),
            // As much again is touched before each run.
            Bench::Fair => Bytes(2 * fair::MEMORY),
            Bench::Cost => Bytes(cost::LEAST_RESIDENT + cost::LEAST_RESIDENT / 16),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which bench.
    pub bench: Bench,
    /// The configurations by name; all where none is named. `cost` knows the policies alone.
    pub configurations: Vec<String>,
    /// Rounds that medians are taken of, 1 to 100.
    pub runs: u32,
    /// Multiplies sizes and waits, above 0, at most 1; 1 is what results are published at.
    pub scale: f64,
    /// Install what is absent first (apt-get).
    pub install: bool,
    /// The parts of the bench by name, where it has some (`bloat`); all where none is named.
    pub cases: Vec<String>,
}

/// A whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// What sizes were multiplied by.
    pub scale: f64,
    /// Rounds.
    pub runs: u32,
    /// What was compared.
    pub configurations: Vec<ConfigurationReport>,
    /// What was found, of the bench that ran.
    #[serde(flatten)]
    pub found: Found,
    /// What is demanded, and whether it holds.
    pub gates: Vec<Gate>,
}

/// What a bench found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Found {
    /// `promote`.
    Promote(Promote),
    /// `bloat`.
    Bloat(Box<Bloat>),
    /// `fair`.
    Fair(Fair),
    /// `cost`.
    Cost(Cost),
}

impl Report {
    /// Whether every gate holds and every run ended as it should.
    pub fn is_clean(&self) -> bool {
        self.gates.iter().all(|gate| gate.holds) && self.found.failures().is_empty()
    }

    /// Pictures of what was found, each with a name for its file.
    pub fn charts(&self) -> Vec<(&'static str, Chart)> {
        match &self.found {
            Found::Promote(found) => found.charts(),
            Found::Bloat(found) => found.charts(),
            Found::Fair(_) | Found::Cost(_) => Vec::new(),
        }
    }
}

impl Found {
    /// Runs that did not end as they should, each with the configuration and the reason.
    pub fn failures(&self) -> &[Failure] {
        match self {
            Found::Promote(found) => &found.failures,
            Found::Bloat(found) => &found.failures,
            Found::Fair(found) => &found.failures,
            Found::Cost(found) => &found.failures,
        }
    }
}

/// A run that failed for a reason of its own: a daemon that ended, a workload that did not answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// The configuration.
    pub configuration: &'static str,
    /// Why.
    pub why: String,
}

/// What a bench works with.
struct Stage<'a> {
    options: &'a Options,
    configurations: Vec<Configuration>,
    place: &'a Place,
    signals: Signals,
    change: ThpChange,
    progress: &'a mut dyn FnMut(&str),
}

impl Stage<'_> {
    /// `bytes` at this scale, in whole huge pages.
    fn scaled(&self, bytes: u64) -> u64 {
        (((bytes as f64 * self.options.scale) as u64) >> 21 << 21).max(2 << 21)
    }

    /// The largest power of two that is not above `bytes` at this scale.
    fn scaled_power(&self, bytes: u64) -> u64 {
        1 << self.scaled(bytes).ilog2()
    }

    fn say(&mut self, line: &str) {
        (self.progress)(line);
    }

    /// Whether the error ends the bench: the wish of the user that it stop.
    fn is_final(error: &anyhow::Error) -> bool {
        error.is::<Stopped>()
    }
}

/// What would be done to the machine, as lines for people: `--dry-run`.
pub fn dry_run(options: &Options) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for configuration in select(options)? {
        lines.push(format!("# {}", configuration.name));
        lines.extend(configuration.shell_lines());
    }
    lines.push("# in between, and put back to what was found at the end:".into());
    lines.extend(AT_REST.shell_lines());
    Ok(lines)
}

fn select(options: &Options) -> Result<Vec<Configuration>> {
    let chosen = Configuration::select(&options.configurations)?;
    let cases: &[&str] = if options.bench == Bench::Bloat { &bloat::CASES } else { &[] };
    if let Some(unknown) = options.cases.iter().find(|case| !cases.contains(&case.as_str())) {
        bail!("'{unknown}' is no part of bench {}; its parts are {}", options.bench.name(), cases.join(", "));
    }
    if options.bench != Bench::Cost {
        return Ok(chosen);
    }
    if options.configurations.is_empty() {
        return Ok(chosen.into_iter().filter(|one| matches!(one.who, Who::Daemon(..))).collect());
    }
    if let Some(kernel) = chosen.iter().find(|one| matches!(one.who, Who::Kernel(_))) {
        bail!("bench cost is about the daemon: '{}' is none of its policies", kernel.name);
    }
    Ok(chosen)
}

/// Runs the bench. `progress` is given a line for each run.
pub fn run(options: &Options, place: &Place, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!((1..=100).contains(&options.runs), "{} runs: from 1 to 100 are possible", options.runs);
    let configurations = select(options)?;
    ensure!(
        effective_uid() == 0,
        "the settings of huge pages and other processes are root's: run this as root"
    );
    if options.bench == Bench::Bloat {
        if options.install {
            crate::redis::install(progress)?;
        }
        let with_redis = options.cases.is_empty() || options.cases.iter().any(|case| case == bloat::CASES[0]);
        if let Some(how) = crate::redis::lacks().filter(|_| with_redis) {
            bail!("bench bloat needs redis: {how} (or --install)");
        }
    }
    let root = KernelRoot::live();
    let needed = Bytes((options.bench.memory().0 as f64 * options.scale) as u64);
    must_fit(&format!("bench {}", options.bench.name()), needed, "a smaller --scale")?;
    let signals = stop_signals()?;
    check(&signals)?;
    let mut change = ThpChange::begin(&root).context("the settings of transparent huge pages")?;
    change.recovered().iter().for_each(|setting| eprintln!("megapage: {setting}"));
    // It tells the settings, too, but not those that somebody had left.
    let head = Head::begin(options.bench.name())?;
    change.set(&AT_REST).context("the settings of transparent huge pages")?;
    let reports = configurations.iter().map(ConfigurationReport::from).collect();
    let mut stage = Stage { options, configurations, place, signals, change, progress };
    let (found, gates) = match options.bench {
        Bench::Promote => {
            let found = promote::run(&mut stage)?;
            let gates = found.gates();
            (Found::Promote(found), gates)
        }
        Bench::Bloat => {
            let found = bloat::run(&mut stage)?;
            let gates = found.gates();
            (Found::Bloat(Box::new(found)), gates)
        }
        Bench::Fair => {
            let found = fair::run(&mut stage)?;
            let gates = found.gates();
            (Found::Fair(found), gates)
        }
        Bench::Cost => {
            let found = cost::run(&mut stage)?;
            let gates = found.gates();
            (Found::Cost(found), gates)
        }
    };
    Ok(Report { head, scale: options.scale, runs: options.runs, configurations: reports, found, gates })
}
