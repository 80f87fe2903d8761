//! Huge pages that are taken and released at once, so that the next allocation finds them ready.

use crate::{Errno, Reservation};
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::io;

/// Takes huge pages and releases them. What is released last is what the kernel hands out next. In a virtual machine
/// whose host gives memory only when it is touched, that has been done by then: a collapse, which copies under the mmap
/// lock of its process, does not wait for the host there. The queues before the LRU lists are emptied as well, for which
/// a collapse would wait under the same lock.
#[derive(Debug)]
pub struct Primer {
    memory: Reservation,
    most: usize,
}

impl Primer {
    /// Reserves address space for `most` huge pages of 2 MiB. It takes no memory.
    pub fn new(most: usize) -> io::Result<Primer> {
        let most = most.max(1);
        let memory = Reservation::new(most * HUGE_2M, HUGE_2M)?;
        memory.open()?;
        Ok(Primer { memory, most })
    }

    /// Takes up to `count` huge pages, as far as there are any, and releases them. How many they were.
    ///
    /// # Errors
    /// EAGAIN, ENOMEM, or EBUSY where its control group is full: the first one is not to be had. EINVAL where prctl(PR_SET_THP_DISABLE) has switched huge pages
    /// off for this process.
    pub fn prime(&self, count: usize) -> io::Result<usize> {
        let count = count.clamp(1, self.most);
        let taken = self.take(count);
        // Also what a failure has left.
        let given_back = self.memory.part(0, count * HUGE_2M).discard();
        let taken = taken?;
        given_back?;
        Ok(taken)
    }

    fn take(&self, count: usize) -> Result<usize, Errno> {
        // Each call empties the queues of all processors, which takes long where they are busy: one for all.
        let each = |place: usize| self.memory.part(place * HUGE_2M, BASE_PAGE).populate();
        if (0..count).all(|place| each(place).is_ok())
            && self.memory.part(0, count * HUGE_2M).collapse().is_ok()
        {
            return Ok(count);
        }
        for taken in 0..count {
            // One by one: where they run out, those before were had.
            let region = self.memory.part(taken * HUGE_2M, HUGE_2M);
            // Without any page there is no page table, and nothing is collapsed.
            let had = region.part(0, BASE_PAGE).populate().and_then(|()| region.collapse());
            match had {
                Ok(()) => {}
                Err(errno) if taken == 0 => return Err(errno),
                Err(_) => return Ok(taken),
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelRoot;
    use crate::pagemap::Pagemap;
    use megapage_units::{Pid, VirtRange};

    #[test]
    fn what_is_taken_is_given_back() {
        let primer = Primer::new(3).unwrap();
        let start = primer.memory.start() as u64;
        let range = VirtRange::new(start, start + 3 * HUGE_2M as u64).unwrap();
        for count in [1, 3, 9] {
            match primer.prime(count) {
                Ok(taken) => assert!((1..=count.min(3)).contains(&taken), "{taken} of {count}"),
                // Another program may hold all the memory there is.
                Err(error) => assert!(matches!(error.raw_os_error(), Some(11 | 12 | 16)), "{error}"),
            }
            let own = Pid(std::process::id().cast_signed());
            let pages = Pagemap::open(&KernelRoot::live(), own).unwrap().entries(range).unwrap();
            assert!(pages.iter().all(|page| !page.is_present()), "something is left");
        }
    }
}
