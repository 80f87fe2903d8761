//! Memory by the kind of page that backs it, for reports.

use crate::memory::Memory;
use megapage_units::Bytes;
use serde::Serialize;

/// Memory by the kind of page that backs it, in bytes, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Backed {
    /// Bytes on 1 GiB hugetlb pages.
    pub hugetlb_1g_bytes: u64,
    /// Bytes on 2 MiB hugetlb pages.
    pub hugetlb_2m_bytes: u64,
    /// Bytes on hugetlb pages of other sizes.
    pub hugetlb_other_bytes: u64,
    /// Bytes on 2 MiB transparent huge pages.
    pub thp_bytes: u64,
    /// Shared memory mapped by 2 MiB entries.
    pub shmem_pmd_bytes: u64,
    /// Page cache mapped by 2 MiB entries.
    pub file_pmd_bytes: u64,
    /// All other bytes, also those on transparent huge pages smaller than 2 MiB.
    pub base_bytes: u64,
    /// The sum of the above: all bytes present.
    pub total_bytes: u64,
    /// Bytes swapped out, which the sum does not include.
    pub swapped_bytes: u64,
    /// The share of all bytes, present or swapped out, on pages of 2 MiB or more, in percent.
    /// `None` if there is no memory.
    pub huge_percent: Option<f64>,
}

/// Returns a share in percent, to a tenth; `None` if `whole` is 0. Only the whole is rounded to
/// 100.
pub(crate) fn percent(part: u64, whole: u64) -> Option<f64> {
    let rounded = (part as f64 / whole as f64 * 1000.0).round() / 10.0;
    (whole > 0).then(|| if part < whole { rounded.min(99.9) } else { 100.0 })
}

impl From<Memory> for Backed {
    fn from(memory: Memory) -> Backed {
        let (bytes, swapped) = (memory.present, memory.swapped.0);
        let total = bytes.total().0;
        Backed {
            hugetlb_1g_bytes: bytes.hugetlb_1g.0,
            hugetlb_2m_bytes: bytes.hugetlb_2m.0,
            hugetlb_other_bytes: bytes.hugetlb_other.0,
            thp_bytes: bytes.thp.0,
            shmem_pmd_bytes: bytes.shmem_pmd.0,
            file_pmd_bytes: bytes.file_pmd.0,
            base_bytes: bytes.base.0,
            total_bytes: total,
            swapped_bytes: swapped,
            huge_percent: percent(bytes.huge().0, total + swapped),
        }
    }
}

/// Base pages that a heap of any size may hold. Its first chunks are on base pages on purpose, so
/// that small programs stay small.
const BASE_ALLOWANCE: Bytes = Bytes::mib(8);
/// Base pages that a larger heap may hold, as a share: one part in twenty.
const BASE_SHARE: u64 = 20;

/// Returns the bytes that may be on smaller pages, or unseen, of `total` bytes: 8 MiB, or a
/// twentieth if that is more.
pub(crate) fn allowance(total: u64) -> u64 {
    BASE_ALLOWANCE.0.max(total / BASE_SHARE)
}
