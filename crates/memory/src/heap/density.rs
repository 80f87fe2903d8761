//! How much of the heap's huge pages is in use: a heap of few blocks of each of many sizes stays as small as on base pages.
//!
//! The allocator commits what it has handed out, or is about to. A chunk that it commits whole costs nothing that was not
//! asked for; one of which it commits a slice costs 2 MiB. So the huge pages that the heap has may exceed what is committed
//! by a fortieth and [`SLACK`]; beyond that a chunk gets base pages, and is collapsed once it has filled up. What is freed of
//! a chunk that is hardly in use goes back then as well, which splits its huge page.

use super::HugeHeap;
use crate::chunk::SLICE;
use crate::ledger::Backing;
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of huge pages that need not be in use.
const SLACK: u64 = 3 << 20;
/// And this share of what is in use: one in forty.
const SHARE: u64 = 40;
/// A chunk is hardly in use where no more of its 32 slices are.
const FEW: u32 = 8;

/// The slices that are committed, in all chunks.
#[derive(Debug)]
pub(super) struct InUse(AtomicU64);

impl InUse {
    pub(super) const fn new() -> InUse {
        InUse(AtomicU64::new(0))
    }

    /// The slices of `mask` are committed, and were not before.
    pub(super) fn add(&self, mask: u32) {
        self.0.fetch_add(u64::from(mask.count_ones()), Relaxed);
    }

    /// The slices of `mask` were committed, and are not any more.
    pub(super) fn sub(&self, mask: u32) {
        self.0.fetch_sub(u64::from(mask.count_ones()), Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Relaxed) * SLICE as u64
    }
}

impl HugeHeap {
    /// Whether a further huge page, for a commit of the slices of `mask`, would leave too much unused.
    pub(super) fn is_sparse(&self, mask: u32) -> bool {
        let ledger = self.ledger();
        let huge = ledger.total_held().saturating_sub(ledger.held(Backing::Base)) + HUGE_2M as u64;
        let used = self.in_use.bytes() + u64::from(mask.count_ones()) * SLICE as u64;
        huge > used + used / SHARE + SLACK
    }

    /// Whether a huge page of which these slices are committed is to be split, for what it does not use.
    pub(super) fn is_worth_splitting(&self, committed: u32) -> bool {
        committed.count_ones() <= FEW && self.is_sparse(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, FallBack, Heap, Mapping};

    #[test]
    fn a_heap_of_scattered_slices_gets_base_pages_and_becomes_huge_when_it_fills_up() {
        const CHUNKS: usize = 64;
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
        let chunk = |index: usize| arena.address + index * HUGE_2M;
        for index in 0..CHUNKS {
            heap.commit(chunk(index), SLICE).unwrap();
        }
        let ledger = heap.ledger();
        let huge = ledger.total_held() - ledger.held(Backing::Base);
        assert!(huge <= SLACK + 2 * HUGE_2M as u64, "{huge}");
        assert_eq!(heap.in_use.bytes(), (CHUNKS * SLICE) as u64);
        if ledger.fall_backs(FallBack::ThpOff).0 == 0 {
            assert!(huge > 0 && ledger.fall_backs(FallBack::Sparse).0 > 0);
        }
        // Whole chunks cost nothing that was not asked for.
        for index in 0..CHUNKS {
            heap.commit(chunk(index), HUGE_2M).unwrap();
        }
        assert_eq!(heap.in_use.bytes(), (CHUNKS * HUGE_2M) as u64);
        heap.decommit(chunk(9), HUGE_2M).unwrap();
        heap.commit(chunk(9), HUGE_2M).unwrap();
        let thp = ledger.fall_backs(FallBack::ThpOff).0 == 0;
        let expected = if thp { Backing::Thp } else { Backing::Base };
        assert_eq!(heap.chunk_at(chunk(9)).unwrap().mapping(), Mapping::Mapped(expected));
        // The kernel may be too old for a collapse.
        assert!(!heap.collapse_at(chunk(63)) || thp);
        // A heap that is hardly in use any more gives back what it can.
        for index in 0..CHUNKS {
            heap.decommit(chunk(index) + SLICE, HUGE_2M - SLICE).unwrap();
        }
        heap.sweep();
        let dirty = (0..CHUNKS).filter(|&index| heap.chunk_at(chunk(index)).unwrap().used() != 1).count();
        assert!(dirty <= 6, "{dirty}");
        heap.release(arena.address, CHUNKS * HUGE_2M).unwrap();
        assert_eq!(heap.in_use.bytes(), 0);
    }
}
