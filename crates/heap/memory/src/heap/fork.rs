//! Forks of a heap with private hugetlb pages, or with those of a broker.

use super::HugeHeap;
use super::broker::Stock;
use crate::chunk::Mapping;
use crate::ledger::{Backing, FallBack};
use crate::prim::Prim;
use megapage_inside::{Alone, Errno, ErrnoGuard, Lock};
use megapage_units::{HUGE_1G, HUGE_2M, PageSize};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Backings whose pages a fork has to copy, with their sizes.
const PRIVATE_POOLS: [(Backing, PageSize); 2] =
    [(Backing::Hugetlb1G, PageSize::HUGE_1G), (Backing::Hugetlb2M, PageSize::HUGE_2M)];

/// Times that the threads are counted, a millisecond apart, until those that are about to end have
/// ended.
const COUNTS: usize = 50;

/// Returns the proof that the program runs in one thread. The kernel counts a thread until a moment
/// after it was joined; with `patience` this function waits for that.
fn alone(kernel: &impl Prim, own_threads: u64, patience: bool) -> Option<Alone> {
    for _ in 0..if patience { COUNTS } else { 0 } {
        if kernel.thread_count().is_none_or(|threads| threads <= own_threads) {
            break;
        }
        kernel.sleep(Duration::from_millis(1));
    }
    kernel.alone(own_threads)
}

impl<K: Prim> HugeHeap<K> {
    /// Makes a fork safe. After it, a write by either side to a private hugetlb page needs a second
    /// page. The child is killed if the pool has none. So the function does the first of these that
    /// is possible:
    ///
    /// - It moves the heap to THP, once and for good. Only a process with one thread can do that.
    /// - It makes sure that the pool can hold a second copy now. Another process may still take
    ///   those pages before they are needed.
    /// - It refuses the fork with ENOMEM, as the kernel refuses one that it cannot back.
    ///
    /// A broker's pages are mapped shared, and a fork makes no copies of them. If there are any,
    /// the heap is moved, or the fork is refused. `own_threads` is the number of threads of the
    /// process while the program runs in one. It is more than 1 if the library has threads that are
    /// known to be idle.
    pub fn before_fork(&self, own_threads: u64) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        let ledger = self.ledger();
        let shared = (self.stop_taking() * HUGE_2M) as u64;
        let held: u64 = PRIVATE_POOLS.iter().map(|&(backing, _)| ledger.held(backing)).sum();
        // A broker's pages can only be moved, so that ending threads are waited for at once.
        let moved = |patience| self.moves_to_thp(held, shared, own_threads, patience);
        if held + shared > 0 && !moved(shared > 0) {
            let carried = shared == 0
                && PRIVATE_POOLS.iter().all(|&(backing, size)| {
                    let pages = ledger.held(backing).div_ceil(size.bytes().0);
                    pages == 0 || self.pool_carries(size, pages)
                });
            if carried {
                // The pool's free pages are kept for the copies.
                self.forked.store(true, Relaxed);
            } else if shared > 0 || !moved(true) {
                // The refusal is not due to a thread that the program has just joined: the move has
                // waited for it.
                self.take_again(false);
                ledger.forked(true);
                return Err(Errno::ENOMEM);
            }
        }
        ledger.forked(false);
        Ok(())
    }

    /// Moves the `held` bytes on private hugetlb pages and the `shared` bytes of a broker to THP,
    /// if memory allows it. If THP is off, it moves only a heap with a broker's pages, to base
    /// pages: otherwise there is no fork. With `patience` it waits for threads that are about to
    /// end. Returns true if it has moved the heap.
    fn moves_to_thp(&self, held: u64, shared: u64, own_threads: u64, patience: bool) -> bool {
        let memory = self.kernel.available_and_total();
        let room = memory.is_some_and(|(available, total)| available > held + shared + total / 20);
        let thp_off = self.thp_off.load(Relaxed);
        if !room || (thp_off && shared == 0) {
            return false;
        }
        let Some(alone) = alone(&self.kernel, own_threads, patience) else { return false };
        self.forked.store(true, Relaxed);
        self.return_remainder();
        self.move_to_thp(if thp_off { Backing::Base } else { Backing::Thp }, &alone).is_ok()
    }

    /// Returns true if `pages` further pages of `size` could be written now. A fault may be refused
    /// although the pool has pages (a cgroup limit). Then the only way to know is to fault them in,
    /// and release them.
    fn pool_carries(&self, size: PageSize, pages: u64) -> bool {
        if self.kernel.hugetlb_available(size).unwrap_or(0) < pages {
            return false;
        }
        if !self.config().populate {
            return true;
        }
        let bytes = size.bytes().0 as usize;
        let Ok(trial) = self.kernel.reserve(bytes * pages as usize, bytes) else { return false };
        let mapped = self.kernel.map_hugetlb(&trial, size);
        let carries = mapped.and_then(|()| self.kernel.populate(trial.view())).is_ok();
        let _ = self.kernel.release(trial);
        carries
    }

    /// Moves every hugetlb page of the heap to private memory, which counts as `to`.
    fn move_to_thp(&self, to: Backing, alone: &Alone) -> Result<(), Errno> {
        let mut slot = 0;
        loop {
            let (span, more) = self.spans.with(|spans| spans.slot(slot));
            if let Some(span) = span {
                let mut index = 0;
                while index < span.chunks() {
                    let (backing, chunks) = match span.chunk(index).mapping() {
                        Mapping::Mapped(Backing::Hugetlb1G) => (Backing::Hugetlb1G, HUGE_1G / HUGE_2M),
                        Mapping::Mapped(backing @ (Backing::Hugetlb2M | Backing::Broker)) => (backing, 1),
                        Mapping::Reserved(_) => {
                            self.return_reserved(&self.hold(&span, index), index);
                            index += 1;
                            continue;
                        }
                        _ => {
                            index += 1;
                            continue;
                        }
                    };
                    let bytes = (chunks * HUGE_2M) as u64;
                    let group = self.hold(&span, index);
                    let range = group.chunks_at(index, chunks);
                    if backing == Backing::Broker {
                        self.kernel.move_extent_to_thp(&range, alone)?;
                        self.gone_from_broker();
                    } else {
                        self.kernel.move_to_thp(&range, alone)?;
                    }
                    for i in index..index + chunks {
                        let chunk = span.chunk(i);
                        self.in_use.sub(chunk, chunk.committed());
                        chunk.set_mapping(Mapping::Mapped(to));
                        self.in_use.add(chunk, chunk.committed());
                    }
                    self.ledger().converted(backing, to, bytes);
                    self.ledger().fell_back(FallBack::Fork, bytes, 0);
                    index += chunks;
                }
            }
            slot += 1;
            if !more {
                return Ok(());
            }
        }
    }

    /// Takes every lock, so that a child of fork(2) finds none held by a thread that it does not
    /// have.
    pub fn lock_for_fork(&self) {
        // In the order in which they nest: the holder of a group's lock may take any of those that
        // follow.
        self.walks.lock();
        self.groups.iter().for_each(Lock::lock);
        self.stock.lock_for_fork();
        self.spans.lock_for_fork();
        self.config.lock_for_fork();
        // The child's account starts from here: the parent may have gone further before the child
        // looks.
        self.keep_account();
    }

    /// Copies the shared account into the private one, which counts from there on.
    fn keep_account(&self) {
        if self.attached.load(Relaxed) {
            self.shared.get().inspect(|shared| self.private.continue_from(shared));
        }
    }

    /// Releases the locks of [`HugeHeap::lock_for_fork`]. `child` is true in the child, whose part
    /// in the ledger ends.
    pub fn unlock_after_fork(&self, child: bool) {
        self.split.store(true, Relaxed);
        if child {
            self.attached.store(false, Relaxed);
        }
        self.config.unlock_after_fork();
        self.spans.unlock_after_fork();
        self.stock.unlock_after_fork();
        self.groups.iter().for_each(Lock::unlock);
        self.walks.unlock();
        self.take_again(child);
    }

    /// Makes a fork safe as [`HugeHeap::before_fork`] does, for a signal handler that has
    /// interrupted code which holds locks. It takes none, so that nothing can be moved. Fails with
    /// ENOMEM if the heap has a broker's pages, or more private hugetlb pages than the pool has for
    /// copies of them.
    pub fn before_fork_within(&self) -> Result<(), Errno> {
        let ledger = self.ledger();
        let mut all = true;
        for (backing, size) in PRIVATE_POOLS {
            let pages = ledger.held(backing).div_ceil(size.bytes().0);
            all &= pages == 0 || self.kernel.hugetlb_available(size).unwrap_or(0) >= pages;
            if pages > 0 {
                self.forked.store(true, Relaxed);
            }
        }
        let safe = all && ledger.held(Backing::Broker) == 0;
        ledger.forked(!safe);
        if safe { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Frees every lock in a child whose fork took none, and ends the child's part in the ledger:
    /// see [`Lock::reset`].
    pub fn free_locks_in_child(&self) {
        self.keep_account();
        self.attached.store(false, Relaxed);
        self.split.store(true, Relaxed);
        self.unsure.store(true, Relaxed);
        // The interrupted code may be changing the stock: then its pages stay unused in the child.
        self.stock.try_with(Stock::forget_in_child);
        self.walks.reset();
        self.groups.iter().for_each(Lock::reset);
        self.stock.reset();
        self.spans.reset();
        self.config.reset();
        self.asking.reset();
    }
}
