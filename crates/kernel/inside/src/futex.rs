//! futex(2), on which a [`crate::Lock`] waits.
//!
//! File-level obligation: the futex word outlives every call, for it is borrowed.

#![allow(unsafe_code)]

use crate::clock::monotonic;
pub(crate) use crate::held::{released, taking};
use crate::system::call;
use libc::c_int;
use std::ptr;
pub(crate) use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Attempts to take a lock before the waiter sleeps.
pub(crate) const SPINS: usize = 1000;

/// Sleeps while the word is `expected`, until it is woken. May also end for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    futex(word, libc::FUTEX_WAIT, expected, None);
}

/// Wakes one thread that sleeps on the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, None);
}

/// Wakes all threads that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, i32::MAX as u32, None);
}

fn futex(word: &AtomicU32, operation: c_int, value: u32, timeout: Option<&libc::timespec>) {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    let timeout = timeout.map_or(0, |timeout| ptr::from_ref(timeout) as usize);
    // SAFETY: the word and the timeout are borrowed for the call; a null timeout means to wait.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, operation, value as usize, timeout]) };
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
        futex(word, libc::FUTEX_WAIT, expected, Some(&timeout));
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
