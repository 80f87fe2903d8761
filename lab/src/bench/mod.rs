//! The benches against every peer: each case under each peer, round after round.

mod cases;
mod fit;
mod gates;
mod gigantic;
mod judged;
mod kept;
mod median;
mod mount;
mod place;
mod pool;
mod process;
mod report;
mod sweep;
mod table;
mod warm;

pub use cases::{Bench, ReleaseOptions};
pub use fit::{can_give, must_fit};
pub use judged::{Former, Gate, Judged, Was, gates_table};
pub use kept::{Holding, PoolOrReason};
pub use megapage_bench::head::{Head, MachineReport};
pub use megapage_bench::statistics::{Clock, Interval, Spread};
pub use mount::{Mount, empty};
pub use place::Place;
pub use pool::Pool;
pub use process::command_under;
pub use report::{BenchFound, CaseReport, PeerReport, Row};
pub use sweep::{SizeRow, Sweep, SweepFound};
pub use warm::{REPORTED_AFTER, warm, warm_while};

use crate::arguments::{Sizes, scale, sizes};
use crate::experiment::{Experiment, Plan, Stage};
use crate::install;
use crate::peers::{self, Peer};
use crate::workload::retrieval;
use anyhow::{Result, bail};
use cases::Case;
use fit::must_fit_or;
use kept::{Kept, Prepared};
use megapage_units::Bytes;
use process::Ran;
use std::path::Path;

/// Options of every bench.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Rounds before them that do not count: they warm the machine's memory
    // A virtual machine's host may have to find it first, which is several times more expensive
    // than to touch it again.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=100))]
    pub warm_up: u32,
    /// Peers to run, separated by commas [default: all]
    // The baseline always runs.
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// The clock that ratios and gates are taken from
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    pub clock: Clock,
}

/// Allocate small objects, an array or a hash map, and read them at random
#[derive(Clone, Debug, clap::Args)]
pub struct Access {
    /// small, array, map [default: all]
    pub cases: Vec<String>,
    /// Multiply sizes and work by this
    #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
    pub scale: f64,
    /// Options of every bench.
    #[command(flatten)]
    pub common: Common,
}

/// Find songs by noisy excerpts in an inverted index
#[derive(Clone, Debug, clap::Args)]
pub struct Retrieval {
    /// The search.
    #[command(flatten)]
    pub search: retrieval::Options,
    /// Compare 4 KiB pages with megapage at these sizes, separated by commas, and say from which on
    /// it pays; all: 1m, 4m, 16m and so on, up to the largest that fits. Takes 6 --runs or more
    #[arg(long, value_name = "LIST", conflicts_with = "size", value_parser = sizes)]
    pub sizes: Option<Sizes>,
    /// Options of every bench.
    #[command(flatten)]
    pub common: Common,
}

/// Free 80 % of 920 MB and see what stays resident
#[derive(Clone, Debug, clap::Args)]
pub struct Release {
    /// random, runs, big [default: all]
    pub cases: Vec<String>,
    /// Multiply sizes by this
    #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
    pub scale: f64,
    /// Options of the wait.
    #[command(flatten)]
    pub wait: ReleaseOptions,
    /// Options of every bench.
    #[command(flatten)]
    pub common: Common,
}

/// Measure the slow-down of a program that has nothing to gain
#[derive(Clone, Debug, clap::Args)]
pub struct Idle {
    /// Multiply the work by this
    #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
    pub scale: f64,
    /// Options of every bench.
    #[command(flatten)]
    pub common: Common,
}

/// Measure the cost of starting a program that does nothing
#[derive(Clone, Debug, clap::Args)]
pub struct Startup {
    /// Multiply the number of starts by this
    #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
    pub scale: f64,
    /// Options of every bench.
    #[command(flatten)]
    pub common: Common,
}

/// A bench of peers, as it was asked for.
pub trait OfPeers {
    /// Name on the command line and in the report.
    const NAME: &'static str;

    /// Returns the bench with the cases, scale and options that were asked for.
    fn asked(&self) -> Asked<'_>;
}

/// See [`OfPeers::asked`].
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The bench.
    pub bench: Bench,
    /// Its cases by name; all if none is named.
    pub cases: &'a [String],
    /// Factor for sizes and work; results are published at 1.
    pub scale: f64,
    /// Options of every bench.
    pub common: &'a Common,
}

impl OfPeers for Access {
    const NAME: &'static str = "access";

    fn asked(&self) -> Asked<'_> {
        Asked { bench: Bench::Access, cases: &self.cases, scale: self.scale, common: &self.common }
    }
}

impl OfPeers for Retrieval {
    const NAME: &'static str = "retrieval";

    fn asked(&self) -> Asked<'_> {
        Asked { bench: Bench::Retrieval(self.search), cases: &[], scale: 1.0, common: &self.common }
    }
}

impl OfPeers for Release {
    const NAME: &'static str = "release";

    fn asked(&self) -> Asked<'_> {
        Asked {
            bench: Bench::Release(self.wait),
            cases: &self.cases,
            scale: self.scale,
            common: &self.common,
        }
    }
}

impl OfPeers for Idle {
    const NAME: &'static str = "idle";

    fn asked(&self) -> Asked<'_> {
        Asked { bench: Bench::Idle, cases: &[], scale: self.scale, common: &self.common }
    }
}

impl OfPeers for Startup {
    const NAME: &'static str = "startup";

    fn asked(&self) -> Asked<'_> {
        Asked { bench: Bench::Startup, cases: &[], scale: self.scale, common: &self.common }
    }
}

impl<B: OfPeers> Experiment for B {
    const NAME: &'static str = <B as OfPeers>::NAME;
    const RUNS: [u32; 3] = [5, 1, 1000];
    type Found = BenchFound;

    fn validate(&self) -> Result<()> {
        select(&self.asked()).map(|_| ())
    }

    fn install(&self, say: &mut dyn FnMut(&str)) -> Result<()> {
        install::install(&peers::select(&self.asked().common.peers)?, say)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        let Ok((cases, peers)) = select(&self.asked()) else { return Vec::new() };
        let line = |case: &Case, peer: &Peer| {
            peer.recipe().replace("PROGRAM", &format!("megapage-lab-workload {}", case.arguments.join(" ")))
        };
        cases.iter().flat_map(|case| peers.iter().map(move |peer| line(case, peer))).collect()
    }

    /// Runs every case under every peer in each round, so that a change of the machine affects all.
    /// At the end takes out the pages that it added to the pools.
    fn measure(&self, stage: &mut Stage<'_>) -> Result<BenchFound> {
        run(&self.asked(), stage)
    }
}

/// Returns the cases and peers that were asked for.
fn select(asked: &Asked<'_>) -> Result<(Vec<Case>, Vec<&'static Peer>)> {
    let (cases, mut peers) = (cases::select(asked)?, peers::select(&asked.common.peers)?);
    if cases.iter().all(|case| case.gigantic.is_none()) {
        let is_gigantic = |name: &&String| Peer::named(name).is_some_and(Peer::is_gigantic);
        if let Some(name) = asked.common.peers.iter().find(is_gigantic) {
            bail!("{name} is for access and retrieval alone, not for {}", asked.bench.name());
        }
        peers.retain(|peer| !peer.is_gigantic());
    }
    Ok((cases, peers))
}

fn run(asked: &Asked<'_>, stage: &mut Stage<'_>) -> Result<BenchFound> {
    let (mut cases, peers) = select(asked)?;
    let (place, runs, warm_up) = (stage.place, stage.plan.runs, asked.common.warm_up);
    let wants_mount = |peer: &&&Peer| peer.needs_hugetlbfs() && place.absence(peer).is_none();
    let mount = peers.iter().find(wants_mount).map(|_| Mount::new()).transpose();
    let absence = |peer: &Peer| match &mount {
        Err(error) if peer.needs_hugetlbfs() => place.absence(peer).or(Some(format!("{error:#}"))),
        _ => place.absence(peer),
    };
    let mut found = BenchFound::begin(asked, &cases, &peers, absence);
    let present: Vec<_> = peers.into_iter().filter(|peer| absence(peer).is_none()).collect();
    let hugetlbfs = mount.as_ref().ok().and_then(Option::as_ref).map(Mount::path);
    for peer in found.peers.iter().filter(|peer| peer.absent.is_some()) {
        stage.say(&format!("absent: {}: {}", peer.name, peer.absent.as_deref().unwrap_or_default()));
    }
    let can_give = fit(&mut cases, asked)?;
    found.pool = kept::holding(&cases, &present, can_give);
    let mut pool = Kept::new(found.pool, &cases, warm_up > 0);
    let mut present = kept::turns(found.pool, &present);
    probe_gigantic(&mut pool, &cases, &mut present, &mut found, stage);

    let rounds = warm_up + runs;
    let total = rounds as usize * cases.len() * present.len();
    let mut done = 0;
    for round in 0..rounds {
        let counted = round >= warm_up;
        for (case, case_report) in cases.iter().zip(&mut found.cases) {
            for peer in &present {
                done += 1;
                let kind = if counted { "" } else { ", warm-up" };
                let run = format!("{done}/{total} {} {}{kind}", case.title, peer.name);
                let note = match pool.prepare(case, peer) {
                    Prepared::Ready(note) => note,
                    Prepared::Absent(why) => {
                        stage.say(&format!("{run}: did not run: {why}"));
                        case_report.note_absence(peer, why);
                        continue;
                    }
                };
                let ran = run_once(case, peer, hugetlbfs.as_deref(), stage)?;
                match &ran {
                    Ran::Well(found) => stage.say(&format!("{run}: {}", median::brief(found))),
                    Ran::Failed(how) => stage.say(&format!("{run}: {how}")),
                }
                case_report.note(peer, ran, note, counted);
            }
        }
    }
    // Unmounted before the pool shrinks.
    drop(mount);
    drop(pool);
    found.finish();
    Ok(found)
}

/// Tests for each case if the machine can provide its pages of 1 GiB, and releases them. A peer
/// that needs them and has them in no case is absent.
fn probe_gigantic(
    pool: &mut Kept,
    cases: &[Case],
    present: &mut Vec<&'static Peer>,
    found: &mut BenchFound,
    stage: &mut Stage<'_>,
) {
    let Some(peer) = present.iter().copied().find(|peer| peer.is_gigantic()) else { return };
    let probed = cases.iter().map(|case| pool.probe(case, peer));
    let Ok(refused) = probed.map(|probed| probed.err().ok_or(())).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let why = refused.into_iter().next().unwrap_or_default();
    stage.say(&format!("absent: {}: {why}", peer.name));
    present.retain(|other| !other.is_gigantic());
    found.set_absent(peer, why);
}

fn run_once(case: &Case, peer: &Peer, hugetlbfs: Option<&Path>, stage: &Stage<'_>) -> Result<Ran> {
    let mut measurements = Vec::new();
    for _ in 0..case.repeats {
        let command = command_under(peer, stage.place, &case.arguments, case.memory, hugetlbfs)?;
        match process::run(command, case.longest, stage.signals)? {
            Ran::Well(found) => measurements.push(found),
            failed => return Ok(failed),
        }
    }
    Ok(Ran::Well(median::median_measurement(measurements)))
}

/// Trims each case's pool to the memory that the machine can give, and returns the least of these.
/// Refuses a case whose workload does not fit; the error names one that would.
fn fit(cases: &mut [Case], asked: &Asked<'_>) -> Result<Bytes> {
    let mut least = Bytes(u64::MAX);
    for case in cases {
        let can_give = must_fit_or(&case.title, case.memory, |can_give| cases::instead(asked, can_give))?;
        case.pool = case.pool.min(can_give);
        least = least.min(can_give);
    }
    Ok(least)
}
