//! Huge pages made ready before a collapse, where that is worth it.
//!
//! A collapse copies while it holds the mmap lock of its process: page faults and mmap(2) wait. Where the machine is a
//! virtual one and its host gives memory when it is first touched, that takes ten to twenty times as long as the copy.
//! So once collapses turn out to be dear, the pages for the next ones are taken and given back first ([`Primer`]): the
//! host is waited for without the lock. Where memory is there already, that would only cost.

use crate::engine::Call;
use megapage_kernel::primer::Primer;
use megapage_kernel::process::own_thread_time;
use std::time::Duration;

/// A collapse that takes more processor time than this waits for more than its copy, which takes 0.2 ms.
const DEAR: Duration = Duration::from_millis(1);
/// A page that is made ready in less was ready.
const CHEAP: Duration = Duration::from_micros(400);
/// So often in a row before that is believed, or that collapses are dear all the same.
const BELIEVED: u32 = 8;
/// After collapses stayed dear, so many calls are made without it.
const GIVEN_UP: u32 = 512;
/// Most pages made ready at once, for one call: it names no more regions then.
const MOST: usize = 8;

/// Whether pages are made ready, and what came of it: kept from one promotion to the next.
#[derive(Debug, Default)]
pub struct Ready {
    primer: Option<Primer>,
    wanted: bool,
    /// Whether it was done for the call under way.
    done: bool,
    /// Times in a row that it was cheap, and that the call was dear after it.
    cheap: u32,
    vain: u32,
    /// Calls to be made without it.
    given_up: u32,
}

impl Ready {
    /// Before a call that collapses so many regions. Answers how many it may name: those for which pages are ready, where
    /// any are made so; the host would be waited for under the lock for each of the others.
    pub(crate) fn before(&mut self, regions: usize) -> usize {
        self.done = false;
        if !self.wanted || regions == 0 {
            return regions;
        }
        if self.primer.is_none() {
            self.primer = Primer::new(MOST).ok();
        }
        let Some(primer) = &self.primer else { return regions };
        let start = own_thread_time();
        // Where there are none the call will tell.
        let Ok(taken) = primer.prime(regions.min(MOST)) else { return 1 };
        self.prepared(taken, own_thread_time().saturating_sub(start));
        taken.clamp(1, regions)
    }

    fn prepared(&mut self, pages: usize, busy: Duration) {
        self.done = true;
        self.cheap = if busy < CHEAP * pages as u32 { self.cheap + 1 } else { 0 };
        if self.cheap >= BELIEVED {
            *self = Ready { primer: self.primer.take(), done: true, ..Ready::default() };
        }
    }

    /// How a call that collapses went.
    pub(crate) fn after(&mut self, call: &Call) {
        let is_dear = call.busy > DEAR * call.regions.max(1) as u32;
        if self.done {
            self.vain = if is_dear { self.vain + 1 } else { 0 };
            if self.vain >= BELIEVED {
                let given_up = GIVEN_UP;
                *self = Ready { primer: self.primer.take(), given_up, ..Ready::default() };
            }
        } else if self.given_up > 0 {
            self.given_up -= 1;
        } else if is_dear && !call.failed {
            self.wanted = true;
        }
    }

    #[cfg(test)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(regions: usize, busy: Duration) -> Call {
        Call { regions, took: busy, busy, held: busy, refused: None, failed: false, at: None }
    }

    const LONG: Duration = Duration::from_millis(3);
    const SHORT: Duration = Duration::from_micros(200);

    #[test]
    fn pages_are_made_ready_once_a_collapse_was_dear() {
        let mut ready = Ready::default();
        ready.after(&call(8, SHORT * 8));
        assert!(!ready.is_wanted());
        ready.after(&Call { failed: true, ..call(1, LONG) });
        assert!(!ready.is_wanted(), "what failed has not copied");
        assert_eq!(ready.before(32), 32, "nothing is made ready");
        ready.after(&call(2, LONG * 2));
        assert!(ready.is_wanted());
        assert!((1..=MOST).contains(&ready.before(32)), "no more than what is ready");
    }

    #[test]
    fn it_ends_where_pages_were_ready_anyway() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        for _ in 0..BELIEVED - 1 {
            ready.prepared(4, SHORT * 4);
        }
        ready.prepared(4, LONG * 4);
        (0..BELIEVED - 1).for_each(|_| ready.prepared(4, SHORT * 4));
        assert!(ready.is_wanted(), "not so often in a row");
        ready.prepared(1, SHORT);
        assert!(!ready.is_wanted());
    }

    #[test]
    fn it_ends_where_collapses_stay_dear_and_is_tried_again_later() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        for _ in 0..BELIEVED {
            assert!(ready.is_wanted());
            ready.prepared(1, LONG);
            ready.after(&call(1, LONG));
        }
        assert!(!ready.is_wanted());
        for _ in 0..=GIVEN_UP {
            assert!(!ready.is_wanted());
            ready.before(1);
            ready.after(&call(1, LONG));
        }
        assert!(ready.is_wanted());
    }

    #[test]
    fn pages_can_be_made_ready_on_this_kernel() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        assert_eq!((ready.before(0), ready.done), (0, false));
        assert!((1..=2).contains(&ready.before(2)));
        // Where there is no huge page it is not done, and the call tells.
        assert!(ready.primer.is_some());
    }
}
