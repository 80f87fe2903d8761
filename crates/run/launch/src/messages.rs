//! Messages of programs about huge pages that they did not get, and their meanings.

use serde::Serialize;
use std::sync::LazyLock;

/// A known message: its wordings in several releases, and its meaning.
struct Message {
    /// The wordings. Each is a list of parts; a line has to hold all of them.
    forms: &'static [&'static [&'static str]],
    /// The program that prints it.
    program: &'static str,
    /// The event that it reports.
    meaning: &'static str,
    /// The remedy.
    remedy: &'static str,
}

const MORE_PAGES: &str =
    "megapage pool list says what is available; megapage pool set 2MB:+N makes more, as root";
const JVM: &str = "JVM";
const LIBHUGETLBFS: &str = "libhugetlbfs";

macro_rules! messages {
    ($($program:expr, $forms:expr, $meaning:expr, $remedy:expr;)*) => {
        &[$(Message { forms: $forms, program: $program, meaning: $meaning, remedy: $remedy }),*]
    };
}

/// The known messages; the first that fits counts.
const MESSAGES: &[Message] = messages! {
    // The second form: Java 8 to 16.
    JVM, &[&["Failed to reserve and commit memory"], &["Failed to reserve large pages memory"]],
        "the pool had too few pages for one mapping (errno 12, ENOMEM, for root too): that part of the JVM is on \
         base pages, and the program goes on",
        "megapage run --dry-run -- java ... says how many pages it takes, code cache and tables with them";
    // -XX:+UseSHM, and Java 6, which had no other way.
    JVM, &[&["Failed to reserve shared memory", "= 12)"]],
        "a System V segment was refused with errno 12 (ENOMEM): the pool has too few pages, for root too. Where root \
         succeeds and another user does not, the kernel is older than Linux 2.6.30 (RHEL 5): it counted the segment as \
         locked memory, and RLIMIT_MEMLOCK (32 KiB) was too small, also for members of vm.hugetlb_shm_group. Later \
         kernels answer errno 1 there",
        "megapage pool set 2MB:+N as root, and leave -XX:+UseSHM out: since Java 7 the JVM maps the pool, which needs no \
         right. On such a kernel: the user's group in vm.hugetlb_shm_group, and memlock in /etc/security/limits.conf as \
         large as heap and code cache";
    JVM, &[&["Failed to reserve shared memory", "= 1)"]],
        "a System V segment was refused with errno 1 (EPERM): the user is not in the group of vm.hugetlb_shm_group and \
         lacks CAP_IPC_LOCK; before Linux 5.16 a sufficient RLIMIT_MEMLOCK replaced both",
        "leave -XX:+UseSHM out: since Java 7 the JVM maps the pool, which needs no right; megapage doctor --user NAME says \
         how the user gets it";
    JVM, &[&["Failed to reserve shared memory"]],
        "a System V segment was refused: errno 22, kernel.shmmax is too small; errno 28, kernel.shmall",
        "leave -XX:+UseSHM out: since Java 7 the JVM maps the pool, which needs no right";
    JVM, &[&["Large pages using UseSHM are not configured on this system"]],
        "the JVM tried a System V segment of one huge page and was refused: the user may not have one \
         (vm.hugetlb_shm_group, CAP_IPC_LOCK), or the pool was empty",
        "leave -XX:+UseSHM out: since Java 7 the JVM maps the pool, which needs no right";
    JVM, &[&["UseLargePages disabled, no large pages configured"]],
        "every pool was empty at the start: the whole JVM is on base pages",
        MORE_PAGES;
    JVM, &[&["HugeTLBFS is not supported by the operating system"]],
        "the JVM tried one page and was refused: the pool was empty, or a control group's hugetlb limit is 0",
        MORE_PAGES;
    JVM, &[&["TransparentHugePages is not supported by the operating system"]],
        "transparent huge pages are set to 'never'",
        "megapage doctor names the setting; megapage run promotes externally all the same, as root";
    JVM, &[&["Setting LargePageSizeInBytes has no effect"]],
        "before Java 17 the JVM takes pages of the default size alone",
        "leave -XX:LargePageSizeInBytes out";
    JVM, &[&["os::commit_memory(", "failed"]],
        "ordinary memory was refused, not huge pages: RLIMIT_DATA (which counts the pool's private pages as well), a \
         control group, or vm.overcommit_memory=2; the JVM ends",
        "ulimit -d unlimited, or the group's memory limit; megapage run --dry-run -- java ... names what is too small";
    JVM, &[&["Could not reserve enough space for", "object heap"]],
        "no run of addresses was long enough: RLIMIT_AS is smaller than the heap and what lies beside it",
        "ulimit -v unlimited";
    "JVM with ZGC", &[&["Failed to commit memory (Not enough space)"]],
        "ZGC takes its heap from the pool as it grows and does not go on without: the pool was too short",
        MORE_PAGES;
    "PostgreSQL", &[&["could not map anonymous shared memory: Cannot allocate memory"]],
        "with huge_pages=on the pool was too short for the shared memory: the server does not start",
        "postgres -C shared_memory_size_in_huge_pages says how many pages it takes";
    // The second form: 10.6 to 10.11; the third: InnoDB's buffer pool.
    "MariaDB",
        &[&["Couldn't allocate HugeTLB page"], &["Couldn't allocate", "bytes (Large/HugeTLB memory page"],
          &["InnoDB: HugeTLB:", "errno 12"]],
        "the pool was too short for this piece of memory: it is on base pages, and the server goes on",
        MORE_PAGES;
    "DPDK", &[&["EAL: No free", "hugepages reported"]],
        "no page of that size is free on a node",
        MORE_PAGES;
    "DPDK", &[&["Not enough memory available on socket"], &["EAL: Not enough memory available"]],
        "the pools of the nodes asked for (--socket-mem, -m) have fewer free pages than that: the program ends",
        "megapage pool list shows the pages of each node; megapage pool set 2m=NODE:+N makes more, as root";
    "DPDK", &[&["EAL: FATAL: Cannot get hugepage information"]],
        "no pool has a free page, or no hugetlbfs is mounted (--in-memory needs no mount): the program ends",
        MORE_PAGES;
    "DPDK", &[&["Using --huge-unlink=never may create data leaks"]],
        "pages of an earlier run are mapped again with their old bytes, which makes the start fast: anyone who may read the \
         files of the hugetlbfs could have put them there",
        "a separate mount: mode=0700 and the user's uid; megapage's segments reuse only what the same user left";
    "QEMU", &[&["unable to map backing store for guest RAM: Cannot allocate memory"]],
        "the pool was too short for the guest's memory: QEMU ends",
        MORE_PAGES;
    "memcached", &[&["Failed to set transparent hugepage hint"]],
        "memory could not be advised to be huge",
        "megapage doctor";
    // The second form: LATENCY DOCTOR.
    "Redis",
        &[&["Transparent Huge Pages (THP) support enabled in your kernel"],
          &["I detected a non zero amount of anonymous huge pages used by your process"]],
        "THP are set to 'always': after a fork (BGSAVE) each first write to a huge page splits it",
        "set 'madvise', and start Redis by megapage run, which gives it huge pages all the same";
    "PHP", &[&["opcache.huge_code_pages has no affect"]],
        "this build of PHP does not move its code",
        "megapage run --text auto -- php ...";
    "MySQL or MariaDB", &[&["Using conventional memory pool"]],
        "large_pages found the pool too short, or its segment was refused (vm.hugetlb_shm_group, kernel.shmmax): the \
         buffer pool is on base pages, and the server goes on",
        "megapage doctor --user mysql says which; megapage pool set 2MB:+N makes more pages, as root";
    // PostgreSQL's postmaster about a child, and other programs in their own words.
    "any program",
        &[&["terminated by signal 7: Bus error"], &["Bus error", "(core dumped)"], &["SIGBUS (0x7)"],
          &["SIGBUS: bus error"]],
        "a page of a hugetlb mapping could not be had when it was touched: the control group's limit (in a pod: \
         resources.limits.hugepages-2Mi) is lower than what was mapped, or the pool ran dry; or a mapped file is \
         shorter than its mapping",
        "megapage doctor names the limit; raise it, or limit reservations instead (hugetlb.2MB.rsvd.max), which programs \
         survive; PostgreSQL in a pod without huge pages: huge_pages = off";
    "Kubernetes", &[&["Insufficient hugepages-"]],
        "no node has so many huge pages of that size left: the kubelet counts them when it starts, and pods own what \
         they ask for, used or not",
        "megapage pool persist 2m=N --apply on the node, then restart the kubelet; kubectl describe node shows Allocatable";
    "MongoDB up to 7.0",
        &[&["transparent_hugepage/enabled is 'always'"], &["transparent_hugepage/defrag is 'always'"]],
        "its allocator keeps huge pages that it uses little of, so memory may bloat",
        "megapage enable --thp never mongod takes THP from this service alone, and leaves them to others";
    // From 8.0 on; the second form is about max_ptes_none.
    "MongoDB 8.0 or later",
        &[&["we suggest setting the contents of sysfsFile"],
          &["We suggest setting the contents of sysfsFile to 0"],
          &["we suggest changing the contents of the following sysfsFile"]],
        "its allocator wants THP 'always', defrag 'defer+madvise' and max_ptes_none 0, which hold for all programs",
        "megapage thp get shows what is set; megapage thp set enabled=always defrag=defer+madvise changes it, as root";
    "ClickHouse", &[&["transparent hugepages are set to", "always"]],
        "with 'always' its allocator's memory is huge wherever it lies, and may bloat: it asks for huge pages itself \
         where 'madvise' is set",
        "megapage thp set enabled=madvise, as root; or megapage enable --thp advised clickhouse-server (Linux 6.18)";
    LIBHUGETLBFS, &[&["New heap segment map at", "failed"]],
        "HUGETLB_MORECORE found the pool too short: this malloc is on base pages, and the program goes on. Pages that \
         others have reserved are not to be had: Free less Rsvd is what is available. (glibc up to 2.33: later ones lack \
         the hook that HUGETLB_MORECORE works by)",
        MORE_PAGES;
    LIBHUGETLBFS, &[&["Not setting up morecore because it's not available"]],
        "HUGETLB_MORECORE does nothing: glibc 2.34 removed the hook __morecore, and malloc stays on base pages. This is \
         reported with HUGETLB_VERBOSE=3 alone",
        "megapage run PROGRAM; or GLIBC_TUNABLES=glibc.malloc.hugetlb=2 (glibc 2.35: pages of the pool; 1: THP)";
    LIBHUGETLBFS,
        &[&["While overriding shmget(", "to add SHM_HUGETLB"],
          &["Using small pages for shmget despite HUGETLB_SHM"]],
        "HUGETLB_SHM could not make a System V segment huge: Cannot allocate memory, the pool is too short; Operation not \
         permitted, the user is not in vm.hugetlb_shm_group. The segment is on base pages, and the program goes on",
        "megapage doctor --user NAME says which; megapage run --shm 2m PROGRAM does the same";
    LIBHUGETLBFS,
        &[&["libhugetlbfs", "Executable has too many segments"],
          &["LD_PRELOAD is incompatible with segment remapping"],
          &["Segment remapping has been DISABLED"], &["libhugetlbfs", "Layout problem with segments"]],
        "HUGETLB_ELFMAP remaps at most 3 segments, of a program linked for it (-Wl,-zcommon-page-size=2M): the program's \
         code and data stay on base pages",
        "megapage run --text auto PROGRAM remaps code of any number of segments, without relinking";
    LIBHUGETLBFS,
        &[&["libhugetlbfs", "Hugepages unavailable"], &["libhugetlbfs", "Hugepage size", "unavailable"],
          &["Failed to reserve", "huge pages for new region"],
          &["get_huge_pages: New region mapping failed"]],
        "no pool of that size has enough free pages, or no hugetlbfs of it is mounted: what was asked for is on base pages",
        MORE_PAGES;
    "Linux", &[&["Using mlock ulimits for SHM_HUGETLB"]],
        "a program without CAP_IPC_LOCK, and not in vm.hugetlb_shm_group, made a System V segment of huge pages up to its \
         RLIMIT_MEMLOCK. Since Linux 5.16 ('obsolete' in the message) it is refused with errno 1 (EPERM)",
        "sysctl -w vm.hugetlb_shm_group=GID, with the user in that group";
};

/// A recognised line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The program that prints such a line.
    pub program: &'static str,
    /// The line, as it first occurred.
    pub line: String,
    /// Number of occurrences.
    pub times: u64,
    /// The event that it reports.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// The forms of each message, in lower case.
static FORMS: LazyLock<Vec<Vec<Vec<String>>>> = LazyLock::new(|| {
    let form = |parts: &&[&str]| parts.iter().map(|part| part.to_ascii_lowercase()).collect();
    MESSAGES.iter().map(|message| message.forms.iter().map(form).collect()).collect()
});

/// Returns the index of the message that a line holds. Ignores case: articles and tickets change a
/// quoted line's capitals.
fn place(line: &str) -> Option<usize> {
    let line = line.to_ascii_lowercase();
    let has = |form: &Vec<String>| form.iter().all(|part| line.contains(part));
    FORMS.iter().position(|forms| forms.iter().any(has))
}

/// Returns the known messages in `text`, each once, in the order of their first occurrence.
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
mod tests;
