//! The library's own threads: their start, and their number.
//!
//! A thread of ours is detached, blocks every signal and has a small stack. Programs that run in
//! one thread may depend on that. So a thread of ours exists only while it has work.
//!
//! File-level obligation: a thread runs a function of this library, which is never unloaded. It
//! shares only atomics and memory behind locks with the others.

#![allow(unsafe_code)]

use crate::next::Next;
use megapage_inside::program_memory::is_confined;
use megapage_inside::{
    ErrnoGuard, Lock, main_has_ended, own_pid, own_thread, set_thread_name, sleep_while, thread_exists,
    wake_all, without_signals,
};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of stack: a thread makes system calls and walks bit maps and short tables.
const STACK: usize = 128 << 10;

/// Threads that exist, or will in a moment, and are counted among the process's. Changes only under
/// [`WORKING`].
static ALIVE: AtomicU64 = AtomicU64::new(0);
/// Process whose threads these are; 0 until [`own`].
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Held while a thread works on the heap, starts and ends.
pub static WORKING: Lock = Lock::new();
/// Threads that have begun: an id, or its negative once the thread has nothing more to do.
static BEGUN: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
/// 1 if every thread is to end.
static STOPPED: AtomicU32 = AtomicU32::new(0);
/// Number of calls of [`wake`].
static WAKES: AtomicU32 = AtomicU32::new(0);
/// Looks, and the pause after each, with which a program that forbids itself system calls waits for
/// threads that end.
const STOP_LOOKS: usize = 10_000;
const STOP_LOOK: Duration = Duration::from_micros(200);
/// Looks, and the pause after each, for a signal handler that forks in the midst of an allocation:
/// it waits for threads that work.
const FORK_LOOKS: usize = 20;
const FORK_LOOK: Duration = Duration::from_micros(100);

type Work = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Work, *mut c_void) -> c_int;

/// The C library's function, whatever the program calls by that name.
static NEXT_CREATE: Next<Create> = Next::new(c"pthread_create");

unsafe extern "C" {
    /// True if a thread is wanted, and the next call of malloc may start it. Defined in
    /// thread_cache.c, which reads it at each call.
    static megapage_thread_wanted: AtomicBool;
}

/// Returns the flag that [`crate::wanted::start_wanted`] should be called.
#[inline]
pub fn thread_wanted() -> &'static AtomicBool {
    // SAFETY: it exists as long as the library, and both languages access it as an atomic of one
    // byte.
    unsafe { &megapage_thread_wanted }
}

/// Makes the next call of malloc start the wanted threads: for code within the allocator, which
/// holds its locks.
pub fn want() {
    thread_wanted().store(true, Relaxed);
}

/// Result of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// The thread runs, or will in a moment.
    Yes,
    /// Another thread works or forks at this moment: try again later.
    Busy,
    /// The system refuses threads.
    Refused,
}

/// Starts a thread. The caller holds no lock of the allocator, because pthread_create allocates
/// from it.
#[cold]
pub fn start(work: Work) -> Started {
    // A thread is more than a malloc may ask for, and would inherit the filters of the program.
    if is_confined() {
        return Started::Refused;
    }
    // A child of vfork(2) shares our memory, and must have no thread.
    let Some(create) = NEXT_CREATE.get().filter(|_| OWNER.load(Relaxed) == own_pid()) else {
        return Started::Busy;
    };
    let _errno = ErrnoGuard::save();
    // SAFETY: every object is initialised by the call named for it before it is used, and outlives
    // it. The thread's function is part of this library, which is never unloaded.
    unsafe {
        let mut attributes = MaybeUninit::uninit();
        let mut thread = MaybeUninit::uninit();
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return Started::Refused;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        // The new thread inherits the mask, so that none of the program's signals reaches it. The
        // lock is only tried, because the calling thread may be in a fork and hold it.
        let started = without_signals(|| {
            if WORKING.try_lock() {
                ALIVE.fetch_add(1, Relaxed);
                let error = create(thread.as_mut_ptr(), attributes.as_ptr(), work, ptr::null_mut());
                if error != 0 {
                    ALIVE.fetch_sub(1, Relaxed);
                }
                WORKING.unlock();
                if error == 0 { Started::Yes } else { Started::Refused }
            } else {
                Started::Busy
            }
        });
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    }
}

/// Begins the calling thread of ours, under a name of at most 15 bytes.
pub fn begin(name: &CStr) {
    let own = own_thread();
    let free = |place: &&AtomicI32| {
        let former = place.load(Relaxed);
        former <= 0 && place.compare_exchange(former, own, Relaxed, Relaxed).is_ok()
    };
    let _ = BEGUN.iter().find(free);
    set_thread_name(name);
}

/// Ends the calling thread of ours, which does nothing more.
pub fn end() {
    let own = own_thread();
    for place in &BEGUN {
        let _ = place.compare_exchange(own, -own, Relaxed, Relaxed);
    }
    WORKING.with(|| ALIVE.fetch_sub(1, Relaxed));
}

/// Returns true if a thread of ours is to end. Either [`stop`] was called, or the program's threads
/// have ended: the process ends only when ours do.
pub fn program_has_ended() -> bool {
    STOPPED.load(Relaxed) != 0 || main_has_ended(ALIVE.load(Relaxed))
}

/// Sleeps, in a thread of ours, at most until [`stop`].
pub fn sleep(time: Duration) {
    sleep_while(&STOPPED, 0, time);
}

/// Sleeps, in a thread of ours, until [`wake`] is called. Returns at once if it was called since
/// this function returned `wakes`. Returns the number of its calls.
pub fn sleep_unless_woken(wakes: u32, time: Duration) -> u32 {
    sleep_while(&WAKES, wakes, time);
    WAKES.load(Relaxed)
}

/// Wakes threads of ours out of [`sleep_unless_woken`]. May be called from within the allocator.
pub fn wake() {
    WAKES.fetch_add(1, Relaxed);
    wake_all(&WAKES);
}

/// Ends all threads of ours, and waits until they are gone, 2 s at most. The program is about to
/// forbid itself, and perhaps them, the calls that a thread needs in order to end. No other thread
/// starts.
pub fn stop() {
    if OWNER.load(Relaxed) != own_pid() {
        return;
    }
    STOPPED.store(1, Relaxed);
    wake_all(&STOPPED);
    wake();
    for _ in 0..STOP_LOOKS {
        let exists = |place: &AtomicI32| match place.load(Relaxed) {
            0 => false,
            thread => thread_exists(thread.abs()),
        };
        if ALIVE.load(Relaxed) == 0 && !BEGUN.iter().any(exists) {
            return;
        }
        megapage_inside::sleep(STOP_LOOK);
    }
}

/// Keeps threads of ours off the heap, for a signal handler that forks and has interrupted an
/// allocation. Waits at most 2 ms until they leave it: they may wait for locks of the interrupted
/// code. Returns true if [`WORKING`] is held.
pub fn pause_briefly() -> bool {
    ALIVE.load(Relaxed) > 0
        && (0..FORK_LOOKS).any(|_| {
            let taken = WORKING.try_lock();
            if !taken {
                megapage_inside::sleep(FORK_LOOK);
            }
            taken
        })
}

/// Returns the number of threads of ours. The caller holds [`WORKING`].
pub fn alive() -> u64 {
    ALIVE.load(Relaxed)
}

/// Makes this process the one that may have threads of ours.
pub fn own() {
    OWNER.store(own_pid(), Relaxed);
    NEXT_CREATE.find();
}

/// Resets the state in a forked child: no thread was copied.
pub fn forget_in_child() {
    OWNER.store(own_pid(), Relaxed);
    BEGUN.iter().for_each(|place| place.store(0, Relaxed));
    ALIVE.store(0, Relaxed);
}
