//! The large blocks of a heap: how much of each the program touches, for the next run of the same program.
//!
//! A block is judged when it goes back, or at exit: of at most [`MOST_REGIONS`] regions of 2 MiB, evenly spread, some pages
//! are looked at. Regions without a present page cost nothing, and do not count.

use super::HugeHeap;
use crate::learned::{Found, Hints, class_of};
use megapage_inside::own_touched::Sampler;
use megapage_inside::program_memory::OwnPagemap;
use megapage_inside::{ErrnoGuard, Locked};
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Blocks that are stored at a time; further ones are not judged.
const MOST_BLOCKS: usize = 64;
/// Regions of a block that are looked at.
const MOST_REGIONS: usize = 16;
/// All looks of a run together take no longer.
const MOST_TIME: Duration = Duration::from_millis(4);

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    start: usize,
    len: usize,
    on_base: bool,
}

#[derive(Debug)]
struct Table {
    blocks: [Block; MOST_BLOCKS],
    count: usize,
    sampler: Sampler,
    spent: Duration,
    most_time: Duration,
}

impl Table {
    /// Takes a block out that overlaps a range.
    fn take(&mut self, start: usize, end: usize) -> Option<Block> {
        let overlaps = |block: &Block| block.start < end && start < block.start + block.len;
        let at = self.blocks[..self.count].iter().position(overlaps)?;
        self.count -= 1;
        self.blocks.swap(at, self.count);
        Some(self.blocks[self.count])
    }

    /// `None` where it cannot be determined, or the time is spent.
    fn judge(&mut self, block: Block) -> Option<(usize, Found)> {
        let began = Instant::now();
        let found = self.judge_from(began, block);
        self.spent += began.elapsed();
        found
    }

    fn judge_from(&mut self, began: Instant, block: Block) -> Option<(usize, Found)> {
        let first = block.start.next_multiple_of(HUGE_2M);
        let regions = ((block.start + block.len) / HUGE_2M).saturating_sub(first / HUGE_2M);
        let looks = regions.min(MOST_REGIONS);
        let (mut present, mut sampled, mut touched) = (0, 0, 0);
        for look in 0..looks {
            if self.spent + began.elapsed() >= self.most_time {
                return None;
            }
            let region = (2 * look + 1) * regions / (2 * looks);
            let pages = self.sampler.look(first + region * HUGE_2M)?;
            present += usize::from(pages.sampled > 0);
            sampled += pages.sampled;
            touched += pages.touched;
        }
        let seen = block.len as u64 * present as u64 / looks.max(1) as u64;
        let touched = (u128::from(seen) * touched as u128 / sampled.max(1) as u128) as u64;
        Some((class_of(block.len)?, Found { seen, touched }))
    }
}

/// The large blocks, and what an earlier run has found out.
#[derive(Debug)]
pub(super) struct Blocks {
    table: Locked<Table>,
    /// As in the table, to be read without it.
    count: AtomicUsize,
    /// Bytes of the blocks that were put on base pages.
    on_base: AtomicU64,
    sparse: AtomicU64,
    large_heap: AtomicBool,
}

impl Blocks {
    pub(super) const fn new() -> Blocks {
        let empty = Block { start: 0, len: 0, on_base: false };
        let table = Table {
            blocks: [empty; MOST_BLOCKS],
            count: 0,
            sampler: Sampler::new(),
            spent: Duration::ZERO,
            most_time: MOST_TIME,
        };
        Blocks {
            table: Locked::new(table),
            count: AtomicUsize::new(0),
            on_base: AtomicU64::new(0),
            sparse: AtomicU64::new(0),
            large_heap: AtomicBool::new(false),
        }
    }

    /// Whether blocks of `len` bytes are known to be sparse.
    pub(super) fn is_sparse(&self, len: usize) -> bool {
        Hints { sparse_blocks: self.sparse.load(Relaxed), ..Hints::default() }.is_sparse_block(len)
    }

    /// Whether the heap is known to outgrow its first chunks by far.
    pub(super) fn is_large_heap(&self) -> bool {
        self.large_heap.load(Relaxed)
    }

    /// Bytes of blocks that were put on base pages.
    pub(super) fn on_base_pages(&self) -> u64 {
        self.on_base.load(Relaxed)
    }

    /// A block is there.
    pub(super) fn begin(&self, start: usize, len: usize) {
        self.table.with(|table| {
            while let Some(before) = table.take(start, start + len) {
                self.gone(table, before);
            }
            if table.count < MOST_BLOCKS {
                let block = Block { start, len, on_base: self.is_sparse(len) };
                table.blocks[table.count] = block;
                table.count += 1;
                self.count.store(table.count, Relaxed);
                self.on_base.fetch_add(if block.on_base { len as u64 } else { 0 }, Relaxed);
            }
        });
    }

    fn gone(&self, table: &Table, block: Block) {
        self.count.store(table.count, Relaxed);
        self.on_base.fetch_sub(if block.on_base { block.len as u64 } else { 0 }, Relaxed);
    }

    /// See [`HugeHeap::lock_for_fork`].
    pub(super) fn lock_for_fork(&self) {
        self.table.lock_for_fork();
    }

    /// See [`HugeHeap::unlock_after_fork`].
    pub(super) fn unlock_after_fork(&self) {
        self.table.unlock_after_fork();
    }

    /// See [`HugeHeap::free_locks_in_child`].
    pub(super) fn reset(&self) {
        self.table.reset();
    }
}

impl HugeHeap {
    /// Takes over what an earlier run has found out.
    pub(super) fn learn(&self, hints: Hints) {
        // Without a thread that collapses what fills up, a block that was taken for sparse would stay on base pages.
        let can_collapse = hints.sparse_blocks != 0 && OwnPagemap::open().is_some();
        self.blocks.sparse.store(if can_collapse { hints.sparse_blocks } else { 0 }, Relaxed);
        self.blocks.large_heap.store(hints.large_heap, Relaxed);
    }

    /// Whether large blocks lie on base pages because they were sparse before: they may fill up this time.
    pub(crate) fn has_sparse_blocks(&self) -> bool {
        self.blocks.on_base_pages() > 0
    }

    /// A range goes back: the large blocks in it are judged.
    pub(super) fn end_blocks(&self, start: usize, len: usize) {
        if self.blocks.count.load(Relaxed) == 0 {
            return;
        }
        self.blocks.table.with(|table| {
            while let Some(block) = table.take(start, start + len) {
                self.blocks.gone(table, block);
                self.judge_block(table, block);
            }
        });
    }

    /// Judges the large blocks that are there, at exit. Never waits: a signal's handler may end the program.
    pub fn judge_blocks(&self) {
        let _errno = ErrnoGuard::save();
        self.blocks.table.try_with(|table| {
            for index in 0..table.count {
                self.judge_block(table, table.blocks[index]);
            }
        });
    }

    fn judge_block(&self, table: &mut Table, block: Block) {
        // Without a launcher no process asks.
        if self.attached.load(Relaxed)
            && table.spent < table.most_time
            && let Some((class, found)) = table.judge(block)
        {
            self.ledger().found_block(class, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Backing, Ledger};
    use crate::{Config, Heap, Mapping};
    use megapage_inside::program_memory::is_filtered;
    use megapage_inside::{OwnedRange, SharedWords, thp_is_possible};
    use megapage_units::BASE_PAGE;

    const BLOCK: usize = 64 << 20;

    /// A heap whose launcher knows this, and the launcher's side.
    fn heap(hints: Hints) -> (Box<HugeHeap>, Ledger) {
        let (file, words) = SharedWords::create(c"ledger", 1).unwrap();
        let launcher = Ledger::launcher(words);
        launcher.hint(hints);
        let heap = Box::new(HugeHeap::new());
        // However long the machine lets a test wait.
        heap.blocks.table.with(|table| table.most_time = Duration::MAX);
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        assert_eq!(heap.attach_ledger(SharedWords::map(&file).unwrap(), 7), hints);
        (heap, launcher)
    }

    fn can_be_judged() -> bool {
        let can = thp_is_possible() && OwnPagemap::open().is_some() && !is_filtered();
        if !can {
            megapage_testing::skip("needs transparent huge pages, Linux 6.7 and no filter of system calls");
        }
        can
    }

    /// Touches one page of `every` in the range, all of them zero: what is not touched is not present.
    fn populate(range: OwnedRange, every: usize) {
        for at in (0..range.len()).step_by(every * BASE_PAGE) {
            range.part(at, BASE_PAGE).populate().unwrap();
        }
    }

    fn found(launcher: &Ledger) -> Found {
        launcher.block_found(class_of(BLOCK).unwrap())
    }

    #[test]
    fn pages_of_zeros_are_not_touched_and_what_is_not_present_is_not_seen() {
        let (heap, launcher) = heap(Hints::default());
        if !can_be_judged() {
            return;
        }
        let range = heap.reserve(BLOCK, HUGE_2M, true).unwrap().range;
        let block = range.start();
        assert_eq!(heap.chunk_at(block).unwrap().mapping(), Mapping::Mapped(Backing::Thp));
        heap.judge_blocks();
        assert_eq!(found(&launcher), Found::default(), "nothing is present");
        populate(range.part(0, BLOCK / 2), 512);
        heap.release(range).unwrap();
        let found = found(&launcher);
        assert_eq!(found, Found { seen: BLOCK as u64 / 2, touched: 0 }, "huge pages of zeros");
        heap.judge_blocks();
        assert_eq!(super::tests::found(&launcher), found, "it is gone");
    }

    #[test]
    fn a_block_that_was_sparse_gets_base_pages_and_others_stay_huge() {
        let sparse = Hints { sparse_blocks: 1 << class_of(BLOCK).unwrap(), ..Hints::default() };
        let (heap, _launcher) = heap(sparse);
        if !can_be_judged() {
            return;
        }
        let range = heap.reserve(BLOCK, HUGE_2M, true).unwrap().range;
        let block = range.start();
        let other = heap.reserve(2 * BLOCK, HUGE_2M, true).unwrap().range;
        assert_eq!(heap.chunk_at(block).unwrap().mapping(), Mapping::Mapped(Backing::Base));
        assert_eq!(heap.chunk_at(other.start()).unwrap().mapping(), Mapping::Mapped(Backing::Thp));
        assert_eq!(heap.blocks.on_base_pages(), BLOCK as u64);
        assert!(heap.has_sparse_blocks());
        // It fills up after all.
        populate(range.part(0, HUGE_2M), 1);
        assert!(heap.collapse_at(block));
        heap.release(range).unwrap();
        assert!(!heap.has_sparse_blocks());
        heap.release(other).unwrap();
    }

    #[test]
    fn what_lies_on_base_pages_makes_no_room_for_sparse_chunks() {
        let sparse = Hints { sparse_blocks: 1 << class_of(BLOCK).unwrap(), ..Hints::default() };
        let (heap, _launcher) = heap(sparse);
        if !can_be_judged() {
            return;
        }
        let before = heap.is_sparse(1);
        let block = heap.reserve(8 * BLOCK, HUGE_2M, false).unwrap().range;
        for index in 0..8 {
            heap.commit(block.part(index * BLOCK, BLOCK)).unwrap();
        }
        assert_eq!(heap.blocks.on_base_pages(), 8 * BLOCK as u64);
        let scattered = heap.reserve(16 * HUGE_2M, HUGE_2M, false).unwrap().range;
        for index in 0..16 {
            heap.commit(scattered.part(index * HUGE_2M, crate::SLICE)).unwrap();
        }
        let huge = heap.ledger().total_held() - heap.ledger().held(Backing::Base);
        assert!(huge <= 3 * HUGE_2M as u64, "{huge}");
        assert!(!before);
    }

    #[test]
    fn a_heap_that_is_known_to_be_large_is_huge_from_its_start() {
        let (heap, _launcher) = heap(Hints { large_heap: true, ..Hints::default() });
        if !can_be_judged() {
            return;
        }
        let arena = heap.reserve(BLOCK, HUGE_2M, false).unwrap().range;
        heap.commit(arena.part(0, HUGE_2M)).unwrap();
        assert_eq!(heap.chunk_at(arena.start()).unwrap().mapping(), Mapping::Mapped(Backing::Thp));
        // No more than elsewhere is left unused.
        for index in 1..8 {
            heap.commit(arena.part(index * HUGE_2M, crate::SLICE)).unwrap();
        }
        assert!(heap.ledger().held(Backing::Base) >= 5 * HUGE_2M as u64);
        heap.release(arena).unwrap();
    }

    #[test]
    fn blocks_are_bounded_and_go_with_their_parts() {
        let (heap, _launcher) = heap(Hints::default());
        for index in 1..=2 * MOST_BLOCKS {
            heap.blocks.begin(index * BLOCK, BLOCK);
        }
        assert_eq!(heap.blocks.count.load(Relaxed), MOST_BLOCKS);
        heap.end_blocks(BLOCK + HUGE_2M, HUGE_2M);
        assert_eq!(heap.blocks.count.load(Relaxed), MOST_BLOCKS - 1);
        heap.end_blocks(0, usize::MAX / 2);
        assert_eq!(heap.blocks.count.load(Relaxed), 0);
    }
}
