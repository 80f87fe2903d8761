//! The thread that collapses what the program has mapped by itself (see `megapage_memory::Collapser`).
//!
//! It exists while such memory grows: a program that maps little never has one, and one that stays idle loses it.

#![forbid(unsafe_code)]

use crate::threads::{self, Started};
use crate::{HEAP, MAPPED, SHARED, mappings};
use megapage_inside::leave_descriptors;
use megapage_inside::program_memory::is_confined;
use megapage_memory::{Backing, Collapser};
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that a program maps by itself before there is a thread.
const THRESHOLD: u64 = 64 << 20;
/// After it has ended, the next one starts when so much more was mapped.
const AGAIN: u64 = 16 << 20;
/// The thread looks this often while memory grows,
const SHORTEST: Duration = Duration::from_millis(50);
/// less and less often while it does not,
const LONGEST: Duration = Duration::from_secs(1);
/// and not at all after so many looks without growth; where much is mapped and untouched, this often.
const IDLE_LOOKS: u32 = 6;
const LONGEST_UNTOUCHED: Duration = Duration::from_secs(8);
/// Looking costs at most this part of the time,
const COST_SPACING: u32 = 100;
/// and this part, but no shorter pauses, where the heap grows faster than is looked.
const WOKEN_COST_SPACING: u32 = 20;
const SHORTEST_WOKEN: Duration = Duration::from_millis(10);
/// A heap of so many bytes may have one,
pub const HEAP_AT: u64 = 32 << 20;
/// where so many are on base pages: those that every heap begins with.
const HEAP_ON_BASE: u64 = 4 << 20;
/// While so many are committed there, they may still be filled.
const HEAP_MAY_FILL: u64 = 16 << 20;
/// Resident memory has grown when it is larger by this many bytes.
const GROWTH: u64 = 4 << 20;

/// Bytes mapped since the last thread has ended, less what the first one wants more.
static GROWN: AtomicU64 = AtomicU64::new(0);
/// How much of that starts one.
static NEXT: AtomicU64 = AtomicU64::new(THRESHOLD);
/// A thread runs, or is being started, or can never run.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// The program has mapped, or opened, private memory. With no lock of the allocator held.
pub fn consider(bytes: usize) {
    if grow(bytes) >= NEXT.load(Relaxed) && !RUNNING.load(Relaxed) {
        start();
    }
}

/// The heap has grown, and may have chunks on base pages that fill up, or has grown too much since
/// the last look. From within the allocator.
pub fn consider_later(bytes: usize) {
    let grown = grow(bytes);
    if HEAP.wants_look() && RUNNING.load(Relaxed) && !is_confined() {
        threads::wake();
    }
    let ledger = HEAP.ledger();
    let is_worth_it = || HEAP.size() >= HEAP_AT && ledger.held(Backing::Base) >= HEAP_ON_BASE;
    if grown >= AGAIN && !RUNNING.load(Relaxed) && is_worth_it() && mappings::is_active() {
        NEXT.store(AGAIN, Relaxed);
        threads::want();
    }
}

/// Returns the bytes mapped since the last thread has ended, with these.
fn grow(bytes: usize) -> u64 {
    GROWN.fetch_add(bytes as u64, Relaxed).saturating_add(bytes as u64)
}

/// Starts the thread where one is wanted.
pub fn start() {
    let wanted = GROWN.load(Relaxed) >= NEXT.load(Relaxed);
    if wanted && !RUNNING.swap(true, Relaxed) && threads::start(work) == Started::Busy {
        RUNNING.store(false, Relaxed);
    }
}

/// In a forked child: the thread was not copied.
pub fn forget_in_child() {
    RUNNING.store(false, Relaxed);
    rest();
}

/// The next thread starts after [`AGAIN`].
fn rest() {
    HEAP.keep_seen(AGAIN);
    GROWN.store(0, Relaxed);
    NEXT.store(AGAIN, Relaxed);
}

extern "C" fn work(_argument: *mut c_void) -> *mut c_void {
    threads::begin(c"megapage-huge");
    // Looking opens files: see `returner`. Where that or the page map is not to be had, RUNNING stays set: never again.
    let collapser = if leave_descriptors() { Collapser::new() } else { None };
    if let Some(mut collapser) = collapser {
        watch(&mut collapser);
        rest();
        threads::end();
        RUNNING.store(false, Relaxed);
    } else {
        // No thread can see how much the program touches: as if it touched all.
        HEAP.note_untouched(0, u64::MAX / 2);
        threads::end();
    }
    ptr::null_mut()
}

fn watch(collapser: &mut Collapser) {
    let (mut pause, mut idle, mut resident) = (SHORTEST, 0, 0u64);
    // Of shared memory, which other processes may fill.
    let mut present = 0;
    let (mut least, mut wakes) = (pause, 0);
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
        least = SHORTEST_WOKEN.max(look.cost * WOKEN_COST_SPACING);
        pause = pause.max(look.cost * COST_SPACING).max(look.rest).min(LONGEST_UNTOUCHED);
    }
}
