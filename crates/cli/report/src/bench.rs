//! Benches: the machine that they ran on, and what a user's command took in each way.

use crate::table;
use crate::text::{cells, or_dash, paragraph};
use megapage_bench::command::{CommandReport, Ratios};
use megapage_bench::head::Head;
use megapage_bench::statistics::{Interval, Spread};
use megapage_units::Bytes;
use serde::Serialize;

/// The schema of all benches.
const SCHEMA: &str = "megapage.bench/1";

/// Returns a bench's report as JSON.
pub fn json(report: &impl Serialize) -> String {
    crate::json(SCHEMA, report) + "\n"
}

/// Describes the machine in one line.
pub fn heading(head: &Head) -> String {
    let machine = &head.machine;
    format!(
        "{} x {}{}, {}, Linux {}, THP {}\n",
        machine.processors,
        machine.processor,
        if machine.virtualised { " (virtual)" } else { "" },
        Bytes(machine.memory_bytes),
        machine.kernel,
        machine.thp_enabled
    )
}

/// Returns the report as text of at most 100 columns.
pub fn human(report: &CommandReport) -> String {
    let mut text = paragraph(&format!("bench run: {}", report.command));
    text += &format!("medians of {} rounds, each in a drawn order; ratios within a round\n", report.runs);
    text += &heading(&report.head);
    text.push('\n');
    let rows = report.ways.iter().filter(|row| row.absent.is_none()).map(|row| {
        let ratio = |of: fn(&Ratios) -> Interval| {
            or_dash(row.of_plain.as_ref().map(|ratios| {
                let Interval { median, low, high, .. } = of(ratios);
                format!("{median:.2} ({low:.2}-{high:.2})")
            }))
        };
        let seconds = |spread: Option<Spread>| or_dash(spread.map(|spread| short(spread.median)));
        cells![
            row.way,
            seconds(row.wall_seconds),
            ratio(|ratios| ratios.wall),
            seconds(row.cpu_seconds),
            ratio(|ratios| ratios.cpu),
            or_dash(row.peak_bytes.map(|spread| Bytes(spread.median as u64))),
            or_dash(row.of_plain.as_ref().map(|ratios| format!("{:.2}", ratios.peak.median))),
            or_dash(row.huge_share.map(|share| format!("{:.0} %", 100.0 * share))),
        ]
    });
    let header = ["way", "wall s", "of plain", "CPU s", "of plain", "peak", "of plain", "huge"];
    text += &table(&header, rows);
    for row in &report.ways {
        if let Some(why) = &row.absent {
            text += &paragraph(&format!("! {} did not run: {why}", row.way));
        }
    }
    if let Some(finding) = &report.finding {
        text.push('\n');
        text += &paragraph(&finding.sentence);
    }
    text
}

/// Formats seconds with about three digits.
fn short(seconds: f64) -> String {
    let decimals = match seconds {
        seconds if seconds >= 100.0 => 0,
        seconds if seconds >= 10.0 => 1,
        seconds if seconds >= 1.0 => 2,
        _ => 3,
    };
    format!("{seconds:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_bench::command::{Finding, WayReport};
    use megapage_bench::statistics::Clock;

    #[test]
    fn the_table_fits_a_terminal() {
        let of_plain = Interval { median: 0.8, low: 0.79, high: 0.81, coverage: 0.97 };
        let way = |way, ratios, huge_share| WayReport {
            way,
            wall_seconds: Spread::of([1.0, 1.2]),
            cpu_seconds: Spread::of([2.0, 2.4]),
            peak_bytes: Spread::of([1e8]),
            of_plain: ratios,
            huge_share,
            ..WayReport::default()
        };
        let ratios = Ratios { wall: of_plain, cpu: of_plain, peak: of_plain };
        let sentence = "megapage makes this command 1.25 times as fast (97 % interval 1.23 to 1.27)".into();
        let report = CommandReport {
            head: Head::begin("run").unwrap(),
            command: "sort 'a file'".into(),
            runs: 6,
            seed: 1,
            clock: Clock::Wall,
            ways: vec![way("plain", None, None), way("ours", Some(ratios), Some(0.9))],
            finding: Some(Finding { way: "ours", found: "gain", of_plain, sentence }),
        };
        let text = human(&report);
        assert!(text.starts_with("bench run: sort 'a file'\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("90 %") && text.trim_end().ends_with(')'), "{text}");
        assert!(json(&report).contains(SCHEMA));
    }
}
