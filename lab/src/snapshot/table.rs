//! Findings of the bench, for people.

use super::{Phase, Row, Sample};
use crate::experiment::Section;
use megapage_units::Bytes;

/// Returns its tables.
pub(super) fn sections(rows: &[Row]) -> Vec<Section> {
    vec![
        Section::new(
            "latency in us: before the save, during it, during it after the fork itself, and after it",
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
            rows.iter().map(latencies),
        ),
        Section::new(
            "what the save costs, and what it leaves",
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
            rows.iter().map(costs),
        ),
    ]
}

fn median(row: &Row, value: impl Fn(&Sample) -> f64, show: impl Fn(f64) -> String) -> String {
    row.spread(value).map_or("-".into(), |found| show(found.median))
}

fn latencies(row: &Row) -> Vec<String> {
    let us = |phase: fn(&Sample) -> Phase, value: fn(&Phase) -> u64| {
        median(row, |sample| value(&phase(sample)) as f64 / 1e3, |us| format!("{us:.0}"))
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
        crate::bench::Spread::of(back).map_or("-".into(), |found| format!("{:.1}", found.median)),
    ]
}
