//! What an executor has done so far.

use super::Done;
use crate::engine::Call;
use megapage_decide::{Action, Obtained};
use megapage_units::Bytes;
use serde::Serialize;
use std::time::Duration;

/// Everything that an action can come to, in the order of [`Kind::obtained`], with the name in metrics.
pub const OBTAINED: [(Obtained, &str); 7] = [
    (Obtained::Done, "done"),
    (Obtained::Busy, "busy"),
    (Obtained::Impossible, "impossible"),
    (Obtained::NoMemory, "no-memory"),
    (Obtained::Denied, "denied"),
    (Obtained::Gone, "gone"),
    (Obtained::Unsupported, "unsupported"),
];

/// Upper bounds of the classes of [`Histogram`], in microseconds, each included. One more class is for what took
/// longer.
pub const BOUNDS: [u64; 12] =
    [100, 250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000, 125_000, 250_000];

/// Times, counted by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// How many fell into each class of [`BOUNDS`]; not cumulated.
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

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// One kind of action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// How many came to what, in the order of [`OBTAINED`].
    pub obtained: [u64; OBTAINED.len()],
    /// Bytes promoted.
    pub promoted_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Time of each action for which a call was made.
    pub times: Histogram,
}

impl Kind {
    /// How many came to `obtained`.
    pub fn count(&self, obtained: Obtained) -> u64 {
        OBTAINED.iter().position(|(each, _)| *each == obtained).map_or(0, |index| self.obtained[index])
    }
}

/// Actions that were not answered, by what they were left for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The bytes of this second were used up.
    pub budget: u64,
    /// The time for this lot of actions was used up.
    pub time: u64,
    /// The process, or promotion for want of memory, is left alone for a while.
    pub pause: u64,
}

/// Everything since the start. Figures never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Promotions.
    pub promote: Kind,
    /// Demotions, those of [`super::Executor::undo`] included.
    pub demote: Kind,
    /// Recoveries.
    pub recover: Kind,
    /// Memory zeroed ahead: never obtained on a stock kernel.
    pub pre_zero: Kind,
    /// What was left for later.
    pub left: Left,
    /// Each call to the kernel, whatever number of regions it was for.
    pub calls: Histogram,
    /// How long the process's mmap lock was held at a stretch in each call: for so long it may have waited.
    pub held: Histogram,
    /// Calls whose work took longer than [`super::ExecutorOptions::slow`]; each paused its process, for longer each time.
    pub slow_calls: u64,
    /// Calls that took ten times as long because they had to wait; each paused its process for the first time of pauses.
    pub late_calls: u64,
    /// Pauses of all promotions for want of memory.
    pub memory_pauses: u64,
    /// Promotions that are not remembered, because there were too many: they cannot be undone.
    pub forgotten: u64,
}

impl Counters {
    pub(super) fn call(&mut self, call: Call) {
        self.calls.add(call.took);
        self.held.add(call.held);
    }

    pub(super) fn done(&mut self, done: &Done) {
        let kind = match done.outcome.action {
            Action::Promote { .. } => &mut self.promote,
            Action::Demote { .. } => &mut self.demote,
            Action::Recover { .. } => &mut self.recover,
            Action::PreZero { .. } => &mut self.pre_zero,
            Action::Sample { .. } | Action::ZeroScan { .. } => return,
        };
        if let Some(index) = OBTAINED.iter().position(|(obtained, _)| *obtained == done.outcome.obtained) {
            kind.obtained[index] += 1;
        }
        kind.promoted_bytes += done.promoted.0;
        kind.freed_bytes += done.freed.0;
        if done.took > Duration::ZERO {
            kind.times.add(done.took);
        }
    }

    /// The kinds by their names in metrics.
    pub fn kinds(&self) -> [(&'static str, &Kind); 4] {
        [
            ("promote", &self.promote),
            ("demote", &self.demote),
            ("recover", &self.recover),
            ("pre-zero", &self.pre_zero),
        ]
    }

    /// Bytes promoted and bytes freed.
    pub fn bytes(&self) -> (Bytes, Bytes) {
        let sum = |of: fn(&Kind) -> u64| Bytes(self.kinds().iter().map(|(_, kind)| of(kind)).sum());
        (sum(|kind| kind.promoted_bytes), sum(|kind| kind.freed_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::{Outcome, Reason};

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
                    action: Action::PreZero { blocks: 1, reason: Reason::FaultLatency },
                    obtained,
                },
                promoted: Bytes(1),
                freed: Bytes(2),
                took: Duration::from_micros(1),
                why: None,
            });
        }
        assert_eq!(counters.pre_zero.obtained, [1; 7]);
        assert_eq!(counters.pre_zero.count(Obtained::Gone), 1);
        assert_eq!(counters.pre_zero.times.count(), 7);
        assert_eq!(counters.bytes(), (Bytes(7), Bytes(14)));
        assert_eq!((counters.promote, counters.demote, counters.recover), Default::default());
    }
}
