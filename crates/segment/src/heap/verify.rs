//! Verification of a heap.

use super::element::{HEADER, State};
use super::{Heap, HeapError, memory};
use megapage_units::Bytes;
use std::collections::BTreeSet;

/// Extent of the verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All headers.
    Headers,
    /// All free memory, too: memory that counts as clean must be zero.
    Memory,
}

/// Contents of a heap that is sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Blocks that are allocated.
    pub blocks: u64,
    /// Their bytes, as asked for.
    pub used: Bytes,
    /// Free memory that is known to be zero.
    pub clean: Bytes,
    /// Free memory that may hold anything.
    pub dirty: Bytes,
    /// The largest piece of free memory.
    pub largest_free: Bytes,
}

impl Heap {
    /// Checks every invariant. The elements fill the heap without a gap, and each knows the one
    /// before it. No two free ones of one kind lie side by side; the list of free ones is complete.
    /// The root leads to a block, and clean memory is zero. Other threads wait meanwhile. Only the
    /// owner may call it.
    pub fn verify(&self, depth: Depth) -> Result<Verified, HeapError> {
        let book = self.owned_book()?;
        let own = self.read_own_header()?;
        let damaged = |offset: u64, what: &'static str| Err(HeapError::Damaged { offset, what });
        if own.end != book.end || own.root != book.root || own.seal != self.seal {
            return damaged(self.base, "the heap's header was changed by another process");
        }
        let mut sum = Verified::default();
        let (mut free, mut parked) = (BTreeSet::new(), 0);
        let (mut at, mut before, mut kind_before) = (self.start, 0, None);
        while at < book.end {
            let element = self.element(&book, at)?;
            if element.before != before {
                return damaged(at, "the element does not know the one before it");
            }
            let room = element.size - HEADER;
            let kind = (element.state == State::Free).then_some(element.dirty);
            match element.state {
                State::Used => {
                    sum.blocks += 1;
                    sum.used += Bytes(element.len);
                }
                State::Free | State::Parked => {
                    if element.state == State::Free {
                        free.insert((element.size, at));
                    } else {
                        parked += 1;
                    }
                    sum.largest_free = sum.largest_free.max(Bytes(room));
                    let sort = if element.dirty { &mut sum.dirty } else { &mut sum.clean };
                    *sort += Bytes(room);
                }
                // Another thread is clearing it.
                State::Leaving => {}
            }
            if kind.is_some() && kind == kind_before {
                return damaged(at, "two free elements of one kind lie side by side");
            }
            let is_free = matches!(element.state, State::Free | State::Parked);
            if is_free
                && !element.dirty
                && depth == Depth::Memory
                && let Some(offset) = memory::first_nonzero(&self.segment, at + HEADER, room)?
            {
                return damaged(offset, "memory that counts as clean is not zero");
            }
            if at + element.size == book.end && at != book.last {
                return damaged(at, "the last element is not known");
            }
            (before, kind_before) = (element.size, kind);
            at += element.size;
        }
        if free != book.free || parked != book.magazines.len() {
            return damaged(self.start, "the list of free elements is not what is free");
        }
        if let Some(root) = book.root {
            self.used(&book, root)?;
        }
        Ok(sum)
    }
}
