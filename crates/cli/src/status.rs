//! `megapage status`.

use crate::flags::Root;
use crate::output::{print, shown_path};
use anyhow::Result;
use megapage_kernel::{KernelRoot, why_off};
use megapage_launch::verdict::date;
use megapage_launch::verdict::{self, Verdict};
use megapage_report::{json, table};
use megapage_systemd::{Enabled, Running, SystemdError, UnitName, find, status};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Show the services that `megapage enable` has put on huge pages: since when, whether they run, what they have, and what trials
/// have found.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this service
    #[arg(value_name = "UNIT")]
    unit: Option<String>,
    #[command(flatten)]
    root: Root,
    /// Print JSON (schema megapage.status/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    /// The switch that turns megapage off; `null` if it is on.
    off: Option<String>,
    services: &'a [Enabled],
    /// Findings of trials of the named service, or of all services if none is named.
    trials: &'a [&'a Verdict],
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = args.root.path()?;
    let only = match &args.unit {
        None => None,
        Some(text) => Some(match find(root, text) {
            Ok(unit) => unit,
            Err(error) => UnitName::parse(text).map_err(|_| error)?,
        }),
    };
    let known = verdicts(root);
    let is_meant = |it: &&Verdict| only.as_ref().is_none_or(|unit| it.is_meant_by(unit.as_str()));
    let trials: Vec<&Verdict> = known.iter().filter(is_meant).collect();
    let enabled = match status(&KernelRoot::live(), root, only.as_ref()) {
        // A trial does not need an enabled service.
        Err(SystemdError::NotEnabled { .. }) if !trials.is_empty() => Vec::new(),
        enabled => enabled?,
    };
    let off = why_off(&KernelRoot::live());
    let head = off.as_ref().map(|why| format!("megapage is off: {why}. Services start as without it.\n"));
    let head = head.unwrap_or_default();
    print(&match args.json {
        true => json("megapage.status/1", &Report { off, services: &enabled, trials: &trials }) + "\n",
        false if trials.is_empty() => head + &human(&enabled),
        false if enabled.is_empty() => head + &crate::trial::verdicts(&trials),
        false => head + &human(&enabled) + "\n" + &crate::trial::verdicts(&trials),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the findings of trials on this machine, the latest first.
fn verdicts(root: &Path) -> Vec<Verdict> {
    if root != Path::new("/") {
        return Vec::new();
    }
    // If none can be read, none are shown.
    let all = verdict::store().ok().and_then(|store| verdict::all(&store).ok()).unwrap_or_default();
    all.into_iter().filter_map(|it| it.content.ok()).collect()
}

fn human(enabled: &[Enabled]) -> String {
    if enabled.is_empty() {
        return "No service is enabled; megapage enable UNIT does it.\n".into();
    }
    let mut text = table(
        &["UNIT", "SINCE", "STATE", "MAIN PID", "MEMORY", "HUGE", "SHARE"],
        enabled.iter().flat_map(rows),
    );
    if !text.ends_with('\n') {
        text.push('\n');
    }
    for one in enabled {
        if !one.options.is_empty() {
            text += &format!("{}: options {}\n", one.unit, one.options);
        }
        if one.changed {
            text += &format!("{}: {} was changed since megapage wrote it\n", one.unit, shown_path(&one.path));
        }
        for running in &one.services {
            if let Some(reason) = &running.reason {
                text += &format!("{}: {reason}\n", running.unit);
            }
        }
    }
    text
}

fn rows(one: &Enabled) -> Vec<[String; 7]> {
    let since = date(one.since);
    let unknown = || "-".to_string();
    if one.services.is_empty() {
        return vec![[one.unit.clone(), since, unknown(), unknown(), unknown(), unknown(), unknown()]];
    }
    let row = |running: &Running| {
        let seen = running.processes > 0;
        let of = |text: String| if seen { text } else { "-".into() };
        [
            running.unit.clone(),
            since.clone(),
            running.state.clone(),
            running.main_pid.map_or_else(unknown, |pid| pid.to_string()),
            of(running.memory.total().to_string()),
            of(running.memory.huge().to_string()),
            running.huge_share.map_or_else(unknown, |share| format!("{:.1} %", share * 100.0)),
        ]
    };
    one.services.iter().map(row).collect()
}
