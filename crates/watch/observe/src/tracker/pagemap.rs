//! Utilisation alone: the present pages except the shared page of zeros, region by region, exactly.
//! This tracker knows nothing of accesses. Policies that go by utilisation (Ingens, FreeBSD,
//! khugepaged) need no more.

use super::usage::{open, usage};
use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::KernelRoot;
use megapage_snapshot::TrackerKind;
use megapage_units::{Pid, VirtRange};

/// Tracker of utilisation. It changes nothing in its targets. Takes about 2 ms for each GiB read.
#[derive(Debug)]
pub struct PagemapTracker {
    root: KernelRoot,
}

impl PagemapTracker {
    /// Creates the tracker. Each process needs the right to trace it.
    pub fn new(root: &KernelRoot) -> Result<PagemapTracker, TrackError> {
        Ok(PagemapTracker { root: root.clone() })
    }
}

impl Tracker for PagemapTracker {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Pagemap
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "It tells which memory is in use, not whether it was accessed: coverage, recency and heat are unknown.",
        ]
    }

    fn clear(&mut self, pid: Pid, _ranges: &[VirtRange]) -> Result<(), TrackError> {
        // Nothing is cleared. But a process that has gone, or is denied to us, is reported now.
        open(&self.root, pid).map(drop)
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        usage(&self.root, pid, &mut open(&self.root, pid)?, ranges)
    }
}
