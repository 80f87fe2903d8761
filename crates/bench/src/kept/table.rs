//! What these benches found, for people.

use super::{Cost, Found, Malloc, Report, Restart};
use crate::run::{Spread, gates_table, heading};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text =
        format!("bench {}: median of {} interleaved rounds, warm memory\n", report.head.bench, report.runs);
    text += &heading(&report.head);
    match &report.found {
        Found::Restart(found) => restart(found, &mut text),
        Found::Malloc(found) => malloc(found, &mut text),
    }
    match &report.dpdk {
        Some(version) => writeln!(text, "\n{version}").ok(),
        None => writeln!(text, "\n! dpdk did not run ({})", super::dpdk::HOW_TO_INSTALL).ok(),
    };
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn with_ends(spread: &Spread) -> String {
    format!("{:.1} ({:.1}-{:.1})", spread.median, spread.min, spread.max)
}

fn restart(found: &Restart, text: &mut String) {
    if !found.starts.is_empty() {
        text.push('\n');
        let rows = found.starts.iter().map(|row| {
            [
                row.side.to_string(),
                Bytes(row.size_bytes).to_string(),
                row.layout.into(),
                row.start.into(),
                with_ends(&row.wall_ms),
                format!("{:.1}", row.user_ms.median),
                format!("{:.1}", row.system_ms.median),
                row.map_ms_per_gib.map_or("-".into(), |map| format!("{:.2}", map.median)),
            ]
        });
        let header = ["side", "memory", "files", "start", "wall ms", "user", "system", "map ms/GiB"];
        *text += &table(&header, rows);
    }
    if let Some(index) = &found.index {
        writeln!(text, "\nindex of {} of postings, {} queries", Bytes(index.postings_bytes), index.queries)
            .ok();
        writeln!(text, "  built and first answer   {:.0} ms", index.rebuild_first_answer_ms).ok();
        writeln!(text, "  found again, first answer {} ms", with_ends(&index.restart_first_answer_ms)).ok();
        writeln!(text, "  found again, all answers  {} ms", with_ends(&index.restart_all_answers_ms)).ok();
        let same =
            if index.same_answers { "the same as of the rebuild, and on the heap" } else { "NOT the same" };
        writeln!(text, "  answers                   {same}; recall {:.4}", index.recall).ok();
    }
}

fn malloc(found: &Malloc, text: &mut String) {
    writeln!(text, "\nmicroseconds for a block; from {}, a file for each page", Bytes(found.size_bytes)).ok();
    let show = |value: f64| match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    let rows = found.rows.iter().map(|row| {
        let ours = &row.megapage;
        let theirs =
            |figure: fn(&Cost) -> f64| row.dpdk.as_ref().map_or("-".into(), |cost| show(figure(cost)));
        let cleared = match (ours.cleared_allocating > 0.0, ours.cleared_freeing > 0.0) {
            (false, false) => "-",
            (true, false) => "allocating",
            (false, true) => "freeing",
            (true, true) => "both",
        };
        [
            row.mode.to_string(),
            row.kind.into(),
            Bytes(row.size_bytes).to_string(),
            show(ours.allocate_us),
            show(ours.free_us),
            show(ours.memset_us),
            cleared.into(),
            theirs(|cost| cost.allocate_us),
            theirs(|cost| cost.free_us),
            theirs(|cost| cost.memset_us),
        ]
    });
    let header =
        ["memory", "call", "size", "alloc", "free", "write", "cleared", "dpdk alloc", "free", "write"];
    *text += &table(&header, rows);
}
