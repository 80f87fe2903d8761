//! Enabled services, and the changes to their units.

use crate::text::{cells, or_dash};
use crate::{shown_path, table};
use megapage_launch::verdict::date;
use megapage_systemd::{Change, Enabled, Running};
use megapage_units::Bytes;

/// Returns the table of enabled services, with remarks on them.
pub fn enabled(enabled: &[Enabled]) -> String {
    if enabled.is_empty() {
        return "No service is enabled; megapage enable UNIT does it.\n".into();
    }
    let mut text = table(
        &["UNIT", "SINCE", "STATE", "MAIN PID", "MEMORY", "HUGE", "SHARE"],
        enabled.iter().flat_map(rows),
    );
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
    if one.services.is_empty() {
        return vec![cells![one.unit, since, "-", "-", "-", "-", "-"]];
    }
    let row = |running: &Running| {
        let of = |bytes: Bytes| or_dash((running.processes > 0).then_some(bytes));
        cells![
            running.unit,
            since,
            running.state,
            or_dash(running.main_pid),
            of(running.memory.total()),
            of(running.memory.huge()),
            or_dash(running.huge_share.map(|share| format!("{:.1} %", share * 100.0))),
        ]
    };
    one.services.iter().map(row).collect()
}

/// Returns the decision and its reasons.
pub fn explained(change: &Change) -> String {
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
