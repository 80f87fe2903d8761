//! Trackers: ways to learn which base pages of a process were accessed.
//!
//! All have one shape: *clear* the accessed bits of some ranges, wait, *read* them. [`select`](fn@select) tries
//! them best first, each against a child whose accesses are known, and keeps the first that is accurate.

mod bpf;
mod first_access;
pub mod idle_pages;
pub mod pagemap;
mod select;
pub mod self_test;
pub mod smaps;
mod usage;

pub use bpf::BpfTracker;
pub use select::{SelectError, Selected, select};

use megapage_kernel::KernelError;
use megapage_kernel::pagemap::Region as Held;
use megapage_snapshot::{Leaf, MissedWhy, PAGES, TrackerKind};
use megapage_units::{HUGE_2M, Pid, VirtRange};
use thiserror::Error;

/// One bit for each base page of a region: bit `n % 64` of word `n / 64` is page `n`.
pub type PageBits = [u64; PAGES as usize / 64];

/// Base pages in the part of a region that stands for it: 64 KiB, aligned, so that no folio of that size is split.
pub const PART_PAGES: u16 = 16;

/// The pages of the region at `start` that stand for it where clearing all would cost too much: [`PART_PAGES`] in a row,
/// at a place that differs from region to region, always the same for one.
pub fn part(start: u64) -> std::ops::Range<u16> {
    // SplitMix64's last steps: neighbours differ.
    let z = (start / HUGE_2M as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let first = ((z ^ (z >> 31)) % u64::from(PAGES / PART_PAGES)) as u16 * PART_PAGES;
    first..first + PART_PAGES
}

/// What a tracker read of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionBits {
    /// The first address, a multiple of 2 MiB.
    pub start: u64,
    /// What maps the region.
    pub leaf: Leaf,
    /// Present base pages, 0 to 512; the shared page of zeros does not count.
    pub present: u16,
    /// Base pages that map the shared page of zeros.
    pub zero_page: u16,
    /// Base pages that are swapped out or migrating.
    pub swapped: u16,
    /// Base pages accessed since the last clearing of this region, 0 to 512: 0 or 512 where `leaf` is huge. `None` where this
    /// tracker cannot say for a region.
    pub accessed: Option<u16>,
    /// Which pages they are; `None` where the tracker only counts. All ones or all zeros where `leaf` is huge.
    pub bits: Option<PageBits>,
}

/// Why a tracker could not clear or read.
#[derive(Debug, Error)]
pub enum TrackError {
    /// The process has ended, or has replaced its address space: normal.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The kernel refuses to show or touch this process. The text names the right that lacks.
    #[error("process {pid} is denied to us: {what}")]
    Denied {
        /// Which.
        pid: Pid,
        /// The missing right, and how to get it.
        what: String,
    },
    /// Anything else, one line.
    #[error("{0}")]
    Failed(String),
    /// A kernel file.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl TrackError {
    /// The class under which a snapshot lists the process as missed.
    pub fn why(&self) -> MissedWhy {
        match self {
            TrackError::Gone(_) => MissedWhy::Gone,
            TrackError::Denied { .. } => MissedWhy::Denied,
            TrackError::Kernel(error) if error.is_gone() => MissedWhy::Gone,
            TrackError::Kernel(error) if error.is_locked() => MissedWhy::Locked,
            TrackError::Failed(_) | TrackError::Kernel(_) => MissedWhy::Failed,
        }
    }
}

/// A way to learn which pages were accessed. Between [`clear`](Tracker::clear) and [`read`](Tracker::read) the
/// caller waits; a tracker never sleeps.
pub trait Tracker: Send {
    /// Which.
    fn kind(&self) -> TrackerKind;

    /// What it cannot give, one sentence each, for the user.
    fn lacks(&self) -> &'static [&'static str];

    /// Whether [`clear`](Tracker::clear) leaves out pages that other processes map, too: memory shared by fork(2) or
    /// merged by KSM. What [`read`](Tracker::read) says of those is old; the observer leaves them out.
    fn leaves_shared(&self) -> bool {
        false
    }

    /// Whether [`clear`](Tracker::clear) clears the whole process whatever the ranges: the budget then counts
    /// everything that is resident.
    fn clears_whole(&self) -> bool {
        false
    }

    /// Whether [`clear_part`](Tracker::clear_part) clears a part of each region.
    fn clears_parts(&self) -> bool {
        false
    }

    /// As [`clear`](Tracker::clear), but of a region on base pages only the pages of its [`part`]; one that a huge entry
    /// maps is cleared whole. What a reading then says of the other pages is old. Only where
    /// [`clears_parts`](Tracker::clears_parts).
    fn clear_part(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear(pid, ranges)
    }

    /// What `pid` holds in `ranges` (ascending, disjoint, whole base pages), as [`Pagemap::held`](megapage_kernel::pagemap::Pagemap::held) shows it, where this
    /// tracker can report the same at less cost. `None` where it cannot, or not this time: then the page map is asked, which
    /// also knows why.
    fn held(&mut self, _pid: Pid, _ranges: &[VirtRange]) -> Option<Vec<Held>> {
        None
    }

    /// Clears the accessed bits of `ranges` of `pid`: sorted, disjoint, whole regions. Never splits a page that a
    /// huge entry maps: a tracker whose way of clearing would, leaves out what it cannot clear whole. Pages are as much the
    /// target's as before: nothing is lost, written back or moved.
    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError>;

    /// Reads `ranges` (sorted, disjoint, whole regions): one entry, ascending, for each region that holds anything.
    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError>;
}
