//! Findings of the experiment, for people.

use super::{Gain, Row, TextFound};
use crate::bench::Spread;
use crate::experiment::Section;
use megapage_units::Bytes;

/// Returns its tables.
pub(super) fn sections(report: &TextFound) -> Vec<Section> {
    let mut sections = Vec::new();
    for case in super::CASES {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.case == case).collect();
        let Some(first) = rows.first() else { continue };
        let mut values: Vec<&String> = first.ns.keys().collect();
        values.sort_by_key(|value| (value.len(), *value));
        let mut header = vec!["way"];
        header.extend(values.iter().map(|value| value.as_str()));
        // Only for servers: the others have no throughput.
        let jitter = rows.iter().any(|row| !row.jitter.is_empty());
        header.extend(jitter.then_some("jitter"));
        header.extend(["huge", "moving"]);
        let lines: Vec<Vec<String>> = rows.iter().map(|row| line(row, &values, jitter)).collect();
        sections.push(Section::new(format!("{case}: {}", legend(case)), &header, lines));
    }
    let absent = report.absent.iter().map(|absent| format!("absent: {}: {}", absent.way, absent.why));
    sections.extend(absent.map(Section::text));
    if !report.findings.is_empty() {
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
        sections.push(Section::new(
            "processor time, how many times less than none, and than none again; what both intervals show",
            &["program", "way", "to none", "to again", "shown"],
            rows,
        ));
    }
    sections.extend(report.walks.iter().map(|walks| Section::text(cost_of(walks))));
    sections
}

/// Describes the share of page walks of code in a program's time.
fn cost_of(walks: &super::Walks) -> String {
    let (Some(pages), Some(ns)) = (walks.pages(), walks.walk_ns) else {
        return format!("{}: how often it looks its code up was not measured", walks.case);
    };
    format!(
        "{}: in a millisecond it looks {pages:.0} pages of its code up in the page table, {ns:.1} ns each: {:.1} % of its \
         time. Without these walks alone it would be {:.3} times as fast",
        walks.case,
        100.0 * walks.share().unwrap_or(0.0),
        walks.could_gain().unwrap_or(1.0)
    )
}

fn legend(case: &str) -> &'static str {
    match case {
        "mariadb" | "postgres" => {
            "us of a point select: processor time, 99th percentile, duration; how many times less than none; jitter of the \
             throughput"
        }
        "node" => "us of an iteration: processor time; and how many times less than none",
        "generated" => "ns of a call by hot pages of code, and how many times faster than none",
        _ => "ms of user time, and how many times faster than none",
    }
}

fn line(row: &Row, columns: &[&String], jitter: bool) -> Vec<String> {
    let mut cells = vec![row.way.to_string()];
    for column in columns {
        let value = row.ns.get(*column).and_then(|ns| Spread::median_of(ns));
        // A run of the compiler takes milliseconds, a transaction microseconds, a call nanoseconds.
        let unit = match row.case {
            "generated" => 1.0,
            "cc1plus" => 1e6,
            _ => 1e3,
        };
        let value = value.map(|ns| ns / unit);
        let gain = row.gains.get(*column).filter(|_| row.way != super::Way::BASELINE.name());
        cells.push(match (value, gain) {
            (Some(value), Some(gain)) => format!("{value:.1} {:.2}x", gain.median),
            (Some(value), None) => format!("{value:.1}"),
            (None, _) => "-".into(),
        });
    }
    if jitter {
        let share = Spread::median_of(&row.jitter);
        cells.push(share.map_or("-".into(), |share| format!("{:.2} %", 100.0 * share)));
    }
    let huge = Spread::median_of(&row.huge_bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<f64>>());
    cells.push(huge.map_or("-".into(), |bytes| Bytes(bytes as u64).to_string()));
    cells.push(Spread::median_of(&row.moving_ms).map_or("-".into(), |ms| format!("{ms:.1} ms")));
    cells
}
