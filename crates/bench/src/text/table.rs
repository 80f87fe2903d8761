//! The report as text.

use super::{Report, Row};
use crate::run::{Spread, gates_table, heading};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = format!("bench text, {} interleaved rounds\n", report.runs);
    text += &heading(&report.head);
    for case in super::CASES {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.case == case).collect();
        let Some(first) = rows.first() else { continue };
        let mut figures: Vec<&String> = first.ns.keys().collect();
        figures.sort_by_key(|figure| (figure.len(), *figure));
        let mut header = vec!["way"];
        header.extend(figures.iter().map(|figure| figure.as_str()));
        header.extend(["huge", "moving"]);
        let lines: Vec<Vec<String>> = rows.iter().map(|row| line(row, &figures)).collect();
        writeln!(text, "\n{case}: {}", legend(case)).ok();
        writeln!(text, "{}", table(&header, lines).trim_end()).ok();
    }
    for absent in &report.absent {
        writeln!(text, "absent: {}: {}", absent.way, absent.why).ok();
    }
    for row in &report.rows {
        for failure in &row.failures {
            writeln!(text, "! {} {}: {failure}", row.case, row.way).ok();
        }
    }
    for finding in &report.findings {
        writeln!(text, "{finding}").ok();
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn legend(case: &str) -> &'static str {
    match case {
        "mariadb" | "postgres" => {
            "us of a point select: server's processor time, 99th percentile, duration; and how many times less than none"
        }
        "node" => "us of an iteration: processor time; and how many times less than none",
        "generated" => "ns of a call by hot pages of code, and how many times faster than none",
        _ => "ms of user time, and how many times faster than none",
    }
}

fn line(row: &Row, figures: &[&String]) -> Vec<String> {
    let median = |values: &[f64]| Spread::of(values.iter().copied()).map(|it| it.median);
    let mut cells = vec![row.way.to_string()];
    for figure in figures {
        let value = row.ns.get(*figure).and_then(|ns| median(ns));
        // A run of the compiler takes milliseconds, a transaction microseconds, a call nanoseconds.
        let unit = match row.case {
            "generated" => 1.0,
            "cc1plus" => 1e6,
            _ => 1e3,
        };
        let value = value.map(|ns| ns / unit);
        let gain = row.gains.get(*figure).filter(|_| row.way != super::Way::BASELINE.name());
        cells.push(match (value, gain) {
            (Some(value), Some(gain)) => format!("{value:.1} {:.2}x", gain.median),
            (Some(value), None) => format!("{value:.1}"),
            (None, _) => "-".into(),
        });
    }
    let huge = median(&row.huge_bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<f64>>());
    cells.push(huge.map_or("-".into(), |bytes| Bytes(bytes as u64).to_string()));
    cells.push(median(&row.moving_ms).map_or("-".into(), |ms| format!("{ms:.1} ms")));
    cells
}
