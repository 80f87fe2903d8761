//! Seals: they distinguish headers of one heap, each at its place, from all other bytes.

use crate::checksum::{checksum, checksum_of_header};

/// Method of the checksum of a heap's headers. It is written in the heap's own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Each word after the one before it. Heaps made by megapage 0.1.0 keep it.
    InTurn = 1,
    /// All words at once: a quarter of the time.
    AtOnce = 2,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 2] = [Format::InTurn, Format::AtOnce];

    /// Returns the format with this number; `None` for one of a later version.
    pub fn of(number: u64) -> Option<Format> {
        Format::ALL.into_iter().find(|format| *format as u64 == number)
    }
}

/// A heap's seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Different for each heap that was ever made in the segment.
    pub salt: u64,
    /// Method of the checksum of headers.
    pub format: Format,
}

impl Seal {
    /// Returns the checksum of these words of the header at `offset`.
    #[inline]
    pub fn sum<const COUNT: usize>(self, offset: u64, words: [u64; COUNT]) -> u64 {
        match self.format {
            Format::InTurn => checksum(self.salt ^ offset, words),
            Format::AtOnce => checksum_of_header(self.salt ^ offset, words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;
    use crate::heap::{Depth, Heap, Request, Tag};
    use megapage_kernel::directory::reopen;
    use megapage_units::{Bytes, PageSize};
    use std::sync::atomic::{AtomicBool, Ordering};

    const TAG: Tag = Tag::named("test/seal");

    fn heap(format: Format) -> Heap {
        let (name, size) = ("seal".parse().unwrap(), Bytes::mib(4));
        Heap::format_as(Segment::in_memory(name, PageSize::HUGE_2M, false, size, size).unwrap(), format)
            .unwrap()
    }

    #[test]
    fn a_heap_of_an_earlier_format_is_found_again_and_stays_so() {
        for format in Format::ALL {
            let mut heap = heap(format);
            let root = heap.allocate(Request::new(300_000, TAG)).unwrap();
            assert!(heap.block(root, TAG).unwrap().write(0, b"as it was"));
            heap.set_root(Some(root)).unwrap();
            for round in 0..3 {
                // Small blocks: some in use, some at hand.
                let small: Vec<_> = (0..40).map(|_| heap.allocate(Request::new(64, TAG)).unwrap()).collect();
                small.iter().step_by(2).for_each(|handle| heap.free(*handle).unwrap());
                // A separate description: the lock on the other ends with the heap.
                let file = reopen(&heap.segment().descriptor().unwrap().unwrap()).unwrap();
                drop(heap);
                heap = Heap::open(Segment::of_memory_file(&file, false).unwrap()).unwrap();
                assert_eq!(heap.seal.format, format);
                assert_eq!(heap.root().unwrap(), Some(root));
                assert!(heap.block(root, TAG).unwrap().to_vec().starts_with(b"as it was"));
                assert_eq!(heap.blocks().unwrap().len(), 1 + 20 * (round + 1));
                heap.verify(Depth::Memory).unwrap();
            }
        }
    }

    #[test]
    fn a_block_is_found_while_its_neighbours_come_and_go() {
        let heap = heap(Format::AtOnce);
        let before = heap.allocate(Request::new(8192, TAG)).unwrap();
        let between = heap.allocate(Request::new(8192, TAG)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Its header changes each time: it names the size of the element before it.
                let mut before = before;
                for len in (0..20_000).map(|round| if round % 2 == 0 { 4200 } else { 8192 }) {
                    before = heap.resize(before, len).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(heap.block(between, TAG).unwrap().len(), 8192);
            }
        });
        heap.verify(Depth::Memory).unwrap();
    }
}
