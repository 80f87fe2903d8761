//! The kernel's collapse, asked of another process: process_madvise(2) with MADV_COLLAPSE (madvise(2)).
//!
//! File-level obligation: the iovec array that the kernel reads is initialised and outlives the call. The
//! addresses in it belong to the other process; nothing of ours is written.

#![allow(unsafe_code)]

use megapage_units::VirtRange;
use rustix::fd::BorrowedFd;
use std::io;
use std::os::fd::AsRawFd;

/// The most ranges that one call may name: IOV_MAX (UIO_MAXIOV).
pub const MOST_RANGES: usize = 1024;

/// Asks the kernel to collapse each of `ranges`, in order, of the process behind `pidfd` into huge pages. The
/// answer is the number of bytes advised before the first failure; the error is the first range's.
///
/// The answer proves nothing: a range may be split again at once, and one that is huge already succeeds too.
/// EPERM: CAP_SYS_NICE or the right to trace lacks. EAGAIN: pinned or busy pages. EINVAL: no page table, or
/// collapse is not for this mapping. ENOMEM: no huge page, or no such range. ESRCH: the process has gone.
///
/// # Panics
/// With more than [`MOST_RANGES`].
pub fn collapse(pidfd: BorrowedFd<'_>, ranges: &[VirtRange]) -> io::Result<u64> {
    assert!(ranges.len() <= MOST_RANGES, "{} ranges in one call", ranges.len());
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(range.start() as usize),
            iov_len: range.len().0 as usize,
        })
        .collect();
    // SAFETY: the vector lives through the call; the addresses in it are the other process's.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_raw_fd(),
            vector.as_ptr(),
            vector.len(),
            libc::MADV_COLLAPSE,
            0,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as u64) }
}
