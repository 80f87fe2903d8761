//! Trackers: methods to find the accessed base pages of a process.
//!
//! All have one shape: they *clear* the accessed bits of some ranges, wait, and *read* them.
//! [`select`](fn@select) tries them best first, each against a child with known accesses. It keeps
//! the first accurate one.

mod bpf;
mod first_access;
pub mod idle_pages;
pub mod pagemap;
mod select;
pub mod self_test;
mod usage;

pub use bpf::BpfTracker;
pub use megapage_kernel::page_tables::{PageBits, RegionBits};
pub use select::{SelectError, Selected, select};

use megapage_kernel::KernelError;
use megapage_kernel::page_tables::HeldBits;
use megapage_snapshot::{MissedWhy, PAGES, TrackerKind};
use megapage_units::{HugePage, Pid, VirtRange};
use thiserror::Error;

/// Base pages in the part of a region that stands for it: 64 KiB, aligned, so that no folio of that
/// size is split.
pub const PART_PAGES: u16 = 16;

/// Returns the base pages that stand for the region if clearing all would cost too much. They
/// are [`PART_PAGES`] in a row. Their place differs from region to region, and is always the same
/// for one.
pub fn part(region: HugePage) -> std::ops::Range<u16> {
    // The last steps of SplitMix64 give neighbours different places.
    let z = region.number().wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let first = ((z ^ (z >> 31)) % u64::from(PAGES / PART_PAGES)) as u16 * PART_PAGES;
    first..first + PART_PAGES
}

/// Reason why a tracker could not clear or read.
#[derive(Debug, Error)]
pub enum TrackError {
    /// The process has ended, or has replaced its address space. This is normal.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The kernel refuses to show or touch this process. The text names the missing right.
    #[error("process {pid} is denied to us: {what}")]
    Denied {
        /// Process.
        pid: Pid,
        /// Missing right, and a way to get it.
        what: String,
    },
    /// Any other reason, in one line.
    #[error("{0}")]
    Failed(String),
    /// A kernel file could not be read or written.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl TrackError {
    /// Returns the class under which a snapshot lists the process as missed.
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

/// Method to find accessed pages. The caller waits between [`clear`](Tracker::clear) and
/// [`read`](Tracker::read); a tracker never sleeps.
pub trait Tracker: Send {
    /// Returns the kind of the tracker.
    fn kind(&self) -> TrackerKind;

    /// Returns the shortcomings of the tracker, one sentence each, for the user.
    fn lacks(&self) -> &'static [&'static str];

    /// Returns true if [`clear`](Tracker::clear) skips pages that other processes map, too: memory
    /// shared by fork(2) or merged by KSM. The results of [`read`](Tracker::read) for those are
    /// old; the observer leaves them out.
    fn leaves_shared(&self) -> bool {
        false
    }

    /// Returns true if [`clear_part`](Tracker::clear_part) clears only a part of each region.
    fn clears_parts(&self) -> bool {
        false
    }

    /// Clears as [`clear`](Tracker::clear) does, but only the pages of its [`part`] in a region on
    /// base pages. A region that a huge entry maps is cleared whole. A later reading of the other
    /// pages gives old results. Only for trackers with [`clears_parts`](Tracker::clears_parts).
    fn clear_part(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear(pid, ranges)
    }

    /// Returns the contents of `ranges` of `pid` (ascending, disjoint, whole base pages) as
    /// [`Pagemap::held`](megapage_kernel::pagemap::Pagemap::held) does. The same reading gives the
    /// regions in `asked` (sorted, disjoint, whole regions) as [`read`](Tracker::read) does.
    /// Regions in `asked` that `ranges` does not touch are left out. `None` if this tracker cannot
    /// read them at less cost than the page map, or an error occurs. The caller then uses the page
    /// map and [`read`](Tracker::read), which return the error.
    fn held(&mut self, _pid: Pid, _ranges: &[VirtRange], _asked: &[VirtRange]) -> Option<HeldBits> {
        None
    }

    /// Forgets what was cleared of `pid`: nothing more is read of it.
    fn forget(&mut self, _pid: Pid) {}

    /// Clears the accessed bits of `ranges` of `pid`: sorted, disjoint, whole regions. Never splits
    /// a page that a huge entry maps: a tracker skips a huge page that it could only clear by a
    /// split. The target loses no page; none is written back or moved.
    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError>;

    /// Reads `ranges` (sorted, disjoint, whole regions). Returns one entry, ascending, for each
    /// non-empty region.
    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError>;
}
