//! Benches, their cases, and the memory that each takes.

use super::Asked;
use crate::experiment;
use crate::workload::access;
use crate::workload::{release, retrieval};
use anyhow::Result;
use megapage_units::Bytes;
use std::time::Duration;

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bench {
    /// Random access to memory of three kinds, and the cost of allocating it.
    Access,
    /// Music retrieval over an inverted index.
    Retrieval(retrieval::Options),
    /// Memory released after most of it is freed.
    Release(ReleaseOptions),
    /// A program with nothing to gain.
    Idle,
    /// The cost of a program start.
    Startup,
}

impl Bench {
    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Bench::Access => "access",
            Bench::Retrieval(_) => "retrieval",
            Bench::Release(_) => "release",
            Bench::Idle => "idle",
            Bench::Startup => "startup",
        }
    }
}

/// Options of the wait for the release of memory after most of it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct ReleaseOptions {
    /// Milliseconds from the last free to the reading, up to a minute
    #[arg(long = "wait", default_value_t = 1500, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub wait_ms: u64,
    /// Make no call to the allocator in the meantime
    #[arg(long)]
    pub quiet: bool,
}

/// One case of a bench.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Its name within the bench.
    pub(super) name: &'static str,
    /// Bench and case.
    pub(super) title: String,
    /// The workload program's arguments.
    pub(super) arguments: Vec<String>,
    /// The starts of the program in one run; the median of them counts.
    pub(super) repeats: u32,
    /// Memory that the workload holds, allocators' overhead included.
    pub(super) memory: Bytes,
    /// The pool that a peer of hugetlb pages gets: more, because some allocators take it by the
    /// gigabyte.
    pub(super) pool: Bytes,
    /// The pages of 1 GiB that a heap on them gets; `None` if the case has nothing to show on them.
    pub(super) gigantic: Option<Gigantic>,
    /// The longest time of a run; a longer one is killed and counted as failed.
    pub(super) longest: Duration,
}

/// Pages that a heap on 1 GiB pages takes from the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gigantic {
    /// Pages of 1 GiB.
    pub(super) pages: u64,
    /// Memory in pages of 2 MiB, for the parts that do not fill a whole GiB.
    pub(super) beside: Bytes,
}

impl Gigantic {
    /// Returns the pages for a workload that takes `memory`, with `blocks` separate blocks that can
    /// be larger than 1 GiB. Each of these has 1 GiB pages for its whole GiB, and smaller ones for
    /// the remainder. Smaller blocks share arenas of whole GiB that have room.
    fn of(memory: Bytes, blocks: u64) -> Gigantic {
        let gib = Bytes::gib(1).0;
        let beside = memory.min(Bytes(blocks.saturating_mul(gib)));
        Gigantic { pages: memory.0.div_ceil(gib).max(1), beside }
    }
}

/// The longest run of a case of a few GiB.
const SHORT_RUN: Duration = Duration::from_secs(600);
/// Additional time for each GiB: to find the memory and to fill it, on a slow machine.
const LONGEST_PER_GIB: Duration = Duration::from_secs(20);

/// Program starts of one run: each takes about a millisecond.
const STARTS_PER_RUN: u32 = 100;

/// Returns the cases that were asked for.
pub(super) fn select(asked: &Asked<'_>) -> Result<Vec<Case>> {
    let what = format!("case of {}", asked.bench.name());
    experiment::select(&all(asked), |case| case.name, asked.cases, &what)
}

fn all(asked: &Asked<'_>) -> Vec<Case> {
    let bench = asked.bench.name();
    let scaled = |bytes: Bytes| Bytes((bytes.0 as f64 * asked.scale) as u64);
    let scale = ["--scale".to_string(), asked.scale.to_string()];
    let case = |name: &'static str, memory: Bytes| {
        let mut arguments = vec![bench.to_string()];
        if name != bench {
            arguments.push(name.into());
        }
        let title = arguments.join(" ");
        arguments.extend(scale.clone());
        let pool = pool_for(memory);
        Case { name, title, arguments, repeats: 1, memory, pool, gigantic: None, longest: SHORT_RUN }
    };
    match asked.bench {
        Bench::Access => access::Case::ALL
            .iter()
            .map(|kind| {
                let case = case(kind.name(), kind.memory(asked.scale));
                // The array, and the buckets of the map.
                Case { gigantic: Some(Gigantic::of(case.memory, 1)), ..case }
            })
            .collect(),
        Bench::Release(wait) => release::Case::ALL
            .iter()
            .map(|kind| {
                let mut case = case(kind.name(), scaled(Bytes::mib(1100)));
                case.arguments.push(format!("--wait={}", wait.wait_ms));
                if wait.quiet {
                    case.arguments.push("--quiet".into());
                }
                case
            })
            .collect(),
        Bench::Idle => vec![case(bench, Bytes::mib(16))],
        Bench::Startup => {
            let mut startup = case(bench, Bytes::mib(16));
            startup.arguments = vec![bench.into()];
            startup.repeats = scaled_starts(asked.scale);
            vec![startup]
        }
        Bench::Retrieval(search) => vec![retrieval_case(bench, search)],
    }
}

fn scaled_starts(scale: f64) -> u32 {
    ((f64::from(STARTS_PER_RUN) * scale) as u32).clamp(1, 10 * STARTS_PER_RUN)
}

/// Returns the retrieval case for a search of this size.
pub(super) fn retrieval_case(bench: &'static str, options: retrieval::Options) -> Case {
    let retrieval::Options { size, threads, queries, seed, noise } = options;
    let memory = retrieval::memory(size, threads);
    let arguments = [
        bench.to_string(),
        format!("--size={}", size.0),
        format!("--threads={threads}"),
        format!("--queries={queries}"),
        format!("--seed={seed}"),
        format!("--noise={noise}"),
    ];
    let title = format!("retrieval {size}");
    let longest = SHORT_RUN + LONGEST_PER_GIB * u32::try_from(memory.0 >> 30).unwrap_or(u32::MAX);
    let pool = pool_for(memory);
    // The table of lists, and the counts of each thread.
    let gigantic = Some(Gigantic::of(memory, threads.get() as u64 + 1));
    Case { name: bench, title, arguments: arguments.into(), repeats: 1, memory, pool, gigantic, longest }
}

/// Returns advice on a request that fits into `available` bytes, for a case that does not.
pub(super) fn instead(asked: &Asked<'_>, available: Bytes) -> String {
    let Bench::Retrieval(search) = asked.bench else { return "use a smaller --scale".into() };
    match retrieval::largest(available, search.threads) {
        Some(size) => format!("the largest that fits is --size {}m", size.0 >> 20),
        None => format!("with {} threads none fits: use fewer --threads", search.threads),
    }
}

/// Returns a tenth more than the workload takes, and the 1 GiB unit in which some allocators take
/// hugetlb pages.
fn pool_for(memory: Bytes) -> Bytes {
    let unit = if memory < Bytes::mib(512) { Bytes::mib(64) } else { Bytes::gib(1) };
    memory + Bytes(memory.0 / 10) + unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_of_gigantic_pages_is_given_whole_ones_and_a_remainder() {
        let of = |mib: u64, blocks| Gigantic::of(Bytes::mib(mib), blocks);
        assert_eq!(of(4100, 1), Gigantic { pages: 5, beside: Bytes::gib(1) });
        assert_eq!(of(8, 1), Gigantic { pages: 1, beside: Bytes::mib(8) });
        assert_eq!(of(13 << 10, 3), Gigantic { pages: 13, beside: Bytes::gib(3) });
    }
}
