//! What programs say when huge pages fail them, and what it means.

use serde::Serialize;

/// A message that is known: how releases word it, and what it means.
struct Message {
    /// For each wording, parts of the line, all of which are in it.
    forms: &'static [&'static [&'static str]],
    /// Whose.
    program: &'static str,
    /// What has happened.
    meaning: &'static str,
    /// What helps.
    remedy: &'static str,
}

const MORE_PAGES: &str =
    "megapage pool list says what is available; megapage pool set 2MB:+N makes more, as root";
const JVM: &str = "JVM";

/// The first that fits counts.
const MESSAGES: [Message; 17] = [
    Message {
        // The second: Java 8 to 16.
        forms: &[&["Failed to reserve and commit memory"], &["Failed to reserve large pages memory"]],
        program: JVM,
        meaning: "the pool had too few pages for one mapping (errno 12, ENOMEM, for root too): that part of the JVM is on \
                  base pages, and the program goes on",
        remedy: "megapage run --dry-run -- java ... says how many pages it takes, code cache and tables with them",
    },
    Message {
        // -XX:+UseSHM, and Java 6, which knew nothing else.
        forms: &[&["Failed to reserve shared memory"]],
        program: JVM,
        meaning: "a System V segment was refused: errno 12, the pool is too short; errno 1, the user is not in \
                  vm.hugetlb_shm_group; errno 22, kernel.shmmax is too small",
        remedy: "leave -XX:+UseSHM out: since Java 7 the JVM maps the pool, which needs no right",
    },
    Message {
        forms: &[&["UseLargePages disabled, no large pages configured"]],
        program: JVM,
        meaning: "every pool was empty at the start: the whole JVM is on base pages",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["HugeTLBFS is not supported by the operating system"]],
        program: JVM,
        meaning: "the JVM tried one page and was refused: the pool was empty, or a control group's hugetlb limit is 0",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["TransparentHugePages is not supported by the operating system"]],
        program: JVM,
        meaning: "transparent huge pages are set to 'never'",
        remedy: "megapage doctor names the setting; megapage run promotes externally all the same, as root",
    },
    Message {
        forms: &[&["Setting LargePageSizeInBytes has no effect"]],
        program: JVM,
        meaning: "before Java 17 the JVM takes pages of the default size alone",
        remedy: "leave -XX:LargePageSizeInBytes out",
    },
    Message {
        forms: &[&["os::commit_memory(", "failed"]],
        program: JVM,
        meaning: "ordinary memory was refused, not huge pages: RLIMIT_DATA (which counts the pool's private pages as well), a \
                  control group, or vm.overcommit_memory=2; the JVM ends",
        remedy: "ulimit -d unlimited, or the group's memory limit; megapage run --dry-run -- java ... names what is too small",
    },
    Message {
        forms: &[&["Could not reserve enough space for", "object heap"]],
        program: JVM,
        meaning: "no run of addresses was long enough: RLIMIT_AS is smaller than the heap and what lies beside it",
        remedy: "ulimit -v unlimited",
    },
    Message {
        forms: &[&["Failed to commit memory (Not enough space)"]],
        program: "JVM with ZGC",
        meaning: "ZGC takes its heap from the pool as it grows and does not go on without: the pool was too short",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["could not map anonymous shared memory: Cannot allocate memory"]],
        program: "PostgreSQL",
        meaning: "with huge_pages=on the pool was too short for the shared memory: the server does not start",
        remedy: "postgres -C shared_memory_size_in_huge_pages says how many pages it takes",
    },
    Message {
        forms: &[&["Couldn't allocate HugeTLB page"]],
        program: "MariaDB",
        meaning: "the pool was too short for this piece of memory: it is on base pages, and the server goes on",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["EAL: No free", "hugepages reported"]],
        program: "DPDK",
        meaning: "no page of that size is free on a node",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["EAL: FATAL: Cannot get hugepage information"]],
        program: "DPDK",
        meaning: "no pool has a free page, or no hugetlbfs is mounted (--in-memory needs no mount): the program ends",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["unable to map backing store for guest RAM: Cannot allocate memory"]],
        program: "QEMU",
        meaning: "the pool was too short for the guest's memory: QEMU ends",
        remedy: MORE_PAGES,
    },
    Message {
        forms: &[&["Failed to set transparent hugepage hint"]],
        program: "memcached",
        meaning: "memory could not be advised to be huge",
        remedy: "megapage doctor",
    },
    Message {
        forms: &[&["Transparent Huge Pages (THP) support enabled in your kernel"]],
        program: "Redis",
        meaning: "THP are set to 'always': after a fork (BGSAVE) each first write to a huge page splits it",
        remedy: "set 'madvise', and start Redis by megapage run, which gives it huge pages all the same",
    },
    Message {
        forms: &[&["opcache.huge_code_pages has no affect"]],
        program: "PHP",
        meaning: "this build of PHP does not move its code",
        remedy: "megapage run --text auto -- php ...",
    },
];

/// A line that was recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The program that says such a thing.
    pub program: &'static str,
    /// The line, as it was first printed.
    pub line: String,
    /// How often.
    pub times: u64,
    /// What has happened.
    pub meaning: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

/// Which message a line is.
fn place(line: &str) -> Option<usize> {
    let has = |form: &&[&str]| form.iter().all(|part| line.contains(part));
    MESSAGES.iter().position(|message| message.forms.iter().any(has))
}

/// The messages in `text` that are known, each once, in the order of their first occurrence.
pub fn explain(text: &str) -> Vec<Explained> {
    let mut found: Vec<(usize, Explained)> = Vec::new();
    for line in text.lines() {
        let Some(index) = place(line) else { continue };
        let message = &MESSAGES[index];
        match found.iter_mut().find(|(known, _)| *known == index) {
            Some((_, explained)) => explained.times += 1,
            None => found.push((
                index,
                Explained {
                    program: message.program,
                    line: line.trim().into(),
                    times: 1,
                    meaning: message.meaning,
                    remedy: message.remedy,
                },
            )),
        }
    }
    found.into_iter().map(|(_, explained)| explained).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Java 11, 17 and 25 were seen to say it, and Java 6 in the beginning of it all.
    const SAID: &str = "\
starting
OpenJDK 64-Bit Server VM warning: Failed to reserve and commit memory. req_addr: 0x00000000f0000000 bytes: 268435456 \
page size: 2097152 (errno = 12).
OpenJDK 64-Bit Server VM warning: Failed to reserve and commit memory using large pages. req_addr: 0x0 bytes: 253755392
Java HotSpot(TM) 64-Bit Server VM warning: Failed to reserve shared memory (errno = 12).
OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x00007f1aebf80000, 4096, 0) failed; error='Not enough space' \
(errno=12)
ready
";

    #[test]
    fn each_is_reported_once_with_its_number() {
        let found = explain(SAID);
        let times: Vec<u64> = found.iter().map(|it| it.times).collect();
        assert_eq!(times, [2, 1, 1]);
        assert!(found[0].line.ends_with("(errno = 12).") && found[0].meaning.contains("too few pages"));
        assert!(found[1].remedy.contains("UseSHM") && found[2].meaning.contains("ordinary memory"));
        assert!(explain("all is well\n").is_empty());
    }

    #[test]
    fn none_hides_another() {
        for (index, message) in MESSAGES.iter().enumerate() {
            for form in message.forms {
                let line = form.join(" ... ");
                assert_eq!(place(&line), Some(index), "{line}");
            }
        }
    }
}
