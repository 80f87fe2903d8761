//! Table of kernel abilities in docs/machines.md, made from `megapage_kernel::ability` and checked
//! against it.

use crate::section::Section;
use megapage_kernel::ability::ABILITIES;

/// Path of the document.
pub const DOCUMENT: &str = "docs/machines.md";
const BEGIN: &str = "<!-- abilities:begin -->";
const END: &str = "<!-- abilities:end -->";

/// Returns the section with the table.
pub fn section() -> Section {
    let mut lines = "| ability | since | without it | source |\n|---|---|---|---|\n".to_string();
    for ability in ABILITIES {
        lines +=
            &format!("| {} | {} | {} | {} |\n", ability.name, ability.since, ability.without, ability.source);
    }
    let differs = "differs from crates/kernel/src/calls/ability/table.rs; run cargo xtask abilities";
    Section { document: DOCUMENT, begin: BEGIN, end: END, lines, differs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_section_is_caught_and_the_rest_is_kept() {
        let stale = format!("# Machines\n\n{BEGIN}\nstale row\n{END}\n\nmore\n");
        let found = section().compare(&stale);
        assert_eq!(found.as_ref().map(|found| found.line), Some(3), "{found:?}");
        let fresh = section().renewed(&stale).unwrap();
        assert!(fresh.starts_with("# Machines\n\n") && fresh.ends_with("\n\nmore\n"), "{fresh}");
        assert!(fresh.contains("| MADV_COLLAPSE | 6.1 |") && !fresh.contains("stale row"), "{fresh}");
        assert!(section().compare(&fresh).is_none());
        assert!(section().compare("no markers").is_some());
    }
}
