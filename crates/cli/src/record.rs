//! `megapage record`.

use crate::output::{print, say};
use crate::sampling::seconds;
use anyhow::{Context, Result, bail};
use megapage_advise::Watch;
use megapage_kernel::KernelRoot;
use megapage_plan::recording::Moment;
use megapage_record::{Namer, Options, Output, SCHEMA, Why, record};
use megapage_report::json;
use megapage_report::record::{Document, brief};
use megapage_units::Bytes;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Record how the services of this host use their memory, for megapage plan
///
/// Looks at all processes at intervals, within a budget, and appends one line to the recording each
/// time. A service is a control group (systemd unit), else an executable. Without --names, keyed
/// hashes replace the names of services. No path, argument, user or host name is written.
///
/// Exit status: 0 recorded; 1 the recording reached --max-size before its time was over; 2 bad
/// input, or nothing can be recorded.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes: PIDs, or names matched as by pgrep [default: all]
    #[arg(value_name = "PROCESS")]
    processes: Vec<String>,
    /// File to append the recording to; - is standard output
    #[arg(long, short, value_name = "FILE|-", default_value = "-")]
    output: PathBuf,
    /// Seconds to record
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = seconds(0.1, 31_536_000.0))]
    seconds: Duration,
    /// Seconds between two observations; more if --budget does not suffice
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds(0.1, 31_536_000.0))]
    every: Duration,
    /// Limit in percent, for recording's share of one processor and the slow-down of each program
    #[arg(long, value_name = "PERCENT", default_value = "0.5", value_parser = crate::sampling::budget)]
    budget: f64,
    /// Write the names of services, not their hashes
    #[arg(long)]
    names: bool,
    /// Key file of the hashes, the same for all hosts of a fleet [default: a new key per recording]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Stop when the recording has reached this size
    #[arg(long, value_name = "SIZE", default_value = "64m")]
    max_size: Bytes,
    /// Record one interval, and exit
    #[arg(long)]
    once: bool,
    /// Print a summary of the recording as JSON (schema megapage.record/1); needs --output FILE
    #[arg(long)]
    json: bool,
}

/// Runs the command; see [`Args`].
pub fn main(args: Args) -> Result<ExitCode> {
    let to_standard_output = args.output.as_os_str() == "-";
    if args.json && to_standard_output {
        bail!("--json takes the recording elsewhere: --output FILE (see megapage record --help)");
    }
    let shown = args.output.display().to_string();
    let namer = Namer::new(args.key_file.as_deref(), args.names)?;
    let mut output = match to_standard_output {
        true => Output::to(Box::new(std::io::stdout()), args.max_size.0),
        false => Output::file(&args.output, args.max_size.0).context(shown)?,
    };
    let options = Options {
        seconds: args.seconds,
        every: args.every,
        budget: args.budget,
        once: args.once,
        processes: args.processes,
    };
    let mut watch = Watch::idle().context("signals")?;
    let mut said = !std::io::stderr().is_terminal();
    let mut each = |moment: &Moment| {
        if !said {
            said = true;
            say(format!("recording {} services; ^C ends it in order", moment.services.len()));
        }
    };
    let root = KernelRoot::live();
    let summary = record(&root, &options, namer, &mut output, &mut |time| watch.wait(time), &mut each)?;
    summary.header.lacks.iter().for_each(say);
    if args.json {
        print(&(json(SCHEMA, &Document::from(&summary)) + "\n"))?;
    } else {
        say(brief(&summary, args.budget));
    }
    Ok(ExitCode::from(u8::from(summary.why == Why::Full)))
}
