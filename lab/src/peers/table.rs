//! Allocators and ways to start a program that the benches compare, each with its settings and the
//! reason for them.

use super::{Peer, Start};
use megapage_bench::libraries::{JEMALLOC, Library, MIMALLOC_3, Package, TCMALLOC};
use megapage_units::PageSize;

/// The configuration that all others are measured against: glibc, which never asks for huge pages.
pub const BASELINE: &str = "glibc";
/// The configuration that the gates judge: megapage's default.
pub const OURS: &str = "megapage";
/// The configuration on 1 GiB pages: shown beside the default, and part of no gate.
pub const GIGANTIC: &str = "megapage-1g";
/// The configuration whose start-up cost is limited: the library alone.
pub const LIBRARY_ALONE: &str = "megapage-library";
/// The configuration that takes memory to be short: its released memory is measured, not its speed.
pub const SHORT: &str = "megapage-short";

const MIMALLOC_2: Library =
    Library { file: "libmimalloc.so.2.0", package: Package::Debian("libmimalloc2.0") };
/// Google's, with TEMERAIRE: the sources that this crate carries, built as a library to preload.
const GOOGLE_TCMALLOC: Library =
    Library { file: "libgoogle_tcmalloc.so", package: Package::Crate("libtcmalloc-sys", "0.1.14") };
const LIBHUGETLBFS: Library =
    Library { file: "libhugetlbfs.so.0", package: Package::Debian("libhugetlbfs0") };

const TUNABLES: &str = "https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html";
const MIMALLOC_OPTIONS: &str = "https://microsoft.github.io/mimalloc/environment.html";
const JEMALLOC_OPTIONS: &str = "https://jemalloc.net/jemalloc.3.html#tuning";
const GPERFTOOLS: &str = "https://gperftools.github.io/gperftools/tcmalloc.html";
const TEMERAIRE: &str = "https://github.com/google/tcmalloc/blob/master/docs/temeraire.md";
const HUGETLBFS_ISSUE: &str = "https://github.com/libhugetlbfs/libhugetlbfs/issues/52";
const RUN: &str = "docs/run.md";

const fn plain(name: &'static str, why: &'static str, source: &'static str) -> Peer {
    Peer { name, start: Start::Plain, variables: &[], pool: None, why, source }
}

const fn preloaded(library: Library, name: &'static str, why: &'static str, source: &'static str) -> Peer {
    Peer { name, start: Start::Preload(library), variables: &[], pool: None, why, source }
}

/// Every peer, in the order in which a round runs them. In the values of variables `{gib}` and
/// `{kib}` stand for the memory of the workload. `{hugetlbfs}` stands for a mount of 2 MiB pages
/// that the bench makes.
pub const PEERS: &[Peer] = &[
    plain(BASELINE, "base pages, the basis of every ratio", TUNABLES),
    Peer {
        variables: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
        ..plain("glibc-thp", "glibc's best for THP: malloc advises the heap", TUNABLES)
    },
    Peer {
        variables: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")],
        pool: Some(PageSize::HUGE_2M),
        ..plain("glibc-hugetlb", "glibc's best for a pool: malloc maps the heap from it", TUNABLES)
    },
    Peer {
        variables: &[("HUGETLB_MORECORE", "yes")],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(
            LIBHUGETLBFS,
            "libhugetlbfs",
            "the library's one setting for malloc, without effect since glibc 2.34. HUGETLB_SHM serves only shmget, \
             HUGETLB_ELFMAP relinked segments; hugectl --heap of 2.24 sets glibc's tunable (glibc-hugetlb)",
            HUGETLBFS_ISSUE,
        )
    },
    preloaded(MIMALLOC_2, "mimalloc2", "Debian's package, without settings", MIMALLOC_OPTIONS),
    Peer {
        variables: &[("MIMALLOC_LARGE_OS_PAGES", "1")],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(MIMALLOC_2, "mimalloc2-large", "2 MiB pages for all mimalloc mappings", MIMALLOC_OPTIONS)
    },
    preloaded(MIMALLOC_3, "mimalloc3", "the newest version, which advises THP by default", MIMALLOC_OPTIONS),
    Peer {
        variables: &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(MIMALLOC_3, "mimalloc3-large", "2 MiB pages for all mimalloc mappings", MIMALLOC_OPTIONS)
    },
    Peer {
        variables: &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"), ("MIMALLOC_RESERVE_OS_MEMORY", "{kib}KiB")],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(
            MIMALLOC_3,
            "mimalloc3-reserved",
            "mimalloc maps one arena of 2 MiB pages for all work at the start, nothing later",
            MIMALLOC_OPTIONS,
        )
    },
    Peer {
        variables: &[("MIMALLOC_RESERVE_HUGE_OS_PAGES", "{gib}")],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(
            MIMALLOC_3,
            "mimalloc3-gigantic",
            "mimalloc reserves 1 GiB pages at the start, or 2 MiB pages if no page of 1 GiB is free",
            MIMALLOC_OPTIONS,
        )
    },
    Peer {
        variables: &[("MALLOC_CONF", "thp:always")],
        ..preloaded(JEMALLOC, "jemalloc-thp", "jemalloc advises THP for every extent", JEMALLOC_OPTIONS)
    },
    Peer {
        variables: &[("MALLOC_CONF", "thp:always,metadata_thp:auto")],
        ..preloaded(
            JEMALLOC,
            "jemalloc-metadata",
            "jemalloc also advises its tables once they are many; `bench run` uses this setting",
            JEMALLOC_OPTIONS,
        )
    },
    Peer {
        variables: &[("MALLOC_CONF", "thp:always,metadata_thp:always")],
        ..preloaded(
            JEMALLOC,
            "jemalloc-metadata-all",
            "jemalloc advises its tables from the start",
            JEMALLOC_OPTIONS,
        )
    },
    Peer {
        variables: &[("MALLOC_CONF", "hpa:true,thp:always,metadata_thp:auto")],
        ..preloaded(
            JEMALLOC,
            "jemalloc-hpa",
            "jemalloc's huge-page allocator packs small extents. Version 5.3 advises each page once it is \
             full, and khugepaged collapses it",
            JEMALLOC_OPTIONS,
        )
    },
    preloaded(TCMALLOC, "tcmalloc", "Debian's package without settings: requests no huge pages", GPERFTOOLS),
    Peer {
        variables: &[
            ("TCMALLOC_MEMFS_MALLOC_PATH", "{hugetlbfs}/tcmalloc."),
            ("TCMALLOC_MEMFS_MAP_PRIVATE", "1"),
        ],
        pool: Some(PageSize::HUGE_2M),
        ..preloaded(
            TCMALLOC,
            "tcmalloc-memfs",
            "this tcmalloc's only way to huge pages: its heap is a file on a hugetlbfs",
            GPERFTOOLS,
        )
    },
    preloaded(
        GOOGLE_TCMALLOC,
        "tcmalloc-google",
        "TEMERAIRE fills huge pages and advises THP by itself; it has no setting for a pool",
        TEMERAIRE,
    ),
    Peer {
        name: OURS,
        start: Start::Run(&[]),
        variables: &[],
        pool: Some(PageSize::HUGE_2M),
        why: "megapage's default, which the gates judge",
        source: RUN,
    },
    Peer {
        name: GIGANTIC,
        start: Start::Run(&["--heap", "1g"]),
        variables: &[],
        pool: Some(PageSize::HUGE_1G),
        why: "a heap on 1 GiB pages, in the pool only while this peer runs; part of `access` and `retrieval`, without a gate",
        source: RUN,
    },
    Peer {
        name: "megapage-thp",
        start: Start::Run(&["--heap", "thp"]),
        variables: &[],
        pool: None,
        why: "megapage without a pool",
        source: RUN,
    },
    Peer {
        name: LIBRARY_ALONE,
        start: Start::OwnLibrary,
        variables: &[("MEGAPAGE_HEAP", "auto")],
        pool: Some(PageSize::HUGE_2M),
        why: "megapage's library without the launcher",
        source: RUN,
    },
    Peer {
        name: SHORT,
        start: Start::OwnLibrary,
        // More than any machine has: memory is always short of it.
        variables: &[("MEGAPAGE_HEAP", "thp"), ("MEGAPAGE_SHORT_BELOW", "9223372036854775807")],
        pool: None,
        why: "shows how much memory the library on THP returns if memory is always short",
        source: RUN,
    },
];

/// Variables that any peer heeds: removed from the environment before each run, so that none
/// reaches another.
pub const FOREIGN_VARIABLES: &[&str] = &[
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "HUGETLB_MORECORE",
    "HUGETLB_ELFMAP",
    "HUGETLB_SHM",
    "MALLOC_CONF",
    "MALLOC_ARENA_MAX",
    "MALLOC_TOP_PAD_",
    "MIMALLOC_LARGE_OS_PAGES",
    "MIMALLOC_ALLOW_LARGE_OS_PAGES",
    "MIMALLOC_RESERVE_HUGE_OS_PAGES",
    "MIMALLOC_RESERVE_OS_MEMORY",
    "TCMALLOC_MEMFS_MALLOC_PATH",
    "TCMALLOC_MEMFS_LIMIT_MB",
    "TCMALLOC_MEMFS_MAP_PRIVATE",
    "MEGAPAGE_HEAP",
    "MEGAPAGE_SHORT_BELOW",
];
