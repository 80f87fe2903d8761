//! Counters of an executor since its start.

use super::Done;
use super::work::Work;
use crate::engine::Refusal;
use megapage_decide::{Action, Call, Obtained, Pauses};
use megapage_units::Bytes;
use serde::Serialize;
use std::time::Duration;

/// Results that an action can have, in the order of [`Kind::obtained`], with the name in metrics.
pub const OBTAINED: [(Obtained, &str); 7] = [
    (Obtained::Done, "done"),
    (Obtained::Busy, "busy"),
    (Obtained::Impossible, "impossible"),
    (Obtained::NoMemory, "no-memory"),
    (Obtained::Denied, "denied"),
    (Obtained::Gone, "gone"),
    (Obtained::Unsupported, "unsupported"),
];

/// Errors by which the kernel refuses a region, in the order of [`Kind::refused`]. EINTR counts as
/// EAGAIN, EACCES as EPERM, EOPNOTSUPP as ENOSYS.
pub const ERRORS: [&str; 8] = ["EAGAIN", "EBUSY", "EINVAL", "ENOMEM", "EPERM", "ESRCH", "ENOSYS", "other"];

/// Upper bounds of the classes of [`Histogram`], in microseconds, each included. One more class is
/// for longer times.
pub const BOUNDS: [u64; 12] =
    [100, 250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000, 125_000, 250_000];

/// Times, counted by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Number of times in each class of [`BOUNDS`]; not cumulated.
    pub counts: [u64; BOUNDS.len() + 1],
    /// Their sum, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let class = BOUNDS.partition_point(|&bound| Duration::from_micros(bound) < time);
        self.counts[class] += 1;
        let nanoseconds = time.as_nanos() as u64;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
        self.longest_ns = self.longest_ns.max(nanoseconds);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counters of one kind of action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Actions that were handed over: each is answered, or deferred.
    pub asked: u64,
    /// Actions by their result, in the order of [`OBTAINED`].
    pub obtained: [u64; OBTAINED.len()],
    /// Regions that the kernel refused, by its error, in the order of [`ERRORS`].
    pub refused: [u64; ERRORS.len()],
    /// Regions for which no call was made because a forked process shares them.
    pub shared: u64,
    /// Tries of a region that had failed when it was tried last.
    pub retried: u64,
    /// Actions that were not answered, by the reason for deferring them.
    pub left: Left,
    /// Bytes promoted.
    pub promoted_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Time of each action for which a call was made.
    pub times: Histogram,
}

impl Kind {
    /// Returns the number of actions with the result `obtained`.
    pub fn count(&self, obtained: Obtained) -> u64 {
        OBTAINED.iter().position(|(each, _)| *each == obtained).map_or(0, |index| self.obtained[index])
    }

    /// Returns the number of actions with a result that is not tried again soon, or ever:
    /// impossible, denied, gone, unsupported.
    pub fn dropped(&self) -> u64 {
        let kinds = [Obtained::Impossible, Obtained::Denied, Obtained::Gone, Obtained::Unsupported];
        kinds.into_iter().map(|obtained| self.count(obtained)).sum()
    }

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Calls whose work took longer than [`megapage_decide::Latency::slow`]. Each backed off its
    /// process, for longer each time.
    pub slow_calls: u64,
    /// Calls that took ten times as long because they had to wait, or whose regions together took
    /// too long. Each backed off its process for the first length.
    pub late_calls: u64,
    /// Pauses of all promotions for lack of memory.
    pub memory_pauses: u64,
    /// Pauses of a process's promotions, because its control group had no room.
    pub group_pauses: u64,
    /// Promotions that are not stored because there were too many: they cannot be undone.
    pub forgotten: u64,
}

impl Counters {
    pub(super) fn call(&mut self, call: Call) {
        self.calls.add(call.took);
        self.held.add(call.held);
    }

    /// Takes over the numbers of pauses.
    pub(super) fn paused(&mut self, pauses: Pauses) {
        self.slow_calls = pauses.slow;
        self.late_calls = pauses.late;
        self.memory_pauses = pauses.memory;
        self.group_pauses = pauses.group;
    }

    /// Returns the counters of one kind of work.
    pub(super) fn of(&mut self, work: Work) -> &mut Kind {
        match work {
            Work::Promote => &mut self.promote,
            Work::Demote => &mut self.demote,
            Work::Recover => &mut self.recover,
        }
    }

    /// Returns the counters of an action's kind; `None` for actions of the observer.
    fn of_action(&mut self, action: &Action) -> Option<&mut Kind> {
        match action {
            Action::Promote { .. } => Some(&mut self.promote),
            Action::Demote { .. } => Some(&mut self.demote),
            Action::Recover { .. } => Some(&mut self.recover),
            Action::ZeroScan { .. } => None,
        }
    }

    pub(super) fn asked(&mut self, action: &Action) {
        if let Some(kind) = self.of_action(action) {
            kind.asked += 1;
        }
    }

    pub(super) fn done(&mut self, done: &Done) {
        let Some(kind) = self.of_action(&done.outcome.action) else { return };
        if let Some(index) = OBTAINED.iter().position(|(obtained, _)| *obtained == done.outcome.obtained) {
            kind.obtained[index] += 1;
        }
        kind.promoted_bytes += done.promoted.0;
        kind.freed_bytes += done.freed.0;
        if done.took > Duration::ZERO {
            kind.times.add(done.took);
        }
    }

    /// Returns the kinds by their names in metrics.
    pub fn kinds(&self) -> [(&'static str, &Kind); 3] {
        [("promote", &self.promote), ("demote", &self.demote), ("recover", &self.recover)]
    }

    /// Returns the number of back-offs and pauses for each cause, by the name in metrics.
    pub fn pauses(&self) -> [(&'static str, u64); 4] {
        [
            ("slow", self.slow_calls),
            ("late", self.late_calls),
            ("memory", self.memory_pauses),
            ("group", self.group_pauses),
        ]
    }

    /// Returns the deferred actions of all kinds.
    pub fn left(&self) -> Left {
        let sum = |of: fn(&Left) -> u64| self.kinds().iter().map(|(_, kind)| of(&kind.left)).sum();
        Left { budget: sum(|left| left.budget), time: sum(|left| left.time), pause: sum(|left| left.pause) }
    }

    /// Returns the bytes promoted and the bytes freed.
    pub fn bytes(&self) -> (Bytes, Bytes) {
        let sum = |of: fn(&Kind) -> u64| Bytes(self.kinds().iter().map(|(_, kind)| of(kind)).sum());
        (sum(|kind| kind.promoted_bytes), sum(|kind| kind.freed_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::{Outcome, Reason};
    use megapage_snapshot::ProcessId;
    use megapage_units::{HugePage, Pid};

    const PROCESS: ProcessId = ProcessId { pid: Pid(1), start_ticks: 1, start_stack: 1 };

    #[test]
    fn a_time_falls_into_one_class_and_a_bound_into_its_own() {
        let mut histogram = Histogram::default();
        for microseconds in [0, 100, 101, 15_000, 15_001, 250_000, 250_001] {
            histogram.add(Duration::from_micros(microseconds));
        }
        assert_eq!(histogram.counts, [2, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!((histogram.count(), histogram.longest_ns), (7, 250_001_000));
        assert_eq!(histogram.sum_ns, (100 + 101 + 15_000 + 15_001 + 250_000 + 250_001) * 1000);
    }

    #[test]
    fn each_outcome_is_counted_once_by_kind() {
        let mut counters = Counters::default();
        for (obtained, _) in OBTAINED {
            counters.done(&Done {
                outcome: Outcome {
                    action: Action::Recover {
                        process: PROCESS,
                        region: HugePage::nth(0),
                        reason: Reason::Bloat,
                    },
                    obtained,
                },
                promoted: Bytes(1),
                freed: Bytes(2),
                took: Duration::from_micros(1),
                why: None,
            });
        }
        assert_eq!(counters.recover.obtained, [1; 7]);
        assert_eq!(counters.recover.count(Obtained::Gone), 1);
        assert_eq!(counters.recover.times.count(), 7);
        assert_eq!((counters.bytes(), counters.recover.dropped()), ((Bytes(7), Bytes(14)), 4));
        assert_eq!((counters.promote, counters.demote), Default::default());
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

    #[test]
    fn what_is_left_is_the_sum_over_the_kinds() {
        let mut counters = Counters::default();
        counters.of(Work::Promote).left = Left { budget: 1, time: 2, pause: 3 };
        counters.of(Work::Recover).left = Left { budget: 10, time: 20, pause: 30 };
        assert_eq!(counters.left(), Left { budget: 11, time: 22, pause: 33 });
        let asked = Action::Demote { process: PROCESS, region: HugePage::nth(0), reason: Reason::OverCap };
        counters.asked(&asked);
        assert_eq!((counters.demote.asked, counters.promote.asked), (1, 0));
    }
}
