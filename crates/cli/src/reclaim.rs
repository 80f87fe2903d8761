//! `megapage reclaim`.

use crate::output::{answer, say};
use anyhow::{Result, anyhow, bail};
use megapage_act::Bounds;
use megapage_act::reclaim::{Reclaim, Reclaimed};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_report::Applied;
use megapage_report::reclaim::reclaimed;
use megapage_systemd::{UnitName, processes};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Free unused parts of huge pages: split huge pages that hold many zeros, so that the kernel frees
/// the zeros.
///
/// The contents of memory stay. Needs Linux 6.12, and root or CAP_SYS_NICE and CAP_SYS_PTRACE. Exit
/// status: 0 all done; 1 only a part done; 2 bad input, or not possible.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// PIDs, or systemd services
    #[arg(value_name = "PID|UNIT", required = true)]
    targets: Vec<String>,
    /// Split huge pages that hold at least this amount of zeros: 4k to 2m
    #[arg(long, value_name = "SIZE", default_value = "256k")]
    least: Bytes,
    /// Change nothing; print what would be split, as shell lines
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.reclaim/1)
    #[arg(long)]
    json: bool,
}

/// Most time for each process.
const LONGEST: Duration = Duration::from_secs(10);

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let page = BASE_PAGE as u64;
    if !(page..=HUGE_2M as u64).contains(&args.least.0) || !args.least.0.is_multiple_of(page) {
        bail!("--least {}: give a multiple of 4k, from 4k to 2m", args.least);
    }
    let least = (args.least.0 / page) as u16;
    let bounds = Bounds { time: LONGEST, ..Bounds::default() };
    let mut all: Vec<Reclaimed> = Vec::new();
    let mut failed = 0;
    let mut promotions = Promotions::default();
    let pids = pids(&root, &args.targets)?;
    for pid in &pids {
        let done = Reclaim { pid: *pid, least, bounds }.look(&root).and_then(|found| match args.dry_run {
            true => Ok(found),
            false => found.apply(&root, &mut promotions),
        });
        match done {
            Ok(done) => all.push(done),
            // With several processes, one that ends meanwhile or is denied does not stop the
            // others.
            Err(error) if pids.len() > 1 => {
                say(&error);
                failed += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if all.is_empty() {
        bail!("no process could be looked at");
    }
    let report = Applied { applied: !args.dry_run, what: BTreeMap::from([("processes", &all)]) };
    answer(args.json, "megapage.reclaim/1", &report, || reclaimed(&all, args.dry_run))?;
    // Pages that the process itself freed since the look cannot be split any more, and are no
    // failure.
    let short = all
        .iter()
        .filter_map(|one| one.outcome)
        .any(|it| it.skipped() + it.not_splittable + it.not_tried > 0);
    Ok(ExitCode::from(u8::from(short || failed > 0)))
}

fn pids(root: &KernelRoot, targets: &[String]) -> Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for target in targets {
        match target.parse::<i32>() {
            Ok(pid) if pid > 0 => pids.push(Pid(pid)),
            Ok(_) => bail!("'{target}' is not the number of a process"),
            Err(_) => {
                let found = processes(root, &UnitName::parse(target)?)?;
                if found.is_empty() {
                    return Err(anyhow!("{target}: the service does not run"));
                }
                pids.extend(found);
            }
        }
    }
    pids.sort();
    pids.dedup();
    Ok(pids)
}
