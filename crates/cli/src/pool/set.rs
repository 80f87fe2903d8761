//! `megapage pool set`.

use crate::flags::DryRun;
use crate::output::{answer, print};
use anyhow::{Result, bail};
use megapage_act::pool::{Request, Spec, plan};
use megapage_kernel::KernelRoot;
use megapage_report::pools::{dry_run, memory, set};
use std::process::ExitCode;
use std::time::Duration;

/// Size pools in one transaction: check, write, read back, retry, and explain missing pages.
///
/// A POOL is SIZE=PAGES: 2m=512, 1g=2, default=512. Other forms add or remove pages (2MB:+64,
/// 2MB:-64), give the pool's memory (2m=4g), or give the pages of each NUMA node (2m=0:100,1:300).
///
/// Exit status: 0 all pages obtained; 1 some; 2 refused or rolled back, with nothing changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pools and their sizes; one transaction sets several pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    /// Set how many pages beyond the pool the kernel may allocate on demand, such as 2m=64.
    /// Repeatable.
    #[arg(long, value_name = "POOL")]
    overcommit: Vec<String>,
    /// Set the pools of this NUMA node instead of the machine's.
    #[arg(long, value_name = "N")]
    node: Option<String>,
    /// Allow less available memory than the safe floor (512 MiB, or 5 % of memory if that is more).
    /// Also allow a pool smaller than its pages in use (the excess becomes surplus).
    #[arg(long)]
    force: bool,
    /// Seconds to retry for missing pages: by compacting memory, then also by dropping caches. No
    /// retry starts later; 0 means no retry.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    timeout: String,
    /// Roll everything back unless every page is obtained.
    #[arg(long)]
    rollback_on_shortfall: bool,
    #[command(flatten)]
    dry_run: DryRun,
    /// Print JSON (schema megapage.pool-set/1).
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let plan = plan(&root, &request(&args)?)?;
    if !args.json && !args.dry_run.asked {
        // Printed before anything is changed, so that the user sees it if the machine then runs
        // short of memory.
        print(&(memory(&plan.memory) + "\n"))?;
    }
    let outcome = if args.dry_run.asked { plan.dry_run() } else { plan.apply(&root)? };
    let text = if args.dry_run.asked { dry_run } else { set };
    answer(args.json, "megapage.pool-set/1", &outcome, || text(&outcome))?;
    if outcome.rolled_back {
        bail!("not every page was obtained: everything was rolled back, as --rollback-on-shortfall requests");
    }
    Ok(if outcome.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn request(args: &Args) -> Result<Request> {
    let specs =
        |texts: &[String]| texts.iter().map(|text| Ok(text.parse::<Spec>()?)).collect::<Result<Vec<_>>>();
    let node = match &args.node {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(node) => Some(node),
            Err(_) => bail!("--node '{text}' is not the number of a node"),
        },
    };
    let timeout = match args.timeout.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Duration::from_secs_f64(seconds),
        _ => bail!("--timeout '{}' is not a number of seconds from 0 to 3600", args.timeout),
    };
    Ok(Request {
        pools: specs(&args.pools)?,
        overcommit: specs(&args.overcommit)?,
        node,
        force: args.force,
        timeout,
        roll_back: args.rollback_on_shortfall,
    })
}
