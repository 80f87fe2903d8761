//! Every kind of finding: its identifier, its weight, what it means and how it is mended.
//!
//! docs/doctor.md is written from this list, and a test compares the two.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing is wrong.
    Note,
    /// Huge pages are to be had, but fewer, later or with a risk.
    Warning,
    /// A way to huge pages is closed.
    Blocker,
}

impl Severity {
    /// The word used in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Blocker => "blocker",
        }
    }
}

/// What all findings with one identifier have in common.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Kebab-case, and never given another meaning.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// One line.
    pub title: &'static str,
    /// What it means and why it stands in the way.
    pub explanation: &'static str,
    /// Shell commands or lines of a configuration file; capitals stand for what the reader fills in, and
    /// `{thp}` for the directory of the settings of transparent huge pages: see [`Kind::remedies`].
    pub remedy: &'static [&'static str],
}

impl Kind {
    /// The remedies, ready to be typed but for what is in capitals.
    pub fn remedies(&self) -> Vec<String> {
        let thp = megapage_kernel::thp::path("");
        self.remedy.iter().map(|line| line.replace("{thp}/", &thp)).collect()
    }
}

macro_rules! kinds {
    ($(#[$attribute:meta])* $list:ident; $($name:ident, $id:literal, $severity:ident, $title:literal, $explanation:literal, [$($remedy:literal),*];)+) => {
        $(
            #[doc = $title]
            pub static $name: $crate::catalog::Kind = $crate::catalog::Kind {
                id: $id,
                severity: $crate::catalog::Severity::$severity,
                title: $title,
                explanation: $explanation,
                remedy: &[$($remedy),*],
            };
        )+

        $(#[$attribute])*
        pub static $list: &[&$crate::catalog::Kind] = &[$(&$name),+];
    };
}
pub(crate) use kinds;

kinds! {
    /// All kinds, in the order of docs/doctor.md.
    ALL;
    // The machine.
    BASE_PAGES_OTHER, "base-pages-other", Blocker, "The kernel's base pages are not of 4 KiB",
        "It was built for base pages of 16 or 64 KiB, on which every other page size is another one, too (a transparent huge page is of 32 or 512 MiB). megapage supports base pages of 4 KiB: its other commands do nothing here, and no figure is given that would be wrong.",
        ["apt-get install linux-image-arm64    # Debian: the kernel with base pages of 4 KiB; then reboot"];
    // Transparent huge pages.
    THP_ABSENT, "thp-absent", Blocker, "The kernel has no transparent huge pages",
        "It was built without CONFIG_TRANSPARENT_HUGEPAGE, so that only reserved hugetlb pages are to be had.",
        [];
    THP_NEVER, "thp-never", Blocker, "Transparent huge pages are switched off",
        "With 'never', neither page faults nor khugepaged give anonymous memory pages of 2 MiB, not even to a program that asks with madvise(2). Only promotion from outside (MADV_COLLAPSE) still works.",
        ["echo madvise > {thp}/enabled"];
    THP_ON_REQUEST, "thp-on-request", Note, "Transparent huge pages go only to programs that ask",
        "With 'madvise', a program that does not call madvise(MADV_HUGEPAGE) stays on base pages. `megapage run` asks on the program's behalf.",
        ["megapage run PROGRAM", "echo always > {thp}/enabled"];
    THP_DISABLED, "thp-disabled-for-process", Blocker, "This process, and what it starts, may not have transparent huge pages",
        "prctl(PR_SET_THP_DISABLE) was called in it or in one of its ancestors. The flag is inherited over fork and exec, and overrides the settings of the machine. Container runtimes and some service managers set it.",
        ["pstree --show-parents --show-pids $$    # one of these has switched it off"];
    THP_DEFRAG_NEVER, "thp-defrag-never", Warning, "Page faults never make room for a huge page",
        "With 'never' in defrag, a fault takes a huge page only if one is free at that moment: on a machine whose memory has been in use for a while, often none is.",
        ["echo madvise > {thp}/defrag"];
    THP_DEFRAG_STALLS, "thp-defrag-stalls", Note, "Page faults of every program may stall to make room for huge pages",
        "With 'always' in defrag and in enabled, each fault that finds no free huge page reclaims and compacts memory before it returns, which shows as pauses.",
        ["echo defer+madvise > {thp}/defrag"];
    KHUGEPAGED_OFF, "khugepaged-off", Warning, "khugepaged never collapses anything",
        "pages_to_scan is 0: memory that starts on base pages stays there, whatever the other settings.",
        ["echo 4096 > {thp}/khugepaged/pages_to_scan"];
    SHMEM_THP_OFF, "shmem-thp-off", Note, "Shared memory is never on transparent huge pages",
        "tmpfs, memfds, SysV segments and shared anonymous memory follow shmem_enabled, not enabled.",
        ["echo advise > {thp}/shmem_enabled"];
    MTHP_OFF, "mthp-off", Note, "No page size between the base page and 2 MiB is enabled",
        "From Linux 6.8 on memory can also be on pages of sizes in between, which are easier to find when free memory is scattered. Each size has a setting of its own.",
        ["echo inherit > {thp}/hugepages-64kB/enabled"];
    MEMORY_FRAGMENTED, "memory-fragmented", Warning, "Little of the available memory lies in blocks of 2 MiB",
        "A huge page needs 2 MiB of free memory in one aligned piece. Where free memory is scattered the kernel first has to compact, which takes time and can fail: one base page that cannot be moved spoils a whole block.",
        ["sysctl -w vm.compact_memory=1"];
    MEMORY_SHORT, "memory-short", Warning, "The machine is short of memory",
        "Less than 5 % of the memory is available. Huge pages are the first thing that is not to be had.",
        ["megapage pool list"];

    // Pools of hugetlb pages.
    HUGETLB_ABSENT, "hugetlb-absent", Blocker, "The kernel has no hugetlb pages",
        "It was built without CONFIG_HUGETLBFS, or the processor's page sizes are not supported.",
        [];
    POOL_EMPTY, "pool-empty", Blocker, "No hugetlb pages of the default size are reserved",
        "The pool is empty and may not grow on demand: mmap(MAP_HUGETLB) and shmget(SHM_HUGETLB) answer errno 12 (ENOMEM) to everybody, root included. The JVM's \"Failed to reserve shared memory. (error = 12)\" is this.",
        ["megapage pool set 2MB:+512"];
    POOL_TAKEN, "pool-taken", Blocker, "Every hugetlb page of this size is in use or promised",
        "What a new mapping can have is Free less Rsvd: pages that are free, but reserved by a mapping that has not touched them yet, are promised to that one. A new mapping is answered errno 12 (ENOMEM).",
        ["megapage pool list", "megapage pool set 2MB:+512"];
    POOL_ELSEWHERE, "pool-elsewhere", Blocker, "The free hugetlb pages lie on nodes that the process may not use",
        "Its cpuset (cpuset.mems of its control group) or its memory policy (numactl --membind) confines it to other NUMA nodes. A new mapping is answered errno 12 (ENOMEM), however many pages are free elsewhere.",
        ["megapage pool set 2m=NODE:+512", "numactl --membind=NODES PROGRAM", "echo NODES > CGROUP/cpuset.mems"];
    POOL_ON_DEMAND, "pool-on-demand", Warning, "Hugetlb pages of this size are only taken on demand",
        "No page is available in the pool, but overcommit lets it grow: each mapping is then served from free memory, which can fail at any time and takes longer the more scattered memory is.",
        ["megapage pool set 2MB:+512"];
    POOL_SIZE_UNUSED, "pool-size-unused", Note, "No pages of this further size are reserved",
        "Programs that ask for this page size are answered errno 12 (ENOMEM). Pages of 1 GiB are best reserved at boot.",
        ["megapage pool set 1GB:+1", "megapage pool persist --apply 1g=1"];

    // Users and limits.
    SHM_NOT_PERMITTED, "shm-not-permitted", Blocker, "This user may not make SysV segments of hugetlb pages",
        "shmget(SHM_HUGETLB) answers errno 1 (EPERM) unless the caller is in the group that vm.hugetlb_shm_group names, or has CAP_IPC_LOCK in the machine's own user namespace. How many pages the pool holds does not matter. mmap(MAP_HUGETLB) needs no permission. The JVM's \"Large pages using UseSHM are not configured on this system\" is this.",
        ["groupadd --force hugepages", "usermod --append --groups hugepages USER", "sysctl -w vm.hugetlb_shm_group=$(getent group hugepages | cut -d: -f3)"];
    SHM_BY_MEMLOCK, "shm-by-memlock", Warning, "SysV segments of hugetlb pages are limited by RLIMIT_MEMLOCK",
        "Older kernels let a user outside vm.hugetlb_shm_group use SHM_HUGETLB up to RLIMIT_MEMLOCK: a small segment is granted where a large one is answered errno 1 (EPERM).",
        ["sysctl -w vm.hugetlb_shm_group=GID", "USER - memlock unlimited    # in /etc/security/limits.d/hugepages.conf", "LimitMEMLOCK=infinity    # in the systemd unit"];
    SHMMAX_SMALL, "shmmax-small", Warning, "SysV segments may not be as large as the memory that could back them",
        "shmget(2) answers errno 22 (EINVAL) above kernel.shmmax, and errno 28 (ENOSPC) when all segments together would exceed kernel.shmall base pages.",
        ["sysctl -w kernel.shmmax=18446744073692774399 kernel.shmall=18446744073692774399"];
    MEMLOCK_LIMITED, "memlock-limited", Note, "Locked memory is limited",
        "Neither mmap(MAP_HUGETLB) nor transparent huge pages need locked memory. Programs that also call mlock(2), as databases, the JVM's UseSHM and DPDK do, fail above RLIMIT_MEMLOCK.",
        ["USER - memlock unlimited    # in /etc/security/limits.d/hugepages.conf, for logins", "LimitMEMLOCK=infinity    # in the systemd unit, for services"];
    ADDRESS_SPACE_LIMITED, "address-space-limited", Warning, "Mappings are limited by RLIMIT_AS or RLIMIT_DATA",
        "Allocators reserve large ranges ahead of use, and private hugetlb mappings count in full: mmap(2) answers errno 12 (ENOMEM) above the limit, however many pages are free.",
        ["ulimit -v unlimited; ulimit -d unlimited"];
    OVERCOMMIT_STRICT, "overcommit-strict", Warning, "Memory is committed strictly",
        "With vm.overcommit_memory=2 every private writable mapping counts in full against the commit limit, MAP_NORESERVE or not: an allocator that reserves address space ahead may be answered ENOMEM. Hugetlb pages do not count, but the pools are taken off the limit.",
        ["sysctl -w vm.overcommit_memory=0"];
    MAP_COUNT_LOW, "map-count-low", Warning, "A process may have too few mappings to fill this machine by 2 MiB",
        "Pieces of hugetlb memory that are mapped one by one stay mappings of their own: at vm.max_map_count, mmap(2) answers ENOMEM while memory and pool have room.",
        ["sysctl -w vm.max_map_count=1048576"];

    // hugetlbfs.
    HUGETLBFS_NOT_MOUNTED, "hugetlbfs-not-mounted", Note, "No hugetlbfs is mounted",
        "Programs that map files of huge pages (DPDK, QEMU's mem-path, libhugetlbfs) need one. mmap(MAP_HUGETLB), memfd_create(MFD_HUGETLB) and SysV segments do not.",
        ["mount --mkdir -t hugetlbfs -o pagesize=2M,mode=1770,gid=GID none /dev/hugepages"];
    HUGETLBFS_DENIED, "hugetlbfs-denied", Warning, "This user may make no file in a hugetlbfs",
        "It is mounted read-only, or the owner and mode of its directory, or of one above, keep this user out: open(2) answers errno 13 (EACCES) or 30 (EROFS).",
        ["mount -o remount,mode=1770,gid=GID MOUNTPOINT"];
    HUGETLBFS_SIZE_LIMITED, "hugetlbfs-size-limited", Note, "A hugetlbfs holds less than its pool",
        "The mount's size= bounds all its files together: beyond it mmap(2) answers errno 12 (ENOMEM) though the pool has pages.",
        ["mount -o remount,size=SIZE MOUNTPOINT"];
    SEGMENTS_KEPT, "segments-kept", Note, "Segments that nobody has open hold hugetlb pages",
        "A segment outlives its program on purpose, so that the next start finds its memory. One whose program does not come back holds its pages until it is removed; nobody else can have them.",
        ["megapage segments list", "megapage segments remove SEGMENT"];

    // Control groups and containers.
    CGROUP_HUGETLB_FULL, "cgroup-hugetlb-full", Blocker, "The control group's limit leaves no room for a hugetlb page",
        "The pool has pages, but hugetlb.<size>.max (or limit_in_bytes) of this group or of an ancestor is reached. The mapping succeeds and the first write kills the program with SIGBUS; where hugetlb.<size>.rsvd.max is what is reached, the mapping is answered errno 12 (ENOMEM).",
        ["echo max > CGROUP/hugetlb.2MB.max", "resources: limits: hugepages-2Mi: SIZE    # in the Kubernetes pod"];
    CGROUP_HUGETLB_SIGBUS, "cgroup-hugetlb-sigbus", Warning, "Beyond the control group's limit a program dies of SIGBUS",
        "hugetlb.<size>.max limits pages when they are touched, not when they are mapped: a program maps more than it may have without an error, and is killed by SIGBUS at the page that is too much. A limit on reservations (hugetlb.<size>.rsvd.max) turns that into an errno 12 that programs handle. `megapage run` populates hugetlb memory before it hands it out.",
        ["echo LIMIT > CGROUP/hugetlb.2MB.rsvd.max"];
    CGROUP_HUGETLB_HIDDEN, "cgroup-hugetlb-hidden", Warning, "Limits on hugetlb pages may apply that cannot be seen from here",
        "The ancestors of this control group are outside the cgroup namespace or not mounted. A limit there ends a program with SIGBUS just as a visible one does.",
        ["resources: limits: hugepages-2Mi: SIZE    # in the Kubernetes pod"];
    CGROUP_MEMORY_TIGHT, "cgroup-memory-tight", Warning, "The control group's memory limit is nearly reached",
        "A transparent huge page is charged in full, 2 MiB at once. Where that is refused the kernel falls back to a base page, silently.",
        ["systemctl set-property UNIT MemoryMax=SIZE"];
    CONTAINER, "container", Note, "This is a container",
        "Pools and the settings of transparent huge pages are the machine's: they are changed outside the container.",
        [];
    SECCOMP_FILTER, "seccomp-filter", Note, "A seccomp filter is in force",
        "It may refuse system calls that huge pages need (process_madvise, shmget, prctl) with EPERM or ENOSYS. Filters cannot be read; trials show their effect.",
        ["docker run --security-opt seccomp=PROFILE"];
    SELINUX_ENFORCING, "selinux-enforcing", Note, "SELinux is enforcing",
        "Where starting a program changes its domain, the loader drops LD_PRELOAD and GLIBC_TUNABLES; and files of a hugetlbfs need a label that the domain may use.",
        ["ausearch --message avc --start recent"];

    // What the kernel can do and whom it lets.
    COLLAPSE_UNSUPPORTED, "collapse-unsupported", Warning, "The kernel cannot promote memory from outside",
        "process_madvise(MADV_COLLAPSE) is there from Linux 6.1 on. Without it a running program, a static one or one with an allocator of its own can't be put on huge pages unless it does so itself.",
        [];
    OUTSIDE_NOT_PERMITTED, "outside-not-permitted", Note, "This user may not promote memory of other processes",
        "process_madvise(MADV_COLLAPSE) on another process needs CAP_SYS_NICE, also for processes of the same user, and CAP_SYS_PTRACE for those of others (kernel.yama.ptrace_scope does not matter: nothing is attached). `megapage run --mechanism outside` and `--attach` need it, the other mechanisms do not.",
        ["install -m 0750 -g GROUP $(command -v megapage) /usr/local/sbin/megapage    # GROUP: of those you trust with others' memory maps", "setcap cap_sys_nice,cap_sys_ptrace=ep /usr/local/sbin/megapage", "AmbientCapabilities=CAP_SYS_NICE CAP_SYS_PTRACE    # in the systemd unit"];
    POPULATE_UNSUPPORTED, "populate-unsupported", Warning, "The kernel cannot populate memory safely",
        "madvise(MADV_POPULATE_WRITE) is there from Linux 5.14 on. Without it nobody can make sure of a hugetlb page but by touching it, and dying of SIGBUS where it is not to be had.",
        [];
    REFUSED_UNEXPLAINED, "refused-unexplained", Blocker, "The kernel refuses a huge page for no reason that can be read",
        "A trial failed though all that was read says that it should not have: a seccomp filter, a security module (SELinux, AppArmor), a limit of a hidden control group, or memory that was used up meanwhile.",
        ["journalctl --dmesg --since -1min"];

    // The C library.
    GLIBC_OLD, "glibc-old", Note, "This glibc has no tunable for huge pages",
        "glibc.malloc.hugetlb is there from glibc 2.35 on; earlier ones ignore it without a word.",
        ["megapage run --mechanism preload PROGRAM"];
    TUNABLE_SET, "tunable-set", Note, "GLIBC_TUNABLES asks for huge pages",
        "Programs started from here that use glibc's malloc have it on huge pages where these are to be had. A program with another allocator, `megapage run` with the preload included, does not look at it.",
        [];
    TUNABLE_DEAD, "tunable-dead", Warning, "GLIBC_TUNABLES asks for huge pages that are not to be had",
        "glibc falls back to base pages without a word.",
        ["megapage run --require PROGRAM"];

    // The program.
    PROGRAM_PRIVILEGED, "program-privileged", Warning, "The program gets rights that its caller lacks",
        "It is set-user-ID, set-group-ID or has file capabilities: the loader ignores LD_PRELOAD and GLIBC_TUNABLES. Promotion from outside is left, with the rights to look at such a process.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_STATIC, "program-static", Warning, "The program is statically linked",
        "No library can be preloaded into it. Promotion from outside reaches it; so does the tunable where it was linked with glibc 2.35 or later.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_NOT_GLIBC, "program-not-glibc", Warning, "The program does not use glibc",
        "libmegapage.so is built for glibc and can't be loaded by another C library's loader; the tunable is glibc's too.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_FOREIGN, "program-foreign", Warning, "The program is not for this kind of processor, or is 32-bit",
        "Neither a preloaded library nor promotion from outside applies to it.",
        [];
    PROGRAM_OWN_ALLOCATOR, "program-own-allocator", Warning, "The program brings its own allocator",
        "Where malloc is defined in the program itself, or a library's private interface (mallocx, tc_malloc, mi_malloc) is used, a preloaded malloc serves a part of the memory at most. Promotion from outside reaches all of it.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_FORKS, "program-forks", Note, "The program can fork",
        "After a fork the first write to a private hugetlb page, by parent or child, needs another page of the pool; where none is left the child is killed. `megapage run` therefore uses transparent huge pages for it.",
        ["megapage run --heap thp PROGRAM"];
    PROGRAM_LIBRARIES_MISSING, "program-libraries-missing", Warning, "Libraries that the program needs were not found",
        "It will not start as it is, and what it links is known in part only.",
        ["ldd PROGRAM"];
    PROGRAM_JVM, "program-jvm", Note, "The JVM manages its own heap",
        "It uses huge pages when told to: -XX:+UseTransparentHugePages, or -XX:+UseLargePages with a pool. With the latter the whole of -Xmx is taken from the pool at the start, and the code cache (240 MiB unless -XX:ReservedCodeCacheSize says less) besides; what does not fit falls back to base pages with a warning.",
        ["megapage run java -Xmx4g ARGUMENTS", "java -XX:+UseTransparentHugePages -XX:+AlwaysPreTouch ARGUMENTS"];
    PROGRAM_GO, "program-go", Note, "Go manages its own heap",
        "Since Go 1.21.1 its runtime no longer asks for huge pages by itself: with 'madvise' it stays on base pages unless it is promoted from outside.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_NODE, "program-node", Note, "V8 manages its own heap",
        "node --use-largepages=on puts the program's text on huge pages, not the heap: that is reached from outside.",
        ["megapage run node ARGUMENTS"];
    PROGRAM_PYTHON, "program-python", Note, "CPython has an allocator of its own for small objects",
        "It takes memory in arenas with mmap(2), past malloc. megapage run leaves that allocator in place, and puts its arenas on huge pages. PYTHONMALLOC=malloc reaches them without megapage, and makes Python slower. numpy's arrays come from malloc, and ask by themselves with NUMPY_MADVISE_HUGEPAGE=1.",
        ["megapage run python3 ARGUMENTS", "NUMPY_MADVISE_HUGEPAGE=1 python3 ARGUMENTS"];
    PROGRAM_PHP, "program-php", Note, "PHP has an allocator of its own",
        "It asks for huge pages with USE_ZEND_ALLOC_HUGE_PAGES=1 in the environment, and for its compiled code with opcache.huge_code_pages=1.",
        ["USE_ZEND_ALLOC_HUGE_PAGES=1 php ARGUMENTS"];
    PROGRAM_DISABLES_THP, "program-disables-thp", Warning, "The program switches transparent huge pages off for itself",
        "Redis and its forks, MariaDB and Ruby call prctl(PR_SET_THP_DISABLE) at the start: they want no huge pages where the kernel alone decides, for the sake of copying after a fork or of sparse memory. megapage run keeps to that, and makes huge what it has found to be dense.",
        ["megapage run PROGRAM ARGUMENTS", "disable-thp no    # in redis.conf"];
}
