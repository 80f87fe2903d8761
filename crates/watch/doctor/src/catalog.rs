//! All kinds of finding: identifier, severity, meaning and remedy.
//!
//! A test compares docs/doctor.md with this list, from which it is written.

use serde::Serialize;

megapage_units::named! {
    /// Weight of a finding.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity {
        /// Good to know; nothing is wrong.
        Note = "note",
        /// Huge pages are available, but fewer, later or with a risk.
        Warning = "warning",
        /// A way to huge pages is closed.
        Blocker = "blocker",
    }
}

/// Common part of all findings with one identifier.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Identifier in kebab-case; its meaning never changes.
    pub id: &'static str,
    /// Weight of these findings.
    pub severity: Severity,
    /// Title of one line.
    pub title: &'static str,
    /// Meaning, and the reason why it stands in the way.
    pub explanation: &'static str,
    /// Shell commands or lines of a configuration file. Capitals stand for parts that the reader
    /// fills in, and `{thp}` for the directory of the settings of transparent huge pages: see
    /// [`Kind::remedies`].
    pub remedy: &'static [&'static str],
}

impl Kind {
    /// Returns the remedies, ready to be typed except for the parts in capitals.
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
        "Base pages of 16 or 64 KiB change every other page size too (THP: 32 or 512 MiB). megapage's other commands do nothing here, rather than report wrong values.",
        ["apt-get install linux-image-arm64    # Debian: the kernel with base pages of 4 KiB; then reboot"];
    MEGAPAGE_OFF, "megapage-off", Blocker, "megapage is switched off",
        "`megapage run` and services that are enabled start programs as without it, and the daemon acts on none.",
        ["rm /etc/megapage/off    # where the file is it; otherwise unset MEGAPAGE"];
    // Transparent huge pages.
    THP_ABSENT, "thp-absent", Blocker, "The kernel has no transparent huge pages",
        "It was built without CONFIG_TRANSPARENT_HUGEPAGE: only hugetlb pages are left.",
        [];
    THP_UNSEEN, "thp-unseen", Warning, "The settings of transparent huge pages cannot be read",
        "There is no /sys, as in a chroot or a sandbox. megapage takes transparent huge pages to be there, and asks for them.",
        [];
    THP_NEVER, "thp-never", Blocker, "Transparent huge pages are switched off",
        "Neither page faults nor khugepaged give anonymous memory huge pages, not even after madvise(2). Only external promotion (MADV_COLLAPSE) works.",
        ["echo madvise > {thp}/enabled"];
    THP_ON_REQUEST, "thp-on-request", Note, "Transparent huge pages go only to programs that ask",
        "With 'madvise', a program without madvise(MADV_HUGEPAGE) stays on base pages. `megapage run` asks on its behalf.",
        ["megapage run PROGRAM", "echo always > {thp}/enabled"];
    THP_DISABLED, "thp-disabled-for-process", Blocker, "This process, and what it starts, may not have transparent huge pages",
        "It or an ancestor called prctl(PR_SET_THP_DISABLE), as container runtimes and some service managers do. Fork and exec inherit the flag, which overrides the machine's settings. `megapage run` clears it for the program that it starts.",
        ["pstree --show-parents --show-pids $$    # one of these has switched it off"];
    THP_DEFRAG_NEVER, "thp-defrag-never", Warning, "Page faults never make room for a huge page",
        "A fault takes a huge page only if one is free at that moment, which is rare on a machine that has run for a while.",
        ["echo madvise > {thp}/defrag"];
    THP_DEFRAG_STALLS, "thp-defrag-stalls", Note, "Page faults of every program may stall to make room for huge pages",
        "With 'always' in defrag and enabled, a fault that finds no free huge page first reclaims and compacts memory.",
        ["echo defer+madvise > {thp}/defrag"];
    KHUGEPAGED_OFF, "khugepaged-off", Warning, "khugepaged never collapses anything",
        "pages_to_scan is 0: memory that starts on base pages stays there.",
        ["echo 4096 > {thp}/khugepaged/pages_to_scan"];
    SHMEM_THP_OFF, "shmem-thp-off", Note, "Shared memory is never on transparent huge pages",
        "tmpfs, memfds, SysV segments and shared anonymous memory follow shmem_enabled, not enabled.",
        ["echo advise > {thp}/shmem_enabled"];
    MTHP_OFF, "mthp-off", Note, "No page size between the base page and 2 MiB is enabled",
        "Since Linux 6.8 memory can use sizes in between, which are easier to find in fragmented memory. Each has its own setting.",
        ["echo inherit > {thp}/hugepages-64kB/enabled"];
    MEMORY_FRAGMENTED, "memory-fragmented", Warning, "Little of the available memory lies in blocks of 2 MiB",
        "A huge page needs a free, aligned block of 2 MiB. Without one the kernel must compact, which takes time and can fail.",
        ["sysctl -w vm.compact_memory=1"];
    MEMORY_SHORT, "memory-short", Warning, "The machine is short of memory",
        "Less than 5 % of the memory is available. Huge pages run out first.",
        ["megapage pool list"];
    FREE_MEMORY_REPORTED, "free-memory-reported", Note, "The host takes free memory back",
        "By free page reporting it learns of free blocks of 2 MiB within seconds. What is made huge after that the host backs anew: where this was measured, 7 ms for each huge page and not 0.2, and a collapse holds the mmap lock meanwhile. `megapage daemon` leaves a program alone for a while after such a call. Pages of a pool remain backed.",
        ["megapage pool set 2MB:+512", "-device virtio-balloon,free-page-reporting=off    # QEMU's option, on the host"];

    // Pools of hugetlb pages.
    HUGETLB_ABSENT, "hugetlb-absent", Blocker, "The kernel has no hugetlb pages",
        "It was built without CONFIG_HUGETLBFS, or does not support the processor's page sizes.",
        [];
    POOL_EMPTY, "pool-empty", Note, "No hugetlb pages of the default size are reserved",
        "The pool may not grow on demand either: mmap(MAP_HUGETLB) and shmget(SHM_HUGETLB) fail with errno 12 (ENOMEM), for root too. The JVM's \"Failed to reserve shared memory. (error = 12)\" is this; where root gets pages and a user errno 12, see `shm-not-permitted`.",
        ["megapage pool set 2MB:+512"];
    POOL_TAKEN, "pool-taken", Blocker, "Every hugetlb page of this size is in use or reserved",
        "A new mapping gets Free minus Rsvd, and fails with errno 12 (ENOMEM): pages that others have reserved are theirs, touched or not.",
        ["megapage pool list", "megapage pool set 2MB:+512"];
    POOL_ELSEWHERE, "pool-elsewhere", Blocker, "The free hugetlb pages lie on nodes that the process may not use",
        "Its cpuset (cpuset.mems) or memory policy (numactl --membind) confines it to other NUMA nodes. New mappings fail with errno 12 (ENOMEM).",
        ["megapage pool set 2m=NODE:+512", "numactl --membind=NODES PROGRAM", "echo NODES > CGROUP/cpuset.mems"];
    POOL_ON_DEMAND, "pool-on-demand", Warning, "Hugetlb pages of this size are only taken on demand",
        "Overcommit lets the pool grow: each mapping takes free memory, which can fail and is slow where memory is fragmented.",
        ["megapage pool set 2MB:+512"];
    POOL_SIZE_UNUSED, "pool-size-unused", Note, "No pages of this further size are reserved",
        "Programs that ask for this size get errno 12 (ENOMEM). Pages of 1 GiB are best reserved at boot.",
        ["megapage pool set 1GB:+1", "megapage pool persist --apply 1g=1"];

    // Users and limits.
    SHM_NOT_PERMITTED, "shm-not-permitted", Blocker, "This user may not make SysV segments of hugetlb pages",
        "Only a note while no page is reserved. shmget(SHM_HUGETLB) fails with errno 1 (EPERM) unless the caller is in the group of vm.hugetlb_shm_group or has CAP_IPC_LOCK in the machine's own user namespace. mmap(MAP_HUGETLB) needs no permission. The JVM's \"Large pages using UseSHM are not configured on this system\" is this. Before Linux 2.6.30 (RHEL 5) the answer was errno 12 (ENOMEM): the segment counted as locked memory, so that RLIMIT_MEMLOCK (32 KiB) had to be raised as well, also for the group's members, and root alone succeeded; until Linux 5.16 a sufficient RLIMIT_MEMLOCK replaced the group.",
        ["groupadd --force hugepages", "usermod --append --groups hugepages USER", "sysctl -w vm.hugetlb_shm_group=$(getent group hugepages | cut -d: -f3)"];
    SHM_BY_MEMLOCK, "shm-by-memlock", Warning, "SysV segments of hugetlb pages are limited by RLIMIT_MEMLOCK",
        "Before Linux 5.16 users outside vm.hugetlb_shm_group may use SHM_HUGETLB up to RLIMIT_MEMLOCK; larger segments fail with errno 1 (EPERM), before Linux 2.6.30 with errno 12 (ENOMEM).",
        ["sysctl -w vm.hugetlb_shm_group=GID", "USER - memlock unlimited    # in /etc/security/limits.d/hugepages.conf", "LimitMEMLOCK=infinity    # in the systemd unit"];
    SHMMAX_SMALL, "shmmax-small", Warning, "SysV segments may not be as large as the memory that could back them",
        "shmget(2) fails with errno 22 (EINVAL) above kernel.shmmax, and with errno 28 (ENOSPC) when all segments exceed kernel.shmall base pages.",
        ["sysctl -w kernel.shmmax=18446744073692774399 kernel.shmall=18446744073692774399"];
    MEMLOCK_LIMITED, "memlock-limited", Note, "Locked memory is limited",
        "Huge pages need no locked memory. Programs that also call mlock(2) (databases, the JVM's UseSHM, DPDK) fail above RLIMIT_MEMLOCK.",
        ["USER - memlock unlimited    # in /etc/security/limits.d/hugepages.conf, for logins", "LimitMEMLOCK=infinity    # in the systemd unit, for services"];
    ADDRESS_SPACE_LIMITED, "address-space-limited", Warning, "Mappings are limited by RLIMIT_AS or RLIMIT_DATA",
        "Allocators reserve large ranges ahead, and private hugetlb mappings count in full: above the limit mmap(2) fails with errno 12 (ENOMEM).",
        ["ulimit -v unlimited; ulimit -d unlimited"];
    OVERCOMMIT_STRICT, "overcommit-strict", Warning, "Memory is committed strictly",
        "With vm.overcommit_memory=2 every private writable mapping, also with MAP_NORESERVE, counts in full: an allocator that reserves address space may get ENOMEM. Hugetlb pages do not count, but pools lower the commit limit.",
        ["sysctl -w vm.overcommit_memory=0"];
    MAP_COUNT_LOW, "map-count-low", Warning, "A process may have too few mappings to fill this machine by 2 MiB",
        "Hugetlb memory mapped piece by piece stays separate mappings: at vm.max_map_count mmap(2) fails with ENOMEM.",
        ["sysctl -w vm.max_map_count=1048576"];

    // hugetlbfs.
    HUGETLBFS_NOT_MOUNTED, "hugetlbfs-not-mounted", Note, "No hugetlbfs is mounted",
        "Programs that map files of huge pages (DPDK, QEMU's mem-path, libhugetlbfs) need one. mmap(MAP_HUGETLB), memfd_create(MFD_HUGETLB) and SysV segments do not.",
        ["mount --mkdir -t hugetlbfs -o pagesize=2M,mode=1770,gid=GID none /dev/hugepages"];
    HUGETLBFS_DENIED, "hugetlbfs-denied", Warning, "This user can create no file in a hugetlbfs",
        "It is mounted read-only, or owner or mode of a directory on its path exclude this user: open(2) fails with errno 13 (EACCES) or 30 (EROFS).",
        ["mount -o remount,mode=1770,gid=GID MOUNTPOINT"];
    HUGETLBFS_SIZE_LIMITED, "hugetlbfs-size-limited", Note, "A hugetlbfs holds less than its pool",
        "The mount's size= limits its files together: beyond it mmap(2) fails with errno 12 (ENOMEM).",
        ["mount -o remount,size=SIZE MOUNTPOINT"];
    SEGMENTS_KEPT, "segments-kept", Note, "Segments that no process has open hold hugetlb pages",
        "A segment outlives its program for the next start. It holds its pages until it is removed.",
        ["megapage segments list", "megapage segments remove SEGMENT"];

    // Control groups and containers.
    CGROUP_HUGETLB_FULL, "cgroup-hugetlb-full", Blocker, "The control group's limit leaves no room for a hugetlb page",
        "This group or an ancestor has reached hugetlb.<size>.max (or limit_in_bytes): the mapping succeeds and the first write ends in SIGBUS. At hugetlb.<size>.rsvd.max the mapping fails with errno 12 (ENOMEM).",
        ["echo max > CGROUP/hugetlb.2MB.max", "resources: limits: hugepages-2Mi: SIZE    # in the Kubernetes pod"];
    CGROUP_HUGETLB_SIGBUS, "cgroup-hugetlb-sigbus", Warning, "Beyond the control group's limit a program dies of SIGBUS",
        "hugetlb.<size>.max limits pages when they are touched: the mapping succeeds, and the first page too many ends in SIGBUS. A limit on reservations (hugetlb.<size>.rsvd.max) gives an errno 12 that programs handle. `megapage run` populates hugetlb memory before it hands it out.",
        ["echo LIMIT > CGROUP/hugetlb.2MB.rsvd.max"];
    CGROUP_HUGETLB_HIDDEN, "cgroup-hugetlb-hidden", Warning, "Hidden limits on hugetlb pages may apply",
        "This control group's ancestors are outside the cgroup namespace or not mounted. Their limits end in SIGBUS too.",
        ["resources: limits: hugepages-2Mi: SIZE    # in the Kubernetes pod"];
    CGROUP_MEMORY_TIGHT, "cgroup-memory-tight", Warning, "The control group's memory limit is nearly reached",
        "A transparent huge page is charged 2 MiB at once. Where the charge fails the kernel silently falls back to a base page.",
        ["systemctl set-property UNIT MemoryMax=SIZE"];
    CONTAINER, "container", Note, "This is a container",
        "Pools and THP settings belong to the machine: change them outside the container.",
        [];
    SECCOMP_FILTER, "seccomp-filter", Note, "A seccomp filter is in force",
        "It may refuse system calls that huge pages need (process_madvise, shmget, prctl) with EPERM or ENOSYS. Only trials show its effect.",
        ["docker run --security-opt seccomp=PROFILE"];
    SELINUX_ENFORCING, "selinux-enforcing", Note, "SELinux is enforcing",
        "Where starting a program changes its domain, the loader drops LD_PRELOAD and GLIBC_TUNABLES. Files of a hugetlbfs need a label that the domain may use.",
        ["ausearch --message avc --start recent"];

    // Abilities of the kernel, and the rights to use them.
    COLLAPSE_UNSUPPORTED, "collapse-unsupported", Warning, "The kernel cannot promote memory of other processes",
        "process_madvise(MADV_COLLAPSE) needs Linux 6.1. Without it running programs, static ones and those with their own allocator must request huge pages themselves.",
        [];
    OUTSIDE_NOT_PERMITTED, "outside-not-permitted", Note, "This user may not promote memory of other processes",
        "process_madvise(MADV_COLLAPSE) needs CAP_SYS_NICE, also for the same user, and CAP_SYS_PTRACE for other users' processes (kernel.yama.ptrace_scope does not matter). `megapage run --mechanism outside` and `--attach` need it, other mechanisms do not.",
        ["install -m 0750 -g GROUP $(command -v megapage) /usr/local/sbin/megapage    # GROUP: of those you trust with others' memory maps", "setcap cap_sys_nice,cap_sys_ptrace=ep /usr/local/sbin/megapage", "AmbientCapabilities=CAP_SYS_NICE CAP_SYS_PTRACE    # in the systemd unit"];
    POPULATE_UNSUPPORTED, "populate-unsupported", Warning, "The kernel cannot populate memory safely",
        "madvise(MADV_POPULATE_WRITE) needs Linux 5.14. Without it only a touch secures a hugetlb page, and ends in SIGBUS where there is none.",
        [];
    REFUSED_UNEXPLAINED, "refused-unexplained", Blocker, "The kernel refuses a huge page for no reason that can be read",
        "A trial failed for no visible reason: a seccomp filter, a security module (SELinux, AppArmor), a hidden control group's limit, or memory used up meanwhile.",
        ["journalctl --dmesg --since -1min"];

    // The C library.
    GLIBC_OLD, "glibc-old", Note, "This glibc has no tunable for huge pages",
        "glibc.malloc.hugetlb needs glibc 2.35; earlier ones silently ignore it.",
        ["megapage run --mechanism preload PROGRAM"];
    TUNABLE_SET, "tunable-set", Note, "GLIBC_TUNABLES asks for huge pages",
        "Programs started from here use huge pages with glibc's malloc. Other allocators, the preload of `megapage run` among them, ignore it.",
        [];
    TUNABLE_DEAD, "tunable-dead", Warning, "GLIBC_TUNABLES asks for huge pages that are not to be had",
        "glibc silently falls back to base pages.",
        ["megapage run --require PROGRAM"];
    MORECORE_DEAD, "morecore-dead", Warning, "HUGETLB_MORECORE does nothing with this glibc",
        "libhugetlbfs puts malloc on huge pages by glibc's hook __morecore, which glibc 2.34 removed: malloc stays on base pages, without a warning. libhugetlbfs' other parts (HUGETLB_SHM, HUGETLB_ELFMAP) still work.",
        ["megapage run PROGRAM", "GLIBC_TUNABLES=glibc.malloc.hugetlb=2 PROGRAM    # glibc 2.35: pages of the pool; 1: THP"];

    // The program.
    PROGRAM_PRIVILEGED, "program-privileged", Warning, "The program gets rights that its caller lacks",
        "It is set-user-ID, set-group-ID or has file capabilities: the loader ignores LD_PRELOAD and GLIBC_TUNABLES. External promotion works, with the right to trace it.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_STATIC, "program-static", Warning, "The program is statically linked",
        "No library can be preloaded into it. External promotion reaches it, and the tunable if it was linked with glibc 2.35 or later.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_NOT_GLIBC, "program-not-glibc", Warning, "The program does not use glibc",
        "Another C library's loader cannot load libmegapage.so; the tunable is glibc's too.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_FOREIGN, "program-foreign", Warning, "The program is not for this kind of processor, or is 32-bit",
        "Neither a preloaded library nor external promotion applies to it.",
        [];
    PROGRAM_OWN_ALLOCATOR, "program-own-allocator", Warning, "The program brings its own allocator",
        "It defines malloc, or uses a library's private interface (mallocx, tc_malloc, mi_malloc): a preloaded malloc serves some of its memory at most. External promotion reaches all.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_FORKS, "program-forks", Note, "The program can fork",
        "After a fork the first write to a private hugetlb page needs another page of the pool; without one the child is killed. `megapage run` therefore uses transparent huge pages.",
        ["megapage run --heap thp PROGRAM"];
    PROGRAM_LIBRARIES_MISSING, "program-libraries-missing", Warning, "Libraries that the program needs were not found",
        "It will not start as it is, and not all that it links is known.",
        ["ldd PROGRAM"];
    PROGRAM_JVM, "program-jvm", Note, "The JVM manages its own heap",
        "It uses huge pages with -XX:+UseTransparentHugePages, or -XX:+UseLargePages and a pool. The latter takes all of -Xmx and the code cache (240 MiB unless -XX:ReservedCodeCacheSize says less) from the pool at the start; what does not fit falls back to base pages with a warning.",
        ["megapage run java -Xmx4g ARGUMENTS", "java -XX:+UseTransparentHugePages -XX:+AlwaysPreTouch ARGUMENTS"];
    PROGRAM_GO, "program-go", Note, "Go manages its own heap",
        "Since Go 1.21.1 its runtime requests no huge pages: with 'madvise' only external promotion gives it some.",
        ["megapage run --mechanism outside PROGRAM"];
    PROGRAM_NODE, "program-node", Note, "V8 manages its own heap",
        "node --use-largepages=on puts the program's text on huge pages; megapage run or external promotion reaches the heap.",
        ["megapage run node ARGUMENTS"];
    PROGRAM_PYTHON, "program-python", Note, "CPython has an allocator of its own for small objects",
        "It maps arenas with mmap(2), past malloc; `megapage run` puts them on huge pages. PYTHONMALLOC=malloc reaches them without megapage and makes Python slower. numpy's arrays come from malloc, and request huge pages with NUMPY_MADVISE_HUGEPAGE=1.",
        ["megapage run python3 ARGUMENTS", "NUMPY_MADVISE_HUGEPAGE=1 python3 ARGUMENTS"];
    PROGRAM_PHP, "program-php", Note, "PHP has an allocator of its own",
        "USE_ZEND_ALLOC_HUGE_PAGES=1 in the environment makes it request huge pages, opcache.huge_code_pages=1 does so for compiled code.",
        ["USE_ZEND_ALLOC_HUGE_PAGES=1 php ARGUMENTS"];
    PROGRAM_DISABLES_THP, "program-disables-thp", Warning, "The program switches transparent huge pages off for itself",
        "Redis and its forks, MariaDB and Ruby call prctl(PR_SET_THP_DISABLE) at the start, to avoid copies after a fork and bloat. `megapage run` respects that, and makes huge only what it found to be dense.",
        ["megapage run PROGRAM ARGUMENTS", "disable-thp no    # in redis.conf"];
    PROGRAM_HAS_SETTINGS, "program-has-settings", Note, "The program has settings or habits of its own about huge pages",
        "Settings of the program itself reach memory that nothing from outside does, or make it need a pool. As a service, `megapage enable` takes them into account.",
        ["megapage enable UNIT"];
}
