//! A heap in a segment, like that of DPDK's rte_malloc: each element records if its memory is
//! clean, and memory is cleared once.
//!
//! Memory of the heap is cleared at most once between two users of it. Clean memory is cleared when
//! it is released, and stays clean: a zeroed allocation takes it as it is. Dirty memory (a reused
//! page may hold anything) is not cleared when it is released, but when a zeroed allocation takes
//! it. Joining clean with dirty memory gives dirty.
//!
//! Small blocks that were freed are kept at hand ([`magazine`]).
//!
//! One lock orders all operations of a process on the metadata; clearing and copying are done
//! outside it. Every change of the metadata goes through the [`journal`], so that a kill at any
//! moment leaves it consistent.
//!
//! Layout, in bytes from the end of the segment's own data. At 0 the heap's own header (64 bytes),
//! at 4096 the journal, at 8192 the elements, side by side to the end.

mod block;
mod element;
mod error;
mod journal;
mod magazine;
mod memory;
mod open;
mod seal;
#[cfg(test)]
mod tests;
mod verify;

pub use block::{Block, BlockInfo, Handle, Tag};
pub use error::HeapError;
pub use verify::{Depth, Verified};

use crate::segment::Segment;
use block::Found;
use element::{Element, HEADER, SMALLEST, State};
use journal::Change;
use magazine::Magazines;
use megapage_units::{Bytes, HUGE_1G};
use memory::NextUse;
use seal::Seal;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// Request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its bytes; not zero.
    pub len: u64,
    /// The alignment of its first byte, in the segment and in memory: a power of two up to 1 GiB.
    /// It is never less than 64.
    pub alignment: u64,
    /// True if all bytes are to be zero. Otherwise they may be anything that was there before.
    pub zeroed: bool,
    /// The type of its contents.
    pub tag: Tag,
}

impl Request {
    /// Returns a request for `len` bytes for contents of this type.
    pub fn new(len: u64, tag: Tag) -> Request {
        Request { len, alignment: HEADER, zeroed: false, tag }
    }

    /// Returns the same request with zeroed bytes.
    pub fn zeroed(self) -> Request {
        Request { zeroed: true, ..self }
    }

    /// Returns the same request with this alignment.
    pub fn aligned(self, alignment: u64) -> Request {
        Request { alignment, ..self }
    }
}

/// Counters of this process's actions on the heap since it opened it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes cleared when they were released.
    pub cleared_on_free: u64,
    /// Bytes cleared for a zeroed allocation.
    pub cleared_on_allocation: u64,
    /// True if the opening completed an operation of a killed process, or took back its half-freed
    /// memory.
    pub recovered: bool,
}

/// A heap in a segment that this process owns or maps. A process that only maps it can read and
/// write the contents of blocks, and no more.
#[derive(Debug)]
pub struct Heap {
    segment: Segment,
    /// Offset of the heap's own header.
    base: u64,
    /// Offset of the first element.
    start: u64,
    seal: Seal,
    state: Mutex<Book>,
}

/// State that the lock guards. All of it can be rebuilt from the segment.
#[derive(Debug, Default)]
struct Book {
    /// Offset of the end of the elements.
    end: u64,
    /// Offset of the last element.
    last: u64,
    root: Option<Handle>,
    /// Free elements by size, then offset.
    free: BTreeSet<(u64, u64)>,
    /// Small elements that are kept at hand.
    magazines: Magazines,
    serial: u64,
    statistics: Statistics,
}

impl Heap {
    /// Allocates a block. Takes a small element that is at hand, or the smallest free element that
    /// fits. If none does, joins the elements at hand and free elements of both kinds, and then
    /// lets the segment grow.
    pub fn allocate(&self, request: Request) -> Result<Handle, HeapError> {
        if request.len == 0 || !request.alignment.is_power_of_two() || request.alignment > HUGE_1G as u64 {
            return Err(HeapError::Request(format!(
                "give a length of at least 1 and an alignment of a power of two up to 1 GiB, not {} and {}",
                request.len, request.alignment
            )));
        }
        let size = element_size(request.len)?;
        let alignment = request.alignment.max(HEADER);
        let mut book = self.owned_book()?;
        if let Some(small) = self.allocate_small(&mut book, size, &request)? {
            return self.allocated(book, &request, small);
        }
        let mut place = self.find(&book, size, alignment);
        if place.is_none() && self.flush(&mut book)? {
            place = self.find(&book, size, alignment);
        }
        if place.is_none() && self.coalesce(&mut book)? {
            place = self.find(&book, size, alignment);
        }
        if place.is_none() {
            self.grow_for(&mut book, size, alignment)?;
            place = self.find(&book, size, alignment);
        }
        if place.is_none() && self.coalesce(&mut book)? {
            place = self.find(&book, size, alignment);
        }
        let Some((at, first)) = place else { return Err(self.full(&book, request.len)) };
        let taken = self.take(&mut book, at, first, size, &request)?;
        self.allocated(book, &request, taken)
    }

    /// Clears an allocated block if that was asked for and is needed; not under the lock.
    fn allocated(
        &self,
        mut book: MutexGuard<'_, Book>,
        request: &Request,
        (handle, dirty, room): (Handle, bool, u64),
    ) -> Result<Handle, HeapError> {
        if request.zeroed && dirty {
            book.statistics.cleared_on_allocation += room;
            drop(book);
            memory::clear(&self.segment, handle.offset, room, NextUse::Soon)?;
        }
        Ok(handle)
    }

    /// Releases the block that the handle leads to. The handle, and every copy of it, leads to
    /// nothing from then on.
    pub fn free(&self, handle: Handle) -> Result<(), HeapError> {
        let mut book = self.owned_book()?;
        let Found { at, element } = self.used(&book, handle)?;
        if book.root == Some(handle) {
            return Err(HeapError::Root(handle));
        }
        if self.park(&mut book, at, &element)? {
            return Ok(());
        }
        if self.stays_clean(&book, at, &element)? {
            // It has no owner from here on, and is cleared outside the lock.
            let leaving = Element { state: State::Leaving, ..element };
            self.change(&mut book, &[(at, leaving)], &[])?;
        }
        self.release(book, at)
    }

    /// Makes the block that the handle leads to `len` bytes long, and returns its handle. If it
    /// cannot grow in its place, it is copied, and the old handle leads to nothing. Bytes beyond
    /// the old length may be anything. On an error the block is unchanged.
    pub fn resize(&self, handle: Handle, len: u64) -> Result<Handle, HeapError> {
        if len == 0 {
            return Err(HeapError::Request("give a length of at least 1".into()));
        }
        let size = element_size(len)?;
        let mut book = self.owned_book()?;
        let Found { at, element } = self.used(&book, handle)?;
        if size <= element.size {
            let rest = element.size - size;
            if rest < SMALLEST {
                self.change(&mut book, &[(at, Element { len, ..element })], &[])?;
                return Ok(handle);
            }
            let kept = Element { len, size, ..element };
            let tail = Element {
                state: State::Leaving,
                size: rest,
                before: size,
                len: 0,
                tag: 0,
                serial: 0,
                ..element
            };
            self.change(&mut book, &[(at, kept), (at + size, tail)], &[])?;
            self.release(book, at + size)?;
            return Ok(handle);
        }
        let next = at + element.size;
        if next < book.end {
            let other = self.element(&book, next)?;
            if other.state == State::Free && element.size + other.size >= size {
                self.absorb(&mut book, at, element, other, size, len)?;
                return Ok(handle);
            }
        }
        drop(book);
        let moved = self.allocate(Request::new(len, Tag(element.tag)))?;
        let words =
            |handle: Handle, bytes: u64| memory::words(&self.segment, handle.offset, bytes.div_ceil(8));
        let count = element.len.div_ceil(8) as usize;
        memory::copy(words(handle, element.len)?, words(moved, len)?, count);
        // The root moves with its block, in one step: it never leads to a freed block.
        let is_root = self.state().root == Some(handle);
        if is_root {
            self.set_root(Some(moved))?;
        }
        self.free(handle)?;
        Ok(moved)
    }

    /// Lets the heap grow by at least `bytes` of fresh memory, in whole pages.
    pub fn grow(&self, bytes: Bytes) -> Result<(), HeapError> {
        let mut book = self.owned_book()?;
        self.grow_by(&mut book, bytes)
    }

    /// Lets a later process find `root` again by [`Heap::root`]. It is one step: a kill leaves the
    /// old root or the new one.
    pub fn set_root(&self, root: Option<Handle>) -> Result<(), HeapError> {
        let mut book = self.owned_book()?;
        if let Some(root) = root {
            self.used(&book, root)?;
        }
        book.root = root;
        let change = (self.base, self.own_header(&book));
        journal::commit(&self.segment, self.journal(), &[change])
    }

    /// Returns the segment, without the heap: to be handed over ([`crate::upgrade`]).
    /// [`Heap::open`] finds the heap in it again.
    pub fn into_segment(self) -> Segment {
        self.segment
    }

    /// Returns the segment. It stays the heap's: its words are for reading only.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the counters of this process's actions on the heap.
    pub fn statistics(&self) -> Statistics {
        self.state().statistics
    }

    fn state(&self) -> MutexGuard<'_, Book> {
        // A panic with the lock held would be a fault of this crate; the segment is whole all the
        // same.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn owned_book(&self) -> Result<MutexGuard<'_, Book>, HeapError> {
        if !self.segment.is_owner() {
            return Err(HeapError::NotOwner(self.segment.name().to_string()));
        }
        Ok(self.state())
    }

    fn journal(&self) -> u64 {
        self.base + journal::JOURNAL
    }

    /// Returns the element at `at`, which must be in the heap.
    fn element(&self, book: &Book, at: u64) -> Result<Element, HeapError> {
        let image = memory::load(&self.segment, at)?;
        Element::decode(&image, at, self.seal, book.end.saturating_sub(at))
            .map_err(|what| HeapError::Damaged { offset: at, what })
    }

    /// Finds a free element that has room for an element of `size` bytes with aligned memory.
    /// Returns the offset of the free element, and that of the new header.
    fn find(&self, book: &Book, size: u64, alignment: u64) -> Option<(u64, u64)> {
        book.free.range((size, 0)..).find_map(|(room, at)| {
            let aligned =
                |at: u64| Some((at.checked_add(HEADER)?).checked_next_multiple_of(alignment)? - HEADER);
            let mut first = aligned(*at)?;
            // The bytes before it must be a separate element.
            if first != *at && first - at < SMALLEST {
                first = aligned(at + SMALLEST)?;
            }
            let end = first.checked_add(size)?;
            (end <= at + room).then_some((*at, first))
        })
    }

    /// Makes an element of `size` bytes at `first` in the free one at `at`. Returns its handle,
    /// true if its memory is dirty, and the bytes that it has room for.
    fn take(
        &self,
        book: &mut Book,
        at: u64,
        first: u64,
        size: u64,
        request: &Request,
    ) -> Result<(Handle, bool, u64), HeapError> {
        let found = self.element(book, at)?;
        if found.state != State::Free || !book.free.contains(&(found.size, at)) {
            return Err(HeapError::Damaged {
                offset: at,
                what: "the element is not the free one that it was",
            });
        }
        let lead = first - at;
        let rest = found.size - lead - size;
        let size = if rest < SMALLEST { size + rest } else { size };
        book.serial += 1;
        let used = Element {
            state: State::Used,
            dirty: found.dirty,
            size,
            before: if lead > 0 { lead } else { found.before },
            len: request.len,
            tag: request.tag.0,
            serial: book.serial,
        };
        let mut elements = Vec::with_capacity(3);
        if lead > 0 {
            elements.push((at, Element::free(lead, found.before, found.dirty)));
        }
        elements.push((first, used));
        if rest >= SMALLEST {
            elements.push((first + size, Element::free(rest, size, found.dirty)));
        }
        // From now on these pages may hold anything: noted before anything is in them.
        self.segment.mark_dirty(first, size);
        book.free.remove(&(found.size, at));
        self.change(book, &elements, &[])?;
        Ok((Handle { offset: first + HEADER, serial: used.serial }, used.dirty, size - HEADER))
    }

    /// Lets a used element grow into the free one behind it.
    fn absorb(
        &self,
        book: &mut Book,
        at: u64,
        element: Element,
        other: Element,
        size: u64,
        len: u64,
    ) -> Result<(), HeapError> {
        let total = element.size + other.size;
        let rest = total - size;
        let size = if rest < SMALLEST { total } else { size };
        let grown = Element { size, len, dirty: element.dirty || other.dirty, ..element };
        let mut elements = vec![(at, grown)];
        if rest >= SMALLEST {
            elements.push((at + size, Element::free(rest, size, other.dirty)));
        }
        self.segment.mark_dirty(at, size);
        book.free.remove(&(other.size, at + element.size));
        self.change(book, &elements, &[at + element.size])
    }

    /// Completes the release of the element at `at`: joins it with its free neighbours, and clears
    /// it first if the whole is to stay clean. An element that is to be cleared is
    /// [`State::Leaving`]: no other thread touches it.
    fn release<'heap>(&'heap self, mut book: MutexGuard<'heap, Book>, at: u64) -> Result<(), HeapError> {
        let element = self.element(&book, at)?;
        let clear = self.stays_clean(&book, at, &element)?;
        if clear {
            let room = element.size - HEADER;
            book.statistics.cleared_on_free += room;
            drop(book);
            memory::clear(&self.segment, at + HEADER, room, NextUse::Later)?;
            book = self.state();
        }
        self.join(&mut book, at, !clear)
    }

    /// Returns true if the memory of an element is to be clean when it is free: it and its free
    /// neighbours are clean.
    fn stays_clean(&self, book: &Book, at: u64, element: &Element) -> Result<bool, HeapError> {
        let (before, after) = self.neighbours(book, at, element)?;
        let is_dirty = |neighbour: Option<(u64, Element)>| neighbour.is_some_and(|(_, other)| other.dirty);
        Ok(!element.dirty && !is_dirty(before) && !is_dirty(after))
    }

    /// Makes the element at `at` a free one, joined with its free neighbours. It is dirty if
    /// `dirty`, or if one of them is.
    fn join(&self, book: &mut Book, at: u64, dirty: bool) -> Result<(), HeapError> {
        let element = self.element(book, at)?;
        let mut joined = Element::free(element.size, element.before, dirty);
        let mut first = at;
        let mut wiped = Vec::new();
        let mut taken = Vec::new();
        let mut is_first_round = true;
        // Free elements that lie side by side alternate between clean and dirty. So behind a
        // neighbour there may be one of the same kind as the joined element; behind that there is
        // none.
        loop {
            let (before, after) = self.neighbours(book, first, &joined)?;
            let fits = |other: &(u64, Element)| is_first_round || other.1.dirty == joined.dirty;
            let (before, after) = (before.filter(fits), after.filter(fits));
            if before.is_none() && after.is_none() {
                break;
            }
            if let Some((offset, other)) = after {
                joined.size += other.size;
                joined.dirty |= other.dirty;
                wiped.push(offset);
                taken.push((other.size, offset));
            }
            if let Some((offset, other)) = before {
                joined.size += other.size;
                joined.before = other.before;
                joined.dirty |= other.dirty;
                wiped.push(first);
                first = offset;
                taken.push((other.size, offset));
            }
            is_first_round = false;
        }
        for element in taken {
            book.free.remove(&element);
        }
        self.change(book, &[(first, joined)], &wiped)
    }

    /// Returns the free elements beside the one at `at`.
    #[allow(clippy::type_complexity)]
    fn neighbours(
        &self,
        book: &Book,
        at: u64,
        element: &Element,
    ) -> Result<(Option<(u64, Element)>, Option<(u64, Element)>), HeapError> {
        let free = |offset: u64| -> Result<Option<(u64, Element)>, HeapError> {
            let other = self.element(book, offset)?;
            Ok((other.state == State::Free).then_some((offset, other)))
        };
        let before =
            at.checked_sub(element.before).filter(|offset| element.before > 0 && *offset >= self.start);
        let after = Some(at + element.size).filter(|offset| *offset < book.end);
        let (before, after) =
            (before.map(free).transpose()?.flatten(), after.map(free).transpose()?.flatten());
        if before.is_some_and(|(_, other)| other.size != element.before) {
            let what = "the element does not know the one before it";
            return Err(HeapError::Damaged { offset: at, what });
        }
        Ok((before, after))
    }

    /// Stores headers of elements that lie one behind the other, and wipes headers that are no
    /// longer in use. Also stores the size of the last in the element behind them, and keeps the
    /// list of free elements up to date. All stores are one operation.
    fn change(&self, book: &mut Book, elements: &[(u64, Element)], wiped: &[u64]) -> Result<(), HeapError> {
        let image = |(at, element): &(u64, Element)| -> Change { (*at, element.encode(*at, self.seal)) };
        let mut changes: Vec<Change> = elements.iter().map(image).collect();
        changes.extend(wiped.iter().map(|at| (*at, [0; memory::IMAGE])));
        let Some((at, last)) = elements.last() else { return Ok(()) };
        let behind = at + last.size;
        if behind < book.end {
            let other = self.element(book, behind)?;
            if other.before != last.size {
                changes.push(image(&(behind, Element { before: last.size, ..other })));
            }
        }
        for (offset, _) in &changes {
            self.segment.mark_dirty(*offset, HEADER);
        }
        journal::commit(&self.segment, self.journal(), &changes)?;
        for (at, element) in elements {
            if element.state == State::Free {
                book.free.insert((element.size, *at));
            }
            if at + element.size == book.end {
                book.last = *at;
            }
        }
        Ok(())
    }

    /// Joins free elements that lie side by side because one is clean and the other dirty. Returns
    /// true if there were any.
    fn coalesce(&self, book: &mut Book) -> Result<bool, HeapError> {
        let mut any = false;
        let mut at = self.start;
        while at < book.end {
            let element = self.element(book, at)?;
            let next = at + element.size;
            if element.state == State::Free
                && next < book.end
                && self.element(book, next)?.state == State::Free
            {
                book.free.remove(&(element.size, at));
                self.join(book, at, element.dirty)?;
                any = true;
                continue;
            }
            at = next;
        }
        Ok(any)
    }

    fn grow_for(&self, book: &mut Book, size: u64, alignment: u64) -> Result<(), HeapError> {
        // The worst case of alignment. Free memory at the end may save a page of it, and is not
        // counted on.
        let padding = if alignment > HEADER { alignment.saturating_add(SMALLEST) } else { 0 };
        let bytes = Bytes(size.saturating_add(padding));
        let wanted = self.segment.size().0.saturating_add(bytes.0);
        if wanted > self.segment.most().0 && self.segment.size() == self.segment.most() {
            return Err(self.full(book, size - HEADER));
        }
        // As far as it may: free memory at the end may cover the remainder.
        let bytes = Bytes(bytes.0.min(self.segment.most().0 - self.segment.size().0));
        self.grow_by(book, bytes)
    }

    fn grow_by(&self, book: &mut Book, bytes: Bytes) -> Result<(), HeapError> {
        self.segment.grow(Bytes(self.segment.size().0.saturating_add(bytes.0)))?;
        self.extend(book)
    }

    fn full(&self, book: &Book, len: u64) -> HeapError {
        let free = Bytes(book.free.iter().map(|(size, _)| size - HEADER).sum());
        HeapError::Full { asked: Bytes(len), free, size: self.segment.size() }
    }
}

/// Returns the size of an element for `len` bytes.
fn element_size(len: u64) -> Result<u64, HeapError> {
    let size = len.checked_next_multiple_of(HEADER).and_then(|len| len.checked_add(HEADER));
    size.filter(|size| *size < 1 << 60).ok_or_else(|| HeapError::Request(format!("{len} bytes are too many")))
}
