//! Backing of present memory.

use crate::wire;
use megapage_units::Bytes;
use serde::Serialize;
use std::ops::AddAssign;

/// Present memory by its backing. The fields do not overlap: their sum is the resident memory,
/// hugetlb included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackingBytes {
    /// 1 GiB hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "hugetlb_1g_bytes")]
    pub hugetlb_1g: Bytes,
    /// 2 MiB hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "hugetlb_2m_bytes")]
    pub hugetlb_2m: Bytes,
    /// hugetlb pages of another size (other architectures).
    #[serde(serialize_with = "wire::bytes", rename = "hugetlb_other_bytes")]
    pub hugetlb_other: Bytes,
    /// 2 MiB transparent huge pages of anonymous memory.
    #[serde(serialize_with = "wire::bytes", rename = "thp_bytes")]
    pub thp: Bytes,
    /// Shared memory mapped by 2 MiB entries.
    #[serde(serialize_with = "wire::bytes", rename = "shmem_pmd_bytes")]
    pub shmem_pmd: Bytes,
    /// Page cache mapped by 2 MiB entries.
    #[serde(serialize_with = "wire::bytes", rename = "file_pmd_bytes")]
    pub file_pmd: Bytes,
    /// All other pages: base pages, and transparent huge pages smaller than 2 MiB, which smaps does
    /// not distinguish.
    #[serde(serialize_with = "wire::bytes", rename = "base_bytes")]
    pub base: Bytes,
}

impl BackingBytes {
    /// Returns everything on pages of 2 MiB or more.
    pub fn huge(&self) -> Bytes {
        self.hugetlb() + self.thp + self.shmem_pmd + self.file_pmd
    }

    /// Returns everything on hugetlb pages.
    pub fn hugetlb(&self) -> Bytes {
        self.hugetlb_1g + self.hugetlb_2m + self.hugetlb_other
    }

    /// Returns the resident memory, hugetlb included.
    pub fn total(&self) -> Bytes {
        self.huge() + self.base
    }
}

impl AddAssign for BackingBytes {
    fn add_assign(&mut self, other: BackingBytes) {
        self.hugetlb_1g += other.hugetlb_1g;
        self.hugetlb_2m += other.hugetlb_2m;
        self.hugetlb_other += other.hugetlb_other;
        self.thp += other.thp;
        self.shmem_pmd += other.shmem_pmd;
        self.file_pmd += other.file_pmd;
        self.base += other.base;
    }
}
