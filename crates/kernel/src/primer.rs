//! Huge pages that are taken and released at once, so that the next allocation finds them ready.

use crate::Reservation;
use crate::helper::{Session, Wait};
use megapage_units::{HUGE_2M, Pid};
use std::io;

/// Takes huge pages and releases them. What is released last is what the kernel hands out next on that processor (its list of
/// pages of that order: mm/page_alloc.c). In a virtual machine whose host gives memory only when it is touched, that has been done
/// by then: a collapse, which copies under the mmap lock of its process, does not wait for the host there. The queues
/// before the LRU lists are emptied as well, for which a collapse would wait under the same lock.
///
/// A helper process does it, since one makes the collapse: our own thread is on another processor as a rule.
#[derive(Debug)]
pub struct Primer {
    /// `None` once a helper did not reply.
    memory: Option<Reservation>,
    most: usize,
    /// Whether the helper remains on its processor afterwards. Not where that ended it.
    remains: bool,
}

impl Primer {
    /// Reserves address space for `most` huge pages of 2 MiB. It takes no memory.
    pub fn new(most: usize) -> io::Result<Primer> {
        let most = most.max(1);
        let memory = Reservation::new(most * HUGE_2M, HUGE_2M)?;
        memory.open()?;
        Ok(Primer { memory: Some(memory), most, remains: true })
    }

    /// Takes up to `count` huge pages, as far as there are any, and releases them. How many they were.
    ///
    /// # Errors
    /// EAGAIN, ENOMEM, or EBUSY where its control group is full: the first one is not to be had. EINVAL where
    /// prctl(PR_SET_THP_DISABLE) has switched huge pages off for this process, or before Linux 6.1. TimedOut: no helper
    /// replied, now or before. BrokenPipe: it was killed.
    pub fn prime(&mut self, count: usize) -> io::Result<usize> {
        let Some(memory) = &self.memory else { return Err(io::ErrorKind::TimedOut.into()) };
        let own = Pid(std::process::id().cast_signed());
        let (start, count) = (memory.start(), count.clamp(1, self.most));
        let mut answer = Session::begin(own, Wait::Killable)?.prime(start, count, self.remains);
        if self.remains && answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            // A filter of system calls, of a unit say, ends who calls sched_setaffinity(2). As it has ended the memory is free again.
            self.remains = false;
            answer = Session::begin(own, Wait::Killable)?.prime(start, count, false);
        }
        match answer {
            Ok(answer) => answer,
            Err(error) => {
                // The helper may still release what lies there: the addresses are given to nothing else any more.
                let _ = self.memory.take().map(Reservation::keep);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelRoot;
    use crate::pagemap::Pagemap;
    use megapage_units::VirtRange;

    #[test]
    fn what_is_taken_is_given_back() {
        let mut primer = Primer::new(3).unwrap();
        let start = primer.memory.as_ref().unwrap().start() as u64;
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
