//! Children that several threads of a process with a large heap start at the same time.

use super::fork::{PROGRAM, Pages, huge_bytes};
use crate::machine::{Launch, TouchedHeap, launch};
use anyhow::{Context, Result, ensure};
use megapage_bench::statistics::nanoseconds;
use megapage_units::Bytes;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Work of the program.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the heap, all of them written.
    pub size: u64,
    /// Kind of pages of the heap.
    pub pages: Pages,
    /// Numbers of threads, one after the other with the same heap.
    pub threads: Vec<u32>,
    /// Time for which each thread starts children, at least one.
    pub slice: Duration,
}

/// Findings: the one line that the program prints, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The heap.
    pub heap_bytes: u64,
    /// The share of it on pages of 2 MiB, 0 to 1.
    pub huge_share: f64,
    /// One for each number of threads, in the order of the request.
    pub by_threads: Vec<Concurrent>,
}

/// Children of one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concurrent {
    /// Threads that started them.
    pub threads: u32,
    /// The time from the fork until the program had ended, of each: nanoseconds on the wall, thread
    /// by thread.
    pub whole_ns: Vec<u64>,
    /// The time from the first fork to the end of the last child: nanoseconds.
    pub elapsed_ns: u64,
}

impl Concurrent {
    /// Returns the children that started and ended in a second.
    pub fn children_per_second(&self) -> f64 {
        self.whole_ns.len() as f64 / (self.elapsed_ns as f64 / 1e9)
    }
}

/// Runs the workload.
pub fn run(options: &Options) -> Result<Found> {
    ensure!(!options.threads.is_empty() && !options.threads.contains(&0), "no threads");
    let size = usize::try_from(options.size).context("the heap")?;
    let heap = TouchedHeap::map(size, options.pages.kind())
        .with_context(|| format!("{} on {} pages", Bytes(options.size), options.pages.name()))?;
    let heap_bytes = heap.range().len().0;
    let huge_share = huge_bytes(&heap)? as f64 / heap_bytes as f64;
    let by_threads: Result<Vec<Concurrent>> =
        options.threads.iter().map(|threads| concurrent(*threads, options.slice)).collect();
    Ok(Found { heap_bytes, huge_share, by_threads: by_threads? })
}

/// Children of one thread.
struct Series {
    start: Instant,
    end: Instant,
    whole_ns: Vec<u64>,
}

fn concurrent(threads: u32, slice: Duration) -> Result<Concurrent> {
    // Without the barrier the first threads would fork while the last are created.
    let ready = Barrier::new(threads as usize);
    let all: Vec<io::Result<Series>> = thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads).map(|_| scope.spawn(|| series(&ready, slice))).collect();
        spawned.into_iter().map(|thread| thread.join().expect("a thread does not panic")).collect()
    });
    let all: Vec<Series> =
        all.into_iter().collect::<io::Result<_>>().with_context(|| format!("{threads} threads: fork"))?;
    let start = all.iter().map(|one| one.start).min().context("no threads")?;
    let end = all.iter().map(|one| one.end).max().context("no threads")?;
    Ok(Concurrent {
        threads,
        whole_ns: all.into_iter().flat_map(|one| one.whole_ns).collect(),
        elapsed_ns: nanoseconds(end - start),
    })
}

fn series(ready: &Barrier, slice: Duration) -> io::Result<Series> {
    let mut whole_ns = Vec::new();
    ready.wait();
    let start = Instant::now();
    loop {
        whole_ns.push(nanoseconds(launch(Launch::Fork, PROGRAM)?.whole));
        let end = Instant::now();
        if end - start >= slice {
            return Ok(Series { start, end, whole_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_the_children_of_all_threads() {
        let found = Concurrent { threads: 2, whole_ns: vec![9; 6], elapsed_ns: 1_500_000_000 };
        assert_eq!(found.children_per_second(), 4.0);
    }

    #[test]
    fn each_thread_starts_a_child_however_short_the_slice() {
        let found = concurrent(3, Duration::ZERO).unwrap();
        assert_eq!((found.threads, found.whole_ns.len()), (3, 3));
        assert!(found.whole_ns.iter().all(|ns| *ns > 0 && *ns <= found.elapsed_ns), "{found:?}");
    }

    #[test]
    fn nothing_is_started_by_no_threads() {
        for threads in [vec![], vec![1, 0]] {
            let options = Options { size: 1, pages: Pages::Base, threads, slice: Duration::ZERO };
            assert_eq!(run(&options).unwrap_err().to_string(), "no threads");
        }
    }
}
