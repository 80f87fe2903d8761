//! The table of kernel abilities in docs/machines.md, made from `megapage_kernel::ability` and checked against it.

use crate::finding::Finding;
use anyhow::{Context, Result};
use megapage_kernel::ability::ABILITIES;
use std::fs;
use std::path::Path;

/// Where it lies.
pub const DOCUMENT: &str = "docs/machines.md";
const BEGIN: &str = "<!-- abilities:begin -->";
const END: &str = "<!-- abilities:end -->";

/// The section, with its markers.
fn section() -> String {
    let mut text = format!("{BEGIN}\n| ability | since | without it | source |\n|---|---|---|---|\n");
    for ability in ABILITIES {
        text +=
            &format!("| {} | {} | {} | {} |\n", ability.name, ability.since, ability.without, ability.source);
    }
    text + END
}

/// The document with its section made anew; `None` where the markers are missing.
fn renewed(document: &str) -> Option<String> {
    let begin = document.find(BEGIN)?;
    let end = begin + document[begin..].find(END)? + END.len();
    Some(format!("{}{}{}", &document[..begin], section(), &document[end..]))
}

/// Writes the section.
pub fn write(root: &Path) -> Result<()> {
    let path = root.join(DOCUMENT);
    let document = fs::read_to_string(&path).context(DOCUMENT)?;
    let document = renewed(&document).with_context(|| format!("{DOCUMENT} lacks {BEGIN} ... {END}"))?;
    fs::write(&path, document).context(DOCUMENT)
}

/// Whether the section that is there is the one that the table asks for.
pub fn check(root: &Path) -> Vec<Finding> {
    compare(&fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default())
}

fn compare(document: &str) -> Vec<Finding> {
    let line = document.lines().position(|line| line == BEGIN).map_or(1, |index| index + 1);
    if renewed(document).is_some_and(|renewed| renewed == document) {
        return Vec::new();
    }
    let what = "differs from crates/kernel/src/ability/table.rs; run cargo xtask abilities";
    vec![Finding::new(DOCUMENT, line, what)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_section_is_caught_and_the_rest_is_kept() {
        let stale = format!("# Machines\n\n{BEGIN}\nstale row\n{END}\n\nmore\n");
        let found = compare(&stale);
        assert_eq!((found.len(), found[0].line), (1, 3), "{found:?}");
        let fresh = renewed(&stale).unwrap();
        assert!(fresh.starts_with("# Machines\n\n") && fresh.ends_with("\n\nmore\n"), "{fresh}");
        assert!(fresh.contains("| MADV_COLLAPSE | 6.1 |") && !fresh.contains("stale row"), "{fresh}");
        assert!(compare(&fresh).is_empty());
        assert_eq!(compare("no markers").len(), 1);
    }
}
