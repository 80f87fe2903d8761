//! Limits of the process on addresses and locked memory: memory that the heap has reserved but does
//! not use must not count.
//!
//! File-level obligation: an export has the signature and the contract of the C function whose name
//! it bears. The called functions take no arguments.

#![allow(unsafe_code)]

use crate::HEAP;
use megapage_inside::program_memory::{as_c, is_confined};
use megapage_inside::room::own_limit;
use megapage_inside::{Errno, ErrnoGuard, lock_all_memory};
use std::os::raw::c_int;

unsafe extern "C" {
    safe fn megapage_give_up_addresses() -> bool;
    safe fn megapage_memory_is_locked();
    safe fn megapage_keep_addresses();
}

/// Keeps arenas small if reserved addresses count. Runs before the first arena is reserved.
pub fn configure() {
    if HEAP.addresses_are_few() {
        megapage_keep_addresses();
    }
}

/// Gives back the addresses that the heap does not use, if the program was just refused some
/// because of a limit on them. Returns true if any went. Waits for no lock, so that a signal
/// handler may call it.
#[cold]
pub fn make_room_for_mapping() -> bool {
    let errno = ErrnoGuard::save();
    errno.saved() == Errno::ENOMEM
        && !is_confined()
        && own_limit(libc::RLIMIT_AS).is_some()
        && megapage_give_up_addresses()
}

/// Stands in for mlockall(2). The kernel compares RLIMIT_MEMLOCK with all addresses that the
/// process has.
#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: c_int) -> c_int {
    let errno = ErrnoGuard::save();
    HEAP.prepare_for_locks();
    megapage_memory_is_locked();
    megapage_give_up_addresses();
    let locked = lock_all_memory(flags).map(|()| HEAP.unlock_unused());
    drop(errno);
    as_c(locked.map(|()| 0)) as c_int
}
