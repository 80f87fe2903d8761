//! Clock and terms of one turn of work.

use std::time::{Duration, Instant};

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
