//! Repair of huge pages that writes after a fork have split, once no other process maps them any
//! more.
//!
//! The kernel splits the entry of a transparent huge page at its first write after a fork and
//! copies 4 KiB; nothing brings it back. While a child shares the pages, a collapse would copy 2
//! MiB that the child keeps in use. So the collapse waits until the child has executed a program or
//! is gone, which the page table shows exactly.

use super::HugeHeap;
use super::behind::make_ready;
use super::group::Group;
use crate::chunk::Mapping;
use crate::config::Fork;
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_inside::{Errno, ErrnoGuard, OwnRegion};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage};
use std::sync::atomic::Ordering::Relaxed;

const PAGES: usize = HUGE_2M / BASE_PAGE;

/// Position of a walk over the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    slot: usize,
    index: usize,
    /// True if a huge page was made ready for the chunk at this position.
    ready: bool,
    /// True if a chunk was skipped because another process maps it.
    shared: bool,
    /// True if the kernel refused to repair a chunk now.
    left: bool,
    /// Chunks that the kernel refused to repair.
    failures: u8,
}

/// Failures at which a walk ends: each costs a huge page that was made ready and a try of some
/// milliseconds.
const MOST_FAILURES: u8 = 8;

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// No chunk was repaired: the one at this position needs no repair or cannot have it.
    Nothing,
    /// The next step will repair a chunk: a huge page was made ready for it.
    Ready,
    /// One chunk is huge again.
    Chunk,
    /// The walk is at its end.
    End {
        /// True if something is left to do later, because a child lives or a page was held.
        left: bool,
    },
}

impl Repair {
    /// Notes that the collapse of a chunk failed. Returns the step's result.
    fn failed(&mut self, errno: Errno) -> Repaired {
        if errno == Errno::EINVAL {
            // This mapping cannot be huge: no later walk does better.
            return Repaired::Nothing;
        }
        self.left = true;
        self.failures += 1;
        // Without memory no other chunk does better. Other errors are about this chunk alone. A
        // page that a transfer has pinned, or that is off the lists for now, holds back no other
        // chunk.
        if errno == Errno::ENOMEM || self.failures >= MOST_FAILURES {
            Repaired::End { left: true }
        } else {
            Repaired::Nothing
        }
    }
}

impl<K: Prim> HugeHeap<K> {
    /// Returns true if a walk may find something to repair.
    pub fn may_be_split(&self) -> bool {
        self.split.load(Relaxed) && self.config().fork != Fork::Auto && !self.thp_off.load(Relaxed)
    }

    /// Makes one step of a walk: examines one chunk, or repairs it. Takes or copies at most one
    /// huge page; the program's faults and its next fork may wait for the copy. With
    /// [`Fork::Snapshot`] the walk ends where a child is seen.
    pub fn repair(&self, walk: &mut Repair) -> Repaired {
        let _errno = ErrnoGuard::save();
        if *walk == Repair::default() {
            // A fork from here on counts for the next walk.
            self.split.store(false, Relaxed);
        }
        let found = self.walks.with(|| {
            let (span, more) = self.spans.with(|spans| spans.slot(walk.slot));
            match span {
                Some(span) if walk.index < span.chunks() => {
                    let index = walk.index;
                    walk.index += 1;
                    let ready = std::mem::take(&mut walk.ready);
                    let found = self.repair_chunk(&self.hold(&span, index), index, ready, walk);
                    if found == Repaired::Ready {
                        walk.index = index;
                    }
                    found
                }
                _ if more => {
                    (walk.slot, walk.index) = (walk.slot + 1, 0);
                    Repaired::Nothing
                }
                _ => Repaired::End { left: walk.left || walk.shared },
            }
        });
        let found = match found {
            Repaired::Ready => {
                walk.ready = true;
                // If there is no huge page, the next step finds out.
                let _ = make_ready(&self.kernel, HUGE_2M);
                found
            }
            found => found,
        };
        let stops = walk.shared && self.config().fork == Fork::Snapshot;
        let found = if stops { Repaired::End { left: true } } else { found };
        if found == (Repaired::End { left: true }) {
            self.split.store(true, Relaxed);
        }
        found
    }

    /// Examines chunk `index`, and repairs it if a huge page is `ready`.
    fn repair_chunk(&self, span: &Group, index: usize, ready: bool, walk: &mut Repair) -> Repaired {
        if span.chunk(index).mapping() != Mapping::Mapped(Backing::Thp) {
            return Repaired::Nothing;
        }
        let range = span.chunk_at(index);
        match self.kernel.region(range.start()) {
            Some(OwnRegion::Base { shared: 1.., .. }) => {
                walk.shared = true;
                Repaired::Nothing
            }
            Some(OwnRegion::Base { present: PAGES, .. }) if !ready => Repaired::Ready,
            Some(OwnRegion::Base { present: PAGES, .. }) => match self.kernel.collapse(*range) {
                Ok(()) => {
                    self.ledger().repaired(HugePage::SIZE);
                    Repaired::Chunk
                }
                Err(errno) => walk.failed(errno),
            },
            // A region with holes was split on purpose, to give memory back: a collapse would fill
            // the holes with zeros.
            _ => Repaired::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_held_holds_back_no_other_and_a_lack_of_memory_all() {
        let end = Repaired::End { left: true };
        // EAGAIN.
        for errno in [Errno(11), Errno::EBUSY] {
            let mut walk = Repair::default();
            for _ in 1..MOST_FAILURES {
                assert_eq!((walk.failed(errno), walk.left, walk.shared), (Repaired::Nothing, true, false));
            }
            assert_eq!(walk.failed(errno), end);
        }
        assert_eq!(Repair::default().failed(Errno::ENOMEM), end);
        let mut walk = Repair::default();
        assert_eq!((walk.failed(Errno::EINVAL), walk), (Repaired::Nothing, Repair::default()));
    }
}
