//! How long regions have to be full before they are collapsed, by whether those collapsed earlier have stayed huge.
//!
//! A collapse copies 2 MiB and pays by accesses later. A garbage collector that unmaps its pages, or an allocator that returns
//! parts of them, splits a huge page soon after; the region fills up again, and looks as it did before.

use super::Ranges;
use megapage_units::HUGE_2M;
use std::time::{Duration, Instant};

/// Collapsed regions are judged after this time: one look in four for memory that grows.
const JUDGED_AFTER: Duration = Duration::from_millis(200);
/// Fewer collapsed regions show nothing.
const LEAST_JUDGED: usize = 4;
/// Where a quarter of them are not huge any more, regions have to be full for this long,
const FIRST: Duration = Duration::from_millis(250);
/// and for four times as long each further time, at most this.
const LONGEST: Duration = Duration::from_secs(4);
const STEP: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Persistence {
    /// Regions that one look has collapsed, and when.
    watched: Ranges,
    collapsed: Option<Instant>,
    /// Watched regions that this look has found huge.
    huge: usize,
    /// How long regions have to be full.
    required: Duration,
    /// When the current period of that length began.
    began: Option<Instant>,
}

impl Persistence {
    pub(super) const fn new() -> Persistence {
        Persistence {
            watched: Ranges::new(),
            collapsed: None,
            huge: 0,
            required: Duration::ZERO,
            began: None,
        }
    }

    /// A look begins.
    pub(super) fn begin(&mut self) {
        self.huge = 0;
    }

    /// The look has found huge pages from `start` to `end`.
    pub(super) fn note_huge(&mut self, start: usize, end: usize) {
        if self.collapsed.is_some() {
            let regions = (start..end).step_by(HUGE_2M);
            self.huge += regions.filter(|region| self.watched.holds(*region)).count();
        }
    }

    /// The look has seen all mappings. Whether regions that were full all through the period are to be collapsed now; the next
    /// period begins then.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.collapsed.is_some_and(|then| now.saturating_duration_since(then) >= JUDGED_AFTER) {
            self.judge();
        }
        let due = self.began.is_none_or(|began| now.saturating_duration_since(began) >= self.required);
        if due {
            self.began = Some(now);
        }
        due
    }

    /// The regions from `start` to `end`, behind all others of this look, were collapsed at `now`.
    pub(super) fn note_collapsed(&mut self, start: usize, end: usize, now: Instant) {
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

    /// Looks 50 ms apart of a program of which a look may collapse 8 regions, and of which `stay` are huge at the next look.
    /// The number of looks in which something was collapsed.
    fn collapsing_looks(
        persistence: &mut Persistence,
        now: &mut Instant,
        looks: usize,
        stay: usize,
    ) -> usize {
        const REGIONS: usize = 8;
        (0..looks)
            .filter(|_| {
                *now += Duration::from_millis(50);
                persistence.begin();
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
        let (mut persistence, mut now) = (Persistence::new(), Instant::now());
        assert_eq!(collapsing_looks(&mut persistence, &mut now, 200, 8), 200);
        assert_eq!(persistence.required, Duration::ZERO);
    }

    #[test]
    fn what_is_split_soon_is_collapsed_ever_more_rarely_until_it_stays() {
        let (mut persistence, mut now) = (Persistence::new(), Instant::now());
        assert!(collapsing_looks(&mut persistence, &mut now, 40, 2) < 20);
        assert!(collapsing_looks(&mut persistence, &mut now, 2000, 2) <= 30, "every four seconds");
        assert_eq!(persistence.required, LONGEST);
        collapsing_looks(&mut persistence, &mut now, 2000, 8);
        assert_eq!(persistence.required, Duration::ZERO, "its memory stays now");
    }

    #[test]
    fn a_few_regions_and_a_few_losses_show_nothing() {
        let (mut persistence, mut now) = (Persistence::new(), Instant::now());
        assert_eq!(collapsing_looks(&mut persistence, &mut now, 100, 7), 100);
        let mut few = Persistence::new();
        for _ in 0..100 {
            now += Duration::from_millis(50);
            few.begin();
            assert!(few.is_due(now));
            few.note_collapsed(HUGE_2M, 3 * HUGE_2M, now);
        }
    }
}
