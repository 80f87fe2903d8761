//! The report as text.

use super::{Gain, Report, Row};
use crate::run::{Spread, gates_table, heading};
use megapage_report::line::{Paint, Style, show, wrap};
use megapage_report::{WIDTH, table};
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
        text += &lines(&format!("absent: {}: {}", absent.way, absent.why));
    }
    for row in &report.rows {
        for failure in &row.failures {
            text += &lines(&format!("! {} {}: {failure}", row.case, row.way));
        }
    }
    if !report.findings.is_empty() {
        text += "\nProcessor time, how many times less than none, and than none again; what both intervals show:\n";
        let gain = |gain: &Gain| format!("{:.3} ({:.3} to {:.3})", gain.median, gain.low, gain.high);
        let rows = report.findings.iter().map(|finding| {
            [
                finding.case.to_string(),
                finding.way.into(),
                gain(&finding.to_none),
                finding.to_again.as_ref().map_or(String::new(), gain),
                finding.shown.words().into(),
            ]
        });
        writeln!(text, "{}", table(&["program", "way", "to none", "to again", "shown"], rows).trim_end())
            .ok();
    }
    for walks in &report.walks {
        let (Some(pages), Some(ns)) = (walks.pages(), walks.walk_ns) else {
            text += &lines(&format!("{}: how often it looks its code up was not measured", walks.case));
            continue;
        };
        text += &lines(&format!(
            "{}: in a millisecond it looks {pages:.0} pages of its code up in the page table, {ns:.1} ns each: {:.1} % of its \
             time. Without these walks alone it would be {:.3} times as fast",
            walks.case,
            100.0 * walks.share().unwrap_or(0.0),
            walks.could_gain().unwrap_or(1.0)
        ));
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

/// A long line as several.
fn lines(text: &str) -> String {
    show(&wrap(Style::PLAIN, text, WIDTH as usize), Paint::Plain, WIDTH as usize)
}

fn legend(case: &str) -> &'static str {
    match case {
        "mariadb" | "postgres" => {
            "us of a point select: processor time, 99th percentile, duration; how many times less than none"
        }
        "node" => "us of an iteration: processor time; and how many times less than none",
        "generated" => "ns of a call by hot pages of code, and how many times faster than none",
        _ => "ms of user time, and how many times faster than none",
    }
}

fn line(row: &Row, figures: &[&String]) -> Vec<String> {
    let mut cells = vec![row.way.to_string()];
    for figure in figures {
        let value = row.ns.get(*figure).and_then(|ns| Spread::median_of(ns));
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
    let huge = Spread::median_of(&row.huge_bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<f64>>());
    cells.push(huge.map_or("-".into(), |bytes| Bytes(bytes as u64).to_string()));
    cells.push(Spread::median_of(&row.moving_ms).map_or("-".into(), |ms| format!("{ms:.1} ms")));
    cells
}
