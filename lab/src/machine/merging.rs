//! Marks a program's memory for KSM.
//!
//! File-level obligation: the one system call takes numbers alone.

#![allow(unsafe_code)]

use std::io;

/// Has KSM merge all private memory of this process, what is mapped later included (PR_SET_MEMORY_MERGE, Linux 6.4), or
/// none, which takes apart what was merged. EINVAL on a kernel without.
pub fn set_mergeable(on: bool) -> io::Result<()> {
    let (on, none) = (libc::c_ulong::from(on), 0 as libc::c_ulong);
    // SAFETY: no memory is passed.
    match unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, on, none, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
