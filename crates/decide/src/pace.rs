//! Pace of a background thread: a quantity of work, then a sleep.

use std::time::Duration;

/// `work` units every `every`, like kernel threads that scan a number of pages and then sleep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Units of work in a round.
    pub work: u64,
    /// Time from one round to the next.
    pub every: Duration,
}

impl Pace {
    /// Pace of khugepaged, and so of the released kernels of Ingens and HawkEye, in regions. It is
    /// 4096 base pages, 8 regions, every 10 s (`khugepaged/pages_to_scan` and
    /// `scan_sleep_millisecs`, mm/khugepaged.c; HawkEye: mm/huge_memory.c).
    pub const KHUGEPAGED: Pace = Pace { work: 8, every: Duration::from_secs(10) };

    /// Pace at which the papers compare policies, in regions: 8 regions a second. It is inferred,
    /// not published. HawkEye (ASPLOS 2019) reports about 1000 s for Linux and Ingens to go once
    /// through a Graph500 or an XSBench. It runs six of them at a time in 96 GB (recalled), so that
    /// each has at most 8192 regions. At [`Pace::KHUGEPAGED`] that takes 10,000 s.
    pub const PAPERS: Pace = Pace { work: 8, every: Duration::from_secs(1) };

    /// Returns the same pace in base pages, `pages` for each region.
    pub(crate) const fn in_pages(self, pages: u16) -> Pace {
        Pace { work: self.work.saturating_mul(pages as u64), every: self.every }
    }
}

/// Maximum of rounds that come due at once, if steps are further apart than rounds.
const MOST_ROUNDS: u64 = 1024;

/// Counter of the rounds of a [`Pace`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    next: Option<Duration>,
    /// Work of the last rounds that was not done. It is due at once.
    left: u64,
    /// End of the last sleep. Nothing is due before it.
    asleep: Duration,
}

impl Rounds {
    /// Returns the work that is due at `now`: that of the rounds that came due since the last call.
    /// The first round is due at once.
    pub fn due(&mut self, now: Duration, pace: Pace) -> u64 {
        let next = self.next.unwrap_or(now);
        // Never adds this to a round: work that is not done would accumulate without bound.
        let left = std::mem::take(&mut self.left);
        if now < self.asleep {
            return 0;
        }
        if now < next {
            return left;
        }
        let rounds = match pace.every.as_nanos() {
            0 => 1,
            every => (1 + (now - next).as_nanos() / every).min(u128::from(MOST_ROUNDS)) as u64,
        };
        // Drops further rounds: a thread that slept too long does not run faster.
        self.next =
            Some((next + pace.every.saturating_mul(rounds as u32)).max(now.saturating_sub(pace.every)));
        rounds.saturating_mul(pace.work).max(left)
    }

    /// Makes work due again that was due and not done: at once, or with the next round.
    pub fn give_back(&mut self, work: u64) {
        self.left = self.left.saturating_add(work);
    }

    /// Makes nothing due before `until`.
    pub fn sleep_until(&mut self, until: Duration) {
        self.next = Some(self.next.map_or(until, |next| next.max(until)));
        self.asleep = self.asleep.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rounds_come_due_as_time_passes() {
        let pace = Pace { work: 8, every: SECOND * 10 };
        let mut rounds = Rounds::default();
        assert_eq!(rounds.due(SECOND * 100, pace), 8);
        assert_eq!(rounds.due(SECOND * 105, pace), 0);
        assert_eq!(rounds.due(SECOND * 110, pace), 8);
        assert_eq!(rounds.due(SECOND * 145, pace), 24);
        assert_eq!(rounds.due(SECOND * 149, pace), 0);
        assert_eq!(rounds.due(SECOND * 150, pace), 8);
    }

    #[test]
    fn what_is_missed_for_too_long_is_lost() {
        let pace = Pace { work: 1, every: SECOND };
        let mut rounds = Rounds::default();
        rounds.due(SECOND, pace);
        assert_eq!(rounds.due(SECOND * 1_000_000, pace), MOST_ROUNDS);
        assert!(rounds.due(SECOND * 1_000_000, pace) <= 2);
    }

    #[test]
    fn what_was_not_done_is_due_at_once_but_does_not_add_up() {
        let pace = Pace { work: 8, every: SECOND };
        let mut rounds = Rounds::default();
        assert_eq!(rounds.due(SECOND * 10, pace), 8);
        rounds.give_back(2);
        rounds.give_back(3);
        assert_eq!(rounds.due(SECOND * 10, pace), 5);
        assert_eq!(rounds.due(SECOND * 10, pace), 0);
        rounds.give_back(5);
        assert_eq!(rounds.due(SECOND * 11, pace), 8);
        assert_eq!(rounds.due(SECOND * 11, pace), 0);
    }

    #[test]
    fn a_sleep_puts_the_next_round_off() {
        let pace = Pace { work: 1, every: SECOND };
        let mut rounds = Rounds::default();
        rounds.due(SECOND, pace);
        rounds.sleep_until(SECOND * 60);
        rounds.give_back(1);
        assert_eq!(rounds.due(SECOND * 59, pace), 0);
        assert_eq!(rounds.due(SECOND * 60, pace), 1);
    }
}
