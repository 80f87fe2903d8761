//! Findings of these experiments, for people.

use super::{AllocatorRow, Cost, Curve, Malloc, Restart};
use crate::bench::Spread;
use crate::experiment::Section;
use megapage_units::Bytes;

fn with_ends(spread: &Spread) -> String {
    format!("{:.1} ({:.1}-{:.1})", spread.median, spread.min, spread.max)
}

pub(super) fn restart(found: &Restart) -> Vec<Section> {
    let mut sections = Vec::new();
    if !found.starts.is_empty() {
        let rows = found.starts.iter().map(|row| {
            [
                row.side.to_string(),
                Bytes(row.size_bytes).to_string(),
                row.layout.into(),
                row.start.into(),
                with_ends(&row.wall_ms),
                format!("{:.1}", row.user_ms.median),
                format!("{:.1}", row.system_ms.median),
                row.open_ms.map_or("-".into(), |open| format!("{:.3}", open.median)),
                row.map_ms_per_gib.map_or("-".into(), |map| format!("{:.3}", map.median)),
            ]
        });
        let header = ["side", "memory", "files", "start", "wall ms", "user", "system", "open ms", "per GiB"];
        sections.push(Section::new("", &header, rows));
    }
    sections.extend(found.sizes.as_ref().map(sizes));
    if let Some(index) = &found.index {
        let same =
            if index.same_answers { "the same as of the rebuild, and on the heap" } else { "NOT the same" };
        sections.push(
            Section::text(format!(
                "index of {} of postings, {} queries",
                Bytes(index.postings_bytes),
                index.queries
            ))
            .then(format!("built, first answer: {:.0} ms", index.rebuild_first_answer_ms))
            .then(format!("found again, first answer: {} ms", with_ends(&index.restart_first_answer_ms)))
            .then(format!("found again, all answers: {} ms", with_ends(&index.restart_all_answers_ms)))
            .then(format!("answers: {same}; recall {:.4}", index.recall)),
        );
    }
    sections
}

fn sizes(found: &Curve) -> Section {
    let rows = found.starts.iter().map(|row| {
        let opened = |open: Spread| format!("{:.3} ({:.3}-{:.3})", open.median, open.min, open.max);
        [
            row.side.to_string(),
            Bytes(row.size_bytes).to_string(),
            row.start.into(),
            with_ends(&row.wall_ms),
            row.open_ms.map_or("-".into(), opened),
        ]
    });
    let title = "from what size it pays; memory in a single file";
    let mut section = Section::new(title, &["side", "memory", "start", "wall ms", "open ms"], rows);
    let from = |bytes: u64| format!("from {} on", Bytes(bytes));
    for pays in &found.pays {
        let wall = pays.from_bytes.map_or("at no size".into(), from);
        let line = format!("{}, {}: sooner than cold beyond the spread {wall}", pays.side, pays.start);
        let open = pays.open_from_bytes.map(|bytes| format!("; to open, {}", from(bytes)));
        section = section.then(line + &open.unwrap_or_default());
    }
    found.left_out.iter().fold(section, Section::then)
}

/// Renders the times of allocators at their best: to build the index, or for a block of the
/// smallest, a middle and the largest size that fit.
pub(super) fn allocators(rows: &[AllocatorRow]) -> Vec<Section> {
    if rows.is_empty() {
        return Vec::new();
    }
    let block = |row: &AllocatorRow, bytes: u64| {
        let found = row.blocks.iter().find(|block| block.kind == "malloc" && block.size_bytes == bytes);
        let whole = |cost: &Cost| cost.allocate_us + cost.memset_us + cost.free_us;
        found.map_or("-".to_string(), |block| format!("{:.2}", whole(&block.cost)))
    };
    let cells = rows.iter().map(|row| {
        [
            row.peer.to_string(),
            row.huge_share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share.min)),
            row.built_ms.map_or("-".into(), |built| with_ends(&built)),
            block(row, 64),
            block(row, 64 << 10),
            block(row, 16 << 20),
        ]
    });
    let header = ["allocator", "huge", "index ms", "64 B us", "64 KiB us", "16 MiB us"];
    let title = "allocators at their best; a block allocated, written and freed";
    let section = Section::new(title, &header, cells);
    let notes = rows.iter().flat_map(|row| row.notes.iter().map(move |note| format!("{}: {note}", row.peer)));
    vec![notes.fold(section, Section::then)]
}

pub(super) fn malloc(found: &Malloc) -> Section {
    let title = format!("microseconds for a block; from {}, a file for each page", Bytes(found.size_bytes));
    let show = |value: f64| match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    let rows = found.rows.iter().map(|row| {
        let ours = &row.megapage;
        let theirs = |value: fn(&Cost) -> f64| row.dpdk.as_ref().map_or("-".into(), |cost| show(value(cost)));
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
    Section::new(title, &header, rows)
}
