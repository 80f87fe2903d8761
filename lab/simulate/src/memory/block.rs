//! One block of 512 base pages.

use super::{BLOCK_PAGES, HUGE_ORDER, Owner};
use megapage_plan::random::Random;

/// A block: its taken pages and their owners.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// One bit for each page, which is set if it is taken.
    taken: [u64; 8],
    /// Owners, and the number of pages that each has here.
    owners: Vec<(Owner, u16)>,
    /// Pages of the kernel's own.
    pub unmovable: u16,
    /// Pages of page cache.
    pub cache: u16,
    /// True if all its free pages hold zeros.
    pub zeroed: bool,
    /// The only owner that may take from it.
    pub reserved: Option<Owner>,
}

impl Block {
    /// Returns the number of taken pages.
    pub fn used(&self) -> u16 {
        self.taken.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Returns the number of free pages.
    pub fn free(&self) -> u16 {
        BLOCK_PAGES - self.used()
    }

    /// Returns true if one owner holds all of it.
    pub fn is_huge(&self) -> bool {
        self.owners.first().is_some_and(|&(_, pages)| pages == BLOCK_PAGES)
    }

    /// Returns the largest order of which an aligned run is free; `None` if no page is free.
    pub fn largest_free_order(&self) -> Option<usize> {
        // Orders 6 to 9 are runs of whole words, which are free if all words are zero.
        for order in (6..=HUGE_ORDER).rev() {
            let words = 1 << (order - 6);
            if self.taken.chunks(words).any(|run| run.iter().all(|&word| word == 0)) {
                return Some(order);
            }
        }
        let mut largest = None;
        for word in self.taken {
            // Bit n of `runs`: the aligned run of 2^order pages from n on is free.
            let mut runs = !word;
            for (order, aligned) in ALIGNED.into_iter().enumerate() {
                if runs == 0 {
                    break;
                }
                largest = largest.max(Some(order));
                runs &= runs >> (1 << order);
                runs &= aligned;
            }
        }
        largest
    }

    /// Takes up to `pages`, the smallest free runs first: words that are taken in part before whole
    /// ones.
    pub fn take(&mut self, pages: u16) -> u16 {
        let mut left = pages.min(self.free());
        let got = left;
        for whole in [false, true] {
            for word in &mut self.taken {
                if left == 0 {
                    return got;
                }
                if (*word == 0) != whole {
                    continue;
                }
                while left > 0 && *word != u64::MAX {
                    if left >= 64 && *word == 0 {
                        *word = u64::MAX;
                        left -= 64;
                    } else {
                        *word |= 1 << word.trailing_ones();
                        left -= 1;
                    }
                }
            }
        }
        got
    }

    /// Frees `pages` of the taken ones, chosen at random: programs free in no order that the
    /// allocator knows.
    pub fn give_back(&mut self, pages: u16, random: &mut Random) {
        // Its former owner may have written to it.
        if pages > 0 {
            self.zeroed = false;
        }
        let used = self.used();
        if pages >= used {
            self.taken = [0; 8];
            return;
        }
        for left in (0..pages).rev() {
            let among = used - (pages - 1 - left);
            let mut nth = random.below(u32::from(among));
            for word in &mut self.taken {
                let here = word.count_ones();
                if nth < here {
                    *word &= !(1 << nth_set_bit(*word, nth));
                    break;
                }
                nth -= here;
            }
        }
    }

    /// Notes that `owner` has `pages` more here.
    pub fn add(&mut self, owner: Owner, pages: u16) {
        if pages == 0 {
            return;
        }
        match self.owners.iter_mut().find(|(other, _)| *other == owner) {
            Some((_, held)) => *held += pages,
            None => self.owners.push((owner, pages)),
        }
    }

    /// Notes that `owner` has `pages` fewer here.
    pub fn remove(&mut self, owner: Owner, pages: u16) {
        if let Some((_, held)) = self.owners.iter_mut().find(|(other, _)| *other == owner) {
            *held = held.saturating_sub(pages);
        }
        self.owners.retain(|&(_, held)| held > 0);
    }

    /// Removes all contents: the owners with their pages, and the page cache.
    pub fn empty(&mut self) -> (Vec<(Owner, u16)>, u16) {
        self.taken = [0; 8];
        (std::mem::take(&mut self.owners), std::mem::take(&mut self.cache))
    }

    /// Returns true if the taken pages are those of the owners, the kernel and the page cache.
    pub fn is_consistent(&self) -> bool {
        let held: u16 = self.owners.iter().map(|&(_, pages)| pages).sum();
        held + self.unmovable + self.cache == self.used()
    }
}

/// The bits at which the next larger aligned run may start, for each order below 6.
const ALIGNED: [u64; 6] = [
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    0x0000_0000_0000_0001,
];

/// Returns the position of the `nth` (from 0) set bit of `word`, which has more than `nth`.
fn nth_set_bit(word: u64, nth: u32) -> u32 {
    let mut left = word;
    for _ in 0..nth {
        left &= left - 1;
    }
    left.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(taken: &[usize]) -> Block {
        let mut block = Block::default();
        for page in taken {
            block.taken[page / 64] |= 1 << (page % 64);
        }
        block
    }

    /// Returns the same as a buddy allocator sees it, page by page.
    fn naive(block: &Block) -> Option<usize> {
        let free = |page: usize| block.taken[page / 64] >> (page % 64) & 1 == 0;
        (0..=HUGE_ORDER)
            .rev()
            .find(|&order| (0..512 >> order).any(|run| (run << order..(run + 1) << order).all(free)))
    }

    #[test]
    fn the_largest_order_is_a_buddy_allocators() {
        assert_eq!(with(&[]).largest_free_order(), Some(9));
        assert_eq!(with(&[511]).largest_free_order(), Some(8));
        assert_eq!(with(&[0, 256]).largest_free_order(), Some(7));
        let mut random = Random::new(1);
        for count in [1, 3, 9, 40, 130, 300, 450, 500, 511] {
            let mut block = Block::default();
            block.take(512);
            block.give_back(512 - count, &mut random);
            assert_eq!(block.used(), count);
            assert_eq!(block.largest_free_order(), naive(&block), "{count} taken");
        }
        let mut full = Block::default();
        assert_eq!(full.take(600), 512);
        assert_eq!(full.largest_free_order(), None);
    }

    #[test]
    fn broken_words_are_filled_before_whole_ones() {
        let mut block = with(&[3, 130]);
        assert_eq!(block.take(126), 126);
        assert_eq!(block.largest_free_order(), Some(8), "words 4 to 7 are whole");
        assert_eq!(block.taken[1], 0);
    }
}
