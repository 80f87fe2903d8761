//! How many clients are let in.

use std::time::{Duration, Instant};

/// How many may still be accepted in this second.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    most: u32,
    left: u32,
    since: Instant,
    /// No client before this.
    not_before: Option<Instant>,
}

impl Pace {
    /// At most `most` in a second, of which the first begins at `since`.
    pub fn new(most: u32, since: Instant) -> Pace {
        Pace { most, left: most, since, not_before: None }
    }

    /// When the next may be accepted, at the earliest.
    pub fn next(&mut self, now: Instant) -> Instant {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.left, self.since) = (self.most, now);
        }
        let from = if self.left == 0 { self.since + Duration::from_secs(1) } else { now };
        self.not_before.map_or(from, |not_before| from.max(not_before))
    }

    /// Notes that one has come.
    pub fn note(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// No client is let in before `instant`: accepting has failed, for lack of descriptors, say.
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
