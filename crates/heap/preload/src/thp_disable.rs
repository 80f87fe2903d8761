//! prctl(2), in place of the C library's, for two of its uses.
//!
//! Programs forbid themselves system calls (PR_SET_NO_NEW_PRIVS, which precedes seccomp(2), and
//! PR_SET_SECCOMP), often on pain of death. From then on this library makes only the calls that a
//! malloc needs, and has no thread.
//!
//! Programs switch transparent huge pages off for themselves (PR_SET_THP_DISABLE), as MariaDB and
//! Ruby do, because the kernel would give them where they do not pay. The kernel's own choice stays
//! off. This library still advises or collapses memory that it has judged dense: it was started for
//! that. Linux 6.18 has a flag for this. Older kernels have none: then the setting is dropped if
//! the kernel gives huge pages only on advice. It is kept if the kernel would give them unasked
//! (transparent_hugepage/enabled says `always`). The program reads back the value that it has set.
//!
//! File-level obligation: the export has the contract of the C function whose name it bears. It
//! passes its arguments on unread except for the options that it knows.

#![allow(unsafe_code)]

use crate::mappings::is_active;
use crate::threads;
use megapage_inside::program_memory::{
    disable_thp_except_advised, is_confined, program_confines, system_prctl,
};
use megapage_inside::{ErrnoGuard, thp_only_on_advice};
use std::os::raw::{c_int, c_ulong};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// True if the program has switched huge pages off, and the library has replaced that setting.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Stands in for prctl(2), which takes one to five arguments: those that are not given are not
/// read.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let bare = third | fourth | fifth == 0;
    match option {
        // The program chooses what the kernel allows from here on, which is unknown. Filter mode
        // without a filter only asks if the kernel has it.
        libc::PR_SET_NO_NEW_PRIVS => confine(),
        libc::PR_SET_SECCOMP if second != c_ulong::from(libc::SECCOMP_MODE_FILTER) || third != 0 => confine(),
        libc::PR_SET_THP_DISABLE if second != 0 && bare && is_active() && replace() => {
            REQUESTED.store(true, Relaxed);
            return 0;
        }
        libc::PR_SET_THP_DISABLE if second == 0 && bare => REQUESTED.store(false, Relaxed),
        libc::PR_GET_THP_DISABLE if second | third | fourth | fifth == 0 && REQUESTED.load(Relaxed) => {
            return 1;
        }
        _ => {}
    }
    // SAFETY: the caller's promise.
    unsafe { system_prctl(option, [second, third, fourth, fifth]) }
}

/// Prepares for the program to forbid itself system calls.
fn confine() {
    if !is_confined() {
        threads::stop();
    }
    program_confines();
}

fn replace() -> bool {
    let _errno = ErrnoGuard::save();
    disable_thp_except_advised() || thp_only_on_advice()
}
