//! Chunks that become huge behind the program. They were on base pages when the program touched
//! them first, and have filled up since. A thread of the library collapses them.

use super::HugeHeap;
use crate::chunk::Mapping;
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_inside::{Errno, ErrnoGuard};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes up to which a heap stays on base pages.
pub(super) const SMALL_HEAP: u64 = 4 << 20;
/// Further bytes on base pages for each thread besides the first: it begins with a little of each
/// size.
const PER_THREAD: u64 = 1 << 20;
/// Most of those bytes, for all threads together.
const MOST_FOR_THREADS: u64 = 64 << 20;

impl<K: Prim> HugeHeap<K> {
    /// Returns true if a heap that holds `held` bytes is too small for a further huge page.
    pub(super) fn is_small(&self, held: u64) -> bool {
        let others = self.room.threads.load(Relaxed).saturating_sub(1);
        let for_threads = others.saturating_mul(PER_THREAD).min(MOST_FOR_THREADS);
        held + HugePage::SIZE <= SMALL_HEAP + for_threads
    }

    /// Collapses the chunk at `address`. For threads of the library: the kernel may have to make
    /// room for a huge page. Fails with ENOMEM if it has none. Fails with EINVAL for a chunk that
    /// is not on base pages, and before Linux 6.1, where khugepaged collapses the chunk later.
    pub fn collapse_at(&self, address: usize) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        // The program may wait for the locks below. So room is made before they are taken.
        match make_ready(&self.kernel) {
            Ok(()) | Err(Errno::EINVAL) => self.walks.with(|| self.collapse_chunk_at(address)),
            refused => refused,
        }
    }

    /// Collapses the chunk at `address`, if it is still on base pages. The caller holds `walks`.
    fn collapse_chunk_at(&self, address: usize) -> Result<(), Errno> {
        let span = self.spans.with(|spans| spans.find(address)).ok_or(Errno::EINVAL)?;
        let index = (address - span.range.start()) / HUGE_2M;
        let group = self.hold(&span, index);
        let (chunk, range) = (span.chunk(index), group.chunk_at(index));
        let is_closed = self.by_slices.load(Relaxed) && chunk.used() != u32::MAX;
        if chunk.mapping() != Mapping::Mapped(Backing::Base) || is_closed {
            return Err(Errno::EINVAL);
        }
        self.kernel.advise_thp(*range)?;
        self.kernel.collapse(*range)?;
        chunk.set_mapping(Mapping::Mapped(Backing::Thp));
        chunk.set_advised();
        self.in_use.moved_to_huge(chunk.committed());
        self.ledger().converted(Backing::Base, Backing::Thp, HugePage::SIZE);
        Ok(())
    }
}

/// Takes a huge page and releases it, so that the next collapse finds one. The kernel holds no lock
/// of the process while it makes room for that page. In a virtual machine, the host may have to
/// find memory, too. Fails with EINVAL if the kernel cannot collapse (before Linux 6.1).
pub(super) fn make_ready(kernel: &impl Prim) -> Result<(), Errno> {
    let range = kernel.reserve(HUGE_2M, HUGE_2M)?;
    kernel.open(&range)?;
    kernel.populate(*range.part(0, BASE_PAGE))?;
    kernel.collapse(range.view())
}
