//! Small elements that are kept at hand, by size: taking one, and giving it back, stores one header
//! and writes no journal.
//!
//! Such an element is parked: one word of its header says that it is free, how large it is, and if
//! its memory is clean. All other words but `before` mean nothing then. Storing that word releases
//! a block. Clearing it, after a new header was stored, allocates one. Each is a single store, so
//! that a kill leaves the element parked or used. A free element is cut into many parked ones in
//! one operation of the journal. An opening finds them parked, and keeps them at hand again. If no
//! free element is large enough, all parked ones become free, and are joined with their neighbours.

use super::element::{Element, HEADER, PARK, SMALLEST, State, parked_word};
use super::journal::{self, Carve, Change};
use super::memory::{self, IMAGE, NextUse};
use super::{Book, Handle, Heap, HeapError, Request};
use std::sync::atomic::Ordering;

/// The largest element that is kept at hand: for 4 KiB.
const LARGEST: u64 = 4096 + HEADER;
/// The most elements of one size.
const MOST: usize = 16 << 10;
/// Bytes that are cut at once, and elements, whichever is more.
const BATCH: u64 = 16 << 10;
const BATCH_ELEMENTS: u64 = 16;
/// The fewest elements that are cut at once. If fewer fit, the block is taken from the free element
/// itself, so that the remains of larger elements are used up first.
const FEWEST: u64 = 4;

/// Elements at hand, by size. Their offsets are multiples of [`HEADER`]; the lowest bit says that
/// memory is dirty.
#[derive(Debug, Default)]
pub(super) struct Magazines {
    classes: Vec<Vec<u64>>,
    count: u64,
}

const DIRTY: u64 = 1;

impl Magazines {
    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns true if there is room for one more of this size.
    pub fn has_room(&self, size: u64) -> bool {
        size <= LARGEST && self.classes.get((size / HEADER) as usize).is_none_or(|class| class.len() < MOST)
    }

    /// Takes in the parked element at `at`. Returns false if there is no room for it.
    pub fn push(&mut self, size: u64, at: u64, dirty: bool) -> bool {
        if !self.has_room(size) {
            return false;
        }
        let class = (size / HEADER) as usize;
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        self.classes[class].push(at | if dirty { DIRTY } else { 0 });
        self.count += 1;
        true
    }

    /// Removes the element of this size that came last. Returns its offset, and true if it is
    /// dirty.
    fn pop(&mut self, size: u64) -> Option<(u64, bool)> {
        let entry = self.classes.get_mut((size / HEADER) as usize)?.pop()?;
        self.count -= 1;
        Some((entry & !DIRTY, entry & DIRTY != 0))
    }

    /// Removes all elements, and returns their offsets in order.
    fn drain(&mut self) -> Vec<u64> {
        let mut all: Vec<u64> = self.classes.drain(..).flatten().map(|entry| entry & !DIRTY).collect();
        all.sort_unstable();
        self.count = 0;
        all
    }
}

impl Heap {
    /// Allocates from the elements at hand, or from those that are cut for it. Returns the handle,
    /// true if its memory is dirty, and the bytes that it has room for. Returns `None` if it is not
    /// small, or nothing can be cut.
    pub(super) fn allocate_small(
        &self,
        book: &mut Book,
        size: u64,
        request: &Request,
    ) -> Result<Option<(Handle, bool, u64)>, HeapError> {
        if size > LARGEST || request.alignment > HEADER {
            return Ok(None);
        }
        let mut found = book.magazines.pop(size);
        if found.is_none() && self.carve(book, size)? {
            found = book.magazines.pop(size);
        }
        let Some((at, dirty)) = found else { return Ok(None) };
        let words = memory::words(&self.segment, at, IMAGE as u64)?;
        let before = words[Element::BEFORE].load(Ordering::Acquire);
        if words[PARK].load(Ordering::Acquire) != parked_word(at, self.seal, size, before, dirty) {
            return Err(HeapError::Damaged {
                offset: at,
                what: "the element is not the free one that it was",
            });
        }
        book.serial += 1;
        let serial = book.serial;
        let (len, tag) = (request.len, request.tag.0);
        let used = Element { state: State::Used, dirty, size, before, len, tag, serial };
        let image = used.encode(at, self.seal);
        for (word, value) in words.iter().zip(image).take(PARK) {
            memory::store(word, value);
        }
        memory::store(&words[IMAGE - 1], image[IMAGE - 1]);
        memory::store(&words[PARK], 0);
        Ok(Some((Handle { offset: at + HEADER, serial }, dirty, size - HEADER)))
    }

    /// Releases the used element at `at` by keeping it at hand. Returns `false`, and does nothing,
    /// if there is no room for it.
    pub(super) fn park(&self, book: &mut Book, at: u64, element: &Element) -> Result<bool, HeapError> {
        let &Element { size, before, dirty, .. } = element;
        if !book.magazines.has_room(size) {
            return Ok(false);
        }
        let words = memory::words(&self.segment, at, IMAGE as u64)?;
        // Dirty as long as it is not cleared.
        memory::store(&words[PARK], parked_word(at, self.seal, size, before, true));
        if !dirty {
            let room = size - HEADER;
            book.statistics.cleared_on_free += room;
            memory::clear(&self.segment, at + HEADER, room, NextUse::Later)?;
            memory::store(&words[PARK], parked_word(at, self.seal, size, before, false));
        }
        Ok(book.magazines.push(size, at, dirty))
    }

    /// Cuts the smallest free element that fits into parked ones of `size`, in one operation.
    /// Returns true if it was large enough.
    fn carve(&self, book: &mut Book, size: u64) -> Result<bool, HeapError> {
        let Some((room, at)) = book.free.range((size, 0)..).next().copied() else { return Ok(false) };
        let most = (BATCH / size).max(BATCH_ELEMENTS);
        let mut count = (room / size).min(most);
        let uncut = |count: u64| room - count * size;
        if (1..SMALLEST).contains(&uncut(count)) {
            count -= 1;
        }
        if count < FEWEST {
            return Ok(false);
        }
        let found = self.element(book, at)?;
        if found.state != State::Free || found.size != room {
            return Err(HeapError::Damaged {
                offset: at,
                what: "the element is not the free one that it was",
            });
        }
        let Element { before, dirty, .. } = found;
        let carve = Carve { size, count, before, dirty, seal: self.seal, wipe: false };
        let (cut, behind) = (at + count * size, at + room);
        let mut changes: Vec<Change> = vec![carve.change(at)];
        let last = if uncut(count) > 0 {
            changes.push((cut, Element::free(uncut(count), size, dirty).encode(cut, self.seal)));
            Element::free(uncut(count), size, dirty).size
        } else {
            size
        };
        if behind < book.end {
            let other = self.element(book, behind)?;
            if other.before != last {
                let other = Element { before: last, ..other };
                changes.push((behind, other.encode(behind, self.seal)));
                self.segment.mark_dirty(behind, HEADER);
            }
        }
        // From now on these pages may hold anything: noted before anything is in them.
        self.segment.mark_dirty(at, count * size + if uncut(count) > 0 { HEADER } else { 0 });
        book.free.remove(&(room, at));
        journal::commit(&self.segment, self.journal(), &changes)?;
        if uncut(count) > 0 {
            book.free.insert((uncut(count), cut));
        }
        if behind == book.end {
            book.last = behind - last;
        }
        for number in (0..count).rev() {
            book.magazines.push(size, at + number * size, dirty);
        }
        Ok(true)
    }

    /// Makes all elements at hand free ones, joined with their neighbours. Returns true if there
    /// were any.
    pub(super) fn flush(&self, book: &mut Book) -> Result<bool, HeapError> {
        let parked = book.magazines.drain();
        let mut elements = Vec::with_capacity(parked.len());
        for at in &parked {
            let element = self.element(book, *at)?;
            if element.state != State::Parked {
                return Err(HeapError::Damaged {
                    offset: *at,
                    what: "the element is not the free one that it was",
                });
            }
            elements.push((*at, element));
        }
        // Runs of one kind and size, side by side, as they were cut.
        let follows = |(at, one): &(u64, Element), (next, other): &(u64, Element)| {
            at + one.size == *next && one.size == other.size && one.dirty == other.dirty
        };
        for run in elements.chunk_by(follows) {
            for piece in run.chunks(journal::MOST_CARVED as usize) {
                self.unite(book, piece)?;
            }
        }
        Ok(!parked.is_empty())
    }

    /// Makes parked elements of one kind and size, which lie side by side, one free element, joined
    /// with its neighbours.
    fn unite(&self, book: &mut Book, run: &[(u64, Element)]) -> Result<(), HeapError> {
        let Some((at, first)) = run.first().copied() else { return Ok(()) };
        // An earlier run may have become the free neighbour before it.
        let before = self.element(book, at)?.before;
        let count = run.len() as u64;
        if count > 1 {
            let Element { size, dirty, .. } = first;
            let whole = Element { size: size * count, before, ..first };
            let wiped = Carve { size, count: count - 1, before: size, dirty, seal: self.seal, wipe: true };
            let mut changes: Vec<Change> = vec![(at, whole.encode(at, self.seal)), wiped.change(at + size)];
            let behind = at + whole.size;
            if behind < book.end {
                let other = Element { before: whole.size, ..self.element(book, behind)? };
                changes.push((behind, other.encode(behind, self.seal)));
                self.segment.mark_dirty(behind, HEADER);
            }
            journal::commit(&self.segment, self.journal(), &changes)?;
            if behind == book.end {
                book.last = at;
            }
        }
        self.join(book, at, first.dirty)
    }
}
