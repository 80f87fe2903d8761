//! How much of the heap's huge pages is in use: a heap of few blocks of each of many sizes stays as small as on base pages.
//!
//! The allocator commits what it has handed out, or is about to. A chunk that it commits whole
//! costs nothing that was not asked for; one of which it commits a slice costs 2 MiB. So the huge
//! pages that the heap has may exceed what is committed of them by a small part of what is,
//! [`SHARE`]; beyond that a chunk gets base pages, and is collapsed once it has filled up. Where
//! what is freed leaves more unused, the emptiest chunks give it back, which splits their huge
//! pages. What is committed may not be touched all over, so that a heap that is small yet,
//! [`YOUNG`], has no huge pages but those of large objects, unless they are asked for.

use super::HugeHeap;
use crate::Heap;
use crate::chunk::{BASE, Chunk, SLICE};
use crate::ledger::Backing;
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Huge pages need not be in use by this part of what is committed. The rest of what a program may
/// need more than without the library goes to blocks that are rounded up or wait to be used again,
/// and to the launcher.
const SHARE: u64 = 64;
/// And by this, where huge pages are asked for.
const SLACK: u64 = 2 << 20;
/// Committed bytes up to which chunks get base pages whatever is committed of them. From here on
/// the share is a huge page.
const YOUNG: u64 = SHARE * HUGE_2M as u64;
/// A chunk with so many slices requested at once wastes nothing, whatever others do.
const NEARLY_ALL: u32 = 28;
/// A chunk is hardly in use where no more of its 32 slices are.
pub(super) const FEW: u32 = 8;
/// While too much is unused, chunks with so many slices in use are split as well, the emptiest first: a huge page
/// that is three quarters full is worth more than what it wastes.
pub(super) const STEPS: [u32; 3] = [FEW, 16, 24];
/// Bytes of huge pages beyond that for which a thread is worth having that releases them.
const MUCH: u64 = HUGE_2M as u64;

/// The slices that are committed.
#[derive(Debug)]
pub(super) struct InUse {
    /// In all chunks,
    all: AtomicU64,
    /// and in those on huge pages. What a chunk on base pages holds is as large as it has to be.
    huge: AtomicU64,
    /// Bytes beyond what may be unused that the last sweep has left, or fewer that were seen since.
    left: AtomicU64,
}

impl InUse {
    pub(super) const fn new() -> InUse {
        InUse { all: AtomicU64::new(0), huge: AtomicU64::new(0), left: AtomicU64::new(0) }
    }

    /// The slices of `mask` are committed in a chunk, and were not before.
    pub(super) fn add(&self, chunk: Chunk, mask: u32) {
        self.all.fetch_add(u64::from(mask.count_ones()), Relaxed);
        if chunk.mapping() != BASE {
            self.moved_to_huge(mask);
        }
    }

    /// The slices of `mask` are not committed any more in a chunk.
    pub(super) fn sub(&self, chunk: Chunk, mask: u32) {
        self.all.fetch_sub(u64::from(mask.count_ones()), Relaxed);
        if chunk.mapping() != BASE {
            self.moved_to_base(mask);
        }
    }

    /// The slices of `mask` stay committed in a chunk that was on base pages.
    pub(super) fn moved_to_huge(&self, mask: u32) {
        self.huge.fetch_add(u64::from(mask.count_ones()), Relaxed);
    }

    /// The slices of `mask` stay committed in a chunk that is on base pages now.
    pub(super) fn moved_to_base(&self, mask: u32) {
        self.huge.fetch_sub(u64::from(mask.count_ones()), Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.huge.load(Relaxed) * SLICE as u64
    }
}

impl HugeHeap {
    /// Returns true if a further huge page, for a commit of the slices of `mask`, would leave too much
    /// unused.
    pub(super) fn is_sparse(&self, mask: u32) -> bool {
        let used = u64::from(mask.count_ones()) * SLICE as u64;
        mask.count_ones() < NEARLY_ALL && self.unused(HUGE_2M as u64, used) > self.slack()
    }

    /// Bytes of huge pages that need not be in use, whatever is committed; and once more for one
    /// that is being filled.
    fn slack(&self) -> u64 {
        if self.spares() { 0 } else { SLACK }
    }

    /// Whether so much of the heap's huge pages is not in use that it is to be released soon.
    pub fn wants_sweep(&self) -> bool {
        self.unused(0, 0) > MUCH
    }

    /// Returns true if so much more than the last sweep has left is not in use that the heap is to
    /// be swept before it grows. A sweep gets nothing of pages of a pool.
    pub(super) fn is_to_be_swept(&self) -> bool {
        let unused = self.unused(0, 0);
        let left = self.in_use.left.fetch_min(unused, Relaxed);
        let of_pools = self.held() > self.ledger().held(Backing::Thp) + self.ledger().held(Backing::Base);
        !of_pools && unused > left + MUCH.max(self.committed() / SHARE / 4)
    }

    /// Notes that the heap was swept.
    pub(super) fn note_swept(&self) {
        self.in_use.left.store(self.unused(0, 0), Relaxed);
    }

    /// Returns true if the heap is too small yet for a huge page that may stay empty, and its user
    /// has not asked for huge pages.
    pub(super) fn is_young(&self) -> bool {
        self.spares() && self.committed() < YOUNG
    }

    /// Returns true if the user has not asked for huge pages in particular.
    pub(super) fn spares(&self) -> bool {
        let config = self.config();
        config.spares || config.heap == Heap::Auto
    }

    /// Returns the bytes that are committed on base pages.
    pub fn committed_on_base(&self) -> u64 {
        self.committed().saturating_sub(self.in_use.bytes())
    }

    pub(super) fn committed(&self) -> u64 {
        self.in_use.all.load(Relaxed) * SLICE as u64
    }

    /// Bytes of huge pages beyond what may be unused, with so many more of them and so much more in use.
    pub(super) fn unused(&self, huge: u64, used: u64) -> u64 {
        let (held, base) = (self.held(), self.ledger().held(Backing::Base));
        let huge = held.saturating_sub(base) + huge;
        huge.saturating_sub(self.in_use.bytes() + used + self.committed() / SHARE + self.slack())
    }

    /// Whether a huge page of which these slices are committed, at most `few`, is to be split, for what it does not use.
    pub(super) fn is_worth_splitting(&self, committed: u32, few: u32) -> bool {
        committed.count_ones() <= few && self.unused(0, 0) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, FallBack, Mapping};

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
        (0..CHUNKS).for_each(|index| assert!(heap.decommit(freed(index)).is_ok()));
        assert!(heap.wants_sweep());
        heap.sweep();
        assert!(!heap.wants_sweep());
        assert!(huge() <= heap.in_use.bytes() + heap.committed() / SHARE + SLACK + HUGE_2M as u64);
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
    fn a_young_heap_has_huge_pages_where_they_are_asked_for_or_one_object_fills_them() {
        let huge_of = |spares: bool, at_once: usize| {
            let heap = HugeHeap::new();
            heap.configure(Config { heap: Heap::Thp, spares, ..Config::DEFAULT });
            let arena = heap.reserve(32 * HUGE_2M, HUGE_2M, false).unwrap();
            for first in (0..32).step_by(at_once) {
                heap.commit(arena.range.part(first * HUGE_2M, at_once * HUGE_2M)).unwrap();
            }
            let thp = heap.ledger().held(Backing::Thp);
            heap.release(arena.range).unwrap();
            thp
        };
        if !megapage_inside::thp_is_possible() {
            return megapage_testing::skip("needs transparent huge pages");
        }
        assert_eq!((huge_of(true, 4), huge_of(true, 16)), (0, 64 << 20));
        assert!(huge_of(false, 4) >= 56 << 20);
    }

    #[test]
    fn a_heap_that_grows_is_swept_first_where_much_of_it_is_not_in_use() {
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        let arena = heap.reserve(40 * HUGE_2M, HUGE_2M, false).unwrap();
        heap.commit(arena.range.part(0, 20 * HUGE_2M)).unwrap();
        if heap.ledger().fall_backs(FallBack::ThpOff).0 > 0 {
            return megapage_testing::skip("needs transparent huge pages");
        }
        let half = |index: usize| arena.range.part(index * HUGE_2M + HUGE_2M / 2, HUGE_2M / 2);
        (0..10).for_each(|index| assert!(heap.decommit(half(index)).is_ok()));
        assert!(heap.wants_sweep());
        heap.commit(arena.range.part(30 * HUGE_2M, SLICE)).unwrap();
        assert!(!heap.wants_sweep());
        heap.release(arena.range).unwrap();
        assert_eq!(heap.committed(), 0);
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
        (0..CHUNKS).for_each(|index| assert!(heap.commit(part(index, 0, SLICE)).is_ok()));
        let ledger = heap.ledger();
        let huge = ledger.total_held() - ledger.held(Backing::Base);
        assert!(huge <= SLACK + 2 * HUGE_2M as u64, "{huge}");
        let chunk = |index: usize| heap.chunk_at(part(index, 0, 1).start()).unwrap();
        let huge_chunks = (0..CHUNKS).filter(|&index| chunk(index).mapping() != BASE).count();
        assert_eq!(heap.in_use.bytes(), (huge_chunks * SLICE) as u64, "base pages do not count");
        if ledger.fall_backs(FallBack::ThpOff).0 == 0 {
            assert!(huge > 0 && ledger.fall_backs(FallBack::Sparse).0 > 0);
        }
        // Whole chunks cost nothing that was not asked for.
        (0..CHUNKS).for_each(|index| assert!(heap.commit(part(index, 0, HUGE_2M)).is_ok()));
        assert_eq!(heap.in_use.bytes(), (huge_chunks * HUGE_2M) as u64);
        heap.decommit(part(9, 0, HUGE_2M)).unwrap();
        heap.commit(part(9, 0, HUGE_2M)).unwrap();
        let thp = ledger.fall_backs(FallBack::ThpOff).0 == 0;
        let expected = if thp { Backing::Thp } else { Backing::Base };
        assert_eq!(heap.chunk_at(part(9, 0, 1).start()).unwrap().mapping(), Mapping::Mapped(expected));
        // The kernel may be too old for a collapse.
        assert!(heap.collapse_at(part(63, 0, 1).start()).is_err() || thp);
        // A heap that is hardly in use any more releases what it can.
        (0..CHUNKS).for_each(|index| assert!(heap.decommit(part(index, SLICE, HUGE_2M - SLICE)).is_ok()));
        heap.sweep();
        let dirty = (0..CHUNKS).filter(|&index| chunk(index).used() != 1).count();
        assert!(dirty <= 6, "{dirty}");
        heap.release(arena.range).unwrap();
        assert_eq!(heap.in_use.bytes(), 0);
    }
}
