//! One turn of work: its clock, its terms, and the pace at which each process is worked on.

use super::pace::{Batch, Pause};
use std::time::{Duration, Instant};

/// How one process is acted on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    pub(super) collapse: Batch,
    pub(super) split: Batch,
    /// Its calls were slow.
    pub(super) pause: Pause,
    /// Its control group is full.
    pub(super) group_full: Pause,
    /// When it was acted on last.
    pub(super) used: Duration,
}

/// The time of one lot of actions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When it began, since boot.
    pub(crate) now: Duration,
    pub(crate) started: Instant,
    pub(crate) most: Duration,
    /// Whether a slow call is no reason to leave the process alone: what was done to it is being undone.
    pub(crate) urgent: bool,
}

/// What a caller asks of one turn, within the guard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) clock: Clock,
    /// Most regions in one call.
    pub(crate) batch: usize,
    /// After each call the process is left alone for so many hundredths of what the call took, where that is more than the
    /// guard's own share; at most 50 ms.
    pub(crate) pause_percent: u32,
    /// Refusals for lack of memory, one after the other, after which the turn ends.
    pub(crate) shortages: u32,
}

impl Clock {
    pub(crate) fn now(&self) -> Duration {
        self.now + self.started.elapsed()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.started.elapsed() >= self.most
    }
}

impl Terms {
    /// No other bound than the guard's; the first refusal for lack of memory ends the turn.
    pub(crate) fn of(clock: Clock) -> Terms {
        Terms { clock, batch: usize::MAX, pause_percent: 0, shortages: 1 }
    }
}

impl Pace {
    /// Until when its process is left alone. `no_memory`: the pause of all promotions.
    pub(super) fn backs_off_until(&self, promotes: bool, no_memory: &Pause) -> Duration {
        match promotes {
            true => self.pause.until().max(self.group_full.until()).max(no_memory.until()),
            false => self.pause.until(),
        }
    }
}
