//! The allocator of these tests: the system's, with a count of each thread's requests.
//!
//! File-level obligation: every call is passed on to the system's allocator as it came.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns how often the calling thread has asked for memory.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: the system's allocator does the work. Counting allocates nothing, for the cell is
// constant and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[test]
fn what_is_allocated_is_counted() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations(), before + 1);
}
