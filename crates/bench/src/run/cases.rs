//! The benches, their cases, and how much memory each takes.

use super::Options;
use crate::workload::{access, release, retrieval};
use anyhow::{Result, bail};
use megapage_units::Bytes;

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bench {
    /// Random access to memory of three kinds, and what it costs to allocate.
    Access,
    /// Music retrieval over an inverted index.
    Retrieval(retrieval::Options),
    /// Memory released after most of it is freed.
    Release(ReleaseOptions),
    /// A program with nothing to gain.
    Idle,
    /// What it costs to start.
    Startup,
}

impl Bench {
    /// As on the command line.
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

/// How memory is waited for after most of it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseOptions {
    /// Milliseconds from the last free to the reading.
    pub wait_ms: u64,
    /// Make no call to the allocator in the meantime.
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
    /// How often one run starts the program; the median of them counts.
    pub(super) repeats: u32,
    /// Memory that the workload holds, allocators' overhead included.
    pub(super) memory: Bytes,
    /// The pool that a peer of hugetlb pages is given: more, for some allocators take it by the gigabyte.
    pub(super) pool: Bytes,
}

/// A program start takes about a millisecond: many make one run.
const STARTS_PER_RUN: u32 = 100;

/// The cases that `options` ask for.
pub(super) fn select(options: &Options) -> Result<Vec<Case>> {
    let all = all(options);
    if let Some(unknown) = options.cases.iter().find(|name| all.iter().all(|case| case.name != **name)) {
        let known: Vec<_> = all.iter().map(|case| case.name).collect();
        let bench = options.bench.name();
        bail!("'{unknown}' is no case of bench {bench}; its cases are {}", known.join(", "));
    }
    let chosen = |case: &Case| options.cases.is_empty() || options.cases.iter().any(|name| name == case.name);
    Ok(all.into_iter().filter(chosen).collect())
}

fn all(options: &Options) -> Vec<Case> {
    let bench = options.bench.name();
    let scaled = |bytes: Bytes| Bytes((bytes.0 as f64 * options.scale) as u64);
    let scale = ["--scale".to_string(), options.scale.to_string()];
    let case = |name: &'static str, memory: Bytes| {
        let mut arguments = vec![bench.to_string()];
        if name != bench {
            arguments.push(name.into());
        }
        let title = arguments.join(" ");
        arguments.extend(scale.clone());
        Case { name, title, arguments, repeats: 1, memory, pool: pool_for(memory) }
    };
    match options.bench {
        Bench::Access => access::Case::ALL
            .iter()
            .map(|kind| {
                let memory = match kind {
                    access::Case::Small => Bytes::mib(1100),
                    access::Case::Array => Bytes::mib(4100),
                    access::Case::Map => Bytes::mib(1400),
                };
                case(kind.name(), scaled(memory))
            })
            .collect(),
        Bench::Release(asked) => release::Case::ALL
            .iter()
            .map(|kind| {
                let mut case = case(kind.name(), scaled(Bytes::mib(1100)));
                case.arguments.push(format!("--wait={}", asked.wait_ms));
                if asked.quiet {
                    case.arguments.push("--quiet".into());
                }
                case
            })
            .collect(),
        Bench::Idle => vec![case(bench, Bytes::mib(16))],
        Bench::Startup => {
            let mut startup = case(bench, Bytes::mib(16));
            startup.arguments = vec![bench.into()];
            startup.repeats = scaled_starts(options.scale);
            vec![startup]
        }
        Bench::Retrieval(asked) => vec![retrieval_case(bench, asked)],
    }
}

fn scaled_starts(scale: f64) -> u32 {
    ((f64::from(STARTS_PER_RUN) * scale) as u32).clamp(1, 10 * STARTS_PER_RUN)
}

fn retrieval_case(bench: &'static str, options: retrieval::Options) -> Case {
    let retrieval::Options { size, threads, queries, seed, noise } = options;
    // Beside the postings: the table of lists (24 bytes for each of 2^24), and for each thread the counts
    // (250,000 x 8,192 bytes); both in proportion below 1 GiB. Allocators add a few per cent to the postings.
    let share = (size.0 as f64 / Bytes::gib(1).0 as f64).min(1.0);
    let beside = (24 << 24) as f64 + threads.get() as f64 * (250_000u64 << 13) as f64;
    let memory = Bytes(size.0 + size.0 / 16 + (beside * share) as u64);
    let arguments = [
        bench.to_string(),
        format!("--size={}", size.0),
        format!("--threads={threads}"),
        format!("--queries={queries}"),
        format!("--seed={seed}"),
        format!("--noise={noise}"),
    ];
    let title = format!("retrieval {size}");
    Case { name: bench, title, arguments: arguments.into(), repeats: 1, memory, pool: pool_for(memory) }
}

/// A tenth more than the workload takes, and the 1 GiB unit in which some allocators take hugetlb pages.
fn pool_for(memory: Bytes) -> Bytes {
    let unit = if memory < Bytes::mib(512) { Bytes::mib(64) } else { Bytes::gib(1) };
    memory + Bytes(memory.0 / 10) + unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    fn memory_is_as_the_workload_takes_it() {
        let options = retrieval::Options {
            size: Bytes::gib(8),
            threads: NonZeroUsize::new(2).unwrap(),
            queries: 1,
            seed: 1,
            noise: 0.5,
        };
        // Measured on glibc: 13.3 GB resident, of which 0.4 are page-size rounding of the small lists.
        let memory = retrieval_case("retrieval", options).memory.0 as f64 / 1e9;
        assert!((13.0..14.0).contains(&memory), "{memory}");
    }
}
