//! Processor time that recording may take.

use std::time::Duration;

/// Returns the time to rest until processor time `own` is no more than `share` (above 0, at most 1)
/// of the time that has passed.
pub(crate) fn rest(share: f64, passed: Duration, own: Duration) -> Duration {
    let due = own.as_secs_f64() / share;
    Duration::from_secs_f64((due - passed.as_secs_f64()).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_followed_by_as_much_rest_as_the_share_asks_for() {
        let seconds = Duration::from_secs;
        assert_eq!(rest(0.005, seconds(0), Duration::ZERO), Duration::ZERO);
        assert_eq!(rest(0.005, seconds(10), seconds(1)), seconds(190), "1 s is 0.5 % of 200 s");
        assert_eq!(rest(0.005, seconds(300), seconds(1)), Duration::ZERO);
    }
}
