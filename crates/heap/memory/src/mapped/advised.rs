//! Table of advised memory, of bounded size: it is looked at inside mmap(2), where nothing can be
//! allocated.

/// Separate ranges of advised memory that are stored; no further ones are made.
const MOST_ADVISED: usize = 1024;
/// Places among these that are reserved for ranges that munmap(2) parts in two.
const KEPT_FREE: usize = 64;

/// Address range: the first address, and the first one after it.
pub(super) type Range = (usize, usize);

/// Advised memory, as ascending ranges that do not touch each other.
#[derive(Debug)]
pub(super) struct Advised {
    ranges: [Range; MOST_ADVISED],
    count: usize,
}

impl Advised {
    pub(super) const fn new() -> Advised {
        Advised { ranges: [(0, 0); MOST_ADVISED], count: 0 }
    }

    /// Returns the indices of the ranges that overlap `(start, end)` or touch it: the first, and
    /// the end.
    fn neighbours(&self, (start, end): Range) -> (usize, usize) {
        let ranges = &self.ranges[..self.count];
        (ranges.partition_point(|range| range.1 < start), ranges.partition_point(|range| range.0 <= end))
    }

    pub(super) fn overlaps(&self, (start, end): Range) -> bool {
        let (first, last) = self.neighbours((start, end));
        self.ranges[first..last].iter().any(|range| range.0 < end && start < range.1)
    }

    /// Returns true if there is room for a further range.
    pub(super) fn has_room(&self) -> bool {
        self.count < MOST_ADVISED - KEPT_FREE
    }

    /// Adds a range. Does not store it if there is no room.
    pub(super) fn insert(&mut self, range: Range) {
        let (first, last) = self.neighbours(range);
        if first == last {
            return self.insert_at(first, range);
        }
        let (before, after) = (self.ranges[first], self.ranges[last - 1]);
        self.ranges[first] = (before.0.min(range.0), after.1.max(range.1));
        self.ranges.copy_within(last..self.count, first + 1);
        self.count -= last - first - 1;
    }

    /// Removes a range. Returns true if the table held any part of it.
    pub(super) fn remove(&mut self, (start, end): Range) -> bool {
        let (first, last) = self.neighbours((start, end));
        let found = start < end && self.overlaps((start, end));
        if found {
            let (before, after) = (self.ranges[first].0, self.ranges[last - 1].1);
            self.ranges.copy_within(last..self.count, first);
            self.count -= last - first;
            let pieces = [(before, start), (end, after)].into_iter().filter(|piece| piece.0 < piece.1);
            pieces.enumerate().for_each(|(at, piece)| self.insert_at(first + at, piece));
        }
        found
    }

    /// Inserts a range at index `at`. The range must not touch another, and the order must hold.
    fn insert_at(&mut self, at: usize, range: Range) {
        if self.count < MOST_ADVISED {
            self.ranges.copy_within(at..self.count, at + 1);
            self.ranges[at] = range;
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advised_ranges_stay_in_order_and_bounded() {
        let mut advised = Advised::new();
        for at in [5, 1, 9, 3] {
            advised.insert((at * 10, at * 10 + 5));
        }
        assert_eq!(advised.ranges[..advised.count], [(10, 15), (30, 35), (50, 55), (90, 95)]);
        assert!(advised.overlaps((34, 40)) && advised.overlaps((20, 31)) && !advised.overlaps((15, 30)));
        advised.insert((15, 50));
        assert_eq!(advised.ranges[..advised.count], [(10, 55), (90, 95)]);
        advised.insert((20, 21));
        assert_eq!(advised.count, 2);
        advised.remove((20, 30));
        assert_eq!(advised.ranges[..advised.count], [(10, 20), (30, 55), (90, 95)]);
        advised.remove((5, 92));
        assert_eq!(advised.ranges[..advised.count], [(92, 95)]);
        advised.remove((93, 94));
        assert_eq!(advised.ranges[..advised.count], [(92, 93), (94, 95)]);
        advised.remove((93, 94));
        advised.remove((95, 100));
        assert_eq!(advised.ranges[..advised.count], [(92, 93), (94, 95)]);
        (0..2000).for_each(|at| advised.insert((1000 + at * 10, 1001 + at * 10)));
        assert_eq!(advised.count, MOST_ADVISED);
        assert!(!advised.has_room());
    }
}
