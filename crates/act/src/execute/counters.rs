//! Counters of an executor since its start.

use super::work::Work;
use crate::engine::Refusal;
use megapage_decide::{Call, Pauses};
use std::time::Duration;

/// Errors by which the kernel refuses a region, in the order of [`Kind::refused`]. EINTR counts as
/// EAGAIN, EACCES as EPERM, EOPNOTSUPP as ENOSYS.
pub const ERRORS: [&str; 8] = ["EAGAIN", "EBUSY", "EINVAL", "ENOMEM", "EPERM", "ESRCH", "ENOSYS", "other"];

/// Upper bounds of the classes of [`Histogram`], in microseconds, each included. One more class is
/// for longer times.
pub const BOUNDS: [u64; 12] =
    [100, 250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000, 125_000, 250_000];

/// Times, counted by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of times in each class of [`BOUNDS`]; not cumulated.
    pub counts: [u64; BOUNDS.len() + 1],
    /// Their sum, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let class = BOUNDS.partition_point(|&bound| Duration::from_micros(bound) < time);
        self.counts[class] += 1;
        self.sum_ns = self.sum_ns.saturating_add(time.as_nanos() as u64);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counters of one kind of action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Regions that the kernel refused, by its error, in the order of [`ERRORS`].
    pub refused: [u64; ERRORS.len()],
    /// Regions for which no call was made because a forked process shares them.
    pub shared: u64,
    /// Tries of a region that had failed when it was tried last.
    pub retried: u64,
    /// Actions that were not answered, by the reason for deferring them.
    pub left: Left,
}

impl Kind {
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        let index = match refusal {
            Refusal::Busy => 0,
            Refusal::GroupFull => 1,
            Refusal::Invalid => 2,
            Refusal::NoMemory => 3,
            Refusal::Denied => 4,
            Refusal::Gone => 5,
            Refusal::Unsupported => 6,
            // `Locked` is no error of the kernel: deadlines are counted where they are missed.
            Refusal::Locked | Refusal::Other(_) => 7,
            Refusal::Shared => {
                self.shared += 1;
                return;
            }
            // Not errors of the kernel. The pause for lack of memory is counted.
            Refusal::BelowFloor | Refusal::Huge | Refusal::Empty => return,
        };
        self.refused[index] += 1;
    }
}

/// Actions that were not answered, by the reason for deferring them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The bytes of this second were used up.
    pub budget: u64,
    /// The time for this lot of actions was used up.
    pub time: u64,
    /// The process was backed off, promotion paused for lack of memory, or the kernel cannot do
    /// this kind of work.
    pub pause: u64,
}

/// Counters since the start. They never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Promotions.
    pub promote: Kind,
    /// Demotions, including those of [`super::Executor::undo_within`].
    pub demote: Kind,
    /// Recoveries.
    pub recover: Kind,
    /// Times of the calls to the kernel, for any number of regions.
    pub calls: Histogram,
    /// Longest time in each call for which the process's mmap lock was held without a break: the
    /// process may have waited that long.
    pub held: Histogram,
    /// Pauses, by cause.
    pub pauses: Pauses,
    /// Promotions that are not stored because there were too many: they cannot be undone.
    pub forgotten: u64,
}

impl Counters {
    pub(super) fn call(&mut self, call: Call) {
        self.calls.add(call.took);
        self.held.add(call.held);
    }

    /// Returns the counters of one kind of work.
    pub(super) fn of(&mut self, work: Work) -> &mut Kind {
        match work {
            Work::Promote => &mut self.promote,
            Work::Demote => &mut self.demote,
            Work::Recover => &mut self.recover,
        }
    }

    /// Returns the kinds by their names in metrics.
    pub fn kinds(&self) -> [(&'static str, &Kind); 3] {
        [("promote", &self.promote), ("demote", &self.demote), ("recover", &self.recover)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_one_class_and_a_bound_into_its_own() {
        let mut histogram = Histogram::default();
        for microseconds in [0, 100, 101, 15_000, 15_001, 250_000, 250_001] {
            histogram.add(Duration::from_micros(microseconds));
        }
        assert_eq!(histogram.counts, [2, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(histogram.count(), 7);
        assert_eq!(histogram.sum_ns, (100 + 101 + 15_000 + 15_001 + 250_000 + 250_001) * 1000);
    }

    #[test]
    fn each_refusal_is_counted_by_its_error() {
        let mut kind = Kind::default();
        for (number, name) in [11, 16, 22, 12, 1, 3, 38, 5].into_iter().zip(ERRORS) {
            kind.refuse(Refusal::of(&std::io::Error::from_raw_os_error(number)));
            let at = ERRORS.iter().position(|error| *error == name).unwrap();
            assert_eq!(kind.refused[at], 1, "{name}");
        }
        kind.refuse(Refusal::Shared);
        assert_eq!((kind.refused, kind.shared), ([1; ERRORS.len()], 1));
    }
}
