//! From what size on do huge pages pay? The retrieval with indexes of several sizes, on 4 KiB pages and under megapage, pair by pair.

use super::cases::{Case, retrieval_case};
use super::kept::{self, Kept};
use super::process::{self, Ran, command_under};
use super::report::{Head, MachineReport};
use super::table::heading;
use super::{Bench, Clock, Interval, Options, Place, Spread, fit};
use crate::arguments::Sizes;
use crate::peers::{BASELINE, OURS, Peer};
use crate::signals::stop_signals;
use crate::workload::{Measurement, retrieval};
use anyhow::{Context, Result, bail, ensure};
use megapage_act::pool::floor;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_report::chart::{Chart, Line};
use megapage_report::table;
use megapage_units::Bytes;
use serde::Serialize;
use std::fmt::Write;

/// The probability that intervals are to have; the fewest pairs that reach it.
const WANTED: f64 = 0.95;
const LEAST_RUNS: u32 = 6;

/// A whole sweep: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// Pairs of runs that count, of each size.
    pub runs: u32,
    /// Pairs before them that do not.
    pub warm_up_runs: u32,
    /// The clock that gains are taken from.
    pub clock: Clock,
    /// The peer that is compared with, and the one that is.
    pub peers: [&'static str; 2],
    /// One for each size, ascending.
    pub sizes: Vec<SizeRow>,
    /// The least size from which on huge pages pay in all sizes that were tried, in bytes of postings; `None` where the largest
    /// does not.
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
    /// How many times as fast it is under megapage, of the pairs.
    pub gain: Interval,
    /// The share of the heap on huge pages under megapage, the least.
    pub huge_share: f64,
    /// Each pair's gain.
    pub samples: Vec<f64>,
}

impl SizeRow {
    /// Whether it is faster, beyond chance.
    fn pays(&self) -> bool {
        self.gain.median > 1.0 && self.gain.excludes(1.0, WANTED)
    }
}

/// Each size in turn, in each round; `options.bench` is a retrieval, whose size does not count.
pub fn sweep(
    options: &Options,
    sizes: &Sizes,
    place: &Place,
    progress: &mut dyn FnMut(&str),
) -> Result<SweepReport> {
    let Bench::Retrieval(search) = options.bench else { bail!("--sizes is of bench retrieval") };
    ensure!(
        (LEAST_RUNS..=1000).contains(&options.runs),
        "--sizes with --runs {}: an interval takes {LEAST_RUNS} to 1000 pairs",
        options.runs
    );
    ensure!(options.peers.is_empty(), "--sizes compares {OURS} with {BASELINE}: leave --peers out");
    let peers = [BASELINE, OURS].map(Peer::named);
    let [Some(baseline), Some(ours)] = peers else { bail!("{BASELINE} and {OURS} are peers") };
    let sizes = sizes_that_fit(sizes, search)?;
    let of_size = |size: &Bytes| retrieval_case("retrieval", retrieval::Options { size: *size, ..search });
    let mut cases: Vec<Case> = sizes.iter().map(of_size).collect();
    let can_give = fit(&mut cases, options)?;
    let head = Head { machine: MachineReport::read()?, ..Head::begin("retrieval-sizes")? };
    let signals = stop_signals()?;
    // What cannot be had of it is no error: then the heap is on transparent huge pages.
    let mut pool = Kept::new(kept::holding(&cases, &[baseline, ours], can_give), &cases, options.warm_up > 0);
    let mut found: Vec<Vec<[Measurement; 2]>> = vec![Vec::new(); cases.len()];
    for round in 0..options.warm_up + options.runs {
        for ((size, case), found) in sizes.iter().zip(&cases).zip(&mut found) {
            let mut run = |peer: &'static Peer| -> Result<Measurement> {
                pool.prepare(case, peer);
                let command = command_under(peer, place, &case.arguments, case.memory, None)?;
                well(process::run(command, case.longest, &signals)?, case, peer)
            };
            // One first, then the other.
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
            progress(&format!(
                "round {round} {}: {:.2} times as fast",
                case.title,
                gain(&pair, options.clock)
            ));
            if round >= options.warm_up {
                found.push(pair);
            }
        }
    }
    drop(pool);
    let rows = sizes.iter().zip(&found).map(|(size, pairs)| row(*size, pairs, options.clock));
    let rows: Vec<SizeRow> = rows.collect::<Option<_>>().context("no pair of runs counts")?;
    Ok(SweepReport {
        head,
        runs: options.runs,
        warm_up_runs: options.warm_up,
        clock: options.clock,
        peers: [BASELINE, OURS],
        pays_from_bytes: pays_from(&rows),
        sizes: rows,
    })
}

fn well(ran: Ran, case: &Case, peer: &Peer) -> Result<Measurement> {
    match ran {
        Ran::Well(found) => Ok(found),
        Ran::Failed(how) => bail!("{} under {}: {how}", case.title, peer.name),
    }
}

/// The sizes that were asked for, ascending; of all, those that fit and the largest one that does.
fn sizes_that_fit(sizes: &Sizes, search: retrieval::Options) -> Result<Vec<Bytes>> {
    let mut chosen = match sizes {
        Sizes::These(sizes) => sizes.clone(),
        Sizes::All => {
            let memory = meminfo(&KernelRoot::live())?;
            let available = memory.available.unwrap_or_default();
            let can_give = available.saturating_sub(floor(memory.total.unwrap_or_default()));
            let largest = retrieval::largest(can_give, search.threads).with_context(|| {
                format!(
                    "{available} are available: with {} threads no index fits: use fewer --threads",
                    search.threads
                )
            })?;
            // A tenth less: what is available now need not be so in the last round.
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

/// The first of the sizes from which on all pay.
fn pays_from(sizes: &[SizeRow]) -> Option<u64> {
    let paying = sizes.iter().rev().take_while(|row| row.pays()).count();
    sizes.get(sizes.len() - paying).map(|row| row.size_bytes)
}

impl SweepReport {
    /// The report as text of at most 100 columns.
    pub fn human(&self) -> String {
        let mut text = String::new();
        writeln!(text, "retrieval by size: {} pairs of runs each, {OURS} beside {BASELINE}", self.runs).ok();
        text += &heading(&self.head);
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
        text +=
            &table(&["postings", "heap MB", "4 KiB ms", "huge ms", "times as fast", "huge", "pays"], rows);
        match self.pays_from_bytes {
            Some(size) => writeln!(text, "\nhuge pages pay from {} of postings on", Bytes(size)),
            None => writeln!(text, "\nat the largest of these sizes no gain beyond chance was found"),
        }
        .ok();
        text
    }

    /// Gain by size, with the ends of the intervals.
    pub fn chart(&self) -> Chart {
        let points = |of: fn(&Interval) -> f64| -> Vec<(f64, f64)> {
            self.sizes.iter().map(|row| ((row.resident_bytes / 1e6).log2(), of(&row.gain))).collect()
        };
        let line = |name: &str, pale, points| Line { name: name.into(), points, pale };
        Chart {
            title: "Retrieval on huge pages".into(),
            x: "heap: log2 of MB".into(),
            y: "times as fast as on 4 KiB pages".into(),
            lines: vec![
                line("median", false, points(|gain| gain.median)),
                line("interval", true, points(|gain| gain.low)),
                line("interval", true, points(|gain| gain.high)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{HeapBacking, Phases, Spent};
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
