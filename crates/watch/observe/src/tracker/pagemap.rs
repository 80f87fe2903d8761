//! Utilisation alone: what is present and not the shared page of zeros, region by region, exactly.
//! This tracker knows nothing of accesses: policies that go by use (Ingens, FreeBSD, khugepaged)
//! need no more.

use super::usage::{open, usage};
use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::KernelRoot;
use megapage_snapshot::TrackerKind;
use megapage_units::{Pid, VirtRange};

/// The tracker of utilisation. It changes nothing in its targets. About 2 ms for each GiB read.
#[derive(Debug)]
pub struct PagemapTracker {
    root: KernelRoot,
}

impl PagemapTracker {
    /// Ready at once. Each process needs the right to trace it.
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
        // Nothing is cleared. But a process that has gone, or is not ours to look at, is to be reported now.
        open(&self.root, pid).map(drop)
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        usage(&self.root, pid, &mut open(&self.root, pid)?, ranges)
    }
}
