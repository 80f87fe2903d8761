//! A lock that allocates nothing, knows no owner and can be held across fork(2).
//!
//! File-level obligation: the value of a [`Locked`] is reached with its lock held, and in no other
//! way.
//!
//! `crates/heap/memory/tests/loom.rs` compiles this file with another `crate::futex`, which tries
//! every order of accesses.

#![allow(unsafe_code)]

use crate::futex::{AtomicU32, SPINS, released, taking, wait, wake_one};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A futex(2) lock of three states (free, held, held with waiters), after Drepper's "Futexes are
/// tricky".
///
/// Unlike `std::sync::Mutex` it has no owner and needs no guard. A fork handler takes it in the
/// parent before the fork and releases it on both sides.
#[derive(Debug)]
pub struct Lock(AtomicU32);

impl Lock {
    /// Makes a free lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) {
        taking();
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_contended();
        }
    }

    /// Takes the lock if it is free; returns true if it was.
    pub fn try_lock(&self) -> bool {
        taking();
        let taken = self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        if !taken {
            released();
        }
        taken
    }

    #[cold]
    fn lock_contended(&self) {
        // The lock is held for a page fault or a system call at most: often no longer than the
        // spin.
        for _ in 0..SPINS {
            if self.0.load(Relaxed) == FREE && self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(CONTENDED, Acquire) != FREE {
            wait(&self.0, CONTENDED);
        }
    }

    /// Releases the lock, which the caller (or, after a fork, its parent) holds.
    #[inline]
    pub fn unlock(&self) {
        if self.0.swap(FREE, Release) == CONTENDED {
            wake_one(&self.0);
        }
        released();
    }

    /// Frees the lock in a forked child, whichever thread held it. The holder may be a thread that
    /// the child does not have. It may also be code of the child's one thread, which goes on later
    /// and releases the lock once more.
    pub fn reset(&self) {
        self.0.store(FREE, Release);
    }

    /// Takes the lock as [`Lock::lock`] does, until the guard is dropped.
    #[inline]
    pub fn hold(&self) -> Held<'_> {
        self.lock();
        Held(self)
    }

    /// Takes the lock if it is free, until the guard is dropped.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        self.try_lock().then(|| Held(self))
    }

    /// Runs `work` with the lock held.
    pub fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        let _held = self.hold();
        work()
    }
}

/// Guard of a [`Lock`] that the calling thread holds.
#[derive(Debug)]
pub struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// A value behind a [`Lock`].
#[derive(Debug)]
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `with` and `try_with`, which hold the lock. So it moves
// between threads but is never shared by two at a time.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Makes an unlocked value.
    pub const fn new(value: T) -> Locked<T> {
        Locked { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Runs `work` on the value with the lock held. Must not be nested on one value: it would wait
    /// for itself.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock is held while the reference lives, and nesting waits forever rather than
        // aliases.
        self.lock.with(|| work(unsafe { &mut *self.value.get() }))
    }

    /// Runs `work` on the value if the lock is free; `None` where it is not.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the lock is held while the reference lives.
        self.lock.try_hold().map(|_held| work(unsafe { &mut *self.value.get() }))
    }

    /// Takes the lock for a fork handler; [`Locked::unlock_after_fork`] must follow.
    pub fn lock_for_fork(&self) {
        self.lock.lock();
    }

    /// Releases the lock that [`Locked::lock_for_fork`] took, in the parent and in the child.
    pub fn unlock_after_fork(&self) {
        self.lock.unlock();
    }

    /// Frees the lock in a forked child, as [`Lock::reset`] does.
    pub fn reset(&self) {
        self.lock.reset();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_not_taken() {
        let lock = Lock::new();
        assert!(lock.try_lock() && !lock.try_lock());
        lock.unlock();
        assert!(lock.try_lock());
    }

    #[test]
    fn no_two_threads_are_inside() {
        let counter = Locked::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        counter.with(|counter| *counter += 1);
                    }
                });
            }
        });
        assert_eq!(counter.with(|counter| *counter), 200_000);
    }
}
