//! The address ranges that the heap has reserved, and the look-up of the range that holds an
//! address.

use crate::chunk::{Chunk, Mapping};
use crate::sync::{AtomicU64, Errno, Guarded, MAX_SPANS, Reservation, allocate_words, release_words};
use megapage_units::HUGE_2M;

/// One reserved range with the state of its chunks. It is aligned to 2 MiB, and a multiple of 2 MiB
/// long. The allocator owns the addresses; the span does not.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The addresses.
    pub range: Guarded,
    words: &'static [AtomicU64],
}

impl Span {
    /// Makes the state of a range (multiples of 2 MiB). Its first `first` bytes are reserved, and
    /// the others count as given up.
    pub fn new(range: Guarded, first: usize) -> Result<Span, Errno> {
        let span = Span { range, words: allocate_words(Chunk::WORDS * (range.len() / HUGE_2M))? };
        (first / HUGE_2M..span.chunks()).for_each(|index| span.chunk(index).set_mapping(Mapping::GivenUp));
        Ok(span)
    }

    /// Calls `release` for the addresses that are not given up, and frees the state. No copy of
    /// this span may be used afterwards. Returns the error of the last call that failed.
    pub fn release(
        self,
        mut owner: Reservation,
        release: impl Fn(Reservation) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        debug_assert_eq!(self.range.start(), owner.start(), "another owner");
        let is_given_up = |index| self.chunk(index).mapping() == Mapping::GivenUp;
        let mut done = Ok(());
        let mut release_part = |part: Reservation, first| {
            if is_given_up(first) {
                // Something else may be mapped there.
                part.keep();
            } else if let Err(errno) = release(part) {
                done = Err(errno);
            }
        };
        let mut first = 0;
        for index in 1..owner.len() / HUGE_2M {
            if is_given_up(index) != is_given_up(first) {
                let behind = owner.split_off((index - first) * HUGE_2M);
                release_part(std::mem::replace(&mut owner, behind), first);
                first = index;
            }
        }
        release_part(owner, first);
        release_words(self.words);
        done
    }

    /// Returns the number of chunks of the span.
    pub fn chunks(&self) -> usize {
        self.range.len() / HUGE_2M
    }

    /// Returns the state of chunk `index`.
    pub fn chunk(&self, index: usize) -> Chunk<'static> {
        Chunk::at(self.words, index)
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
    /// Makes a table without spans.
    pub const fn new() -> Spans {
        Spans { spans: [None; MAX_SPANS], end: 0 }
    }

    /// Adds a span. Returns it if the table is full.
    pub fn insert(&mut self, span: Span) -> Result<(), Span> {
        let Some(slot) = self.spans.iter().position(Option::is_none) else {
            return Err(span);
        };
        self.spans[slot] = Some(span);
        self.end = self.end.max(slot + 1);
        Ok(())
    }

    /// Finds the span that holds `address`. Skips addresses that a span has given up: they may be
    /// the program's.
    pub fn find(&self, address: usize) -> Option<Span> {
        let index = |span: &Span| (address - span.range.start()) / HUGE_2M;
        self.find_any(address, 1).filter(|span| span.chunk(index(span)).mapping() != Mapping::GivenUp)
    }

    /// Finds a span that has any of these addresses, given up or not.
    pub fn find_any(&self, start: usize, len: usize) -> Option<Span> {
        self.iter().find(|span| span.range.start() < start + len && start < span.range.end())
    }

    /// Removes the span that is exactly `[start, start + len)`, and returns it.
    pub fn remove(&mut self, start: usize, len: usize) -> Option<Span> {
        let slot = self.spans[..self.end].iter().position(|span| {
            span.is_some_and(|span| span.range.start() == start && span.range.len() == len)
        })?;
        self.spans[slot].take()
    }

    /// Returns every span, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.spans[..self.end].iter().flatten().copied()
    }

    /// Returns the span in slot `slot`, and true if there are further slots. For a walk that
    /// releases the lock between two spans.
    pub fn slot(&self, slot: usize) -> (Option<Span>, bool) {
        (self.spans.get(slot).copied().flatten(), slot + 1 < self.end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // In a separate process: otherwise another test's mapping may come to lie in a hole.
    #[test]
    fn what_was_given_up_is_not_unmapped() {
        megapage_testing::in_child("span::tests::what_was_given_up_is_not_unmapped", || {
            let (owner, all) = Reservation::beginning(5 * HUGE_2M, 5 * HUGE_2M, HUGE_2M).unwrap();
            let span = Span::new(all, owner.len()).unwrap();
            let parts = [0, 1, 2, 3, 4].map(|index| all.part(index * HUGE_2M, HUGE_2M));
            [1, 2, 4].iter().for_each(|&index| span.chunk(index).set_mapping(Mapping::GivenUp));
            span.release(owner, Reservation::release).unwrap();
            assert_eq!(parts.map(|part| part.reserve_hole().is_ok()), [true, false, false, true, false]);
        });
    }
}
