//! Check that the vendored allocator is byte for byte the one that was taken over.

use crate::finding::Finding;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Path of the vendored tree, its checksums and the account of its source.
const VENDOR: &str = "crates/heap/preload/vendor";
/// Name of the file of `sha256sum` lines, with paths relative to [`VENDOR`].
const CHECKSUMS: &str = "CHECKSUMS";

/// Compares every file under the vendored tree with the recorded checksums.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let vendor = root.join(VENDOR);
    let checksums = fs::read_to_string(vendor.join(CHECKSUMS))
        .with_context(|| format!("cannot read {VENDOR}/{CHECKSUMS}"))?;
    let mut present = BTreeSet::new();
    files_under(&vendor.join("mimalloc"), &mut |path| {
        if let Ok(relative) = path.strip_prefix(&vendor) {
            present.insert(relative.display().to_string());
        }
    })?;
    let mut findings = compare_names(&checksums, &present);

    let output = Command::new("sha256sum")
        .current_dir(&vendor)
        .args(["--check", "--quiet", "--strict", "--ignore-missing", CHECKSUMS])
        .output()
        .context("cannot run sha256sum (package coreutils)")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        let mut failed: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(": FAILED")).collect();
        if failed.is_empty() {
            failed.push(CHECKSUMS);
        }
        findings.extend(failed.into_iter().map(|name| {
            Finding::new(
                &format!("{VENDOR}/{name}"),
                1,
                "differs from its recorded checksum: vendored files are not edited (see VENDORED.md)",
            )
        }));
    }
    Ok(findings)
}

/// Finds files that are recorded but absent, or present but not recorded.
fn compare_names(checksums: &str, present: &BTreeSet<String>) -> Vec<Finding> {
    let list = format!("{VENDOR}/{CHECKSUMS}");
    let mut findings = Vec::new();
    let mut recorded = BTreeSet::new();
    for (number, line) in checksums.lines().enumerate() {
        match line.split_once("  ") {
            Some((sum, name)) if sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()) => {
                recorded.insert(name.to_string());
                if !present.contains(name) {
                    findings.push(Finding::new(&list, number + 1, format!("{name} is recorded but absent")));
                }
            }
            _ => findings.push(Finding::new(&list, number + 1, "not a line of sha256sum")),
        }
    }
    for name in present.difference(&recorded) {
        findings.push(Finding::new(&format!("{VENDOR}/{name}"), 1, format!("not recorded in {list}")));
    }
    findings
}

fn files_under(directory: &Path, visit: &mut dyn FnMut(&Path)) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files_under(&path, visit)?;
        } else {
            visit(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `body`, the content that the samples record.
    const SUM_OF_BODY: &str = "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5";

    /// Checks a repository whose vendored tree holds `files` (name, content) and records
    /// `recorded`.
    fn found(files: &[(&str, &str)], recorded: &[&str]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let vendor = root.path().join(VENDOR);
        fs::create_dir_all(vendor.join("mimalloc/src")).unwrap();
        for (name, content) in files {
            fs::write(vendor.join(name), content).unwrap();
        }
        let lines: String = recorded.iter().map(|name| format!("{SUM_OF_BODY}  {name}\n")).collect();
        fs::write(vendor.join(CHECKSUMS), lines).unwrap();
        check(root.path()).unwrap().into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn an_untouched_tree_is_accepted() {
        let name = "mimalloc/src/a.c";
        assert!(found(&[(name, "body")], &[name]).is_empty());
    }

    #[test]
    fn a_changed_file_is_caught() {
        let name = "mimalloc/src/a.c";
        let found = found(&[(name, "Body")], &[name]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/heap/preload/vendor/mimalloc/src/a.c:1: differs"), "{found:?}");
    }

    #[test]
    fn an_added_and_a_removed_file_are_caught() {
        let found = found(&[("mimalloc/src/b.c", "body")], &["mimalloc/src/a.c"]);
        assert!(found[0].contains("CHECKSUMS:1: mimalloc/src/a.c is recorded but absent"), "{found:?}");
        assert!(found[1].contains("vendor/mimalloc/src/b.c:1: not recorded"), "{found:?}");
    }
}
