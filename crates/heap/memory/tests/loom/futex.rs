//! A futex in loom's terms. To look at the word and to fall asleep are one step, as under the lock
//! of the kernel's queue.

use loom::sync::{Condvar, Mutex};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{self, Relaxed};

/// Looks at a lock before a thread sleeps. One shows as much as a hundred: each is a further look.
pub(crate) const SPINS: usize = 1;

/// Atomic that can be made in a constant, as loom's cannot: it comes to be at its first use.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    initial: u32,
    made: OnceLock<Made>,
}

#[derive(Debug)]
struct Made {
    word: loom::sync::atomic::AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl AtomicU32 {
    pub(crate) const fn new(initial: u32) -> AtomicU32 {
        AtomicU32 { initial, made: OnceLock::new() }
    }

    fn made(&self) -> &Made {
        self.made.get_or_init(|| Made {
            word: loom::sync::atomic::AtomicU32::new(self.initial),
            queue: Mutex::new(()),
            woken: Condvar::new(),
        })
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.made().word.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.made().word.store(value, order);
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.made().word.swap(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        former: u32,
        value: u32,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        self.made().word.compare_exchange(former, value, done, failed)
    }
}

pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    let made = word.made();
    let queue = made.queue.lock().unwrap();
    if made.word.load(Relaxed) == expected {
        drop(made.woken.wait(queue).unwrap());
    }
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let made = word.made();
    let queue = made.queue.lock().unwrap();
    made.woken.notify_one();
    drop(queue);
}

/// Does nothing: only forks look at the locks that a thread holds.
pub(crate) fn taking() {}

/// Does nothing: see [`taking`].
pub(crate) fn released() {}
