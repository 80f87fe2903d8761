//! Release of memory while tasks wait for it, and its return after a while without such waits.
//!
//! It concerns only the pages that the broker has added to the machine's pool. The others are the
//! pool's, which only hugetlb can use, in stock or not.

use crate::leases::Leases;
use megapage_act::pool::Loan;
use std::time::{Duration, Instant};

/// Time without pressure after which pages are taken up again, and the pause after that has failed.
pub(crate) const CALM: Duration = Duration::from_secs(30);

/// Memory that has gone back.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Extents that are to be taken up again.
    extents: u64,
    /// The event that was answered last.
    answered: Option<Instant>,
    next: Option<Instant>,
}

impl Recovery {
    /// Returns the number of pages that are to be taken up again.
    pub(crate) fn pages(&self, extent: u64) -> u64 {
        self.extents * extent
    }

    /// Returns the time of the next action.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.filter(|_| self.extents > 0)
    }

    /// Answers pressure that came at `pressed`, unless it was answered already: half of the stock
    /// goes back, as far as it was added. Without pressure for a while, takes an extent up again.
    /// No client has ever had the extents that are dropped from the stock.
    pub(crate) fn work<P>(
        &mut self,
        now: Instant,
        pressed: Option<Instant>,
        leases: &mut Leases<P>,
        loan: &mut Loan,
    ) {
        let extent = leases.rules().extent_pages;
        let stock = leases.rules().stock;
        if pressed > self.answered {
            self.answered = pressed;
            self.next = Some(now + CALM);
            let extents = (stock as u64).div_ceil(2).min(loan.pages() / extent);
            if extents == 0 {
                return;
            }
            drop(leases.keep_ready(stock - extents as usize));
            // Forced: if others have taken the pages, they turn into surplus, and go when they are
            // freed.
            match loan.set(loan.pages() - extents * extent, true) {
                Ok(()) => self.extents += extents,
                // The pages stay in the pool, and are filled again.
                Err(_) => drop(leases.keep_ready(stock)),
            }
        } else if self.next().is_some_and(|next| next <= now) {
            // Not below the floor of available memory, as at the start.
            if loan.set(loan.pages() + extent, false).is_ok() {
                self.extents -= 1;
                drop(leases.keep_ready(stock + 1));
                self.next = Some(now);
            } else {
                self.next = Some(now + CALM);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::Rules;
    use megapage_kernel::KernelRoot;
    use megapage_testing::PoolGuard;
    use megapage_units::PageSize;

    const SIZE: PageSize = PageSize::HUGE_2M;

    #[test]
    fn half_goes_back_at_each_event_and_comes_again_when_it_is_calm() {
        let Some(pool) = PoolGuard::reserve(SIZE, 0) else { return };
        let directory = tempfile::tempdir().unwrap();
        let before = pool.counts().persistent();
        let mut loan = Loan::take_over(&KernelRoot::live(), &directory.path().join("s"), SIZE);
        loan.set(8, false).unwrap();
        let rules = Rules {
            page_bytes: SIZE.bytes().0,
            extent_pages: 2,
            stock: 4,
            quota: None,
            most_leases: 9,
            most_at_once: 9,
        };
        let mut leases = Leases::new(rules);
        (0..4).for_each(|extent| leases.add(extent));
        let mut recovery = Recovery::default();
        let start = Instant::now();
        recovery.work(start, None, &mut leases, &mut loan);
        assert_eq!((loan.pages(), leases.ready(), recovery.next()), (8, 4, None), "all is calm");

        let event = |seconds| Some(start + Duration::from_secs(seconds));
        recovery.work(start, event(1), &mut leases, &mut loan);
        assert_eq!((loan.pages(), leases.ready(), leases.missing()), (4, 2, 0));
        assert_eq!(pool.counts().persistent(), before + 4, "the machine has the memory");
        recovery.work(start, event(1), &mut leases, &mut loan);
        assert_eq!(loan.pages(), 4, "one event is answered once");
        recovery.work(start, event(2), &mut leases, &mut loan);
        assert_eq!((loan.pages(), leases.ready(), recovery.pages(2)), (2, 1, 6));

        let calm = recovery.next().unwrap();
        assert_eq!(calm, start + CALM);
        // A machine that has no page at the moment is asked again.
        for _ in 0..100 {
            let Some(next) = recovery.next() else { break };
            recovery.work(next, event(2), &mut leases, &mut loan);
            let taken = loan.pages() - 2;
            assert_eq!((leases.missing() as u64 * 2, recovery.pages(2)), (taken, 6 - taken));
        }
        assert_eq!((recovery.next(), loan.pages()), (None, 8), "all is as it was");
        loan.set(0, true).unwrap();
        assert_eq!(pool.counts().persistent(), before);
    }

    #[test]
    fn what_was_not_added_stays() {
        let directory = tempfile::tempdir().unwrap();
        let mut loan = Loan::take_over(&KernelRoot::live(), &directory.path().join("s"), SIZE);
        let rules =
            Rules { page_bytes: 1, extent_pages: 1, stock: 2, quota: None, most_leases: 9, most_at_once: 9 };
        let mut leases = Leases::new(rules);
        (0..2).for_each(|extent| leases.add(extent));
        let now = Instant::now();
        Recovery::default().work(now, Some(now), &mut leases, &mut loan);
        assert_eq!((leases.ready(), loan.pages()), (2, 0));
    }
}
