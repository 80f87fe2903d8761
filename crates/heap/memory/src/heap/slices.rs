//! Access to chunks on base pages. Usually more is accessible than is in use, because each change
//! of access holds up the program's threads. After mlockall(2), which populates accessible memory,
//! slices are accessible only while they are in use. So they are near a limit that counts
//! accessible memory (RLIMIT_DATA, strict accounting).

use super::density::FEW;
use super::group::Group;
use super::{GROUP, HugeHeap};
use crate::chunk::{BASE, Chunk, Mapping, SLICE, runs};
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_inside::Owned;
use megapage_units::HugePage;
use std::sync::atomic::Ordering::Relaxed;

impl<K: Prim> HugeHeap<K> {
    /// Returns how many more chunks may be accessible while nothing is mapped there. Opening one
    /// holds up all page faults in the arena: threads that start and end at a high rate would wait
    /// for each other. A heap that is not young closes what it does not use.
    pub(super) fn ahead(&self) -> usize {
        if self.by_slices.load(Relaxed) || !self.is_young() {
            return 0;
        }
        // Half of it for chunks, half for parts of chunks.
        let most = self.room.ahead.load(Relaxed) / 2 / HugePage::SIZE;
        most.saturating_sub(self.open.load(Relaxed)) as usize
    }

    /// Makes chunk `index` accessible, of which nothing is mapped, and others behind it in its
    /// group. Returns false if that is refused.
    pub(super) fn open(&self, span: &Group, index: usize) -> bool {
        let end = index.saturating_add(self.ahead()).min((index / GROUP + 1) * GROUP).min(span.chunks());
        let is_closed = |&at: &usize| span.chunk(at).mapping() == Mapping::None && !span.chunk(at).is_open();
        let count = 1 + (index + 1..end).take_while(is_closed).count();
        let opened = self.kernel.open(&span.chunks_at(index, count)).is_ok();
        if opened {
            (index + 1..index + count).for_each(|at| span.chunk(at).set_open(&self.open));
        }
        opened
    }

    /// Ends the state of a chunk that is accessible ahead of its use. Returns true if the chunk was
    /// in that state.
    pub(super) fn take_open(&self, chunk: Chunk) -> bool {
        let was_open = chunk.is_open();
        if was_open {
            chunk.set_mapping(Mapping::None);
            self.open.fetch_sub(1, Relaxed);
        }
        was_open
    }

    /// Counts chunks as closed that are about to get pages: after a refusal they may be
    /// inaccessible.
    pub(super) fn take_all_open(&self, span: &Group, index: usize, count: usize) {
        for at in index..index + count {
            self.take_open(span.chunk(at));
        }
    }

    /// Opens the slices of `mask` that hold nothing yet, if slices are opened one by one. Returns
    /// false if that fails.
    pub(super) fn open_slices(&self, span: &Group, index: usize, mask: u32) -> bool {
        let (chunk, range) = (span.chunk(index), span.chunk_at(index));
        // The kernel may lock a new mapping, but not an older one: so locked memory is mapped
        // again.
        let close = |part: &Owned| if self.locked.load(Relaxed) { self.kernel.close(part) } else { Ok(()) };
        let open = |part: Owned| close(&part).and_then(|()| self.kernel.open(&part)).is_ok();
        let accessible = if self.unsure.load(Relaxed) { 0 } else { chunk.used() };
        // Each opened part of a chunk is a separate mapping, and a process may have too many of
        // them.
        !self.by_slices.load(Relaxed)
            || chunk.mapping() != BASE
            || runs(mask & !accessible).all(|(first, count)| open(range.part(first * SLICE, count * SLICE)))
            || !self.locked.load(Relaxed) && self.kernel.open(&range).is_ok()
    }

    /// Opens slices on base pages one by one from now on, and closes those that are not in use.
    /// Returns false if this was so before.
    pub(super) fn close_unused(&self) -> bool {
        let changed = !self.by_slices.swap(true, Relaxed);
        if changed {
            self.walk(|span, index| {
                let chunk = span.chunk(index);
                if chunk.mapping() == BASE {
                    chunk.set_slices(chunk.committed(), u32::MAX);
                }
                if self.take_open(chunk) {
                    let _ = self.kernel.close(&span.chunk_at(index));
                }
                self.return_slices(span, index, FEW);
            });
        }
        changed
    }

    /// Closes unused slices once more is accessible than a limit that counts it leaves room for.
    /// The C library's own mappings, such as stacks of threads, must not be refused because of it.
    /// The caller holds no lock of the heap.
    pub(super) fn close_if_many_are_open(&self) {
        let on_base = self.ledger().held(Backing::Base) + self.open.load(Relaxed) * HugePage::SIZE;
        if !self.by_slices.load(Relaxed)
            && on_base.saturating_sub(self.committed_on_base()) > self.room.ahead.load(Relaxed)
        {
            self.close_unused();
        }
    }

    /// Prepares for memory to be locked (mlockall(2)).
    pub fn prepare_for_locks(&self) {
        self.locked.store(true, Relaxed);
        self.close_unused();
    }

    /// Unlocks the addresses that hold nothing, which count towards RLIMIT_MEMLOCK.
    pub fn unlock_unused(&self) {
        self.walk(|span, index| {
            let (chunk, range) = (span.chunk(index), span.chunk_at(index));
            let unlock = |(first, count)| self.kernel.unlock(*range.part(first * SLICE, count * SLICE));
            if let Mapping::None | BASE = chunk.mapping() {
                runs(!chunk.used()).for_each(unlock);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Heap};
    use megapage_inside::program_memory::resident;
    use megapage_units::HUGE_2M;
    use std::time::Duration;

    fn heap(heap: Heap) -> (HugeHeap, megapage_inside::Reservation) {
        let config = Config { heap, spares: true, ..Config::DEFAULT };
        let heap = HugeHeap::new();
        heap.configure(config);
        heap.room.ahead.store(u64::MAX, Relaxed);
        let arena = heap.reserve(GROUP * HUGE_2M, GROUP * HUGE_2M, false).unwrap();
        (heap, arena.range)
    }

    #[test]
    fn a_chunk_that_was_opened_ahead_is_not_opened_again() {
        let (heap, arena) = heap(Heap::Thp);
        for used in 0..GROUP {
            let slice = || arena.part(used * HUGE_2M, SLICE);
            // If the slice is opened again, it can be populated below.
            slice().close().unwrap();
            heap.commit(slice()).unwrap();
            assert_eq!(heap.open.load(Relaxed) as usize, GROUP - 1 - used);
            assert_eq!(slice().populate().is_ok(), used == 0, "chunk {used}");
        }
        heap.release(arena).unwrap();
    }

    #[test]
    fn a_child_opens_what_another_thread_was_about_to_note_as_closed() {
        let (heap, arena) = heap(Heap::None);
        heap.commit(arena.part(0, 2 * SLICE)).unwrap();
        assert!(heap.close_unused());
        let (chunk, slice) = (heap.chunk_at(arena.start()).unwrap(), || arena.part(SLICE, SLICE));
        slice().close().unwrap();
        chunk.set_slices(0b01, 0b11);
        heap.free_locks_in_child();
        assert_eq!(heap.commit(slice()), Ok(false));
        assert_eq!(slice().populate(), Ok(()));
        heap.release(arena).unwrap();
    }

    #[test]
    fn nothing_waits_for_a_lock_where_slices_are_committed_again_or_discarded() {
        let (heap, arena) = heap(Heap::None);
        let (slice, rest) = (arena.part(0, SLICE), arena.part(SLICE, SLICE));
        assert_eq!(heap.commit(arena.part(0, 2 * SLICE)), Ok(true));
        rest.populate().unwrap();
        let span = heap.spans.with(|spans| spans.find(arena.start())).unwrap();
        let at = rest.start();
        std::thread::scope(|scope| {
            let held = heap.hold(&span, 0);
            assert_eq!(heap.commit(slice), Ok(false));
            scope.spawn(|| heap.decommit(rest));
            let mut looks = 0;
            while resident(at, SLICE) != Some(0) && looks < 1000 {
                std::thread::sleep(Duration::from_millis(10));
                looks += 1;
            }
            let before = (looks < 1000, span.chunk(0).used());
            drop(held);
            assert_eq!(before, (true, 0b11), "its state changes with the lock held");
        });
        assert_eq!((span.chunk(0).committed(), span.chunk(0).used()), (0b1, 0b1));
        heap.release(arena).unwrap();
    }
}
