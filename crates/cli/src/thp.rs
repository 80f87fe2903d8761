//! `megapage thp`.

use crate::flags::{DryRun, Root};
use crate::output::answer;
use anyhow::Result;
use megapage_act::thp::{apply, find, get, persist, plan};
use megapage_kernel::KernelRoot;
use megapage_report::Applied;
use megapage_report::thp::{Shown, changed, kept as human, settings};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Show, set and persist the machine's settings of transparent huge pages.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Get(GetArgs),
    Set(SetArgs),
    Persist(PersistArgs),
}

/// Show settings: enabled, defrag, shmem_enabled, khugepaged/..., and the settings of each page
/// size.
#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// Only these settings: enabled, khugepaged/max_ptes_none, 64k, 64k/shmem
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON (schema megapage.thp-get/1)
    #[arg(long)]
    json: bool,
}

/// Change settings until the next boot: all of them, or none if the kernel refuses one.
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// Settings, such as enabled=madvise, 64k=inherit, khugepaged/max_ptes_none=0
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    dry_run: DryRun,
    /// Print JSON (schema megapage.thp-set/1)
    #[arg(long)]
    json: bool,
}

/// Keep settings over reboots, by /etc/tmpfiles.d.
///
/// Settings that a call does not name are dropped. The output names other files and services with
/// the same settings.
#[derive(Debug, clap::Args)]
pub(crate) struct PersistArgs {
    /// Settings, such as enabled=madvise, 64k=inherit
    #[arg(value_name = "NAME=VALUE", required_unless_present = "remove")]
    settings: Vec<String>,
    /// Remove all kept settings
    #[arg(long, conflicts_with = "settings")]
    remove: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    root: Root,
    /// Print JSON (schema megapage.thp-persist/1)
    #[arg(long)]
    json: bool,
}

pub fn main(command: Command) -> Result<ExitCode> {
    let kernel = KernelRoot::live();
    match command {
        Command::Get(args) => show(&kernel, &args)?,
        Command::Set(args) => set(&kernel, &args)?,
        Command::Persist(args) => keep(&kernel, &args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(kernel: &KernelRoot, args: &GetArgs) -> Result<()> {
    let all = get(kernel)?;
    let chosen = match args.names.is_empty() {
        true => all,
        false => args.names.iter().map(|name| find(&all, name).cloned()).collect::<Result<Vec<_>, _>>()?,
    };
    let shown: Vec<Shown<'_>> = chosen.iter().map(Shown::from).collect();
    answer(args.json, "megapage.thp-get/1", &BTreeMap::from([("settings", &shown)]), || settings(&shown))?;
    Ok(())
}

fn set(kernel: &KernelRoot, args: &SetArgs) -> Result<()> {
    let steps = plan(kernel, &args.settings)?;
    if !args.dry_run.asked {
        apply(kernel, &steps)?;
    }
    let report = Applied { applied: !args.dry_run.asked, what: BTreeMap::from([("settings", &steps)]) };
    answer(args.json, "megapage.thp-set/1", &report, || changed(&steps, args.dry_run.asked))?;
    Ok(())
}

fn keep(kernel: &KernelRoot, args: &PersistArgs) -> Result<()> {
    let root = args.root.path()?;
    let steps = if args.remove { Vec::new() } else { plan(kernel, &args.settings)? };
    let kept = persist(kernel, root, &steps)?;
    if !args.dry_run.asked {
        kept.apply()?;
    }
    let report = Applied { applied: !args.dry_run.asked, what: &kept };
    answer(args.json, "megapage.thp-persist/1", &report, || human(&kept, args.remove, args.dry_run.asked))?;
    Ok(())
}
