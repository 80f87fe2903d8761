//! Findings of the bench, for people.

use super::jvm::MECHANISMS;
use super::{ConcurrentRow, ForkFound, JvmReport, JvmRow, Latency, NativeRow};
use crate::bench::Spread;
use crate::experiment::Section;
use crate::workload::fork::WINDOW;
use megapage_units::Bytes;

/// Returns its tables.
pub(super) fn sections(found: &ForkFound) -> Vec<Section> {
    let mut sections = Vec::new();
    if !found.native.is_empty() {
        sections.extend(native(&found.native));
    }
    sections.extend(found.jvm.as_ref().and_then(jvm));
    if !found.concurrent.is_empty() {
        sections.push(concurrent(&found.concurrent, found.slice_ms));
    }
    sections
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

fn native(rows: &[NativeRow]) -> [Section; 2] {
    let starting = rows.iter().map(|row| {
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
    let starting = Section::new(
        "starting a child: the fork call, and each way until the program that was executed has ended",
        &header,
        starting,
    );
    let after = rows.iter().filter_map(|row| {
        let after = row.after.as_ref()?;
        Some([
            Bytes(row.heap_bytes).to_string(),
            row.pages.to_string(),
            format!("{:.0}", after["writes"].median),
            microseconds(after["p50_ns"]),
            microseconds(after["p99_ns"]),
            microseconds(after["p999_ns"]),
            microseconds(after["max_ns"]),
            bytes(Some(after["copied_bytes"])),
            bytes(Some(after["huge_before_bytes"])),
            bytes(Some(after["huge_after_bytes"])),
        ])
    });
    let header =
        ["heap", "pages", "writes", "p50", "p99", "p99.9", "longest", "copied", "huge before", "after"];
    let title = format!("after a fork, while the child lives: the parent's first writes within {WINDOW}, us");
    [starting, Section::new(title, &header, after)]
}

fn concurrent(rows: &[ConcurrentRow], slice_ms: u64) -> Section {
    let lines = rows.iter().flat_map(|row| {
        let base = rows.iter().find(|base| base.heap_bytes == row.heap_bytes && base.pages == "base");
        row.by_threads.iter().map(move |one| {
            let rate = one.children_per_second;
            let of_base = base.and_then(|base| base.rate(one.threads));
            [
                Bytes(row.heap_bytes).to_string(),
                row.pages.to_string(),
                percent(row.huge_share),
                one.threads.to_string(),
                median(Some(&one.whole)),
                milliseconds(one.whole.p99_ns as f64),
                milliseconds(one.whole.max_ns as f64),
                format!("{:.0}", rate.median),
                format!("{:.0}-{:.0}", rate.min, rate.max),
                of_base.map_or("-".into(), |base| format!("{:.1}", rate.median / base)),
            ]
        })
    });
    let header =
        ["heap", "pages", "huge", "threads", "one child", "p99", "longest", "a second", "range", "of base"];
    let title = format!(
        "threads that start children at the same time for {slice_ms} ms: fork and exec until the program has ended, and \
         children of all threads a second"
    );
    Section::new(title, &header, lines)
}

/// Renders the JVM's table: heap, large pages, normal pages, speed-up.
fn jvm(found: &JvmReport) -> Option<Section> {
    let version = found.version.as_ref()?;
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
    Some(Section::new(format!("{version}: ProcessBuilder.start and waitFor, ms"), &header, lines))
}
