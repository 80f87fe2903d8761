//! Huge pages made ready before a collapse, where that is worth it.
//!
//! A collapse copies while it holds the mmap lock of its process: page faults and mmap(2) wait. Where the machine is a
//! virtual one and its host gives memory when it is first touched, that takes ten to twenty times as long as the copy.
//! So once a collapse turns out to be expensive, the pages for the next ones are taken and released first ([`Primer`]): the
//! host is waited for without the lock. Where memory is there already that would only cost, and often it is: what a
//! collapse copies from is free afterwards, and the kernel hands out last what was freed first. How long it takes to make
//! pages ready shows that: once a row of them was ready anyway, calls are made without.

use super::answer::{Call, Refusal};
use megapage_kernel::primer::Primer;
use megapage_kernel::process::own_thread_time;
use std::io;
use std::time::Duration;

/// A collapse of one region that takes more processor time than this waits for more than its copy: that takes 0.2 to 1.3 ms, by the
/// machine, of which most is for the call, whatever it names.
const EXPENSIVE: Duration = Duration::from_millis(2);
/// The same for each further region of the call.
const EXPENSIVE_FURTHER: Duration = Duration::from_micros(800);
/// A page that is made ready in less was ready.
const CHEAP: Duration = Duration::from_micros(400);
/// Collapses stayed expensive with pages made ready so often in a row before that is believed.
const BELIEVED: u32 = 8;
/// After collapses stayed expensive, or no helper replied, so many calls are made without it.
const GIVEN_UP: u32 = 512;
/// Most pages made ready at once, for one call: it names no more regions.
const MOST: usize = 8;
/// Made ready beyond what the call names: of what is released the kernel may move the oldest from the processor's list to that of
/// all, where it is not the next. The next pages that are made ready begin with it.
const SPARE: usize = 1;
/// Pages in a row that were ready anyway, after which calls are made without.
const READY_IN_A_ROW: usize = 32;

/// Whether pages are made ready, and what came of it: stored from one promotion to the next.
#[derive(Debug)]
pub(super) struct Ready {
    primer: Option<Primer>,
    /// Whether pages are made ready before a call.
    wanted: bool,
    /// Pages in a row that were ready anyway.
    in_a_row: usize,
    /// Regions that a call may name for which nothing was made ready: one after an expensive call, and twice as many with each
    /// that was not, up to [`MOST`]: all of them may turn out to be expensive.
    trusted: usize,
    /// Pages that were made ready and that no call has used yet.
    left: usize,
    /// Whether the call under way uses such.
    done: bool,
    /// What a region took in the last expensive call without.
    cold: Duration,
    /// Times in a row that a region took more than half of that with pages made ready.
    vain: u32,
    /// Calls to be made without it.
    given_up: u32,
}

impl Default for Ready {
    fn default() -> Ready {
        Ready {
            primer: None,
            wanted: false,
            in_a_row: 0,
            trusted: MOST,
            left: 0,
            done: false,
            cold: Duration::ZERO,
            vain: 0,
            given_up: 0,
        }
    }
}

impl Ready {
    /// Before the first call of a lot of them: what was made ready for another has gone to another process.
    pub(super) fn begin(&mut self) {
        self.left = 0;
    }

    /// Before a call that collapses so many regions. Answers how many it may name: those for which pages are ready, where
    /// any are made so; the host would be waited for under the lock for each of the others.
    pub(super) fn before(&mut self, regions: usize) -> usize {
        // A call names neighbours alone: fewer than were made ready, perhaps.
        self.done = self.left > 0 && regions > 0;
        if self.done {
            return regions.min(self.left);
        }
        if !self.wanted || regions == 0 {
            return regions.min(self.trusted);
        }
        if self.primer.is_none() {
            self.primer = Primer::new(MOST + SPARE).ok();
        }
        let Some(primer) = &mut self.primer else { return regions };
        let start = own_thread_time();
        let taken = match primer.prime(regions.min(MOST) + SPARE) {
            Ok(taken) => taken,
            Err(error) => return self.unready(&error, regions),
        };
        let ready = taken.saturating_sub(SPARE).max(1);
        self.prepared(ready, own_thread_time().saturating_sub(start));
        ready.min(regions)
    }

    /// How many regions the call may name where no page could be made ready.
    fn unready(&mut self, error: &io::Error, regions: usize) -> usize {
        // There are none: the call will fail.
        if matches!(Refusal::of(error), Refusal::Busy | Refusal::NoMemory | Refusal::GroupFull) {
            return 1;
        }
        // No helper replied, or prctl(PR_SET_THP_DISABLE) has switched huge pages off for this process, and so it may be again.
        self.primer = None;
        self.give_up();
        regions.min(self.trusted)
    }

    fn give_up(&mut self) {
        *self = Ready { primer: self.primer.take(), given_up: GIVEN_UP, ..Ready::default() };
    }

    fn prepared(&mut self, pages: usize, busy: Duration) {
        (self.done, self.left) = (true, pages);
        self.in_a_row = if busy < CHEAP * (pages + SPARE) as u32 { self.in_a_row + pages } else { 0 };
        if self.in_a_row >= READY_IN_A_ROW {
            (self.wanted, self.in_a_row) = (false, 0);
        }
    }

    /// How a call that collapses went.
    pub(super) fn after(&mut self, call: &Call) {
        // One of its regions, at least.
        let is_expensive = call.busy > EXPENSIVE + EXPENSIVE_FURTHER * call.regions.saturating_sub(1) as u32;
        if self.done {
            // Others may have taken them.
            self.left = if is_expensive { 0 } else { self.left.saturating_sub(call.regions.max(1)) };
            let is_vain = is_expensive && call.busy_of_region() * 2 > self.cold;
            self.vain = if is_vain { self.vain + 1 } else { 0 };
            if self.vain >= BELIEVED {
                self.give_up();
            }
        } else if self.given_up > 0 {
            self.given_up -= 1;
        } else if is_expensive && !call.failed {
            (self.wanted, self.in_a_row) = (true, 0);
            (self.trusted, self.cold) = (1, call.busy_of_region());
        } else if !call.failed {
            self.trusted = (2 * self.trusted).min(MOST);
        }
    }

    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(regions: usize, busy: Duration) -> Call {
        Call { regions, took: busy, busy, held: busy, refused: None, failed: false, at: None }
    }

    /// What a region took where a host was waited for (Linux 6.18 on a nested host), and what it takes else.
    const LONG: Duration = Duration::from_millis(7);
    const SHORT: Duration = Duration::from_micros(200);

    #[test]
    fn pages_are_made_ready_once_a_collapse_was_expensive() {
        let mut ready = Ready::default();
        ready.after(&call(8, SHORT * 8));
        assert!(!ready.is_wanted());
        ready.after(&Call { failed: true, ..call(1, LONG) });
        assert!(!ready.is_wanted(), "what failed has not copied");
        assert_eq!(ready.before(32), MOST, "nothing is made ready");
        ready.after(&call(2, LONG * 2));
        assert!(ready.is_wanted());
        assert!((1..=MOST).contains(&ready.before(32)), "no more than what is ready");
    }

    #[test]
    fn what_a_call_did_not_use_is_ready_for_the_next() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        ready.prepared(8, LONG * 8);
        for left in (1..8).rev() {
            ready.after(&call(1, SHORT));
            assert_eq!((ready.before(32), ready.done), (left, true), "nothing more is made ready");
        }
        ready.after(&call(1, LONG));
        assert_eq!(ready.left, 0, "others took it");
        ready.prepared(8, LONG * 8);
        ready.begin();
        assert_eq!(ready.left, 0, "for another process, later");
    }

    #[test]
    fn it_ends_where_pages_were_ready_anyway() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        for busy in [SHORT, LONG, SHORT] {
            ready.prepared(READY_IN_A_ROW / 2, busy * (READY_IN_A_ROW / 2) as u32);
            assert!(ready.is_wanted());
        }
        ready.prepared(READY_IN_A_ROW / 2, SHORT);
        assert!(!ready.is_wanted());
    }

    /// Regions of `count` that are collapsed by calls that name what [`Ready`] allows, with the host to be waited for at
    /// those that `is_cold` says: how many pages were made ready, and how many regions were waited for under the lock.
    fn collapsed(count: usize, is_cold: impl Fn(usize) -> bool) -> (usize, usize) {
        let mut ready = Ready::default();
        let (mut at, mut made, mut waited) = (0, 0, 0);
        while at < count {
            ready.done = false;
            let regions = if ready.wanted {
                let taken = MOST.min(count - at);
                ready
                    .prepared(taken, (at..at + taken).map(|at| if is_cold(at) { LONG } else { SHORT }).sum());
                made += taken;
                taken
            } else {
                ready.trusted.min(count - at)
            };
            let cold = if ready.done { 0 } else { (at..at + regions).filter(|&at| is_cold(at)).count() };
            ready.after(&call(regions, LONG * cold as u32 + SHORT * (regions - cold) as u32));
            waited += cold;
            at += regions;
        }
        (made, waited)
    }

    #[test]
    fn where_memory_is_warm_nothing_is_made_ready_and_where_some_is_cold_little_is_waited_for() {
        assert_eq!(collapsed(4096, |_| false), (0, 0));
        // Sixteen regions in a row of each 128 are cold; or one of four is: then all are made ready.
        let hold = |is_cold: fn(usize) -> bool, most_made: usize, most_waited: usize| {
            let (made, waited) = collapsed(4096, is_cold);
            assert!(made > 0 && made < most_made && waited <= most_waited, "{made} {waited}");
        };
        hold(|at| (at / 16).is_multiple_of(8), 2048, 256);
        hold(|at| at.is_multiple_of(4), 4096, 8);
    }

    #[test]
    fn where_memory_is_cold_the_first_call_alone_waits() {
        let (made, waited) = collapsed(4096, |_| true);
        assert!(made >= 4000 && waited <= MOST, "{made} {waited}");
        assert_eq!(made + waited, 4096);
    }

    #[test]
    fn it_ends_where_collapses_stay_expensive_and_is_tried_again_later() {
        let mut ready = Ready { wanted: true, cold: LONG, ..Ready::default() };
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
    fn without_a_helper_that_replies_or_may_have_huge_pages_calls_are_made_as_before() {
        for error in [11, 12, 16].map(io::Error::from_raw_os_error) {
            let mut ready = Ready { wanted: true, ..Ready::default() };
            assert_eq!(ready.unready(&error, 4), 1, "{error}");
            assert!(ready.is_wanted(), "{error}: there may be pages for the next call");
        }
        for error in [io::ErrorKind::BrokenPipe.into(), io::Error::from_raw_os_error(22)] {
            let mut ready = Ready { wanted: true, ..Ready::default() };
            assert_eq!(ready.unready(&error, 4), 4, "{error}");
            assert_eq!((ready.is_wanted(), ready.given_up), (false, GIVEN_UP), "{error}");
        }
    }

    #[test]
    fn pages_can_be_made_ready_on_this_kernel() {
        let mut ready = Ready { wanted: true, ..Ready::default() };
        assert_eq!((ready.before(0), ready.done), (0, false));
        assert!((1..=2).contains(&ready.before(2)));
        // Where there is no huge page it is not done, and the call fails.
        assert!(ready.primer.is_some());
    }
}
