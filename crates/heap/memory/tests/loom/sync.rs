//! Building blocks of the parts under test: loom's atomics, and memory that notices its use after
//! its release.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use megapage_inside::Errno;

/// Spans that fit on the small stacks of loom's threads.
pub const MAX_SPANS: usize = 4;

/// Atomic that can be made in a constant, as loom's cannot: it comes to be at its first use.
#[derive(Debug)]
pub struct AtomicU64 {
    initial: u64,
    made: OnceLock<loom::sync::atomic::AtomicU64>,
    released: AtomicBool,
}

impl AtomicU64 {
    pub const fn new(initial: u64) -> AtomicU64 {
        AtomicU64 { initial, made: OnceLock::new(), released: AtomicBool::new(false) }
    }

    fn word(&self) -> &loom::sync::atomic::AtomicU64 {
        assert!(!self.released.load(Ordering::Relaxed), "it was released");
        self.made.get_or_init(|| loom::sync::atomic::AtomicU64::new(self.initial))
    }

    pub fn load(&self, order: Ordering) -> u64 {
        self.word().load(order)
    }

    pub fn store(&self, value: u64, order: Ordering) {
        self.word().store(value, order);
    }

    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.word().fetch_add(value, order)
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.word().fetch_sub(value, order)
    }

    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.word().fetch_max(value, order)
    }

    pub fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
        self.word().fetch_min(value, order)
    }

    pub fn compare_exchange(
        &self,
        former: u64,
        value: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, u64> {
        self.word().compare_exchange(former, value, done, failed)
    }
}

/// Makes `count` words in the calling thread.
pub fn words(count: usize) -> &'static [AtomicU64] {
    let words: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    for word in &words {
        word.word();
    }
    words.leak()
}

/// Words that two processes share.
#[derive(Clone, Copy, Debug)]
pub struct SharedWords(&'static [AtomicU64]);

impl SharedWords {
    /// Makes at least as many words as a ledger has.
    pub fn model() -> SharedWords {
        SharedWords(words(256))
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.0
    }
}

pub fn allocate_words(count: usize) -> Result<&'static [AtomicU64], Errno> {
    Ok(words(count))
}

/// Releases words: each later use of them fails.
pub fn release_words(words: &'static [AtomicU64]) {
    words.iter().for_each(|word| word.released.store(true, Ordering::Relaxed));
}

/// Range of addresses without memory.
#[derive(Clone, Copy, Debug)]
pub struct Guarded {
    start: usize,
    len: usize,
}

impl Guarded {
    pub fn start(self) -> usize {
        self.start
    }

    pub fn end(self) -> usize {
        self.start + self.len
    }

    pub fn len(self) -> usize {
        self.len
    }

    pub fn part(self, offset: usize, len: usize) -> Guarded {
        Guarded { start: self.start + offset, len }
    }
}

/// Owner of such a range.
#[derive(Debug)]
pub struct Reservation {
    range: Guarded,
}

impl Reservation {
    pub fn beginning(len: usize, first: usize, alignment: usize) -> Result<(Reservation, Guarded), Errno> {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
        let start = NEXT.fetch_add(len + alignment, Ordering::Relaxed).next_multiple_of(alignment);
        Ok((Reservation { range: Guarded { start, len: first } }, Guarded { start, len }))
    }

    pub fn release(self) -> Result<(), Errno> {
        Ok(())
    }

    pub fn keep(self) -> Guarded {
        self.range
    }

    pub fn split_off(&mut self, offset: usize) -> Reservation {
        let behind = self.range.part(offset, self.range.len - offset);
        self.range.len = offset;
        Reservation { range: behind }
    }
}

impl std::ops::Deref for Reservation {
    type Target = Guarded;

    fn deref(&self) -> &Guarded {
        &self.range
    }
}
