//! shmget(2), shmat(2) and shmdt(2), in place of the C library's. See `megapage_memory::shared` for
//! their effect.
//!
//! File-level obligation: an export has the signature and the contract of the C function whose name
//! it bears. It passes its arguments on unread unless it does the work by itself.

#![allow(unsafe_code)]

use crate::next::Next;
use crate::{HEAP, SHARED, collapser};
use libc::key_t;
use megapage_inside::program_memory::as_c;
use megapage_inside::{ErrnoGuard, call_for_program};
use megapage_memory::shared::{Shm, note_refused};
use std::os::raw::{c_int, c_void};

static NEXT_SHMGET: Next<Shmget> = Next::new(c"shmget");
static NEXT_SHMAT: Next<Shmat> = Next::new(c"shmat");
static NEXT_SHMDT: Next<Shmdt> = Next::new(c"shmdt");

type Shmget = extern "C" fn(key_t, usize, c_int) -> c_int;
type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
type Shmdt = unsafe extern "C" fn(*const c_void) -> c_int;

/// Finds the C library's functions. Called before any thread exists.
pub fn begin() {
    NEXT_SHMGET.find();
    NEXT_SHMAT.find();
    NEXT_SHMDT.find();
}

/// Stands in for shmget(2).
#[unsafe(no_mangle)]
extern "C" fn shmget(key: key_t, size: usize, flags: c_int) -> c_int {
    {
        let _errno = ErrnoGuard::save();
        if let Some(id) = SHARED.segment(HEAP.ledger(), key, size, flags) {
            return id;
        }
    }
    let answer = match NEXT_SHMGET.get() {
        Some(next) => next(key, size, flags),
        None => {
            let arguments = [key as usize, size, flags as usize];
            // SAFETY: it takes no pointer.
            as_c(unsafe { call_for_program(libc::SYS_shmget, arguments) }) as c_int
        }
    };
    if answer < 0 && flags & libc::SHM_HUGETLB != 0 {
        let errno = ErrnoGuard::save();
        note_refused(HEAP.ledger(), size, flags, errno.saved());
    }
    answer
}

/// Stands in for shmat(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    // SHM_REMAP without an address is an error.
    if address.is_null() && flags & libc::SHM_REMAP == 0 && SHARED.asked() != Shm::None {
        let _errno = ErrnoGuard::save();
        if let Some((at, size)) = SHARED.attach(HEAP.ledger(), id, flags) {
            collapser::consider(size);
            return at as *mut c_void;
        }
    }
    match NEXT_SHMAT.get() {
        // SAFETY: a function of that name has this type; the caller's promise.
        Some(next) => unsafe { next(id, address, flags) },
        // SAFETY: the caller's promise.
        None => as_c(unsafe {
            call_for_program(libc::SYS_shmat, [id as usize, address as usize, flags as usize])
        }) as *mut c_void,
    }
}

/// Stands in for shmdt(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    SHARED.unmapping(address as usize, 0);
    match NEXT_SHMDT.get() {
        // SAFETY: a function of that name has this type; the caller's promise.
        Some(next) => unsafe { next(address) },
        // SAFETY: the caller's promise.
        None => as_c(unsafe { call_for_program(libc::SYS_shmdt, [address as usize]) }) as c_int,
    }
}
