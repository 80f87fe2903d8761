//! `megapage simulate record`.

use crate::output::{print, say};
use anyhow::{Context, Result, bail};
use megapage_kernel::KernelRoot;
use megapage_kernel::trusted::write_report;
use megapage_observe::{Observer, select_processes};
use megapage_simulate::record::Recorder;
use megapage_simulate::trace::write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Record processes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Processes: identifiers, or names as pgrep takes them
    #[arg(value_name = "PROCESS", required = true)]
    processes: Vec<String>,
    /// Recording time
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::sampling::seconds)]
    seconds: Duration,
    /// Interval between snapshots
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::sampling::seconds)]
    every: Duration,
    /// The trace; - is standard output
    #[arg(long, short, value_name = "FILE|-", default_value = "-")]
    output: PathBuf,
    #[command(flatten)]
    sampling: crate::sampling::SamplingArgs,
}

/// 0 with a trace, also of a process that ended on the way.
pub fn main(args: &Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let pids = select_processes(&root, &args.processes)?;
    let mut observer = Observer::start(&root, args.sampling.options())?;
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
        print(&text)?;
    } else {
        write_report(&args.output, text.as_bytes()).with_context(|| args.output.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
