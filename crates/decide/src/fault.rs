//! Decisions at the time of a page fault. On a running Linux the kernel makes them by its settings;
//! the simulator asks the policy.

use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HugePage, PageSize};
use std::time::Duration;

/// Memory of the machine at a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Headroom {
    /// All memory.
    pub total: Bytes,
    /// Free memory, including memory that the kernel can reclaim at once.
    pub free: Bytes,
    /// Number of 2 MiB blocks that could be taken at once.
    pub huge_available: u64,
    /// Number of these blocks that are known to be zero.
    pub zeroed: u64,
    /// Share of the free memory that is unusable for 2 MiB pages, 0 to 1; `None` if nothing is
    /// free.
    pub fragmentation: Option<f64>,
}

impl Headroom {
    /// Returns the share of memory in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        crate::in_use(self.total, self.free)
    }
}

/// A first touch of a base page of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// The process.
    pub process: ProcessId,
    /// The region.
    pub region: HugePage,
    /// Base pages of the region that are already present, 0 to 511.
    pub present: u16,
    /// True if a huge page may be mapped: one mapping holds the region whole and does not forbid
    /// it.
    pub eligible: bool,
    /// True if a 2 MiB block is reserved for this region.
    pub reserved: bool,
    /// Memory of the machine.
    pub headroom: Headroom,
}

/// Answer to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSize {
    /// One base page from anywhere.
    Base,
    /// The aligned block of this size, between 4 KiB and 2 MiB, around the page. If none is free,
    /// or base pages of it are present: a smaller one, down to [`FaultSize::Base`].
    Mthp(PageSize),
    /// One base page from the 2 MiB block that is reserved for the region, now if not before. The
    /// region is mapped as one huge page, in place, when its last base page is touched. If no block
    /// is free: [`FaultSize::Base`].
    Reserve,
    /// One huge page. If none is free, or base pages are present: [`FaultSize::Base`].
    Huge,
}

/// A 2 MiB block that is reserved for a region and not yet fully populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The process.
    pub process: ProcessId,
    /// The region.
    pub region: HugePage,
    /// Base pages populated, 0 to 511.
    pub populated: u16,
    /// Time at which a page was last added or removed.
    pub changed: Duration,
}
