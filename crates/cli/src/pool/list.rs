//! `megapage pool list`.

use crate::output::answer;
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_observe::pools::pools;
use megapage_report::pools::list;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show every pool: its size on the machine and on each NUMA node, free pages, users, and limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema megapage.pool-list/1).
    #[arg(long)]
    json: bool,
    /// Read a copy of /proc and /sys below this directory, not the files of this machine.
    #[arg(long, value_name = "DIR")]
    kernel_root: Option<PathBuf>,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = args.kernel_root.map_or_else(KernelRoot::live, KernelRoot::captured);
    let pools = pools(&root)?;
    answer(args.json, "megapage.pool-list/1", &pools, || list(&pools))?;
    Ok(ExitCode::SUCCESS)
}
