//! futex(2), on which a [`crate::Lock`] waits.
//!
//! File-level obligation: the futex word outlives every call, for it is borrowed.

#![allow(unsafe_code)]

pub(crate) use std::sync::atomic::AtomicU32;

/// Attempts to take a lock before the waiter sleeps.
pub(crate) const SPINS: usize = 100;

/// Sleeps while the word is `expected`, until it is woken, or for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is borrowed for the call; a null timeout means to wait.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes one that sleeps on the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    // SAFETY: the word is borrowed for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}
