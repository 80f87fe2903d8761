//! Decisions at the time of a page fault. On a running Linux they are the kernel's, made from its settings; the
//! simulator asks the policy.

use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, PageSize};
use std::time::Duration;

/// The memory of the machine at a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Headroom {
    /// All memory.
    pub total: Bytes,
    /// Free memory, what the kernel can take back at once included.
    pub free: Bytes,
    /// How many 2 MiB blocks could be taken at once.
    pub huge_available: u64,
    /// How many of them are known to be zero.
    pub zeroed: u64,
    /// The share, 0 to 1, of the free memory that is unusable for 2 MiB pages; `None` where nothing is free.
    pub fragmentation: Option<f64>,
}

impl Headroom {
    /// The share of memory in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        crate::in_use(self.total, self.free)
    }
}

/// A first touch of a base page of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Whose.
    pub process: ProcessId,
    /// The first address of the region.
    pub region: u64,
    /// Base pages of the region that are present already, 0 to 511.
    pub present: u16,
    /// Whether a huge page may be mapped: one mapping holds the region whole and does not forbid it.
    pub eligible: bool,
    /// Whether a 2 MiB block is reserved for this region.
    pub reserved: bool,
    /// The machine.
    pub headroom: Headroom,
}

/// What a fault is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSize {
    /// One base page from anywhere.
    Base,
    /// The aligned block of this size, between 4 KiB and 2 MiB, around the page. Where none is free, or base pages of
    /// it are present: a smaller one, down to [`FaultSize::Base`].
    Mthp(PageSize),
    /// One base page from the 2 MiB block that is, or is now to be, reserved for the region. The region is mapped
    /// as one huge page, in place, when its last base page comes. Where no block is free: [`FaultSize::Base`].
    Reserve,
    /// One huge page. Where none is free, or base pages are present: [`FaultSize::Base`].
    Huge,
}

/// A 2 MiB block that is reserved for a region and not yet fully populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Whose.
    pub process: ProcessId,
    /// For which region.
    pub region: u64,
    /// Base pages populated, 0 to 511.
    pub populated: u16,
    /// When a page was last added or taken away.
    pub changed: Duration,
}
