//! Sizes from which on huge pages pay: the retrieval with indexes of several sizes, on 4 KiB pages
//! and under megapage, pair by pair.

use super::cases::{Case, retrieval_case};
use super::kept::{self, Kept};
use super::process::{self, Ran, command_under};
use super::{Clock, Interval, OfPeers, Retrieval, Spread, can_give, fit};
use crate::arguments::Sizes;
use crate::chart::{Chart, Line};
use crate::experiment::{Experiment, Found, Plan, Section, Stage};
use crate::peers::{BASELINE, OURS, Peer};
use crate::workload::measurement::Measurement;
use crate::workload::retrieval;
use anyhow::{Context, Result, bail, ensure};
use megapage_units::Bytes;
use serde::Serialize;

/// The wanted probability of intervals.
const WANTED: f64 = 0.95;

/// `retrieval --sizes`.
#[derive(Clone, Debug, clap::Args)]
pub struct Sweep {
    /// The search, of which the size does not count.
    #[command(flatten)]
    pub of: Retrieval,
}

/// A whole sweep.
#[derive(Clone, Debug, Serialize)]
pub struct SweepFound {
    /// Pairs before those that count.
    pub warm_up_runs: u32,
    /// The clock that gains are taken from.
    pub clock: Clock,
    /// The peer to compare with, and the peer that is compared.
    pub peers: [&'static str; 2],
    /// One for each size, ascending.
    pub sizes: Vec<SizeRow>,
    /// The least size from which on huge pages pay in all sizes that were tried, in bytes of
    /// postings; `None` if the largest does not pay.
    pub pays_from_bytes: Option<u64>,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// Bytes of postings.
    pub size_bytes: u64,
    /// Resident bytes of the heap on 4 KiB pages: postings, table of lists, counts of all threads.
    pub resident_bytes: f64,
    /// The time of all queries on 4 KiB pages, and under megapage, in nanoseconds.
    pub access_ns: [Spread; 2],
    /// The speed under megapage as a multiple of that on 4 KiB pages, of the pairs.
    pub gain: Interval,
    /// The share of the heap on huge pages under megapage, the least.
    pub huge_share: f64,
    /// Each pair's gain.
    pub samples: Vec<f64>,
}

impl SizeRow {
    /// Returns true if it is faster, beyond chance.
    fn pays(&self) -> bool {
        self.gain.median > 1.0 && self.gain.excludes(1.0, WANTED)
    }
}

impl Experiment for Sweep {
    const NAME: &'static str = "retrieval-sizes";
    /// Six pairs are the fewest whose interval has the wanted probability.
    const RUNS: [u32; 3] = [6, 6, 1000];
    type Found = SweepFound;

    fn validate(&self) -> Result<()> {
        let peers = &self.of.common.peers;
        ensure!(peers.is_empty(), "--sizes compares {OURS} with {BASELINE}: leave --peers out");
        Ok(())
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        vec![format!("# {} pairs of {BASELINE} and {OURS} of each size", plan.runs)]
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<SweepFound> {
        sweep(&self.of, stage)
    }
}

/// Runs each size in turn, in each round.
fn sweep(of: &Retrieval, stage: &mut Stage<'_>) -> Result<SweepFound> {
    let (warm_up, clock) = (of.common.warm_up, of.common.clock);
    let peers = [BASELINE, OURS].map(Peer::named);
    let [Some(baseline), Some(ours)] = peers else { bail!("{BASELINE} and {OURS} are peers") };
    let sizes = sizes_that_fit(of.sizes.as_ref().unwrap_or(&Sizes::All), of.search)?;
    let of_size = |size: &Bytes| retrieval_case("retrieval", retrieval::Options { size: *size, ..of.search });
    let mut cases: Vec<Case> = sizes.iter().map(of_size).collect();
    let can_give = fit(&mut cases, &of.asked())?;
    // A smaller pool is no error: the heap is then on transparent huge pages.
    let mut pool = Kept::new(kept::holding(&cases, &[baseline, ours], can_give), &cases, warm_up > 0);
    let mut found: Vec<Vec<[Measurement; 2]>> = vec![Vec::new(); cases.len()];
    for round in 0..warm_up + stage.plan.runs {
        for ((size, case), found) in sizes.iter().zip(&cases).zip(&mut found) {
            let mut run = |peer: &'static Peer| -> Result<Measurement> {
                pool.prepare(case, peer);
                let command = command_under(peer, stage.place, &case.arguments, case.memory, None)?;
                well(process::run(command, case.longest, stage.signals)?, case, peer)
            };
            // The two alternate in coming first.
            let pair = if round % 2 == 0 {
                let first = run(baseline)?;
                [first, run(ours)?]
            } else {
                let first = run(ours)?;
                [run(baseline)?, first]
            };
            ensure!(
                pair[0].checksum == pair[1].checksum,
                "retrieval of {size}: the answers under {OURS} are not those under {BASELINE}"
            );
            let gain = gain(&pair, clock);
            stage.say(&format!("round {round} {}: {gain:.2} times as fast", case.title));
            if round >= warm_up {
                found.push(pair);
            }
        }
    }
    drop(pool);
    let rows = sizes.iter().zip(&found).map(|(size, pairs)| row(*size, pairs, clock));
    let rows: Vec<SizeRow> = rows.collect::<Option<_>>().context("no pair of runs counts")?;
    let pays_from_bytes = pays_from(&rows);
    Ok(SweepFound { warm_up_runs: warm_up, clock, peers: [BASELINE, OURS], pays_from_bytes, sizes: rows })
}

fn well(ran: Ran, case: &Case, peer: &Peer) -> Result<Measurement> {
    match ran {
        Ran::Well(found) => Ok(found),
        Ran::Failed(how) => bail!("{} under {}: {how}", case.title, peer.name),
    }
}

/// Returns the sizes that were asked for, ascending. For all, these are the ones that fit and the
/// largest that does.
fn sizes_that_fit(sizes: &Sizes, search: retrieval::Options) -> Result<Vec<Bytes>> {
    let mut chosen = match sizes {
        Sizes::These(sizes) => sizes.clone(),
        Sizes::All => {
            let can_give = can_give()?;
            let largest = retrieval::largest(can_give, search.threads).with_context(|| {
                let threads = search.threads;
                format!("{can_give} can be had: with {threads} threads no index fits: use fewer --threads")
            })?;
            // A tenth less: there may be less memory in the last round than now.
            let largest = Bytes(largest.0 / 10 * 9).max(Bytes::mib(1));
            let mut all: Vec<Bytes> = (0..32)
                .map(|power| Bytes(Bytes::mib(1).0 << (2 * power).min(43)))
                .take_while(|size| *size < largest)
                .collect();
            all.push(largest);
            all
        }
    };
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

fn access(found: &Measurement, clock: Clock) -> f64 {
    found.phases.0.get("access").map_or(f64::NAN, |spent| clock.of(spent))
}

fn gain([baseline, ours]: &[Measurement; 2], clock: Clock) -> f64 {
    access(baseline, clock) / access(ours, clock)
}

fn row(size: Bytes, pairs: &[[Measurement; 2]], clock: Clock) -> Option<SizeRow> {
    let samples: Vec<f64> = pairs.iter().map(|pair| gain(pair, clock)).collect();
    let of = |side: usize| Spread::of(pairs.iter().map(|pair| access(&pair[side], clock)));
    Some(SizeRow {
        size_bytes: size.0,
        resident_bytes: Spread::of(pairs.iter().map(|pair| pair[0].backing.resident() as f64))?.median,
        access_ns: [of(0)?, of(1)?],
        gain: Interval::of(samples.iter().copied(), WANTED)?,
        huge_share: Spread::of(pairs.iter().map(|pair| pair[1].backing.huge_share()))?.min,
        samples,
    })
}

/// Returns the first of the sizes from which on all pay.
fn pays_from(sizes: &[SizeRow]) -> Option<u64> {
    let paying = sizes.iter().rev().take_while(|row| row.pays()).count();
    sizes.get(sizes.len() - paying).map(|row| row.size_bytes)
}

impl Found for SweepFound {
    fn title(&self, runs: u32) -> String {
        format!("{runs} pairs of runs each, {OURS} beside {BASELINE}")
    }

    fn sections(&self) -> Vec<Section> {
        let rows = self.sizes.iter().map(|row| {
            let [baseline, ours] = row.access_ns.map(|spread| format!("{:.1}", spread.median / 1e6));
            let Interval { median, low, high, .. } = row.gain;
            [
                Bytes(row.size_bytes).to_string(),
                format!("{:.0}", row.resident_bytes / 1e6),
                baseline,
                ours,
                format!("{median:.3} ({low:.3}-{high:.3})"),
                format!("{:.0} %", 100.0 * row.huge_share),
                if row.pays() { "yes" } else { "no" }.to_string(),
            ]
        });
        let header = ["postings", "heap MB", "4 KiB ms", "huge ms", "times as fast", "huge", "pays"];
        vec![Section::new("", &header, rows).then(match self.pays_from_bytes {
            Some(size) => format!("huge pages pay from {} of postings on", Bytes(size)),
            None => "at the largest of these sizes no gain beyond chance was found".into(),
        })]
    }

    /// Draws the gain by size, with the ends of the intervals.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        let points = |of: fn(&Interval) -> f64| -> Vec<(f64, f64)> {
            self.sizes.iter().map(|row| ((row.resident_bytes / 1e6).log2(), of(&row.gain))).collect()
        };
        let line = |name: &str, pale, points| Line { name: name.into(), points, pale };
        let chart = Chart {
            title: "Retrieval on huge pages".into(),
            x: "heap: log2 of MB".into(),
            y: "times as fast as on 4 KiB pages".into(),
            lines: vec![
                line("median", false, points(|gain| gain.median)),
                line("interval", true, points(|gain| gain.low)),
                line("interval", true, points(|gain| gain.high)),
            ],
        };
        vec![("gain", chart)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::measurement::{HeapBacking, Phases};
    use megapage_bench::statistics::Spent;
    use std::num::NonZeroUsize;

    fn measured(wall_ns: u64) -> Measurement {
        let mut phases = Phases::default();
        phases.0.insert("access".into(), Spent { wall_ns, cpu_ns: wall_ns });
        let backing = HeapBacking { thp: 3, base: 1, ..HeapBacking::default() };
        Measurement { phases, backing, ..Measurement::default() }
    }

    fn row_of(mib: u64, gains: &[f64]) -> SizeRow {
        let pairs: Vec<_> =
            gains.iter().map(|gain| [measured((1e6 * gain) as u64), measured(1_000_000)]).collect();
        row(Bytes::mib(mib), &pairs, Clock::Wall).unwrap()
    }

    #[test]
    fn it_pays_from_where_no_larger_size_fails_to() {
        let (yes, no) = ([1.1, 1.2, 1.1, 1.3, 1.2, 1.1], [1.1, 0.9, 1.1, 1.3, 1.2, 1.1]);
        let rows = |all: [&[f64]; 4]| -> Vec<SizeRow> {
            all.iter().zip([1, 4, 16, 64]).map(|(gains, mib)| row_of(mib, gains)).collect()
        };
        assert_eq!(pays_from(&rows([&yes, &no, &yes, &yes])), Some(16 << 20));
        assert_eq!(pays_from(&rows([&yes, &yes, &yes, &yes])), Some(1 << 20));
        assert_eq!(pays_from(&rows([&yes, &yes, &yes, &no])), None);
        // Five pairs are too few, and slower is no gain.
        assert!(!row_of(1, &yes[..5]).pays() && !row_of(1, &[0.8; 6]).pays());
        assert_eq!(row_of(1, &yes).huge_share, 0.75);
    }

    #[test]
    fn sizes_ascend_to_what_fits() {
        let search = retrieval::Options {
            size: Bytes::gib(8),
            threads: NonZeroUsize::MIN,
            queries: 1,
            seed: 1,
            noise: 0.5,
        };
        let all = sizes_that_fit(&Sizes::All, search).unwrap();
        assert_eq!(all[0], Bytes::mib(1));
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        let these = Sizes::These(vec![Bytes::mib(4), Bytes::mib(1), Bytes::mib(4)]);
        assert_eq!(sizes_that_fit(&these, search).unwrap(), [Bytes::mib(1), Bytes::mib(4)]);
    }
}
