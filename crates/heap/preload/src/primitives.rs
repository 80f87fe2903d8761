//! Functions that mimalloc's OS layer calls (see src/mimalloc.c, and prim.h for the contract of
//! each).
//!
//! File-level obligation: each function has the signature that src/mimalloc.c declares, and keeps
//! the contract of the primitive in prim.h. Ranges come from mimalloc, which owns them.

#![allow(unsafe_code)]

use crate::{HEAP, MAPPED, collapser, lifecycle, limits, returner};
use megapage_inside::{Borrowed, ErrnoGuard, Owned, Reservation, call, has_addresses, program_memory};
use megapage_memory::HugeHeap;
use std::os::raw::{c_int, c_long, c_void};

/// Configures the library. Called once, before anything else here, when mimalloc initialises: at
/// the first allocation.
#[unsafe(no_mangle)]
extern "C" fn megapage_configure() {
    lifecycle::configure();
    limits::configure();
}

/// Does mmap(2) for mimalloc, past the function of that name that this library exports.
///
/// # Safety
/// As for mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn megapage_system_mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { program_memory::system_mmap(address, size, protection, flags, fd, offset) }
}

/// Does munmap(2) for mimalloc, in the same way.
///
/// # Safety
/// As for munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn megapage_system_munmap(address: *mut c_void, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { program_memory::system_munmap(address, size) }
}

/// Does mprotect(2) for mimalloc, in the same way.
///
/// # Safety
/// As for mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn megapage_system_mprotect(
    address: *mut c_void,
    size: usize,
    protection: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { program_memory::system_mprotect(address, size, protection) }
}

/// Returns true if large blocks that are to be zero lie apart from the arenas.
#[unsafe(no_mangle)]
extern "C" fn megapage_puts_zeros_apart() -> bool {
    let _errno = ErrnoGuard::save();
    HEAP.puts_zeros_apart()
}

/// Reserves (and commits) `size` bytes, for an arena or for a block `apart`. Returns 0 or an errno.
///
/// # Safety
/// `is_zero` and `address` must be valid for writing, as prim.h promises.
#[unsafe(no_mangle)]
unsafe extern "C" fn megapage_reserve(
    size: usize,
    alignment: usize,
    commit: bool,
    apart: bool,
    is_zero: *mut bool,
    address: *mut *mut c_void,
) -> c_int {
    let reserve = if apart { HugeHeap::reserve_apart } else { HugeHeap::reserve };
    match reserve(&HEAP, size, alignment, commit) {
        Ok(reserved) => {
            if commit {
                collapser::consider_later(size);
            }
            // SAFETY: valid for writing, by the contract.
            unsafe {
                *is_zero = true;
                *address = reserved.range.keep().start() as *mut c_void;
            }
            0
        }
        Err(errno) => {
            // SAFETY: as above.
            unsafe { *address = std::ptr::null_mut() };
            errno.0
        }
    }
}

/// Releases a range of `megapage_reserve`. Returns 0 or an errno.
#[unsafe(no_mangle)]
extern "C" fn megapage_release(address: *mut c_void, size: usize) -> c_int {
    // A block apart may be advised.
    MAPPED.unmapping(address as usize, HugeHeap::reserved_len(size));
    // SAFETY: the allocator hands back what it was given, once.
    let range = unsafe { Reservation::of_allocator(address as usize, HugeHeap::reserved_len(size)) };
    HEAP.release(range).map_or_else(|errno| errno.0, |()| 0)
}

/// Commits a part of a reserved range, for a program in which `threads` threads allocate. Returns 0
/// or an errno.
///
/// # Safety
/// `is_zero` must be valid for writing, as prim.h promises.
#[unsafe(no_mangle)]
unsafe extern "C" fn megapage_commit(
    address: *mut c_void,
    size: usize,
    threads: usize,
    is_zero: *mut bool,
) -> c_int {
    // SAFETY: the allocator commits a part of what it was given and still has.
    let part = unsafe { Owned::of_allocator(address as usize, size) };
    HEAP.note_threads(threads as u64);
    match HEAP.commit(part) {
        Ok(clean) => {
            returner::consider();
            collapser::consider_later(size);
            // SAFETY: valid for writing, by the contract.
            unsafe { *is_zero = clean };
            0
        }
        Err(errno) => errno.0,
    }
}

/// Decommits a part of a reserved range. Returns 0 or an errno.
///
/// # Safety
/// `needs_recommit` must be valid for writing, as prim.h promises.
#[unsafe(no_mangle)]
unsafe extern "C" fn megapage_decommit(
    address: *mut c_void,
    size: usize,
    needs_recommit: *mut bool,
) -> c_int {
    // SAFETY: as above; no block is live in what it decommits.
    let part = unsafe { Owned::of_allocator(address as usize, size) };
    match HEAP.decommit(part) {
        Ok(needed) => {
            if HEAP.wants_sweep() {
                returner::much_waits();
            }
            // SAFETY: valid for writing, by the contract.
            unsafe { *needs_recommit = needed };
            0
        }
        Err(errno) => errno.0,
    }
}

/// Makes a system call for exec's wrappers. Answers EPERM once the program may have forbidden
/// itself such calls.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn megapage_call(number: c_long, a: usize, b: usize, c: usize, d: usize) -> c_long {
    // SAFETY: the caller's promise.
    program_memory::as_c(unsafe { call(number, [a, b, c, d]) }) as c_long
}

/// Returns the bytes that the heap holds from the kernel.
#[unsafe(no_mangle)]
extern "C" fn megapage_held() -> usize {
    HEAP.ledger().total_held() as usize
}

/// Returns true if the address is one of the bytes that the heap counts as held.
#[unsafe(no_mangle)]
extern "C" fn megapage_has_chunk(address: *const c_void) -> bool {
    HEAP.chunk_at(address as usize).is_some()
}

/// Forgets the contents of a part of a block that is in use; the part stays committed.
#[unsafe(no_mangle)]
extern "C" fn megapage_forget(address: *mut c_void, size: usize) {
    // SAFETY: a part of a block, which its owner frees next.
    HEAP.forget(unsafe { Owned::of_allocator(address as usize, size) });
}

/// Gives up the addresses of one whole huge page, until `megapage_take_addresses`. Returns false if
/// something lies there: then they stay the allocator's.
#[unsafe(no_mangle)]
extern "C" fn megapage_give_up(address: *mut c_void, size: usize) -> bool {
    // SAFETY: a part of what the allocator was given; it holds no block, and none will come to lie
    // there before its addresses are taken again.
    HEAP.give_up(unsafe { Reservation::of_allocator(address as usize, size) })
}

/// Takes addresses of an arena again that were given up. Returns 0, EEXIST if the program has
/// mapped something there, or ENOMEM.
#[unsafe(no_mangle)]
extern "C" fn megapage_take_addresses(address: *mut c_void, size: usize) -> c_int {
    HEAP.take_addresses(Borrowed::new(address as usize, size)).map_or_else(|errno| errno.0, |()| 0)
}

/// Returns true if `size` bytes of addresses can be reserved.
#[unsafe(no_mangle)]
extern "C" fn megapage_has_addresses(size: usize) -> bool {
    let _errno = ErrnoGuard::save();
    has_addresses(size)
}

/// Returns the bytes of freed memory that the limits on memory let wait, once `more` more bytes are
/// in use.
#[unsafe(no_mangle)]
extern "C" fn megapage_room_for_waiting(more: usize, touched: usize) -> usize {
    HEAP.room_for_waiting(more, touched)
}

/// Returns true if the program leaves much of what it is given untouched.
#[unsafe(no_mangle)]
extern "C" fn megapage_leaves_untouched(rounding: usize) -> bool {
    HEAP.leaves_untouched(rounding as u64)
}

/// Notes that freed memory waits that is to be purged once the delay has passed. Called from within
/// the allocator.
#[unsafe(no_mangle)]
extern "C" fn megapage_much_waits() {
    returner::much_waits();
}
