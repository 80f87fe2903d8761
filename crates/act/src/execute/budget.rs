//! Budgets in bytes per second.

use super::ExecutorOptions;
use megapage_units::Bytes;
use std::time::Duration;

/// Billionths of a byte: the inflow of a nanosecond is a whole number of them.
const UNIT: u128 = 1_000_000_000;

/// Token bucket that holds the bytes of one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Bytes per second.
    rate: u64,
    /// In billionths of a byte.
    level: u128,
    /// Time at which it was last filled, since boot.
    at: Duration,
}

impl Bucket {
    /// Returns a full bucket.
    pub fn new(rate: Bytes, now: Duration) -> Bucket {
        // The first `fill` cuts the level to the size of the bucket.
        Bucket { rate: rate.0, level: u128::MAX, at: now }
    }

    /// Adds the bytes that have come in until `now`. The bucket holds a second's worth, and at
    /// least one action: otherwise a small rate would never be enough for one.
    pub fn fill(&mut self, now: Duration, action: Bytes) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let most = if self.rate == 0 { 0 } else { u128::from(self.rate.max(action.0)) * UNIT };
        let more = u128::from(self.rate).saturating_mul(passed.as_nanos());
        self.level = self.level.saturating_add(more).min(most);
    }

    /// Returns true if `bytes` are there.
    pub fn has(&self, bytes: Bytes) -> bool {
        self.level >= u128::from(bytes.0) * UNIT
    }

    /// Takes `bytes`, or as many as there are.
    pub fn take(&mut self, bytes: Bytes) {
        self.level = self.level.saturating_sub(u128::from(bytes.0) * UNIT);
    }

    /// Gives back bytes that were taken and not used.
    pub fn give_back(&mut self, bytes: Bytes) {
        self.level = self.level.saturating_add(u128::from(bytes.0) * UNIT);
    }
}

/// Budget of a second's work on one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub moved: Bucket,
    pub scanned: Bucket,
    /// Time of the last use.
    pub used: Duration,
}

impl Budget {
    pub fn new(options: &ExecutorOptions, now: Duration) -> Budget {
        Budget {
            moved: Bucket::new(options.moved_per_process, now),
            scanned: Bucket::new(options.scanned_per_process, now),
            used: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTION: Bytes = Bytes::mib(2);

    fn taken(bucket: &mut Bucket, now: Duration) -> u64 {
        bucket.fill(now, ACTION);
        let mut count = 0;
        while bucket.has(ACTION) {
            bucket.take(ACTION);
            count += 1;
        }
        count
    }

    #[test]
    fn over_time_the_rate_is_kept_however_often_it_is_asked() {
        let second = Duration::from_secs(1);
        let mut bucket = Bucket::new(Bytes::mib(20), second);
        assert_eq!(taken(&mut bucket, second), 10);
        let often: u64 =
            (1..=1000).map(|step| taken(&mut bucket, second + Duration::from_millis(10) * step)).sum();
        assert_eq!(often, 100);
        // After an hour there is one second's worth, not an hour's.
        assert_eq!(taken(&mut bucket, second * 3600), 10);
        // Time that goes backwards adds nothing.
        assert_eq!(taken(&mut bucket, second * 3599), 0);
        assert_eq!(taken(&mut bucket, second * 3600), 0);
    }

    #[test]
    fn a_rate_below_one_action_a_second_is_kept_too_and_none_is_none() {
        let second = Duration::from_secs(1);
        let mut slow = Bucket::new(Bytes::kib(512), second);
        let done: u64 = (1..=40).map(|step| taken(&mut slow, second * (step + 1))).sum();
        // One at the start.
        assert_eq!(done, 1 + 9);
        let mut none = Bucket::new(Bytes::ZERO, second);
        assert_eq!(taken(&mut none, second * 100), 0);
    }

    #[test]
    fn what_was_not_used_can_be_used_later() {
        let now = Duration::from_secs(1);
        let mut bucket = Bucket::new(Bytes::mib(4), now);
        assert_eq!(taken(&mut bucket, now), 2);
        bucket.give_back(ACTION);
        assert_eq!(taken(&mut bucket, now), 1);
    }
}
