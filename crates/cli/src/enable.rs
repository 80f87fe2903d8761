//! `megapage enable` and `megapage disable`.

use crate::flags::{Backing, Root};
use crate::output::{answer, print, say};
use crate::run::{broker_socket, heap};
use anyhow::{Context, Result, anyhow, bail};
use megapage_kernel::KernelRoot;
use megapage_launch::request::{Heap, Request, Text, TextRequest};
use megapage_report::{Applied, json, lines, services, shown_path};
use megapage_systemd::{Asked, Change, Manager, UnitName, disable, enable, enabled, ended, find, starting};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

/// Enable huge pages for a systemd service, by one drop-in.
///
/// Reads the unit with its drop-ins, and writes /etc/systemd/system/UNIT.d/50-megapage.conf. The
/// service starts as before: readiness, main process and confinement do not change. `megapage
/// disable UNIT` removes the drop-in.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The service, or a program that exactly one service starts
    #[arg(value_name = "UNIT|PROGRAM")]
    unit: String,
    /// For drop-ins: takes note of the end of a run
    #[arg(long, hide = true, conflicts_with = "starting")]
    ended: bool,
    /// For drop-ins: prepares a start
    #[arg(long, hide = true)]
    starting: bool,
    #[command(flatten)]
    backing: Backing,
    /// Take the heap's first pages from the broker (megapage pool serve) of this name or at this
    /// path
    #[arg(long, value_name = "NAME|PATH")]
    pool: Option<String>,
    /// Huge pages for the program's code: file or none
    #[arg(long, value_name = "KIND", default_value = "none")]
    text: Text,
    #[command(flatten)]
    way: Way,
}

/// Undo `megapage enable`: remove only the files that it has written.
#[derive(Debug, clap::Args)]
pub(crate) struct DisableArgs {
    /// The service
    #[arg(value_name = "UNIT", required_unless_present = "all")]
    unit: Option<String>,
    /// Disable all enabled services; exit status 1 if some stay enabled
    #[arg(long, conflicts_with = "unit")]
    all: bool,
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
    if args.ended || args.starting {
        return note(root, &UnitName::parse(&args.unit)?, args.ended);
    }
    let unit = find(root, &args.unit)?;
    let request = request(&args)?;
    let launcher = std::env::current_exe().context("own executable")?;
    let change = enable(&KernelRoot::live(), root, &unit, &Asked { request, launcher })?;
    finish("megapage.enable/1", &change, &args.way)
}

pub fn disable_main(args: DisableArgs) -> Result<ExitCode> {
    let root = args.way.root.path()?;
    let Some(text) = &args.unit else { return disable_all(root, &args.way) };
    let unit = match find(root, text) {
        Ok(unit) => unit,
        // The unit may be gone while its drop-in remains.
        Err(error) => UnitName::parse(text).map_err(|_| error)?,
    };
    finish("megapage.disable/1", &disable(root, &unit)?, &args.way)
}

/// Disables all services that can be, and names the others. Packages call it before they are
/// removed.
fn disable_all(root: &Path, way: &Way) -> Result<ExitCode> {
    let (mut changes, mut failed) = (Vec::new(), false);
    for unit in enabled(root)? {
        match disable(root, &unit) {
            Ok(change) => changes.push(change),
            Err(error) => {
                say(error);
                failed = true;
            }
        }
    }
    let manager = Manager::of(root).filter(|_| !way.dry_run && !changes.is_empty());
    if !way.dry_run {
        changes.iter().try_for_each(Change::apply)?;
    }
    if let Some(manager) = manager {
        manager.reload()?;
        if way.now {
            changes.iter().try_for_each(|change| manager.restart(change.name()))?;
        }
    }
    let applied = !way.dry_run;
    let report = Applied { applied, what: BTreeMap::from([("services", &changes)]) };
    answer(way.json, "megapage.disable-all/1", &report, || {
        let done = if applied { "is off again" } else { "would be off again" };
        lines(changes.iter().map(|change| format!("{}: {done} from its next start on", change.unit)))
    })?;
    Ok(ExitCode::from(u8::from(failed)))
}

/// Notes the end of a service's run, or prepares a start. systemd calls it after each run of a
/// service, and before some.
fn note(root: &Path, unit: &UnitName, has_ended: bool) -> Result<ExitCode> {
    let kernel = KernelRoot::live();
    if !has_ended {
        starting(&kernel, root, unit)?;
        return Ok(ExitCode::SUCCESS);
    }
    let result = std::env::var("SERVICE_RESULT").unwrap_or_default();
    let lived = Manager::of(root).and_then(|manager| manager.lived(unit).ok().flatten());
    if ended(&kernel, root, unit, &result, lived)? {
        say(format!("{unit} failed twice within a minute of its start: the next start is without megapage"));
    }
    Ok(ExitCode::SUCCESS)
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
        heed_verdict: true,
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
    let mut text = services::explained(change);
    if change.is_no_op() {
        text += &format!("{} is already as requested.\n", shown_path(&change.path));
    } else {
        text += &change.diff();
    }
    if way.dry_run {
        let commands = change.commands();
        if !commands.is_empty() {
            text += "# Nothing is changed. The equivalent shell lines:\n";
        }
        text += &lines(commands);
        if way.now {
            text += &format!("systemctl try-restart {}\n", change.unit);
        }
    } else {
        text += &next(change, manager, restarted)?;
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the next step for the user.
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
