//! Sizes from which on it pays to find memory again: cold and second starts over sizes.

use super::Bench;
use super::dpdk::Unlink;
use super::process::{Took, spread};
use super::restart::{OPEN_MS, Start, opened_ms, run};
use crate::bench::{Gate, Spread};
use crate::workload::measurement::Measurement;
use anyhow::{Context, Result, ensure};
use megapage_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// Sizes of the curve; the largest that was asked for follows.
const SIZES: [Bytes; 6] =
    [Bytes::mib(4), Bytes::mib(16), Bytes::mib(64), Bytes::mib(256), Bytes::gib(1), Bytes::gib(4)];
/// The least of them.
pub(super) const LEAST: Bytes = SIZES[0];
/// Sizes with which DPDK is run: each of its starts takes a third of a second or more.
const DPDK_SIZES: [Bytes; 3] = [Bytes::mib(64), Bytes::gib(1), Bytes::gib(4)];
/// Largest factor between the times to open the largest and the smallest again.
const OPEN_RATIO: f64 = 2.0;
/// Kinds of starts of a round, in their order; those after `first` find its files.
const STARTS: [&str; 4] = ["cold", "first", "second", "populated"];

/// Starts over sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The starts by side, size and kind; sizes ascend.
    pub starts: Vec<SizeRow>,
    /// The sizes from which on a start that finds its memory is sooner than a cold one.
    pub pays: Vec<Pays>,
    /// Sizes that were asked for and did not fit into memory, each with the reason.
    pub left_out: Vec<String>,
}

/// A start with one size, its memory in a single file.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// `megapage` or `dpdk`.
    pub side: &'static str,
    /// Its memory.
    pub size_bytes: u64,
    /// `cold`: memory is fresh. `second`: it is found again, and page tables are filled at the
    /// first access. `populated`: it is found again, and page tables are filled at once.
    pub start: &'static str,
    /// From the start of the process to its end.
    pub wall_ms: Spread,
    /// Opening the segment alone; `None` for DPDK, which does not report it.
    pub open_ms: Option<Spread>,
}

/// Size from which on one kind of start is sooner than a cold one.
#[derive(Clone, Debug, Serialize)]
pub struct Pays {
    /// `megapage` or `dpdk`.
    pub side: &'static str,
    /// `second` or `populated`.
    pub start: &'static str,
    /// The least size at which its slowest process ended sooner than the fastest cold one. From
    /// this size on its median is the lower one at each size. `None` if there is no such size.
    pub from_bytes: Option<u64>,
    /// The same of opening the segment alone; `None` for DPDK, too.
    pub open_from_bytes: Option<u64>,
}

/// Returns the sizes up to `largest` that fit into `room` for a pool; and those that are skipped,
/// with the reason.
pub(super) fn fitting(largest: Bytes, room: Bytes) -> (Vec<Bytes>, Vec<String>) {
    let mut asked: Vec<Bytes> = SIZES.into_iter().filter(|size| *size < largest).collect();
    asked.push(largest);
    let (mut fit, out): (Vec<Bytes>, Vec<Bytes>) = asked.into_iter().partition(|size| *size <= room);
    let why = |size: &Bytes| format!("{size} left out: the machine can spare {room} for the pool");
    let left_out = out.iter().map(why).collect();
    // The whole GiB that fit take the place of the largest.
    let whole = Bytes(room.0 & !((1 << 30) - 1));
    if !out.is_empty() && fit.last().is_some_and(|last| whole > *last) {
        fit.push(whole);
    }
    (fit, left_out)
}

struct Series {
    side: &'static str,
    size: Bytes,
    /// One for each of [`STARTS`].
    runs: [Vec<Took>; 4],
}

impl Series {
    fn rows(&self) -> impl Iterator<Item = SizeRow> + '_ {
        let measured = STARTS.iter().zip(&self.runs).filter(|(_, runs)| !runs.is_empty());
        measured.map(|(start, runs)| SizeRow {
            side: self.side,
            size_bytes: self.size.0,
            start,
            wall_ms: spread(runs, |took| took.wall_ms),
            open_ms: (self.side == "megapage")
                .then(|| spread(runs, |took| opened_ms(took).unwrap_or(f64::NAN))),
        })
    }
}

/// Measures the starts with `sizes`, for which the pool has room.
pub(super) fn measure(bench: &mut Bench<'_>, sizes: &[Bytes], left_out: Vec<String>) -> Result<Curve> {
    let series = |side, size: &Bytes| Series { side, size: *size, runs: Default::default() };
    let mut all: Vec<Series> = sizes.iter().map(|size| series("megapage", size)).collect();
    if bench.dpdk.is_some() {
        let both = DPDK_SIZES.iter().filter(|size| sizes.contains(size));
        all.extend(both.map(|size| series("dpdk", size)));
    }
    // The round that does not count brings the programs' own files and pages into memory.
    for round in 0..=bench.runs {
        for series in &mut all {
            for (number, start) in STARTS.iter().enumerate() {
                let is_new = matches!(*start, "cold" | "first");
                if is_new {
                    bench.mounted.clear()?;
                }
                if *start == "populated" && series.side == "dpdk" {
                    continue;
                }
                let request = Start {
                    side: series.side,
                    size: series.size,
                    single: true,
                    unlink: if *start == "cold" { Unlink::Existing } else { Unlink::Never },
                    populate: *start == "populated",
                };
                let took = run(bench, &request)?;
                if series.side == "megapage" && !is_new {
                    ensure!(fresh_pages(&took)? == 0.0, "a {start} start did not find its memory again");
                }
                let line = format!(
                    "round {round} of {}: {} {} {start}: {:.1} ms",
                    bench.runs, series.side, series.size, took.wall_ms
                );
                (bench.progress)(&line);
                if round > 0 && *start != "first" {
                    series.runs[number].push(took);
                }
            }
        }
    }
    bench.mounted.clear()?;
    let starts: Vec<SizeRow> = all.iter().flat_map(Series::rows).collect();
    Ok(Curve { pays: pays(&starts), starts, left_out })
}

fn fresh_pages(took: &Took) -> Result<f64> {
    let measured: Measurement = serde_json::from_str(&took.printed)?;
    measured.values.get("fresh_pages").copied().context("the workload does not say what it found")
}

/// Returns the result for each side and kind of start that was measured.
fn pays(starts: &[SizeRow]) -> Vec<Pays> {
    let mut all = Vec::new();
    for side in ["megapage", "dpdk"] {
        for start in ["second", "populated"] {
            if starts.iter().any(|row| row.side == side && row.start == start) {
                let from_bytes = sooner_from(starts, side, start, |row| Some(row.wall_ms));
                let open_from_bytes = sooner_from(starts, side, start, |row| row.open_ms);
                all.push(Pays { side, start, from_bytes, open_from_bytes });
            }
        }
    }
    all
}

/// Returns the least size at which the greatest value of `start` is below the least of a cold one.
/// From this size on its median must be the lower one. A single run with one size that the machine
/// held up must not hide the result of all others.
fn sooner_from(
    starts: &[SizeRow],
    side: &str,
    start: &str,
    value: impl Fn(&SizeRow) -> Option<Spread>,
) -> Option<u64> {
    let of = |kind: &str| -> BTreeMap<u64, Spread> {
        let rows = starts.iter().filter(|row| row.side == side && row.start == kind);
        rows.filter_map(|row| Some((row.size_bytes, value(row)?))).collect()
    };
    let (again, cold) = (of(start), of("cold"));
    let is_lower =
        |(size, again): &(&u64, &Spread)| cold.get(size).is_some_and(|cold| again.median < cold.median);
    let is_beyond = |(size, again): &(&u64, &Spread)| cold.get(size).is_some_and(|cold| again.max < cold.min);
    let sooner = again.iter().rev().take_while(is_lower).filter(is_beyond);
    sooner.last().map(|(size, _)| *size)
}

impl Curve {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let seconds = self.starts.iter().filter(|row| row.side == "megapage" && row.start == "second");
        let mut opened: Vec<(Bytes, f64)> =
            seconds.filter_map(|row| Some((Bytes(row.size_bytes), row.open_ms?.median))).collect();
        opened.sort_by_key(|(size, _)| *size);
        let (Some(&(small, least)), Some(&(large, most))) = (opened.first(), opened.last()) else {
            return Vec::new();
        };
        let longest = opened.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
        let ratio = most / least;
        vec![
            Gate {
                case: "sizes",
                demand: format!("second start of each size: at most {OPEN_MS} ms to open"),
                found: format!("{longest:.3} ms at most, {small} to {large}"),
                holds: opened.iter().all(|(_, ms)| *ms <= OPEN_MS),
            },
            Gate {
                case: "sizes",
                demand: format!(
                    "second start of the largest size: at most {OPEN_RATIO} times the smallest's time to open"
                ),
                found: format!("{ratio:.2} ({most:.3} ms of {large}, {least:.3} ms of {small})"),
                holds: ratio <= OPEN_RATIO,
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: &'static str, size: Bytes, wall: [f64; 2], open: f64) -> SizeRow {
        let wall_ms = Spread { median: wall[0], min: wall[0], max: wall[1] };
        let open_ms = Some(Spread { median: open, min: open, max: open });
        SizeRow { side: "megapage", size_bytes: size.0, start, wall_ms, open_ms }
    }

    fn curve(opened: [f64; 2]) -> Curve {
        let starts = vec![
            row("cold", Bytes::mib(64), [4.0, 5.0], 3.0),
            row("second", Bytes::mib(64), [1.0, 4.5], opened[0]),
            row("cold", Bytes::gib(1), [50.0, 60.0], 45.0),
            row("second", Bytes::gib(1), [1.0, 2.0], opened[1]),
        ];
        Curve { pays: pays(&starts), starts, left_out: Vec::new() }
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_what_there_is_room_for_takes_its_place() {
        let (fit, left_out) = fitting(Bytes::gib(16), Bytes::gib(20));
        assert_eq!((fit.len(), fit.last(), left_out.len()), (7, Some(&Bytes::gib(16)), 0));
        let (fit, left_out) = fitting(Bytes::gib(16), Bytes::gib(9) + Bytes::mib(300));
        assert_eq!(fit.last(), Some(&Bytes::gib(9)));
        assert!(left_out[0].starts_with("16 GiB left out: "), "{left_out:?}");
        let (fit, left_out) = fitting(Bytes::gib(16), Bytes::mib(700));
        assert_eq!((fit.last(), left_out.len()), (Some(&Bytes::mib(256)), 3));
        let (fit, _) = fitting(Bytes::mib(96), Bytes::gib(1));
        assert_eq!(fit, [4, 16, 64, 96].map(Bytes::mib));
    }

    #[test]
    fn it_pays_from_where_no_run_is_slower_than_a_cold_one() {
        // With 64 MiB the slowest second start takes longer than the fastest cold one.
        let found = &curve([0.1, 0.1]).pays[0];
        assert_eq!((found.from_bytes, found.open_from_bytes), (Some(1 << 30), Some(64 << 20)));
        let starts =
            [row("cold", Bytes::gib(1), [1.0, 2.0], 1.0), row("second", Bytes::gib(1), [1.5, 1.6], 1.0)];
        assert_eq!(pays(&starts)[0].from_bytes, None);
    }

    #[test]
    fn a_longer_opening_fails_the_gates() {
        let holds = |opened| curve(opened).gates().iter().map(|gate| gate.holds).collect::<Vec<_>>();
        assert_eq!(holds([0.1, 0.2]), [true, true]);
        assert_eq!(holds([0.1, 0.25]), [true, false]);
        assert_eq!(holds([0.35, 0.35]), [false, true]);
    }
}
