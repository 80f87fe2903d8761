//! What the bench found, for people.

use super::jvm::MECHANISMS;
use super::{JvmReport, JvmRow, Latency, NativeRow, Report};
use crate::run::{Spread, gates_table, heading};
use crate::workload::fork::WINDOW;
use megapage_report::line::{Paint, Style, wrap};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = format!(
        "bench fork: medians of {} interleaved runs with {} launches each, ms on the wall\n",
        report.runs, report.launches
    );
    text += &heading(&report.head);
    let mut notes = Vec::new();
    if !report.native.is_empty() {
        native(&report.native, &mut text);
        let all = |row: &NativeRow| {
            let what = format!("{} {}", Bytes(row.heap_bytes), row.pages);
            row.notes.iter().map(move |note| format!("! {what}: {note}")).collect::<Vec<_>>()
        };
        notes.extend(report.native.iter().flat_map(all));
    }
    if let Some(found) = &report.jvm {
        jvm(found, &mut text);
        notes.extend(found.absent.iter().map(|why| format!("! did not run: {why}")));
        let all = |row: &JvmRow| {
            let what = format!("JVM {} {} {} {}", row.user, row.mechanism, Bytes(row.heap_bytes), row.pages);
            row.notes.iter().map(move |note| format!("! {what}: {note}")).collect::<Vec<_>>()
        };
        notes.extend(found.rows.iter().flat_map(all));
    }
    for note in notes {
        for line in wrap(Style::PLAIN, &note, 98) {
            writeln!(text, "{}", line.show(Paint::Plain, 100)).ok();
        }
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn milliseconds(ns: f64) -> String {
    let ms = ns / 1e6;
    let decimals = if ms >= 100.0 { 0 } else { 2 };
    format!("{ms:.decimals$}")
}

fn microseconds(ns: Spread) -> String {
    let us = ns.median / 1e3;
    let decimals = if us >= 100.0 { 0 } else { 1 };
    format!("{us:.decimals$}")
}

fn median(latency: Option<&Latency>) -> String {
    latency.map_or("-".into(), |latency| milliseconds(latency.median_ns.median))
}

fn bytes(found: Option<Spread>) -> String {
    found.map_or("-".into(), |found| Bytes(found.median as u64).to_string())
}

fn percent(found: Option<Spread>) -> String {
    found.map_or("-".into(), |found| format!("{:.0} %", 100.0 * found.min))
}

fn native(rows: &[NativeRow], text: &mut String) {
    text.push_str(
        "\nstarting a child: the fork call, and each way until the program that was executed has ended\n",
    );
    let table_rows = rows.iter().map(|row| {
        let whole = |way: &str| row.whole.get(way);
        [
            Bytes(row.heap_bytes).to_string(),
            row.pages.to_string(),
            percent(row.huge_share),
            median(row.call.get("fork")),
            row.call.get("fork").map_or("-".into(), |latency| milliseconds(latency.p99_ns as f64)),
            median(whole("fork")),
            whole("fork").map_or("-".into(), |latency| milliseconds(latency.p99_ns as f64)),
            median(whole("vfork")),
            median(whole("posix_spawn")),
            bytes(row.page_tables_bytes),
            bytes(row.child_page_tables_bytes),
        ]
    });
    let header =
        ["heap", "pages", "huge", "fork", "p99", "+exec", "p99", "vfork", "spawn", "tables", "child's"];
    *text += &table(&header, table_rows);
    writeln!(text, "\nafter a fork, while the child lives: the parent's first writes within {WINDOW}, us")
        .ok();
    let table_rows = rows.iter().filter_map(|row| {
        let after = row.after.as_ref()?;
        Some([
            Bytes(row.heap_bytes).to_string(),
            row.pages.to_string(),
            format!("{:.0}", after.writes.median),
            microseconds(after.p50_ns),
            microseconds(after.p99_ns),
            microseconds(after.p999_ns),
            microseconds(after.max_ns),
            bytes(Some(after.copied_bytes)),
            bytes(Some(after.huge_before_bytes)),
            bytes(Some(after.huge_after_bytes)),
        ])
    });
    let header =
        ["heap", "pages", "writes", "p50", "p99", "p99.9", "longest", "copied", "huge before", "after"];
    *text += &table(&header, table_rows);
}

/// In the form of the table with which this began: heap, large pages, normal pages, speed-up.
fn jvm(found: &JvmReport, text: &mut String) {
    let Some(version) = &found.version else { return };
    writeln!(text, "\n{version}: ProcessBuilder.start and waitFor, ms").ok();
    let mut users: Vec<&str> = found.rows.iter().map(|row| row.user).collect();
    users.dedup();
    let mut lines = Vec::new();
    for user in users {
        for mechanism in MECHANISMS {
            let of = |row: &&JvmRow| row.user == user && row.mechanism == mechanism;
            let rows: Vec<&JvmRow> = found.rows.iter().filter(of).collect();
            let mut heaps: Vec<u64> = rows.iter().map(|row| row.heap_bytes).collect();
            heaps.dedup();
            for heap in heaps {
                let row = |pages: &str| {
                    rows.iter().find(|row| row.heap_bytes == heap && row.pages == pages).copied()
                };
                let launch = |pages: &str| row(pages).and_then(|row| row.launch.as_ref());
                let times = |one: Option<&Latency>| {
                    let (Some(one), Some(normal)) = (one, launch("normal")) else { return "-".into() };
                    format!("{:.1}", normal.median_ns.median / one.median_ns.median)
                };
                lines.push([
                    user.to_string(),
                    mechanism.to_string(),
                    Bytes(heap).to_string(),
                    median(launch("large")),
                    percent(row("large").and_then(|row| row.huge_share)),
                    median(launch("thp")),
                    percent(row("thp").and_then(|row| row.huge_share)),
                    median(launch("normal")),
                    times(launch("large")),
                    times(launch("thp")),
                ]);
            }
        }
    }
    let header =
        ["user", "mechanism", "heap", "large pages", "huge", "THP", "huge", "normal", "speed-up", "by THP"];
    *text += &table(&header, lines);
}
