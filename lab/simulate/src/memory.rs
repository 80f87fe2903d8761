//! Physical memory: a buddy allocator over blocks of 2 MiB.
//!
//! Each block keeps a bit for each of its base pages, so that its free orders are exact, and the
//! number of pages of each owner. Free blocks come in two lists, zero-filled and not (HawkEye,
//! section 3.1). This module makes no decisions: faults, promotions and reservations ask for pages
//! and get an answer.

mod block;

use block::Block;
use megapage_plan::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Base pages in a block.
pub const BLOCK_PAGES: u16 = 512;
/// The order of a whole block.
pub const HUGE_ORDER: usize = 9;

/// Owner of pages: one region of one process. It is an index that [`Memory::enter`] gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(u32);

/// Pages of an owner, by block.
#[derive(Clone, Debug, Default)]
struct Holding {
    /// Blocks, and the number of pages in each.
    pieces: Vec<(u32, u16)>,
    /// The block that is reserved for this owner alone.
    reserved: Option<u32>,
}

/// Pages that were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Pages, in all.
    pub pages: u16,
    /// Those of them that were known to hold zeros.
    pub zeroed: u16,
}

/// Pages that no simulated process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filler {
    /// The kernel's own: never moves, never goes.
    Unmovable,
    /// Page cache: can be moved, and dropped when memory is short.
    Cache,
}

/// Memory of the simulated machine. At any time the free, held and filled pages add up to its size.
#[derive(Clone, Debug)]
pub struct Memory {
    blocks: Vec<Block>,
    holdings: Vec<Holding>,
    vacant: Vec<Owner>,
    /// Blocks by the largest order that is free in them, except whole free blocks and reserved
    /// ones.
    partial: [BTreeSet<u32>; HUGE_ORDER],
    /// The same for blocks that hold unmovable pages of the kernel. The page allocator keeps
    /// movable memory out of them (migrate types) as long as there is other memory.
    unmovable: [BTreeSet<u32>; HUGE_ORDER],
    /// Free pages in those.
    unmovable_free: u64,
    /// Whole free blocks that may hold old bytes.
    dirty: BTreeSet<u32>,
    /// Whole free blocks that hold zeros.
    clean: BTreeSet<u32>,
    /// Blocks that could be emptied: part of their pages is movable, none is unmovable. Used base
    /// pages, block.
    movable: BTreeSet<(u16, u32)>,
    /// Blocks that hold page cache.
    cached: BTreeSet<u32>,
    /// Reserved blocks, with their owners.
    reservations: BTreeMap<u32, Owner>,
    free: u64,
    reserved_free: u64,
    cache: u64,
    random: Random,
}

impl Memory {
    /// Makes `bytes` of free memory, rounded down to whole blocks, with unknown contents.
    pub fn new(bytes: u64, seed: u64) -> Memory {
        let count = u32::try_from(bytes >> 21).unwrap_or(u32::MAX);
        Memory {
            blocks: vec![Block::default(); count as usize],
            holdings: Vec::new(),
            vacant: Vec::new(),
            partial: Default::default(),
            unmovable: Default::default(),
            unmovable_free: 0,
            dirty: (0..count).collect(),
            clean: BTreeSet::new(),
            movable: BTreeSet::new(),
            cached: BTreeSet::new(),
            reservations: BTreeMap::new(),
            free: u64::from(count) * u64::from(BLOCK_PAGES),
            reserved_free: 0,
            cache: 0,
            random: Random::new(seed),
        }
    }

    /// Returns the number of all base pages.
    pub fn total_pages(&self) -> u64 {
        self.blocks.len() as u64 * u64::from(BLOCK_PAGES)
    }

    /// Returns the number of free base pages, those inside reservations included.
    pub fn free_pages(&self) -> u64 {
        self.free + self.reserved_free
    }

    /// Returns the number of whole free blocks.
    pub fn huge_free(&self) -> u64 {
        (self.dirty.len() + self.clean.len()) as u64
    }

    /// Returns the number of whole free blocks that hold zeros.
    pub fn huge_zeroed(&self) -> u64 {
        self.clean.len() as u64
    }

    /// Returns the number of base pages of page cache that can be dropped.
    pub fn cache_pages(&self) -> u64 {
        self.cache
    }

    /// Returns the free memory fragmentation index: the share of free memory in which no block of 2
    /// MiB is whole. `None` if no page is free.
    pub fn fragmentation(&self) -> Option<f64> {
        let free = self.free_pages();
        (free > 0).then(|| 1.0 - (self.huge_free() * u64::from(BLOCK_PAGES)) as f64 / free as f64)
    }

    /// Makes a new owner, which holds nothing yet.
    pub fn enter(&mut self) -> Owner {
        self.vacant.pop().unwrap_or_else(|| {
            self.holdings.push(Holding::default());
            Owner(self.holdings.len() as u32 - 1)
        })
    }

    /// Releases all that `owner` holds, and the owner itself.
    pub fn leave(&mut self, owner: Owner) {
        self.break_reservation(owner);
        self.release_pieces(owner);
        self.vacant.push(owner);
    }

    /// Returns the number of base pages that `owner` holds.
    pub fn held(&self, owner: Owner) -> u64 {
        self.holdings[owner.0 as usize].pieces.iter().map(|&(_, pages)| u64::from(pages)).sum()
    }

    /// Fills a `share` (0 to 1) of the blocks with one page each of `kind`, chosen at random. About
    /// this share of free memory is then of no use for huge pages. Call it before any memory is
    /// taken.
    pub fn fragment(&mut self, share: f64, kind: Filler) {
        let count = self.blocks.len();
        let target = (share.clamp(0.0, 1.0) * count as f64).round() as usize;
        // A partial Fisher-Yates shuffle: exact in number, any set equally likely.
        let mut order: Vec<u32> = (0..count as u32).collect();
        for at in 0..target {
            let other = at + self.random.below((count - at) as u32) as usize;
            order.swap(at, other);
            self.fill(order[at], 1, kind);
        }
    }

    fn fill(&mut self, at: u32, pages: u16, kind: Filler) {
        self.unlist(at);
        let block = &mut self.blocks[at as usize];
        let pages = block.take(pages);
        match kind {
            Filler::Unmovable => block.unmovable += pages,
            Filler::Cache => {
                block.cache += pages;
                self.cache += u64::from(pages);
            }
        }
        self.free -= u64::from(pages);
        self.list(at);
    }

    /// Takes up to `pages` base pages for `owner`: from its own reservation first, then from the
    /// smallest free orders, and so from whole blocks last. If a block must be broken, it is a
    /// zero-filled one if `prefer_zeroed`. Page cache is dropped if nothing else is left. It takes
    /// fewer if memory has run out: then reservations of others can be broken.
    pub fn take(&mut self, owner: Owner, pages: u16, prefer_zeroed: bool) -> Taken {
        let mut taken = Taken::default();
        if let Some(at) = self.holdings[owner.0 as usize].reserved {
            self.take_from(owner, at, pages, &mut taken);
            self.settle_reservation(owner, at);
        }
        while taken.pages < pages {
            let whole = self.whole(prefer_zeroed);
            let Some(at) = self.best_partial().or(whole).or_else(|| self.best_unmovable()) else {
                if self.drop_cache() {
                    continue;
                }
                break;
            };
            self.take_from(owner, at, pages - taken.pages, &mut taken);
        }
        taken
    }

    fn whole(&self, prefer_zeroed: bool) -> Option<u32> {
        let (first, second) =
            if prefer_zeroed { (&self.clean, &self.dirty) } else { (&self.dirty, &self.clean) };
        first.first().or(second.first()).copied()
    }

    fn best_partial(&self) -> Option<u32> {
        self.partial.iter().find_map(|blocks| blocks.first().copied())
    }

    fn best_unmovable(&self) -> Option<u32> {
        self.unmovable.iter().find_map(|blocks| blocks.first().copied())
    }

    fn take_from(&mut self, owner: Owner, at: u32, pages: u16, taken: &mut Taken) {
        self.unlist(at);
        let block = &mut self.blocks[at as usize];
        let got = block.take(pages);
        taken.pages += got;
        if block.zeroed {
            taken.zeroed += got;
        }
        block.add(owner, got);
        if block.reserved == Some(owner) {
            self.reserved_free -= u64::from(got);
        } else {
            self.free -= u64::from(got);
        }
        self.list(at);
        self.note(owner, at, got);
    }

    fn note(&mut self, owner: Owner, at: u32, pages: u16) {
        if pages == 0 {
            return;
        }
        let pieces = &mut self.holdings[owner.0 as usize].pieces;
        match pieces.iter_mut().find(|(block, _)| *block == at) {
            Some((_, held)) => *held += pages,
            None => pieces.push((at, pages)),
        }
    }

    /// Takes a whole block for `owner`, a zero-filled one if `prefer_zeroed`. The owner's former
    /// pages are released: their contents have been copied. Returns `None`, and changes nothing, if
    /// no block is whole; `Some(true)` if it holds zeros.
    pub fn take_huge(&mut self, owner: Owner, prefer_zeroed: bool) -> Option<bool> {
        let at = self.whole(prefer_zeroed)?;
        self.break_reservation(owner);
        let before = std::mem::take(&mut self.holdings[owner.0 as usize].pieces);
        let mut taken = Taken::default();
        self.take_from(owner, at, BLOCK_PAGES, &mut taken);
        for (block, pages) in before {
            self.release(owner, block, pages);
        }
        Some(taken.zeroed == BLOCK_PAGES)
    }

    /// Returns true if all pages of `owner` are one whole block: it can be mapped as a huge page
    /// without a copy.
    pub fn is_contiguous(&self, owner: Owner) -> bool {
        let pieces = &self.holdings[owner.0 as usize].pieces;
        pieces.len() == 1 && pieces[0].1 == BLOCK_PAGES
    }

    /// Keeps a whole block for `owner`, from which its next pages come. Returns `false` if none is
    /// free.
    pub fn reserve(&mut self, owner: Owner, prefer_zeroed: bool) -> bool {
        let Some(at) = self.whole(prefer_zeroed) else { return false };
        self.break_reservation(owner);
        self.unlist(at);
        self.blocks[at as usize].reserved = Some(owner);
        self.free -= u64::from(BLOCK_PAGES);
        self.reserved_free += u64::from(BLOCK_PAGES);
        self.holdings[owner.0 as usize].reserved = Some(at);
        self.reservations.insert(at, owner);
        true
    }

    /// Returns true if a block is reserved for `owner`.
    pub fn is_reserved(&self, owner: Owner) -> bool {
        self.holdings[owner.0 as usize].reserved.is_some()
    }

    /// Ends a reservation if all its pages are taken.
    fn settle_reservation(&mut self, owner: Owner, at: u32) {
        if self.blocks[at as usize].free() == 0 {
            self.reservations.remove(&at);
            self.blocks[at as usize].reserved = None;
            self.holdings[owner.0 as usize].reserved = None;
            self.list(at);
        }
    }

    /// Returns the owners of reservations that are not fully populated.
    pub fn reservations(&self) -> impl Iterator<Item = Owner> {
        self.reservations.values().copied()
    }

    /// Returns the unpopulated part of the owner's reservation to free memory.
    pub fn break_reservation(&mut self, owner: Owner) {
        let Some(at) = self.holdings[owner.0 as usize].reserved.take() else { return };
        self.reservations.remove(&at);
        let block = &mut self.blocks[at as usize];
        block.reserved = None;
        let unused = u64::from(block.free());
        self.reserved_free -= unused;
        self.free += unused;
        self.list(at);
    }

    /// Drops one block's page cache. Returns `false` if there is none.
    fn drop_cache(&mut self) -> bool {
        let Some(&at) = self.cached.first() else { return false };
        self.unlist(at);
        let block = &mut self.blocks[at as usize];
        let pages = std::mem::take(&mut block.cache);
        block.give_back(pages, &mut self.random);
        self.free += u64::from(pages);
        self.cache -= u64::from(pages);
        self.list(at);
        true
    }

    /// Releases `pages` of the owner's base pages, spread over all its pages.
    pub fn give_back(&mut self, owner: Owner, pages: u16) {
        self.break_reservation(owner);
        let mut left = pages;
        while left > 0 {
            let Some(&(at, held)) = self.holdings[owner.0 as usize].pieces.last() else { break };
            let part = left.min(held);
            let pieces = &mut self.holdings[owner.0 as usize].pieces;
            if part == held {
                pieces.pop();
            } else if let Some(last) = pieces.last_mut() {
                last.1 -= part;
            }
            self.release(owner, at, part);
            left -= part;
        }
    }

    fn release_pieces(&mut self, owner: Owner) {
        for (at, pages) in std::mem::take(&mut self.holdings[owner.0 as usize].pieces) {
            self.release(owner, at, pages);
        }
    }

    fn release(&mut self, owner: Owner, at: u32, pages: u16) {
        self.unlist(at);
        let block = &mut self.blocks[at as usize];
        block.remove(owner, pages);
        block.give_back(pages, &mut self.random);
        if block.reserved.is_some() {
            self.reserved_free += u64::from(pages);
        } else {
            self.free += u64::from(pages);
        }
        self.list(at);
    }

    /// Empties the block that costs least to empty, by moving its pages into other blocks. Returns
    /// the number of moved pages; `None` if no block can be emptied.
    pub fn compact(&mut self) -> Option<u16> {
        // A block that is fuller than this is not worth it: the kernel's free scanner would not
        // find room sooner.
        let (used, at) = self.movable.first().copied()?;
        let room = self.free
            - u64::from(self.blocks[at as usize].free())
            - self.huge_free() * u64::from(BLOCK_PAGES)
            - self.unmovable_free;
        if u64::from(used) > room {
            return None;
        }
        self.unlist(at);
        let (owners, cache) = self.blocks[at as usize].empty();
        self.free -= u64::from(BLOCK_PAGES - used);
        let mut moved = 0;
        for (owner, pages) in owners {
            self.holdings[owner.0 as usize].pieces.retain(|&(block, _)| block != at);
            let mut taken = Taken::default();
            while taken.pages < pages {
                let to = self.best_partial().expect("room was counted before");
                self.take_from(owner, to, pages - taken.pages, &mut taken);
            }
            moved += pages;
        }
        self.cache -= u64::from(cache);
        let mut left = cache;
        while left > 0 {
            let to = self.best_partial().expect("room was counted before");
            let part = left.min(self.blocks[to as usize].free());
            self.fill(to, part, Filler::Cache);
            left -= part;
        }
        self.free += u64::from(BLOCK_PAGES);
        self.blocks[at as usize].zeroed = false;
        self.list(at);
        Some(moved + cache)
    }

    /// Fills up to `blocks` whole free blocks with zeros. Returns their number.
    pub fn prezero(&mut self, blocks: u64) -> u64 {
        let mut done = 0;
        while done < blocks {
            let Some(at) = self.dirty.pop_first() else { break };
            self.blocks[at as usize].zeroed = true;
            self.clean.insert(at);
            done += 1;
        }
        done
    }

    fn unlist(&mut self, at: u32) {
        let block = &self.blocks[at as usize];
        if block.reserved.is_none() {
            match block.largest_free_order() {
                Some(HUGE_ORDER) => {
                    self.dirty.remove(&at);
                    self.clean.remove(&at);
                }
                Some(order) if block.unmovable > 0 => {
                    self.unmovable[order].remove(&at);
                    self.unmovable_free -= u64::from(block.free());
                }
                Some(order) => {
                    self.partial[order].remove(&at);
                }
                None => {}
            }
        }
        self.movable.remove(&(block.used(), at));
        self.cached.remove(&at);
    }

    fn list(&mut self, at: u32) {
        let block = &self.blocks[at as usize];
        let order = block.largest_free_order();
        if block.reserved.is_none() {
            match order {
                Some(HUGE_ORDER) if block.zeroed => {
                    self.clean.insert(at);
                }
                Some(HUGE_ORDER) => {
                    self.dirty.insert(at);
                }
                Some(order) if block.unmovable > 0 => {
                    self.unmovable[order].insert(at);
                    self.unmovable_free += u64::from(block.free());
                }
                Some(order) => {
                    self.partial[order].insert(at);
                }
                None => {}
            }
            // A full block is no gain: the same number of pages would have to be free elsewhere.
            if block.unmovable == 0 && order.is_some_and(|order| order < HUGE_ORDER) && !block.is_huge() {
                self.movable.insert((block.used(), at));
            }
        }
        if block.cache > 0 {
            self.cached.insert(at);
        }
    }

    /// Returns true if every page is counted exactly once (free, held or filler), and each is in
    /// the right list.
    pub fn is_conserved(&self) -> bool {
        let free: u64 = self.blocks.iter().map(|block| u64::from(block.free())).sum();
        let reserved: u64 = self
            .blocks
            .iter()
            .filter(|block| block.reserved.is_some())
            .map(|block| u64::from(block.free()))
            .sum();
        let held: u64 = (0..self.holdings.len() as u32).map(|owner| self.held(Owner(owner))).sum();
        let cache: u64 = self.blocks.iter().map(|block| u64::from(block.cache)).sum();
        let filler: u64 =
            self.blocks.iter().map(|block| u64::from(block.unmovable) + u64::from(block.cache)).sum();
        free == self.free_pages()
            && reserved == self.reserved_free
            && cache == self.cache
            && free + held + filler == self.total_pages()
            && self.blocks.iter().all(Block::is_consistent)
            && self.huge_free()
                == self
                    .blocks
                    .iter()
                    .filter(|block| {
                        block.reserved.is_none() && block.largest_free_order() == Some(HUGE_ORDER)
                    })
                    .count() as u64
    }
}

#[cfg(test)]
mod tests;
