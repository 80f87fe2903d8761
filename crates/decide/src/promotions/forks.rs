//! Children that share a process's memory since a fork(2).
//!
//! A child that has ended shares nothing any more. Huge pages that writes beside it have split can
//! be promoted again at once. A process that forks often would have them split again each time: it
//! is backed off from before it has been quiet.

use std::time::Duration;

/// Knowledge about the children of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forks {
    /// Time at which a child was last seen.
    last: Option<Duration>,
    /// True if a child was in the last snapshot.
    now: bool,
    /// Time without children before the last ones; `None` before the second time.
    calm: Option<Duration>,
}

impl Forks {
    /// Notes that children share its memory.
    pub fn shared(&mut self, now: Duration) {
        if let (false, Some(last)) = (self.now, self.last) {
            self.calm = Some(now.saturating_sub(last));
        }
        (self.last, self.now) = (Some(now), true);
    }

    /// Notes that no child shares its memory.
    pub fn alone(&mut self) {
        self.now = false;
    }

    /// Returns true if private memory of the process may be changed. No child shares its memory
    /// now, and none is expected within `quiet`. Either the time without children before the last
    /// ones was at least `quiet`, or no child was seen for `quiet` since. With a `quiet` of 0 the
    /// result is always true.
    pub fn are_over(&self, now: Duration, quiet: Duration) -> bool {
        let Some(last) = self.last.filter(|_| !quiet.is_zero()) else { return true };
        !self.now && (self.calm.is_none_or(|calm| calm >= quiet) || now.saturating_sub(last) >= quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_child_that_has_ended_is_over_at_once() {
        let mut forks = Forks::default();
        assert!(forks.are_over(at(1), QUIET));
        forks.shared(at(1));
        assert!(!forks.are_over(at(1), QUIET));
        assert!(!forks.are_over(at(100), QUIET), "however long it lives");
        forks.shared(at(100));
        forks.alone();
        assert!(forks.are_over(at(101), QUIET));
    }

    #[test]
    fn who_forks_often_is_left_alone_until_quiet() {
        let mut forks = Forks::default();
        for second in (100..120).step_by(2) {
            forks.shared(at(second));
            forks.alone();
            assert_eq!(forks.are_over(at(second + 1), QUIET), second == 100, "{second}");
        }
        assert!(!forks.are_over(at(127), QUIET));
        assert!(forks.are_over(at(128), QUIET));
        // A child of many snapshots counts as one. Only the time before it counts.
        (140..150).for_each(|second| forks.shared(at(second)));
        forks.alone();
        assert!(forks.are_over(at(150), QUIET), "22 s of quiet before");
    }

    #[test]
    fn without_a_wait_children_are_no_reason() {
        let mut forks = Forks::default();
        forks.shared(at(1));
        assert!(forks.are_over(at(1), Duration::ZERO));
    }
}
