//! The tables of peers in docs/bench.md and docs/lab.md, made from `megapage_bench::peers` and checked against it.

use crate::finding::Finding;
use anyhow::{Context, Result};
use megapage_bench::peers::{allocators_table, kernel_table};
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- peers:begin -->";
const END: &str = "<!-- peers:end -->";

/// The documents, each with what stands between its markers.
fn tables() -> [(&'static str, String); 2] {
    [("docs/bench.md", allocators_table()), ("docs/lab.md", kernel_table())]
}

/// The document with its table made anew; `None` where the markers are missing.
fn renewed(document: &str, table: &str) -> Option<String> {
    let begin = document.find(BEGIN)?;
    let end = begin + document[begin..].find(END)?;
    Some(format!("{}{BEGIN}\n{table}{}", &document[..begin], &document[end..]))
}

/// Writes the tables.
pub fn write(root: &Path) -> Result<()> {
    for (name, table) in tables() {
        let path = root.join(name);
        let document = fs::read_to_string(&path).context(name)?;
        let document =
            renewed(&document, &table).with_context(|| format!("{name} lacks {BEGIN} ... {END}"))?;
        fs::write(&path, document).context(name)?;
    }
    Ok(())
}

/// Whether the tables that are there are the code's.
pub fn check(root: &Path) -> Vec<Finding> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    tables().iter().flat_map(|(name, table)| compare(name, &read(name), table)).collect()
}

fn compare(name: &str, document: &str, table: &str) -> Option<Finding> {
    if renewed(document, table).is_some_and(|renewed| renewed == document) {
        return None;
    }
    let line = document.lines().position(|line| line == BEGIN).map_or(1, |index| index + 1);
    Some(Finding::new(name, line, "differs from crates/bench/src/peers; run cargo xtask peers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_table_is_caught_and_what_is_around_it_is_kept() {
        let [(name, table), _] = tables();
        let stale = format!("# Bench\n\n{BEGIN}\n| old |\n{END}\n\nmore\n");
        assert_eq!(compare(name, &stale, &table).unwrap().line, 3);
        let fresh = renewed(&stale, &table).unwrap();
        assert!(fresh.starts_with("# Bench\n\n") && fresh.ends_with(&format!("{END}\n\nmore\n")), "{fresh}");
        assert!(fresh.contains("| jemalloc-hpa | `MALLOC_CONF=") && !fresh.contains("old"), "{fresh}");
        assert!(compare(name, &fresh, &table).is_none());
        assert!(compare(name, "no markers", &table).is_some());
    }
}
