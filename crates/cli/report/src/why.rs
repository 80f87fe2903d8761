//! The human form of the reasons why ranges are not huge, at most 100 columns wide.

use crate::doctor::{found, meaning};
use crate::text::{counted, wrapped};
use megapage_doctor::{At, Why};
use megapage_units::{BASE_PAGE, PageSize};
use std::collections::HashSet;

/// Groups that are shown in full. The others are counted; `--json` has them all.
const MOST_SHOWN: usize = 12;

/// Returns the human form: the huge and the other memory, then the groups with their reasons.
pub fn why(why: &Why) -> String {
    let backing = why.backing;
    let mut text = wrapped(
        &format!(
            "Process {} ({}): {} present, {} of it on huge pages, {} on smaller ones",
            why.pid,
            why.name,
            backing.total(),
            backing.huge(),
            backing.base
        ),
        "",
        "    ",
    );
    if let Some(at) = &why.at {
        text += &wrapped(&format!("{:x} lies in {}", at.address, at.mapping), "", "    ");
        let counts = format!(
            "{}: on {}; {} of 512 base pages present, {} on the shared page of zeros, {} swapped out",
            at.range, at.on, at.present, at.zero_page, at.swapped
        );
        text += &wrapped(&counts, "", "    ");
        text += &folios(at);
    }
    for finding in &why.start {
        text += "\n";
        text += &found(finding);
        text += &meaning(finding);
    }
    let mut explained = HashSet::new();
    for group in why.groups.iter().take(MOST_SHOWN) {
        text += "\n";
        let ranges = counted(group.ranges, "one range", "ranges");
        let head = format!("{} in {ranges} of {}", group.present, group.mapping);
        text += &wrapped(&head, "", "    ");
        for (index, reason) in group.reasons.iter().enumerate() {
            // For a whole process, explain the decisive reason; for one address, every reason.
            if index > 0 && why.at.is_none() {
                text += &wrapped(&format!("also: {} [{}]", reason.title, reason.id), "    ", "          ");
                continue;
            }
            text += &found(reason);
            // Explained once: many groups share it.
            if explained.insert(reason.id) {
                text += &meaning(reason);
            }
        }
    }
    let rest = why.groups.get(MOST_SHOWN..).unwrap_or_default();
    if !rest.is_empty() {
        let present: megapage_units::Bytes = rest.iter().map(|group| group.present).sum();
        text.push('\n');
        text += &wrapped(&format!("{present} in {} further mappings; --json shows them", rest.len()), "", "");
    }
    if why.groups.is_empty() && why.start.is_empty() {
        text += "\nNothing stands in the way.\n";
    }
    if why.has_findings() {
        text.push('\n');
        let attach = match why.collapse {
            true => {
                "megapage run --attach stays until the process ends, with --once only for what is there now; it needs \
                 CAP_SYS_NICE, as root has."
            }
            false => {
                "This kernel lacks MADV_COLLAPSE (Linux 6.1): nothing is promoted on request, and khugepaged alone \
                 makes memory of a running process huge."
            }
        };
        let closing = format!("Whether it is worth it: megapage advise {}. {attach}", why.pid);
        text += &wrapped(&closing, "", "");
    }
    text
}

/// Returns the sizes of folios that the present pages lie on. Empty if all are base pages, without
/// mTHP.
fn folios(at: &At) -> String {
    let Some(folios) = at.folios.filter(|folios| folios[1..].iter().any(|pages| *pages > 0)) else {
        return String::new();
    };
    let parts: Vec<String> = (0..)
        .zip(folios)
        .filter(|(_, pages)| *pages > 0)
        .filter_map(|(order, pages)| Some((PageSize::new((BASE_PAGE as u64) << order)?, pages)))
        .map(|(size, pages)| format!("{pages} on folios of {size}"))
        .collect();
    wrapped(&format!("base pages by what they lie on: {}", parts.join(", ")), "    ", "    ")
}

#[cfg(test)]
mod tests;
