//! What a run finds out about its program, and what an earlier run has found out: both travel in the ledger.
//!
//! The launcher writes *hints* before the program starts; the library takes them once, so that a program which the process
//! executes later gets none. The library writes *findings*. A word that was not written means that nothing is known.

/// Bytes from which a block of the heap is judged: one large object.
pub const LARGE_BLOCK: usize = 32 << 20;
/// Classes of large blocks by their size: four for each doubling, so that blocks of one class differ by a quarter at most.
/// The last one has no end. (Few where loom tries the ledger: its threads have small stacks.)
pub const CLASSES: usize = if cfg!(loom) { 4 } else { 48 };

/// The class of a block of `len` bytes; `None` of one that is not large.
pub fn class_of(len: usize) -> Option<usize> {
    let high = len.max(1).ilog2() as usize;
    let first = LARGE_BLOCK.ilog2() as usize;
    (len >= LARGE_BLOCK).then(|| (4 * (high - first) + (len >> (high - 2) & 3)).min(CLASSES - 1))
}

/// The smallest size of a class.
pub fn class_start(class: usize) -> u64 {
    ((4 + class as u64 % 4) * (LARGE_BLOCK as u64 / 4)) << (class / 4)
}

/// What is known of the program at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The classes of large blocks that were hardly touched: a bit each.
    pub sparse_blocks: u64,
    /// The program fills what it maps by itself, by requests that are [`Maps::Small`] and [`Maps::Large`]: a bit each.
    pub dense_maps: u64,
    /// Of [`Maps::Huge`] requests it fills so many bytes; 0 where that is not known.
    pub filled_bytes: u64,
    /// The heap outgrows its first chunks by far.
    pub large_heap: bool,
}

megapage_units::named! {
    /// Memory that the program maps by itself, by the size of its requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Maps {
        /// Below 2 MiB.
        Small = "small",
        /// From 2 MiB up to 32 MiB.
        Large = "large",
        /// From 32 MiB on.
        Huge = "huge",
    }
}

impl Hints {
    /// Whether blocks of `len` bytes were hardly touched.
    pub fn is_sparse_block(&self, len: usize) -> bool {
        class_of(len).is_some_and(|class| self.sparse_blocks & 1 << class != 0)
    }

    /// Whether the program fills what it maps so.
    pub fn is_dense_map(&self, maps: Maps) -> bool {
        self.dense_maps & 1 << maps as usize != 0
    }
}

/// Memory that was judged, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What huge pages back, or would.
    pub seen: u64,
    /// What of it the program has touched.
    pub touched: u64,
}

impl Found {
    /// Whether requests of this size are filled: nearly all of it was touched, in sixteenths.
    pub fn is_dense(self, maps: Maps) -> bool {
        let enough = match maps {
            // What is still to be filled when it is looked at is a part of the last region.
            Maps::Large => 13,
            Maps::Small | Maps::Huge => 15,
        };
        self.touched >= self.seen / 16 * enough
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_wide_and_have_no_gaps() {
        assert_eq!(class_of(LARGE_BLOCK - 1), None);
        assert_eq!(class_of(0), None);
        for class in 0..CLASSES {
            let start = class_start(class) as usize;
            assert_eq!(class_of(start), Some(class));
            assert_eq!(class_of(start - 1), class.checked_sub(1));
            if class + 1 < CLASSES {
                assert!(class_start(class + 1) as usize - start <= start / 4, "{class}");
            }
        }
        assert_eq!(class_of(usize::MAX), Some(CLASSES - 1));
    }
}
