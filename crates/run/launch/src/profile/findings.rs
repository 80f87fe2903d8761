//! What runs have found out, and what of it the next one is given.

use megapage_memory::{CLASSES, Found, Hints, Ledger, Maps, class_of, class_start};
use megapage_units::Bytes;
use serde::{Deserialize, Serialize};

/// Less than this of a class of blocks is not worth a word.
const LEAST_BLOCKS: u64 = 8 << 20;
/// Blocks are sparse where at most three quarters of what huge pages back is touched.
const SPARSE_QUARTERS: u64 = 3;
/// Less than this of own mappings shows nothing.
const LEAST_MAPS: u64 = 1 << 20;
/// A heap that has held so much outgrows its first chunks.
const LARGE_HEAP: u64 = 64 << 20;
/// So many starts in a row are given a finding that none of them has made again: then it is found out anew.
const MOST_STARTS: u32 = 8;
/// Of the largest own mappings a start is given as much as was filled, and this part more: sizes differ a little.
const FILLED_MORE: u64 = 4;
/// No process has more memory: what is beyond is no finding.
const MOST_SEEN: u64 = 1 << 56;

/// Large blocks of one class of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// The smallest size of the class.
    pub from_bytes: u64,
    /// Of all of them together: what huge pages back, or would.
    pub seen_bytes: u64,
    /// What of it was touched.
    pub touched_bytes: u64,
    /// Starts that were given it since it was found.
    pub starts: u32,
}

/// What the program maps by itself, by requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mappings {
    /// `small` (below 2 MiB), `large` (below 32 MiB) or `huge`.
    pub requests: String,
    /// What was looked at.
    pub seen_bytes: u64,
    /// What of it was touched.
    pub touched_bytes: u64,
    /// Starts that were given it since it was found.
    pub starts: u32,
}

/// All that is known of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// Large blocks of its heap.
    pub large_blocks: Vec<Blocks>,
    /// Its own mappings.
    pub own_mappings: Vec<Mappings>,
    /// The most that its heap has held in the last run.
    pub heap_peak_bytes: u64,
}

fn is_sound(seen: u64, touched: u64) -> bool {
    (1..=MOST_SEEN).contains(&seen) && touched <= seen
}

impl Findings {
    /// What the ledger of one run shows. What cannot be true is left out: the program may write to it as it likes.
    pub fn of(ledger: &Ledger) -> Findings {
        let blocks = (0..CLASSES).map(|class| {
            let Found { seen, touched } = ledger.block_found(class);
            Blocks { from_bytes: class_start(class), seen_bytes: seen, touched_bytes: touched, starts: 0 }
        });
        let maps = Maps::ALL.into_iter().map(|maps| {
            let Found { seen, touched } = ledger.maps_found(maps);
            let requests = maps.name().into();
            Mappings { requests, seen_bytes: seen, touched_bytes: touched, starts: 0 }
        });
        Findings {
            large_blocks: blocks.filter(|it| is_sound(it.seen_bytes, it.touched_bytes)).collect(),
            own_mappings: maps.filter(|it| is_sound(it.seen_bytes, it.touched_bytes)).collect(),
            heap_peak_bytes: ledger.peak().min(MOST_SEEN),
        }
    }

    /// Whether anything is worth storing.
    pub fn is_empty(&self) -> bool {
        self.large_blocks.is_empty() && self.own_mappings.is_empty() && self.heap_peak_bytes < LARGE_HEAP
    }

    /// Whether each can be true, and there are no more than there can be.
    pub fn are_sound(&self) -> bool {
        let is_class = |it: &Blocks| class_of(it.from_bytes as usize).map(class_start) == Some(it.from_bytes);
        let is_kind = |it: &Mappings| Maps::ALL.iter().any(|maps| maps.name() == it.requests);
        self.large_blocks.len() <= CLASSES
            && self.own_mappings.len() <= Maps::ALL.len()
            && self.large_blocks.iter().all(|it| is_class(it) && is_sound(it.seen_bytes, it.touched_bytes))
            && self.own_mappings.iter().all(|it| is_kind(it) && is_sound(it.seen_bytes, it.touched_bytes))
    }

    /// These after a further run, which was given them where `had_hints`: new findings replace old ones, absent ones stay a while.
    pub fn after(&self, run: Findings, had_hints: bool) -> Findings {
        let mut all = run;
        for former in &self.large_blocks {
            if !all.large_blocks.iter().any(|it| it.from_bytes == former.from_bytes) {
                all.large_blocks.push(Blocks { starts: former.starts + u32::from(had_hints), ..*former });
            }
        }
        for former in &self.own_mappings {
            if !all.own_mappings.iter().any(|it| it.requests == former.requests) {
                let starts = former.starts + u32::from(had_hints);
                all.own_mappings.push(Mappings { starts, ..former.clone() });
            }
        }
        all.large_blocks.retain(|it| it.starts < MOST_STARTS);
        all.own_mappings.retain(|it| it.starts < MOST_STARTS);
        all.large_blocks.sort_by_key(|it| it.from_bytes);
        all.own_mappings.sort_by(|a, b| b.requests.cmp(&a.requests));
        all
    }

    fn sparse_blocks(&self) -> impl Iterator<Item = &Blocks> {
        self.large_blocks.iter().filter(|it| {
            it.seen_bytes >= LEAST_BLOCKS && it.touched_bytes <= it.seen_bytes / 4 * SPARSE_QUARTERS
        })
    }

    fn dense_maps(&self) -> impl Iterator<Item = &Mappings> {
        self.own_mappings.iter().filter(|it| {
            let found = Found { seen: it.seen_bytes, touched: it.touched_bytes };
            let maps = Maps::parse(it.requests.as_bytes());
            it.seen_bytes >= LEAST_MAPS && maps.is_some_and(|maps| found.is_dense(maps))
        })
    }

    /// The hints to the next start.
    pub fn hints(&self) -> Hints {
        let bits = |all: &mut dyn Iterator<Item = Option<usize>>| {
            all.flatten().fold(0u64, |bits, at| bits | 1u64 << at)
        };
        let maps = |it: &Mappings| {
            Maps::ALL.iter().position(|maps| *maps != Maps::Huge && maps.name() == it.requests)
        };
        let filled = self.dense_maps().find(|it| it.requests == Maps::Huge.name());
        Hints {
            sparse_blocks: bits(&mut self.sparse_blocks().map(|it| class_of(it.from_bytes as usize))),
            dense_maps: bits(&mut self.dense_maps().map(maps)),
            filled_bytes: filled.map_or(0, |it| it.touched_bytes + it.touched_bytes / FILLED_MORE),
            large_heap: self.heap_peak_bytes >= LARGE_HEAP,
        }
    }

    /// The same in words.
    pub fn in_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self
            .sparse_blocks()
            .map(|it| {
                let percent = it.touched_bytes * 100 / it.seen_bytes;
                format!("large blocks of the heap from {} are sparse ({percent} %)", Bytes(it.from_bytes))
            })
            .collect();
        words.extend(self.dense_maps().map(|it| match it.requests.as_str() {
            "small" => "own mappings below 2 MiB are dense".into(),
            "large" => "own mappings from 2 MiB to 32 MiB are dense".into(),
            _ => "own mappings from 32 MiB on are dense".to_string(),
        }));
        if self.heap_peak_bytes >= LARGE_HEAP {
            words.push(format!("the heap grows to {}", Bytes(self.heap_peak_bytes)));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(from: u64, seen: u64, touched: u64) -> Blocks {
        Blocks { from_bytes: from << 20, seen_bytes: seen << 20, touched_bytes: touched << 20, starts: 0 }
    }

    fn mappings(requests: &str, seen: u64, touched: u64) -> Mappings {
        let (seen_bytes, touched_bytes) = (seen << 20, touched << 20);
        Mappings { requests: requests.into(), seen_bytes, touched_bytes, starts: 0 }
    }

    #[test]
    fn a_start_is_given_what_pays() {
        let findings = Findings {
            large_blocks: vec![blocks(32, 100, 76), blocks(64, 64, 8), blocks(128, 4, 0)],
            own_mappings: vec![
                mappings("small", 16, 16),
                mappings("large", 16, 12),
                mappings("huge", 64, 64),
            ],
            heap_peak_bytes: 64 << 20,
        };
        let hints = findings.hints();
        assert!(hints.is_sparse_block(64 << 20), "{hints:?}");
        assert!(!hints.is_sparse_block(32 << 20) && !hints.is_sparse_block(128 << 20));
        assert!(hints.is_dense_map(Maps::Small) && !hints.is_dense_map(Maps::Large));
        assert!(hints.large_heap);
        assert_eq!(hints.filled_bytes, 80 << 20);
        assert_eq!(findings.in_words().len(), 4, "{:?}", findings.in_words());
        assert_eq!(Findings::default().hints(), Hints::default());
        let smaller = Findings { heap_peak_bytes: (64 << 20) - 1, ..Findings::default() };
        assert!(!smaller.hints().large_heap && smaller.is_empty());
    }

    #[test]
    fn a_newer_finding_counts_and_one_that_is_not_made_again_lapses() {
        let sparse = Findings { large_blocks: vec![blocks(64, 64, 8)], ..Findings::default() };
        let dense = Findings { large_blocks: vec![blocks(64, 64, 64)], ..Findings::default() };
        assert_eq!(sparse.after(dense.clone(), true), dense);
        let mut findings = sparse.clone();
        for start in 1..MOST_STARTS {
            findings = findings.after(Findings::default(), true);
            assert_eq!(findings.hints(), sparse.hints(), "start {start}");
        }
        assert_eq!(findings.after(sparse.clone(), true), sparse, "found again");
        assert_eq!(
            findings.after(Findings::default(), false).hints(),
            sparse.hints(),
            "no run was given them"
        );
        assert_eq!(findings.after(Findings::default(), true), Findings::default());
    }

    #[test]
    fn what_cannot_be_true_is_no_finding() {
        let ledger = Ledger::private();
        let class = class_of(64 << 20).unwrap();
        ledger.found_block(class, Found { seen: 5, touched: 6 });
        ledger.found_maps(Maps::Small, Found { seen: u64::MAX, touched: 0 });
        ledger.found_maps(Maps::Large, Found { seen: 9, touched: 9 });
        let findings = Findings::of(&ledger);
        assert!(findings.large_blocks.is_empty() && findings.are_sound());
        assert_eq!(findings.own_mappings.len(), 1);
        for wrong in [blocks(33, 5, 5), blocks(64, 5, 6), blocks(64, 0, 0), blocks(0, 5, 5)] {
            assert!(!Findings { large_blocks: vec![wrong], ..Findings::default() }.are_sound(), "{wrong:?}");
        }
        let wrong = Findings { own_mappings: vec![mappings("tiny", 5, 5)], ..Findings::default() };
        assert!(!wrong.are_sound());
    }
}
