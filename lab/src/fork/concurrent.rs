//! Threads that start children at the same time: `megapage-lab-workload concurrent-forks`.

use super::heaps::{Case, Row};
use super::latency::{Latency, Launches};
use super::native::BESIDES;
use crate::bench::Spread;
use crate::workload::concurrent_forks::Found;
use crate::workload::fork::Pages;
use megapage_units::{BASE_PAGE, Bytes};
use serde::Serialize;

/// Numbers of threads that start children at the same time.
const THREADS: [u32; 4] = [1, 2, 4, 8];

/// One heap on one kind of pages.
#[derive(Clone, Debug, Serialize)]
pub struct ConcurrentRow {
    /// The heap.
    pub heap_bytes: u64,
    /// The wanted kind of pages: base, thp, hugetlb-private, hugetlb-shared, dontfork.
    pub pages: &'static str,
    /// The share of it that was on pages of 2 MiB, 0 to 1.
    pub huge_share: Option<Spread>,
    /// One for each number of threads. Empty if no run had a result.
    pub by_threads: Vec<ThreadsRow>,
    /// Faults. Empty if there were none.
    pub notes: Vec<String>,
}

/// A number of threads, each of which starts a child by fork and execve, waits for its end, and
/// starts the next.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ThreadsRow {
    /// The number of threads.
    pub threads: u32,
    /// The time of one child: from the fork until the program that was started had ended.
    pub whole: Latency,
    /// Children of all threads together.
    pub children_per_second: Spread,
}

impl ConcurrentRow {
    pub(super) fn of(row: Row<Found>) -> ConcurrentRow {
        let by_threads = THREADS.iter().filter_map(|threads| {
            let mut launches = Launches::default();
            let runs = || row.found.iter().flat_map(|found| &found.by_threads);
            let of = || runs().filter(|one| one.threads == *threads);
            of().for_each(|one| launches.add(&one.whole_ns));
            Some(ThreadsRow {
                threads: *threads,
                whole: launches.latency()?,
                children_per_second: Spread::of(of().map(|one| one.children_per_second()))?,
            })
        });
        ConcurrentRow {
            heap_bytes: row.size.0,
            pages: row.pages.name(),
            by_threads: by_threads.collect(),
            huge_share: Spread::of(row.found.iter().map(|found| found.huge_share)),
            notes: row.notes,
        }
    }

    /// Returns the children a second of `threads` threads, the median over the runs.
    pub(super) fn rate(&self, threads: u32) -> Option<f64> {
        let row = self.by_threads.iter().find(|row| row.threads == threads)?;
        Some(row.children_per_second.median)
    }
}

/// Returns the most that a heap of this size takes at once, with the page tables of one child for
/// each thread.
pub(super) fn memory(size: Bytes) -> Bytes {
    let page_tables = size.0 / BASE_PAGE as u64 * size_of::<u64>() as u64;
    let most = THREADS.iter().max().map_or(0, |most| u64::from(*most));
    size + Bytes(page_tables * (1 + most)) + BESIDES
}

/// Milliseconds for which threads start children.
pub(super) struct Concurrent {
    pub(super) slice: u64,
}

impl Case for Concurrent {
    type Found = Found;
    const PREFIX: &'static str = "concurrent ";

    fn arguments(&self, size: Bytes, pages: Pages) -> Vec<String> {
        let threads = THREADS.map(|threads| threads.to_string()).join(",");
        let (size, slice) = (size.0.to_string(), self.slice.to_string());
        let words =
            ["concurrent-forks", pages.name(), "--size", &size, "--threads", &threads, "--slice", &slice];
        words.map(String::from).into()
    }

    /// Returns the pages of the heap: nothing is written while a child lives.
    fn pool(size: Bytes, pages: Pages) -> Bytes {
        if pages.kind().is_hugetlb() { size } else { Bytes::ZERO }
    }

    fn brief(found: &Found) -> String {
        let rates =
            found.by_threads.iter().map(|one| format!("{}: {:.0}", one.threads, one.children_per_second()));
        let rates = rates.collect::<Vec<_>>().join(", ");
        format!("children a second by threads {rates}; {:.0} % huge", 100.0 * found.huge_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::concurrent_forks::Concurrent as OfThreads;

    fn run(children: usize, ns: u64) -> Found {
        let of = |threads, ns| OfThreads { threads, whole_ns: vec![ns; children], elapsed_ns: 1_000_000_000 };
        Found { heap_bytes: 4 << 20, huge_share: 1.0, by_threads: vec![of(4, ns), of(2, 10 * ns)] }
    }

    #[test]
    fn each_number_of_threads_has_the_children_of_its_runs() {
        let found = vec![run(10, 7), run(30, 5), run(20, 6)];
        let row = ConcurrentRow::of(Row { size: Bytes::mib(4), pages: Pages::Thp, found, notes: Vec::new() });
        let threads: Vec<u32> = row.by_threads.iter().map(|one| one.threads).collect();
        assert_eq!((threads, row.rate(1)), (vec![2, 4], None));
        assert_eq!(row.by_threads[1].children_per_second, Spread { median: 20.0, min: 10.0, max: 30.0 });
        assert_eq!(row.rate(4), Some(20.0));
        let whole = row.by_threads[1].whole;
        assert_eq!((whole.median_ns, whole.p99_ns), (Spread { median: 6.0, min: 5.0, max: 7.0 }, 7));
        assert_eq!(row.by_threads[0].whole.p99_ns, 70);
    }

    #[test]
    fn a_row_without_a_result_has_no_threads() {
        let notes = vec!["no pool".to_string()];
        let row =
            ConcurrentRow::of(Row { size: Bytes::mib(4), pages: Pages::Base, found: Vec::new(), notes });
        assert!(row.by_threads.is_empty() && row.huge_share.is_none(), "{row:?}");
    }

    #[test]
    fn pages_of_the_pool_are_there_once() {
        assert_eq!(Concurrent::pool(Bytes::gib(1), Pages::HugetlbPrivate), Bytes::gib(1));
        assert_eq!(Concurrent::pool(Bytes::gib(1), Pages::Dontfork), Bytes::ZERO);
        assert_eq!(memory(Bytes::gib(1)), Bytes::gib(1) + Bytes::mib(2 * 9) + BESIDES);
    }
}
