//! The room that is left for the heap, and the one rule by which a fresh chunk gets a huge page or
//! base pages.
//!
//! A program that fits without the library has to fit with it. A limit is the machine's, a control
//! group's or the process's own. Near one, a fresh chunk gets base pages, freed memory goes back at
//! once, and huge pages that are not full are split. Limits are read before `main` and by threads
//! of the library. Between two readings only the heap's own growth is known. [`HugeHeap::measure`]
//! says how far it may go, and the program's own threads only compare.
//!
//! The library also adds no waits to the program's threads. A huge page at first touch is one that
//! the kernel has free. If the kernel would have to compact or reclaim memory for it, base pages
//! come first, and are collapsed behind the program.

use super::{Commit, HugeHeap};
use crate::chunk::{BASE, SLICE};
use crate::config::Heap;
use crate::ledger::{Backing, FallBack};
use crate::prim::Prim;
use megapage_inside::room::{Limits, Room};
use megapage_units::{HUGE_1G, PageSize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Held bytes from which on arenas come from 1 GiB pages with `Heap::Auto`.
const ARENA_1G_AT: u64 = 2 << 30;
/// Divisor of a limit: it is near once less than this part of it is left.
const MARGIN_SHARE: u64 = 8;
/// Bounds of that part in bytes: at least this much, and at most this much.
const LEAST_MARGIN: u64 = 8 << 20;
const MOST_MARGIN: u64 = 256 << 20;
/// Divisor of what is left: while memory is short, this much freed memory may wait to be used
/// again.
const WAITING_SHARE: u64 = 4;
/// Divisor of what is left of a limit that counts accessible memory: this part may be accessible
/// and not in use.
const AHEAD_SHARE: u64 = 64;
/// Bytes of heap from which on it is worth a thread.
const THREAD_AT: u64 = 64 << 20;
/// Divisor of what a limit leaves: a heap that has grown by this part is worth a thread, too.
const THREAD_SHARE: u64 = 4;
/// Divisor of the machine's free huge pages: one process takes this part before it counts them
/// again. Others take some meanwhile.
const FREE_SHARE: u64 = 2;
/// Thousandths of committed memory that may be untouched while chunks are huge from their first
/// touch on.
const MOST_UNTOUCHED: u64 = 62;
/// Thousandths of committed memory that may be untouched beyond the rounding of blocks while freed
/// memory waits.
const BEYOND_ROUNDING: u64 = 15;
/// Value of `untouched` before a thread of the library has looked.
const NOT_LOOKED: u64 = u64::MAX;
/// Bytes that the heap may grow by until a look is out of date. Added to the bytes that could stay
/// untouched within `MOST_UNTOUCHED`.
const LEAST_UNSEEN: u64 = 2 << 20;
/// Time between two readings of the limits.
const MEASURED_EVERY: Duration = Duration::from_millis(100);

/// The room of the heap, as far as it is known.
#[derive(Debug)]
pub(super) struct Headroom {
    limits: OnceLock<Limits>,
    /// Bytes of heap at which the first limit is reached.
    limit: AtomicU64,
    /// Bytes of heap from which on a limit is near, so that nothing more becomes huge.
    ceiling: AtomicU64,
    /// Bytes of heap from which on memory is short, so that unused memory goes back. At most
    /// `ceiling`.
    short_from: AtomicU64,
    /// Bytes of the machine's free huge pages that this process may use before it counts them
    /// again.
    free: AtomicU64,
    /// Bytes that may be accessible and not in use.
    pub(super) ahead: AtomicU64,
    /// Bytes of heap from which on a thread of the library is worth having.
    thread_at: AtomicU64,
    /// True if memory was short when a chunk was mapped last.
    was_short: AtomicBool,
    /// True if the heap has to be swept, because memory became short or too much is unused.
    is_due: AtomicBool,
    /// Threads of the program that use the heap.
    pub(super) threads: AtomicU64,
    /// Thousandths of committed memory that had not been touched at the last look.
    untouched: AtomicU64,
    /// Committed bytes beyond which the last look is out of date.
    seen_up_to: AtomicU64,
    /// True if more are committed, so that a look is wanted.
    wants_look: AtomicBool,
    /// Bytes that collapses have added to the resident memory.
    pub(super) filled: AtomicU64,
}

impl Headroom {
    pub(super) const fn new() -> Headroom {
        Headroom {
            limits: OnceLock::new(),
            limit: AtomicU64::new(u64::MAX),
            ceiling: AtomicU64::new(u64::MAX),
            short_from: AtomicU64::new(u64::MAX),
            free: AtomicU64::new(0),
            ahead: AtomicU64::new(u64::MAX),
            thread_at: AtomicU64::new(THREAD_AT),
            was_short: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            threads: AtomicU64::new(1),
            untouched: AtomicU64::new(NOT_LOOKED),
            seen_up_to: AtomicU64::new(0),
            wants_look: AtomicBool::new(false),
            filled: AtomicU64::new(0),
        }
    }
}

/// Fresh memory that needs a backing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fresh {
    /// A whole new arena. `commit` is true if the caller commits all of it next.
    Arena { commit: bool },
    /// A whole commit of at least 1 GiB.
    Commit,
    /// Slices of one chunk, as a bit mask, and the commit that they are a part of.
    Chunk(Commit, u32),
}

/// Backings that fresh memory may have, the best first; base pages come last.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chain {
    /// Pages of 1 GiB, where whole ones fit and while the pool has some. The caller calls
    /// [`HugeHeap::chain`] again for each chunk that gets none.
    Gigantic,
    /// Backings of one chunk.
    Chunk {
        /// True if a page of a broker comes first, provided that a broker was named.
        broker: bool,
        /// True if a page of the pool comes next.
        hugetlb: bool,
        /// `Ok` if a transparent huge page comes next, or the reason why none does.
        thp: Result<(), FallBack>,
    },
}

/// Returns the bytes that a heap of `size` bytes may grow to until this limit is near, and until it
/// is reached.
fn ceiling(size: u64, room: Room) -> (u64, u64) {
    let limit = size.saturating_add(room.left);
    let margin = (room.limit / MARGIN_SHARE).clamp(LEAST_MARGIN, MOST_MARGIN);
    (limit.saturating_sub(margin), limit)
}

impl<K: Prim> HugeHeap<K> {
    /// Reads the limits. For use before `main`, and in threads of the library.
    pub fn measure(&self) {
        let size = self.size();
        let short_below = self.config().short_below;
        let (mut lowest, mut short, mut ahead) = ((u64::MAX, u64::MAX), u64::MAX, u64::MAX);
        if let Some(room) = self.kernel.machine_room() {
            let below = if short_below == 0 { room.limit / 10 } else { short_below };
            lowest = ceiling(size, room);
            short = size.saturating_add(room.left).saturating_sub(below);
        }
        // The program may still touch what it was given, so that a limit on touched memory counts
        // from the touched bytes. The machine's memory counts from the heap's size: programs may be
        // given more than there is.
        let touched = self.kernel.own_resident().map_or(size, |resident| size.min(resident));
        self.kernel.rooms(self.limits(), |room| {
            let (near, limit) = ceiling(if room.of_touched { touched } else { size }, room);
            if !room.of_touched {
                ahead = ahead.min(room.left / AHEAD_SHARE);
            }
            lowest = (lowest.0.min(near), lowest.1.min(limit));
            self.room.thread_at.fetch_min(size + room.left / THREAD_SHARE, Relaxed);
        });
        self.set_ceilings(lowest, short);
        self.room.ahead.store(ahead, Relaxed);
        self.room.free.store(self.kernel.free_huge_pages().unwrap_or(0) / FREE_SHARE, Relaxed);
    }

    /// Returns the limits that the process was started with.
    pub(super) fn limits(&self) -> &Limits {
        self.room.limits.get_or_init(|| self.kernel.limits())
    }

    /// Returns the most bytes that the heap takes: its huge pages, and what is committed on base
    /// pages.
    pub fn size(&self) -> u64 {
        self.held().saturating_sub(self.ledger().held(Backing::Base)) + self.committed_on_base()
    }

    /// Takes `bytes` of the free huge pages for memory that is about to be touched. Fails if the
    /// kernel might have to make room for them while the program's thread waits: then base pages
    /// come first.
    pub fn take_free(&self, bytes: usize) -> Result<(), FallBack> {
        let taken = self.room.free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(bytes as u64));
        taken.map_or(Err(FallBack::Fragmented), |_| Ok(()))
    }

    /// Gives back bytes that [`HugeHeap::take_free`] took, if the caller did not use them.
    pub fn return_free(&self, bytes: usize) {
        let _ = self.room.free.fetch_update(Relaxed, Relaxed, |free| Some(free.saturating_add(bytes as u64)));
    }

    /// Sets the bytes of heap at which a limit is near, at which it is reached, and from which on
    /// memory is short.
    fn set_ceilings(&self, (ceiling, limit): (u64, u64), short: u64) {
        self.room.limit.store(limit, Relaxed);
        self.room.ceiling.store(ceiling, Relaxed);
        self.room.short_from.store(short.min(ceiling), Relaxed);
        if !self.is_short() {
            self.room.was_short.store(false, Relaxed);
        }
    }

    /// Returns true if a limit is near: nothing more is to become huge.
    pub fn is_near_limit(&self) -> bool {
        self.size() >= self.room.ceiling.load(Relaxed)
    }

    /// Returns true if memory is short: unused memory is to go back.
    pub fn is_short(&self) -> bool {
        self.size() >= self.room.short_from.load(Relaxed)
    }

    /// Returns the bytes of freed memory that may wait to be used again, once the heap takes `more`
    /// bytes more. While memory is short that is a part of what is left; before, any number.
    /// `touched` is the share of committed memory that holds something, in thousandths; limits on
    /// mappings count all of it.
    pub fn room_for_waiting(&self, more: usize, touched: usize) -> usize {
        let rest = if self.addresses_are_few() { 0 } else { 1000_u64.saturating_sub(touched as u64) };
        // Other threads commit and release meanwhile, so that the difference may not fit.
        let rest = self.committed_on_base() / 1000 * rest;
        let size = self.size().saturating_add(more as u64).saturating_sub(rest);
        let left = self.room.limit.load(Relaxed).saturating_sub(size);
        if size < self.room.short_from.load(Relaxed) { usize::MAX } else { (left / WAITING_SHARE) as usize }
    }

    /// Returns the time after which a thread reads the limits again; `None` without limits.
    pub fn measured_every(&self) -> Option<Duration> {
        self.limits().any().then_some(MEASURED_EVERY)
    }

    /// Returns true if a limit counts what is reserved or accessible, touched or not.
    pub fn addresses_are_few(&self) -> bool {
        self.limits().of_mappings()
    }

    /// Returns true if the heap is large enough for a thread that reads limits and returns memory.
    pub fn is_worth_a_thread(&self) -> bool {
        self.size() >= self.room.thread_at.load(Relaxed)
    }

    /// Notes how many threads of the program use the heap.
    pub fn note_threads(&self, count: u64) {
        self.room.threads.store(count, Relaxed);
    }

    /// Chooses the backings of fresh memory. Returns `None` for a chunk if the user wants base
    /// pages. Returns `None` for an arena or a commit that gets no 1 GiB pages: then each chunk has
    /// its own chain.
    pub(super) fn chain(&self, of: Fresh) -> Option<Chain> {
        let heap = self.config().heap;
        let gigantic = |large| self.may_be_gigantic(heap, large).then_some(Chain::Gigantic);
        match of {
            Fresh::Arena { commit } => gigantic(!commit && self.held() >= ARENA_1G_AT),
            Fresh::Commit => gigantic(true),
            Fresh::Chunk(..) if heap == Heap::None => None,
            Fresh::Chunk(of, mask) => {
                let broker = self.may_be_of_pools(of.is_bulk());
                let thp = self.may_be_thp(of, mask);
                Some(Chain::Chunk { broker, hugetlb: broker && heap != Heap::Thp, thp })
            }
        }
    }

    /// Returns true if pages of 1 GiB may back fresh memory. `large` is true if the memory or the
    /// heap is large enough; only [`Heap::Auto`] uses it.
    fn may_be_gigantic(&self, heap: Heap, large: bool) -> bool {
        // A named broker's pages come first. Most machines have no pool of 1 GiB pages: `Auto` does
        // not count that as a fall-back.
        let has_any = || self.kernel.hugetlb_available(PageSize::HUGE_1G).unwrap_or(0) > 0;
        let auto = || large && !self.has_broker() && !self.kernel.is_confined() && has_any();
        let wanted = || heap == Heap::Hugetlb1G || heap == Heap::Auto && auto();
        !self.forked.load(Relaxed) && wanted() && self.is_fit(HUGE_1G as u64)
    }

    /// Returns true if a page of a broker or of a pool may back a fresh chunk. `bulk` is true for a
    /// large object.
    pub(super) fn may_be_of_pools(&self, bulk: bool) -> bool {
        (bulk || !self.is_small(self.held())) && !self.forked.load(Relaxed)
    }

    /// Returns `Ok` if a fresh chunk may be a transparent huge page, or else the reason for base
    /// pages.
    fn may_be_thp(&self, of: Commit, mask: u32) -> Result<(), FallBack> {
        if !of.is_bulk() && self.is_small(self.held()) {
            return Err(FallBack::TooSmall);
        }
        if self.is_short() && !self.room.was_short.swap(true, Relaxed) || self.is_to_be_swept() {
            self.room.is_due.store(true, Relaxed);
        }
        if self.is_near_limit() {
            return Err(FallBack::Room);
        }
        if !of.is_bulk() && self.is_young() {
            return Err(FallBack::TooSmall);
        }
        if self.is_sparse(mask) || self.is_hardly_touched(of) {
            return Err(FallBack::Sparse);
        }
        if self.thp_off.load(Relaxed) { Err(FallBack::ThpOff) } else { Ok(()) }
    }

    /// Returns true if the program may leave much of such commits untouched, as far as a thread of
    /// the library has seen. Returns false for a large object, and if the user has asked for huge
    /// pages.
    fn is_hardly_touched(&self, of: Commit) -> bool {
        if of.is_bulk() || !self.spares() {
            return false;
        }
        let unseen = self.is_unseen();
        self.room.wants_look.fetch_or(unseen, Relaxed);
        unseen || self.room.untouched.load(Relaxed) > MOST_UNTOUCHED
    }

    /// Returns true if the program had touched what it was given at the last look, and the heap has
    /// grown too much since. Returns false if the user has asked for huge pages: they wait for no
    /// look.
    pub fn is_unseen(&self) -> bool {
        self.spares()
            && self.room.untouched.load(Relaxed) <= MOST_UNTOUCHED
            && self.committed() > self.room.seen_up_to.load(Relaxed)
    }

    /// Returns true, once, if a look is wanted: chunks are on base pages because the heap has grown
    /// too much since the last one.
    pub fn wants_look(&self) -> bool {
        self.room.wants_look.load(Relaxed) && self.room.wants_look.swap(false, Relaxed)
    }

    /// Returns true if the program may leave much of its blocks untouched, besides the `rounding`
    /// thousandths that they have beyond what it has asked for: by the last look, or because the
    /// heap has grown too much since. Freed memory should not wait then: the blocks that take its
    /// place need less of it.
    pub fn leaves_untouched(&self, rounding: u64) -> bool {
        let most = MOST_UNTOUCHED.max(rounding + BEYOND_ROUNDING);
        self.is_unseen() || (most + 1..NOT_LOOKED).contains(&self.room.untouched.load(Relaxed))
    }

    /// Returns the committed bytes of the chunk at `region` beyond `present` bytes, which the
    /// program has touched. 0 if the chunk is not on base pages.
    pub fn untouched_at(&self, region: usize, present: usize) -> usize {
        let on_base = self.chunk_at(region).filter(|chunk| chunk.mapping() == BASE);
        on_base.map_or(0, |chunk| (chunk.committed().count_ones() as usize * SLICE).saturating_sub(present))
    }

    /// Notes how many bytes of chunks on base pages that hold something are committed and not
    /// touched, and how many are present. What is committed on huge pages counts as touched.
    pub fn note_untouched(&self, left: u64, present: u64) {
        let of = left + present + self.committed().saturating_sub(self.committed_on_base());
        let untouched = left * 1000 / of.max(1);
        self.room.untouched.store(untouched, Relaxed);
        let more = of / 1000 * MOST_UNTOUCHED.saturating_sub(untouched);
        self.room.seen_up_to.store(self.committed() + LEAST_UNSEEN + more, Relaxed);
    }

    /// Keeps the last look valid until the heap has grown by `bytes`: no look comes before.
    pub fn keep_seen(&self, bytes: u64) {
        self.room.seen_up_to.store(self.committed() + bytes, Relaxed);
    }

    /// Sweeps the heap once memory has become short, or too much is unused. The caller holds no
    /// lock of the heap.
    pub(super) fn sweep_if_due(&self) {
        if self.room.is_due.load(Relaxed) && self.room.is_due.swap(false, Relaxed) {
            self.sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Heap, Mapping};
    use megapage_inside::thp_is_possible;
    use megapage_units::{HUGE_2M, HugePage};

    const THP: Mapping = Mapping::Mapped(Backing::Thp);
    const NO_LIMIT: (u64, u64) = (u64::MAX, u64::MAX);

    /// Makes a heap of `chunks` chunks of which all but the last slice of each is in use.
    fn heap(chunks: usize) -> (HugeHeap, megapage_inside::Reservation) {
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
        heap.set_ceilings(NO_LIMIT, u64::MAX);
        let arena = heap.reserve(2 * chunks * HUGE_2M, HUGE_2M, false).unwrap();
        heap.commit(arena.range.part(0, chunks * HUGE_2M)).unwrap();
        for index in 0..chunks {
            heap.decommit(arena.range.part((index + 1) * HUGE_2M - SLICE, SLICE)).unwrap();
        }
        (heap, arena.range)
    }

    #[test]
    fn near_a_limit_a_fresh_chunk_is_on_base_pages_and_what_is_unused_goes_back() {
        if !thp_is_possible() {
            return megapage_testing::skip("needs transparent huge pages");
        }
        let (heap, arena) = heap(20);
        let mapping = |index: usize| heap.chunk_at(arena.start() + index * HUGE_2M).unwrap().mapping();
        let used = |index: usize| heap.chunk_at(arena.start() + index * HUGE_2M).unwrap().used();
        let commit = |index: usize| heap.commit(arena.part(index * HUGE_2M, HUGE_2M)).unwrap();
        assert_eq!((mapping(10), used(10)), (THP, u32::MAX), "nearly full ones stay huge");
        // Two more chunks fit before the limit is near.
        heap.set_ceilings((heap.held() + 2 * HugePage::SIZE, u64::MAX), u64::MAX);
        for index in 20..23 {
            assert_eq!((heap.is_short(), heap.is_near_limit()), (index == 22, index == 22));
            commit(index);
        }
        assert_eq!([20, 21, 22].map(mapping), [THP, THP, BASE]);
        assert_eq!(heap.ledger().fall_backs(FallBack::Room), (1, HugePage::SIZE));
        assert_eq!((mapping(10), used(10)), (BASE, u32::MAX >> 1), "swept once, when the limit was near");
        assert_eq!((mapping(21), used(21)), (THP, u32::MAX), "one in use as a whole stays");
        // With room again, fresh chunks are huge as before.
        heap.set_ceilings(NO_LIMIT, u64::MAX);
        commit(23);
        assert_eq!(mapping(23), THP);
        heap.release(arena).unwrap();
        assert_eq!(heap.ledger().total_held(), 0);
    }

    #[test]
    fn a_limit_is_near_by_its_size() {
        let room = |limit, left| ceiling(100 << 20, Room { limit, left, of_touched: true }).0;
        assert_eq!(room(400 << 20, 300 << 20), 350 << 20);
        assert_eq!(room(400 << 20, 20 << 20), 70 << 20, "near already");
        assert_eq!(room(16 << 20, 0), 92 << 20);
        assert_eq!(room(1 << 50, 1 << 40), (100 << 20) + (1 << 40) - MOST_MARGIN);
        assert_eq!(ceiling(0, Room { limit: 1, left: 1, of_touched: true }), (0, 1));
    }

    #[test]
    fn what_is_committed_on_base_pages_counts_towards_a_limit_and_not_its_chunk() {
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::None, ..Config::DEFAULT });
        let arena = heap.reserve(4 * HUGE_2M, HUGE_2M, false).unwrap();
        heap.commit(arena.range.part(0, SLICE)).unwrap();
        assert_eq!((heap.size(), heap.held()), (SLICE as u64, HugePage::SIZE));
        heap.set_ceilings((10 * SLICE as u64, 18 * SLICE as u64), u64::MAX);
        heap.commit(arena.range.part(SLICE, 8 * SLICE)).unwrap();
        assert!(!heap.is_near_limit());
        heap.commit(arena.range.part(9 * SLICE, SLICE)).unwrap();
        assert!(heap.is_near_limit() && heap.is_short());
        heap.release(arena.range).unwrap();
    }

    #[test]
    fn near_a_limit_freed_memory_waits_up_to_a_part_of_what_is_left() {
        let heap = HugeHeap::new();
        heap.set_ceilings((10 << 20, 18 << 20), u64::MAX);
        let waits = |more: usize| heap.room_for_waiting(more << 20, 1000);
        assert_eq!([9, 10, 14, 18, 30].map(waits), [usize::MAX, 2 << 20, 1 << 20, 0, 0]);
        // Only touched memory counts of what is committed on base pages.
        heap.configure(Config { heap: Heap::None, ..Config::DEFAULT });
        let arena = heap.reserve(20 * HUGE_2M, HUGE_2M, false).unwrap();
        heap.commit(arena.range.part(0, 10 * HUGE_2M)).unwrap();
        heap.set_ceilings((10 << 20, 18 << 20), u64::MAX);
        assert_eq!(heap.room_for_waiting(0, 1000), 0);
        assert!((1 << 20..2 << 20).contains(&heap.room_for_waiting(0, 600)));
        assert_eq!(heap.room_for_waiting(0, 400), usize::MAX);
        heap.release(arena.range).unwrap();
    }

    #[test]
    fn chunks_are_huge_from_the_start_where_the_program_touches_what_it_allocates() {
        if !thp_is_possible() {
            return megapage_testing::skip("needs transparent huge pages");
        }
        const CHUNKS: usize = 128;
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, spares: true, ..Config::DEFAULT });
        heap.room.free.store(u64::MAX, Relaxed);
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
        let commit = |first: usize| {
            heap.commit(arena.range.part(first * HUGE_2M, 4 * HUGE_2M)).unwrap();
            heap.chunk_at(arena.range.start() + first * HUGE_2M).unwrap().mapping()
        };
        (0..80).step_by(4).for_each(|first| assert_eq!(commit(first), BASE));
        assert_eq!(commit(80), BASE, "nothing is known yet");
        heap.note_untouched(1, 1);
        assert_eq!(commit(84), BASE, "half of it was not touched");
        assert!(heap.leaves_untouched(0), "so that nothing waits to be used again");
        assert!(!heap.leaves_untouched(490), "the rounding of blocks does not count");
        heap.note_untouched(1, 30);
        assert!(!heap.leaves_untouched(0));
        assert_eq!(commit(88), THP);
        assert_eq!(commit(112), BASE, "the program may have begun to leave memory untouched");
        assert!(heap.leaves_untouched(0) && heap.wants_look() && !heap.wants_look());
        // The bound is a sixteenth of what is present: more than all that follows.
        heap.note_untouched(0, 1 << 40);
        assert_eq!(commit(116), THP);
        heap.note_untouched(heap.committed(), 1);
        // One large object may be huge, whatever was seen.
        assert_eq!(commit(92), BASE);
        heap.commit(arena.range.part(96 * HUGE_2M, 16 * HUGE_2M)).unwrap();
        assert_eq!(heap.chunk_at(arena.range.start() + 96 * HUGE_2M).unwrap().mapping(), THP);
        heap.release(arena.range).unwrap();
    }

    #[test]
    fn the_machines_memory_is_a_limit() {
        let heap = HugeHeap::new();
        let configure = |short_below| {
            heap.configure(Config { heap: Heap::Thp, short_below, ..Config::DEFAULT });
            heap.is_short()
        };
        assert!(configure(u64::MAX));
        assert!(!configure(1) || megapage_inside::room::machine_room().is_none());
    }
}
