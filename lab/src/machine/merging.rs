//! Marks for KSM on a program's memory.
//!
//! File-level obligation: the one system call takes only numbers.

#![allow(unsafe_code)]

use std::io;

/// Lets KSM merge all private memory of this process, including later mappings
/// (PR_SET_MEMORY_MERGE, Linux 6.4), or none, which takes apart merged pages. EINVAL on a kernel
/// without it.
pub fn set_mergeable(on: bool) -> io::Result<()> {
    let (on, none) = (libc::c_ulong::from(on), 0 as libc::c_ulong);
    // SAFETY: no memory is passed.
    match unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, on, none, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
