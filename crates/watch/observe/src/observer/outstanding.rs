//! Cleared bits whose next accesses are still to be charged.

use super::history::{accessed_entries, entries};
use super::part::{both, ones};
use crate::tracker::{PageBits, RegionBits};

/// Cleared bits of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// Pages with cleared bits; the other bits are old. `None`: all pages.
    pub(super) pages: Option<PageBits>,
    /// Number of these pages that were found accessed, and charged.
    pub(super) charged: u64,
}

impl Outstanding {
    pub(super) const WHOLE: Outstanding = Outstanding { pages: None, charged: 0 };

    /// Returns the number of the bits that are set now, and the number of all.
    pub(super) fn count(&self, read: &RegionBits) -> (u64, u64) {
        match (self.pages, read.bits) {
            (Some(pages), Some(bits)) if !read.leaf.is_huge() => {
                (ones(&both(&bits, &pages)), ones(&pages).min(u64::from(read.present)))
            }
            _ => (accessed_entries(read), entries(read)),
        }
    }

    /// Returns the state after the bits of `part` were cleared, too. `bits` are those of the region
    /// before.
    pub(super) fn cleared_again(&self, part: &PageBits, bits: Option<&PageBits>) -> Outstanding {
        let rest = match (self.pages, bits) {
            (Some(pages), _) if pages == *part => None,
            (pages, Some(bits)) => {
                let others = part.map(|word| !word);
                let kept = both(bits, &others);
                Some((pages, ones(&pages.map_or(kept, |pages| both(&kept, &pages)))))
            }
            (_, None) => None,
        };
        match rest {
            Some((pages, charged)) => Outstanding { pages, charged },
            None => Outstanding { pages: Some(*part), charged: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::part::{accessed_by_part, keep_part, part_bits};
    use megapage_snapshot::Leaf;
    use megapage_units::HugePage;

    fn read(page: HugePage, pages: std::ops::Range<u16>) -> RegionBits {
        let mut bits: PageBits = [0; 8];
        pages.clone().for_each(|at| bits[usize::from(at) / 64] |= 1 << (at % 64));
        let accessed = Some(pages.len() as u16);
        RegionBits {
            page,
            leaf: Leaf::Base,
            present: 512,
            zero_page: 0,
            swapped: 0,
            accessed,
            bits: Some(bits),
        }
    }

    #[test]
    fn of_a_part_only_its_own_bits_count() {
        let page = HugePage::nth(7);
        let part = Outstanding { pages: Some(part_bits(page)), charged: 0 };
        assert_eq!(part.count(&read(page, 0..512)), (16, 16));
        assert_eq!(part.count(&read(page, 0..0)), (0, 16));
        for (pages, all) in [(0..512, 512), (0..0, 0)] {
            let mut read = read(page, pages);
            keep_part(&mut read);
            assert_eq!(accessed_by_part(&read), Some(all));
        }
        assert_eq!(Outstanding::WHOLE.count(&read(page, 0..100)), (100, 512));
    }

    #[test]
    fn what_was_charged_is_not_charged_again_when_a_part_is_cleared() {
        let page = HugePage::nth(7);
        let bits = read(page, 0..512).bits;
        let again = Outstanding { pages: None, charged: 512 }.cleared_again(&part_bits(page), bits.as_ref());
        assert_eq!((again.pages, again.charged), (None, 512 - 16));
        // The part is accessed again: 16 new bits.
        assert_eq!(again.count(&read(page, 0..512)).0 - again.charged, 16);
        let same = Outstanding { pages: Some(part_bits(page)), charged: 16 };
        assert_eq!(same.cleared_again(&part_bits(page), bits.as_ref()).charged, 0);
    }
}
