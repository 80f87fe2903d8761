//! Ranges of virtual addresses.

use crate::Bytes;
use std::fmt;

/// A half-open range of virtual addresses `[start, end)` of one process. `start <= end`.
///
/// ```
/// use megapage_units::{Bytes, HUGE_2M, VirtRange};
///
/// let heap = VirtRange::new(0x7f00_0010_0000, 0x7f00_0070_0000).expect("in order");
/// let huge = heap.aligned_interior(HUGE_2M as u64).expect("long enough");
/// assert_eq!(huge.to_string(), "7f0000200000-7f0000600000");
/// assert_eq!((heap.len(), huge.len()), (Bytes::mib(6), Bytes::mib(4)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl VirtRange {
    /// Returns the range `[start, end)`; `None` if `end < start`.
    pub const fn new(start: u64, end: u64) -> Option<VirtRange> {
        if start <= end { Some(VirtRange { start, end }) } else { None }
    }

    /// Returns the first address.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the first address after the range.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns the length.
    pub const fn len(self) -> Bytes {
        Bytes(self.end - self.start)
    }

    /// Returns true if the range holds no address.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns the largest range inside this one whose ends are multiples of `alignment` (a power
    /// of two, in bytes). `None` if there is none of at least `alignment` bytes.
    pub const fn aligned_interior(self, alignment: u64) -> Option<VirtRange> {
        let Some(start) = self.start.checked_next_multiple_of(alignment) else {
            return None;
        };
        let end = self.end & !(alignment - 1);
        if start < end { Some(VirtRange { start, end }) } else { None }
    }

    /// Returns ascending ranges with adjacent ones joined.
    pub fn joined(ranges: impl IntoIterator<Item = VirtRange>) -> Vec<VirtRange> {
        let mut joined: Vec<VirtRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns the part that both ranges hold; `None` if they do not overlap.
    pub fn intersection(self, other: VirtRange) -> Option<VirtRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(VirtRange { start, end })
    }
}

/// Writes the range as in `/proc/PID/maps`: `7f0000000000-7f0000200000`.
impl fmt::Display for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interior_is_aligned_and_inside() {
        let range = VirtRange::new(0x1000, 0x60_0000).unwrap();
        assert_eq!(range.aligned_interior(0x20_0000), VirtRange::new(0x20_0000, 0x60_0000));
        assert_eq!(VirtRange::new(0x1000, 0x20_1000).unwrap().aligned_interior(0x20_0000), None);
        assert_eq!(VirtRange::new(u64::MAX - 5, u64::MAX).unwrap().aligned_interior(0x20_0000), None);
        assert_eq!(VirtRange::new(2, 1), None);
    }

    #[test]
    fn adjacent_ranges_are_joined() {
        let range = |start, end| VirtRange::new(start, end).unwrap();
        let joined = VirtRange::joined([range(1, 2), range(2, 4), range(5, 6)]);
        assert_eq!(joined, [range(1, 4), range(5, 6)]);
    }
}
