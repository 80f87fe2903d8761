//! `megapage map`.

use crate::one_process::one_process;
use crate::output::{paint_blocks, print_painted, say};
use crate::sampling::seconds;
use anyhow::{Result, bail};
use megapage_kernel::KernelRoot;
use megapage_observe::{Observer, Options};
use megapage_report::json;
use megapage_report::map::{Map, SCHEMA, text};
use std::process::ExitCode;
use std::time::Duration;

/// Draw the address space of a process: how much of each range is accessed, and how much is huge
///
/// Clears the accessed bits, waits for --seconds and reads the bits: memory accessed meanwhile is
/// hot.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process: a PID, or a name (matched as by pgrep) that fits only one process
    #[arg(value_name = "PROCESS")]
    process: String,
    /// Print JSON (schema megapage.map/1) with all mappings and regions, up to 1 MB for each GiB of
    /// resident memory
    #[arg(long)]
    json: bool,
    /// Seconds between clearing and reading the accessed bits
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds(0.001, 3600.0), conflicts_with = "no_sample")]
    seconds: Duration,
    #[command(flatten)]
    sampling: crate::sampling::SamplingArgs,
}

/// Runs the command. Returns 0 with a map, also for a process that could not be sampled: the map
/// says so.
pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let pid = one_process(&root, &args.process)?;
    let options = Options { window: args.seconds, folios: true, ..args.sampling.options() };
    let mut observer = Observer::start(&root, options)?;
    let snapshot = observer.sample_once(&[pid]);
    let Some(map) = Map::new(&snapshot, pid) else {
        let missed = snapshot.missed.iter().find(|missed| missed.pid == pid);
        bail!("{}", missed.map_or("the process has ended", |missed| &missed.what));
    };
    if let Some(why) = observer.why_unsampled() {
        say(format!("not sampled: {why}"));
    }
    let text = if args.json { json(SCHEMA, &map) + "\n" } else { text(&map, paint_blocks()) };
    print_painted(&text)?;
    Ok(ExitCode::SUCCESS)
}
