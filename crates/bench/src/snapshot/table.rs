//! What the bench found, for people.

use super::{Phase, Report, Row, Sample};
use crate::run::{gates_table, heading};
use megapage_report::line::{Paint, Style, wrap};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = format!(
        "bench snapshot: redis-server, {} keys of {} bytes, {} requests a second, half of them writes;\n\
         medians of {} interleaved runs\n",
        report.keys, report.value_bytes, report.rate, report.runs
    );
    text += &heading(&report.head);
    text += "\nlatency in us: before the save, during it, during it after the fork itself, and after it\n";
    text += &table(
        &[
            "",
            "quiet p99.9",
            "save p50",
            "p99",
            "p99.9",
            "longest",
            "settled p99.9",
            "after p99.9",
            "longest",
        ],
        report.rows.iter().map(latencies),
    );
    text += "\nwhat the save costs, and what it leaves\n";
    text += &table(
        &[
            "",
            "fork ms",
            "save s",
            "copied",
            "speed before",
            "after",
            "huge before",
            "saved",
            "after",
            "back s",
        ],
        report.rows.iter().map(costs),
    );
    for row in &report.rows {
        for note in &row.notes {
            for line in wrap(Style::PLAIN, &format!("! {}: {note}", row.configuration), 98) {
                writeln!(text, "{}", line.show(Paint::Plain, 100)).ok();
            }
        }
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn median(row: &Row, figure: impl Fn(&Sample) -> f64, show: impl Fn(f64) -> String) -> String {
    row.spread(figure).map_or("-".into(), |found| show(found.median))
}

fn latencies(row: &Row) -> Vec<String> {
    let us = |phase: fn(&Sample) -> Phase, figure: fn(&Phase) -> u64| {
        median(row, |sample| figure(&phase(sample)) as f64 / 1e3, |us| format!("{us:.0}"))
    };
    vec![
        row.configuration.to_string(),
        us(|it| it.quiet, |it| it.p999_ns),
        us(|it| it.during, |it| it.p50_ns),
        us(|it| it.during, |it| it.p99_ns),
        us(|it| it.during, |it| it.p999_ns),
        us(|it| it.during, |it| it.max_ns),
        us(|it| it.settled, |it| it.p999_ns),
        us(|it| it.after, |it| it.p999_ns),
        us(|it| it.after, |it| it.max_ns),
    ]
}

fn costs(row: &Row) -> Vec<String> {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let thousands = |speed: f64| format!("{:.0} k/s", speed / 1e3);
    let back = row.samples.iter().filter_map(|sample| sample.back_seconds);
    vec![
        row.configuration.to_string(),
        median(row, |it| it.fork_us as f64 / 1e3, |ms| format!("{ms:.2}")),
        median(row, |it| it.save_seconds, |seconds| format!("{seconds:.1}")),
        median(row, |it| it.copied_bytes as f64, |bytes| Bytes(bytes as u64).to_string()),
        median(row, |it| it.speed_before, thousands),
        median(row, |it| it.speed_after, thousands),
        median(row, |it| it.huge_before, percent),
        median(row, |it| it.huge_saved, percent),
        median(row, |it| it.huge_after, percent),
        crate::run::Spread::of(back).map_or("-".into(), |found| format!("{:.1}", found.median)),
    ]
}
