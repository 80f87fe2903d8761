//! Utilisation alone: what is present and not the shared page of zeros, region by region, exactly. Whether it was
//! accessed this tracker does not know: policies that go by use (Ingens, FreeBSD, khugepaged) need no more. Beside it
//! DAMON counts, where it is free, how much of the machine's memory is accessed.

use super::damon_physical::DamonPhysical;
use super::usage::{open, usage};
use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::{KernelRoot, boot_time};
use megapage_snapshot::{MachineAccess, TrackerKind};
use megapage_units::{Pid, VirtRange};

/// The tracker of utilisation. By itself it changes nothing in its targets. About 2 ms for each GiB read.
#[derive(Debug)]
pub struct PagemapTracker {
    root: KernelRoot,
    totals: Totals,
}

/// The count over the whole machine.
#[derive(Debug)]
enum Totals {
    /// No process has asked yet.
    Unused,
    Running(DamonPhysical),
    /// There is no DAMON, it is in use, or it has failed: not tried again.
    Unavailable,
}

impl PagemapTracker {
    /// Ready at once. Each process needs the right to trace it.
    pub fn new(root: &KernelRoot) -> Result<PagemapTracker, TrackError> {
        Ok(PagemapTracker { root: root.clone(), totals: Totals::Unused })
    }
}

impl Tracker for PagemapTracker {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Pagemap
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "It tells which memory is in use, not whether it was accessed: coverage, recency and heat are unknown.",
            "What was accessed it tells of the whole machine alone, after some minutes, and only where DAMON is free.",
        ]
    }

    fn clear(&mut self, pid: Pid, _ranges: &[VirtRange]) -> Result<(), TrackError> {
        // Nothing is cleared. But a process that has gone, or is not ours to look at, is to be reported now.
        open(&self.root, pid).map(drop)
    }

    fn machine_access(&mut self) -> Option<MachineAccess> {
        if matches!(self.totals, Totals::Unused) {
            let started = DamonPhysical::start(&self.root, boot_time());
            self.totals = started.map_or(Totals::Unavailable, Totals::Running);
        }
        let Totals::Running(damon) = &mut self.totals else { return None };
        match damon.read(boot_time()) {
            Ok(access) => access,
            Err(_) => {
                self.totals = Totals::Unavailable;
                None
            }
        }
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        usage(&self.root, pid, &mut open(&self.root, pid)?, ranges)
    }
}
