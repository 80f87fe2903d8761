//! `megapage-lab simulate curve`.

use super::{MachineArgs, human, plots, prepare, threads};
use crate::arguments::number;
use anyhow::{Context, Result};
use megapage_kernel::trusted::write_report;
use megapage_report::json;
use megapage_simulate::curve::{BUDGETS, POLICIES, curves};
use std::path::PathBuf;

/// Show what huge pages are worth: the gain of each policy over a budget of huge pages
///
/// The gain is the translation time that huge pages save, in per cent of the time on base pages.
/// The budget is in per cent of the memory that the programs use; beyond it no huge page is to be
/// had. One run for each policy and budget: --step 10 takes a tenth of the time.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Policies, separated by commas [default: megapage,hawkeye-pmu,hawkeye-g,ingens,freebsd,linux]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Budgets in per cent of the memory in use, ascending, separated by commas [default:
    /// 0,1,2,4,8,16,32,64,100]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = number(0.0, 100.0, "per cent from 0 to 100"))]
    budget: Vec<f64>,
    /// Write the curves as a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON (schema megapage.simulate.curve/1)
    #[arg(long)]
    json: bool,
}

/// Returns the text to print.
pub(super) fn curve(args: &Args) -> Result<String> {
    let (trace, setup) = prepare(&args.machine)?;
    let policies = match args.policy.is_empty() {
        true => POLICIES.map(String::from).to_vec(),
        false => args.policy.clone(),
    };
    let mut budgets = if args.budget.is_empty() { BUDGETS.to_vec() } else { args.budget.clone() };
    budgets.sort_by(f64::total_cmp);
    budgets.dedup();
    let found = curves(&trace, &setup, &policies, &budgets, args.machine.speed.0, threads())?;
    if let Some(file) = &args.svg {
        write_report(file, plots::curves(&found).as_bytes()).with_context(|| file.display().to_string())?;
    }
    Ok(match args.json {
        true => json("megapage.simulate.curve/1", &found) + "\n",
        false => human::curves(&found),
    })
}
