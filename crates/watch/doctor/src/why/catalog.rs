//! Reasons why a range of a running process is not on huge pages. Some kinds of [`crate::catalog`]
//! are reasons, too.
//!
//! A test compares docs/doctor.md with this list, from which it is written.

use crate::catalog::kinds;

kinds! {
    /// The reasons, in the order of docs/doctor.md.
    #[cfg(test)]
    REASONS;

    // Memory that can never be huge as it is mapped.
    SPECIAL_MAPPING, "special-mapping", Note, "The kernel or a device put this there",
        "vdso, vvar, device memory and raw page frames are not the program's memory; nothing can be promoted.",
        [];
    MAPPING_SMALL, "mapping-small", Note, "The mapping holds no aligned 2 MiB",
        "A huge page lies at a multiple of 2 MiB within one mapping: one below 2 MiB never holds it, one below 4 MiB only by luck. The kernel joins adjacent ranges with equal permissions and flags, as larger allocations make them.",
        ["megapage run PROGRAM"];
    MAPPING_EDGE, "mapping-edge", Note, "The mapping starts or ends within this 2 MiB",
        "A huge page would reach beyond it. That costs at most 2 MiB at each end, more where mprotect(2) or madvise(2) cut memory into many mappings.",
        [];
    FILE_MISPLACED, "file-misplaced", Blocker, "The mapping does not line up with the file's huge pages",
        "A huge page holds 2 MiB from a multiple of 2 MiB in the file. It can be mapped only where address and file offset are equally far from a multiple of 2 MiB.",
        ["mmap(ADDRESS at a multiple of 2 MiB, LENGTH, ..., OFFSET at a multiple of 2 MiB)    # in the program"];
    SHARED_MISPLACED, "shared-misplaced", Blocker, "The shared memory lies where no huge page can map it",
        "A huge page holds 2 MiB from a multiple of 2 MiB in the shared memory. It can be mapped only where address and offset are equally far from a multiple of 2 MiB, and a mapping cannot move while the program runs. With shmem_enabled at 'never' the kernel places shared memory anywhere; with 'advise' at multiples of 2 MiB, where it makes nothing huge without a request.",
        ["echo advise > {thp}/shmem_enabled    # start the program again, then: megapage run --attach", "the program's own setting for its shared memory: PostgreSQL has huge_pages = on (docs/recipes)"];
    FILE_PAGES, "file-pages", Warning, "The memory is a file's page cache",
        "Its pages are huge only where the file system reads large folios, or where CONFIG_READ_ONLY_THP_FOR_FS collapses a file that is mapped executable and nowhere open for writing. Pages that the program wrote to in a private mapping are small copies.",
        ["mount --mkdir -t tmpfs -o huge=always none DIRECTORY    # copy the file there, and use it from there"];

    // Requests of the program or of an ancestor.
    ADVISED_AGAINST, "advised-against", Blocker, "The program asked for base pages here",
        "madvise(MADV_NOHUGEPAGE) excludes page faults, khugepaged and external promotion. Allocators that release memory in small pieces call it (jemalloc with thp:never, Go before 1.21.4), the JVM for stacks, QEMU when it migrates.",
        ["madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, in place of MADV_NOHUGEPAGE"];
    NOT_ADVISED, "not-advised", Blocker, "The program did not ask for huge pages here, and the setting is 'madvise'",
        "Only ranges with madvise(MADV_HUGEPAGE) get huge pages, on faults and from khugepaged. External promotion (MADV_COLLAPSE) ignores the setting.",
        ["megapage run --attach PROCESS", "echo always > {thp}/enabled", "madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, before it touches the memory"];
    SHARED_NOT_ADVISED, "shared-not-advised", Blocker, "The program did not ask for huge pages for this shared memory, and the setting is 'advise'",
        "Shared memory follows shmem_enabled, not enabled: only ranges with madvise(MADV_HUGEPAGE) get huge pages. External promotion ignores the setting.",
        ["megapage run --attach PROCESS", "echo always > {thp}/shmem_enabled", "madvise(ADDRESS, LENGTH, MADV_HUGEPAGE)    # in the program, before it touches the memory"];
    TMPFS_NOT_HUGE, "tmpfs-not-huge", Blocker, "The tmpfs that holds this file is mounted without huge pages",
        "A tmpfs mount follows its option huge=, by default 'never', not shmem_enabled. External promotion ignores both.",
        ["megapage run --attach PROCESS", "mount -o remount,huge=always MOUNTPOINT"];
    USERFAULT, "userfault", Warning, "userfaultfd(2) watches the mapping",
        "A program handles its faults page by page (QEMU when it migrates, CRIU, garbage collectors). khugepaged fills no absent page there; where writes are watched promotion fails.",
        [];
    NOT_ELIGIBLE, "not-eligible", Blocker, "The kernel says that no huge page may be here",
        "THPeligible in smaps is 0, for a reason that cannot be read: a temporary stack during execve(2), a file system without support, a security module.",
        [];

    // Content of the range.
    NEVER_TOUCHED, "never-touched", Note, "Nothing is present here",
        "The range was never touched, or its memory was released or swapped out. The next touch may get a huge page.",
        [];
    SPARSE, "sparse", Warning, "Too few of the 512 base pages are present",
        "khugepaged allows at most max_ptes_none base pages that are absent or the zero page: a huge page would fill the holes with unused memory. External promotion ignores the limit.",
        ["megapage run --attach PROCESS", "echo 511 > {thp}/khugepaged/max_ptes_none"];
    SWAPPED_OUT, "swapped-out", Warning, "Too many base pages are swapped out",
        "khugepaged reads at most max_ptes_swap base pages of a region back from swap.",
        ["megapage run --attach PROCESS", "echo 512 > {thp}/khugepaged/max_ptes_swap"];
    SHARED_BY_FORK, "shared-by-fork", Warning, "Too many base pages are shared with another process",
        "After a fork(2), parent and child share each page until one writes to it. khugepaged allows at most max_ptes_shared such pages: the huge page would be a copy.",
        ["megapage run --attach PROCESS", "echo 511 > {thp}/khugepaged/max_ptes_shared"];
    MERGED, "merged", Warning, "KSM has merged pages here",
        "Equal pages, of this process or of others, are one. khugepaged counts them as shared, and a collapse undoes the merging.",
        ["madvise(ADDRESS, LENGTH, MADV_UNMERGEABLE)    # in the program"];
    PINNED, "pinned", Note, "The process has pinned memory",
        "Pages that the kernel holds for a device or io_uring can be neither moved nor collapsed. It shows only how many there are.",
        [];

    // Reasons why it has not happened yet.
    NONE_FREE, "none-free", Warning, "No free memory in blocks of 2 MiB",
        "Neither a fault nor khugepaged gets a huge page before the kernel has compacted or reclaimed memory.",
        ["sysctl -w vm.compact_memory=1"];
    KHUGEPAGED_TAKES_FREE, "khugepaged-takes-free", Warning, "khugepaged makes no room for huge pages",
        "With khugepaged/defrag at 0 it takes only a huge page that is free at that moment.",
        ["echo 1 > {thp}/khugepaged/defrag"];
    NOT_COLLAPSED_YET, "not-collapsed-yet", Warning, "Touched as base pages, and khugepaged has not come yet",
        "Nothing stands in the way now. At the first touch the memory was not eligible, no huge page was free, or the mapping was too small; since then only khugepaged makes it huge, at its own pace and where a page was accessed lately.",
        ["megapage run --attach PROCESS", "echo 65536 > {thp}/khugepaged/pages_to_scan", "echo 1000 > {thp}/khugepaged/scan_sleep_millisecs"];
}
