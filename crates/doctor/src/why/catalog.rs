//! Every reason for which a range of a running process is not on huge pages, besides the kinds of
//! [`crate::catalog`] that are reasons, too.
//!
//! docs/doctor.md is written from this list, and a test compares the two.

use crate::catalog::kinds;

kinds! {
    /// The reasons, in the order of docs/doctor.md.
    REASONS;

    // What can never be huge as it is mapped.
    SPECIAL_MAPPING, "special-mapping", Note, "The kernel or a device put this there",
        "vdso, vvar, memory of devices and raw page frames are no memory of the program's: the kernel maps them as it does, and nothing can be promoted.",
        [];
    MAPPING_SMALL, "mapping-small", Note, "The mapping holds no aligned 2 MiB",
        "One entry maps a huge page, at a multiple of 2 MiB and all of it within one mapping. A mapping of less than 2 MiB never holds such a range, one of less than 4 MiB only with luck. Neighbours with equal permissions and flags are one mapping to the kernel: memory that is allocated in larger pieces, or by an allocator that does so, gets there.",
        ["megapage run PROGRAM"];
    MAPPING_EDGE, "mapping-edge", Note, "The mapping starts or ends within this 2 MiB",
        "A huge page would reach into the neighbour, or into nothing. At most 2 MiB at each end of a mapping are lost so, more only where memory is cut into many mappings, by mprotect(2) or madvise(2) on parts of it.",
        [];
    FILE_MISPLACED, "file-misplaced", Blocker, "The mapping does not line up with the file's huge pages",
        "A huge page of a file or of shared memory holds 2 MiB from a multiple of 2 MiB in the file. One entry can map it only at an address that is as far from a multiple of 2 MiB as the place in the file is.",
        ["mmap(ADDRESS at a multiple of 2 MiB, LENGTH, ..., OFFSET at a multiple of 2 MiB)    # in the program"];
    SHARED_MISPLACED, "shared-misplaced", Blocker, "The shared memory lies where no huge page can map it",
        "A huge page of shared memory holds 2 MiB from a multiple of 2 MiB in it. One entry can map it only at an address that is as far from a multiple of 2 MiB as the place in it is, and a mapping cannot be moved while the program runs. With shmem_enabled at 'never' the kernel places shared memory anywhere; at 'advise' at multiples of 2 MiB, and makes nothing huge that nobody asks for.",
        ["echo advise > {thp}/shmem_enabled    # start the program again, then: megapage run --attach", "the program's own setting for its shared memory: PostgreSQL has huge_pages = on (docs/recipes)"];
    FILE_PAGES, "file-pages", Warning, "The memory is a file's page cache",
        "Pages of a file are huge only where its file system reads it in large folios, or where a kernel with CONFIG_READ_ONLY_THP_FOR_FS collapses a file that is mapped executable and open for writing nowhere. Pages of a private mapping that the program wrote to are its own copies, and small.",
        ["mount --mkdir -t tmpfs -o huge=always none DIRECTORY    # copy the file there, and use it from there"];

    // What the program or an ancestor asked for.
    ADVISED_AGAINST, "advised-against", Blocker, "The program asked for base pages here",
        "madvise(MADV_NOHUGEPAGE) keeps page faults, khugepaged and promotion from outside away. Allocators call it where they return memory in small pieces (jemalloc with thp:never, Go before 1.21.4), the JVM for stacks, QEMU when it migrates.",
        ["madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, in place of MADV_NOHUGEPAGE"];
    NOT_ADVISED, "not-advised", Blocker, "The program did not ask for huge pages here, and the setting is 'madvise'",
        "With 'madvise' only ranges for which the program called madvise(MADV_HUGEPAGE) get huge pages, on faults and from khugepaged. Promotion from outside (MADV_COLLAPSE) does not look at the setting.",
        ["megapage run --attach PROCESS", "echo always > {thp}/enabled", "madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, before it touches the memory"];
    SHARED_NOT_ADVISED, "shared-not-advised", Blocker, "The program did not ask for huge pages for this shared memory, and the setting is 'advise'",
        "Shared memory follows shmem_enabled, not enabled. With 'advise' only ranges for which madvise(MADV_HUGEPAGE) was called get huge pages. Promotion from outside does not look at the setting.",
        ["megapage run --attach PROCESS", "echo always > {thp}/shmem_enabled", "madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, before it touches the memory"];
    TMPFS_NOT_HUGE, "tmpfs-not-huge", Blocker, "The tmpfs that holds this file is mounted without huge pages",
        "Files of a tmpfs mount follow its own option huge=, which is 'never' unless given, and not shmem_enabled. Promotion from outside looks at neither.",
        ["megapage run --attach PROCESS", "mount -o remount,huge=always MOUNTPOINT"];
    USERFAULT, "userfault", Warning, "userfaultfd(2) watches the mapping",
        "Faults are passed on page by page to whoever watches (QEMU when it migrates, CRIU, garbage collectors). khugepaged fills no absent page there, and where writes are watched, promotion is refused altogether.",
        [];
    NOT_ELIGIBLE, "not-eligible", Blocker, "The kernel says that no huge page may be here",
        "THPeligible in smaps is 0 for the mapping, for a reason that cannot be read from outside: a temporary stack during execve(2), a file system that does not take part, a security module.",
        [];

    // What is in the range.
    NEVER_TOUCHED, "never-touched", Note, "Nothing is present here",
        "The range was never touched, or its memory was given back or swapped out. The next touch may get a huge page.",
        [];
    SPARSE, "sparse", Warning, "Too few of the 512 base pages are present",
        "khugepaged collapses a region only where at most max_ptes_none base pages are absent or the page of zeros. With fewer it is left alone: a huge page would fill the holes with memory that nobody uses. Promotion from outside does not look at the limit.",
        ["megapage run --attach PROCESS", "echo 511 > {thp}/khugepaged/max_ptes_none"];
    SWAPPED_OUT, "swapped-out", Warning, "Too many base pages are swapped out",
        "khugepaged reads at most max_ptes_swap base pages of a region back from swap to collapse it.",
        ["megapage run --attach PROCESS", "echo 512 > {thp}/khugepaged/max_ptes_swap"];
    SHARED_BY_FORK, "shared-by-fork", Warning, "Too many base pages are shared with another process",
        "After a fork(2), parent and child share each page until one of them writes to it. khugepaged collapses a region only where at most max_ptes_shared of them are shared: the huge page would be a copy, and the sharing would end.",
        ["megapage run --attach PROCESS", "echo 511 > {thp}/khugepaged/max_ptes_shared"];
    MERGED, "merged", Warning, "KSM has merged pages here",
        "Equal pages, of this process or of others, are one. They count as shared for khugepaged, and a collapse undoes the merging.",
        ["madvise(ADDRESS, LENGTH, MADV_UNMERGEABLE)    # in the program"];
    PINNED, "pinned", Note, "The process has pinned memory",
        "Pages that the kernel holds for a device or for io_uring can be neither moved nor collapsed. Which ones they are it does not show: only how many.",
        [];

    // Why it has not happened yet.
    NONE_FREE, "none-free", Warning, "No free memory in blocks of 2 MiB",
        "Neither a fault nor khugepaged can take a huge page before the kernel has compacted memory or reclaimed some.",
        ["sysctl -w vm.compact_memory=1"];
    KHUGEPAGED_TAKES_FREE, "khugepaged-takes-free", Warning, "khugepaged makes no room for huge pages",
        "With khugepaged/defrag at 0 it takes a huge page only if one is free at that moment.",
        ["echo 1 > {thp}/khugepaged/defrag"];
    NOT_COLLAPSED_YET, "not-collapsed-yet", Warning, "Touched as base pages, and khugepaged has not come by",
        "Nothing stands in the way now. The memory was first touched when it was not eligible yet, when no huge page was free, or in a mapping that was still too small; since then only khugepaged turns it into huge pages, at its own pace, and only where a page was accessed lately.",
        ["megapage run --attach PROCESS", "echo 65536 > {thp}/khugepaged/pages_to_scan", "echo 1000 > {thp}/khugepaged/scan_sleep_millisecs"];
}
