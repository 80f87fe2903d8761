//! The laboratory's own program: `megapage-lab-workload fork`.

use super::heaps::{Case, Row};
use super::latency::{Latency, Launches};
use crate::bench::Spread;
use crate::workload::fork::{After, Found, Pages, WAYS, WINDOW};
use megapage_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// Base pages that are written while a child lives.
const WRITES: u32 = 20_000;
/// Memory of the program besides its heap.
pub(super) const BESIDES: Bytes = Bytes::mib(64);

/// One heap on one kind of pages.
#[derive(Clone, Debug, Serialize)]
pub struct NativeRow {
    /// The heap.
    pub heap_bytes: u64,
    /// The wanted kind of pages: base, thp, hugetlb-private, hugetlb-shared, dontfork.
    pub pages: &'static str,
    /// The share of it that was on pages of 2 MiB, 0 to 1.
    pub huge_share: Option<Spread>,
    /// Page tables of the process, in bytes.
    pub page_tables_bytes: Option<Spread>,
    /// Page tables of a child with a copy of the heap, in bytes.
    pub child_page_tables_bytes: Option<Spread>,
    /// The times until the call returned, by the name of the way (fork, vfork, posix_spawn).
    pub call: BTreeMap<&'static str, Latency>,
    /// The times until the program that was started had ended, by the same names.
    pub whole: BTreeMap<&'static str, Latency>,
    /// The effects of a living child on the process.
    pub after: Option<BTreeMap<String, Spread>>,
    /// Faults. Empty if there were none.
    pub notes: Vec<String>,
}

/// Returns the median and the ends over the runs of each value of [`After`], by its name.
fn over_runs(found: &[After]) -> Option<BTreeMap<String, Spread>> {
    let runs: Vec<_> = found.iter().filter_map(|after| serde_json::to_value(after).ok()).collect();
    let spread = |name: &String| Spread::of(runs.iter().filter_map(|run| run[name].as_f64()));
    let names = runs.first()?.as_object()?.keys();
    names.map(|name| Some((name.clone(), spread(name)?))).collect()
}

/// Returns the most that a heap of this size takes at once.
pub(super) fn memory(size: Bytes) -> Bytes {
    size + size.min(WINDOW) + BESIDES
}

/// Children that are started in each way in each run.
pub(super) struct Native {
    pub(super) launches: u32,
}

impl Case for Native {
    type Found = Found;
    const PREFIX: &'static str = "";

    fn arguments(&self, size: Bytes, pages: Pages) -> Vec<String> {
        let (size, launches, writes) = (size.0.to_string(), self.launches.to_string(), WRITES.to_string());
        let words = ["fork", pages.name(), "--size", &size, "--launches", &launches, "--writes", &writes];
        words.map(String::from).into()
    }

    /// Returns the pages of the heap. Memory that is written while a child lives is there twice.
    fn pool(size: Bytes, pages: Pages) -> Bytes {
        match pages {
            Pages::HugetlbPrivate => size + size.min(WINDOW),
            Pages::HugetlbShared => size,
            _ => Bytes::ZERO,
        }
    }

    fn brief(found: &Found) -> String {
        let ways = WAYS.iter().filter_map(|(name, _)| {
            let times = found.launches.get(*name)?;
            let median = Spread::of(times.whole_ns.iter().map(|ns| *ns as f64))?.median;
            Some(format!("{name} {:.2}", median / 1e6))
        });
        format!("{} ms, {:.0} % huge", ways.collect::<Vec<_>>().join(", "), 100.0 * found.huge_share)
    }
}

impl NativeRow {
    pub(super) fn of(row: Row<Found>) -> NativeRow {
        let spread = |value: fn(&Found) -> f64| Spread::of(row.found.iter().map(value));
        let latency = |of_calls: bool| {
            let each = WAYS.iter().filter_map(|(name, _)| {
                let mut launches = Launches::default();
                for times in row.found.iter().filter_map(|found| found.launches.get(*name)) {
                    launches.add(if of_calls { &times.call_ns } else { &times.whole_ns });
                }
                Some((*name, launches.latency()?))
            });
            each.collect()
        };
        let after: Vec<After> = row.found.iter().map(|found| found.after).collect();
        NativeRow {
            heap_bytes: row.size.0,
            pages: row.pages.name(),
            huge_share: spread(|found| found.huge_share),
            page_tables_bytes: spread(|found| found.page_tables_bytes as f64),
            child_page_tables_bytes: spread(|found| found.child_page_tables_bytes as f64),
            call: latency(true),
            whole: latency(false),
            after: over_runs(&after),
            notes: row.notes,
        }
    }
}
