//! `megapage thp`.

use crate::flags::Root;
use crate::output::{print, shown_path};
use anyhow::Result;
use megapage_act::thp::{Persist, Step, apply, commands, find, get, persist, plan};
use megapage_kernel::KernelRoot;
use megapage_report::{json, table};
use serde::Serialize;
use std::process::ExitCode;

/// Show, set and keep the machine's settings of transparent huge pages.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Get(GetArgs),
    Set(SetArgs),
    Persist(PersistArgs),
}

/// Show settings: enabled, defrag, shmem_enabled, khugepaged/..., and those of each size.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// Only these settings: enabled, khugepaged/max_ptes_none, 64k, 64k/shmem
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON (schema megapage.thp-get/1)
    #[arg(long)]
    json: bool,
}

/// Set them now: all, or none where one is refused. They hold until the next boot.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// Such as enabled=madvise, 64k=inherit, khugepaged/max_ptes_none=0
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Change nothing; print the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.thp-set/1)
    #[arg(long)]
    json: bool,
}

/// Keep them over a reboot, by /etc/tmpfiles.d; names what else sets the same. A call states the whole.
#[derive(Debug, clap::Args)]
pub struct PersistArgs {
    /// Such as enabled=madvise, 64k=inherit
    #[arg(value_name = "NAME=VALUE", required_unless_present = "remove")]
    settings: Vec<String>,
    /// Remove what was kept
    #[arg(long, conflicts_with = "settings")]
    remove: bool,
    /// Change nothing; print the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    root: Root,
    /// Print JSON (schema megapage.thp-persist/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    value: String,
    takes: Vec<String>,
}

#[derive(Serialize)]
struct All<'a> {
    settings: &'a [Shown],
}

#[derive(Serialize)]
struct Changed<'a> {
    applied: bool,
    settings: &'a [Step],
}

#[derive(Serialize)]
struct Kept<'a> {
    applied: bool,
    #[serde(flatten)]
    persist: &'a Persist,
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
    let shown: Vec<Shown> =
        chosen.into_iter().map(|it| Shown { name: it.name, value: it.value, takes: it.words }).collect();
    if args.json {
        print(&(json("megapage.thp-get/1", &All { settings: &shown }) + "\n"))?;
        return Ok(());
    }
    let rows = shown.into_iter().map(|it| {
        let takes = if it.takes.is_empty() { "a number".into() } else { it.takes.join(" ") };
        [it.name, it.value, takes]
    });
    let text = table(&["SETTING", "VALUE", "TAKES"], rows);
    print(&(text.trim_end().to_string() + "\n"))?;
    Ok(())
}

fn set(kernel: &KernelRoot, args: &SetArgs) -> Result<()> {
    let steps = plan(kernel, &args.settings)?;
    if !args.dry_run {
        apply(kernel, &steps)?;
    }
    if args.json {
        let report = Changed { applied: !args.dry_run, settings: &steps };
        print(&(json("megapage.thp-set/1", &report) + "\n"))?;
        return Ok(());
    }
    let mut text = String::new();
    if args.dry_run {
        text.extend(commands(&steps).into_iter().map(|line| line + "\n"));
    }
    for step in &steps {
        if step.before == step.after {
            text += &format!("# {} is {} already\n", step.name, step.after);
        } else if !args.dry_run {
            text += &format!("{}: {} (was {})\n", step.name, step.after, step.before);
        }
    }
    print(&text)?;
    Ok(())
}

fn keep(kernel: &KernelRoot, args: &PersistArgs) -> Result<()> {
    let root = args.root.path()?;
    let steps = if args.remove { Vec::new() } else { plan(kernel, &args.settings)? };
    let kept = persist(kernel, root, &steps)?;
    if !args.dry_run {
        kept.apply()?;
    }
    if args.json {
        print(&(json("megapage.thp-persist/1", &Kept { applied: !args.dry_run, persist: &kept }) + "\n"))?;
        return Ok(());
    }
    let mut text = String::new();
    let path = shown_path(&kept.path);
    match (kept.is_no_op(), args.dry_run) {
        (true, _) if args.remove => text += "# Nothing is kept.\n",
        (true, _) => text += &format!("# {path} is already as requested.\n"),
        (false, true) => text.extend(kept.commands().into_iter().map(|line| line + "\n")),
        (false, false) if args.remove => text += &format!("removed {path}\n"),
        (false, false) => text += &format!("wrote {path}\n"),
    }
    for note in &kept.notes {
        text += &format!("# Note: {note}.\n");
    }
    if !args.remove && !kept.is_no_op() {
        text += "# To take effect now: megapage thp set with the same words\n";
    }
    print(&text)?;
    Ok(())
}
