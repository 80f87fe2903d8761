//! Memory that the persistent pools leave for everything else at the next boot.

use crate::pool::plan::floor;
use megapage_observe::wire;
use megapage_units::Bytes;
use serde::Serialize;

/// Memory that a machine needs to boot beside its pools: kernel, initramfs and the first services.
/// With less, `hugepages=` ends in a panic that only another boot parameter repairs.
pub const LEAST: Bytes = Bytes::mib(512);

/// Bytes that one byte of page descriptors describes: a struct page of 64 bytes describes 4 KiB.
const DESCRIBED_BY_A_BYTE: u64 = 64;

/// Memory at the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PersistMemory {
    /// `MemTotal`, or the memory of the machine that will boot.
    #[serde(serialize_with = "wire::bytes", rename = "total_bytes")]
    pub total: Bytes,
    /// Page descriptors of the kernel, 1/64 of all memory. Zero if `total` is a `MemTotal`, which
    /// does not include them.
    #[serde(serialize_with = "wire::bytes", rename = "descriptors_bytes")]
    pub descriptors: Bytes,
    /// All pools, and the memory of `hugetlb_cma=`.
    #[serde(serialize_with = "wire::bytes", rename = "pools_bytes")]
    pub pools: Bytes,
    /// The remainder.
    #[serde(serialize_with = "wire::bytes", rename = "left_bytes")]
    pub left: Bytes,
    /// Safe floor; less than this is a warning.
    #[serde(serialize_with = "wire::bytes", rename = "floor_bytes")]
    pub floor: Bytes,
}

impl PersistMemory {
    /// Returns the values for a running machine's `MemTotal`.
    pub(super) fn of_running(total: Bytes, pools: Bytes) -> PersistMemory {
        PersistMemory::of(total, Bytes::ZERO, pools)
    }

    /// Returns the values for a machine with this much memory built in.
    pub(super) fn of_installed(total: Bytes, pools: Bytes) -> PersistMemory {
        PersistMemory::of(total, Bytes(total.0 / DESCRIBED_BY_A_BYTE), pools)
    }

    fn of(total: Bytes, descriptors: Bytes, pools: Bytes) -> PersistMemory {
        let left = total.saturating_sub(descriptors).saturating_sub(pools);
        PersistMemory { total, descriptors, pools, left, floor: floor(total) }
    }

    /// Returns true if the machine would not boot.
    pub(super) fn cannot_boot(&self) -> bool {
        self.left < LEAST
    }

    /// Returns the warning, if less than the safe floor is left.
    pub(super) fn warning(&self) -> Option<String> {
        let PersistMemory { total, descriptors, pools, left, floor } = *self;
        (left < floor).then(|| {
            let share = 100.0 * left.0 as f64 / total.0 as f64;
            let descriptors = match descriptors {
                Bytes::ZERO => String::new(),
                some => format!(" (less {some} of page descriptors)"),
            };
            format!(
                "{pools} in pools leave {left} of {total}{descriptors} for everything else: {share:.1} %, below the safe \
                 floor of {floor}. The kernel, the page cache and all programs that do not ask for hugetlb pages share \
                 it: what needs more of it is refused memory (ENOMEM), swapped out or killed by the OOM killer"
            )
        })
    }
}

#[cfg(test)]
mod tests;
