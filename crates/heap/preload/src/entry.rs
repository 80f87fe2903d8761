//! The entry points of malloc(3) and its relatives, which take the place of the C library's.
//!
//! They are written out because a Rust dynamic library exports only Rust's own symbols. Each goes
//! to mimalloc; small blocks go through a cache of each thread (thread_cache.c). C++'s
//! `operator new` and `delete` reach us through libstdc++, which calls malloc and free.
//!
//! File-level obligation: an export has the signature and the contract of the C function whose name
//! it bears. A pointer from the program is passed on to mimalloc unread.

#![allow(unsafe_code)]

use crate::jump::jumps;
use crate::{threads, wanted};
use megapage_inside::{ErrnoGuard, set_errno};
use megapage_memory::LARGE_BLOCK;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

// The safe functions return null on failure, such as an overflow of a product, or an alignment that
// is no power of two.
unsafe extern "C" {
    safe fn mi_malloc(size: usize) -> *mut c_void;
    safe fn mi_calloc(count: usize, size: usize) -> *mut c_void;
    fn megapage_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    safe fn megapage_flush_thread_cache();
    fn mi_malloc_usable_size(block: *const c_void) -> usize;
    safe fn mi_malloc_aligned(size: usize, alignment: usize) -> *mut c_void;
    safe fn mi_collect(force: bool);
}

/// Starts the threads that a large block has made wanted: the program may fill it before it calls
/// anything here again.
#[inline]
fn start_for(size: usize) {
    if size >= LARGE_BLOCK && threads::thread_wanted().load(Relaxed) {
        wanted::start_wanted();
    }
}

// malloc(3) and free(3), also by its old name, try the caches of threads first. free preserves
// errno, as POSIX.1-2024 demands. The statistics are those of this heap (statistics.c).
jumps! {
    malloc => megapage_malloc,
    free => megapage_free,
    cfree => megapage_free,
    mallinfo => megapage_mallinfo,
    mallinfo2 => megapage_mallinfo2,
    malloc_info => megapage_malloc_info,
    malloc_stats => megapage_malloc_stats,
}

/// Allocates for malloc(3) if the cache of the calling thread has no block, or if a thread of ours
/// is wanted.
#[unsafe(no_mangle)]
extern "C" fn megapage_malloc_uncached(size: usize) -> *mut c_void {
    let block = mi_malloc(size);
    if threads::thread_wanted().load(Relaxed) {
        wanted::start_wanted();
    }
    if block.is_null() { out_of_memory() } else { block }
}

/// Stands in for calloc(3).
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let block = mi_calloc(count, size);
    start_for(count.saturating_mul(size));
    if block.is_null() { out_of_memory() } else { block }
}

/// Stands in for realloc(3). As in glibc, `realloc(block, 0)` frees the block and answers null.
///
/// # Safety
/// `block` must be null or have come from one of these functions and not have been freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let moved = unsafe { megapage_realloc(block, size) };
    start_for(size);
    let is_freed = size == 0 && !block.is_null();
    if moved.is_null() && !is_freed { out_of_memory() } else { moved }
}

/// Stands in for reallocarray(3).
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => out_of_memory(),
    }
}

/// Stands in for malloc_usable_size(3).
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    if block.is_null() { 0 } else { unsafe { mi_malloc_usable_size(block) } }
}

/// Stands in for posix_memalign(3): leaves errno unchanged, and returns the error.
///
/// # Safety
/// `result` must be valid for writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*const c_void>()) {
        return libc::EINVAL;
    }
    let _errno = ErrnoGuard::save();
    let block = mi_malloc_aligned(size, alignment);
    start_for(size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *result = block };
    0
}

/// Stands in for aligned_alloc(3). As in glibc, it takes sizes that are not multiples of the
/// alignment.
#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let block = mi_malloc_aligned(size, alignment);
    start_for(size);
    if block.is_null() { out_of_memory() } else { block }
}

/// Stands in for memalign(3). As in glibc, it rounds the alignment up to a power of two.
#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => aligned_alloc(alignment, size),
        None => {
            set_errno(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

/// Stands in for valloc(3).
#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned_alloc(megapage_units::BASE_PAGE, size)
}

/// Stands in for pvalloc(3).
#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(megapage_units::BASE_PAGE) {
        Some(size) => aligned_alloc(megapage_units::BASE_PAGE, size),
        None => out_of_memory(),
    }
}

/// Stands in for malloc_trim(3): releases free memory now. Returns 1 if any went.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(_pad: usize) -> c_int {
    let _errno = ErrnoGuard::save();
    let before = crate::HEAP.ledger().returned_bytes();
    megapage_flush_thread_cache();
    mi_collect(true);
    crate::HEAP.sweep();
    c_int::from(crate::HEAP.ledger().returned_bytes() > before)
}

#[cold]
fn out_of_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}
