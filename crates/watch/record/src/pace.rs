//! Processor time that recording may take.

use std::time::Duration;

/// Share of the time since a beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Share, above 0 and at most 1.
    pub share: f64,
}

impl Pace {
    /// Returns the time to rest until processor time `own` is no more than the share of the time
    /// that has passed.
    pub fn rest(self, passed: Duration, own: Duration) -> Duration {
        let due = own.as_secs_f64() / self.share;
        Duration::from_secs_f64((due - passed.as_secs_f64()).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_followed_by_as_much_rest_as_the_share_asks_for() {
        let pace = Pace { share: 0.005 };
        let seconds = Duration::from_secs;
        assert_eq!(pace.rest(seconds(0), Duration::ZERO), Duration::ZERO);
        assert_eq!(pace.rest(seconds(10), seconds(1)), seconds(190), "1 s is 0.5 % of 200 s");
        assert_eq!(pace.rest(seconds(300), seconds(1)), Duration::ZERO);
    }
}
