//! All kinds of finding: identifier, severity, meaning and remedy, as `catalog.toml` lists them.
//!
//! A test compares docs/doctor.md with that file.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

megapage_units::named! {
    /// Weight of a finding.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Identifier in kebab-case; its meaning never changes.
    pub id: String,
    /// Weight of these findings.
    pub severity: Severity,
    /// Title of one line.
    pub title: String,
    /// Meaning, and the reason why it stands in the way.
    pub explanation: String,
    /// Shell commands or lines of a configuration file. Capitals stand for parts that the reader
    /// fills in, and `{thp}` for the directory of the settings of transparent huge pages: see
    /// [`Kind::remedies`].
    pub remedy: Vec<String>,
}

impl Kind {
    /// Returns the remedies, ready to be typed except for the parts in capitals.
    pub fn remedies(&self) -> Vec<String> {
        let thp = megapage_kernel::thp::path("");
        self.remedy.iter().map(|line| line.replace("{thp}/", &thp)).collect()
    }
}

/// Kinds in the order of docs/doctor.md.
#[derive(Debug, Deserialize)]
pub struct Catalog {
    /// Findings about a machine, a user or a program.
    #[serde(rename = "finding")]
    pub findings: Vec<Kind>,
    /// Reasons of `megapage doctor --why`.
    #[serde(rename = "reason")]
    pub reasons: Vec<Kind>,
}

/// Content of `catalog.toml`.
pub static CATALOG: LazyLock<Catalog> =
    LazyLock::new(|| toml::from_str(include_str!("catalog.toml")).expect("catalog.toml is valid"));

/// Returns the kind whose constant has this name.
pub(crate) fn named(constant: &str) -> &'static Kind {
    let id = constant.to_ascii_lowercase().replace('_', "-");
    let mut all = CATALOG.findings.iter().chain(&CATALOG.reasons);
    all.find(|kind| kind.id == id).expect("each constant's kind is in catalog.toml")
}

macro_rules! kinds {
    ($($name:ident)+) => {
        $(
            #[doc = concat!("Kind that `catalog.toml` describes: ", stringify!($name), ".")]
            pub static $name: std::sync::LazyLock<&$crate::catalog::Kind> =
                std::sync::LazyLock::new(|| $crate::catalog::named(stringify!($name)));
        )+
    };
}
pub(crate) use kinds;

kinds! {
    BASE_PAGES_OTHER MEGAPAGE_OFF THP_ABSENT THP_UNSEEN THP_NEVER THP_ON_REQUEST
    THP_DISABLED_FOR_PROCESS THP_DEFRAG_NEVER THP_DEFRAG_STALLS KHUGEPAGED_OFF SHMEM_THP_OFF
    MTHP_OFF MEMORY_FRAGMENTED MEMORY_SHORT FREE_MEMORY_REPORTED HUGETLB_ABSENT POOL_EMPTY
    POOL_TAKEN POOL_ELSEWHERE POOL_ON_DEMAND POOL_SIZE_UNUSED SHM_NOT_PERMITTED SHM_BY_MEMLOCK
    SHMMAX_SMALL MEMLOCK_LIMITED ADDRESS_SPACE_LIMITED OVERCOMMIT_STRICT MAP_COUNT_LOW
    HUGETLBFS_NOT_MOUNTED HUGETLBFS_DENIED HUGETLBFS_SIZE_LIMITED SEGMENTS_KEPT
    CGROUP_HUGETLB_FULL CGROUP_HUGETLB_SIGBUS CGROUP_HUGETLB_HIDDEN CGROUP_MEMORY_TIGHT
    CONTAINER SECCOMP_FILTER SELINUX_ENFORCING COLLAPSE_UNSUPPORTED OUTSIDE_NOT_PERMITTED
    POPULATE_UNSUPPORTED REFUSED_UNEXPLAINED GLIBC_OLD TUNABLE_SET TUNABLE_DEAD MORECORE_DEAD
    PROGRAM_PRIVILEGED PROGRAM_STATIC PROGRAM_NOT_GLIBC PROGRAM_FOREIGN PROGRAM_OWN_ALLOCATOR
    PROGRAM_FORKS PROGRAM_LIBRARIES_MISSING PROGRAM_JVM PROGRAM_GO PROGRAM_NODE PROGRAM_PYTHON
    PROGRAM_PHP PROGRAM_DISABLES_THP PROGRAM_HAS_SETTINGS
}
