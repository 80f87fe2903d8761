//! Children that share a process's memory since a fork(2).
//!
//! A child that has ended shares nothing any more, so that what the writes beside it have split can be made huge again at
//! once. A process that forks again and again would have it split again and again: it is left alone until it has
//! been quiet.

use std::time::Duration;

/// What is known of the children of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forks {
    /// When one was last seen.
    last: Option<Duration>,
    /// Whether that was in the last snapshot.
    now: bool,
    /// How long there was none before those that were last seen; `None` before the second time.
    calm: Option<Duration>,
}

impl Forks {
    /// Some share its memory.
    pub fn shared(&mut self, now: Duration) {
        if let (false, Some(last)) = (self.now, self.last) {
            self.calm = Some(now.saturating_sub(last));
        }
        (self.last, self.now) = (Some(now), true);
    }

    /// None does.
    pub fn alone(&mut self) {
        self.now = false;
    }

    /// Whether the process may be changed: no child shares its memory, and none is to be expected within `quiet`, by how
    /// long there was none before the last ones, or none came for as long. With a `quiet` of nothing children are no
    /// reason to leave a process alone.
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
        // A child of many snapshots is one; the time before it is what counts.
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
