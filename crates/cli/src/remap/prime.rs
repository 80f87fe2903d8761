//! `megapage remap prime`.

use super::{each, status};
use crate::flags::DryRun;
use crate::output::answer;
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_remap::prime::{Outcome, prime, undo};
use megapage_report::{remap as human, shown_path};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Put cached pages of executables and libraries into blocks of 2 MiB, which the kernel maps as
/// huge pages
///
/// Processes that map a file afterwards have its code and constants on huge pages, and share
/// these pages. Nothing is remapped in a process. The kernel may evict the pages: repeat the
/// command by a timer. Huge blocks are skipped. Running processes keep the pages that they have
/// mapped.
///
/// Exit status: 0 everything possible is huge; 1 a part; 2 nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Executables or shared libraries (ELF, 64-bit)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Drop the files' cached pages instead; the kernel then reads the files into small pages again
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    dry_run: DryRun,
    /// Print JSON (schema megapage.remap-prime/1)
    #[arg(long)]
    json: bool,
}

const SCHEMA: &str = "megapage.remap-prime/1";

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    if args.undo {
        let (undone, failed) = each(&args.files, |file| undo(&root, file, args.dry_run.asked));
        let report = BTreeMap::from([("files", &undone)]);
        answer(args.json, SCHEMA, &report, || undone.iter().map(human::undone).collect())?;
        return Ok(status(undone.len(), failed, undone.iter().all(|file| file.left_bytes.unwrap_or(0) == 0)));
    }
    let (outcomes, failed) = each(&args.files, |file| prime(&root, file, args.dry_run.asked));
    report(&outcomes, failed, args.json.then_some(SCHEMA))
}

/// Prints the results of priming, as JSON if a schema is given. Returns the exit status.
pub fn report(outcomes: &[Outcome], failed: bool, schema: Option<&str>) -> Result<ExitCode> {
    let report = BTreeMap::from([("files", outcomes)]);
    answer(schema.is_some(), schema.unwrap_or_default(), &report, || {
        outcomes.iter().map(human::primed).collect()
    })?;
    let done = outcomes.iter().filter(|outcome| outcome.dry_run || outcome.obtained_bytes > Some(0)).count();
    for outcome in outcomes.iter().filter(|outcome| outcome.obtained_bytes == Some(0)) {
        if let Some(why) = &outcome.missing {
            crate::output::say(format!("{}: nothing is on huge pages: {why}", shown_path(&outcome.file)));
        }
    }
    Ok(status(done, failed || done < outcomes.len(), outcomes.iter().all(Outcome::is_complete)))
}
