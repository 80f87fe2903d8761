//! Time for which regions have to be full before they are collapsed. It depends on how many regions
//! collapsed earlier have stayed huge.
//!
//! A collapse copies 2 MiB, and pays by later accesses. A garbage collector that unmaps its pages,
//! or an allocator that returns parts of them, splits a huge page soon after. The region fills up
//! again, and looks as it did before.

use super::Ranges;
use megapage_inside::Errno;
use megapage_units::HUGE_2M;
use std::time::Duration;

/// Time after which collapsed regions are judged: one look in four for memory that grows.
const JUDGED_AFTER: Duration = Duration::from_millis(200);
/// Fewest collapsed regions that show anything.
const LEAST_JUDGED: usize = 4;
/// First required time, after more than a quarter of the collapsed regions are not huge any more.
const FIRST: Duration = Duration::from_millis(250);
/// Longest required time. Each further one is four times as long.
const LONGEST: Duration = Duration::from_secs(4);
const STEP: u32 = 4;

/// Time for each region from which on a collapse is slow: the kernel made room. A rest follows a
/// slow collapse, or one that found no huge page.
const SLOW: Duration = Duration::from_millis(30);
/// First and longest rest. Each further one is twice as long.
const FIRST_REST: Duration = Duration::from_millis(30);
const LONGEST_REST: Duration = Duration::from_secs(600);

/// State of the rule that this module describes.
#[derive(Debug)]
pub(super) struct Persistence {
    /// Regions that one look has collapsed, and the time of that look.
    watched: Ranges,
    collapsed: Option<Duration>,
    /// Watched regions that this look has found huge.
    huge: usize,
    /// Time for which regions have to be full.
    required: Duration,
    /// Start of the current period of that length.
    began: Option<Duration>,
    /// Length of the latest rest, and its end.
    rest: Duration,
    rests_until: Option<Duration>,
    /// The kernel's count of stalls after the latest slow collapse.
    stalls: Option<u64>,
}

impl Persistence {
    pub(super) const fn new() -> Persistence {
        Persistence {
            watched: Ranges::new(),
            collapsed: None,
            huge: 0,
            required: Duration::ZERO,
            began: None,
            rest: Duration::ZERO,
            rests_until: None,
            stalls: None,
        }
    }

    /// Returns true if the kernel's count of stalls has changed since the latest slow collapse. If
    /// not, the processor is slow, or other processes use it.
    fn has_stalled(&mut self, stalls: Option<u64>) -> bool {
        let before = std::mem::replace(&mut self.stalls, stalls);
        stalls.is_none() || stalls != before
    }

    /// Notes the result of a collapse, and the time that each of its regions took. `stalls` reads
    /// the kernel's count. Returns false if a rest begins: huge pages cost the kernel much work.
    pub(super) fn note_try(
        &mut self,
        took: Duration,
        done: Result<(), Errno>,
        now: Duration,
        stalls: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let rests = done == Err(Errno::ENOMEM) || took >= SLOW && self.has_stalled(stalls());
        if rests {
            self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
            self.rests_until = Some(now + self.rest);
        } else if done.is_ok() {
            self.rest = Duration::ZERO;
        }
        !rests
    }

    /// Returns the time until the next collapse may be tried.
    pub(super) fn rest(&self, now: Duration) -> Duration {
        self.rests_until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }

    /// Notes that the look has found huge pages from `start` to `end`.
    pub(super) fn note_huge(&mut self, start: usize, end: usize) {
        if self.collapsed.is_some() {
            let regions = (start..end).step_by(HUGE_2M);
            self.huge += regions.filter(|region| self.watched.holds(*region)).count();
        }
    }

    /// Notes that the look has seen all mappings. Returns true if regions that were full all
    /// through the period are to be collapsed now. Then the next period begins.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        if self.collapsed.is_some_and(|then| now.saturating_sub(then) >= JUDGED_AFTER) {
            self.judge();
        }
        self.huge = 0;
        let rested = self.rest(now).is_zero();
        let due = rested && self.began.is_none_or(|began| now.saturating_sub(began) >= self.required);
        if due {
            self.began = Some(now);
        }
        due
    }

    /// Notes that the regions from `start` to `end` were collapsed at `now`. They lie behind all
    /// others of this look.
    pub(super) fn note_collapsed(&mut self, start: usize, end: usize, now: Duration) {
        if self.collapsed.is_none_or(|then| then == now) {
            self.collapsed = Some(now);
            (start..end).step_by(HUGE_2M).for_each(|region| self.watched.push(region));
        }
    }

    fn judge(&mut self) {
        let total = self.watched.len();
        let lost = total.saturating_sub(self.huge);
        if total >= LEAST_JUDGED {
            if lost * 4 > total {
                self.required = (self.required * STEP).clamp(FIRST, LONGEST);
            } else if lost * 16 < total {
                let shorter = self.required / STEP;
                self.required = if shorter < FIRST { Duration::ZERO } else { shorter };
            }
        }
        self.watched.count = 0;
        self.collapsed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_while_no_huge_page_is_found_and_end_with_one_that_is() {
        let (mut persistence, start) = (Persistence::new(), Duration::ZERO);
        let mut stalls = 0;
        let mut try_at = |seconds: u64, took: u64, done| {
            let now = start + Duration::from_secs(seconds);
            // The kernel has stalled before each third try.
            stalls += u64::from(seconds.is_multiple_of(3));
            let goes_on = persistence.note_try(Duration::from_millis(took), done, now, || Some(stalls));
            (goes_on, persistence.rest(now).as_millis(), persistence.is_due(now))
        };
        assert_eq!(try_at(0, 1, Ok(())), (true, 0, true));
        assert_eq!(try_at(1, 1, Err(Errno::EBUSY)), (true, 0, true), "of this region alone");
        assert_eq!(try_at(2, 1, Err(Errno::ENOMEM)), (false, 30, false));
        assert_eq!(try_at(3, 30, Ok(())), (false, 60, false), "slow");
        assert_eq!(try_at(4, 30, Ok(())), (true, 0, true), "slow, and the kernel has not stalled");
        assert_eq!(try_at(5, 1, Err(Errno::ENOMEM)), (false, 30, false), "from the beginning");
        let rests: Vec<u128> = (6..30).map(|second| try_at(second, 1, Err(Errno::ENOMEM)).1).collect();
        assert_eq!((rests[0], rests.last()), (60, Some(&600_000)));
    }

    /// Makes looks 50 ms apart of a program of which a look may collapse 8 regions; `stay` of them
    /// are huge at the next look. Returns the number of looks in which something was collapsed.
    fn collapsing_looks(
        persistence: &mut Persistence,
        now: &mut Duration,
        looks: usize,
        stay: usize,
    ) -> usize {
        const REGIONS: usize = 8;
        (0..looks)
            .filter(|_| {
                *now += Duration::from_millis(50);
                persistence.note_huge(HUGE_2M, (1 + stay) * HUGE_2M);
                let due = persistence.is_due(*now);
                if due {
                    persistence.note_collapsed(HUGE_2M, (1 + REGIONS) * HUGE_2M, *now);
                }
                due
            })
            .count()
    }

    #[test]
    fn what_stays_huge_is_collapsed_at_each_look() {
        let (mut persistence, mut now) = (Persistence::new(), Duration::ZERO);
        assert_eq!(collapsing_looks(&mut persistence, &mut now, 200, 8), 200);
        assert_eq!(persistence.required, Duration::ZERO);
    }

    #[test]
    fn what_is_split_soon_is_collapsed_ever_more_rarely_until_it_stays() {
        let (mut persistence, mut now) = (Persistence::new(), Duration::ZERO);
        assert!(collapsing_looks(&mut persistence, &mut now, 40, 2) < 20);
        assert!(collapsing_looks(&mut persistence, &mut now, 2000, 2) <= 30, "every four seconds");
        assert_eq!(persistence.required, LONGEST);
        collapsing_looks(&mut persistence, &mut now, 2000, 8);
        assert_eq!(persistence.required, Duration::ZERO, "its memory stays now");
    }

    #[test]
    fn a_few_regions_and_a_few_losses_show_nothing() {
        let (mut persistence, mut now) = (Persistence::new(), Duration::ZERO);
        assert_eq!(collapsing_looks(&mut persistence, &mut now, 100, 7), 100);
        let mut few = Persistence::new();
        for _ in 0..100 {
            now += Duration::from_millis(50);
            assert!(few.is_due(now));
            few.note_collapsed(HUGE_2M, 3 * HUGE_2M, now);
        }
    }
}
