//! Rows of the table of abilities.

use super::{Ability, Probe, Release, trial};
use std::sync::OnceLock;

macro_rules! abilities {
    ($($constant:ident = $id:literal, $name:literal, $major:literal . $minor:literal, $probe:expr, $source:literal,
        $without:literal;)*) => {
        $(
            #[doc = concat!($name, ", since Linux ", $major, ".", $minor, ".")]
            pub static $constant: Ability = Ability {
                id: $id,
                name: $name,
                since: Release::new($major, $minor),
                source: $source,
                without: $without,
                probe: $probe,
                cached: OnceLock::new(),
            };
        )*

        /// Every ability, the oldest first.
        pub static ABILITIES: &[&Ability] = &[$(&$constant),*];
    };
}

abilities! {
    THP = "thp", "transparent huge pages", 2 . 6,
        Probe::Built(crate::thp::is_built, "CONFIG_TRANSPARENT_HUGEPAGE"),
        "Documentation/admin-guide/mm/transhuge.rst",
        "Programs can use only hugetlb pages; megapage promotes nothing.";
    HUGETLB_CMA = "hugetlb-cma", "the boot parameter hugetlb_cma", 5 . 7,
        Probe::Line("proc/meminfo", "CmaTotal:"),
        "commit cf11e85fc08c",
        "Only the boot parameter hugepages reserves pages of 1 GiB reliably.";
    PROCESS_MADVISE = "process-madvise", "process_madvise", 5 . 10, Probe::Call(trial::process_madvise),
        "process_madvise(2)",
        "megapage can neither promote nor split memory of other processes.";
    POPULATE_WRITE = "populate-write", "MADV_POPULATE_WRITE", 5 . 14, Probe::Call(trial::populate_write),
        "madvise(2)",
        "The preloaded heap takes no hugetlb pages: touching a missing page would raise SIGBUS.";
    BOOT_POOLS_PER_NODE = "boot-pools-per-node", "the boot parameter hugepages=NODE:PAGES", 5 . 16,
        Probe::Release,
        "commit b5389086ad7b",
        "The kernel ignores such a parameter and reserves no page; a systemd unit sets pools by node after the boot.";
    HUGETLB_MREMAP = "hugetlb-mremap", "mremap of hugetlb mappings", 5 . 16,
        Probe::Call(trial::hugetlb_mremap),
        "commit 550a7d60bd5e",
        "A heap cannot move hugetlb pages to the wanted address; it must map them there.";
    XFS_LARGE_FOLIOS = "xfs-large-folios", "large folios on XFS", 5 . 18, Probe::Release,
        "xfs: Support large folios",
        "Files on XFS stay on base pages, unless CONFIG_READ_ONLY_THP_FOR_FS is set.";
    COLLAPSE = "collapse", "MADV_COLLAPSE", 6 . 1, Probe::Call(trial::collapse),
        "madvise(2)",
        "megapage cannot promote memory; only khugepaged does, if settings or the program ask for it.";
    BPF_PAGE_WALK = "bpf-page-walk", "page tables read by a BPF program", 6 . 2, Probe::Release,
        "Documentation/bpf/kfuncs.rst: bpf_task_release, bpf_rcu_read_lock",
        "megapage samples accesses by idle page tracking, and infers huge entries from smaps and page frames.";
    PAGEMAP_SCAN = "pagemap-scan", "the ioctl PAGEMAP_SCAN", 6 . 7, Probe::Call(trial::pagemap_scan),
        "Documentation/admin-guide/mm/pagemap.rst",
        "megapage infers huge entries from page frames and smaps: slower, only for root, and not in mappings with partly mapped huge pages.";
    MTHP = "mthp", "multi-size THP", 6 . 8,
        Probe::Files(&[
            "sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
            "sys/kernel/mm/transparent_hugepage/hugepages-128kB/enabled",
        ]),
        "Documentation/admin-guide/mm/transhuge.rst",
        "Transparent huge pages come in one size, 2 MiB.";
    SHMEM_MTHP = "shmem-mthp", "multi-size THP of shared memory", 6 . 11,
        Probe::Files(&[
            "sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled",
            "sys/kernel/mm/transparent_hugepage/hugepages-128kB/shmem_enabled",
        ]),
        "Documentation/admin-guide/mm/transhuge.rst",
        "shmem_enabled is a single setting, for pages of 2 MiB only.";
    SPLIT_FREES_ZEROS = "split-frees-zeros", "zero-filled pages freed by a split", 6 . 12, Probe::Release,
        "commit b1f202060afe",
        "megapage cannot recover bloat: a split huge page keeps all its memory.";
    EXT4_LARGE_FOLIOS = "ext4-large-folios", "large folios on ext4", 6 . 16, Probe::Release,
        "ext4: enable large folio for regular file",
        "Files on ext4 stay on base pages, unless CONFIG_READ_ONLY_THP_FOR_FS is set.";
    THP_DISABLE_EXCEPT_ADVISED = "thp-disable-except-advised", "PR_THP_DISABLE_EXCEPT_ADVISED", 6 . 18,
        Probe::Call(trial::thp_disable_except_advised),
        "PR_SET_THP_DISABLE(2const)",
        "A process can switch transparent huge pages off only for all of its memory.";
    FILE_COLLAPSE = "file-collapse", "files collapsed without CONFIG_READ_ONLY_THP_FOR_FS", 7 . 2, Probe::Release,
        "the series that removes CONFIG_READ_ONLY_THP_FOR_FS, for Linux 7.2",
        "MADV_COLLAPSE of a file works only where the kernel was built with CONFIG_READ_ONLY_THP_FOR_FS.";
}
