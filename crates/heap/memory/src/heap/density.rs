//! Use of the heap's huge pages: a heap of few blocks of each of many sizes stays as small as on
//! base pages.
//!
//! The allocator commits what it has handed out, or is about to. A chunk that it commits whole
//! costs nothing that was not asked for. A chunk of which it commits one slice costs 2 MiB. So the
//! heap's huge pages may exceed the part of them that is committed, but only by a small share of
//! all that is committed: [`SHARE`]. Beyond that a chunk gets base pages, and is collapsed once it
//! has filled up. If frees leave more unused, the emptiest chunks give it back, which splits their
//! huge pages. The program may not touch all that is committed. So a heap that is still small,
//! [`YOUNG`], has huge pages only for large objects, unless huge pages are asked for.

use super::HugeHeap;
use crate::Heap;
use crate::chunk::{BASE, Chunk, SLICE};
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_units::HugePage;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Divisor of the committed bytes: this share may be unused in huge pages. A program may need
/// further memory that it does not need without the library. The rest of that goes to rounded-up
/// blocks, to blocks that wait to be used again, and to the launcher.
const SHARE: u64 = 64;
/// Bytes that may be unused besides, if huge pages are asked for.
const SLACK: u64 = 2 << 20;
/// Committed bytes up to which a chunk gets base pages, however much of it is committed. From here
/// on the share is at least one huge page.
const YOUNG: u64 = SHARE * HugePage::SIZE;
/// Slices requested at once from which on a chunk wastes nothing, whatever other chunks do.
const NEARLY_ALL: u32 = 28;
/// Slices of a chunk's 32 in use up to which the chunk is hardly in use.
pub(super) const FEW: u32 = 8;
/// Slices in use up to which chunks are split while too much is unused, the emptiest first. A huge
/// page that is more than three quarters full is worth more than it wastes.
pub(super) const STEPS: [u32; 3] = [FEW, 16, 24];
/// Bytes unused beyond the share for which a thread is worth having that releases them.
const MUCH: u64 = HugePage::SIZE;

/// Numbers of committed slices.
#[derive(Debug)]
pub(super) struct InUse {
    /// Committed slices of all chunks.
    all: AtomicU64,
    /// Committed slices of chunks on huge pages. A chunk on base pages holds no more than it has
    /// to.
    huge: AtomicU64,
    /// Bytes unused beyond the share that the last sweep has left, or the fewest seen since.
    left: AtomicU64,
}

impl InUse {
    pub(super) const fn new() -> InUse {
        InUse { all: AtomicU64::new(0), huge: AtomicU64::new(0), left: AtomicU64::new(0) }
    }

    /// Counts the slices of `mask`, which a chunk has committed and had not before.
    pub(super) fn add(&self, chunk: Chunk, mask: u32) {
        self.all.fetch_add(u64::from(mask.count_ones()), Relaxed);
        if chunk.mapping() != BASE {
            self.moved_to_huge(mask);
        }
    }

    /// Counts the slices of `mask` out, which a chunk has decommitted.
    pub(super) fn sub(&self, chunk: Chunk, mask: u32) {
        self.all.fetch_sub(u64::from(mask.count_ones()), Relaxed);
        if chunk.mapping() != BASE {
            self.moved_to_base(mask);
        }
    }

    /// Counts the slices of `mask`, which stay committed in a chunk that was on base pages.
    pub(super) fn moved_to_huge(&self, mask: u32) {
        self.huge.fetch_add(u64::from(mask.count_ones()), Relaxed);
    }

    /// Counts the slices of `mask` out, which stay committed in a chunk that is on base pages now.
    pub(super) fn moved_to_base(&self, mask: u32) {
        self.huge.fetch_sub(u64::from(mask.count_ones()), Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.huge.load(Relaxed) * SLICE as u64
    }
}

impl<K: Prim> HugeHeap<K> {
    /// Returns true if a further huge page, for a commit of the slices of `mask`, would leave too
    /// much unused.
    pub(super) fn is_sparse(&self, mask: u32) -> bool {
        let used = u64::from(mask.count_ones()) * SLICE as u64;
        mask.count_ones() < NEARLY_ALL && self.unused(HugePage::SIZE, used) > self.slack()
    }

    /// Returns the bytes of huge pages that may be unused, however much is committed. They are
    /// allowed once more for a huge page that is being filled.
    fn slack(&self) -> u64 {
        if self.spares() { 0 } else { SLACK }
    }

    /// Returns true if so many bytes of the heap's huge pages are unused that they are to be
    /// released soon.
    pub fn wants_sweep(&self) -> bool {
        self.unused(0, 0) > MUCH
    }

    /// Returns true if much more is unused than the last sweep has left, so that the heap is to be
    /// swept before it grows. Returns false if the heap has pages of a pool, for which a sweep does
    /// nothing.
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

    /// Returns true if the heap is still too small for a huge page that may stay empty, and its
    /// user has not asked for huge pages.
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

    /// Returns the bytes of huge pages unused beyond the share, if the heap had `huge` more bytes
    /// of them and `used` more bytes in use.
    pub(super) fn unused(&self, huge: u64, used: u64) -> u64 {
        let (held, base) = (self.held(), self.ledger().held(Backing::Base));
        let huge = held.saturating_sub(base) + huge;
        huge.saturating_sub(self.in_use.bytes() + used + self.committed() / SHARE + self.slack())
    }

    /// Returns true if a huge page is to be split to release its unused part. At most `few` of its
    /// slices are committed then, and the heap has too much unused.
    pub(super) fn is_worth_splitting(&self, committed: u32, few: u32) -> bool {
        committed.count_ones() <= few && self.unused(0, 0) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, FallBack, Mapping};
    use megapage_units::HUGE_2M;

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
        // A quarter of the chunks each keeps 4, 12, 20 and 28 slices.
        let kept = |index: usize| 4 + index % 4 * 8;
        let freed = |index: usize| {
            arena.range.part(index * HUGE_2M + kept(index) * SLICE, HUGE_2M - kept(index) * SLICE)
        };
        (0..CHUNKS).for_each(|index| assert!(heap.decommit(freed(index)).is_ok()));
        assert!(heap.wants_sweep());
        heap.sweep();
        assert!(!heap.wants_sweep());
        assert!(huge() <= heap.in_use.bytes() + heap.committed() / SHARE + SLACK + HugePage::SIZE);
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
        assert!(huge <= SLACK + 2 * HugePage::SIZE, "{huge}");
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
        assert!(heap.collapse_at(part(63, 0, 1).start(), HUGE_2M).is_err() || thp);
        // A heap that is hardly in use any more releases what it can.
        (0..CHUNKS).for_each(|index| assert!(heap.decommit(part(index, SLICE, HUGE_2M - SLICE)).is_ok()));
        heap.sweep();
        let dirty = (0..CHUNKS).filter(|&index| chunk(index).used() != 1).count();
        assert!(dirty <= 6, "{dirty}");
        heap.release(arena.range).unwrap();
        assert_eq!(heap.in_use.bytes(), 0);
    }
}
