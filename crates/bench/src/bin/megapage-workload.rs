//! The workloads of `megapage bench` as a program of its own: it prints one line of JSON.
//!
//! It uses the system allocator, imports no fork(2), and starts no other program, so that it stands for an ordinary program
//! whose malloc(3) is replaced. That is why it is no subcommand of `megapage`, which is larger, links more, and starts
//! programs: a launcher would judge it differently, and its start would be another one.

#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use megapage_bench::workload::{Measurement, access, idle, release, retrieval};
use megapage_units::Bytes;
use std::num::NonZeroUsize;
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
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
    },
    /// Allocate 920 MB, free 80 % of it, wait, and see what is still resident.
    Release {
        /// What is freed.
        #[arg(value_enum)]
        case: release::Case,
        /// Multiply sizes by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
        /// Milliseconds to wait after the last free.
        #[arg(long, default_value_t = 1500)]
        wait: u64,
        /// Make no call to the allocator while waiting.
        #[arg(long)]
        quiet: bool,
    },
    /// Find songs by noisy excerpts in an inverted index.
    Retrieval {
        /// Bytes of postings, up to 16g.
        #[arg(long, default_value = "8g", value_parser = size)]
        size: Bytes,
        /// Threads that build and search.
        #[arg(long, default_value = "2")]
        threads: NonZeroUsize,
        /// Queries in all.
        #[arg(long, default_value_t = 500)]
        queries: u32,
        /// Selects songs, excerpts and noise.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The share of a query's fingerprints that is replaced by random ones.
        #[arg(long, default_value_t = 0.75)]
        noise: f64,
    },
    /// Compute within the caches: nothing to gain from huge pages.
    Idle {
        /// Multiply the work by this.
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
    },
    /// Do nothing: what it takes to start.
    Startup,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 4.0 => Ok(scale),
        _ => Err("a scale is a number above 0, at most 4".into()),
    }
}

fn size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size < Bytes::mib(1) || size > Bytes::gib(16) {
        return Err(format!("{text} is out of range: 1m to 16g"));
    }
    Ok(size)
}

/// 0 done; 1 the retrieval found too few songs; 2 bad input, or the workload's own check failed.
fn main() -> ExitCode {
    let measured = match Cli::parse().workload {
        Workload::Startup => return ExitCode::SUCCESS,
        Workload::Access { case, scale } => access::run(case, scale),
        Workload::Release { case, scale, wait, quiet } => {
            release::run(case, release::Options { scale, wait: Duration::from_millis(wait), trickle: !quiet })
        }
        Workload::Retrieval { size, threads, queries, seed, noise } => retrieval::run(retrieval::Options {
            size,
            threads,
            queries: queries.max(1) as usize,
            seed,
            noise,
        }),
        Workload::Idle { scale } => idle::run(scale),
    };
    match measured {
        Ok(measurement) => print(&measurement),
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("megapage-workload: {error:#}");
    ExitCode::from(2)
}

/// Prints what was found as one line of JSON.
fn print_line(found: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string(found) {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("megapage-workload: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn print(measurement: &Measurement) -> ExitCode {
    let printed = print_line(measurement);
    if printed != ExitCode::SUCCESS {
        return printed;
    }
    match measurement.figures.get("recall") {
        Some(&recall) if recall < retrieval::RECALL_FLOOR => {
            eprintln!(
                "megapage-workload: recall {recall:.3} is below {}: the index or the search is damaged",
                retrieval::RECALL_FLOOR
            );
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}
