//! Workloads of the laboratory, as a separate program: it prints one line of JSON, or follows lines
//! on its standard input.
//!
//! It stands for an ordinary program: it uses the system allocator, imports no fork(2), and starts
//! no other program. Only `fork` and `concurrent-forks`, which time that, make the bare system
//! call.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use megapage_lab::arguments::{scale, share};
use megapage_lab::persistent::memory_size;
use megapage_lab::workload::access;
use megapage_lab::workload::answer::Program;
use megapage_lab::workload::measurement::Measurement;
use megapage_lab::workload::{
    blocks, busy, concurrent_forks, first_touch, fork, idle, index, keep, pattern, probe, release, retrieval,
    service, steady,
};
use megapage_segment::{Layout, Unlink};
use megapage_units::Bytes;
use std::io::{self, BufReader};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const WORKLOAD: Program = Program("megapage-lab-workload");

/// A workload of an experiment; prints one line of JSON.
#[derive(Debug, Parser)]
#[command(name = "megapage-lab-workload", version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Allocate and touch memory, then read it at random.
    Access {
        /// The contents of the memory.
        #[arg(value_enum)]
        case: access::Case,
        /// Multiply sizes and accesses by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
    },
    /// Allocate 920 MB, free 80 % of it, wait, and see what is still resident.
    Release {
        /// The objects to free.
        #[arg(value_enum)]
        case: release::Case,
        /// Multiply sizes by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        /// Milliseconds to wait after the last free.
        #[arg(long, default_value_t = 1500)]
        wait: u64,
        /// Make no call to the allocator while waiting.
        #[arg(long)]
        quiet: bool,
    },
    /// Compute within the caches: nothing to gain from huge pages.
    Idle {
        /// Multiply the work by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
    },
    /// Do nothing: what it takes to start.
    Startup,
    /// Find songs by noisy excerpts in an inverted index.
    Retrieval(retrieval::Options),
    /// Reach 1 GiB in one way, over and over.
    Pattern {
        /// In which.
        #[arg(value_enum)]
        case: pattern::Case,
        /// Multiply the size by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        /// Units of work, of about 1 ms each.
        #[arg(long, default_value_t = 2000, conflicts_with = "seconds")]
        work: u64,
        /// Work for so long instead.
        #[arg(long)]
        seconds: Option<u64>,
        /// Say 'ready', then do as many units as each line on standard input asks for.
        #[arg(long, conflicts_with_all = ["work", "seconds"])]
        serve: bool,
    },
    /// Say 'ready', then follow the lines on standard input (go, pause, fault) and tell how far the
    /// work has come.
    Steady {
        /// How the memory is reached.
        #[arg(value_enum)]
        way: steady::Way,
        /// Bytes that are allocated and written.
        #[arg(long, default_value = "1g")]
        size: Bytes,
        /// Bytes that are worked in, at the highest addresses: a power of two, no more than the
        /// size.
        #[arg(long, default_value = "256m")]
        hot: Bytes,
        /// Milliseconds between two lines of progress.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        interval: u64,
        /// Stop working after so many units.
        #[arg(long)]
        units: Option<u64>,
    },
    /// Say 'ready', then follow the lines on standard input (go, pause, report) and time touches of
    /// the memory.
    Probe {
        /// Bytes that are allocated and written.
        #[arg(long, default_value = "1g")]
        size: Bytes,
        /// The share of base pages that hold more than zeros.
        #[arg(long, default_value_t = 1.0)]
        filled: f64,
    },
    /// Say 'ready', then serve requests that the kernel counts, until it is killed.
    Service {
        /// The work of a request.
        #[arg(value_enum)]
        kind: service::Kind,
        /// Its memory.
        #[arg(long, default_value = "64m")]
        size: Bytes,
        /// The share of a request that reaches the memory; of a cache, what an entry that it does
        /// not hold costs more: 0 to 1.
        #[arg(long, default_value_t = 1.0, value_parser = share)]
        share: f64,
    },
    /// Say 'ready', then keep every processor busy at nice 19, until it is killed.
    Busy,
    /// Allocate, write and free blocks of 64 bytes to 1 GiB.
    Blocks {
        /// Memory that they fit into, up to 16g.
        #[arg(long, default_value = "1g", value_parser = memory_size)]
        size: Bytes,
    },
    /// Start with memory that outlives the program.
    Keep {
        #[command(subcommand)]
        what: Keep,
    },
    /// Start children from a process with a large heap, and write while one lives.
    Fork {
        /// The pages of the heap.
        #[arg(value_enum)]
        pages: fork::Pages,
        /// Bytes of the heap.
        #[arg(long, default_value = "1g", value_parser = memory_size)]
        size: Bytes,
        /// Children that are started in each way.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        launches: u32,
        /// Base pages that are written while a child lives, each once.
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        writes: u32,
    },
    /// Start children from several threads of a process with a large heap at the same time.
    ConcurrentForks {
        /// The pages of the heap.
        #[arg(value_enum)]
        pages: fork::Pages,
        /// Bytes of the heap.
        #[arg(long, default_value = "1g", value_parser = memory_size)]
        size: Bytes,
        /// Numbers of threads, one after the other, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=64))]
        threads: Vec<u32>,
        /// Milliseconds for which each thread starts children.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
        slice: u64,
    },
    /// Allocate memory, and write to each 2 MiB of it for the first time.
    FirstTouch {
        /// Bytes, a multiple of 2 MiB.
        #[arg(long, default_value = "4g", value_parser = memory_size)]
        size: Bytes,
    },
}

#[derive(Debug, Subcommand)]
enum Keep {
    /// Open a segment, and end.
    Start(KeepArgs),
    /// Allocate and free in it, in blocks of 64 bytes to 1 GiB.
    Malloc(KeepArgs),
    /// Find songs with the index that an earlier start has left, or build it.
    Index {
        /// The directory for the segment, on a hugetlbfs.
        #[arg(long)]
        directory: PathBuf,
        /// Bytes of postings, up to 16g.
        #[arg(long, default_value = "4g", value_parser = memory_size)]
        size: Bytes,
        /// Threads that build and search.
        #[arg(long, default_value = "2")]
        threads: NonZeroUsize,
        /// Queries in all.
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
        queries: u32,
        /// Build the index again.
        #[arg(long)]
        rebuild: bool,
    },
}

#[derive(Debug, clap::Args)]
struct KeepArgs {
    /// The directory for the segment, on a hugetlbfs.
    #[arg(long)]
    directory: PathBuf,
    /// Its memory, up to 16g.
    #[arg(long, default_value = "4g", value_parser = memory_size)]
    size: Bytes,
    /// The fate of an earlier segment: removed (existing), or reused (never).
    #[arg(long, value_enum, default_value_t = UnlinkArg::Existing)]
    unlink: UnlinkArg,
    /// A file for each page, not one for all.
    #[arg(long)]
    file_per_page: bool,
    /// Fill the page tables for memory that is found again, too.
    #[arg(long)]
    populate: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UnlinkArg {
    Existing,
    Never,
}

impl KeepArgs {
    fn options(self) -> keep::Options {
        keep::Options {
            directory: self.directory,
            size: self.size,
            unlink: match self.unlink {
                UnlinkArg::Existing => Unlink::Existing,
                UnlinkArg::Never => Unlink::Never,
            },
            layout: if self.file_per_page { Layout::FilePerPage } else { Layout::SingleFile },
            populate: self.populate,
        }
    }
}

fn keep(what: Keep) -> Result<Measurement> {
    match what {
        Keep::Start(args) => keep::start(&args.options()),
        Keep::Malloc(args) => keep::malloc(&args.options()),
        Keep::Index { directory, size, threads, queries, rebuild } => {
            // The seed and the noise of `retrieval`, whose answers these are compared with.
            let search = retrieval::Options { size, threads, queries, seed: 1, noise: 0.5 };
            index::run(&index::PersistentOptions { search, directory, rebuild })
        }
    }
}

/// Exits with 0 if done; 1 if the retrieval found too few songs; 2 on bad input, or if the
/// workload's own check failed.
fn main() -> ExitCode {
    let measured = match Cli::parse().workload {
        Workload::Startup => return ExitCode::SUCCESS,
        Workload::Access { case, scale } => access::run(case, scale),
        Workload::Release { case, scale, wait, quiet } => {
            release::run(case, release::Options { scale, wait: Duration::from_millis(wait), trickle: !quiet })
        }
        Workload::Idle { scale } => idle::run(scale),
        Workload::Steady { way, size, hot, interval, units } => {
            let interval = Duration::from_millis(interval);
            let options = steady::Options { way, size: size.0, hot: hot.0, interval, units };
            return WORKLOAD
                .ended(steady::run(&options, BufReader::new(io::stdin()), io::stdout()).map(|_| ()));
        }
        Workload::Probe { size, filled } => {
            let options = probe::Options { size: size.0, filled };
            return WORKLOAD.ended(probe::run(&options, BufReader::new(io::stdin()), io::stdout()));
        }
        Workload::Service { kind, size, share } => {
            return WORKLOAD.ended(service::run(&service::Options { kind, size, share }, io::stdout()));
        }
        Workload::Busy => return WORKLOAD.ended(busy::run(io::stdout()).map(|never| match never {})),
        Workload::FirstTouch { size } => {
            return WORKLOAD.found(first_touch::run(size));
        }
        Workload::Fork { pages, size, launches, writes } => {
            let options = fork::Options { size: size.0, pages, launches, writes: writes as usize };
            return WORKLOAD.found(fork::run(options));
        }
        Workload::ConcurrentForks { pages, size, threads, slice } => {
            let slice = Duration::from_millis(slice);
            let options = concurrent_forks::Options { size: size.0, pages, threads, slice };
            return WORKLOAD.found(concurrent_forks::run(&options));
        }
        Workload::Retrieval(options) => retrieval::run(options),
        Workload::Blocks { size } => blocks::run(size),
        Workload::Keep { what } => keep(what),
        Workload::Pattern { case, scale, work, seconds, serve } => {
            let mut pattern = pattern::Pattern::prepare(case, scale);
            if serve {
                return WORKLOAD.ended(pattern.serve(io::stdin().lock(), io::stdout().lock()));
            }
            pattern.work(match seconds {
                Some(seconds) => pattern::Amount::Until(Duration::from_secs(seconds)),
                None => pattern::Amount::Units(work),
            })
        }
    };
    WORKLOAD.measured(measured)
}
