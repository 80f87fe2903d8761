//! `megapage segments`: show, check and remove huge memory that outlives programs.

use crate::flags::DryRun;
use crate::output::{answer, print, say};
use anyhow::{Result, bail};
use megapage_kernel::KernelRoot;
use megapage_report::segments::{self as human, Verification};
use megapage_report::{json, shown_path};
use megapage_segment::inventory::{Inventory, Listed, inventory};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show, check and remove segments: named huge memory that outlives its program
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(List),
    Show(Show),
    Remove(Remove),
    Verify(Verify),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// Search this directory besides all mounted hugetlbfs. Repeatable
    #[arg(long, value_name = "DIR")]
    directory: Vec<PathBuf>,
}

/// Show every segment: its size, how much old data it may hold, and if it is in use
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: Where,
    /// Print JSON (schema megapage.segments-list/1)
    #[arg(long)]
    json: bool,
}

/// Show everything about one segment
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// A NAME, APPLICATION/NAME, or path
    #[arg(value_name = "SEGMENT")]
    segment: String,
    #[command(flatten)]
    place: Where,
    /// Print JSON (schema megapage.segments-show/1)
    #[arg(long)]
    json: bool,
}

/// Remove segments that are not in use: their memory returns to the pool, and their data is lost
///
/// Exit status: 0 all removed; 1 some; 2 none.
#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// A NAME, APPLICATION/NAME, or path
    #[arg(value_name = "SEGMENT", required = true)]
    segments: Vec<String>,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    dry_run: DryRun,
    /// Print JSON (schema megapage.segments-remove/1)
    #[arg(long)]
    json: bool,
}

/// Check segments that are not in use: headers, heaps, and that memory marked as clean is zero
///
/// Opens each segment as its program would, and so completes an operation that a kill interrupted.
/// Without a SEGMENT, checks all of the user's segments that are not in use. Exit status: 0 all
/// sound; 1 some damaged or in use; 2 bad input.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A NAME, APPLICATION/NAME, or path
    #[arg(value_name = "SEGMENT")]
    segments: Vec<String>,
    #[command(flatten)]
    place: Where,
    /// Print JSON (schema megapage.segments-verify/1)
    #[arg(long)]
    json: bool,
}

pub fn main(command: Command) -> Result<ExitCode> {
    match command {
        Command::List(args) => list(&args),
        Command::Show(args) => show(&args),
        Command::Remove(args) => remove(&args),
        Command::Verify(args) => verify(&args),
    }
}

impl Where {
    fn look(&self) -> Result<Inventory> {
        Ok(inventory(&KernelRoot::live(), &self.directory)?)
    }
}

fn list(args: &List) -> Result<ExitCode> {
    let found = args.place.look()?;
    answer(args.json, "megapage.segments-list/1", &found, || human::list(&found))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Show) -> Result<ExitCode> {
    let found = args.place.look()?;
    let segment = found.find(&args.segment)?;
    answer(args.json, "megapage.segments-show/1", segment, || human::show(segment))?;
    Ok(ExitCode::SUCCESS)
}

/// Result of one removal.
#[derive(Debug, Serialize)]
struct Removal {
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    path: PathBuf,
    removed: bool,
    /// Memory that returned to the pool, or would return.
    memory_bytes: u64,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Removals {
    dry_run: bool,
    /// Equivalent shell lines.
    commands: Vec<String>,
    segments: Vec<Removal>,
}

fn remove(args: &Remove) -> Result<ExitCode> {
    let found = args.place.look()?;
    // Look up all names before anything is removed.
    let meant: Vec<&Listed> = args.segments.iter().map(|name| found.find(name)).collect::<Result<_, _>>()?;
    let removals: Vec<Removal> = meant.iter().map(|segment| removal(segment, args.dry_run.asked)).collect();
    let report = Removals {
        dry_run: args.dry_run.asked,
        commands: meant.iter().map(|segment| human::removal(segment)).collect(),
        segments: removals,
    };
    if args.json {
        print(&(json("megapage.segments-remove/1", &report) + "\n"))?;
    } else if args.dry_run.asked {
        print(&(report.commands.join("\n") + "\n"))?;
    }
    let removed = report.segments.iter().filter(|segment| segment.removed).count();
    for segment in &report.segments {
        match &segment.error {
            Some(error) => say(error),
            None if segment.removed && !args.json => {
                let memory = megapage_units::Bytes(segment.memory_bytes);
                print(&format!("{}: removed, {memory} released\n", shown_path(&segment.path)))?;
            }
            None => {}
        }
    }
    let failed = report.segments.iter().filter(|segment| segment.error.is_some()).count();
    Ok(match (failed, removed) {
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::from(2),
        _ => ExitCode::from(1),
    })
}

fn removal(segment: &Listed, dry_run: bool) -> Removal {
    let outcome = if dry_run { segment.may_be_removed().map(|()| segment.memory) } else { segment.remove() };
    Removal {
        path: segment.path.clone(),
        removed: outcome.is_ok() && !dry_run,
        memory_bytes: outcome.as_ref().map_or(0, |memory| memory.0),
        error: outcome.err().map(|error| error.to_string()),
    }
}

fn verify(args: &Verify) -> Result<ExitCode> {
    let found = args.place.look()?;
    let meant: Vec<&Listed> = if args.segments.is_empty() {
        found.segments.iter().filter(|segment| segment.is_own()).collect()
    } else {
        args.segments.iter().map(|name| found.find(name)).collect::<Result<_, _>>()?
    };
    if let Some(other) = meant.iter().find(|segment| !segment.is_own()) {
        bail!("{}: only user {} can open it; verify it as that user", other.path.display(), other.uid);
    }
    let verified = meant.into_iter().map(|it| Verification::new(it.path.clone(), it.verify()));
    let segments: Vec<Verification> = verified.collect();
    let report = BTreeMap::from([("segments", &segments)]);
    answer(args.json, "megapage.segments-verify/1", &report, || human::verify(&segments))?;
    Ok(ExitCode::from(u8::from(!segments.iter().all(|segment| segment.sound))))
}
