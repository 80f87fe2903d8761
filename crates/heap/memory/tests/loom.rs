//! Locks, chunks, spans and the ledger, which threads share inside malloc: every order in which
//! their accesses can happen. `make loom` runs these tests; elsewhere the program is empty.
//!
//! The files under test are the ones that ship. They are compiled here with loom's atomics and
//! futex. With these each load answers every value that the C11 memory model allows, and not only
//! the values of this processor.

#![cfg(loom)]
#![allow(clippy::arc_with_non_send_sync, reason = "loom's threads are one thread that takes turns")]
#![allow(dead_code, missing_docs, reason = "parts of a crate, which another part uses")]

#[path = "../src/chunk.rs"]
mod chunk;
#[path = "loom/futex.rs"]
mod futex;
#[path = "../src/ledger.rs"]
mod ledger;
#[path = "../../../kernel/inside/src/lock.rs"]
mod lock;
#[path = "../src/span.rs"]
mod span;
#[path = "loom/sync.rs"]
mod sync;

use chunk::{Chunk, Mapping};
use ledger::{Backing, FallBack, Ledger};
use lock::{Lock, Locked};
use loom::cell::UnsafeCell;
use loom::thread;
use megapage_units::{HUGE_2M, HugePage};
use span::{Span, Spans};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use sync::{Reservation, SharedWords};

const BYTES: u64 = HugePage::SIZE;

/// Tries every order with at most `switches` switches of a thread that could go on. Few are enough
/// for almost any defect, and the number of orders grows with them beyond any time.
fn model(switches: usize, work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(work);
}

/// Starts a thread with room for ledgers, whose words are larger here: loom's threads have 32 KiB.
fn roomy<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    const WORDS: usize = 1 << 16;
    thread::Builder::new().stack_size(WORDS).spawn(work).unwrap()
}

/// Makes a lock whose words all threads know: loom wants an object to be made before it is shared.
fn lock() -> Lock {
    let lock = Lock::new();
    lock.with(|| ());
    lock
}

/// Access that no two threads may have at a time, nor in an order that only this processor keeps.
struct Alone(UnsafeCell<()>);

impl Alone {
    fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

#[test]
fn a_lock_lets_one_in_and_shows_what_was_done() {
    model(3, || {
        let shared = Arc::new((lock(), Alone(UnsafeCell::new(()))));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || (0..2).for_each(|_| shared.0.with(|| shared.1.touch())))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(shared.0.try_lock());
    });
}

#[test]
fn nobody_sleeps_on_a_lock_that_is_free() {
    // A thread that stays asleep makes a deadlock, which loom finds.
    model(2, || {
        let shared = Arc::new((lock(), Alone(UnsafeCell::new(()))));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.0.with(|| shared.1.touch()))
            })
            .collect();
        shared.0.with(|| shared.1.touch());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_lock_that_is_tried_excludes_as_well() {
    model(3, || {
        let shared = Arc::new((lock(), Alone(UnsafeCell::new(()))));
        let other = shared.clone();
        let thread = thread::spawn(move || {
            if other.0.try_lock() {
                other.1.touch();
                other.0.unlock();
            }
        });
        shared.0.with(|| shared.1.touch());
        thread.join().unwrap();
    });
}

#[test]
fn neighbouring_slices_are_committed_without_loss() {
    model(3, || {
        let words = sync::words(Chunk::WORDS);
        let shared = Arc::new(lock());
        Chunk::at(words, 0).set_slices(0b1000, 0b1000);
        Chunk::at(words, 0).set_mapping(Mapping::Mapped(Backing::Thp));
        let commits = [0b01, 0b10].map(|mask| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.with(|| {
                    let chunk = Chunk::at(words, 0);
                    assert!(chunk.commit(mask), "no other thread has used it");
                    // No other thread has come between: a failed commit would take back only its
                    // own slices.
                    assert_eq!((chunk.added(), chunk.mapping()), (mask, Mapping::Mapped(Backing::Thp)));
                });
            })
        });
        shared.with(|| {
            let chunk = Chunk::at(words, 0);
            chunk.set_slices(chunk.committed() & !0b1000, chunk.used());
        });
        commits.into_iter().for_each(|thread| thread.join().unwrap());
        let chunk = Chunk::at(words, 0);
        assert_eq!((chunk.committed(), chunk.used()), (0b0011, 0b1011));
    });
}

#[test]
fn a_span_is_not_walked_once_it_was_released() {
    model(2, || {
        let shared = Arc::new((Locked::new(Spans::new()), lock(), lock()));
        shared.0.with(|_| ());
        let (owner, all) = Reservation::beginning(HUGE_2M, HUGE_2M, HUGE_2M).unwrap();
        let span = Span::new(all, HUGE_2M).unwrap();
        span.chunk(0).set_mapping(Mapping::Mapped(Backing::Thp));
        shared.0.with(|spans| spans.insert(span)).unwrap();
        let other = shared.clone();
        // Walks as `HugeHeap::sweep` and `HugeHeap::repair` do.
        let walker = thread::spawn(move || {
            let (spans, walks, group) = &*other;
            walks.with(|| {
                let (found, more) = spans.with(|spans| spans.slot(0));
                if let Some(span) = found {
                    group.with(|| {
                        assert_eq!(span.chunk(0).mapping(), Mapping::Mapped(Backing::Thp));
                        span.chunk(0).set_slices(0, 0);
                    });
                }
                assert!(!more);
            });
        });
        // Releases as `HugeHeap::release` does.
        let (spans, walks, _) = &*shared;
        let removed = spans.with(|spans| spans.remove(span.range.start(), HUGE_2M)).unwrap();
        walks.with(|| removed.release(owner, Reservation::release)).unwrap();
        walker.join().unwrap();
        assert!(spans.with(|spans| spans.find(span.range.start())).is_none());
    });
}

#[test]
fn the_ledger_adds_up() {
    model(2, || {
        let ledger = Arc::new(Ledger::launcher(SharedWords::model()));
        let other = ledger.clone();
        let use_it = |ledger: &Ledger, backing| {
            ledger.obtained(backing, 2 * BYTES);
            ledger.returned(backing, BYTES);
        };
        let thread = thread::spawn(move || use_it(&other, Backing::Thp));
        use_it(&ledger, Backing::Hugetlb2M);
        thread.join().unwrap();
        assert_eq!((ledger.total_held(), ledger.returned_bytes()), (2 * BYTES, 2 * BYTES));
        // Both at a time, or one after the other.
        assert!([3 * BYTES, 4 * BYTES].contains(&ledger.peak()), "{}", ledger.peak());
        assert!(ledger.is_plausible());
    });
}

#[test]
fn fall_backs_and_forks_are_counted_without_loss() {
    model(3, || {
        let ledger = Arc::new(Ledger::launcher(SharedWords::model()));
        let other = ledger.clone();
        let thread = thread::spawn(move || {
            other.fell_back(FallBack::Fork, BYTES, 0);
            other.spans(BYTES, 3 * BYTES);
        });
        ledger.fell_back(FallBack::Fork, BYTES, 12);
        ledger.spans(2 * BYTES, 4 * BYTES);
        thread.join().unwrap();
        assert_eq!(ledger.fall_backs(FallBack::Fork), (2, 2 * BYTES));
        assert_eq!((ledger.last_errno(), ledger.span()), (12, Some((BYTES, 4 * BYTES))));
    });
}

#[test]
fn what_was_counted_before_the_exit_is_seen_with_it() {
    model(3, || {
        let ledger = Arc::new(Ledger::launcher(SharedWords::model()));
        let program = ledger.clone();
        let thread = thread::spawn(move || {
            program.obtained(Backing::Hugetlb2M, BYTES);
            program.fell_back(FallBack::PoolShort2M, BYTES, 12);
            // Does the same as `megapage_inside::ExitHandshake`, whose atomics are the processor's.
            program.exit_words()[0].store(1, Release);
        });
        if ledger.exit_words()[0].load(Acquire) != 0 {
            assert_eq!(ledger.held(Backing::Hugetlb2M), BYTES);
            assert_eq!(ledger.fall_backs(FallBack::PoolShort2M), (1, BYTES));
        }
        thread.join().unwrap();
    });
}

#[test]
fn one_process_claims_a_ledger() {
    model(3, || {
        let words = SharedWords::model();
        roomy(move || drop(Ledger::launcher(words))).join().unwrap();
        let threads = [7, 8].map(|pid| roomy(move || Ledger::claim(words, pid).is_some()));
        let claims = threads.map(|thread| thread.join().unwrap());
        assert_ne!(claims[0], claims[1]);
    });
}
