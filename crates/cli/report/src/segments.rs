//! Segments as text.

use crate::text::{cells, lines, or_dash};
use crate::{shown_path, table};
use megapage_segment::heap::HeapError;
use megapage_segment::inventory::Soundness;
use megapage_segment::inventory::{Condition, Inventory, Listed};
use megapage_segment::{Layout, SegmentError};
use megapage_units::Bytes;
use megapage_units::shown::{one_line, shell_path};
use serde::Serialize;
use std::path::PathBuf;

/// Returns the table of all segments.
pub fn list(found: &Inventory) -> String {
    let mut text = if found.segments.is_empty() {
        "There are no segments.\n".to_string()
    } else {
        let header = ["APPLICATION", "NAME", "USER", "SIZE", "PAGES", "MOST", "DIRTY", "MEMORY", "CONDITION"];
        table(&header, found.segments.iter().map(row))
    };
    let kept = found.segments.iter().filter(|one| one.hugetlb && one.condition != Condition::InUse);
    let kept: Bytes = kept.map(|one| one.memory).sum();
    if kept > Bytes::ZERO {
        text += &format!("\nhugetlb memory in segments that are not in use: {kept}\n");
    }
    let damaged = found.segments.iter().filter(|one| one.condition == Condition::Damaged);
    text += &lines(damaged.map(|one| one_line(one.because.as_deref().unwrap_or_default())));
    text + &lines(found.skipped.iter().map(|why| format!("Skipped: {}", one_line(&why.to_string()))))
}

fn row(segment: &Listed) -> [String; 9] {
    let shape = segment.shape.as_ref();
    let size = match segment.hugetlb {
        true => shape.map(|shape| shape.page_size.clone()),
        // On base pages: the unit is not a page size.
        false => Some("base".into()),
    };
    cells![
        segment.application,
        segment.name,
        segment.uid,
        or_dash(size),
        or_dash(shape.map(|shape| shape.pages)),
        or_dash(shape.map(|shape| shape.most_pages)),
        or_dash(shape.map(|shape| shape.dirty_pages)),
        segment.memory,
        segment.condition.name(),
    ]
}

/// Returns everything about one segment.
pub fn show(segment: &Listed) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<14}{}\n", one_line(&value));
    line("Segment", format!("{}/{}", segment.application, segment.name));
    line("Path", segment.path.display().to_string());
    line("User", segment.uid.to_string());
    line("Condition", segment.condition.name().into());
    if let Some(because) = &segment.because {
        line("", because.clone());
    }
    line("Memory", format!("{}{}", segment.memory, if segment.hugetlb { "" } else { ", on base pages" }));
    if let Some(shape) = &segment.shape {
        line("Pages", format!("{} of {}, at most {}", shape.pages, shape.page_size, shape.most_pages));
        line("Dirty", format!("{} pages may hold old bytes", shape.dirty_pages));
        let layout = match shape.layout {
            Layout::SingleFile => "one file",
            Layout::FilePerPage => "a file for each page",
        };
        line("Layout", format!("{layout}, mode {}, group {}", shape.mode, shape.gid));
        line("Node", shape.node.map_or("any".into(), |node| node.to_string()));
        line(
            "Made",
            format!("at {} seconds since 1970; opened again {} times", shape.created, shape.openings),
        );
    }
    text
}

/// Returns the shell line that removes a segment.
pub fn removal(segment: &Listed) -> String {
    format!("rm -r -- {}", shell_path(&segment.path))
}

/// Result of verifying one segment.
#[derive(Debug, Serialize)]
pub struct Verification {
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    path: PathBuf,
    /// True if the segment is sound.
    pub sound: bool,
    /// True if the segment was open, and therefore not checked.
    in_use: bool,
    /// True if it holds a heap.
    heap: bool,
    /// True if an operation that a kill had interrupted was completed.
    recovered: bool,
    blocks: u64,
    used_bytes: u64,
    clean_bytes: u64,
    dirty_bytes: u64,
    error: Option<String>,
}

impl Verification {
    /// Returns the result of `verified`, for the segment at `path`.
    pub fn new(path: PathBuf, verified: Result<Soundness, HeapError>) -> Verification {
        let (heap, recovered) = match &verified {
            Ok(Soundness::Heap { verified, recovered }) => (Some(verified), *recovered),
            _ => (None, false),
        };
        Verification {
            path,
            sound: verified.is_ok(),
            in_use: matches!(verified, Err(HeapError::Segment(SegmentError::InUse { .. }))),
            heap: heap.is_some(),
            recovered,
            blocks: heap.map_or(0, |heap| heap.blocks),
            used_bytes: heap.map_or(0, |heap| heap.used.0),
            clean_bytes: heap.map_or(0, |heap| heap.clean.0),
            dirty_bytes: heap.map_or(0, |heap| heap.dirty.0),
            error: verified.as_ref().err().map(ToString::to_string),
        }
    }
}

/// Returns the result for each segment.
pub fn verify(segments: &[Verification]) -> String {
    if segments.is_empty() {
        return "There are no segments of this user.\n".into();
    }
    let mut text = String::new();
    for segment in segments {
        text += &format!("{}: ", shown_path(&segment.path));
        text += &match segment {
            segment if segment.in_use => "not checked: it is in use\n".to_string(),
            Verification { error: Some(error), .. } => format!("not sound\n  {}\n", one_line(error)),
            Verification { heap: false, .. } => "sound, with no heap in it\n".to_string(),
            heap => {
                let [used, clean, dirty] = [heap.used_bytes, heap.clean_bytes, heap.dirty_bytes].map(Bytes);
                let recovered = if heap.recovered { "; an interrupted operation was completed" } else { "" };
                format!(
                    "sound{recovered}\n  {} blocks of {used}; free: {clean} clean, {dirty} dirty\n",
                    heap.blocks
                )
            }
        };
    }
    text
}
