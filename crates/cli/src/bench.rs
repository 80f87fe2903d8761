//! `megapage bench`.

use crate::output::{print, progress, say};
use anyhow::{Context, Result};
use clap::Subcommand;
use megapage_bench::command::{self, Options};
use megapage_bench::save::Save;
use megapage_bench::statistics::Clock;
use megapage_report::bench::{human, json as json_of};
use megapage_report::lines;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure a program with and without megapage, in alternate runs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: BenchArgs,
}

#[derive(Debug, Subcommand)]
enum BenchArgs {
    /// Run your own command with and without megapage in each of several rounds, and show the
    /// difference
    ///
    /// The command's standard input is empty, and its output goes to a log.
    Run {
        #[command(flatten)]
        how: How,
        /// Exit status that counts as success
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=255))]
        status: i32,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

#[derive(Debug, clap::Args)]
struct How {
    /// Measured rounds; a 95 % interval needs at least 6
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Ways to compare with plain, separated by commas: tunable, ours (megapage run), thp,
    /// mimalloc, jemalloc, tcmalloc
    #[arg(long, value_delimiter = ',', default_value = "plain,tunable,ours")]
    ways: Vec<String>,
    /// Compare by wall-clock time or processor time
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    clock: Clock,
    /// Pass this option to 'megapage run', such as --option=--children. Repeatable
    #[arg(long, allow_hyphen_values = true, value_name = "OPTION")]
    option: Vec<OsString>,
    /// Keep the last run's output in this file, even if the run failed
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Random seed of the order within each round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.bench/1)
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file as well
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// Runs the bench. Exit status: 0 done, 2 bad input or not possible.
pub fn main(args: Args) -> Result<ExitCode> {
    match args.bench {
        BenchArgs::Run { how, status, command } => compare(how, status, command),
    }
}

fn compare(how: How, status: i32, command: Vec<OsString>) -> Result<ExitCode> {
    let How { runs, ways, clock, option, log, seed, dry_run, json, save } = how;
    let options = Options { command, ways, runs, clock, status, seed, options: option, log };
    if dry_run {
        print(&lines(command::dry_run(&options)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let save = Save::open(save.as_deref())?;
    let megapage = std::env::current_exe().context("where this program lies")?;
    let report = command::run(&options, &megapage, &mut |line| match line.strip_prefix("absent:") {
        Some(_) => say(line),
        None => progress(line),
    })?;
    let text = json_of(&report);
    save.write(&text)?;
    print(&if json { text } else { human(&report) })?;
    Ok(ExitCode::SUCCESS)
}
