//! What the two sides of a ledger exchange about the program: hints at its start, findings as it runs.

use super::{Ledger, word};
use crate::learned::{CLASSES, Found, Hints, Maps};
use std::sync::atomic::Ordering::Relaxed;

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
        self.found_at(word::BLOCKS + 2 * class.min(CLASSES - 1))
    }

    /// Notes what was found so far of the memory that the program maps so.
    pub fn found_maps(&self, maps: Maps, found: Found) {
        let at = word::MAPS + 2 * maps as usize;
        self.word(at).store(found.seen, Relaxed);
        self.word(at + 1).store(found.touched, Relaxed);
    }

    /// What was found of it.
    pub fn maps_found(&self, maps: Maps) -> Found {
        self.found_at(word::MAPS + 2 * maps as usize)
    }

    fn found_at(&self, at: usize) -> Found {
        Found { seen: self.word(at).load(Relaxed), touched: self.word(at + 1).load(Relaxed) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::learned::class_of;
    use megapage_inside::SharedWords;

    #[test]
    fn hints_are_taken_once_and_findings_come_back() {
        let (file, words) = SharedWords::create(c"ledger", 1).unwrap();
        let launcher = Ledger::launcher(words);
        let class = class_of(64 << 20).unwrap();
        let hints = Hints { sparse_blocks: 1 << class, dense_maps: 0b10, filled_bytes: 3, large_heap: true };
        launcher.hint(hints);
        let program = Ledger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        // What was noted before a launcher was known does not wipe the hints out.
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
