//! An exact LRU TLB, access by access, against which the model is checked. Slow; for short traces.

use crate::{EntrySize, Geometry};
use std::collections::{BTreeMap, HashMap};

/// One LRU cache of page numbers, fully associative or in sets.
#[derive(Clone, Debug)]
pub struct Lru {
    sets: Vec<Set>,
}

#[derive(Clone, Debug)]
struct Set {
    ways: usize,
    clock: u64,
    /// Time of last access of each page, and the pages by that time.
    by_page: HashMap<u64, u64>,
    by_time: BTreeMap<u64, u64>,
}

impl Lru {
    /// Creates a cache of `entries` entries in sets of `ways`; `None` makes it fully associative.
    /// It has at least one entry.
    pub fn new(entries: u32, ways: Option<u32>) -> Lru {
        let ways = ways.unwrap_or(entries).clamp(1, entries.max(1));
        let set = Set { ways: ways as usize, clock: 0, by_page: HashMap::new(), by_time: BTreeMap::new() };
        Lru { sets: vec![set; (entries.max(1) / ways).max(1) as usize] }
    }

    /// Accesses `page`, which the cache then holds. Returns true if it held the page before.
    pub fn access(&mut self, page: u64) -> bool {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(page % count) as usize];
        set.clock += 1;
        let former = set.by_page.insert(page, set.clock);
        if let Some(time) = former {
            set.by_time.remove(&time);
        } else if set.by_time.len() == set.ways
            && let Some((_, oldest)) = set.by_time.pop_first()
        {
            set.by_page.remove(&oldest);
        }
        set.by_time.insert(set.clock, page);
        former.is_some()
    }
}

/// A TLB of two levels: a first level for each size, and a second that 4 KiB and 2 MiB entries
/// share.
#[derive(Clone, Debug)]
pub struct TwoLevel {
    first: [Lru; 3],
    second: Lru,
    second_1g: Lru,
}

impl TwoLevel {
    /// Creates an empty TLB. `ways` is for the second level; the first is fully associative.
    pub fn new(geometry: &Geometry, ways: Option<u32>) -> TwoLevel {
        let first = [geometry.first_base, geometry.first_2m, geometry.first_1g];
        TwoLevel {
            first: first.map(|entries| Lru::new(entries, None)),
            second: Lru::new(geometry.second, ways),
            second_1g: Lru::new(geometry.second_1g, None),
        }
    }

    /// Accesses page number `page` (of a number space common to all sizes). Returns true if that
    /// takes a page walk.
    pub fn access(&mut self, size: EntrySize, page: u64) -> bool {
        if self.first[size as usize].access(page) {
            return false;
        }
        match size {
            EntrySize::Huge1g => !self.second_1g.access(page),
            _ => !self.second.access(page),
        }
    }
}
