//! One sample: from clearing bits to reading them.

use super::part::PartialWindow;
use megapage_kernel::cpu_time_of;
use megapage_units::{HugePage, Pid, VirtRange};
use std::time::Duration;

/// Cleared bits of one sample.
#[derive(Debug, Default)]
pub(super) struct Cycle {
    /// Its regions, ascending.
    pub(super) pages: Vec<HugePage>,
    /// The same regions as ranges.
    pub(super) ranges: Vec<VirtRange>,
    /// Number of cleared bits, and below those set at the end of the window, and those set so far.
    pub(super) entries: u64,
    pub(super) in_window: u64,
    pub(super) by_now: u64,
    /// Regions that others may share, ascending.
    pub(super) shared: Vec<HugePage>,
    /// True if only a part of each region on base pages was cleared, which stands for all of it
    /// ([`part`](crate::tracker::part)).
    pub(super) in_part: bool,
    pub(super) cleared: Duration,
    pub(super) read: bool,
    /// Processor time of the process before and after the clearing, if rates are to be reported.
    pub(super) cpu: Option<(Duration, Duration)>,
    /// Time at the end of the clearing.
    pub(super) done: Duration,
    /// Length of the window; longer if the process has not run yet.
    pub(super) window: Duration,
    /// Accesses early in the window, if rates are to be reported.
    pub(super) early: Option<PartialWindow>,
}

impl Cycle {
    /// Returns the processor time of the process since the end of the clearing; `None` if rates are
    /// not asked for.
    pub(super) fn worked(&self, pid: Pid) -> Option<Duration> {
        let (_, done) = self.cpu?;
        Some(cpu_time_of(pid).ok()?.saturating_sub(done))
    }

    /// Returns the processor time of the process during the clearing, after the region at this
    /// place was cleared. Regions are cleared one after the other.
    pub(super) fn worked_before(&self, place: usize) -> Duration {
        let (begun, done) = self.cpu.unwrap_or_default();
        let left = 1.0 - place as f64 / self.pages.len().max(1) as f64;
        done.saturating_sub(begun).mul_f64(left)
    }
}
