//! Report of a daemon, in a few lines.

use super::Row;
use crate::value::{fit, size, time};
use megapage_snapshot::daemon::{DaemonStatus, Decision, Decisions};
use megapage_units::Bytes;
use megapage_units::shown::one_line;

/// Returns a text on the daemon and its last pass.
pub fn status(status: &DaemonStatus) -> String {
    let mut text = format!("process {}, up {}", status.pid, time(status.running_seconds));
    if !status.policy.is_empty() {
        text = format!("policy {}, {text}", one_line(&status.policy));
    }
    if status.dry_run {
        text += ", dry run: nothing is changed";
    }
    let totals = &status.totals;
    text += &format!(
        "; {} promoted, {} freed in all",
        size(Bytes(totals.promoted_bytes)),
        size(Bytes(totals.freed_bytes))
    );
    let Some(last) = &status.last_pass else { return text + "; no pass yet" };
    text += &format!("; pass {} {} ago", last.number, time(last.ago_seconds));
    text += &match last.actions {
        0 => ", nothing to do".to_string(),
        actions => format!(
            ", {} of {actions} actions, {} promoted, {} freed",
            last.obtained,
            size(Bytes(last.promoted_bytes)),
            size(Bytes(last.freed_bytes))
        ),
    };
    text += &format!("; {} watched", last.watched);
    for (count, what) in
        [(last.skipped, "skipped"), (last.left, "actions deferred"), (last.backed_off, "pauses for latency")]
    {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text + if last.short { "; memory is short" } else { "" }
}

/// Returns the last decisions, newest first, in at most `most` lines of at most `width` columns.
/// Decisions that differ only in the region share a line.
pub fn decisions(decisions: &Decisions, most: usize, width: usize) -> Vec<String> {
    let mut groups: Vec<(&Decision, u64, Bytes, f64)> = Vec::new();
    for one in decisions.decisions.iter().rev() {
        let bytes = Bytes(one.promoted_bytes) + Bytes(one.freed_bytes);
        let full = groups.len() == most;
        match groups.last_mut() {
            Some((newest, count, moved, took)) if alike(newest, one) => {
                *count += 1;
                *moved += bytes;
                *took += one.took_seconds;
            }
            _ if full => break,
            _ => groups.push((one, 1, bytes, one.took_seconds)),
        }
    }
    let text = |(one, count, moved, took): (&Decision, u64, Bytes, f64)| {
        let name = if one.process.is_empty() { "-" } else { &one.process };
        let whom = one.pid.map_or_else(String::new, |pid| format!(" {name} {pid}"));
        let many = if count > 1 { format!(" x{count}") } else { String::new() };
        let why = one.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let dry = if one.dry_run { " (dry run)" } else { "" };
        let text = format!(
            "{} ago {}{many}{whom} ({}) {}{dry}, {} in {}{why}",
            time(one.ago_seconds),
            one.action,
            one.reason,
            one.obtained,
            size(moved),
            milliseconds(took),
        );
        fit(&one_line(&text), width)
    };
    groups.into_iter().map(text).collect()
}

/// Formats a time: below one second to the hundredth of a millisecond, for one action; else as
/// [`time`], for many.
fn milliseconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1e3) } else { time(seconds) }
}

fn alike(one: &Decision, other: &Decision) -> bool {
    let of = |decision: &Decision| {
        (
            decision.at_seconds.to_bits(),
            decision.pid,
            decision.action.clone(),
            decision.reason.clone(),
            decision.obtained.clone(),
        )
    };
    of(one) == of(other)
}

/// Returns the daemon's actions on one process: memory promoted and freed, or the number of
/// attempts in vain.
pub fn done(row: &Row) -> String {
    let Some(done) = row.daemon else { return "-".into() };
    let parts = [('+', done.promoted_bytes), ('-', done.freed_bytes)];
    let moved: Vec<String> = parts
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(sign, bytes)| format!("{sign}{}", size(Bytes(bytes))))
        .collect();
    match (moved.is_empty(), done.obtained) {
        (false, _) => moved.join(" "),
        (true, 0) => format!("0 of {}", done.actions),
        (true, obtained) => format!("{obtained} done"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line;
    use crate::line::Paint;
    use crate::top::{Head, Key, Page, Prompt, Top, screen, table};
    use crate::{WIDTH, synthetic};
    use megapage_snapshot::daemon::{DaemonSeen, PassStatus, ProcessStatus, Totals};

    fn decision(number: u64, pid: i32, action: &str, at: f64) -> Decision {
        Decision {
            number,
            at_seconds: at,
            ago_seconds: 5000.0 - at,
            pid: Some(pid),
            process: "redis-server".into(),
            action: action.into(),
            region: Some("7f2c40000000".into()),
            reason: "gain".into(),
            obtained: "done".into(),
            promoted_bytes: 2 << 20,
            took_seconds: 0.0015,
            ..Decision::default()
        }
    }

    fn seen() -> DaemonSeen {
        let mut decided: Vec<Decision> =
            (0..37).map(|number| decision(number, 4711, "promote", 4998.0)).collect();
        decided.push(Decision {
            obtained: "busy".into(),
            promoted_bytes: 0,
            why: Some(format!("EAGAIN \u{1b}[2J{}", "x".repeat(200))),
            process: "a\u{1b}]0;title\u{7}".into(),
            ..decision(38, 12, "recover", 4999.5)
        });
        let process = |pid, done| ProcessStatus { pid, start_ticks: 100, done, ..ProcessStatus::default() };
        let done = Totals { actions: 40, obtained: 37, promoted_bytes: 74 << 20, freed_bytes: 3 << 30 };
        let status = DaemonStatus {
            pid: 321,
            running_seconds: 90.0,
            policy: "megapage".into(),
            passes: 7,
            last_pass: Some(PassStatus {
                number: 7,
                ago_seconds: 0.4,
                actions: 38,
                obtained: 37,
                promoted_bytes: 74 << 20,
                watched: 12,
                skipped: 2,
                backed_off: 1,
                short: true,
                ..PassStatus::default()
            }),
            totals: done,
            processes: vec![
                process(4711, done),
                process(12, Totals { actions: 2, ..Totals::default() }),
                process(13, Totals { actions: 2, ..Totals::default() }),
            ],
            ..DaemonStatus::default()
        };
        DaemonSeen { status, decisions: Decisions { decisions: decided, ..Decisions::default() } }
    }

    fn head() -> Head {
        synthetic::head(Key::Pid)
    }

    #[test]
    fn absurd_figures_of_what_answers_there_are_shown_as_such() {
        let most = Decision { promoted_bytes: u64::MAX, freed_bytes: 5, ..decision(1, 4711, "promote", 1.0) };
        let seen = Decisions { decisions: vec![most.clone(), most], ..Decisions::default() };
        let lines = decisions(&seen, 5, 100);
        assert!(lines.len() == 1 && lines[0].contains(&size(Bytes(u64::MAX))), "{lines:?}");
    }

    #[test]
    fn the_table_with_a_daemon_looks_as_before() {
        let mut reused = synthetic::process(13, "another");
        reused.id.start_ticks = 7;
        let now = synthetic::snapshot(vec![synthetic::process(12, "idle"), reused, synthetic::store()]);
        let seen = seen();
        let mut top = Top::new(None, &now, &[]).with_daemon(Some(&seen));
        top.sort(Key::Pid, false);
        let text = table(&top, &head(), 100);
        synthetic::assert_golden("top-daemon.txt", &text);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text}");
        let done: Vec<Option<u64>> =
            top.processes.iter().map(|row| row.daemon.map(|done| done.actions)).collect();
        assert_eq!(done, [Some(2), None, Some(40)], "a pid that is used again is another process");
        let json: serde_json::Value = serde_json::from_str(&crate::json(crate::top::SCHEMA, &top)).unwrap();
        assert_eq!(json["daemon"]["status"]["policy"], "megapage");
        assert_eq!(json["daemon"]["decisions"]["decisions"][37]["obtained"], "busy");
        let without = serde_json::to_value(Top::new(None, &now, &[])).unwrap();
        assert!(without["daemon"].is_null() && without.as_object().unwrap().contains_key("daemon"));
    }

    #[test]
    fn a_wide_screen_has_room_for_both_columns_and_none_has_too_many_lines() {
        let now = synthetic::snapshot(vec![synthetic::store()]);
        let seen = seen();
        let top = Top::new(None, &now, &[]).with_daemon(Some(&seen));
        for (columns, sampled) in [(100, false), (123, false), (124, true), (200, true)] {
            let lines = screen(&top, &head(), Page { first: 0, lines: 40, columns }, Prompt::Keys);
            let text = line::show(&lines, Paint::Plain, columns);
            assert!(text.contains("DAEMON") && text.contains("SAMPLED") == sampled, "{columns}: {text}");
            assert!(text.contains("+74M -3G"), "{text}");
        }
        for lines in 0..40 {
            assert!(
                screen(&top, &head(), Page { first: 0, lines, columns: 100 }, Prompt::Keys).len() <= lines
            );
        }
    }

    /// Checks that the smallest usual terminal shows the processes acted on, the decisions, and
    /// their results.
    #[test]
    fn a_small_screen_shows_processes_and_what_the_daemon_did() {
        let stores = (0..12).map(|n| {
            let mut store = synthetic::store();
            store.id.pid = megapage_units::Pid(4711 + n);
            store
        });
        let now = synthetic::snapshot(stores.collect());
        let seen = seen();
        let top = Top::new(None, &now, &[]).with_daemon(Some(&seen));
        let show = |key, lines, columns| {
            let head = Head { key, notes: vec!["a note that says much".repeat(9)], ..head() };
            line::show(
                &screen(&top, &head, Page { first: 0, lines, columns }, Prompt::Keys),
                Paint::Plain,
                columns,
            )
        };
        let text = show(Key::Resident, 24, 80);
        let rows = text.lines().filter(|line| line.trim_start().starts_with("47")).count();
        assert!(rows >= 8, "{text}");
        assert!(text.contains("DAEMON") && text.contains("+74M -3G") && text.contains("Decided"), "{text}");
        assert!(!text.contains("SWAP") && !text.contains("a note"), "{text}");
        assert!(text.ends_with("space refresh\n"), "{text}");
        let text = show(Key::Swap, 24, 80);
        assert!(text.contains("SWAP") && text.contains("DAEMON"), "what it is sorted by: {text}");
        // With room for all columns none is omitted.
        let text = show(Key::Resident, 60, 120);
        assert!(text.contains("SWAP") && text.contains("a note") && text.contains("Pools"), "{text}");
    }

    #[test]
    fn decisions_that_are_alike_are_one_line() {
        let seen = seen();
        let text = decisions(&seen.decisions, 5, 89);
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[1].contains("promote x37 redis-server 4711 (gain) done, 74M in"), "{text:?}");
        assert_eq!(decisions(&seen.decisions, 1, 89).len(), 1);
        assert!(decisions(&seen.decisions, 0, 89).is_empty());
        assert!(status(&DaemonStatus::default()).ends_with("no pass yet"));
    }
}
