//! Huge pages: one, a number of them, and a run of them.

use crate::{Bytes, HUGE_2M, VirtRange};
use std::fmt;

/// Aligned addresses of one huge page in a process, with or without a huge page behind them.
///
/// ```
/// use megapage_units::{HugePage, VirtRange};
///
/// let page = HugePage::containing(0x7f00_0030_1000);
/// assert_eq!(page.start(), 0x7f00_0020_0000);
/// assert_eq!(Some(page.range()), VirtRange::new(0x7f00_0020_0000, 0x7f00_0040_0000));
/// assert_eq!(HugePage::at(0x7f00_0020_1000), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HugePage(u64);

impl HugePage {
    /// Size in bytes: 2 MiB. A kernel with another size is refused at the start.
    pub const SIZE: u64 = HUGE_2M as u64;

    /// Returns the page that begins at `address`; `None` if none does.
    pub const fn at(address: u64) -> Option<HugePage> {
        if address.is_multiple_of(Self::SIZE) { Some(HugePage(address)) } else { None }
    }

    /// Returns the page around `address`.
    pub const fn containing(address: u64) -> HugePage {
        HugePage(address & !(Self::SIZE - 1))
    }

    /// Returns the page with this many pages before it, at most the last one.
    pub const fn nth(number: u64) -> HugePage {
        HugePage::containing(number.saturating_mul(Self::SIZE))
    }

    /// Returns the number of pages before it.
    pub const fn number(self) -> u64 {
        self.0 / Self::SIZE
    }

    /// Returns the first address.
    pub const fn start(self) -> u64 {
        self.0
    }

    /// Returns the first address after the page. Saturates: no process has the last page of a
    /// 64-bit address space.
    pub const fn end(self) -> u64 {
        self.0.saturating_add(Self::SIZE)
    }

    /// Returns the addresses.
    pub const fn range(self) -> VirtRange {
        VirtRange { start: self.0, end: self.end() }
    }

    /// Returns the page `count` pages further, at most the last one.
    pub const fn offset(self, count: u64) -> HugePage {
        HugePage::nth(self.number().saturating_add(count))
    }
}

/// Writes the first address in hexadecimal.
impl fmt::LowerHex for HugePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl VirtRange {
    /// Returns the huge pages that the range touches, each with its part of the range.
    pub fn by_huge_page(self) -> impl Iterator<Item = (HugePage, VirtRange)> {
        let numbers = self.start / HugePage::SIZE..self.end.div_ceil(HugePage::SIZE);
        numbers.map(HugePage::nth).filter_map(move |page| Some((page, page.range().intersection(self)?)))
    }
}

/// A number of huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HugeCount(pub u64);

impl HugeCount {
    /// Returns the size of all of them, saturating.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0.saturating_mul(HugePage::SIZE))
    }
}

/// A run of adjacent huge pages, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HugeRange(VirtRange);

impl HugeRange {
    /// Returns the whole huge pages inside a range; `None` if there is none.
    pub const fn within(range: VirtRange) -> Option<HugeRange> {
        match range.aligned_interior(HugePage::SIZE) {
            Some(range) => Some(HugeRange(range)),
            None => None,
        }
    }

    /// Returns the addresses.
    pub const fn range(self) -> VirtRange {
        self.0
    }

    /// Returns the pages, ascending.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = HugePage> + Clone {
        (self.0.start / HugePage::SIZE..self.0.end / HugePage::SIZE).map(HugePage::nth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_aligned_and_the_last_one_has_no_next() {
        assert_eq!(HugePage::at(0x40_0000), Some(HugePage::nth(2)));
        assert_eq!(HugePage::at(0x40_1000), None);
        let last = HugePage::containing(u64::MAX);
        assert_eq!((last.offset(1), last.offset(u64::MAX)), (last, last));
        assert_eq!(HugePage::at(last.start()), Some(last));
        assert_eq!((last.end(), HugePage::nth(2).end()), (u64::MAX, 0x60_0000));
        assert_eq!(format!("{:x}", HugePage::containing(0x3f_ffff)), "200000");
    }

    #[test]
    fn pieces_end_where_huge_pages_do() {
        const SIZE: u64 = HugePage::SIZE;
        let whole = VirtRange::new(SIZE - 0x1000, 2 * SIZE + 0x3000).unwrap();
        let cut: Vec<_> =
            whole.by_huge_page().map(|(page, piece)| (page.number(), piece.start(), piece.end())).collect();
        let expected = [(0, SIZE - 0x1000, SIZE), (1, SIZE, 2 * SIZE), (2, 2 * SIZE, 2 * SIZE + 0x3000)];
        assert_eq!(cut, expected);
        assert_eq!(VirtRange::new(SIZE, SIZE).unwrap().by_huge_page().count(), 0);
    }

    #[test]
    fn a_run_holds_the_whole_pages_of_a_range() {
        let run = HugeRange::within(VirtRange::new(0x1000, 0x60_0fff).unwrap()).unwrap();
        assert_eq!(run.range(), VirtRange::new(0x20_0000, 0x60_0000).unwrap());
        assert_eq!(run.pages().collect::<Vec<_>>(), [HugePage::nth(1), HugePage::nth(2)]);
        assert_eq!(HugeRange::within(VirtRange::new(0x1000, 0x3f_ffff).unwrap()), None);
    }
}
