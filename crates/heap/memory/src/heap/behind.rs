//! Chunks that become huge behind the program. They were on base pages when the program touched
//! them first, and have filled up since. A thread of the library collapses them.

use super::group::Group;
use super::{GROUP, HugeHeap};
use crate::chunk::{BASE, Chunk, Mapping};
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_inside::{Errno, ErrnoGuard, OwnRegion};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes up to which a heap stays on base pages.
pub(super) const SMALL_HEAP: u64 = 4 << 20;
/// Further bytes on base pages for each thread besides the first: it begins with a little of each
/// size.
const PER_THREAD: u64 = 1 << 20;
/// Most of those bytes, for all threads together.
const MOST_FOR_THREADS: u64 = 64 << 20;
/// Most chunks that one call collapses.
const MOST_AT_ONCE: usize = 4;

impl<K: Prim> HugeHeap<K> {
    /// Returns true if a heap that holds `held` bytes is too small for a further huge page.
    pub(super) fn is_small(&self, held: u64) -> bool {
        let others = self.room.threads.load(Relaxed).saturating_sub(1);
        let for_threads = others.saturating_mul(PER_THREAD).min(MOST_FOR_THREADS);
        held + HugePage::SIZE <= SMALL_HEAP + for_threads
    }

    /// Returns the bytes that collapses have added to the resident memory over the program's life.
    pub(crate) fn filled(&self) -> u64 {
        self.room.filled.load(Relaxed)
    }

    /// Adds `bytes` to the bytes that collapses have added.
    pub(crate) fn note_filled(&self, bytes: u64) {
        self.room.filled.fetch_add(bytes, Relaxed);
    }

    /// Returns the most chunks for one call of [`HugeHeap::collapse_at`]: 1/256 of the committed
    /// chunks, from 1 to [`MOST_AT_ONCE`]. Threads of the program may wait for such a call.
    /// [`HugeHeap::make_ready`] holds as many huge pages for a moment.
    pub(crate) fn most_at_once(&self) -> usize {
        ((self.committed() / 256 / HugePage::SIZE) as usize).clamp(1, MOST_AT_ONCE)
    }

    /// Makes the kernel free `len` bytes of huge pages now, while no lock of the heap is held.
    /// [`HugeHeap::collapse_at`] then holds its locks for less time. Returns the kernel's error,
    /// such as ENOMEM without free memory. Returns `Ok` if the kernel cannot collapse.
    pub fn make_ready(&self, len: usize) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        match make_ready(&self.kernel, len) {
            // The kernel cannot collapse: `collapse_at` returns that error.
            Err(Errno::EINVAL) => Ok(()),
            done => done,
        }
    }

    /// Collapses the chunks from `start` to `start + len` that are on base pages, and returns the
    /// bytes that became huge. For threads of the library, after [`HugeHeap::make_ready`]. If no
    /// chunk became huge, returns the kernel's error, such as ENOMEM without a free huge page.
    /// Returns EINVAL if no chunk is on base pages. Linux before 6.1 returns EINVAL, too: there
    /// khugepaged collapses chunks later.
    pub fn collapse_at(&self, start: usize, len: usize) -> Result<usize, Errno> {
        let _errno = ErrnoGuard::save();
        self.walks.with(|| self.collapse_chunks_at(start, len))
    }

    /// Collapses chunks, group by group. The caller holds `walks`.
    fn collapse_chunks_at(&self, start: usize, len: usize) -> Result<usize, Errno> {
        let span = self.spans.with(|spans| spans.find(start)).ok_or(Errno::EINVAL)?;
        let mut index = (start - span.range.start()) / HUGE_2M;
        let end = span.chunks().min(index + len / HUGE_2M);
        let (mut done, mut refused) = (0, Errno::EINVAL);
        while index < end {
            let group = self.hold(&span, index);
            let group_end = end.min((index / GROUP + 1) * GROUP);
            let is_closed = |chunk: Chunk| self.by_slices.load(Relaxed) && chunk.used() != u32::MAX;
            let is_base = |index: &usize| {
                let chunk = span.chunk(*index);
                chunk.mapping() == BASE && !is_closed(chunk)
            };
            let count = (index..group_end).take_while(is_base).count();
            match if count > 0 { self.collapse_held(&group, index, count) } else { Ok(0) } {
                Ok(huge) => done += huge,
                Err(errno) => refused = errno,
            }
            index += count.max(1);
        }
        if done == 0 { Err(refused) } else { Ok(done * HUGE_2M) }
    }

    /// Collapses `count` chunks of a group from `index` on, and returns the number that became
    /// huge. Returns the kernel's error if none did.
    fn collapse_held(&self, group: &Group, index: usize, count: usize) -> Result<usize, Errno> {
        let range = group.chunks_at(index, count);
        self.kernel.advise_thp(*range)?;
        let done = self.kernel.collapse(*range);
        let mut huge = 0;
        for index in index..index + count {
            let (chunk, start) = (group.chunk(index), group.chunk_at(index).start());
            chunk.set_advised();
            // After an error the kernel may have collapsed other chunks: looks at each one.
            if done.is_ok() || self.kernel.region(start) == Some(OwnRegion::Huge) {
                chunk.set_mapping(Mapping::Mapped(Backing::Thp));
                self.in_use.moved_to_huge(chunk.committed());
                self.ledger().converted(Backing::Base, Backing::Thp, HugePage::SIZE);
                huge += 1;
            }
        }
        if huge == 0 { done.map(|()| 0) } else { Ok(huge) }
    }
}

/// Allocates `len` bytes of huge pages and releases them: the next collapse then finds free ones.
/// The kernel holds no lock of the process while it reclaims and compacts for them. In a virtual
/// machine, the host may also have to allocate memory. Fails with EINVAL if the kernel cannot
/// collapse (before Linux 6.1).
pub(super) fn make_ready(kernel: &impl Prim, len: usize) -> Result<(), Errno> {
    let range = kernel.reserve(len, HUGE_2M)?;
    // A child that is forked in between would keep these pages.
    kernel.keep_from_children(*range.part(0, len))?;
    kernel.open(&range)?;
    for start in (0..len).step_by(HUGE_2M) {
        kernel.populate(*range.part(start, BASE_PAGE))?;
    }
    kernel.collapse(range.view())
}
