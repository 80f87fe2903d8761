//! `cargo xtask tidy`: the invariants that ARCHITECTURE.md explains, checked mechanically.
//!
//! Each rule is a function from text to findings, so that its tests can hand it a bad sample.

mod manifest;
mod prose;
mod ratchet;
mod rust;
mod scan;
mod shows;
mod size;
mod vendored;

use crate::finding::Finding;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Directories whose files are not ours to tidy: vendored sources, patches of them, and captured
/// kernel trees.
const NOT_OURS: [&str; 3] =
    ["crates/heap/preload/vendor/mimalloc/", "crates/heap/preload/patches/", "fixtures/"];

/// Checks the repository at `root` and prints the findings. Returns 1 if there are any.
pub fn run(root: &Path) -> Result<ExitCode> {
    let files = read_files(root)?;
    let findings = findings(root, &files)?;
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the findings in the repository at `root`, whose text files are `files`, in order.
fn findings(root: &Path, files: &BTreeMap<String, String>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, text) in files {
        findings.extend(prose::whitespace(path, text));
        if path.ends_with(".rs") {
            findings.extend(rust::check(path, text));
        }
        if path.ends_with(".md") {
            findings.extend(prose::links(path, text, |target| root.join(target).exists()));
        }
    }
    let commands = prose::Commands {
        subcommands: prose::subcommands(text_of(files, "crates/cli/src/main.rs")?),
        targets: prose::make_targets(text_of(files, "Makefile")?),
    };
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        findings.extend(commands.check(path, text));
    }
    let summary = text_of(files, "docs/SUMMARY.md")?;
    findings.extend(prose::book(summary, files.keys().map(String::as_str)));
    findings.extend(manifest::check(&cargo_metadata(root)?)?);
    findings.extend(vendored::check(root)?);
    findings.extend(ratchet::check(files)?);
    findings.extend(shows::check(files));
    findings.extend(crate::header::check(root)?);
    findings.extend(crate::abilities::section().check(root));
    findings.extend(crate::values::check(root)?);
    findings.extend(crate::results::section(root)?.check(root));

    findings.sort();
    Ok(findings)
}

/// Lowers the numbers of `xtask/ratchet.json` to the present ones.
pub fn lower_ratchet(root: &Path) -> Result<()> {
    ratchet::lower(root, &read_files(root)?)
}

fn text_of<'a>(files: &'a BTreeMap<String, String>, path: &str) -> Result<&'a str> {
    files.get(path).map(String::as_str).with_context(|| format!("{path} is missing"))
}

/// Reads the text files that are ours, by path: those that git tracks or would add.
fn read_files(root: &Path) -> Result<BTreeMap<String, String>> {
    let listed = stdout(Command::new("git").current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let mut files = BTreeMap::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        if NOT_OURS.iter().any(|directory| path.starts_with(directory)) {
            continue;
        }
        // A file that was deleted but is still in the index has no text; a binary one has none of
        // ours.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            files.insert(path.to_string(), text);
        }
    }
    ensure!(!files.is_empty(), "git lists no files in {}", root.display());
    Ok(files)
}

fn cargo_metadata(root: &Path) -> Result<String> {
    stdout(Command::new("cargo").current_dir(root).args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version=1",
    ]))
}

/// Returns the output of a command. If it fails, the error quotes its standard error.
fn stdout(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the whole of `cargo xtask tidy` in the build that the other tests have.
    #[test]
    fn the_repository_has_no_findings() {
        let root = crate::repository().unwrap();
        let findings = findings(&root, &read_files(&root).unwrap()).unwrap();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }
}
