//! `megapage bench`.

use crate::output::{print, progress, say};
use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use megapage_bench::arguments::{Sizes, scale, sizes};
use megapage_bench::command;
use megapage_bench::run::{self, Bench, Clock, Options, Place, ReleaseOptions};
use megapage_bench::save::Save;
use megapage_bench::workload::retrieval;
use megapage_kernel::trusted::write_report;
use megapage_report::chart;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare megapage with other allocators and with 4 KiB pages, on workloads that check themselves.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: BenchArgs,
}

#[derive(Debug, Subcommand)]
enum BenchArgs {
    /// Run your own command as it is and under megapage, pair by pair, and say what megapage brings
    ///
    /// Its standard input is empty; what it writes goes to a log.
    Run {
        /// Rounds that count; from 6 on an interval can be given
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        runs: u32,
        /// Ways to compare with plain, separated by commas: tunable, ours, learned, thp, mimalloc, jemalloc, tcmalloc
        #[arg(long, value_delimiter = ',', default_value = "plain,tunable,ours")]
        ways: Vec<String>,
        /// The clock that the finding is taken from
        #[arg(long, value_enum, default_value_t = ClockArg::Wall)]
        clock: ClockArg,
        /// The exit status with which the command ends well
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=255))]
        status: i32,
        /// Give this option to 'megapage run' as well, such as --option=--children; may be repeated
        #[arg(long, allow_hyphen_values = true, value_name = "OPTION")]
        option: Vec<OsString>,
        /// Keep what the last run wrote in this file, also where it failed
        #[arg(long, value_name = "FILE")]
        log: Option<PathBuf>,
        /// Selects the order within each round
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print what would be run, and run nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON (megapage.bench/1)
        #[arg(long)]
        json: bool,
        /// Write the JSON to this file as well
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Allocate small objects, an array or a hash map, and read them at random
    Access {
        /// small, array, map [default: all]
        cases: Vec<String>,
        /// Multiply sizes and work by this
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Find songs by noisy excerpts in an inverted index
    Retrieval {
        #[command(flatten)]
        search: retrieval::Options,
        /// Compare 4 KiB pages with megapage at these sizes, separated by commas, and say from which on it pays; all: 1m, 4m,
        /// 16m and so on, up to the largest that fits. Takes 6 --runs or more
        #[arg(long, value_name = "LIST", conflicts_with = "size", value_parser = sizes)]
        sizes: Option<Sizes>,
        #[command(flatten)]
        common: Common,
    },
    /// Free 80 % of 920 MB and see what stays resident
    Release {
        /// random, runs, big [default: all]
        cases: Vec<String>,
        /// Multiply sizes by this
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        /// Milliseconds from the last free to the reading, up to a minute
        #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(..=60_000))]
        wait: u64,
        /// Make no call to the allocator in the meantime
        #[arg(long)]
        quiet: bool,
        #[command(flatten)]
        common: Common,
    },
    /// A program that has nothing to gain: is it slower?
    Idle {
        /// Multiply the work by this
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        #[command(flatten)]
        common: Common,
    },
    /// A program that does nothing: what does starting it cost?
    Startup {
        /// Multiply the number of starts by this
        #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
        scale: f64,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Rounds that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Rounds before them that do not count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=100))]
    warm_up: u32,
    /// Peers to run, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// The clock that ratios and gates are taken from
    #[arg(long, value_enum, default_value_t = ClockArg::Wall)]
    clock: ClockArg,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Exit with 1 unless every gate holds and every run ended well
    #[arg(long)]
    check: bool,
    /// Print JSON (megapage.bench/1)
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file as well
    #[arg(long)]
    save: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClockArg {
    /// On the wall
    Wall,
    /// Of the processors: steadier on a machine that others use too
    Cpu,
}

impl From<ClockArg> for Clock {
    fn from(clock: ClockArg) -> Clock {
        match clock {
            ClockArg::Wall => Clock::Wall,
            ClockArg::Cpu => Clock::Cpu,
        }
    }
}

/// Runs the bench: 0 done, 1 with `--check` where a gate fails or a run did, 2 bad input or not possible.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut by_size = None;
    let (bench, cases, scale, common) = match args.bench {
        BenchArgs::Run { runs, ways, clock, status, option, log, seed, dry_run, json, save, command } => {
            let options = command::Options {
                command,
                ways,
                runs,
                clock: clock.into(),
                status,
                seed,
                options: option,
                log,
            };
            if dry_run {
                print(&(command::dry_run(&options)?.join("\n") + "\n"))?;
                return Ok(ExitCode::SUCCESS);
            }
            let output = Output { check: false, json, save };
            let megapage = std::env::current_exe().context("where this program lies")?;
            let run = |progress: &mut dyn FnMut(&str)| command::run(&options, &megapage, progress);
            return measure(&output, run, command::human, |_, _| {}, |_| true);
        }
        BenchArgs::Access { cases, scale, common } => (Bench::Access, cases, scale, common),
        BenchArgs::Release { cases, scale, wait, quiet, common } => {
            (Bench::Release(ReleaseOptions { wait_ms: wait, quiet }), cases, scale, common)
        }
        BenchArgs::Idle { scale, common } => (Bench::Idle, Vec::new(), scale, common),
        BenchArgs::Startup { scale, common } => (Bench::Startup, Vec::new(), scale, common),
        BenchArgs::Retrieval { search, sizes, common } => {
            by_size = sizes;
            (Bench::Retrieval(search), Vec::new(), 1.0, common)
        }
    };
    let clock = common.clock.into();
    let options = Options {
        bench,
        cases,
        peers: common.peers,
        runs: common.runs,
        warm_up: common.warm_up,
        scale,
        clock,
    };
    let place = Place::of_this_program()?;
    if let Some(sizes) = by_size {
        let save = common.output.save.clone();
        let sweep = |progress: &mut dyn FnMut(&str)| {
            let found = run::sweep(&options, &sizes, &place, progress)?;
            // The picture beside the JSON.
            if let Some(path) = save.map(|path| path.with_extension("svg")) {
                write_report(&path, chart::svg(&found.chart()).as_bytes())
                    .with_context(|| path.display().to_string())?;
            }
            Ok(found)
        };
        return measure(&common.output, sweep, run::SweepReport::human, |_, _| (), |_| true);
    }
    let run = |progress: &mut dyn FnMut(&str)| run::run(&options, &place, progress);
    let carry = |save: &mut Save, report: &mut run::Report| save.carry(report.head.bench, &mut report.gates);
    measure(&common.output, run, run::human, carry, run::Report::is_clean)
}

/// Runs a bench; shows and saves its report as `output` asks, with what `carry` adds of the one in the file, and with `--check` answers with whether it is clean.
fn measure<R: Serialize>(
    output: &Output,
    run: impl FnOnce(&mut dyn FnMut(&str)) -> Result<R>,
    human: fn(&R) -> String,
    carry: fn(&mut Save, &mut R),
    is_clean: fn(&R) -> bool,
) -> Result<ExitCode> {
    let mut save = Save::open(output.save.as_deref())?;
    let mut report = run(&mut |line| match line.strip_prefix("absent:") {
        Some(_) => say(line),
        None => progress(line),
    })?;
    carry(&mut save, &mut report);
    let json = save.write(&report)?;
    print(&if output.json { json } else { human(&report) })?;
    Ok(ExitCode::from(u8::from(output.check && !is_clean(&report))))
}
