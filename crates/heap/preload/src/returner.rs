//! The thread that releases freed memory when the program has stopped calling the allocator, and
//! repairs huge pages that forks have split.
//!
//! mimalloc returns memory on later calls. A program that frees most of its heap and then waits
//! would keep it. So a process gets one thread if its heap is large for its room, or if it has
//! freed much (waiting.c). The thread blocks every signal, wakes when something expires (or once
//! per delay, to look) and purges it. Near a limit on memory it purges all that is free. It ends
//! when the heap is small and nothing waits. With `--return-after never` there is none, unless
//! forks are to be repaired or memory has a limit.
//!
//! File-level obligation: mimalloc's functions are called with its contract, which lets any thread
//! purge.

#![allow(unsafe_code)]

use crate::HEAP;
use crate::threads::{self, Started, WORKING};
use megapage_inside::leave_descriptors;
use megapage_inside::program_memory::is_confined;
use megapage_memory::{Fork, Repair, Repaired};
use std::os::raw::{c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shortest delay, and shortest time between two purges, in milliseconds.
const SHORTEST_MS: u64 = 50;

/// Time between two walks for split huge pages, in milliseconds.
const REPAIR_MS: u64 = 250;
/// Least time between two walks, in units of the time that looking took.
const REPAIR_SHARE: u32 = 50;
/// Pauses after each huge page, in units of the time that it took: with `--fork snapshot`, and
/// otherwise. So the program's next fault does not wait again, and has the processor.
const RESTS: [u64; 2] = [3, 1];
/// Longest such pause.
const MOST_PAUSE: Duration = Duration::from_millis(50);

unsafe extern "C" {
    safe fn megapage_purge_expired(all: bool) -> c_long;
}

/// Delay in milliseconds; 0 stands for "never": nothing is released unless memory is short.
static DELAY_MS: AtomicU64 = AtomicU64::new(0);
/// True if huge pages that forks have split are repaired.
static REPAIRS: AtomicBool = AtomicBool::new(false);
/// Pause after a repair: one of [`RESTS`].
static REST: AtomicU64 = AtomicU64::new(RESTS[1]);
/// Threads that wait for [`WORKING`] to fork: the thread lets them go first.
static FORKING: AtomicU64 = AtomicU64::new(0);
/// Time for which the thread sleeps then.
const GIVE_WAY: Duration = Duration::from_micros(200);
/// True if a thread is wanted.
static WANTED: AtomicBool = AtomicBool::new(false);
/// True if a thread runs, or is being started.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Sets the delay (`None` for never), and the purpose of the program's forks.
pub fn configure(delay_ms: Option<u64>, fork: Fork) {
    DELAY_MS.store(delay_ms.map_or(0, |ms| ms.max(SHORTEST_MS)), Relaxed);
    REPAIRS.store(fork != Fork::Auto, Relaxed);
    REST.store(RESTS[usize::from(fork != Fork::Snapshot)], Relaxed);
}

fn has_work() -> bool {
    DELAY_MS.load(Relaxed) != 0 || REPAIRS.load(Relaxed) || HEAP.measured_every().is_some()
}

/// Wants the thread if the heap is worth one. Called after the heap has grown.
pub fn consider() {
    if !RUNNING.load(Relaxed) && HEAP.is_worth_a_thread() && has_work() {
        want();
    }
}

/// Wants the thread: more freed memory waits than always may.
pub fn much_waits() {
    if !RUNNING.load(Relaxed) && DELAY_MS.load(Relaxed) != 0 {
        want();
    }
}

/// Starts the thread if one is wanted: see [`crate::wanted::start_wanted`].
pub fn start() {
    // A limit on threads may refuse it: the program comes first, and mimalloc still purges on later
    // calls. RUNNING stays set, so that the attempt is not repeated.
    if WANTED.swap(false, Relaxed) && !RUNNING.swap(true, Relaxed) && threads::start(work) == Started::Busy {
        RUNNING.store(false, Relaxed);
        want();
    }
}

fn want() {
    WANTED.store(true, Relaxed);
    threads::want();
}

/// Returns the time to sleep until something is due: a walk for split huge pages, a purge, or a
/// reading of the limits.
fn pause(look: Instant, purge: Instant) -> Duration {
    let now = Instant::now();
    let until = |due: Instant| due.saturating_duration_since(now);
    let look = REPAIRS.load(Relaxed).then(|| until(look));
    let purge = (DELAY_MS.load(Relaxed) != 0).then(|| until(purge));
    [look, purge, HEAP.measured_every()].into_iter().flatten().min().unwrap_or_default()
}

/// Walks over the heap and repairs it, if the program has forked. Returns the time that looking
/// took. Repairs are not counted: a pause follows each, and a repaired page is done.
fn repair() -> Duration {
    let mut walk = Repair::default();
    let mut looked = Duration::ZERO;
    if !HEAP.may_be_split() {
        return looked;
    }
    loop {
        // A fork waits for one step at most.
        while FORKING.load(Relaxed) > 0 {
            threads::sleep(GIVE_WAY);
        }
        let (step, took) = WORKING.with(|| {
            let start = Instant::now();
            (HEAP.repair(&mut walk), start.elapsed())
        });
        match step {
            Repaired::Nothing => looked += took,
            Repaired::Ready => {}
            // The process ends only when this thread does.
            Repaired::Chunk if threads::program_has_ended() => return looked,
            Repaired::Chunk => threads::sleep((took * REST.load(Relaxed) as u32).min(MOST_PAUSE)),
            Repaired::End { .. } => return looked + took,
        }
    }
}

extern "C" fn work(_argument: *mut c_void) -> *mut c_void {
    threads::begin(c"megapage-return");
    // Looking opens files. In the program's table, it would meet descriptors that another thread
    // closes and replaces by their numbers. Without a separate table nothing is repaired, and no
    // limit is read again.
    let can_look = !is_confined() && leave_descriptors();
    if !can_look {
        REPAIRS.store(false, Relaxed);
    }
    let mut look = Instant::now();
    let mut purge = look + Duration::from_millis(DELAY_MS.load(Relaxed));
    let mut waits = true;
    while has_work() && (waits || HEAP.is_worth_a_thread()) && !threads::program_has_ended() {
        threads::sleep(pause(look, purge));
        if can_look && !is_confined() {
            HEAP.measure();
        }
        let short = HEAP.is_short();
        let delay = DELAY_MS.load(Relaxed);
        if short || delay != 0 && purge <= Instant::now() {
            let next = WORKING.with(|| {
                // mimalloc lets any thread purge.
                let next = megapage_purge_expired(short);
                HEAP.sweep();
                waits = next > 0;
                match u64::try_from(next) {
                    Ok(0) | Err(_) => delay,
                    Ok(milliseconds) => milliseconds.max(SHORTEST_MS),
                }
            });
            purge = Instant::now() + Duration::from_millis(next);
        }
        if REPAIRS.load(Relaxed) && look <= Instant::now() {
            let busy = repair();
            look = Instant::now() + Duration::from_millis(REPAIR_MS).max(busy * REPAIR_SHARE);
        }
    }
    threads::end();
    RUNNING.store(false, Relaxed);
    ptr::null_mut()
}

/// Keeps the thread off the heap until [`unlock_after_fork`], which the parent and the child both
/// call. Returns the number of threads of the process while the program runs in one.
pub fn lock_for_fork() -> u64 {
    FORKING.fetch_add(1, Relaxed);
    WORKING.lock();
    FORKING.fetch_sub(1, Relaxed);
    1 + threads::alive()
}

/// Ends [`lock_for_fork`].
pub fn unlock_after_fork() {
    WORKING.unlock();
}

/// Resets the state in a forked child: the thread was not copied.
pub fn forget_in_child() {
    RUNNING.store(false, Relaxed);
    FORKING.store(0, Relaxed);
    consider();
}
