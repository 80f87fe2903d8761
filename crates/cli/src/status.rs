//! `megapage status`.

use crate::flags::Root;
use crate::output::answer;
use anyhow::Result;
use megapage_kernel::{KernelRoot, why_off};
use megapage_launch::verdict::{self, Verdict};
use megapage_report::{services, trial};
use megapage_systemd::{Enabled, SystemdError, UnitName, find, status};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Show the services that `megapage enable` has put on huge pages: since when, if they run, how
/// much of their memory is huge, and results of trials.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    let report = Report { off, services: &enabled, trials: &trials };
    answer(args.json, "megapage.status/1", &report, || {
        let head = head.unwrap_or_default();
        let shown: Vec<(&Verdict, bool)> = trials.iter().map(|it| (*it, it.is_current())).collect();
        match (trials.is_empty(), enabled.is_empty()) {
            (true, _) => head + &services::enabled(&enabled),
            (false, true) => head + &trial::verdicts(&shown),
            (false, false) => head + &services::enabled(&enabled) + "\n" + &trial::verdicts(&shown),
        }
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
