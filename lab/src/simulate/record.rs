//! `megapage-lab simulate record`.

use crate::observe::tracker;
use anyhow::{Context, Result, bail};
use megapage_kernel::trusted::write_report;
use megapage_kernel::{KernelRoot, require_base_pages};
use megapage_observe::{Observer, Options, TrackerKind, select_processes};
use megapage_simulate::record::Recorder;
use megapage_simulate::trace::write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Record processes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Processes: identifiers, or names as pgrep takes them
    #[arg(value_name = "PROCESS", required = true)]
    processes: Vec<String>,
    /// Recording time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Interval between snapshots
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// The trace; - is standard output
    #[arg(long, short, value_name = "FILE|-", default_value = "-")]
    output: PathBuf,
    /// The only tracker to use [default: the best that works]
    #[arg(long, value_name = "NAME", value_parser = tracker)]
    tracker: Option<TrackerKind>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds from 0.1 to 86400".into()),
    }
}

/// Writes a trace, also of a process that ended on the way; returns it if it is to be printed.
pub(super) fn record(args: &Args, say: &mut dyn FnMut(String)) -> Result<String> {
    let root = KernelRoot::live();
    require_base_pages(&root)?;
    let pids = select_processes(&root, &args.processes)?;
    let mut observer = Observer::start(&root, Options { tracker: args.tracker, ..Options::default() })?;
    if let Some(why) = observer.why_unsampled() {
        say(format!("not sampled: {why}"));
    }
    let mut recorder = Recorder::default();
    let end = Instant::now() + args.seconds;
    loop {
        let next = Instant::now() + args.every;
        let snapshot = observer.snapshot(&pids);
        recorder.add(&snapshot);
        if snapshot.processes.is_empty() || next > end {
            break;
        }
        sleep(next.saturating_duration_since(Instant::now()));
    }
    let Some(trace) = recorder.finish(&format!("recorded: {}", args.processes.join(" "))) else {
        bail!("none of the processes could be observed");
    };
    let text = write(&trace);
    if args.output.as_os_str() == "-" {
        return Ok(text);
    }
    write_report(&args.output, text.as_bytes()).with_context(|| args.output.display().to_string())?;
    Ok(String::new())
}
