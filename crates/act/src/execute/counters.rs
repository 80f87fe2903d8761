//! Counters of an executor since its start.

use super::histogram::Histogram;
use super::work::Work;
use crate::engine::Refusal;
use megapage_decide::{Call, Pauses};

/// Errors by which the kernel refuses a region, in the order of [`Kind::refused`]. EINTR counts as
/// EAGAIN, EACCES as EPERM, EOPNOTSUPP as ENOSYS.
pub const ERRORS: [&str; 8] = ["EAGAIN", "EBUSY", "EINVAL", "ENOMEM", "EPERM", "ESRCH", "ENOSYS", "other"];

/// Upper bounds of the classes of times of calls, in seconds, each included.
const CALL_SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25];

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
            Refusal::Shared => return self.shared += 1,
            // Not errors of the kernel. The pause for lack of memory is counted.
            Refusal::BelowFloor | Refusal::Huge | Refusal::Empty | Refusal::Unread => return,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// Promotions.
    pub promote: Kind,
    /// Demotions, including those of [`super::Executor::undo_within`].
    pub demote: Kind,
    /// Recoveries.
    pub recover: Kind,
    /// Seconds of the calls to the kernel, for any number of regions.
    pub calls: Histogram,
    /// Longest seconds in each call for which the process's mmap lock was held without a break: the
    /// process may have waited that long.
    pub held: Histogram,
    /// Pauses, by cause.
    pub pauses: Pauses,
    /// Promotions that are not stored because there were too many: they cannot be undone.
    pub forgotten: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        let [promote, demote, recover] = [Kind::default(); 3];
        let [calls, held] = [(); 2].map(|()| Histogram::new(&CALL_SECONDS));
        Counters { promote, demote, recover, calls, held, pauses: Pauses::default(), forgotten: 0 }
    }
}

impl Counters {
    pub(super) fn call(&mut self, call: Call) {
        self.calls.observe(call.took.as_secs_f64());
        self.held.observe(call.held.as_secs_f64());
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
