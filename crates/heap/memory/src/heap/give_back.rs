//! Memory on its way back to the kernel: whole chunks always, single slices where that is worth a
//! huge page.

use super::density::{FEW, STEPS};
use super::group::Group;
use super::{GROUP, HugeHeap};
use crate::SLICE;
use crate::chunk::{BASE, Mapping, masks, runs, slice_mask};
use crate::ledger::Backing;
use crate::prim::Prim;
use megapage_inside::{Borrowed, Errno, ErrnoGuard, Owned, Reservation};
use megapage_units::{HUGE_2M, HugePage};
use std::sync::atomic::Ordering::Relaxed;

impl<K: Prim> HugeHeap<K> {
    /// Takes a part of what [`HugeHeap::reserve`] returned back from the allocator. Returns
    /// `Ok(true)` if it must be committed again before use.
    pub fn decommit(&self, part: Owned) -> Result<bool, Errno> {
        let _errno = ErrnoGuard::save();
        let Some(span) = self.spans.with(|spans| spans.find_any(part.start(), 1)) else {
            self.kernel.discard(&part)?;
            return Ok(false);
        };
        let start = part.start() - span.range.start();
        for (index, mask) in masks(start, start + part.len(), true) {
            let (chunk, base) = (span.chunk(index), index * HUGE_2M);
            // No other thread uses these slices before they are free, so that they are discarded
            // without a lock.
            let slices = |(at, count)| part.part(base + at * SLICE - start, count * SLICE);
            let discard = |run| self.discard_slices(&slices(run)).is_ok();
            let may_discard = || chunk.mapping() == BASE && !self.by_slices.load(Relaxed);
            let gone = may_discard() && runs(mask).all(discard);
            let group = self.hold(&span, index);
            if gone && may_discard() {
                chunk.set_slices(chunk.committed(), chunk.used() & !mask);
            }
            self.drop_slices(&group, index, mask);
        }
        Ok(true)
    }

    /// Discards the contents of a part of a chunk on base pages, and splits a huge page that the
    /// kernel has made of it.
    fn discard_slices(&self, part: &Owned) -> Result<(), Errno> {
        if self.given_unasked.load(Relaxed) {
            return self.kernel.discard_part(part);
        }
        // Linux 6.14 frees the page table of 2 MiB that are discarded at once. It charges the
        // control group for it until much later: a loop of large blocks would fill the group.
        if part.len() == HUGE_2M {
            self.kernel.discard(&part.part(0, HUGE_2M / 2))?;
            return self.kernel.discard(&part.part(HUGE_2M / 2, HUGE_2M / 2));
        }
        self.kernel.discard(part)
    }

    /// Gives the kernel the contents of a committed part. The part stays committed, and reads as
    /// zero or as it was. A transparent huge page goes only as a whole. A hugetlb page stays,
    /// because it may not come again. Takes no group's lock: the contents are the caller's,
    /// whatever their chunk becomes meanwhile, and the kernel refuses a part of a hugetlb page.
    pub fn forget(&self, part: Owned) {
        let _errno = ErrnoGuard::save();
        let Some(span) = self.spans.with(|spans| spans.find_any(part.start(), 1)) else {
            // The part is on base pages of a separate mapping. If they stay, only memory is lost.
            let _ = self.kernel.discard(&part);
            return;
        };
        let start = part.start() - span.range.start();
        let end = start + part.len();
        for index in start / HUGE_2M..end.div_ceil(HUGE_2M) {
            let from = start.max(index * HUGE_2M);
            let some = part.part(from - start, end.min((index + 1) * HUGE_2M) - from);
            match span.chunk(index).mapping() {
                Mapping::Mapped(Backing::Thp) if some.len() < HUGE_2M => {}
                Mapping::Mapped(Backing::Thp) => drop(self.kernel.discard(&some)),
                BASE => drop(self.discard_slices(&some)),
                _ => {}
            }
        }
    }

    /// Notes that the slices of `mask` are no longer in use, and returns what it can to the kernel.
    pub(super) fn drop_slices(&self, span: &Group, index: usize, mask: u32) {
        let chunk = span.chunk(index);
        self.in_use.sub(chunk, chunk.committed() & mask);
        chunk.set_slices(chunk.committed() & !mask, chunk.used());
        if chunk.committed() == 0 {
            self.return_chunk(span, index);
        } else {
            self.return_slices(span, index, FEW);
        }
    }

    /// Returns a chunk without committed slices to the kernel.
    fn return_chunk(&self, span: &Group, index: usize) {
        let chunk = span.chunk(index);
        // A 1 GiB page goes back with its span only: a part of it cannot be unmapped.
        if let Mapping::Mapped(
            backing @ (Backing::Hugetlb2M | Backing::Thp | Backing::Base | Backing::Broker),
        ) = chunk.mapping()
        {
            if backing == Backing::Broker {
                self.remove_from_broker(span, index);
            }
            let range = span.chunk_at(index);
            let may_stay = chunk.mapping() == BASE && !chunk.is_advised() && self.ahead() > 0;
            // The state changes before the mapping: a child may be forked between the two.
            chunk.set_mapping(Mapping::None);
            let stays_open = may_stay && (chunk.used() == 0 || self.discard_slices(&range).is_ok());
            let gone = stays_open || self.kernel.close(&range).is_ok();
            if !gone {
                // A page that was released but is still mapped has to be populated before it is
                // used again.
                let is_released = backing == Backing::Broker;
                let reserved = Mapping::Reserved(Backing::Hugetlb2M);
                chunk.set_mapping(if is_released { reserved } else { Mapping::Mapped(backing) });
            }
            if gone || backing == Backing::Broker {
                chunk.set_slices(0, 0);
                if stays_open {
                    chunk.set_open(&self.open);
                }
                self.ledger().returned(backing, HugePage::SIZE);
            }
            let first = index / GROUP * GROUP;
            let in_use = (first..(first + GROUP).min(span.chunks()))
                .any(|i| matches!(span.chunk(i).mapping(), Mapping::Mapped(_)));
            if !in_use {
                self.return_reserved(span, index);
            }
        }
    }

    /// Releases the slices of a chunk that are not in use. On base pages it always does. It
    /// releases parts of a transparent huge page, which splits it, while room is short. It does so
    /// too if at most `few` slices of the page are in use and the heap is sparse.
    pub(super) fn return_slices(&self, span: &Group, index: usize, few: u32) {
        let chunk = span.chunk(index);
        let unused = match chunk.mapping() {
            BASE => chunk.used() & !chunk.committed(),
            // A huge page holds the slices that were never in use as well.
            Mapping::Mapped(Backing::Thp)
                if self.is_short() || self.is_worth_splitting(chunk.committed(), few) =>
            {
                !chunk.committed()
            }
            _ => 0,
        };
        let range = span.chunk_at(index);
        let mut splits = false;
        for (first, count) in runs(unused) {
            let part = range.part(first * SLICE, count * SLICE);
            let gone = match chunk.mapping() {
                _ if self.by_slices.load(Relaxed) => self.kernel.close_part(&part),
                BASE => self.discard_slices(&part),
                _ => self.kernel.discard_part(&part),
            };
            if gone.is_ok() && self.locked.load(Relaxed) {
                self.kernel.unlock(part.view());
            }
            if gone.is_ok() {
                let mask = slice_mask(first * SLICE, (first + count) * SLICE, true);
                chunk.set_slices(chunk.committed(), chunk.used() & !mask);
                splits = chunk.mapping() == Mapping::Mapped(Backing::Thp);
            }
        }
        if splits {
            // The chunk is collapsed once it has filled up again.
            self.in_use.moved_to_base(chunk.committed());
            chunk.set_mapping(Mapping::Mapped(Backing::Base));
            self.ledger().converted(Backing::Thp, Backing::Base, HugePage::SIZE);
        }
    }

    /// Gives up the addresses of one chunk, until [`HugeHeap::take_addresses`]. Returns false if
    /// something lies there, or may. Waits for no lock.
    pub fn give_up(&self, part: Reservation) -> bool {
        let _errno = ErrnoGuard::save();
        let (view, mut owner) = (part.view(), Some(part));
        let span = self.spans.try_with(|spans| spans.find(view.start())).flatten();
        let gone = span.is_some_and(|span| {
            let index = (view.start() - span.range.start()) / HUGE_2M;
            let chunk = span.chunk(index);
            self.try_hold(&span, index).is_some_and(|group| {
                let unused = chunk.mapping() == Mapping::None && view == group.chunk_at(index).view();
                let gone = unused && owner.take().is_some_and(|owner| self.kernel.release(owner).is_ok());
                if gone {
                    self.take_open(chunk);
                    chunk.set_mapping(Mapping::GivenUp);
                }
                gone
            })
        });
        owner.map(Reservation::keep);
        gone
    }

    /// Reserves those addresses of a part of an arena that were given up. Fails with EEXIST if the
    /// program has mapped something there, and with ENOMEM if a limit refuses more.
    pub fn take_addresses(&self, part: Borrowed) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        let Some(span) = self.spans.with(|spans| spans.find_any(part.start(), 1)) else { return Ok(()) };
        let start = part.start() - span.range.start();
        (start / HUGE_2M..(start + part.len()).div_ceil(HUGE_2M))
            .try_for_each(|index| self.take_chunk(&self.hold(&span, index), index))
    }

    /// Reserves the addresses of a chunk, if it was given up.
    pub(super) fn take_chunk(&self, span: &Group, index: usize) -> Result<(), Errno> {
        if span.chunk(index).mapping() != Mapping::GivenUp {
            return Ok(());
        }
        let range = span.chunk_at(index).view();
        let answer = |errno| if errno == Errno::EEXIST { errno } else { Errno::ENOMEM };
        self.kernel.reserve_hole(range).map_err(answer)?;
        span.chunk(index).set_mapping(Mapping::None);
        if self.locked.load(Relaxed) {
            self.kernel.unlock(range);
        }
        Ok(())
    }

    /// Releases the unused slices of every chunk if room is short. Otherwise releases those of the
    /// chunks that are least in use, until the heap is no longer sparse. For use after a purge.
    pub fn sweep(&self) {
        let _errno = ErrnoGuard::save();
        for few in STEPS {
            if !self.is_short() && self.unused(0, 0) == 0 {
                break;
            }
            self.walk(|span, index| self.return_slices(span, index, few));
        }
        self.note_swept();
    }

    /// Visits each chunk, and holds the lock of its group meanwhile.
    pub(super) fn walk(&self, visit: impl Fn(&Group, usize)) {
        let (mut slot, mut more) = (0, true);
        while more {
            more = self.walks.with(|| {
                let (span, more) = self.spans.with(|spans| spans.slot(slot));
                for span in span.iter() {
                    (0..span.chunks()).for_each(|at| visit(&self.hold(span, at), at));
                }
                more
            });
            slot += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Heap};
    use megapage_units::BASE_PAGE;

    fn page_tables() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmPTE:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn page_tables_stay_for_the_blocks_that_come_next() {
        const CHUNKS: usize = 12;
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::None, spares: true, ..Config::DEFAULT });
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
        let all = || arena.range.part(0, CHUNKS * HUGE_2M);
        let touch = || (0..CHUNKS).for_each(|at| all().part(at * HUGE_2M, BASE_PAGE).populate().unwrap());
        heap.commit(all()).unwrap();
        touch();
        let touched = page_tables();
        heap.forget(all());
        assert_eq!(page_tables(), touched);
        touch();
        heap.decommit(all()).unwrap();
        assert_eq!(page_tables(), touched);
        heap.release(arena.range).unwrap();
    }
}
