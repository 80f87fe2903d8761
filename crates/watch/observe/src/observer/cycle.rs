//! One sample: from clearing bits to reading them.

use super::part::PartialWindow;
use megapage_kernel::cpu_time_of;
use megapage_units::{Pid, VirtRange};
use std::time::Duration;

/// Bits that were cleared.
#[derive(Debug)]
pub(super) struct Cycle {
    /// The first addresses of its regions, ascending.
    pub(super) starts: Vec<u64>,
    /// The same as ranges.
    pub(super) ranges: Vec<VirtRange>,
    /// How many bits that makes, how many of them were set at the end of the window, and how many so far.
    pub(super) entries: u64,
    pub(super) in_window: u64,
    pub(super) by_now: u64,
    /// The first addresses of regions that others may share.
    pub(super) shared: Vec<u64>,
    /// Whether of regions on base pages a part was cleared that stands for all of it ([`part`](crate::tracker::part)).
    pub(super) in_part: bool,
    pub(super) cleared: Duration,
    pub(super) read: bool,
    /// The process's processor time before and after the clearing, where rates are to be reported.
    pub(super) cpu: Option<(Duration, Duration)>,
    /// When the clearing was done.
    pub(super) done: Duration,
    /// How long the window is: longer where the process has not run yet.
    pub(super) window: Duration,
    /// What was accessed early in it, where rates are to be reported.
    pub(super) early: Option<PartialWindow>,
}

impl Cycle {
    /// The processor time that the process has taken since the clearing was done; `None` where rates are not asked for.
    pub(super) fn worked(&self, pid: Pid) -> Option<Duration> {
        let (_, done) = self.cpu?;
        Some(cpu_time_of(pid).ok()?.saturating_sub(done))
    }

    /// What of the clearing it has worked after the region at this place was cleared: one after the other was.
    pub(super) fn worked_before(&self, place: usize) -> Duration {
        let (begun, done) = self.cpu.unwrap_or_default();
        let left = 1.0 - place as f64 / self.starts.len().max(1) as f64;
        done.saturating_sub(begun).mul_f64(left)
    }
}
