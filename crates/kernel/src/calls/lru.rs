//! The per-processor queues before the kernel's LRU lists.

use crate::Reservation;
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::io;

/// Brings pages that wait in a processor's queue to the LRU lists. A page on its way there (just faulted in, or just
/// made cold) is skipped by what works on those lists, MADV_COLD among them.
#[derive(Debug)]
pub struct LruDrain {
    memory: Reservation,
}

impl LruDrain {
    /// Makes what is needed: 6 MiB of address space, 4 KiB of memory.
    pub fn new() -> io::Result<LruDrain> {
        let memory = Reservation::new(2 * HUGE_2M, HUGE_2M)?;
        memory.open()?;
        // A mapping without any page is not eligible to the call below. At the other end of it, where no huge page
        // that is given unasked is in the way.
        memory.part(2 * HUGE_2M - BASE_PAGE, BASE_PAGE).populate()?;
        Ok(LruDrain { memory })
    }

    /// Empties the queues of all processors. The kernel begins every MADV_COLLAPSE with that (Linux 6.1); this one
    /// is of less than a huge page, so that nothing is collapsed. Waits until each processor that has something
    /// queued has run its part: microseconds, on a busy machine up to milliseconds.
    ///
    /// # Errors
    /// EINVAL without transparent huge pages in the kernel, or where prctl(PR_SET_THP_DISABLE) has switched them
    /// off for this process.
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
