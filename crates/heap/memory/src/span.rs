//! The address ranges that the heap has reserved, and how to find the one that holds an address.

use crate::chunk::{Chunk, Mapping};
use crate::sync::{AtomicU64, Errno, MAX_SPANS, OwnedRange, Reservation, allocate_words, release_words};
use megapage_units::HUGE_2M;

/// One reserved range, a multiple of 2 MiB long and aligned, with the state of its chunks. It does not own the addresses: the
/// allocator does, to which they were given.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The addresses.
    pub range: OwnedRange,
    words: &'static [AtomicU64],
}

impl Span {
    /// Reserves `len` bytes (a multiple of 2 MiB) at a multiple of `alignment` (at least 2 MiB): the span, and the owner of its
    /// addresses.
    pub fn reserve(len: usize, alignment: usize) -> Result<(Span, Reservation), Errno> {
        let words = allocate_words(Chunk::WORDS * (len / HUGE_2M))?;
        match Reservation::new(len, alignment) {
            Ok(owner) => Ok((Span { range: *owner, words }, owner)),
            Err(errno) => {
                release_words(words);
                Err(errno)
            }
        }
    }

    /// Releases the state, and then the addresses. No copy of this span may be used afterwards.
    pub fn release(self, owner: Reservation) -> Result<(), Errno> {
        debug_assert_eq!(
            (self.range.start(), self.range.len()),
            (owner.start(), owner.len()),
            "another owner"
        );
        release_words(self.words);
        owner.release()
    }

    /// How many chunks the span has.
    pub fn chunks(&self) -> usize {
        self.range.len() / HUGE_2M
    }

    /// The state of chunk `index`.
    pub fn chunk(&self, index: usize) -> Chunk<'static> {
        Chunk::at(self.words, index)
    }

    /// The addresses of `count` chunks from `index` on.
    pub fn chunk_range(&self, index: usize, count: usize) -> OwnedRange {
        self.range.part(index * HUGE_2M, count * HUGE_2M)
    }
}

/// All spans.
#[derive(Debug)]
pub struct Spans {
    spans: [Option<Span>; MAX_SPANS],
    /// One more than the highest slot in use.
    end: usize,
}

impl Spans {
    /// No spans.
    pub const fn new() -> Spans {
        Spans { spans: [None; MAX_SPANS], end: 0 }
    }

    /// Adds a span; releases it when the table is full.
    pub fn insert(&mut self, span: Span) -> Result<(), Span> {
        let Some(slot) = self.spans.iter().position(Option::is_none) else {
            return Err(span);
        };
        self.spans[slot] = Some(span);
        self.end = self.end.max(slot + 1);
        Ok(())
    }

    /// Finds the span that holds `address`. What a span has given up may be another's.
    pub fn find(&self, address: usize) -> Option<Span> {
        let is_given_up = |span: &Span, at: usize| span.chunk(at / HUGE_2M).mapping() == Mapping::GivenUp;
        let at = |span: &Span| address.checked_sub(span.range.start()).filter(|at| *at < span.range.len());
        self.iter().find(|span| at(span).is_some_and(|at| !is_given_up(span, at)))
    }

    /// Takes out the span that is exactly `[start, start + len)`.
    pub fn remove(&mut self, start: usize, len: usize) -> Option<Span> {
        let slot = self.spans[..self.end].iter().position(|span| {
            span.is_some_and(|span| span.range.start() == start && span.range.len() == len)
        })?;
        self.spans[slot].take()
    }

    /// Every span, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.spans[..self.end].iter().flatten().copied()
    }

    /// The span in slot `slot`, and whether there are further slots: for a walk that lets go of the lock
    /// between two spans.
    pub fn slot(&self, slot: usize) -> (Option<Span>, bool) {
        (self.spans.get(slot).copied().flatten(), slot + 1 < self.end)
    }
}
