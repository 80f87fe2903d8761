//! Advice about memory of another process: process_madvise(2), madvise(2). A helper gives it, with
//! a deadline: an error of kind TimedOut holds a [`crate::helper::Locked`].
//!
//! File-level obligation: the iovec array that the kernel reads is initialised and outlives the
//! call. The addresses in it belong to the other process; no memory of this process is written.

#![allow(unsafe_code)]

use crate::helper::{Place, Session, Wait};
use crate::spawn::pid_of;
use megapage_inside::{Errno, call_for_program};
use megapage_units::VirtRange;
use rustix::fd::BorrowedFd;
use std::io;
use std::os::fd::AsRawFd;

/// Most ranges that one call may name: IOV_MAX (UIO_MAXIOV).
pub const MOST_RANGES: usize = 1024;

/// Asks the kernel to collapse each of `ranges`, in order, into huge pages (MADV_COLLAPSE, Linux
/// 6.1). The ranges belong to the process behind `pidfd`. Returns the number of bytes advised
/// before the first failure; an error is the first range's.
///
/// The result proves nothing: a range may be split again at once, and one that is huge already also
/// succeeds. EPERM: CAP_SYS_NICE or the right to trace is missing. EAGAIN: pinned or busy pages.
/// EINVAL: no page table, or the mapping cannot be collapsed. ENOMEM: no huge page, or no such
/// range. ESRCH: the process has gone.
///
/// # Panics
/// With more than [`MOST_RANGES`].
pub fn collapse(pidfd: BorrowedFd<'_>, ranges: &[VirtRange]) -> io::Result<u64> {
    advise(pidfd, ranges, libc::MADV_COLLAPSE)
}

/// Advises the kernel that `ranges`, in order, of the process behind `pidfd` are not used at the
/// moment (MADV_COLD, Linux 5.10 for other processes). The call clears their accessed bits and
/// flushes them from the TLB. The pages become the first to be reclaimed until they are accessed
/// again. The call writes back and frees nothing. It takes 10 to 20 ms for each GiB on base pages.
/// Returns the number of bytes advised before the first failure; an error is the first range's.
///
/// The kernel skips without an error:
/// - pages that other processes map too,
/// - pages that are isolated or just queued for the LRU lists,
/// - pages that are not ordinary memory, and the shared page of zeros.
///
/// A large folio is SPLIT (and its zero-filled pages freed, since Linux 6.12) in three cases. A
/// range or a mapping ends in it, it is mapped only in part, or it lies across a 2 MiB boundary. A
/// folio that is mapped by a 2 MiB entry is split only if a range ends in it.
///
/// EINVAL: the range lies in a mapping that is locked, of hugetlb pages or of raw page frames.
/// ENOMEM: a part of the range is not mapped; the others were advised. EPERM: CAP_SYS_NICE or the
/// right to trace is missing. ESRCH: the process has gone.
///
/// # Panics
/// With more than [`MOST_RANGES`].
pub fn cold(pidfd: BorrowedFd<'_>, ranges: &[VirtRange]) -> io::Result<u64> {
    advise(pidfd, ranges, libc::MADV_COLD)
}

/// Asks the kernel to reclaim `ranges`, in order, of the process behind `pidfd` (MADV_PAGEOUT,
/// Linux 5.10 for other processes). Anonymous pages go to swap if there is any, else they stay;
/// huge pages are split on the way. Result and errors are those of [`cold`], and prove as little.
///
/// # Panics
/// With more than [`MOST_RANGES`].
pub fn page_out(pidfd: BorrowedFd<'_>, ranges: &[VirtRange]) -> io::Result<u64> {
    advise(pidfd, ranges, libc::MADV_PAGEOUT)
}

fn advise(pidfd: BorrowedFd<'_>, ranges: &[VirtRange], advice: i32) -> io::Result<u64> {
    assert!(ranges.len() <= MOST_RANGES, "{} ranges in one call", ranges.len());
    let pid = pid_of(pidfd)?;
    if pid.0 as u32 == std::process::id() {
        return advise_own(pidfd, ranges, advice);
    }
    // The kernel waits for the mmap lock uninterruptibly.
    let mut session = Session::begin(pid, Wait::Uninterruptible)?;
    let words = ranges.iter().flat_map(|range| [range.start(), range.len().0]);
    for (place, word) in session.data().chunks_exact_mut(size_of::<u64>()).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let [count, advice, flags] = [ranges.len(), advice as usize, 0].map(Place::Value);
    let arguments = [Place::Data(0), count, advice, flags, Place::Value(0)];
    session.call(libc::SYS_process_madvise, pidfd, arguments).map(|bytes| bytes as u64)
}

fn advise_own(pidfd: BorrowedFd<'_>, ranges: &[VirtRange], advice: i32) -> io::Result<u64> {
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(range.start() as usize),
            iov_len: range.len().0 as usize,
        })
        .collect();
    Ok(advise_directly(pidfd, &vector, advice)? as u64)
}

/// Gives advice by a call of this thread. Async-signal-safe. Returns the number of bytes advised.
///
/// # Panics
/// If the advice is not that of [`collapse`], [`cold`] or [`page_out`].
pub(crate) fn advise_directly(
    pidfd: BorrowedFd<'_>,
    ranges: &[libc::iovec],
    advice: i32,
) -> Result<usize, Errno> {
    assert!(matches!(advice, libc::MADV_COLLAPSE | libc::MADV_COLD | libc::MADV_PAGEOUT));
    let (fd, start) = (pidfd.as_raw_fd() as usize, ranges.as_ptr().expose_provenance());
    let arguments = [fd, start, ranges.len(), advice as usize, 0];
    // SAFETY: the vector lives through the call. Such advice changes no contents, in any process.
    unsafe { call_for_program(libc::SYS_process_madvise, arguments) }
}
