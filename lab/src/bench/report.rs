//! What a bench of peers found, as data.

use super::cases::{Bench, Case};
use super::kept::Holding;
use super::process::Ran;
use super::{Asked, Clock, Spread};
use crate::experiment::add_note;
use crate::peers::{self, BASELINE, Peer};
use megapage_bench::workload::{HeapBacking, Measurement};
use serde::Serialize;
use std::collections::BTreeMap;

/// All cases under all peers.
#[derive(Clone, Debug, Serialize)]
pub struct BenchFound {
    /// The bench.
    #[serde(skip)]
    pub bench: Bench,
    /// The requested peers, absent ones included.
    pub peers: Vec<PeerReport>,
    /// Rounds before those that count. With at least one, all values are of warm memory.
    pub warm_up_runs: u32,
    /// How the pool of 2 MiB pages was held.
    pub pool: Holding,
    /// What sizes and work were multiplied by.
    pub scale: f64,
    /// The clock that spreads, ratios and gates are taken from.
    pub clock: Clock,
    /// What each case found.
    pub cases: Vec<CaseReport>,
}

/// A peer that was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// Its name.
    pub name: &'static str,
    /// How it is selected, as shell words.
    pub recipe: String,
    /// The package and its version, where they can be determined.
    pub version: Option<String>,
    /// Why it did not run; `None` where it did.
    pub absent: Option<String>,
}

/// What one case found.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// The case's name within the bench.
    pub case: &'static str,
    /// The workload program's arguments.
    pub arguments: Vec<String>,
    /// One for each peer that ran, in the order of a round.
    pub rows: Vec<Row>,
}

/// One case under one peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The peer.
    pub peer: &'static str,
    /// Each phase's time in nanoseconds by the report's clock.
    pub phases_ns: BTreeMap<String, Spread>,
    /// Each phase's median as a ratio to the baseline's: below 1 is faster.
    pub ratios: BTreeMap<String, f64>,
    /// The workload's other values.
    #[serde(rename = "figures")]
    pub values: BTreeMap<String, Spread>,
    /// The share of the resident heap on pages of 2 MiB or more, as the kernel says; 0 to 1. `None` where the
    /// workload does not report it: `startup`.
    pub huge_share: Option<Spread>,
    /// The share of the resident heap on pages of 1 GiB, likewise.
    pub gigantic_share: Option<Spread>,
    /// Why runs were left out for want of pages of 1 GiB, which is no failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// What went wrong: failed runs, a pool that could not be had. Empty where nothing did.
    pub notes: Vec<String>,
    /// Every counted run.
    pub samples: Vec<Measurement>,
}

impl BenchFound {
    /// Without measurements.
    pub(super) fn begin(
        asked: &Asked<'_>,
        cases: &[Case],
        peers: &[&'static Peer],
        absence: impl Fn(&Peer) -> Option<String>,
    ) -> BenchFound {
        let peer_report = |peer: &&'static Peer| {
            let absent = absence(peer);
            let version = if absent.is_none() { peers::version(peer) } else { None };
            PeerReport { name: peer.name, recipe: peer.recipe(), version, absent }
        };
        let peers: Vec<PeerReport> = peers.iter().map(peer_report).collect();
        let case_report = |case: &Case| CaseReport {
            case: case.name,
            arguments: case.arguments.clone(),
            rows: peers.iter().filter(|peer| peer.absent.is_none()).map(|peer| Row::new(peer.name)).collect(),
        };
        BenchFound {
            bench: asked.bench,
            warm_up_runs: asked.common.warm_up,
            pool: Holding::None,
            scale: asked.scale,
            clock: asked.common.clock,
            cases: cases.iter().map(case_report).collect(),
            peers,
        }
    }

    /// Makes a peer absent that no case has a run of.
    pub(super) fn set_absent(&mut self, peer: &Peer, why: String) {
        self.cases.iter_mut().for_each(|case| case.rows.retain(|row| row.peer != peer.name));
        if let Some(report) = self.peers.iter_mut().find(|report| report.name == peer.name) {
            (report.absent, report.version) = (Some(why), None);
        }
    }

    /// Computes spreads and ratios from the samples.
    pub(super) fn finish(&mut self) {
        self.cases.iter_mut().for_each(|case| case.finish(self.clock));
    }
}

impl CaseReport {
    /// The row of that peer.
    pub fn row(&self, peer: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.peer == peer)
    }

    /// Enters one run. What went wrong is noted whether or not the run counts, once.
    pub(super) fn note(&mut self, peer: &Peer, ran: Ran, pool: Option<String>, counted: bool) {
        let Some(row) = self.rows.iter_mut().find(|row| row.peer == peer.name) else { return };
        pool.into_iter().for_each(|reason| add_note(&mut row.notes, reason));
        match ran {
            Ran::Well(measurement) if counted => row.samples.push(measurement),
            Ran::Well(_) => {}
            Ran::Failed(how) => add_note(&mut row.notes, how),
        }
    }

    /// Enters why a run was left out, once.
    pub(super) fn note_absence(&mut self, peer: &Peer, why: String) {
        let Some(row) = self.rows.iter_mut().find(|row| row.peer == peer.name) else { return };
        add_note(&mut row.left_out, why);
    }

    fn finish(&mut self, clock: Clock) {
        self.rows.iter_mut().for_each(|row| row.summarise(clock));
        let baseline = self.row(BASELINE).map(|row| row.phases_ns.clone()).unwrap_or_default();
        for row in &mut self.rows {
            let ratio = |(name, spread): (&String, &Spread)| {
                let base = baseline.get(name)?.median;
                (base > 0.0).then(|| (name.clone(), spread.median / base))
            };
            row.ratios = row.phases_ns.iter().filter_map(ratio).collect();
        }
    }
}

impl Row {
    fn new(peer: &'static str) -> Row {
        Row { peer, ..Row::default() }
    }

    fn summarise(&mut self, clock: Clock) {
        let Some(first) = self.samples.first() else { return };
        let over =
            |value: &dyn Fn(&Measurement) -> Option<f64>| Spread::of(self.samples.iter().filter_map(value));
        let phases = first.phases.0.keys().filter_map(|name| {
            let spread = over(&|sample| sample.phases.0.get(name).map(|spent| clock.of(spent)))?;
            Some((name.clone(), spread))
        });
        let values = first
            .values
            .keys()
            .filter_map(|name| Some((name.clone(), over(&|sample| sample.values.get(name).copied())?)));
        let (phases_ns, values) = (phases.collect(), values.collect());
        let share = |of: fn(&HeapBacking) -> f64| {
            over(&|sample| (sample.backing.resident() > 0).then(|| of(&sample.backing)))
        };
        let (huge, gigantic) = (share(HeapBacking::huge_share), share(HeapBacking::gigantic_share));
        (self.huge_share, self.gigantic_share) = (huge, gigantic);
        self.phases_ns = phases_ns;
        self.values = values;
    }
}
