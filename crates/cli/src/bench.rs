//! `megapage bench`.

use crate::output::print;
use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use megapage_bench::run::{self, Bench, Clock, Options, Place, ReleaseOptions, RetrievalOptions};
use megapage_bench::{fault, fork, kept, live, observe, snapshot, text};
use megapage_kernel::trusted::{create_report, write_report};
use megapage_observe::TrackerKind;
use megapage_units::Bytes;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
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
    /// Allocate small objects, an array or a hash map, and read them at random
    Access {
        /// small, array, map [default: all]
        cases: Vec<String>,
        /// Multiply sizes and work by this
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Find songs by noisy excerpts in an inverted index
    Retrieval {
        /// Bytes of postings, 1m to 16g; 8,192 x 250,000 counts for each thread come on top
        #[arg(long, default_value = "8g", value_parser = size)]
        size: Bytes,
        /// Threads that build and search
        #[arg(long, default_value = "2")]
        threads: NonZeroUsize,
        /// Queries in each run
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
        queries: u32,
        /// Selects songs, excerpts and noise
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The share of each query's fingerprints that is replaced by random ones
        #[arg(long, default_value_t = 0.75, value_parser = share)]
        noise: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Free 80 % of 920 MB and see what stays resident
    Release {
        /// random, runs, big [default: all]
        cases: Vec<String>,
        /// Multiply sizes by this
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
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
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Is what is observed true, what does observing cost, and is the advice right?
    Observe {
        /// exact, cost, slowdown, advice [default: all]
        cases: Vec<String>,
        /// Multiply sizes by this, up to 1
        #[arg(long, default_value_t = 1.0, value_parser = share_of_size)]
        scale: f64,
        /// Rounds that medians are taken of
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
        runs: u32,
        /// Programs that advice is judged on, separated by commas [default: all]
        #[arg(long, value_delimiter = ',')]
        programs: Vec<String>,
        /// Sample accessed bits in this way [default: the best that works]
        #[arg(long, value_parser = crate::sampling::tracker)]
        tracker: Option<TrackerKind>,
        /// Ask 'megapage advise' with this argument as well, such as --trial; may be repeated
        #[arg(long, allow_hyphen_values = true, value_name = "ARGUMENT")]
        advise: Vec<String>,
        /// Write what each prediction was made from, and what was measured, into this directory
        #[arg(long, value_name = "DIRECTORY")]
        record: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// How soon is a program relieved of its page walks, by khugepaged and by the daemon?
    Promote {
        #[command(flatten)]
        live: Live<5>,
    },
    /// Does Redis stay within its limit, and what does it notice of the daemon?
    Bloat {
        /// redis, recovery [default: both]
        cases: Vec<String>,
        /// Install redis first where it is absent (apt-get)
        #[arg(long)]
        install: bool,
        #[command(flatten)]
        live: Live<3>,
    },
    /// Who finishes when, where programs that gain from huge pages compete with others?
    Fair {
        #[command(flatten)]
        live: Live<5>,
    },
    /// What does the daemon take for itself, and cost others, with nothing to do?
    Cost {
        #[command(flatten)]
        live: Live<3>,
    },
    /// What does the first touch of a huge page cost: THP, hugetlb, zeroed by a broker before, reused?
    Fault {
        /// Memory of each source, a multiple of 32m up to 64g
        #[arg(long, default_value = "1g", value_parser = fault_size)]
        size: Bytes,
        /// Rounds that count
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        #[command(flatten)]
        output: Output,
    },
    /// How soon is a program there again that finds its memory, compared with DPDK, and an index in it?
    Restart {
        /// starts, index [default: all]
        cases: Vec<String>,
        /// Memory of a program that starts, 64m to 64g
        #[arg(long, default_value = "4g", value_parser = pool_size)]
        size: Bytes,
        /// Bytes of the index's postings, 1m to 16g
        #[arg(long, default_value = "4g", value_parser = size)]
        index: Bytes,
        #[command(flatten)]
        kept: Kept,
    },
    /// What does allocating and freeing in a segment cost, by size, compared with DPDK?
    Malloc {
        /// Memory to allocate from, 64m to 64g; DPDK's bench needs 2600m
        #[arg(long, default_value = "2700m", value_parser = pool_size)]
        size: Bytes,
        #[command(flatten)]
        kept: Kept,
    },
    /// Code on huge pages: 64 MiB of functions called at random, a compiler, servers, by each way to get there
    Text {
        /// generated, cc1plus, mariadb, node, postgres [default: all]
        cases: Vec<String>,
        /// Rounds that medians are taken of
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        /// Multiply the number of calls, and of transactions, by this
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
        scale: f64,
        /// Install first what is absent: libhugetlbfs, mariadb-server-core, sysbench, ... (apt-get)
        #[arg(long)]
        install: bool,
        #[command(flatten)]
        output: Output,
    },
    /// What does starting a child cost a process with a large heap, and what does a living child?
    Fork {
        /// native, jvm [default: all]
        cases: Vec<String>,
        /// Heaps, separated by commas, up to 16g
        #[arg(long, value_delimiter = ',', default_value = "128m,256m,512m,1g,2g,4g")]
        sizes: Vec<Bytes>,
        /// Heaps of the JVM
        #[arg(long, value_delimiter = ',', default_value = "128m,256m,512m,1g")]
        jvm_sizes: Vec<Bytes>,
        /// Rounds that medians are taken of
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        /// Children that are started in each way in each run
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        launches: u32,
        /// Install the JVM first where it is absent (apt-get)
        #[arg(long)]
        install: bool,
        /// Print what would be run, and how the pool would be set, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: Output,
    },
    /// What does Redis notice that saves by a fork, on base pages and on huge ones?
    Snapshot {
        /// Bytes of all values, up to 16g
        #[arg(long, default_value = "1g")]
        size: Bytes,
        /// Configurations to compare, separated by commas: base, thp, run-snapshot... [default: all]
        #[arg(long, value_delimiter = ',')]
        configurations: Vec<String>,
        /// Rounds that medians are taken of
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        /// Install redis first where it is absent (apt-get)
        #[arg(long)]
        install: bool,
        /// Print what would be run, and run nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: Output,
    },
    /// A program that does nothing: what does starting it cost?
    Startup {
        /// Multiply the number of starts by this
        #[arg(long, default_value_t = 1.0, value_parser = scale)]
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
    /// Install the libraries of absent peers first (apt-get, pip)
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: Output,
}

/// What the benches of a live machine have in common; `RUNS` is how many rounds they make by default.
#[derive(Debug, clap::Args)]
struct Live<const RUNS: u32> {
    /// Configurations to compare, separated by commas: thp-never, thp-hard, megapage... [default: all]
    #[arg(long, value_delimiter = ',')]
    configurations: Vec<String>,
    /// Rounds that medians are taken of
    #[arg(long, default_value_t = RUNS, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Multiply sizes and waits by this, up to 1
    #[arg(long, default_value_t = 1.0, value_parser = share_of_size)]
    scale: f64,
    /// Print how the machine would be set, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

/// What the benches of kept memory have in common.
#[derive(Debug, clap::Args)]
struct Kept {
    /// Rounds that medians are taken of
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Install dpdk-test first where it is absent (apt-get)
    #[arg(long, conflicts_with = "alone")]
    install: bool,
    /// Leave DPDK out
    #[arg(long)]
    alone: bool,
    /// Print how the machine would be set, and change nothing
    #[arg(long)]
    dry_run: bool,
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

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 4.0 => Ok(scale),
        _ => Err("a scale is a number above 0, at most 4".into()),
    }
}

fn share_of_size(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 1.0 => Ok(scale),
        _ => Err("a scale is a number above 0, at most 1".into()),
    }
}

fn fault_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    let extent = Bytes::mib(32).0;
    if size.0 == 0 || !size.0.is_multiple_of(extent) || size > Bytes::gib(64) {
        return Err("give a multiple of 32m up to 64g".into());
    }
    Ok(size)
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".into()),
    }
}

fn size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size < Bytes::mib(1) || size > Bytes::gib(16) {
        return Err("the index is 1m to 16g".into());
    }
    Ok(size)
}

fn pool_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size < Bytes::mib(64) || size > Bytes::gib(64) {
        return Err("memory is 64m to 64g".into());
    }
    Ok(size)
}

/// Runs the bench: 0 done, 1 with `--check` where a gate fails or a run did, 2 bad input or not possible.
pub fn main(args: Args) -> Result<ExitCode> {
    let (bench, cases, scale, common) = match args.bench {
        BenchArgs::Observe { cases, scale, runs, programs, tracker, advise, record, output } => {
            let options = observe::Options { cases, programs, runs, scale, tracker, advise, record };
            return measure(&output, &options, observe::run, observe::human, observe::Report::is_clean);
        }
        BenchArgs::Text { cases, runs, scale, install, output } => {
            let options = text::Options { cases, runs, scale, install };
            return measure(&output, &options, text::run, text::human, text::Report::is_clean);
        }
        BenchArgs::Promote { live } => return on_live_machine(live::Bench::Promote, live, &[], false),
        BenchArgs::Bloat { cases, install, live } => {
            return on_live_machine(live::Bench::Bloat, live, &cases, install);
        }
        BenchArgs::Fair { live } => return on_live_machine(live::Bench::Fair, live, &[], false),
        BenchArgs::Cost { live } => return on_live_machine(live::Bench::Cost, live, &[], false),
        BenchArgs::Fault { size, runs, output } => {
            let options = fault::Options { size, runs };
            return measure(&output, &options, fault::run, fault::human, fault::Report::is_clean);
        }
        BenchArgs::Restart { cases, size, index, kept } => {
            return of_kept_memory(kept::Bench::Restart { cases, size, index }, kept);
        }
        BenchArgs::Malloc { size, kept } => return of_kept_memory(kept::Bench::Malloc { size }, kept),
        BenchArgs::Fork { cases, sizes, jvm_sizes, runs, launches, install, dry_run, output } => {
            let options = fork::Options { cases, sizes, jvm_sizes, runs, launches, install };
            if dry_run {
                return show_lines(&fork::dry_run(&options)?);
            }
            return measure(&output, &options, fork::run, fork::human, fork::Report::is_clean);
        }
        BenchArgs::Snapshot { size, configurations, runs, install, dry_run, output } => {
            let options = snapshot::Options { configurations, size, runs, install };
            if dry_run {
                return show_lines(&snapshot::dry_run(&options)?);
            }
            return measure(&output, &options, snapshot::run, snapshot::human, snapshot::Report::is_clean);
        }
        BenchArgs::Access { cases, scale, common } => (Bench::Access, cases, scale, common),
        BenchArgs::Release { cases, scale, wait, quiet, common } => {
            (Bench::Release(ReleaseOptions { wait_ms: wait, quiet }), cases, scale, common)
        }
        BenchArgs::Idle { scale, common } => (Bench::Idle, Vec::new(), scale, common),
        BenchArgs::Startup { scale, common } => (Bench::Startup, Vec::new(), scale, common),
        BenchArgs::Retrieval { size, threads, queries, seed, noise, common } => {
            let asked = RetrievalOptions { size, threads, queries, seed, noise };
            (Bench::Retrieval(asked), Vec::new(), 1.0, common)
        }
    };
    let clock = match common.clock {
        ClockArg::Wall => Clock::Wall,
        ClockArg::Cpu => Clock::Cpu,
    };
    let options = Options {
        bench,
        cases,
        peers: common.peers,
        runs: common.runs,
        warm_up: common.warm_up,
        scale,
        clock,
        install: common.install,
    };
    measure(&common.output, &options, run::run, run::human, run::Report::is_clean)
}

fn on_live_machine<const RUNS: u32>(
    bench: live::Bench,
    args: Live<RUNS>,
    cases: &[String],
    install: bool,
) -> Result<ExitCode> {
    let Live { configurations, runs, scale, dry_run, output } = args;
    let options = live::Options { bench, configurations, runs, scale, install, cases: cases.to_vec() };
    if dry_run {
        return show_lines(&live::dry_run(&options)?);
    }
    let run = |options: &live::Options, place: &Place, progress: &mut dyn FnMut(&str)| {
        let report = live::run(options, place, progress)?;
        if let Some(save) = &output.save {
            for (name, chart) in report.charts() {
                let stem = save.file_stem().unwrap_or_default().to_string_lossy();
                let path = save.with_file_name(format!("{stem}-{name}.svg"));
                let text = megapage_report::chart::svg(&chart);
                write_report(&path, text.as_bytes()).with_context(|| path.display().to_string())?;
            }
        }
        Ok(report)
    };
    measure(&output, &options, run, live::human, live::Report::is_clean)
}

fn of_kept_memory(bench: kept::Bench, args: Kept) -> Result<ExitCode> {
    let Kept { runs, install, alone, dry_run, output } = args;
    let options = kept::Options { bench, runs, install, alone };
    if dry_run {
        return show_lines(&kept::dry_run(&options));
    }
    measure(&output, &options, kept::run, kept::human, kept::Report::is_clean)
}

/// What a dry run says.
fn show_lines(lines: &[String]) -> Result<ExitCode> {
    print(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a bench; shows and saves its report as `output` asks, and with `--check` answers with whether it is clean.
fn measure<O, R: Serialize>(
    output: &Output,
    options: &O,
    run: impl FnOnce(&O, &Place, &mut dyn FnMut(&str)) -> Result<R>,
    human: fn(&R) -> String,
    is_clean: fn(&R) -> bool,
) -> Result<ExitCode> {
    let on_terminal = std::io::stderr().is_terminal();
    let mut progress = |line: &str| {
        if on_terminal || line.starts_with("absent:") {
            crate::output::say(line);
        }
    };
    let place = Place::beside_this_program()?;
    // Opened first: a path that cannot be written is better known before the runs than after.
    let mut file = match &output.save {
        Some(path) => Some(create_report(path).with_context(|| path.display().to_string())?),
        None => None,
    };
    let report = run(options, &place, &mut progress)?;
    let json = megapage_report::json("megapage.bench/1", &report);
    if let Some(file) = &mut file {
        writeln!(file, "{json}").context("the file for --save")?;
    }
    if output.json {
        print(&format!("{json}\n"))?;
    } else {
        print(&human(&report))?;
    }
    Ok(ExitCode::from(u8::from(output.check && !is_clean(&report))))
}
