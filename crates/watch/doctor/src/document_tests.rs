//! Comparison of docs/doctor.md with the catalogue.

use crate::catalog::{CATALOG, Kind};
use std::path::Path;

/// Heading that follows the findings.
const WHY: &str = "\n## Why a range is not huge\n";

#[test]
fn the_document_is_written_from_the_catalog() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/doctor.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let (findings, why) = written.split_once(WHY).unwrap();
    let wanted = entries(findings, &CATALOG.findings) + WHY + &entries(why, &CATALOG.reasons);
    if std::env::var_os("MEGAPAGE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == wanted,
        "docs/doctor.md is stale: see its section 'Findings'"
    );
}

/// Escapes `<`, so that `<size>` is not taken for an element of HTML.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<")
}

/// Returns the part of the document that ends with the entries of `kinds`.
fn entries(part: &str, kinds: &[Kind]) -> String {
    let mut text = part.split("\n### ").next().unwrap().to_string();
    for kind in kinds {
        let severity = kind.severity.name();
        text +=
            &format!("\n### {}\n\n**{severity}: {}.** {}\n", kind.id, kind.title, escaped(&kind.explanation));
        let remedies = kind.remedies();
        if !remedies.is_empty() {
            text += &format!("\n```sh\n{}\n```\n", remedies.join("\n"));
        }
    }
    text
}
