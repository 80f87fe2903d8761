//! How much of the heap's huge pages is in use: a heap of few blocks of each of many sizes stays as small as on base pages.
//!
//! The allocator commits what it has handed out, or is about to. A chunk that it commits whole costs nothing that was not
//! asked for; one of which it commits a slice costs 2 MiB. So the huge pages that the heap has may exceed what is committed of
//! them by a fortieth, [`SLACK`], and [`FILLING`]; beyond that a chunk gets base pages, and is collapsed once it has filled up.
//! Where what is freed leaves more unused, the emptiest chunks give it back, which splits their huge pages.

use super::HugeHeap;
use crate::chunk::{Chunk, Mapping, SLICE};
use crate::ledger::Backing;
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BASE: Mapping = Mapping::Mapped(Backing::Base);
/// Bytes of huge pages that need not be in use.
const SLACK: u64 = 2 << 20;
/// And this share of what is in use: one in forty.
const SHARE: u64 = 40;
/// And a chunk that is just being filled.
const FILLING: u64 = HUGE_2M as u64;
/// A chunk with so many slices requested at once wastes nothing, whatever others do.
const NEARLY_ALL: u32 = 28;
/// A chunk is hardly in use where no more of its 32 slices are.
pub(super) const FEW: u32 = 8;
/// While too much is unused, chunks with so many slices in use are split as well, the emptiest first: a huge page
/// that is three quarters full is worth more than what it wastes.
pub(super) const STEPS: [u32; 3] = [FEW, 16, 24];
/// Bytes of huge pages beyond that for which a thread is worth having that releases them.
const MUCH: u64 = FILLING;

/// The slices that are committed, in all chunks on huge pages. What a chunk on base pages holds is as large as it has to be.
#[derive(Debug)]
pub(super) struct InUse(AtomicU64);

impl InUse {
    pub(super) const fn new() -> InUse {
        InUse(AtomicU64::new(0))
    }

    /// The slices of `mask` are committed in a chunk, and were not before; or were, when it was on base pages.
    pub(super) fn add(&self, chunk: Chunk, mask: u32) {
        if chunk.mapping() != BASE {
            self.0.fetch_add(u64::from(mask.count_ones()), Relaxed);
        }
    }

    /// The slices of `mask` are not committed any more in a chunk; or stay so, and it is about to be on base pages.
    pub(super) fn sub(&self, chunk: Chunk, mask: u32) {
        if chunk.mapping() != BASE {
            self.0.fetch_sub(u64::from(mask.count_ones()), Relaxed);
        }
    }

    fn bytes(&self) -> u64 {
        self.0.load(Relaxed) * SLICE as u64
    }
}

impl HugeHeap {
    /// Whether a further huge page, for a commit of the slices of `mask`, would leave too much unused.
    pub(super) fn is_sparse(&self, mask: u32) -> bool {
        let used = u64::from(mask.count_ones()) * SLICE as u64;
        mask.count_ones() < NEARLY_ALL && self.unused(HUGE_2M as u64, used) > FILLING
    }

    /// Whether more of the heap's huge pages is not in use than may be.
    pub(super) fn has_unused(&self) -> bool {
        self.unused(0, 0) > 0
    }

    /// Whether so much of the heap's huge pages is not in use that it is to be released soon.
    pub fn wants_sweep(&self) -> bool {
        self.unused(0, 0) > MUCH
    }

    /// Bytes of huge pages beyond what may be unused, with so many more of them and so much more in use.
    fn unused(&self, huge: u64, used: u64) -> u64 {
        let ledger = self.ledger();
        let huge = ledger.total_held().saturating_sub(ledger.held(Backing::Base)) + huge;
        let used = self.in_use.bytes() + used;
        huge.saturating_sub(used + used / SHARE + SLACK)
    }

    /// Whether a huge page of which these slices are committed, at most `few`, is to be split, for what it does not use.
    pub(super) fn is_worth_splitting(&self, committed: u32, few: u32) -> bool {
        committed.count_ones() <= few && self.has_unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, FallBack, Heap, Mapping};

    #[test]
    fn what_is_freed_of_many_chunks_goes_back_the_emptiest_first() {
        const CHUNKS: usize = 40;
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
        heap.commit(arena.range.part(0, CHUNKS * HUGE_2M)).unwrap();
        let ledger = heap.ledger();
        if ledger.fall_backs(FallBack::ThpOff).0 > 0 {
            return megapage_testing::skip("needs transparent huge pages");
        }
        let huge = || ledger.total_held() - ledger.held(Backing::Base);
        // Of the chunks a quarter each keeps 4, 12, 20 and 28 slices.
        let kept = |index: usize| 4 + index % 4 * 8;
        let freed = |index: usize| {
            arena.range.part(index * HUGE_2M + kept(index) * SLICE, HUGE_2M - kept(index) * SLICE)
        };
        for index in 0..CHUNKS {
            heap.decommit(freed(index)).unwrap();
        }
        assert!(heap.wants_sweep());
        heap.sweep();
        assert!(!heap.wants_sweep());
        assert!(huge() <= heap.in_use.bytes() + heap.in_use.bytes() / SHARE + SLACK + HUGE_2M as u64);
        let split =
            |index: usize| heap.chunk_at(arena.range.start() + index * HUGE_2M).unwrap().mapping() == BASE;
        let count =
            |slices: usize| (0..CHUNKS).filter(|&index| kept(index) == slices && split(index)).count();
        assert_eq!((count(28), count(4)), (0, 10), "nearly full ones stay, nearly empty ones go");
        assert!(count(12) >= count(20), "{} and {}", count(12), count(20));
        heap.release(arena.range).unwrap();
        assert_eq!(heap.in_use.bytes(), 0);
    }

    #[test]
    fn what_is_asked_for_whole_is_huge_though_others_waste() {
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        let arena = heap.reserve(40 * HUGE_2M, HUGE_2M, false).unwrap();
        let part = |index: usize, from: usize, len: usize| arena.range.part(index * HUGE_2M + from, len);
        heap.commit(part(0, 0, 20 * HUGE_2M)).unwrap();
        if heap.ledger().fall_backs(FallBack::ThpOff).0 > 0 {
            return megapage_testing::skip("needs transparent huge pages");
        }
        (0..20).for_each(|index| assert!(heap.decommit(part(index, HUGE_2M / 2, HUGE_2M / 2)).is_ok()));
        assert!(heap.wants_sweep());
        heap.commit(part(20, 0, SLICE)).unwrap();
        heap.commit(part(21, 0, HUGE_2M)).unwrap();
        let mapping = |index: usize| heap.chunk_at(part(index, 0, 1).start()).unwrap().mapping();
        assert_eq!((mapping(20), mapping(21)), (BASE, Mapping::Mapped(Backing::Thp)));
        heap.release(arena.range).unwrap();
    }

    #[test]
    fn a_heap_of_scattered_slices_gets_base_pages_and_becomes_huge_when_it_fills_up() {
        const CHUNKS: usize = 64;
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
        let part = |index: usize, from: usize, len: usize| arena.range.part(index * HUGE_2M + from, len);
        for index in 0..CHUNKS {
            heap.commit(part(index, 0, SLICE)).unwrap();
        }
        let ledger = heap.ledger();
        let huge = ledger.total_held() - ledger.held(Backing::Base);
        assert!(huge <= SLACK + 2 * HUGE_2M as u64, "{huge}");
        let huge_chunks = (0..CHUNKS)
            .filter(|&index| {
                heap.chunk_at(part(index, 0, 1).start()).unwrap().mapping() != Mapping::Mapped(Backing::Base)
            })
            .count();
        assert_eq!(heap.in_use.bytes(), (huge_chunks * SLICE) as u64, "base pages do not count");
        if ledger.fall_backs(FallBack::ThpOff).0 == 0 {
            assert!(huge > 0 && ledger.fall_backs(FallBack::Sparse).0 > 0);
        }
        // Whole chunks cost nothing that was not asked for.
        for index in 0..CHUNKS {
            heap.commit(part(index, 0, HUGE_2M)).unwrap();
        }
        assert_eq!(heap.in_use.bytes(), (huge_chunks * HUGE_2M) as u64);
        heap.decommit(part(9, 0, HUGE_2M)).unwrap();
        heap.commit(part(9, 0, HUGE_2M)).unwrap();
        let thp = ledger.fall_backs(FallBack::ThpOff).0 == 0;
        let expected = if thp { Backing::Thp } else { Backing::Base };
        assert_eq!(heap.chunk_at(part(9, 0, 1).start()).unwrap().mapping(), Mapping::Mapped(expected));
        // The kernel may be too old for a collapse.
        assert!(!heap.collapse_at(part(63, 0, 1).start()) || thp);
        // A heap that is hardly in use any more releases what it can.
        for index in 0..CHUNKS {
            heap.decommit(part(index, SLICE, HUGE_2M - SLICE)).unwrap();
        }
        heap.sweep();
        let dirty = (0..CHUNKS)
            .filter(|&index| heap.chunk_at(part(index, 0, 1).start()).unwrap().used() != 1)
            .count();
        assert!(dirty <= 6, "{dirty}");
        heap.release(arena.range).unwrap();
        assert_eq!(heap.in_use.bytes(), 0);
    }
}
