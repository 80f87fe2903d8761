//! The thread that collapses memory which the program has mapped by itself (see
//! `megapage_memory::Collapser`).
//!
//! It exists while such memory grows. A program that maps little never has one, and one that stays
//! idle loses it.

#![forbid(unsafe_code)]

use crate::threads::{self, Started};
use crate::{HEAP, MAPPED, SHARED, mappings};
use megapage_inside::leave_descriptors;
use megapage_inside::program_memory::is_confined;
use megapage_memory::{Collapser, LARGE_BLOCK};
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that a program maps by itself before there is a thread.
const THRESHOLD: u64 = 64 << 20;
/// Bytes mapped after a thread has ended from which on the next one starts.
const AGAIN: u64 = 16 << 20;
/// Pause between two looks while memory grows.
const SHORTEST: Duration = Duration::from_millis(50);
/// Longest pause while memory does not grow: each such look doubles the pause.
const LONGEST: Duration = Duration::from_secs(1);
/// Looks without growth after which the thread ends. If much is mapped and untouched it goes on,
/// with this longest pause.
const IDLE_LOOKS: u32 = 6;
const LONGEST_UNTOUCHED: Duration = Duration::from_secs(8);
/// Least pause, in units of the time that a look took.
const COST_SPACING: u32 = 100;
/// The shortest pause while the heap grows faster than the thread looks, and the same units.
const WOKEN: (Duration, u32) = (Duration::from_millis(10), 20);
/// The same if the program has never held so much. What grows beyond the last look comes on base
/// pages, and a collapse costs more than a look.
const WOKEN_GROWN: (Duration, u32) = (Duration::from_millis(5), 5);
/// Bytes from which on a heap may have a thread.
const HEAP_AT: u64 = 32 << 20;
/// Bytes committed on base pages from which on they may still be filled.
const HEAP_MAY_FILL: u64 = 16 << 20;
/// Bytes by which resident memory must be larger to count as grown.
const GROWTH: u64 = 4 << 20;

/// Bytes that were mapped, or added to the heap, since the last thread has ended.
static GROWN: AtomicU64 = AtomicU64::new(0);
/// Bytes of `GROWN` at which a thread starts.
static NEXT: AtomicU64 = AtomicU64::new(THRESHOLD);
/// True if a thread runs, is being started, or can never run.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Notes that the program has mapped or opened memory. The caller holds no lock of the allocator.
pub fn consider(bytes: usize) {
    if grow(bytes) >= NEXT.load(Relaxed) && !RUNNING.load(Relaxed) {
        start();
    }
}

/// Notes that the heap has grown. It may have chunks on base pages that fill up, or may have grown
/// too much since the last look. Called from within the allocator.
pub fn consider_later(bytes: usize) {
    if HEAP.wants_look() && RUNNING.load(Relaxed) && !is_confined() {
        threads::wake();
    }
    let is_worth_it = || bytes >= LARGE_BLOCK || HEAP.size() >= HEAP_AT;
    if grow(bytes) >= AGAIN && !RUNNING.load(Relaxed) && is_worth_it() && mappings::is_active() {
        NEXT.store(AGAIN, Relaxed);
        threads::want();
    }
}

/// Adds `bytes` to those since the last thread has ended. Returns the sum.
fn grow(bytes: usize) -> u64 {
    GROWN.fetch_add(bytes as u64, Relaxed).saturating_add(bytes as u64)
}

/// Starts the thread if one is wanted.
pub fn start() {
    let wanted = GROWN.load(Relaxed) >= NEXT.load(Relaxed);
    if wanted && !RUNNING.swap(true, Relaxed) && threads::start(work) == Started::Busy {
        RUNNING.store(false, Relaxed);
    }
}

/// Resets the state in a forked child: the thread was not copied.
pub fn forget_in_child() {
    RUNNING.store(false, Relaxed);
    rest();
}

/// Makes the next thread start after [`AGAIN`].
fn rest() {
    HEAP.keep_seen(AGAIN);
    GROWN.store(0, Relaxed);
    NEXT.store(AGAIN, Relaxed);
}

extern "C" fn work(_argument: *mut c_void) -> *mut c_void {
    threads::begin(c"megapage-huge");
    // Looking opens files: see `returner`. If there is no separate table of descriptors, or no page
    // map, RUNNING stays set: no thread is tried again.
    let collapser = if leave_descriptors() { Collapser::new() } else { None };
    if let Some(mut collapser) = collapser {
        watch(&mut collapser);
        rest();
        threads::end();
        RUNNING.store(false, Relaxed);
    } else {
        // No thread can see how much the program touches: it counts as touching everything.
        HEAP.note_untouched(0, u64::MAX / 2);
        threads::end();
    }
    ptr::null_mut()
}

fn watch(collapser: &mut Collapser) {
    let (mut pause, mut idle, mut resident) = (SHORTEST, 0, 0u64);
    // Present bytes of shared memory, which other processes may fill.
    let mut present = 0;
    let (mut least, mut wakes, mut most) = (pause, 0, 0);
    loop {
        threads::sleep(least.min(pause));
        wakes = threads::sleep_unless_woken(wakes, pause.saturating_sub(least));
        if is_confined() || threads::program_has_ended() {
            return;
        }
        let Ok(mut look) = collapser.look(&HEAP, &MAPPED) else { return };
        let shared = SHARED.look(HEAP.ledger());
        look.cost += shared.cost;
        look.collapsed += shared.collapsed;
        let grown =
            look.resident > resident.saturating_add(GROWTH) || shared.present > present + GROWTH as usize;
        present = if grown { shared.present } else { present.min(shared.present) };
        resident = if grown { look.resident } else { resident.min(look.resident) };
        if grown || look.pending || look.collapsed > 0 {
            (pause, idle) = (SHORTEST, 0);
        } else {
            idle += 1;
            let may_fill = HEAP.committed_on_base() >= HEAP_MAY_FILL;
            let may_grow = look.may_grow || shared.open || may_fill;
            let longest = if may_grow && !shared.open { LONGEST_UNTOUCHED } else { LONGEST };
            pause = (pause * 2).min(longest);
            let small = look.resident < THRESHOLD;
            if !may_grow && (idle >= IDLE_LOOKS || small) {
                return;
            }
        }
        let (shortest, spacing) = if look.resident > most { WOKEN_GROWN } else { WOKEN };
        most = most.max(look.resident);
        least = shortest.max(look.cost * spacing);
        pause = pause.max(look.cost * COST_SPACING).max(look.rest).min(LONGEST_UNTOUCHED);
    }
}
