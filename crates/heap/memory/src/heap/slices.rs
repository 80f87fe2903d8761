//! Slices on base pages that are accessible only while they are in use: the kernel populates locked
//! memory (mlockall(2)) that is accessible, and compares RLIMIT_DATA with what is.

use super::HugeHeap;
use super::density::FEW;
use crate::chunk::{BASE, Mapping, SLICE, runs};
use crate::span::Span;
use megapage_inside::OwnedRange;
use std::sync::atomic::Ordering::Relaxed;

impl HugeHeap {
    /// Opens the slices of `mask` that hold nothing yet, if slices are opened one by one. The
    /// caller holds the lock of the chunk's group.
    pub(super) fn open_slices(&self, span: &Span, index: usize, mask: u32) -> bool {
        let (chunk, range) = (span.chunk(index), span.chunk_range(index, 1));
        // The kernel may lock what is mapped now, and not what was.
        let close = |part: OwnedRange| if self.locked.load(Relaxed) { part.close() } else { Ok(()) };
        let open = |part: OwnedRange| close(part).and_then(|()| part.open()).is_ok();
        !self.by_slices.load(Relaxed)
            || chunk.mapping() != BASE
            || runs(mask & !chunk.used()).all(|(first, count)| open(range.part(first * SLICE, count * SLICE)))
    }

    /// Opens slices on base pages one by one from now on, and closes those that are not in use.
    /// Returns false if it was so before.
    pub(super) fn close_unused(&self) -> bool {
        let changed = !self.by_slices.swap(true, Relaxed);
        if changed {
            self.walk(|span, index| {
                let chunk = span.chunk(index);
                if chunk.mapping() == BASE {
                    chunk.set_slices(chunk.committed(), u32::MAX);
                }
                self.return_slices(span, index, FEW);
            });
        }
        changed
    }

    /// Prepares for memory to be locked (mlockall(2)).
    pub fn prepare_for_locks(&self) {
        self.locked.store(true, Relaxed);
        self.close_unused();
    }

    /// Unlocks the addresses that hold nothing, which count towards RLIMIT_MEMLOCK.
    pub fn unlock_unused(&self) {
        self.walk(|span, index| {
            let (chunk, range) = (span.chunk(index), span.chunk_range(index, 1));
            let unlock = |(first, count)| range.part(first * SLICE, count * SLICE).unlock();
            if let Mapping::None | BASE = chunk.mapping() {
                runs(!chunk.used()).for_each(unlock);
            }
        });
    }
}
