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
    set(1, if except_advised { EXCEPT_ADVISED } else { 0 })
}

/// Undoes for this process a [`disable_own_thp`], of this process or of one that it descends from.
pub fn enable_own_thp() -> io::Result<()> {
    set(0, 0)
}

/// Returns the setting: 0 if transparent huge pages are possible for this process.
pub(crate) fn own_setting() -> io::Result<i32> {
    control(libc::PR_GET_THP_DISABLE, 0, 0)
}

fn set(off: libc::c_ulong, flags: libc::c_ulong) -> io::Result<()> {
    control(libc::PR_SET_THP_DISABLE, off, flags).map(drop)
}

fn control(option: i32, second: libc::c_ulong, third: libc::c_ulong) -> io::Result<i32> {
    let none: libc::c_ulong = 0;
    // SAFETY: see the header.
    match unsafe { libc::prctl(option, second, third, none, none) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
