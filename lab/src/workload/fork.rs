//! Children of a process with a large heap: the cost of starting them, and the cost of a living one
//! for its parent.

use crate::machine::{HeapPages, HeldChild, Launch, TouchedHeap, launch};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use megapage_bench::statistics::nanoseconds;
use megapage_kernel::smaps::{backing, read_own_smaps};
use megapage_kernel::{KernelRoot, process};
use megapage_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// Program that is started: it does nothing and exits with 0.
pub(super) const PROGRAM: &std::ffi::CStr = c"/bin/true";
/// Part of its heap to which the parent writes while a child lives. On private pages of the pool
/// these bytes are copied, for which the pool must have room.
pub const WINDOW: Bytes = Bytes::mib(512);
/// Ways to start a program, with their names.
pub const WAYS: [(&str, Launch); 3] =
    [("fork", Launch::Fork), ("vfork", Launch::Vfork), ("posix_spawn", Launch::PosixSpawn)];

megapage_units::named! {
    /// Kind of pages of the heap.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub enum Pages {
        /// Base pages.
        Base = "base",
        /// Transparent huge pages.
        Thp = "thp",
        /// Private pages of the pool of 2 MiB pages.
        HugetlbPrivate = "hugetlb-private",
        /// Shared ones.
        HugetlbShared = "hugetlb-shared",
        /// Base pages that children do not get (MADV_DONTFORK).
        Dontfork = "dontfork",
    }
}

impl Pages {
    /// Returns the kind of pages to ask the kernel for.
    pub const fn kind(self) -> HeapPages {
        match self {
            Pages::Base => HeapPages::Base,
            Pages::Thp => HeapPages::Thp,
            Pages::HugetlbPrivate => HeapPages::HugetlbPrivate,
            Pages::HugetlbShared => HeapPages::HugetlbShared,
            Pages::Dontfork => HeapPages::BaseDontFork,
        }
    }
}

/// Work of the program.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the heap, all of them written.
    pub size: u64,
    /// Kind of pages of the heap.
    pub pages: Pages,
    /// Children that are started in each way.
    pub launches: u32,
    /// Pages that the parent writes while a child lives.
    pub writes: usize,
}

/// Findings: the one line that the program prints, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The heap.
    pub heap_bytes: u64,
    /// The share of it on pages of 2 MiB, 0 to 1.
    pub huge_share: f64,
    /// Page tables of the process (VmPTE), in bytes.
    pub page_tables_bytes: u64,
    /// Page tables of a child that holds a copy of the heap, in bytes.
    pub child_page_tables_bytes: u64,
    /// The times of each launch, by the name of the way. A way that this processor lacks is absent.
    pub launches: BTreeMap<String, Times>,
    /// The effects of a living child on the parent.
    pub after: After,
}

/// Times of launches, on the wall, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The time until the call returned: nanoseconds.
    pub call_ns: Vec<u64>,
    /// The time until the program had ended: nanoseconds.
    pub whole_ns: Vec<u64>,
}

/// Writes of the parent while a child holds a copy of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct After {
    /// The time of the fork.
    pub fork_ns: u64,
    /// The number of base pages that were written, each for the first time since the fork.
    pub writes: u64,
    /// The median time of a write.
    pub p50_ns: u64,
    /// The 99th percentile of it.
    pub p99_ns: u64,
    /// The 99.9th percentile of it.
    pub p999_ns: u64,
    /// The longest time of a write.
    pub max_ns: u64,
    /// The time of all writes together.
    pub total_ns: u64,
    /// Bytes that both processes shared before the writes, and not after them: they were copied.
    pub copied_bytes: u64,
    /// Bytes of the heap on huge pages before the fork.
    pub huge_before_bytes: u64,
    /// Bytes of the heap on huge pages when the child had ended.
    pub huge_after_bytes: u64,
}

/// The kernel's report on the heap.
struct Seen {
    huge: u64,
    shared: u64,
}

fn look(heap: &TouchedHeap) -> Result<Seen> {
    let range = heap.range();
    let mappings = read_own_smaps(&KernelRoot::live()).context("how this process's memory is backed")?;
    let own = || {
        let overlaps =
            |one: &megapage_units::VirtRange| one.start() < range.end() && range.start() < one.end();
        mappings.iter().filter(move |mapping| overlaps(&mapping.range))
    };
    let backed = backing(own());
    Ok(Seen {
        huge: (backed.thp + backed.hugetlb_2m + backed.hugetlb_1g).0,
        shared: own().map(|mapping| (mapping.shared + mapping.hugetlb_shared).0).sum(),
    })
}

/// Returns the bytes of the heap on huge pages.
pub(super) fn huge_bytes(heap: &TouchedHeap) -> Result<u64> {
    Ok(look(heap)?.huge)
}

/// Runs the workload.
pub fn run(options: Options) -> Result<Found> {
    ensure!(options.launches > 0 && options.writes > 0, "nothing to launch or to write");
    let size = usize::try_from(options.size).context("the heap")?;
    let heap = TouchedHeap::map(size, options.pages.kind())
        .with_context(|| format!("{} on {} pages", Bytes(options.size), options.pages.name()))?;
    let heap_bytes = heap.range().len().0;
    let mut found = Found {
        heap_bytes,
        huge_share: huge_bytes(&heap)? as f64 / heap_bytes as f64,
        page_tables_bytes: process::read_own_status(&KernelRoot::live())?.page_tables.0,
        ..Found::default()
    };
    for _ in 0..options.launches {
        for (name, how) in WAYS {
            let launched = match launch(how, PROGRAM) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => continue,
                launched => launched.with_context(|| name.to_string())?,
            };
            let times = found.launches.entry(name.into()).or_default();
            times.call_ns.push(nanoseconds(launched.call));
            times.whole_ns.push(nanoseconds(launched.whole));
        }
    }
    found.after = after(&heap, options.writes, &mut found.child_page_tables_bytes)?;
    Ok(found)
}

fn after(heap: &TouchedHeap, writes: usize, child_page_tables: &mut u64) -> Result<After> {
    let before = look(heap)?;
    let child = HeldChild::fork().context("fork")?;
    let shared = look(heap)?.shared;
    *child_page_tables = process::read_status(&KernelRoot::live(), child.pid())?.page_tables.0;
    let mut times = heap.write(WINDOW.0 as usize, writes);
    let copied = shared.saturating_sub(look(heap)?.shared);
    let fork_ns = nanoseconds(child.call());
    drop(child);
    times.sort_unstable();
    Ok(After {
        fork_ns,
        writes: times.len() as u64,
        p50_ns: percentile(&times, 50.0),
        p99_ns: percentile(&times, 99.0),
        p999_ns: percentile(&times, 99.9),
        max_ns: percentile(&times, 100.0),
        total_ns: times.iter().sum(),
        copied_bytes: copied,
        huge_before_bytes: before.huge,
        huge_after_bytes: huge_bytes(heap)?,
    })
}

/// Returns the least of the sorted values that is not below `percent` % of them; 0 if there are
/// none.
pub fn percentile(sorted: &[u64], percent: f64) -> u64 {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 50.0), 500);
        assert_eq!(percentile(&values, 99.9), 999);
        assert_eq!(percentile(&values, 100.0), 1000);
        assert_eq!((percentile(&[7], 50.0), percentile(&[], 50.0)), (7, 0));
    }
}
