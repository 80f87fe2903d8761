//! Time until a program has started with its memory, and until an index answers again.

use super::Bench;
use super::allocators::AllocatorRow;
use super::dpdk::Unlink;
use super::process::{Took, spread, timed};
use super::sizes::Curve;
use crate::bench::{Gate, Spread};
use crate::workload::measurement::Measurement;
use anyhow::{Context, Result, ensure};
use megapage_units::Bytes;
use serde::Serialize;
use std::process::Command;

/// Largest share of DPDK's time for a start with reuse.
const SECOND_RATIO: f64 = 0.25;
/// Longest time of opening one file, of any size: DPDK's remapping of 32 GB took that (seed 003).
pub(super) const OPEN_MS: f64 = 0.3;
/// Longest time until an index answers again.
const ANSWER_MS: f64 = 1000.0;
/// Queries whose answers are compared.
const QUERIES: u32 = 500;
/// Memory that stands for a start without memory.
const SMALL: Bytes = Bytes::mib(64);

/// Findings of the experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Restart {
    /// Memory of a program that starts.
    pub size_bytes: u64,
    /// One for each side, layout and kind of start.
    pub starts: Vec<StartRow>,
    /// Starts over sizes; `None` if they were not asked for.
    pub sizes: Option<Curve>,
    /// The index; `None` if it was not asked for.
    pub index: Option<IndexReport>,
    /// The same index built on allocators' heaps, for a program that does not find it again.
    pub rebuilds: Vec<AllocatorRow>,
}

/// A start.
#[derive(Clone, Debug, Serialize)]
pub struct StartRow {
    /// `megapage` or `dpdk`.
    pub side: &'static str,
    /// `single file` or `file per page`.
    pub layout: &'static str,
    /// `cold`: leftovers are removed (existing); `first`: files for reuse are made (never);
    /// `second`: they are reused.
    pub start: &'static str,
    /// Its memory.
    pub size_bytes: u64,
    /// From the start of the process to its end.
    pub wall_ms: Spread,
    /// Processor time in user mode.
    pub user_ms: Spread,
    /// Processor time in the kernel.
    pub system_ms: Spread,
    /// Opening the segment alone, as the program reports it; `None` for DPDK, which does not report
    /// it.
    pub open_ms: Option<Spread>,
    /// The same for each GiB.
    pub map_ms_per_gib: Option<Spread>,
}

/// The retrieval index, stored in a segment.
#[derive(Clone, Debug, Serialize)]
pub struct IndexReport {
    /// Bytes of its postings.
    pub postings_bytes: u64,
    /// Queries whose answers are compared.
    pub queries: u32,
    /// The time to build it, and to answer the first query; once.
    pub rebuild_first_answer_ms: f64,
    /// The time from the start of the program to the first answer, with the index found again.
    pub restart_first_answer_ms: Spread,
    /// The time of all queries of a restart.
    pub restart_all_answers_ms: Spread,
    /// True if every restart gave the answers of the rebuild, and of an index on the heap.
    pub same_answers: bool,
    /// The share of songs that were found.
    pub recall: f64,
}

impl Restart {
    fn start(&self, side: &str, layout: &str, size: u64) -> Option<&StartRow> {
        self.starts.iter().find(|row| {
            row.side == side && row.layout == layout && row.start == "second" && row.size_bytes == size
        })
    }

    pub(super) fn gates(&self) -> Vec<Gate> {
        let mut gates = Vec::new();
        for layout in ["single file", "file per page"] {
            let Some(ours) = self.start("megapage", layout, self.size_bytes) else { continue };
            if let Some(theirs) = self.start("dpdk", layout, self.size_bytes) {
                let (ours, theirs) = (ours.wall_ms.median, theirs.wall_ms.median);
                gates.push(Gate {
                    case: "starts",
                    demand: format!("second start, {layout}: at most {SECOND_RATIO} of dpdk's"),
                    found: format!("{:.3} ({ours:.1} of {theirs:.1} ms)", ours / theirs),
                    holds: ours <= SECOND_RATIO * theirs,
                });
            }
            // With a file for each page, each file has to be opened and mapped: its value is shown,
            // and cannot be as low.
            if let Some(open) = ours.open_ms.filter(|_| layout == "single file") {
                let small = SMALL.min(Bytes(self.size_bytes));
                let beside = self.start("megapage", layout, small.0).and_then(|row| row.open_ms);
                let beside =
                    beside.map_or_else(String::new, |of| format!("; {:.2} ms of {small}", of.median));
                gates.push(Gate {
                    case: "starts",
                    demand: format!(
                        "second start, {layout}: at most {OPEN_MS} ms to open, whatever the size"
                    ),
                    found: format!("{:.2} ms of {}{beside}", open.median, Bytes(self.size_bytes)),
                    holds: open.median <= OPEN_MS,
                });
            }
        }
        gates.extend(self.sizes.iter().flat_map(Curve::gates));
        if let Some(index) = &self.index {
            let first = index.restart_first_answer_ms.median;
            gates.push(Gate {
                case: "index",
                demand: format!("it answers again within {ANSWER_MS} ms"),
                found: format!("{first:.1} ms, of {:.0} ms for a rebuild", index.rebuild_first_answer_ms),
                holds: first <= ANSWER_MS,
            });
            gates.push(Gate {
                case: "index",
                demand: "the same answers".into(),
                found: if index.same_answers { "the same" } else { "others" }.into(),
                holds: index.same_answers,
            });
        }
        gates
    }
}

/// The starts of one side with files of one layout, over all rounds.
struct Series {
    side: &'static str,
    single: bool,
    size: Bytes,
    /// Cold, first, second.
    runs: [Vec<Took>; 3],
}

const STARTS: [&str; 3] = ["cold", "first", "second"];

impl Series {
    fn layout(&self) -> &'static str {
        if self.single { "single file" } else { "file per page" }
    }

    fn rows(&self) -> Vec<StartRow> {
        let rows = STARTS.iter().zip(&self.runs).filter(|(_, runs)| !runs.is_empty());
        let rows = rows.map(|(start, runs)| StartRow {
            side: self.side,
            layout: self.layout(),
            start,
            size_bytes: self.size.0,
            wall_ms: spread(runs, |took| took.wall_ms),
            user_ms: spread(runs, |took| took.user_ms),
            system_ms: spread(runs, |took| took.system_ms),
            open_ms: (self.side == "megapage")
                .then(|| spread(runs, |took| opened_ms(took).unwrap_or(f64::NAN))),
            map_ms_per_gib: (self.side == "megapage").then(|| {
                let gib = self.size.0 as f64 / f64::from(1 << 30);
                spread(runs, |took| opened_ms(took).unwrap_or(f64::NAN) / gib)
            }),
        });
        rows.collect()
    }
}

/// Returns the time of opening that the workload reports.
pub(super) fn opened_ms(took: &Took) -> Option<f64> {
    let measured: Measurement = serde_json::from_str(&took.printed).ok()?;
    Some(measured.phases.0.get("open")?.wall_ns as f64 / 1e6)
}

pub(super) fn starts(bench: &mut Bench<'_>, size: Bytes) -> Result<Vec<StartRow>> {
    let mut all: Vec<Series> = Vec::new();
    for single in [true, false] {
        for side in ["megapage", "dpdk"] {
            if side == "megapage" || bench.dpdk.is_some() {
                all.push(Series { side, single, size, runs: Default::default() });
            }
        }
    }
    for side in ["megapage", "dpdk"] {
        if side == "megapage" || bench.dpdk.is_some() {
            all.push(Series { side, single: true, size: SMALL.min(size), runs: Default::default() });
        }
    }
    // In the round that does not count the host finds the memory.
    for round in 0..=bench.runs {
        for series in &mut all {
            for (number, start) in STARTS.iter().enumerate() {
                // A second start has the files of the first one.
                if *start != "second" {
                    bench.mounted.clear()?;
                }
                let unlink = if *start == "cold" { Unlink::Existing } else { Unlink::Never };
                let request = Start {
                    side: series.side,
                    size: series.size,
                    single: series.single,
                    unlink,
                    populate: false,
                };
                let took = run(bench, &request)?;
                let line = format!(
                    "round {round} of {}: {} {} {} {start}: {:.1} ms",
                    bench.runs,
                    series.side,
                    series.size,
                    series.layout(),
                    took.wall_ms
                );
                (bench.progress)(&line);
                let counts = round > 0 && (series.size == size || *start == "second");
                if counts {
                    series.runs[number].push(took);
                }
            }
        }
    }
    bench.mounted.clear()?;
    Ok(all.iter().flat_map(Series::rows).collect())
}

/// The way in which a program starts.
pub(super) struct Start {
    /// `megapage` or `dpdk`.
    pub side: &'static str,
    /// Its memory.
    pub size: Bytes,
    /// True if that is one file.
    pub single: bool,
    /// Treatment of existing files.
    pub unlink: Unlink,
    /// True if it fills the page tables at once; only a megapage start can do without.
    pub populate: bool,
}

/// Starts the program of one side, and waits for its end.
pub(super) fn run(bench: &Bench<'_>, start: &Start) -> Result<Took> {
    let directory = bench.mounted.side(start.side);
    match (&bench.dpdk, start.side) {
        (Some(dpdk), "dpdk") => {
            let mut command = dpdk.command(&directory, start.size, start.unlink, start.single);
            let took = timed(&mut command, "quit\n", bench.signals)?;
            ensure!(took.printed.contains("RTE>>"), "dpdk-test did not come up: {}", took.printed.trim());
            Ok(took)
        }
        _ => {
            let mut command = Command::new(&bench.place.workload);
            command.args(["keep", "start", "--size", &start.size.0.to_string()]);
            command.args(["--unlink", start.unlink.name()]).arg("--directory").arg(&directory);
            if !start.single {
                command.arg("--file-per-page");
            }
            if start.populate {
                command.arg("--populate");
            }
            let took = timed(&mut command, "", bench.signals)?;
            opened_ms(&took).with_context(|| format!("the workload said '{}'", took.printed.trim()))?;
            Ok(took)
        }
    }
}

/// Returns the arguments of the workload that builds the index on its heap.
pub(super) fn retrieval_arguments(size: Bytes) -> Vec<String> {
    let words = ["retrieval", "--size", &size.0.to_string(), "--queries", &QUERIES.to_string()];
    words.map(str::to_string).into()
}

pub(super) fn keep_index(bench: &mut Bench<'_>, size: Bytes) -> Result<IndexReport> {
    let once = |bench: &Bench<'_>, arguments: &[&str], kept: bool| -> Result<Measurement> {
        let mut command = Command::new(&bench.place.workload);
        command.args(arguments).args(["--size", &size.0.to_string(), "--queries", &QUERIES.to_string()]);
        if kept {
            command.arg("--directory").arg(bench.mounted.side("megapage"));
        }
        let took = timed(&mut command, "", bench.signals)?;
        serde_json::from_str(&took.printed)
            .with_context(|| format!("the workload said '{}'", took.printed.trim()))
    };
    let value = |found: &Measurement, name: &str| found.values.get(name).copied().unwrap_or(f64::NAN);
    (bench.progress)("index: building one on the heap, whose answers are compared");
    let on_heap = once(bench, &["retrieval"], false)?;
    bench.mounted.clear()?;
    (bench.progress)("index: building it in a segment");
    let rebuilt = once(bench, &["keep", "index", "--rebuild"], true)?;
    let mut restarts = Vec::new();
    for round in 0..=bench.runs {
        let found = once(bench, &["keep", "index"], true)?;
        ensure!(value(&found, "found") == 1.0, "the index was not found again");
        let first = value(&found, "first_answer_ms");
        (bench.progress)(&format!(
            "round {round} of {}: index answers again after {first:.1} ms",
            bench.runs
        ));
        restarts.push(found);
    }
    bench.mounted.clear()?;
    let same = |found: &Measurement| found.checksum == on_heap.checksum;
    let same_answers = same(&rebuilt) && restarts.iter().all(same);
    let of_counted = |value: &dyn Fn(&Measurement) -> f64| {
        Spread::of(restarts.iter().skip(1).map(value)).unwrap_or_default()
    };
    Ok(IndexReport {
        postings_bytes: (4.0 * value(&rebuilt, "postings")) as u64,
        queries: QUERIES,
        rebuild_first_answer_ms: value(&rebuilt, "first_answer_ms"),
        restart_first_answer_ms: of_counted(&|found| value(found, "first_answer_ms")),
        restart_all_answers_ms: of_counted(&|found| {
            found.phases.0.get("access").map_or(f64::NAN, |spent| spent.wall_ns as f64 / 1e6)
        }),
        same_answers,
        recall: value(&rebuilt, "recall"),
    })
}
