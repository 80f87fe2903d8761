//! What carrying out may cost.

use crate::engine::Latency;
use megapage_units::Bytes;
use std::time::Duration;

/// Bounds of an executor. All rates are of 2 MiB for each action, whatever came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Most bytes promoted in a second, over all processes: what is copied and zeroed.
    pub moved: Bytes,
    /// Most bytes promoted in a second for one process.
    pub moved_per_process: Bytes,
    /// Most bytes demoted and recovered in a second, over all processes: what the kernel looks through for zeros.
    pub scanned: Bytes,
    /// Most bytes demoted and recovered in a second of one process.
    pub scanned_per_process: Bytes,
    /// After this time no further call is made for one lot of actions.
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
    /// Most regions promoted here that are stored, for [`super::Executor::undo_within`].
    pub remembered: usize,
}

impl Default for ExecutorOptions {
    /// At most a core's worth of copying, half of it for one process: a region on base pages takes 0.7 ms into memory that was
    /// used before (`megapage-lab promote`). Where it takes longer, time and the latency guard are the bounds. Recovery at
    /// the rate that the kernel has.
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
    /// Those of the latency guard.
    pub(super) fn latency(&self) -> Latency {
        let ExecutorOptions { call, pause_percent, slow, pause, pause_most, .. } = *self;
        Latency { call, pause_percent, slow, pause, pause_most }
    }
}
