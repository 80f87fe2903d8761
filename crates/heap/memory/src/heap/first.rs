//! The first chunks of a heap: on base pages, so that small programs stay small, until the heap has outgrown them.

use super::HugeHeap;
use crate::chunk::Mapping;
use crate::ledger::Backing;
use megapage_inside::ErrnoGuard;
use megapage_units::HUGE_2M;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The heap starts on base pages until it holds this many bytes.
pub(super) const SMALL_HEAP: u64 = 4 << 20;
/// Once the heap holds this many bytes, its first chunks are collapsed as well.
const COLLAPSE_AT: u64 = 32 << 20;
/// How many first chunks are stored: as many as a small heap has, and one that another thread adds meanwhile.
const PLACES: usize = (SMALL_HEAP as usize / HUGE_2M) + 1;

/// Each thread besides the first may have so many more bytes on base pages: it begins with a little of each size.
const PER_THREAD: u64 = 1 << 20;
/// All of them together at most so many.
const MOST_FOR_THREADS: u64 = 64 << 20;
/// Addresses of first chunks; 0 where there is none.
#[derive(Debug)]
pub(super) struct FirstChunks([AtomicUsize; PLACES]);

impl FirstChunks {
    pub(super) const fn new() -> FirstChunks {
        FirstChunks([const { AtomicUsize::new(0) }; PLACES])
    }

    /// Remembers a chunk, where there is a place: one that finds none stays on base pages.
    pub(super) fn remember(&self, address: usize) {
        let _ = self.0.iter().find(|place| place.compare_exchange(0, address, Relaxed, Relaxed).is_ok());
    }

    /// Forgets a chunk that went back to the kernel.
    pub(super) fn forget(&self, address: usize) {
        for place in &self.0 {
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

    /// Collapses the chunks that the heap started with, once, when it has outgrown them.
    pub(super) fn collapse_first_chunks(&self) {
        if self.collapsed.load(Relaxed) || self.held() < COLLAPSE_AT || self.collapsed.swap(true, Relaxed) {
            return;
        }
        if self.thp_off.load(Relaxed) {
            return;
        }
        for place in &self.first_chunks.0 {
            self.walks.with(|| self.collapse_chunk_at(place.load(Relaxed)));
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
                self.in_use.add(chunk, chunk.committed());
                self.ledger().converted(Backing::Base, Backing::Thp, HUGE_2M as u64);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(chunks: &FirstChunks) -> usize {
        chunks.0.iter().filter(|place| place.load(Relaxed) != 0).count()
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
        let arena = heap.reserve(32 << 20, HUGE_2M, false).unwrap();
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
