//! `megapage remap check`.

use super::{each, status};
use crate::output::answer;
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_remap::check::{Check, check};
use megapage_report::remap::check as human;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show how much of executables and libraries could be huge: segments, alignment, sizes, linker
/// flags
///
/// Executes and changes nothing. PRIME is the memory that could be huge after megapage remap prime.
/// ANONYMOUS is the memory that megapage run --text thp could move onto huge pages.
///
/// Exit status: 0 something to gain; 1 nothing in at least one file; 2 no file could be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Executables or shared libraries (ELF, 64-bit)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON (schema megapage.remap-check/2)
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let (checks, failed) = each(&args.files, |file| check(&root, file));
    answer(args.json, "megapage.remap-check/2", &BTreeMap::from([("files", &checks)]), || {
        checks.iter().map(human).collect::<Vec<_>>().join("\n")
    })?;
    Ok(status(checks.len(), failed, checks.iter().all(Check::gains)))
}
