//! One turn of work: its clock, its terms, and the pace at which each process is worked on.

use super::pace::{Batch, Pause};
use std::time::{Duration, Instant};

/// Pace at which one process is acted on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    pub(super) collapse: Batch,
    pub(super) split: Batch,
    /// Back-off after slow calls.
    pub(super) pause: Pause,
    /// Pause of promotions because its control group is full.
    pub(super) group_full: Pause,
    /// Time of the last action on it.
    pub(super) used: Duration,
}

/// Clock of one lot of actions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Its start, since boot.
    pub(crate) now: Duration,
    pub(crate) started: Instant,
    pub(crate) most: Duration,
    /// True if a back-off does not stop the turn: an earlier action on the process is being undone.
    pub(crate) urgent: bool,
}

/// Bounds that a caller sets for one turn, within the guard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) clock: Clock,
    /// Most regions in one call.
    pub(crate) batch: usize,
    /// Pause after each call, in hundredths of the call's time; at most 50 ms. It applies if it is
    /// longer than the guard's own pause.
    pub(crate) pause_percent: u32,
    /// Consecutive refusals for lack of memory after which the turn ends.
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
    /// Returns terms with no other bound than the guard's. The first refusal for lack of memory
    /// ends the turn.
    pub(crate) fn of(clock: Clock) -> Terms {
        Terms { clock, batch: usize::MAX, pause_percent: 0, shortages: 1 }
    }
}

impl Pace {
    /// Returns the end of the process's back-off. `no_memory` is the pause of all promotions.
    pub(super) fn backs_off_until(&self, promotes: bool, no_memory: &Pause) -> Duration {
        match promotes {
            true => self.pause.until().max(self.group_full.until()).max(no_memory.until()),
            false => self.pause.until(),
        }
    }
}
