//! docs/doctor.md, written from the catalog.

use crate::catalog::{ALL, Severity};

const HEAD: &str = "\
# megapage doctor

`megapage doctor [--user NAME] [--for PROGRAM] [--only-read] [--json]` finds and explains what stands between
a user or a program and huge pages. It changes nothing. Where it can, it asks the kernel for one huge page in a
child process, in every way that a program could ask, and reports the answer as *tried*: as another user it
needs root for that. The rest is *reasoned* from what can be read. `--only-read` tries nothing.

The exit status is 0 when nothing weightier than a note was found, 1 with a blocker or a warning, 2 for bad
input. `--json` prints the schema `megapage.doctor/1`: the user, the verdicts (one for each way of asking:
outcome, error number, a sentence with the reason, the findings that explain it) and the findings.

A **blocker** closes a way to huge pages. A **warning** leaves it open, but huge pages will be fewer, come
later, or at a risk. A **note** is good to know.

What a trial cannot show: limits of another user's control group (the child stays in the caller's), pages of
1 GiB (a trial takes at most 32 MiB), and how many pages beyond the first can be had.

## Findings

Capitals in a remedy stand for what you fill in; `megapage doctor` prints it filled in where it knows.
This list is written from `crates/doctor/src/catalog.rs`: after a change there, run
`MEGAPAGE_WRITE_DOCS=1 cargo test -p megapage-doctor document`.
";

/// The whole text of docs/doctor.md.
pub fn markdown() -> String {
    let mut text = HEAD.to_string();
    for kind in ALL {
        let severity = match kind.severity {
            Severity::Blocker => "blocker",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        text += &format!("\n### {}\n\n**{severity}: {}.** {}\n", kind.id, kind.title, kind.explanation);
        let remedies = kind.remedies();
        if !remedies.is_empty() {
            text += &format!("\n```sh\n{}\n```\n", remedies.join("\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_document_is_written_from_the_catalog() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
        if std::env::var_os("MEGAPAGE_WRITE_DOCS").is_some() {
            std::fs::write(&path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written == markdown(), "docs/doctor.md is stale: see its section 'Findings'");
    }
}
