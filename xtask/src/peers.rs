//! The tables of peers in docs/lab.md, made from `megapage_lab::peers` and checked against it.

use crate::section::Section;
use megapage_lab::peers::{allocators_table, kernel_table};

/// The tables.
pub fn sections() -> [Section; 2] {
    let differs = "differs from lab/src/peers; run cargo xtask peers";
    [
        ("<!-- allocators:begin -->", "<!-- allocators:end -->", allocators_table()),
        ("<!-- peers:begin -->", "<!-- peers:end -->", kernel_table()),
    ]
    .map(|(begin, end, lines)| Section { document: "docs/lab.md", begin, end, lines, differs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_table_is_caught_and_what_is_around_it_is_kept() {
        let [section, _] = sections();
        let (begin, end) = (section.begin, section.end);
        let stale = format!("# Bench\n\n{begin}\n| old |\n{end}\n\nmore\n");
        assert_eq!(section.compare(&stale).unwrap().line, 3);
        let fresh = section.renewed(&stale).unwrap();
        assert!(fresh.starts_with("# Bench\n\n") && fresh.ends_with(&format!("{end}\n\nmore\n")), "{fresh}");
        assert!(fresh.contains("| jemalloc-hpa | `MALLOC_CONF=") && !fresh.contains("old"), "{fresh}");
        assert!(section.compare(&fresh).is_none());
        assert!(section.compare("no markers").is_some());
    }
}
