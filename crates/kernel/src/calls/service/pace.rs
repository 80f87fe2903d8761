//! Limit on the rate at which clients are accepted.

use std::time::{Duration, Instant};

/// Number of clients that may still be accepted in this second.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    most: u32,
    left: u32,
    since: Instant,
    /// Earliest time of the next client.
    not_before: Option<Instant>,
}

impl Pace {
    /// Allows at most `most` clients in a second. The first second begins at `since`.
    pub fn new(most: u32, since: Instant) -> Pace {
        Pace { most, left: most, since, not_before: None }
    }

    /// Returns the earliest time at which the next client may be accepted.
    pub fn next(&mut self, now: Instant) -> Instant {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.left, self.since) = (self.most, now);
        }
        let from = if self.left == 0 { self.since + Duration::from_secs(1) } else { now };
        self.not_before.map_or(from, |not_before| from.max(not_before))
    }

    /// Counts one accepted client.
    pub fn note(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Accepts no client before `instant`, for example after accepting has failed for lack of
    /// descriptors.
    pub fn pause_until(&mut self, instant: Instant) {
        self.not_before = Some(instant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_second_and_a_pause() {
        let now = Instant::now();
        let mut pace = Pace::new(2, now);
        for _ in 0..2 {
            assert!(pace.next(now) <= now);
            pace.note();
        }
        let next = pace.next(now);
        assert_eq!(next, now + Duration::from_secs(1));
        assert_eq!(pace.next(next), next, "a new second");
        pace.pause_until(next + Duration::from_secs(5));
        assert_eq!(pace.next(next), next + Duration::from_secs(5));
    }
}
