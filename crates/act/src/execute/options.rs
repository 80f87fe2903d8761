//! What carrying out may cost.

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
    /// How much processor time one call that splits huge pages is to take at most: for that long, and for as long as it
    /// waits for a processor, a process can wait for its mmap lock. How many regions a call names follows from it. A
    /// call that collapses may take four times as much: it gives the lock up between two regions.
    pub call: Duration,
    /// After each call, this share of its time, in per cent, is left to those who have waited for the lock; 1 ms at most.
    pub rest_percent: u32,
    /// A process whose lock was kept for more processor time than this, by the collapse of a region (on average, where a
    /// call names several) or by a call that splits, is left alone for a while, longer each time. So it is, for the first
    /// of these times, after a call whose regions took more together, of which one may have taken all of it, and after one
    /// that took ten times as long on the wall: it waited, and the process may have, too.
    pub slow: Duration,
    /// The first time for which a process, or after a refusal for want of memory all promotions, are left alone. It
    /// doubles each time that this happens again...
    pub pause: Duration,
    /// ...up to this.
    pub pause_most: Duration,
    /// Most regions of which is remembered that they were promoted here, for [`super::Executor::undo`].
    pub remembered: usize,
}

impl Default for ExecutorOptions {
    /// At most a core's worth of copying, half of it for one process; recovery at the rate that the kernel has.
    fn default() -> ExecutorOptions {
        ExecutorOptions {
            moved: Bytes::gib(1),
            moved_per_process: Bytes::mib(512),
            scanned: Bytes::gib(4),
            scanned_per_process: Bytes::gib(2),
            time: Duration::from_millis(250),
            call: Duration::from_millis(1),
            rest_percent: 25,
            slow: Duration::from_millis(15),
            pause: Duration::from_millis(100),
            pause_most: Duration::from_secs(30),
            remembered: 1 << 18,
        }
    }
}
