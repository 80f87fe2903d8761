//! The workloads of `megapage bench` as a program of its own: it prints one line of JSON.
//!
//! It uses the system allocator, imports no fork(2), and starts no other program, so that it stands for an ordinary program
//! whose malloc(3) is replaced. That is why it is no subcommand of `megapage`, which is larger, links more, and starts
//! programs: a launcher would judge it differently, and its start would be another one.

#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use megapage_bench::answer::Program;
use megapage_bench::arguments::scale;
use megapage_bench::workload::{access, idle, release, retrieval};
use std::process::ExitCode;
use std::time::Duration;

/// A workload to measure memory backing with; prints one line of JSON.
#[derive(Debug, Parser)]
#[command(name = "megapage-workload", version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Allocate and touch memory, then read it at random.
    Access {
        /// What the memory is made of.
        #[arg(value_enum)]
        case: access::Case,
        /// Multiply sizes and accesses by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
    },
    /// Allocate 920 MB, free 80 % of it, wait, and see what is still resident.
    Release {
        /// What is freed.
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
    /// Find songs by noisy excerpts in an inverted index.
    Retrieval(retrieval::Options),
    /// Compute within the caches: nothing to gain from huge pages.
    Idle {
        /// Multiply the work by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
    },
    /// Do nothing: what it takes to start.
    Startup,
}

/// 0 done; 1 the retrieval found too few songs; 2 bad input, or the workload's own check failed.
fn main() -> ExitCode {
    let measured = match Cli::parse().workload {
        Workload::Startup => return ExitCode::SUCCESS,
        Workload::Access { case, scale } => access::run(case, scale),
        Workload::Release { case, scale, wait, quiet } => {
            release::run(case, release::Options { scale, wait: Duration::from_millis(wait), trickle: !quiet })
        }
        Workload::Retrieval(options) => retrieval::run(options),
        Workload::Idle { scale } => idle::run(scale),
    };
    Program("megapage-workload").measured(measured)
}
