//! Transparent huge pages of the calling process as a whole.
//!
//! File-level obligation: prctl(2) is given numbers only.

#![allow(unsafe_code)]

use std::io;

/// PR_THP_DISABLE_EXCEPT_ADVISED of linux/prctl.h.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

/// Switches transparent huge pages off for this process, for the programs that it executes, and for
/// its children (PR_SET_THP_DISABLE(2const)). With `except_advised`, memory that is advised with
/// MADV_HUGEPAGE or collapsed keeps them: EINVAL before Linux 6.18.
pub fn disable_own_thp(except_advised: bool) -> io::Result<()> {
    let (on, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let flags = if except_advised { EXCEPT_ADVISED } else { none };
    // SAFETY: see the header.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, on, flags, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Undoes for this process a [`disable_own_thp`], of this process or of one that it descends from.
pub fn enable_own_thp() -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: see the header.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, none, none, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
