//! docs/doctor.md, written from the catalog.

use crate::catalog::{ALL, Kind, Severity};
use crate::why::catalog::REASONS;

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

Under `Kernel` it lists what this kernel lacks of what megapage can use, since when Linux has it, and what is lost or
takes its place; `--json` lists all of it, with `known_by` `trial` or `release`. [machines.md](machines.md) has the table.

## Findings

Capitals in a remedy stand for what you fill in; `megapage doctor` prints it filled in where it knows.
This list is written from `crates/doctor/src/catalog.rs`: after a change there, run
`MEGAPAGE_WRITE_DOCS=1 cargo test -p megapage-doctor document`.
";

const WHY: &str = "
## Why a range is not huge

`megapage doctor --why PROCESS` (number or name) lists the ranges of a running process that hold something and are not on huge pages: most
memory first, ranges of one mapping with the same reason together, mappings too small for a huge page in one line.
`--why PROCESS:ADDRESS` (hexadecimal) looks at the 2 MiB around one address. It changes nothing in the process, and needs
the right to trace it: run it as its user, or as root.

Where several reasons apply, the decisive one comes first: as long as it stands, the others do not matter. The first
kind is what can never be huge as it is mapped, then what the program, an ancestor or a setting asks for, then what the
range holds, and last what khugepaged has not got round to. A reason can also be one of the findings above, such as
`thp-never`, `thp-disabled-for-process`, `khugepaged-off`, `shmem-thp-off` or `cgroup-memory-tight`.

Locked memory (mlock(2)) can be huge, and is no reason. Where khugepaged is just now the kernel does not show, and
which pages are pinned neither. Pages shared with other processes are counted in the first 16 GiB.

The exit status is 0 where all that is present is huge or could not be, 1 where something stands in the way, 2 for a
process or an address that is not there. `--json` prints the schema `megapage.doctor-why/1`: the process's backing, the
region asked for, and the groups of ranges, each with its reasons as findings.

## What a log says

`megapage doctor --log FILE` (`-` is standard input) explains what programs have said of huge pages: JVMs of each release,
PostgreSQL, MariaDB, DPDK, QEMU, Redis, memcached, PHP. Each reason is told once, with the first such line, how often, what has
happened, and what helps. It changes nothing, and reads the first 64 MiB. The exit status is 0 where nothing of it is known, 1
where something was found, 2 for a file that cannot be read. `--json` prints the schema `megapage.doctor-log/1`: the messages.

## Reasons
";

/// The whole text of docs/doctor.md.
pub fn markdown() -> String {
    entries(HEAD, ALL) + &entries(WHY, REASONS)
}

fn entries(head: &str, kinds: &[&Kind]) -> String {
    let mut text = head.to_string();
    for kind in kinds {
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
