//! The first chunks of a heap: on base pages, so that small programs stay small, until the heap has
//! outgrown them. Those that are in use then become huge.

use super::HugeHeap;
use super::density::{NEARLY_ALL, YOUNG};
use crate::chunk::Mapping;
use crate::ledger::Backing;
use megapage_inside::ErrnoGuard;
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The heap starts on base pages until it holds this many bytes.
pub(super) const SMALL_HEAP: u64 = 4 << 20;
/// First chunks are collapsed once so many bytes are committed, where huge pages are asked for.
const COLLAPSE_AT: u64 = 32 << 20;
/// First chunks that are stored: those of a heap that is young yet.
const PLACES: usize = YOUNG as usize / HUGE_2M;

/// Each thread besides the first may have so many more bytes on base pages: it begins with a little of each size.
const PER_THREAD: u64 = 1 << 20;
/// All of them together at most so many.
const MOST_FOR_THREADS: u64 = 64 << 20;

/// Addresses of first chunks; 0 where there is none.
#[derive(Debug)]
pub(super) struct FirstChunks {
    places: [AtomicUsize; PLACES],
    /// The number of them that were collapsed, or left as they are.
    done: AtomicUsize,
}

impl FirstChunks {
    pub(super) const fn new() -> FirstChunks {
        FirstChunks { places: [const { AtomicUsize::new(0) }; PLACES], done: AtomicUsize::new(0) }
    }

    /// Remembers a chunk, where there is a place: one that finds none stays on base pages.
    pub(super) fn remember(&self, address: usize) {
        let _ = self.places.iter().find(|place| place.compare_exchange(0, address, Relaxed, Relaxed).is_ok());
    }

    /// The next one, once.
    fn take_next(&self) -> Option<usize> {
        let more = self.done.load(Relaxed) < PLACES;
        let place = more.then(|| self.done.fetch_add(1, Relaxed))?;
        self.places.get(place).map(|place| place.load(Relaxed))
    }

    /// Forgets a chunk that went back to the kernel.
    pub(super) fn forget(&self, address: usize) {
        for place in &self.places {
            let _ = place.compare_exchange(address, 0, Relaxed, Relaxed);
        }
    }
}

impl HugeHeap {
    /// Whether a heap that holds `held` bytes is too small for a further huge page.
    pub(super) fn is_small(&self, held: u64) -> bool {
        let more = (held + HUGE_2M as u64).saturating_sub(SMALL_HEAP);
        if more == 0 || more > MOST_FOR_THREADS {
            return more == 0;
        }
        more <= self.threads().saturating_sub(1).saturating_mul(PER_THREAD)
    }

    /// Collapses the chunk at `address` if it is one on base pages. Whether it is huge now.
    pub fn collapse_at(&self, address: usize) -> bool {
        let _errno = ErrnoGuard::save();
        self.walks.with(|| self.collapse_chunk_at(address));
        self.chunk_at(address).is_some_and(|chunk| chunk.mapping() == Mapping::Mapped(Backing::Thp))
    }

    /// Collapses the next of the chunks that the heap started with, when it has outgrown them and
    /// where nearly all of it is in use: the rest of one would be memory that the program has not
    /// asked for.
    pub(super) fn collapse_first_chunk(&self) {
        if self.is_young(COLLAPSE_AT) || self.thp_off.load(Relaxed) || self.is_near_limit() {
            return;
        }
        let Some(address) = self.first_chunks.take_next() else { return };
        let committed = self.chunk_at(address).map_or(0, |chunk| chunk.committed().count_ones());
        if committed >= NEARLY_ALL {
            self.walks.with(|| self.collapse_chunk_at(address));
        }
    }

    /// Collapses the chunk at `address`, if it is still one on base pages. With `walks` held.
    fn collapse_chunk_at(&self, address: usize) {
        let Some(span) = self.spans.with(|spans| spans.find(address)) else { return };
        let index = (address - span.range.start()) / HUGE_2M;
        self.group_lock(&span, index).with(|| {
            let chunk = span.chunk(index);
            let range = span.chunk_range(index, 1);
            if chunk.mapping() == Mapping::Mapped(Backing::Base)
                && range.advise_thp().is_ok()
                && range.collapse().is_ok()
            {
                chunk.set_mapping(Mapping::Mapped(Backing::Thp));
                self.in_use.moved_to_huge(chunk.committed());
                self.ledger().converted(Backing::Base, Backing::Thp, HUGE_2M as u64);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(chunks: &FirstChunks) -> usize {
        chunks.places.iter().filter(|place| place.load(Relaxed) != 0).count()
    }

    #[test]
    fn threads_take_places_of_their_own() {
        for _ in 0..200 {
            let chunks = FirstChunks::new();
            std::thread::scope(|scope| {
                for thread in 1..=PLACES {
                    let chunks = &chunks;
                    scope.spawn(move || chunks.remember(thread * HUGE_2M));
                }
            });
            assert_eq!(remembered(&chunks), PLACES);
        }
    }

    #[test]
    fn a_place_is_free_again_once_its_chunk_went_back() {
        let heap = HugeHeap::new();
        let arena = heap.reserve(3 * PLACES * HUGE_2M, HUGE_2M, false).unwrap();
        // More often than there are places.
        for round in 0..3 * PLACES {
            let chunk = arena.range.part(round * HUGE_2M, HUGE_2M);
            heap.commit(chunk).unwrap();
            assert_eq!(remembered(&heap.first_chunks), 1, "round {round}");
            heap.decommit(chunk).unwrap();
            assert_eq!(remembered(&heap.first_chunks), 0, "round {round}");
        }
        heap.commit(arena.range.part(0, HUGE_2M)).unwrap();
        heap.release(arena.range).unwrap();
        assert_eq!(remembered(&heap.first_chunks), 0, "its range went back");
    }
}
