//! Findings of a bench of peers, as data.

use super::cases::{Bench, Case};
use super::kept::Holding;
use super::process::Ran;
use super::{Asked, Clock, Spread};
use crate::experiment::add_note;
use crate::peers::{self, BASELINE, Peer};
use crate::workload::measurement::{HeapBacking, Measurement};
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
    /// Handling of the pool of 2 MiB pages.
    pub pool: Holding,
    /// Factor for sizes and work.
    pub scale: f64,
    /// The clock that spreads, ratios and gates are taken from.
    pub clock: Clock,
    /// Findings of each case.
    pub cases: Vec<CaseReport>,
}

/// A peer that was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// Its name.
    pub name: &'static str,
    /// Its selection, as shell words.
    pub recipe: String,
    /// The package and its version, if they can be determined.
    pub version: Option<String>,
    /// The reason for which it did not run; `None` if it did.
    pub absent: Option<String>,
}

/// Findings of one case.
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
    /// The share of the resident heap on pages of 2 MiB or more, as the kernel reports it; 0 to 1.
    /// `None` if the workload does not report it: `startup`.
    pub huge_share: Option<Spread>,
    /// The share of the resident heap on pages of 1 GiB, likewise.
    pub gigantic_share: Option<Spread>,
    /// Reasons for which runs were skipped for lack of pages of 1 GiB, which is no failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Faults: failed runs, a pool that was not available. Empty if there were none.
    pub notes: Vec<String>,
    /// Every counted run.
    pub samples: Vec<Measurement>,
}

impl BenchFound {
    /// Makes a report without measurements.
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

    /// Makes a peer absent that has a run in no case.
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
    /// Returns the row of that peer.
    pub fn row(&self, peer: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.peer == peer)
    }

    /// Enters one run. Faults are noted once, also those of runs that do not count.
    pub(super) fn note(&mut self, peer: &Peer, ran: Ran, pool: Option<String>, counted: bool) {
        let Some(row) = self.rows.iter_mut().find(|row| row.peer == peer.name) else { return };
        pool.into_iter().for_each(|reason| add_note(&mut row.notes, reason));
        match ran {
            Ran::Well(measurement) if counted => row.samples.push(measurement),
            Ran::Well(_) => {}
            Ran::Failed(how) => add_note(&mut row.notes, how),
        }
    }

    /// Enters the reason for a skipped run, once.
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
