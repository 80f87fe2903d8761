//! Making a heap in a segment, and finding one there.

use super::element::{Element, HEADER, SMALLEST, State};
use super::journal::{self, JOURNAL};
use super::memory::{self, IMAGE, Image};
use super::seal::{Format, Seal};
use super::{Book, Handle, Heap, HeapError, Statistics};
use crate::checksum::checksum;
use crate::segment::{PageState, Segment};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The first word of a heap's own header, but for the number of its format in the highest byte.
const MAGIC: u64 = u64::from_le_bytes(*b"mphp\0\0\0\0");
const FORMAT_SHIFT: u32 = 56;

const fn magic(format: Format) -> u64 {
    MAGIC | (format as u64) << FORMAT_SHIFT
}

/// Returns true if this first word begins a heap, of any format.
const fn begins_heap(word: u64) -> bool {
    word & !(0xff << FORMAT_SHIFT) == MAGIC
}

/// Returns the checksum of a heap's own header, from the words after its first.
fn own_sum(format: Format, words: [u64; IMAGE - 2]) -> u64 {
    let first = magic(format);
    checksum(first, std::iter::once(first).chain(words))
}

/// The heap's own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnHeader {
    pub start: u64,
    pub end: u64,
    pub root: Option<Handle>,
    pub seal: Seal,
}

impl Heap {
    /// Makes an empty heap of the whole segment. Earlier contents are lost, but their bytes stay:
    /// pages that were handed out before are dirty.
    pub fn format(segment: Segment) -> Result<Heap, HeapError> {
        Heap::format_as(segment, Format::AtOnce)
    }

    /// Makes the same in the given format, which may be an older one.
    pub(super) fn format_as(segment: Segment, format: Format) -> Result<Heap, HeapError> {
        let heap = Heap::on(segment, Seal { salt: RandomState::new().hash_one(0u8), format })?;
        // From here to the last store there is no heap.
        let own = memory::words(&heap.segment, heap.base, IMAGE as u64)?;
        memory::store(&own[0], 0);
        let journal = memory::words(&heap.segment, heap.journal(), 1)?;
        memory::store(&journal[0], 0);
        let mut book = heap.state();
        let mut before = 0;
        for (at, bytes, dirty) in heap.runs(heap.start) {
            heap.segment.mark_dirty(at, HEADER);
            let image = Element::free(bytes, before, dirty).encode(at, heap.seal);
            memory::store_image(&heap.segment, at, &image)?;
            book.free.insert((bytes, at));
            (book.last, book.end, before) = (at, at + bytes, bytes);
        }
        let image = heap.own_header(&book);
        for (word, value) in own.iter().zip(image).skip(1) {
            memory::store(word, value);
        }
        memory::store(&own[0], image[0]);
        drop(book);
        Ok(heap)
    }

    /// Finds the heap in a segment, and completes an operation that a killed process has left half
    /// done. It checks every element, so that no later call meets a header that was not checked.
    pub fn open(segment: Segment) -> Result<Heap, HeapError> {
        let mut heap = Heap::on(segment, Seal { salt: 0, format: Format::AtOnce })?;
        let mut recovered = false;
        if heap.segment.is_owner() {
            let end = heap.segment.size().0;
            let may = |at: u64| {
                let inside = at >= heap.start && at.checked_add(HEADER).is_some_and(|to| to <= end);
                at == heap.base || (inside && at.is_multiple_of(HEADER))
            };
            // A heap that is being made has no header yet, and an empty journal.
            recovered = journal::recover(&heap.segment, heap.journal(), may)?;
        }
        let own = heap.read_own_header()?;
        heap.seal = own.seal;
        let mut book = Book { end: own.end, root: own.root, ..Book::default() };
        book.serial = heap.segment.epoch() << 40;
        book.statistics = Statistics { recovered, ..Statistics::default() };
        if !heap.segment.is_owner() {
            heap.state = Mutex::new(book);
            return Ok(heap);
        }
        let (leaving, beyond) = heap.walk(&mut book)?;
        if let Some(root) = book.root {
            let damaged = |_| HeapError::Damaged { offset: heap.base, what: "the root leads to nothing" };
            heap.used(&book, root).map_err(damaged)?;
        }
        book.statistics.recovered |= !leaving.is_empty();
        for at in leaving {
            heap.join(&mut book, at, true)?;
        }
        for at in beyond {
            let dirty = heap.element(&book, at)?.dirty;
            heap.join(&mut book, at, dirty)?;
        }
        heap.extend(&mut book)?;
        heap.state = Mutex::new(book);
        Ok(heap)
    }

    /// Finds the heap in a segment, or makes one if there is none. Returns `true` with one that was
    /// found. A damaged heap is an error, and never overwritten.
    pub fn open_or_format(segment: Segment) -> Result<(Heap, bool), HeapError> {
        if Heap::is_in(&segment)? {
            Ok((Heap::open(segment)?, true))
        } else {
            Ok((Heap::format(segment)?, false))
        }
    }

    /// Returns true if a segment holds a heap, sound or not: its first word is not zero.
    pub fn is_in(segment: &Segment) -> Result<bool, HeapError> {
        let base = segment.data_start();
        Ok(memory::words(segment, base, 1)?[0].load(Ordering::Acquire) != 0)
    }

    /// Returns true if the segment's memory begins with a heap's header, sound or damaged. It is
    /// false for data of a program that uses the memory by itself. A header shows by its first
    /// word, its own offset or its checksum.
    pub fn begins(segment: &Segment) -> Result<bool, HeapError> {
        let base = segment.data_start();
        let image = memory::load(segment, base)?;
        let [_, words @ .., sum] = image;
        let is_summed = |format: Format| sum == own_sum(format, words);
        let shows =
            begins_heap(image[0]) || image[1] == base + 2 * JOURNAL || Format::ALL.into_iter().any(is_summed);
        Ok(image[0] != 0 && shows)
    }

    fn on(segment: Segment, seal: Seal) -> Result<Heap, HeapError> {
        let base = segment.data_start();
        let start = base + 2 * JOURNAL;
        if start + SMALLEST > segment.size().0 {
            return Err(HeapError::Request(format!("segment {} is too small for a heap", segment.name())));
        }
        // Only serials from here on are given: an earlier heap of this segment had others.
        let book = Book { serial: segment.epoch() << 40, ..Book::default() };
        Ok(Heap { segment, base, start, seal, state: Mutex::new(book) })
    }

    /// Returns the heap's own header, as it is stored in the segment.
    pub(super) fn own_header(&self, book: &Book) -> Image {
        let root = book.root.unwrap_or(Handle { offset: 0, serial: 0 });
        let Seal { salt, format } = self.seal;
        let words = [self.start, book.end, root.offset, root.serial, salt, 0];
        let [start, end, offset, serial, salt, zero] = words;
        [magic(format), start, end, offset, serial, salt, zero, own_sum(format, words)]
    }

    pub(super) fn read_own_header(&self) -> Result<OwnHeader, HeapError> {
        let image = memory::load(&self.segment, self.base)?;
        let damaged = |what| HeapError::Damaged { offset: self.base, what };
        let [first, words @ .., sum] = image;
        if first == 0 {
            return Err(HeapError::None(self.segment.name().to_string()));
        }
        if !begins_heap(first) {
            return Err(damaged("there is no header of a heap"));
        }
        let Some(format) = Format::of(first >> FORMAT_SHIFT) else {
            return Err(damaged("the heap is of a format that this version does not know"));
        };
        if sum != own_sum(format, words) {
            return Err(damaged("the checksum of the heap's header is wrong"));
        }
        let [start, end, offset, serial, salt, _] = words;
        let is_aligned = end.is_multiple_of(HEADER);
        // A process that maps another's heap may have mapped less of it than there is by now.
        let is_inside = end <= self.segment.size().0 || !self.segment.is_owner();
        if start != self.start || end < start + SMALLEST || !is_aligned || !is_inside {
            return Err(damaged("the heap does not fit into its segment"));
        }
        let root = (serial != 0).then_some(Handle { offset, serial });
        Ok(OwnHeader { start, end: end.min(self.segment.size().0), root, seal: Seal { salt, format } })
    }

    /// Checks every element, lists the free ones and keeps parked ones at hand. Returns those that
    /// were being released, and the parked ones that there is no room to keep.
    fn walk(&self, book: &mut Book) -> Result<(Vec<u64>, Vec<u64>), HeapError> {
        let (mut leaving, mut beyond) = (Vec::new(), Vec::new());
        let mut free = BTreeSet::new();
        let (mut at, mut before) = (self.start, 0);
        while at < book.end {
            let element = self.element(book, at)?;
            if element.before != before {
                let what = "the element does not know the one before it";
                return Err(HeapError::Damaged { offset: at, what });
            }
            match element.state {
                State::Free => drop(free.insert((element.size, at))),
                State::Leaving => leaving.push(at),
                State::Parked if book.magazines.push(element.size, at, element.dirty) => {}
                State::Parked => beyond.push(at),
                State::Used => {}
            }
            book.last = at;
            before = element.size;
            at += element.size;
        }
        book.free = free;
        Ok((leaving, beyond))
    }

    /// Returns runs of pages of one state, from `start` to the end of the segment: offset, bytes,
    /// dirty.
    fn runs(&self, start: u64) -> Vec<(u64, u64, bool)> {
        let page = self.segment.page_size().bytes().0;
        let end = self.segment.size().0;
        let mut runs: Vec<(u64, u64, bool)> = Vec::new();
        let mut at = start;
        while at < end {
            let next = ((at / page + 1) * page).min(end);
            let dirty = self.segment.page_state(at / page) == PageState::Dirty;
            match runs.last_mut() {
                Some((_, bytes, same)) if *same == dirty => *bytes += next - at,
                // The remainder of a page is large enough for an element: pages are, and the heap
                // begins far from the end of one.
                _ => runs.push((at, next - at, dirty)),
            }
            at = next;
        }
        runs
    }

    /// Takes in the memory that the segment has grown by. It becomes a free element behind the
    /// last, or a part of the last, if that is free and of the same kind.
    pub(super) fn extend(&self, book: &mut Book) -> Result<(), HeapError> {
        for (at, bytes, dirty) in self.runs(book.end) {
            let last = self.element(book, book.last)?;
            let is_more_of_it = last.state == State::Free && last.dirty == dirty;
            let (first, element) = match is_more_of_it {
                true => (book.last, Element::free(last.size + bytes, last.before, dirty)),
                false => (at, Element::free(bytes, last.size, dirty)),
            };
            let end = at + bytes;
            let own = self.own_header(&Book { end, root: book.root, ..Book::default() });
            self.segment.mark_dirty(first, HEADER);
            let changes = [(first, element.encode(first, self.seal)), (self.base, own)];
            journal::commit(&self.segment, self.journal(), &changes)?;
            if is_more_of_it {
                book.free.remove(&(last.size, first));
            }
            book.free.insert((element.size, first));
            (book.last, book.end) = (first, end);
        }
        Ok(())
    }
}
