//! Per-processor queues before the kernel's LRU lists.

use crate::Reservation;
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::io;

/// Drain that moves waiting pages from the queues of processors to the LRU lists. Calls that work
/// on those lists, MADV_COLD among them, skip a page in a queue (just faulted in, or just made
/// cold).
#[derive(Debug)]
pub struct LruDrain {
    memory: Reservation,
}

impl LruDrain {
    /// Reserves the memory that the drain needs: 6 MiB of address space, 4 KiB of memory.
    pub fn new() -> io::Result<LruDrain> {
        let memory = Reservation::new(2 * HUGE_2M, HUGE_2M)?;
        memory.open()?;
        // A mapping without any page is not eligible for the call below. The page is at the
        // mapping's other end, so that a huge page given by the page fault is not in the way.
        memory.part(2 * HUGE_2M - BASE_PAGE, BASE_PAGE).populate()?;
        Ok(LruDrain { memory })
    }

    /// Empties the queues of all processors. The kernel begins every MADV_COLLAPSE with that (Linux
    /// 6.1). This call covers less than a huge page, so that nothing is collapsed. Waits until each
    /// processor with queued pages has run its part: microseconds, on a busy machine up to
    /// milliseconds.
    ///
    /// # Errors
    /// EINVAL without transparent huge pages in the kernel, or if prctl(PR_SET_THP_DISABLE) has
    /// switched them off for this process.
    pub fn drain(&self) -> io::Result<()> {
        Ok(self.memory.part(0, BASE_PAGE).collapse()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_can_be_emptied() {
        LruDrain::new().unwrap().drain().expect("Linux 6.1 with transparent huge pages");
    }
}
