//! The thread that gives freed memory back when the program has stopped calling the allocator.
//!
//! mimalloc returns memory on later calls. A program that frees most of its heap and then waits would keep
//! it. So a process whose heap has outgrown [`THRESHOLD`] gets one thread, which blocks every signal, wakes
//! when something expires (or once per delay, to look) and purges it. It ends when the heap has become small. With
//! `--return-after never` there is none.
//!
//! File-level obligation: the thread is detached and runs a function of this library, which is never unloaded;
//! it shares nothing with the rest but atomics.

#![allow(unsafe_code)]

use crate::HEAP;
use megapage_kernel::{Lock, main_has_ended};
use std::mem::MaybeUninit;
use std::os::raw::{c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of heap below which no thread is worth having.
const THRESHOLD: u64 = 64 << 20;
/// Bytes of stack: the thread makes system calls and walks bit maps.
const STACK: usize = 128 << 10;
/// The thread wakes at most this often, however short the delay, in milliseconds.
const SHORTEST_MS: u64 = 50;

unsafe extern "C" {
    fn megapage_purge_expired() -> c_long;
}

/// The delay in milliseconds; 0 for "never": no thread.
static DELAY_MS: AtomicU64 = AtomicU64::new(0);
/// A thread is wanted, and the next call of malloc may start it.
static WANTED: AtomicBool = AtomicBool::new(false);
/// A thread runs, or is being started.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// The thread exists: set by itself, first and last.
static ALIVE: AtomicBool = AtomicBool::new(false);
/// Held while the thread works on the heap.
static WORKING: Lock = Lock::new();

/// Sets the delay; `None` for never.
pub fn configure(delay_ms: Option<u64>) {
    DELAY_MS.store(delay_ms.map_or(0, |ms| ms.max(SHORTEST_MS)), Relaxed);
}

/// Called after the heap has grown.
pub fn consider() {
    if !RUNNING.load(Relaxed) && DELAY_MS.load(Relaxed) != 0 && held() >= THRESHOLD {
        WANTED.store(true, Relaxed);
    }
}

fn held() -> u64 {
    HEAP.ledger().total_held()
}

/// Whether [`start`] should be called. One load, for malloc's fast path.
#[inline]
pub fn is_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// Starts the thread. Called from malloc, where the caller holds no lock of the allocator; whatever
/// pthread_create allocates comes back here and finds nothing wanted any more.
#[cold]
pub fn start() {
    WANTED.store(false, Relaxed);
    if RUNNING.swap(true, Relaxed) {
        return;
    }
    let _errno = megapage_kernel::ErrnoGuard::save();
    // SAFETY: every object is initialised by the call named for it before it is used, and outlives it. The
    // thread's function is part of this library, which is never unloaded. All signals are blocked around
    // the creation, because the new thread inherits the mask: none of the program's signals reaches it.
    //
    // A limit on threads may refuse it: the program comes first, and mimalloc still purges on later calls.
    // RUNNING stays set, so that the attempt is not repeated.
    unsafe {
        let mut all = MaybeUninit::uninit();
        let mut former = MaybeUninit::uninit();
        let mut attributes = MaybeUninit::uninit();
        let mut thread = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), former.as_mut_ptr());
        libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), work, ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
}

extern "C" fn work(_argument: *mut c_void) -> *mut c_void {
    // SAFETY: the name is a C string of at most 15 bytes.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), c"megapage-return".as_ptr()) };
    let mut pause = DELAY_MS.load(Relaxed);
    ALIVE.store(true, Relaxed);
    while held() >= THRESHOLD && !main_has_ended(1) {
        std::thread::sleep(Duration::from_millis(pause));
        pause = WORKING.with(|| {
            // SAFETY: mimalloc lets any thread purge.
            let next = unsafe { megapage_purge_expired() };
            HEAP.sweep();
            match u64::try_from(next) {
                Ok(0) | Err(_) => DELAY_MS.load(Relaxed),
                Ok(milliseconds) => milliseconds.max(SHORTEST_MS),
            }
        });
    }
    ALIVE.store(false, Relaxed);
    RUNNING.store(false, Relaxed);
    ptr::null_mut()
}

/// Keeps the thread off the heap until [`unlock_after_fork`], which the parent and the child both call.
/// Answers how many threads the process has when the program runs in one.
pub fn lock_for_fork() -> u64 {
    WORKING.lock();
    1 + u64::from(ALIVE.load(Relaxed))
}

/// See [`lock_for_fork`].
pub fn unlock_after_fork() {
    WORKING.unlock();
}

/// In a forked child: the thread was not copied.
pub fn forget_in_child() {
    RUNNING.store(false, Relaxed);
    ALIVE.store(false, Relaxed);
    consider();
}
