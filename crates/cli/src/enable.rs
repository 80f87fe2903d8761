//! `megapage enable` and `megapage disable`.

use crate::flags::{Backing, Root};
use crate::output::{print, shown_path};
use crate::run::{broker_socket, heap};
use anyhow::{Context, Result, anyhow, bail};
use megapage_kernel::KernelRoot;
use megapage_launch::request::{Heap, Request, Text, TextRequest};
use megapage_report::json;
use megapage_systemd::{Asked, Change, Manager, UnitName, disable, enable, find};
use serde::Serialize;
use std::process::ExitCode;

/// Put a systemd service on huge pages: writes one drop-in, and shows it.
///
/// Reads the unit with its drop-ins, and writes /etc/systemd/system/UNIT.d/50-megapage.conf. The service starts as before:
/// readiness, main process and confinement stay. `megapage disable UNIT` removes the file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The service, or a program that one service starts
    #[arg(value_name = "UNIT|PROGRAM")]
    unit: String,
    #[command(flatten)]
    backing: Backing,
    /// Take the heap's first pages from the broker of pre-zeroed pages of this name, or at this path
    #[arg(long, value_name = "NAME|PATH")]
    pool: Option<String>,
    /// The backing of the program's text: file or none
    #[arg(long, value_name = "KIND", default_value = "none")]
    text: Text,
    #[command(flatten)]
    way: Way,
}

/// Take a service off again: removes what `megapage enable` has written, and nothing else.
#[derive(Debug, clap::Args)]
pub struct DisableArgs {
    /// The service
    #[arg(value_name = "UNIT")]
    unit: String,
    #[command(flatten)]
    way: Way,
}

#[derive(Debug, clap::Args)]
struct Way {
    /// Restart the service, if it runs
    #[arg(long)]
    now: bool,
    /// Change nothing; print the diff and the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    root: Root,
    /// Print JSON (schema megapage.enable/1, megapage.disable/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    applied: bool,
    reloaded: bool,
    restarted: bool,
    diff: String,
    #[serde(flatten)]
    change: &'a Change,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = args.way.root.path()?;
    let unit = find(root, &args.unit)?;
    let request = request(&args)?;
    let launcher = std::env::current_exe().context("own executable")?;
    let change = enable(&KernelRoot::live(), root, &unit, &Asked { request, launcher })?;
    finish("megapage.enable/1", &change, &args.way)
}

pub fn disable_main(args: DisableArgs) -> Result<ExitCode> {
    let root = args.way.root.path()?;
    let unit = match find(root, &args.unit) {
        Ok(unit) => unit,
        // Its unit may be gone, and the drop-in be left.
        Err(error) => UnitName::parse(&args.unit).map_err(|_| error)?,
    };
    finish("megapage.disable/1", &disable(root, &unit)?, &args.way)
}

fn request(args: &Args) -> Result<Request> {
    let backing = &args.backing;
    let refused = |(_, why): (u8, String)| anyhow!(why);
    if args.pool.is_some() && backing.heap == Heap::None {
        bail!("--pool asks for huge pages, and --heap none for none: leave one out");
    }
    Ok(Request {
        heap: heap(backing.heap, backing.thp).map_err(refused)?,
        pool: args.pool.as_deref().map(broker_socket).transpose().map_err(refused)?,
        shm: backing.shm,
        text: TextRequest { kind: args.text, ..TextRequest::default() },
        mechanism: backing.mechanism.0,
        return_after: backing.return_after,
        fork: backing.fork,
        children: backing.children,
        jvm: backing.jvm,
        thp: backing.thp,
        profile: true,
        ..Request::plain("")
    })
}

fn finish(schema: &str, change: &Change, way: &Way) -> Result<ExitCode> {
    let manager = if way.dry_run { None } else { Manager::of(way.root.path()?) };
    let (mut reloaded, mut restarted) = (false, false);
    if !way.dry_run {
        change.apply()?;
        if let Some(manager) = manager {
            manager.reload()?;
            reloaded = true;
            if way.now {
                manager.restart(change.name())?;
                restarted = true;
            }
        }
    }
    if way.json {
        let report = Report { applied: !way.dry_run, reloaded, restarted, diff: change.diff(), change };
        print(&(json(schema, &report) + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = explained(change);
    if change.is_no_op() {
        text += &format!("{} is already as requested.\n", shown_path(&change.path));
    } else {
        text += &change.diff();
    }
    if way.dry_run {
        let lines = change.commands();
        if !lines.is_empty() {
            text += "# Nothing is changed. The equivalent shell lines:\n";
        }
        text.extend(lines.into_iter().map(|line| line + "\n"));
        if way.now {
            text += &format!("systemctl try-restart {}\n", change.unit);
        }
    } else {
        text += &next(change, manager, restarted)?;
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The decision and its reasons.
fn explained(change: &Change) -> String {
    let Some(decision) = &change.decision else { return String::new() };
    let way = match decision.way {
        megapage_systemd::Way::Environment => "by its environment",
        megapage_systemd::Way::Launcher => "by the launcher, which the program replaces",
    };
    let mut text = format!("{}: {way}: {}\n", change.unit, decision.why);
    for one in decision.mechanisms.iter().filter(|one| one.used) {
        text += &format!("  {}: {}\n", one.mechanism, one.reason);
    }
    for added in &decision.additions {
        text += &format!("  added {}: {}\n", added.line, added.why);
    }
    for note in &decision.notes {
        text += &format!("  note: {note}\n");
    }
    text
}

/// What is left to do.
fn next(change: &Change, manager: Option<Manager>, restarted: bool) -> Result<String> {
    let unit = &change.unit;
    Ok(match manager {
        None => "systemd does not run here: the next start of the service takes it up.\n".into(),
        Some(_) if restarted => format!("{unit} was restarted, if it ran.\n"),
        Some(manager) => match manager.state(change.name())?.main {
            Some(pid) => format!("{unit} runs as before (process {pid}) until: systemctl restart {unit}\n"),
            None => format!("{unit} does not run; its next start takes it up.\n"),
        },
    })
}
