//! Errors of pools and segments. Each message is one line: the fault, its place, and the way to
//! repair it.

use crate::name::Name;
use megapage_kernel::{KernelError, OtherBasePages};
use megapage_units::{Bytes, PageSize};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Failure of an action on a pool or a segment.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// There is no hugetlbfs with such pages that this user may write to, and none could be
    /// mounted.
    #[error("no hugetlbfs with pages of {size} that this user may write to ({why}); as root: mount -t hugetlbfs -o pagesize={},mode=1777 none DIRECTORY", .size.bytes().0)]
    NoMount {
        /// The size of the pages.
        size: PageSize,
        /// The mounts that were tried, and the result.
        why: String,
    },
    /// A file or directory that should be ours is foreign: another owner, other permissions, a
    /// link, a strange file.
    #[error("{path}: {what}; move it away, or choose another name")]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The files are no whole segment.
    #[error("{path}: {what}; remove it (megapage segments remove), or open it with fresh memory")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// Another process has it open.
    #[error("{path} is in use by {holder}; end that, or ask for a shared mapping")]
    InUse {
        /// The segment's path.
        path: PathBuf,
        /// Its process and name, as far as the kernel reports them.
        holder: String,
    },
    /// There is no segment of that name.
    #[error("{path}: there is no such segment; see megapage segments list")]
    Missing {
        /// The path that it would have.
        path: PathBuf,
    },
    /// The pool of hugetlb pages is too small.
    #[error("segment {name} needs {needed} more pages of {size}, and {available} are available; run: megapage pool set {size}=+{}", .needed.saturating_sub(*.available))]
    Short {
        /// The segment.
        name: Name,
        /// The size of the pages.
        size: PageSize,
        /// The pages that it lacks.
        needed: u64,
        /// The pages that are available.
        available: u64,
    },
    /// The request itself makes no sense.
    #[error("{0}")]
    Request(String),
    /// A segment of another shape is to be reused.
    #[error("{path}: {what}; ask for the same, or for fresh memory")]
    Different {
        /// The segment's path.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The address at which the segment is mapped elsewhere is taken in this process.
    #[error("{path} cannot be mapped at {address:#x}, where its owner has it: {source}")]
    Address {
        /// The segment's path.
        path: PathBuf,
        /// The address.
        address: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The segment cannot grow that far.
    #[error(
        "segment {name} may grow to {most}, and {asked} was asked for; create it again with a larger maximum"
    )]
    Full {
        /// The segment.
        name: Name,
        /// Its maximum.
        most: Bytes,
        /// The size that was asked for.
        asked: Bytes,
    },
    /// Segments were not handed over, or not taken over, and stay with their owner.
    #[error("{path}: {what}; its segments stay with the process that had them")]
    Upgrade {
        /// The socket.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// A system call failed.
    #[error("{path}: {what}: {source}")]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The action.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of the kernel could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel's base pages are not of 4 KiB.
    #[error(transparent)]
    BasePages(#[from] OtherBasePages),
}

/// Adds the path and the action to a system call's error.
pub(crate) fn during(path: impl Into<PathBuf>, what: &'static str) -> impl FnOnce(io::Error) -> SegmentError {
    let path = path.into();
    move |source| SegmentError::System { path, what, source }
}
