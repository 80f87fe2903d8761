//! Segments as text.

use super::Verification;
use crate::output::shown_path;
use megapage_report::table;
use megapage_segment::Layout;
use megapage_segment::inventory::{Condition, Inventory, Listed};
use megapage_units::Bytes;
use megapage_units::shown::{one_line, shell_path};

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
    for why in found.segments.iter().filter(|one| one.condition == Condition::Damaged) {
        text += &(one_line(why.because.as_deref().unwrap_or_default()) + "\n");
    }
    for why in &found.skipped {
        text += &format!("Skipped: {}\n", one_line(&why.to_string()));
    }
    text
}

fn row(segment: &Listed) -> [String; 9] {
    let shape = segment.shape.as_ref();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let size = match segment.hugetlb {
        true => shape.map(|shape| shape.page_size.clone()),
        // On base pages: the unit is not a page size.
        false => Some("base".into()),
    };
    [
        segment.application.to_string(),
        segment.name.to_string(),
        segment.uid.to_string(),
        or_dash(size),
        or_dash(shape.map(|shape| shape.pages.to_string())),
        or_dash(shape.map(|shape| shape.most_pages.to_string())),
        or_dash(shape.map(|shape| shape.dirty_pages.to_string())),
        segment.memory.to_string(),
        segment.condition.name().into(),
    ]
}

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
