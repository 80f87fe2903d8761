//! `megapage status`.

use crate::output::{print, shown_path};
use anyhow::{Result, bail};
use megapage_kernel::KernelRoot;
use megapage_launch::profile::date;
use megapage_report::{json, table};
use megapage_systemd::{Enabled, Running, UnitName, find, status};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the services that `megapage enable` has put on huge pages: since when, whether they run, and what they have.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this service
    #[arg(value_name = "UNIT")]
    unit: Option<String>,
    /// Look at the files below this directory, such as an image's root
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON (schema megapage.status/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    services: &'a [Enabled],
}

pub fn main(args: Args) -> Result<ExitCode> {
    if !args.root.is_dir() {
        bail!("--root '{}' is not a directory", args.root.display());
    }
    let only = match &args.unit {
        None => None,
        Some(text) => Some(match find(&args.root, text) {
            Ok(unit) => unit,
            Err(error) => UnitName::parse(text).map_err(|_| error)?,
        }),
    };
    let enabled = status(&KernelRoot::live(), &args.root, only.as_ref())?;
    print(&match args.json {
        true => json("megapage.status/1", &Report { services: &enabled }) + "\n",
        false => human(&enabled),
    })?;
    Ok(ExitCode::SUCCESS)
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
