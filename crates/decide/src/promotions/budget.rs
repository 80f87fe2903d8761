//! Budgets of changes, in bytes per second.

use super::latency::Latency;
use megapage_units::{Bytes, HugePage};
use std::time::Duration;

/// Billionths of a byte: the inflow of a nanosecond is a whole number of them.
const UNIT: u128 = 1_000_000_000;
/// Units that each action takes from a budget.
const ACTION: u128 = HugePage::SIZE as u128 * UNIT;

/// Bounds on the cost of changes. All rates count 2 MiB for each action that was tried, whatever
/// its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Most bytes promoted in a second, over all processes: they are copied and zeroed.
    pub moved: Bytes,
    /// Most bytes promoted in a second for one process.
    pub moved_per_process: Bytes,
    /// Most bytes demoted and recovered in a second, over all processes: the kernel looks through
    /// them for zeros.
    pub scanned: Bytes,
    /// Most bytes demoted and recovered in a second for one process.
    pub scanned_per_process: Bytes,
    /// Time after which no further call is made for one lot of actions.
    pub time: Duration,
    /// Bounds on the times of calls.
    pub latency: Latency,
    /// Most promoted regions that are stored for undo.
    pub remembered: usize,
}

impl Default for Budgets {
    /// Returns bounds of at most one core's worth of copying, half of it for one process. A region
    /// on base pages takes 0.7 ms into memory that was used before (`megapage-lab promote`). If it
    /// takes longer, time and the latency guard are the bounds. The rate of recovery is the
    /// kernel's own.
    fn default() -> Budgets {
        Budgets {
            moved: Bytes::gib(2),
            moved_per_process: Bytes::gib(1),
            scanned: Bytes::gib(4),
            scanned_per_process: Bytes::gib(2),
            time: Duration::from_millis(250),
            latency: Latency::default(),
            remembered: 1 << 18,
        }
    }
}

/// Token bucket that holds the bytes of one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// In billionths of a byte.
    level: u128,
    /// Time of the last fill.
    at: Duration,
}

impl Bucket {
    /// Returns a full bucket.
    pub fn new(now: Duration) -> Bucket {
        // The first `fill` cuts the level to the size of the bucket.
        Bucket { level: u128::MAX, at: now }
    }

    /// Adds the bytes of the time until `now`, at `rate` bytes per second. Returns the number of
    /// actions that the bucket then allows. The bucket holds the bytes of one second, and at least
    /// one action. Otherwise a small rate would never allow an action.
    pub fn fill(&mut self, now: Duration, rate: Bytes) -> usize {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let rate = u128::from(rate.0);
        let most = if rate == 0 { 0 } else { (rate * UNIT).max(ACTION) };
        self.level = self.level.saturating_add(rate.saturating_mul(passed.as_nanos())).min(most);
        usize::try_from(self.level / ACTION).unwrap_or(usize::MAX)
    }

    /// Takes this many actions, which the bucket allows.
    pub fn take(&mut self, actions: usize) {
        self.level = self.level.saturating_sub(actions as u128 * ACTION);
    }

    /// Gives back actions that were taken and not used.
    pub fn give_back(&mut self, actions: usize) {
        self.level = self.level.saturating_add(actions as u128 * ACTION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now: Duration, rate: Bytes) -> usize {
        let count = bucket.fill(now, rate);
        bucket.take(count);
        assert_eq!(bucket.fill(now, rate), 0);
        count
    }

    #[test]
    fn over_time_the_rate_is_kept_however_often_it_is_asked() {
        let second = Duration::from_secs(1);
        let mut bucket = Bucket::new(second);
        let mut taken = |now| taken(&mut bucket, now, Bytes::mib(20));
        assert_eq!(taken(second), 10);
        let often: usize = (1..=1000).map(|step| taken(second + Duration::from_millis(10) * step)).sum();
        assert_eq!(often, 100);
        // After an hour there is one second's worth, not an hour's.
        assert_eq!(taken(second * 3600), 10);
        // Time that goes backwards adds nothing.
        assert_eq!(taken(second * 3599), 0);
        assert_eq!(taken(second * 3600), 0);
    }

    #[test]
    fn a_rate_below_one_action_a_second_is_kept_too_and_none_is_none() {
        let second = Duration::from_secs(1);
        let mut slow = Bucket::new(second);
        let done: usize = (1..=40).map(|step| taken(&mut slow, second * (step + 1), Bytes::kib(512))).sum();
        // One at the start.
        assert_eq!(done, 1 + 9);
        assert_eq!(taken(&mut Bucket::new(second), second * 100, Bytes::ZERO), 0);
    }

    #[test]
    fn what_was_not_used_can_be_used_later() {
        let now = Duration::from_secs(1);
        let (mut bucket, rate) = (Bucket::new(now), Bytes::mib(4));
        assert_eq!(taken(&mut bucket, now, rate), 2);
        bucket.give_back(1);
        assert_eq!(taken(&mut bucket, now, rate), 1);
    }
}
