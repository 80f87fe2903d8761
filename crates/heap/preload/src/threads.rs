//! The library's own threads: how they are started, and how many there are.
//!
//! A thread of ours is detached, blocks every signal and has a small stack. Programs that run in one thread may depend on
//! that, so that there is one only where it has work.
//!
//! File-level obligation: a thread runs a function of this library, which is never unloaded; it shares nothing with the
//! others but atomics and what is behind locks.

#![allow(unsafe_code)]

use megapage_inside::{ErrnoGuard, Lock, main_has_ended};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of stack: a thread makes system calls and walks bit maps and short tables.
const STACK: usize = 128 << 10;

/// The threads that exist, or will in a moment, and are counted among the process's. Changes under [`WORKING`] only.
static ALIVE: AtomicU64 = AtomicU64::new(0);
/// The process whose threads these are; 0 until [`own`].
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Held while a thread works on the heap, starts and ends.
pub static WORKING: Lock = Lock::new();

unsafe extern "C" {
    /// A thread is wanted, and the next call of malloc may start it. Of thread_cache.c, which reads it each time.
    static megapage_thread_wanted: AtomicBool;
}

#[inline]
fn thread_wanted() -> &'static AtomicBool {
    // SAFETY: it is there as long as the library, and both languages access it as an atomic of one byte.
    unsafe { &megapage_thread_wanted }
}

/// Has the next call of malloc start what is wanted: for code within the allocator, which holds locks of it.
pub fn want() {
    thread_wanted().store(true, Relaxed);
}

/// Whether [`crate::wanted::start_wanted`] should be called. One load.
#[inline]
pub fn is_wanted() -> bool {
    thread_wanted().load(Relaxed)
}

/// Whether one is wanted: the first caller is to start it.
pub fn take_wanted() -> bool {
    thread_wanted().swap(false, Relaxed)
}

/// What came of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The thread runs, or will in a moment.
    Yes,
    /// Another thread works or forks at this moment: later.
    Busy,
    /// The system refuses threads.
    Refused,
}

/// Starts a thread. The caller holds no lock of the allocator; what pthread_create allocates comes back to it.
#[cold]
pub fn start(work: extern "C" fn(*mut c_void) -> *mut c_void) -> Started {
    // A child of vfork(2) shares our memory, and must have no thread.
    if ![0, std::process::id()].contains(&OWNER.load(Relaxed)) {
        return Started::Busy;
    }
    let _errno = ErrnoGuard::save();
    // SAFETY: every object is initialised by the call named for it before it is used, and outlives it. The
    // thread's function is part of this library, which is never unloaded. All signals are blocked around
    // the creation, because the new thread inherits the mask: none of the program's signals reaches it.
    unsafe {
        let mut all = MaybeUninit::uninit();
        let mut former = MaybeUninit::uninit();
        let mut attributes = MaybeUninit::uninit();
        let mut thread = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return Started::Refused;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), former.as_mut_ptr());
        // Not waited for: the calling thread may be in a fork, and hold it itself.
        let started = if WORKING.try_lock() {
            ALIVE.fetch_add(1, Relaxed);
            let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), work, ptr::null_mut());
            if error != 0 {
                ALIVE.fetch_sub(1, Relaxed);
            }
            WORKING.unlock();
            if error == 0 { Started::Yes } else { Started::Refused }
        } else {
            Started::Busy
        };
        libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    }
}

/// Names the calling thread; at most 15 bytes.
pub fn set_name(name: &CStr) {
    // SAFETY: the name is a C string.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
}

/// The calling thread of ours does nothing more.
pub fn end() {
    WORKING.with(|| ALIVE.fetch_sub(1, Relaxed));
}

/// Whether the main thread and all others of the program have ended: the process ends only when ours do.
pub fn program_has_ended() -> bool {
    main_has_ended(ALIVE.load(Relaxed))
}

/// How many threads of ours there are. With [`WORKING`] held.
pub fn alive() -> u64 {
    ALIVE.load(Relaxed)
}

/// This process is the one that may have threads of ours.
pub fn own() {
    OWNER.store(std::process::id(), Relaxed);
}

/// In a forked child: no thread was copied.
pub fn forget_in_child() {
    own();
    ALIVE.store(0, Relaxed);
}
