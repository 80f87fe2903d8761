//! What a run finds out about its program, and what an earlier run has found out: both travel in the ledger.
//!
//! The launcher writes *hints* before the program starts; the library takes them once, so that a program which the process
//! executes later gets none. The library writes *findings*. A word that was not written means that nothing is known.

use crate::ledger::{Ledger, word};
use std::sync::atomic::Ordering::Relaxed;

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

/// Memory that the program maps by itself, by the size of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Maps {
    /// Below 2 MiB.
    Small = 0,
    /// From 2 MiB up to 32 MiB.
    Large = 1,
    /// From 32 MiB on.
    Huge = 2,
}

impl Maps {
    /// All of them, by their numbers.
    pub const ALL: [Maps; 3] = [Maps::Small, Maps::Large, Maps::Huge];

    /// The name used in profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Maps::Small => "small",
            Maps::Large => "large",
            Maps::Huge => "huge",
        }
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
    /// Memory that a program fills.
    const DENSE_SIXTEENTHS: u64 = 15;

    /// Whether nearly all of it was touched.
    pub fn is_dense(self) -> bool {
        self.touched >= self.seen / 16 * Self::DENSE_SIXTEENTHS
    }

    fn load(ledger: &Ledger, at: usize) -> Found {
        Found { seen: ledger.word(at).load(Relaxed), touched: ledger.word(at + 1).load(Relaxed) }
    }
}

impl Ledger {
    /// The launcher's part: what is known of the program that will claim the ledger.
    pub fn hint(&self, hints: Hints) {
        self.word(word::HINT_BLOCKS).store(hints.sparse_blocks, Relaxed);
        self.word(word::HINT_MAPS).store(hints.dense_maps, Relaxed);
        self.word(word::HINT_FILLED).store(hints.filled_bytes, Relaxed);
        self.word(word::HINT_HEAP).store(u64::from(hints.large_heap), Relaxed);
    }

    /// The program's part, once: a second answer knows nothing.
    pub fn take_hints(&self) -> Hints {
        let take = |at| {
            let known = self.word(at).load(Relaxed);
            self.word(at).store(0, Relaxed);
            known
        };
        Hints {
            sparse_blocks: take(word::HINT_BLOCKS),
            dense_maps: take(word::HINT_MAPS),
            filled_bytes: take(word::HINT_FILLED),
            large_heap: take(word::HINT_HEAP) != 0,
        }
    }

    /// How many programs have claimed the ledger: more than one where the process has executed another, whose findings these
    /// are.
    pub fn claims(&self) -> u64 {
        self.word(word::CLAIMS).load(Relaxed)
    }

    /// Notes what was found of a large block of this class.
    pub fn found_block(&self, class: usize, found: Found) {
        let at = word::BLOCKS + 2 * class.min(CLASSES - 1);
        self.word(at).fetch_add(found.seen, Relaxed);
        self.word(at + 1).fetch_add(found.touched, Relaxed);
    }

    /// What was found of the large blocks of this class.
    pub fn block_found(&self, class: usize) -> Found {
        Found::load(self, word::BLOCKS + 2 * class.min(CLASSES - 1))
    }

    /// Notes what was found so far of the memory that the program maps so.
    pub fn found_maps(&self, maps: Maps, found: Found) {
        let at = word::MAPS + 2 * maps as usize;
        self.word(at).store(found.seen, Relaxed);
        self.word(at + 1).store(found.touched, Relaxed);
    }

    /// What was found of it.
    pub fn maps_found(&self, maps: Maps) -> Found {
        Found::load(self, word::MAPS + 2 * maps as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use megapage_kernel::SharedWords;

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

    #[test]
    fn hints_are_taken_once_and_findings_come_back() {
        let (file, words) = SharedWords::create(c"ledger", 1).unwrap();
        let launcher = Ledger::launcher(words);
        let class = class_of(64 << 20).unwrap();
        let hints = Hints { sparse_blocks: 1 << class, dense_maps: 0b10, filled_bytes: 3, large_heap: true };
        launcher.hint(hints);
        let program = Ledger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        // What was noted before there was a launcher to tell does not wipe the hints out.
        let private = Ledger::private();
        private.found_block(class, Found { seen: 5, touched: 4 });
        program.continue_from(&private);
        assert_eq!(program.take_hints(), hints);
        assert!(hints.is_sparse_block(65 << 20) && !hints.is_sparse_block(128 << 20));
        assert!(hints.is_dense_map(Maps::Large) && !hints.is_dense_map(Maps::Small));
        program.found_block(class, Found { seen: 10, touched: 3 });
        program.found_maps(Maps::Large, Found { seen: 9, touched: 8 });
        assert_eq!(launcher.block_found(class), Found { seen: 15, touched: 7 });
        assert_eq!(launcher.maps_found(Maps::Large), Found { seen: 9, touched: 8 });
        assert_eq!((launcher.maps_found(Maps::Small), launcher.claims()), (Found::default(), 1));
        // exec: the next program knows nothing, and the launcher learns of it.
        let next = Ledger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        assert_eq!((next.take_hints(), launcher.claims()), (Hints::default(), 2));
    }
}
