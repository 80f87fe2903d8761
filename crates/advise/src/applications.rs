//! Settings of programs that manage huge pages themselves: one entry for each program. What language runtimes need
//! is in `megapage_launch::runtimes`.

use crate::{How, Memory};
use megapage_units::{Bytes, HUGE_2M};

/// A program with a setting of its own.
struct Application {
    /// Command names.
    names: &'static [&'static str],
    /// The setting, and what it does.
    how: fn(&Memory) -> How,
    /// Whether it does something only where huge pages are given to who does not ask for them (THP `always`).
    takes_always: bool,
    /// What `megapage run` needs besides, the attached one, too,
    options: &'static [&'static str],
    /// and the program, where the setting does something.
    arguments: &'static [&'static str],
    /// What to know before.
    risk: Option<&'static str>,
}

/// What is known of a program.
pub(crate) struct Own {
    /// Its own setting, where it does something here.
    pub how: Option<How>,
    /// Options of `megapage run` for it.
    pub options: &'static [&'static str],
    /// Arguments for it.
    pub arguments: &'static [&'static str],
    /// What to know before.
    pub risk: Option<&'static str>,
}

const APPLICATIONS: [Application; 4] = [
    Application {
        // redis.conf, "KERNEL transparent hugepage CONTROL".
        names: &["redis-server", "valkey-server"],
        how: |_| How {
            what: "disable-thp no".into(),
            why: "in its configuration: otherwise it switches transparent huge pages off for itself".into(),
        },
        takes_always: true,
        options: &["--fork", "snapshot"],
        arguments: &["--disable-thp", "no"],
        risk: Some(
            "BGSAVE and AOF rewrites fork: each first write afterwards splits a huge page; megapage run --fork snapshot \
             makes it huge again",
        ),
    },
    Application {
        // PostgreSQL documentation, 18.4.5 Linux Huge Pages.
        names: &["postgres", "postmaster"],
        how: |memory| How {
            what: format!("huge_pages = on, after megapage pool set 2MB:+{}", pages(memory.shared)),
            why: "in postgresql.conf: moves its shared memory to hugetlb pages".into(),
        },
        takes_always: false,
        options: &[],
        arguments: &[],
        risk: None,
    },
    Application {
        // MySQL reference manual, 10.12.3.3 Enabling Large Page Support.
        names: &["mysqld", "mariadbd"],
        how: |memory| How {
            what: format!("large-pages, after megapage pool set 2MB:+{}", pages(memory.promotable)),
            why: "in the [mysqld] section: takes the buffer pool from the hugetlb pool; its user needs \
                  LimitMEMLOCK=infinity and a group in vm.hugetlb_shm_group"
                .into(),
        },
        takes_always: false,
        options: &[],
        arguments: &[],
        risk: None,
    },
    Application {
        // memcached(1).
        names: &["memcached"],
        how: |_| How {
            what: "memcached -L".into(),
            why: "allocates its slabs at once, on huge pages".into(),
        },
        takes_always: false,
        options: &[],
        arguments: &[],
        risk: None,
    },
];

/// Pages of 2 MiB for `bytes`, and a tenth more, for what a server maps besides.
fn pages(bytes: Bytes) -> u64 {
    (bytes.0 / HUGE_2M as u64 * 11).div_ceil(10).max(1)
}

/// What is known of the program. A setting that does nothing here is left out.
pub(crate) fn own(name: &str, memory: &Memory, thp_always: bool) -> Option<Own> {
    let found = APPLICATIONS.iter().find(|application| application.names.contains(&name))?;
    let works = thp_always || !found.takes_always;
    Some(Own {
        how: works.then(|| (found.how)(memory)),
        options: found.options,
        arguments: if works { found.arguments } else { &[] },
        risk: found.risk,
    })
}
