//! futex(2), on which a [`crate::Lock`] waits.
//!
//! File-level obligation: the futex word outlives every call, for it is borrowed.

#![allow(unsafe_code)]

use crate::clock::monotonic;
pub(crate) use crate::held::{released, taking};
use crate::system::call;
pub(crate) use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Attempts to take a lock before the waiter sleeps.
pub(crate) const SPINS: usize = 1000;

const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

/// Sleeps while the word is `expected`, until it is woken. May also end for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is borrowed for the call; a null timeout means to wait.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, WAIT, expected as usize, 0]) };
}

/// Wakes one thread that sleeps on the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all threads that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX as usize);
}

fn wake(word: &AtomicU32, count: usize) {
    // SAFETY: the word is borrowed for the call.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, WAKE, count]) };
}

/// Sleeps for `time`, or until the word is no longer `expected` and [`wake_all`] says so. Signals
/// do not end it.
///
/// It calls futex(2) and not clock_nanosleep(2), so that it works as well in a program that has
/// forbidden itself all calls but those of a malloc.
pub fn sleep_while(word: &AtomicU32, expected: u32, time: Duration) {
    let end = monotonic().saturating_add(time);
    loop {
        let left = end.saturating_sub(monotonic());
        if left.is_zero() || word.load(Relaxed) != expected {
            return;
        }
        let timeout = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let timeout = (&raw const timeout) as usize;
        // SAFETY: the word and the timeout live as long as the call.
        let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, WAIT, expected as usize, timeout]) };
    }
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    sleep_while(&AtomicU32::new(0), 0, time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_sleeper_is_woken_and_wakes_by_itself() {
        let began = Instant::now();
        sleep(Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(20));
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| sleep_while(&word, 0, Duration::from_secs(60)));
            word.store(1, Relaxed);
            while began.elapsed() < Duration::from_millis(40) {
                wake_all(&word);
            }
        });
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
