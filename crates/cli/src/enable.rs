//! `megapage enable` and `megapage disable`.

use crate::output::{print, shown_path};
use crate::run::{Choice, broker_socket, heap, mechanism};
use anyhow::{Context, Result, anyhow, bail};
use megapage_kernel::KernelRoot;
use megapage_launch::request::{Fork, Heap, OwnThp, Request, ReturnAfter, Shm, Text, TextRequest};
use megapage_report::json;
use megapage_systemd::{Asked, Change, Manager, UnitName, disable, enable, find};
use serde::Serialize;
use std::path::{Path, PathBuf};
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
    /// The backing of the heap: auto, 1g, 2m, thp or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    heap: Heap,
    /// Take the heap's first pages from the broker of pre-zeroed pages of this name, or at this path
    #[arg(long, value_name = "NAME|PATH")]
    pool: Option<String>,
    /// The backing of its shared memory: 2m, thp, auto or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    shm: Shm,
    /// The backing of the program's text: file or none
    #[arg(long, value_name = "KIND", default_value = "none")]
    text: Text,
    /// How the program is reached: auto, preload, tunable, runtime or outside
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = mechanism)]
    mechanism: Choice,
    /// Give freed memory back after this time, such as 500ms, 1s, 2m, or never
    #[arg(long, value_name = "TIME", default_value = "1s")]
    return_after: ReturnAfter,
    /// What the program forks for: auto, cheap (to start programs) or snapshot (to save its memory)
    #[arg(long, value_name = "WHY", default_value = "auto")]
    fork: Fork,
    /// Let the program's children run with the preloaded library too
    #[arg(long)]
    children: bool,
    /// The unit starts a JVM by a script: its options go through JAVA_TOOL_OPTIONS
    #[arg(long)]
    jvm: bool,
    /// Transparent huge pages of the service: never, or advised (only where asked for; Linux 6.18)
    #[arg(long, value_name = "KIND", default_value = "settings")]
    thp: OwnThp,
    /// Restart the service, if it runs
    #[arg(long)]
    now: bool,
    /// Change nothing; print the diff and the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    /// Work on the files below this directory, such as an image's root
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON (schema megapage.enable/1)
    #[arg(long)]
    json: bool,
}

/// Take a service off again: removes what `megapage enable` has written, and nothing else.
#[derive(Debug, clap::Args)]
pub struct DisableArgs {
    /// The service
    #[arg(value_name = "UNIT")]
    unit: String,
    /// Restart the service, if it runs
    #[arg(long)]
    now: bool,
    /// Change nothing; print the diff and the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    /// Work on the files below this directory, such as an image's root
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON (schema megapage.disable/1)
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
    let unit = unit(&args.root, &args.unit)?;
    let request = request(&args)?;
    let launcher = std::env::current_exe().context("own executable")?;
    let change = enable(&KernelRoot::live(), &args.root, &unit, &Asked { request, launcher })?;
    finish(
        "megapage.enable/1",
        &change,
        &Way { now: args.now, dry_run: args.dry_run, json: args.json, root: &args.root },
    )
}

pub fn disable_main(args: DisableArgs) -> Result<ExitCode> {
    if !args.root.is_dir() {
        bail!("--root '{}' is not a directory", args.root.display());
    }
    let unit = match find(&args.root, &args.unit) {
        Ok(unit) => unit,
        // Its unit may be gone, and the drop-in be left.
        Err(error) => UnitName::parse(&args.unit).map_err(|_| error)?,
    };
    let change = disable(&args.root, &unit)?;
    finish(
        "megapage.disable/1",
        &change,
        &Way { now: args.now, dry_run: args.dry_run, json: args.json, root: &args.root },
    )
}

fn unit(root: &Path, text: &str) -> Result<UnitName> {
    if !root.is_dir() {
        bail!("--root '{}' is not a directory", root.display());
    }
    Ok(find(root, text)?)
}

fn request(args: &Args) -> Result<Request> {
    let refused = |(_, why): (u8, String)| anyhow!(why);
    if args.pool.is_some() && args.heap == Heap::None {
        bail!("--pool asks for huge pages, and --heap none for none: leave one out");
    }
    Ok(Request {
        heap: heap(args.heap, args.thp).map_err(refused)?,
        pool: args.pool.as_deref().map(broker_socket).transpose().map_err(refused)?,
        shm: args.shm,
        text: TextRequest { kind: args.text, ..TextRequest::default() },
        mechanism: args.mechanism.0,
        return_after: args.return_after,
        fork: args.fork,
        children: args.children,
        jvm: args.jvm,
        thp: args.thp,
        profile: true,
        ..Request::plain("")
    })
}

struct Way<'a> {
    now: bool,
    dry_run: bool,
    json: bool,
    root: &'a Path,
}

fn finish(schema: &str, change: &Change, way: &Way) -> Result<ExitCode> {
    let manager = if way.dry_run { None } else { Manager::of(way.root) };
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
