//! Bounds on the cost of actions.

use crate::engine::Latency;
use megapage_units::Bytes;
use std::time::Duration;

/// Bounds of an executor. All rates count 2 MiB for each action that was tried, whatever its
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Most bytes promoted in a second, over all processes: they are copied and zeroed.
    pub moved: Bytes,
    /// Most bytes promoted in a second for one process.
    pub moved_per_process: Bytes,
    /// Most bytes demoted and recovered in a second, over all processes: the kernel looks through
    /// them for zeros.
    pub scanned: Bytes,
    /// Most bytes demoted and recovered in a second for one process.
    pub scanned_per_process: Bytes,
    /// Time after which no further call is made for one lot of actions.
    pub time: Duration,
    /// [`Latency::call`].
    pub call: Duration,
    /// [`Latency::pause_percent`].
    pub pause_percent: u32,
    /// [`Latency::slow`].
    pub slow: Duration,
    /// [`Latency::pause`].
    pub pause: Duration,
    /// [`Latency::pause_most`].
    pub pause_most: Duration,
    /// Most promoted regions that are stored, for [`super::Executor::undo_within`].
    pub remembered: usize,
}

impl Default for ExecutorOptions {
    /// Returns bounds of at most one core's worth of copying, half of it for one process. A region
    /// on base pages takes 0.7 ms into memory that was used before (`megapage-lab promote`). If it
    /// takes longer, time and the latency guard are the bounds. The rate of recovery is the
    /// kernel's own.
    fn default() -> ExecutorOptions {
        let Latency { call, pause_percent, slow, pause, pause_most } = Latency::default();
        ExecutorOptions {
            moved: Bytes::gib(2),
            moved_per_process: Bytes::gib(1),
            scanned: Bytes::gib(4),
            scanned_per_process: Bytes::gib(2),
            time: Duration::from_millis(250),
            call,
            pause_percent,
            slow,
            pause,
            pause_most,
            remembered: 1 << 18,
        }
    }
}

impl ExecutorOptions {
    /// Returns the bounds of the latency guard.
    pub(super) fn latency(&self) -> Latency {
        let ExecutorOptions { call, pause_percent, slow, pause, pause_most, .. } = *self;
        Latency { call, pause_percent, slow, pause, pause_most }
    }
}
