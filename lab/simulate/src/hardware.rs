//! The modelled machine: its costs of faults, copies and page walks.

use megapage_plan::translation::WalkCosts;
use serde::Serialize;

/// Costs of memory management and address translation. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// A name for reports.
    pub name: &'static str,
    /// Costs of page faults.
    pub faults: FaultCosts,
    /// Costs of background work.
    pub work: WorkCosts,
    /// Costs of page walks.
    pub walks: WalkCosts,
}

/// Costs of page faults on anonymous memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultCosts {
    /// The fault handler for a base page, zeroing aside.
    pub base_ns: f64,
    /// Zeroing a base page.
    pub zero_base_ns: f64,
    /// The fault handler for a huge page, zeroing aside.
    pub huge_ns: f64,
    /// Zeroing a huge page.
    pub zero_huge_ns: f64,
    /// A fault's cost to the program outside the handler: entering and leaving the kernel, and
    /// releasing the page at the end. It is not charged if the kernel itself takes the fault for a
    /// system call. This is an assumption, for programs that are measured while they live.
    pub around_ns: f64,
    /// The first write to a base page that was just zeroed: it is in the cache.
    pub touch_warm_ns: f64,
    /// The first write to a base page that was zeroed ahead, or lies in a huge page: from memory.
    pub touch_cold_ns: f64,
    /// Writing a whole base page that was just zeroed: it is in the second-level cache.
    pub fill_base_ns: f64,
    /// Writing a whole base page of a huge page that was just zeroed: it is in the last-level
    /// cache.
    pub fill_huge_ns: f64,
    /// Writing a whole base page that was zeroed ahead: from memory.
    pub fill_cold_ns: f64,
}

/// Costs of promotions, demotions and scans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkCosts {
    /// Collapsing a region, copies aside: isolating pages, flushing TLBs, page tables.
    pub collapse_ns: f64,
    /// Copying one base page.
    pub copy_base_ns: f64,
    /// Moving one base page in compaction.
    pub migrate_ns: f64,
    /// Mapping a region of which the pages lie in one block already.
    pub remap_ns: f64,
    /// Splitting a huge page.
    pub split_ns: f64,
    /// Scanning a base page that does not hold zeros: its first bytes show it.
    pub scan_used_ns: f64,
    /// Scanning a base page that holds zeros: all of it.
    pub scan_zero_ns: f64,
    /// Reading the page table of one region.
    pub read_region_ns: f64,
    /// The first access to a page after its accessed bit was cleared.
    pub first_access_ns: f64,
    /// Zeroing a huge page past the caches.
    pub prezero_huge_ns: f64,
    /// The slow-down of a program, as a share, beside a core that only zeroes memory: the worst
    /// case.
    pub zeroing_slows: f64,
}

impl Hardware {
    /// Returns the platform of the HawkEye paper: Xeon E5-2690 v3 (Haswell, 2.6 GHz), Linux 4.3.
    ///
    /// Faults: rows Linux-4K, Linux-2M and no-zero-2M of the fault table (fitted on those, see
    /// `megapage-lab papers`). Writing whole pages: 27, 8 and 4.5 GB/s by one core to the
    /// second-level cache, the last-level cache and memory. The first two are assumptions without a
    /// source; the last is fitted on Redis with HawkEye's huge pages.
    pub fn haswell() -> Hardware {
        Hardware {
            name: "Xeon E5-2690 v3",
            faults: FaultCosts {
                base_ns: 2680.0,
                zero_base_ns: 850.0,
                huge_ns: 13_000.0,
                zero_huge_ns: 452_000.0,
                around_ns: 473.0,
                touch_warm_ns: 38.0,
                touch_cold_ns: 141.0,
                fill_base_ns: 150.0,
                fill_huge_ns: 500.0,
                fill_cold_ns: 910.0,
            },
            work: WorkCosts {
                collapse_ns: 100_000.0,
                copy_base_ns: 1_200.0,
                migrate_ns: 2_500.0,
                remap_ns: 10_000.0,
                split_ns: 20_000.0,
                scan_used_ns: 90.0,
                scan_zero_ns: 400.0,
                read_region_ns: 1_500.0,
                first_access_ns: 470.0,
                prezero_huge_ns: 452_000.0,
                zeroing_slows: 0.06,
            },
            walks: WalkCosts::haswell(),
        }
    }
}
