//! Text of docs/doctor.md, written from the catalog.

use crate::catalog::{ALL, Kind};
use crate::why::catalog::REASONS;

const HEAD: &str = "\
# megapage doctor

`megapage doctor` finds and explains what stands between a user or a program and huge pages. It changes nothing.

<!-- manual needs java -->
<!-- manual put tomcat=nobody -->
<!-- manual with redis -->
<!-- manual before echo 'Failed to reserve and commit memory' >java.log -->
<!-- manual omit megapage doctor --log -u: it takes a journal -->
<!-- manual status 1 -->
```sh
megapage doctor
sudo megapage doctor --user tomcat --for java
megapage doctor --why redis-server
megapage doctor --log java.log
megapage doctor --log -u redis-server
```

- `--user NAME`: the user in question, by login name or number. `--for PROGRAM`: also look at this program, by path or by
  name in PATH.
- Where it can, doctor asks the kernel for one huge page in a child process, in each way that a program could: the answer is
  *tried* (as another user this needs root). Everything else is *reasoned* from what it reads. `--only-read` tries nothing.
- The first sentence says whether something is wrong; with `--for` the second says how the program is started on huge pages.
  Notes, which nothing has to be done about, take a line each below; `--verbose` shows them in full.
- `--json` prints `megapage.doctor/1`: the summary, the user, the verdicts (for each way: outcome, error number, a sentence with the
  reason, the findings behind it) and the findings.
- Exit status: 0 nothing above a note; 1 a blocker or a warning; 2 bad input.

A **blocker** closes a way to huge pages. A **warning** means fewer or later ones, or a risk. A **note** is good to know: an
empty pool, for example, matters only to programs that ask for hugetlb pages.
Trials do not show limits of another user's control group (the child stays in the caller's), pages of 1 GiB (a trial takes
at most 32 MiB), or how many pages there are.

`Kernel` lists abilities that this kernel lacks, the Linux release that has them, and what is lost or replaces them; `--json`
lists all, with `known_by` `trial` or `release` (table: [machines.md](machines.md)).

<!-- manual rest a remedy changes the machine, and is run only where its finding is there: crates/cli/tests/doctor.rs -->

## Findings

In remedies, capitals stand for what you fill in; `megapage doctor` fills in what it knows. This list comes from
`crates/watch/doctor/src/catalog.rs`; after a change run `MEGAPAGE_WRITE_DOCS=1 cargo test -p megapage-doctor document`.
";

const WHY: &str = "
## Why a range is not huge

`megapage doctor --why PROCESS` (number or name) lists the ranges of a running process that hold memory but are not on huge
pages: largest first, ranges of one mapping with the same reason together, too small mappings in one line. `--why
PROCESS:ADDRESS` (hexadecimal) shows the 2 MiB around one address. It changes nothing and needs the right to trace the process:
run it as its user or as root.

The decisive reason comes first; until it is fixed the others do not matter. The order: what can never be huge as it is
mapped; what the program, an ancestor or a setting asks for; what the range holds; what khugepaged has not reached. Findings
from above can be reasons too: `thp-never`, `thp-disabled-for-process`, `khugepaged-off`, `shmem-thp-off`,
`cgroup-memory-tight`.

Locked memory (mlock(2)) can be huge. The kernel shows neither khugepaged's position nor which pages are pinned. Pages
shared with other processes are counted in the first 16 GiB.

Exit status: 0 everything present is huge or cannot be; 1 something stands in the way; 2 no such process or address. `--json`
prints `megapage.doctor-why/1`: the process's backing, the region asked for, findings about how the process was started
(`morecore-dead`), and the groups of ranges with their findings.

## What a log says

`megapage doctor --log FILE` (`-`: standard input) explains messages about huge pages of JVMs of each release, PostgreSQL,
MariaDB, MySQL, MongoDB, ClickHouse, DPDK, QEMU, Redis, memcached, PHP, libhugetlbfs, the kernel and Kubernetes, and bus errors of
any program, in capitals or not: the first such line, how often it came, what happened, and what helps. It reads the first 64 MiB. `megapage doctor
--log -u UNIT` reads the journal of a service instead, since the machine has started (journalctl). Exit status: 0 no known message; 1 at least one; 2 unreadable file. `--json` prints
`megapage.doctor-log/1`: the messages.

## Reasons
";

/// Returns the whole text of docs/doctor.md.
fn markdown() -> String {
    entries(HEAD, ALL) + &entries(WHY, REASONS)
}

/// Escapes `<`, so that `<size>` is not taken for an element of HTML.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<")
}

fn entries(head: &str, kinds: &[&Kind]) -> String {
    let mut text = head.to_string();
    for kind in kinds {
        let severity = kind.severity.name();
        text +=
            &format!("\n### {}\n\n**{severity}: {}.** {}\n", kind.id, kind.title, escaped(kind.explanation));
        let remedies = kind.remedies();
        if !remedies.is_empty() {
            text += &format!("\n```sh\n{}\n```\n", remedies.join("\n"));
        }
    }
    text
}

mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_document_is_written_from_the_catalog() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/doctor.md");
        if std::env::var_os("MEGAPAGE_WRITE_DOCS").is_some() {
            std::fs::write(&path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written == markdown(), "docs/doctor.md is stale: see its section 'Findings'");
    }
}
