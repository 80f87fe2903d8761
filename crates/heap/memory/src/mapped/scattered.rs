//! Address hints that scatter a heap. V8 names a random address for each of its pages of 256 KiB.
//! So no 2 MiB of its heap lie together, and each page has a separate page table.
//!
//! A hint is only a request (mmap(2)). It is skipped if it is one of many of its kind: a small
//! reservation without access, far from the reservations before it and beside no mapping. The
//! kernel then places the reservations side by side, as it does without hints. A program that means
//! an address asks for one near another, or asks once. A program that needs an address says
//! MAP_FIXED.

use super::SMALLEST;
use crate::prim::Prim;
use megapage_units::{BASE_PAGE, HUGE_2M};

/// Reservations that come first, and keep the addresses that they name.
const FIRST: u32 = 16;
/// Hints that are stored.
const HINTS: usize = 8;
/// Bytes between hints from which on they are scattered: no reservation of this size fills the room
/// between them.
const FAR: usize = 64 << 20;

/// The latest hints.
#[derive(Debug)]
pub(super) struct Scattered {
    hints: [usize; HINTS],
    /// Hints in a row that were far from all stored ones.
    count: u32,
}

impl Scattered {
    pub(super) const fn new() -> Scattered {
        Scattered { hints: [0; HINTS], count: 0 }
    }

    /// Returns true if the hint of a reservation of `len` bytes may be skipped.
    pub(super) fn may_pass_over(&mut self, calls: &impl Prim, hint: usize, len: usize) -> bool {
        if !(SMALLEST..HUGE_2M).contains(&len) || !hint.is_multiple_of(SMALLEST) {
            return false;
        }
        let (Some(before), Some(end)) =
            (hint.checked_sub(BASE_PAGE), hint.checked_add(len.next_multiple_of(BASE_PAGE)))
        else {
            return false;
        };
        let far = self.hints.iter().all(|other| hint.abs_diff(*other) >= FAR);
        self.hints.rotate_right(1);
        self.hints[0] = hint;
        self.count = if far { self.count.saturating_add(1) } else { 0 };
        self.count > FIRST
            && !calls.is_confined()
            // `None` stands for unmapped memory.
            && calls.resident(before, BASE_PAGE).is_none()
            && calls.resident(end, BASE_PAGE).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fake;
    use super::*;

    const LEN: usize = 508 << 10;

    fn skipped(scattered: &mut Scattered, calls: &Fake, hints: impl Iterator<Item = usize>) -> usize {
        hints.filter(|&hint| scattered.may_pass_over(calls, hint, LEN)).count()
    }

    #[test]
    fn hints_in_many_places_are_skipped_but_for_the_first() {
        let (calls, mut scattered) = (Fake::with_nothing_mapped(), Scattered::new());
        let random = |at: usize| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x3fff_ffff_ffff & !(SMALLEST - 1);
        assert_eq!(skipped(&mut scattered, &calls, (1..1000).map(random)), 999 - FIRST as usize);
        for len in [SMALLEST - 1, HUGE_2M, 1 << 30] {
            assert!(!scattered.may_pass_over(&calls, random(2000), len), "{len}");
        }
        assert!(!scattered.may_pass_over(&calls, random(2001) + BASE_PAGE, LEN), "no place of a heap's page");
        // Beside a mapping a hint has a meaning.
        assert_eq!(skipped(&mut scattered, &Fake::new(0), (3000..3100).map(random)), 0);
        calls.confine();
        assert_eq!(skipped(&mut scattered, &calls, (4000..4100).map(random)), 0);
    }

    #[test]
    fn hints_that_follow_each_other_are_kept() {
        let (calls, mut scattered) = (Fake::with_nothing_mapped(), Scattered::new());
        let ascending = |at: usize| (1 << 40) + at * (1 << 20);
        assert_eq!(skipped(&mut scattered, &calls, (0..1000).map(ascending)), 0);
        // Several places in turn, as of heaps that are separated by size.
        let turns = |at: usize| ((at % 4 + 1) << 40) + at * SMALLEST;
        assert_eq!(skipped(&mut scattered, &calls, (0..1000).map(turns)), 0);
    }
}
