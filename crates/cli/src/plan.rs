//! `megapage plan`.

use crate::output::{answer, progress, say};
use anyhow::{Context, Result, bail};
use megapage_kernel::trusted::read_given;
use megapage_plan::recording::{MOST_BYTES, Notes, Recording, read};
use megapage_plan::{Options, SCHEMA, plan};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

/// Estimate what a fleet would gain from huge pages, by recordings of its hosts
///
/// Merges the recordings, and replays each host under the policy. Shows the gain of each service or
/// why it has none, the memory that huge pages may waste, and the size of each host's pools. No
/// running program is observed. The same recordings give the same plan.
///
/// Exit status: 0 planned; 1 some recordings could not be read; 2 bad input, or no usable
/// recording.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files that megapage record has written
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<PathBuf>,
    /// The policy that selects memory for huge pages (listed in docs/policies.md)
    #[arg(long, value_name = "NAME", default_value = "megapage")]
    policy: String,
    /// Print JSON (schema megapage.plan/1)
    #[arg(long)]
    json: bool,
}

/// Runs the command; see [`Args`].
pub fn main(args: Args) -> Result<ExitCode> {
    let mut recordings = Vec::new();
    let mut failed = Vec::new();
    for path in &args.recordings {
        let name = path.display();
        match read_file(path) {
            Ok((read, notes)) => {
                recordings.extend(read);
                notes.iter().for_each(|note| say(format!("{name}: {note}")));
            }
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    if recordings.is_empty()
        && let Some(first) = failed.first()
    {
        let others = failed.len() - 1;
        bail!("{first}{}", if others > 0 { format!("; and {others} more") } else { String::new() });
    }
    failed.iter().for_each(say);
    let options = Options { policy: args.policy, threads: available_parallelism().map_or(1, usize::from) };
    let found =
        plan(recordings, &options, &|share| progress(format!("replaying hosts, {:.0} %", share * 100.0)))?;
    answer(args.json, SCHEMA, &found, || megapage_report::plan::plan(&found))?;
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

fn read_file(path: &Path) -> Result<(Vec<Recording>, Notes)> {
    let bytes = read_given(path, MOST_BYTES)?;
    let text = String::from_utf8(bytes).context("not text")?;
    Ok(read(&text)?)
}
