//! HawkEye's access_map: the regions of one process in buckets by access coverage. Each bucket is
//! an ordered list.
//!
//! Source: Panwar, Bansal, Gopinath, "HawkEye: Efficient Fine-grained OS Support for Huge Pages"
//! (ASPLOS 2019); the released kernel's mm/ohp.c.

use megapage_snapshot::PAGES;
use megapage_units::HugePage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Sorting of coverage into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// Ten of 50 base pages each: 0-49, 50-99, ... 450-512 (the paper).
    Linear,
    /// Twelve, by the binary logarithm, rounded up (the released code).
    Logarithmic,
}

impl Buckets {
    /// Returns the number of buckets.
    pub const fn count(self) -> usize {
        match self {
            Buckets::Linear => 10,
            Buckets::Logarithmic => 12,
        }
    }

    /// Returns the bucket of a coverage, 0 to 512.
    pub fn of(self, coverage: u16) -> usize {
        let pages = usize::from(coverage.min(PAGES));
        match self {
            Buckets::Linear => (pages / 50).min(self.count() - 1),
            // The kernel's order_base_2.
            Buckets::Logarithmic => pages.max(1).next_power_of_two().ilog2() as usize,
        }
    }
}

/// Place of a region in its bucket after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The head if the region has risen to this bucket, the tail if it has dropped to it or is new.
    /// A region that was already in this bucket keeps its place (the paper).
    RisersFirst,
    /// Always the head (the released code).
    AlwaysFirst,
}

/// Rules by which a map is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Sorting into buckets.
    pub buckets: Buckets,
    /// Place in a bucket.
    pub placement: Placement,
    /// Weight of the average so far, in tenths; a new sample has the rest.
    pub memory: u16,
    /// True if the average of a new region starts at zero, and not at its first sample.
    pub from_zero: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    average: u16,
    sampled: Duration,
    bucket: usize,
    /// Place in the bucket, the lowest first; `None` if it was taken out.
    place: Option<i64>,
}

/// Regions of one process, by their first address.
#[derive(Clone, Debug)]
pub(crate) struct AccessMap {
    rules: Rules,
    entries: BTreeMap<HugePage, Entry>,
    buckets: Vec<BTreeMap<i64, HugePage>>,
    /// Lowest and highest place given so far.
    places: (i64, i64),
}

impl AccessMap {
    pub fn new(rules: Rules) -> AccessMap {
        AccessMap {
            rules,
            entries: BTreeMap::new(),
            buckets: vec![BTreeMap::new(); rules.buckets.count()],
            places: (0, 0),
        }
    }

    /// Takes in a sample of a region, unless it was taken in before.
    pub fn update(&mut self, region: HugePage, coverage: u16, sampled: Duration) {
        let coverage = coverage.min(PAGES);
        let old = self.entries.get(&region).copied();
        if old.is_some_and(|entry| sampled <= entry.sampled) {
            return;
        }
        let before = match old {
            Some(entry) => entry.average,
            None if self.rules.from_zero => 0,
            None => coverage,
        };
        let memory = self.rules.memory.min(10);
        let average = (memory * before + (10 - memory) * coverage) / 10;
        let bucket = self.rules.buckets.of(average);
        let place = match (self.rules.placement, old) {
            (Placement::RisersFirst, Some(Entry { bucket: before, place: Some(place), .. }))
                if bucket == before =>
            {
                place
            }
            (Placement::RisersFirst, Some(entry)) if bucket > entry.bucket => self.head(),
            (Placement::RisersFirst, _) => self.tail(),
            (Placement::AlwaysFirst, _) => self.head(),
        };
        self.unlist(region);
        self.buckets[bucket].insert(place, region);
        self.entries.insert(region, Entry { average, sampled, bucket, place: Some(place) });
    }

    /// Forgets the regions for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(HugePage) -> bool) {
        let buckets = &mut self.buckets;
        self.entries.retain(|region, entry| {
            let kept = keep(*region);
            if let (false, Some(place)) = (kept, entry.place) {
                buckets[entry.bucket].remove(&place);
            }
            kept
        });
    }

    /// Returns the highest bucket that holds a region.
    pub fn top(&self) -> Option<usize> {
        self.buckets.iter().rposition(|bucket| !bucket.is_empty())
    }

    /// Takes out the first region of the highest bucket. The next sample puts it back.
    pub fn take(&mut self) -> Option<HugePage> {
        let top = self.top()?;
        let (_, region) = self.buckets[top].pop_first()?;
        if let Some(entry) = self.entries.get_mut(&region) {
            entry.place = None;
        }
        Some(region)
    }

    /// Puts back a region that was taken out, before all others of its bucket.
    pub fn put_back(&mut self, region: HugePage) {
        let place = self.head();
        if let Some(entry) = self.entries.get_mut(&region)
            && entry.place.is_none()
        {
            entry.place = Some(place);
            self.buckets[entry.bucket].insert(place, region);
        }
    }

    /// Moves a region that failed to the end of the lowest bucket.
    pub fn put_last(&mut self, region: HugePage) {
        if !self.entries.contains_key(&region) {
            return;
        }
        self.unlist(region);
        let place = self.tail();
        self.buckets[0].insert(place, region);
        if let Some(entry) = self.entries.get_mut(&region) {
            (entry.bucket, entry.place) = (0, Some(place));
        }
    }

    /// Returns the number of regions waiting in bucket `lowest` or higher.
    pub fn waiting(&self, lowest: usize) -> usize {
        self.buckets.iter().skip(lowest).map(BTreeMap::len).sum()
    }

    /// Returns the number of tracked regions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn unlist(&mut self, region: HugePage) {
        if let Some(Entry { bucket, place: Some(place), .. }) = self.entries.get(&region) {
            self.buckets[*bucket].remove(place);
        }
    }

    fn head(&mut self) -> i64 {
        self.places.0 -= 1;
        self.places.0
    }

    fn tail(&mut self) -> i64 {
        self.places.1 += 1;
        self.places.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Rules =
        Rules { buckets: Buckets::Linear, placement: Placement::RisersFirst, memory: 0, from_zero: false };

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn drain(map: &mut AccessMap) -> Vec<u64> {
        std::iter::from_fn(|| map.take()).map(HugePage::number).collect()
    }

    #[test]
    fn buckets_are_those_of_the_paper_and_of_the_code() {
        for (coverage, linear, logarithmic) in
            [(0, 0, 0), (1, 0, 0), (2, 0, 1), (49, 0, 6), (50, 1, 6), (450, 9, 9), (499, 9, 9), (512, 9, 9)]
        {
            assert_eq!(Buckets::Linear.of(coverage), linear, "{coverage}");
            assert_eq!(Buckets::Logarithmic.of(coverage), logarithmic, "{coverage}");
        }
    }

    #[test]
    fn risers_come_first_and_droppers_last() {
        let mut map = AccessMap::new(PAPER);
        for (region, coverage) in [(1, 120), (2, 130), (3, 30), (4, 400)] {
            map.update(HugePage::nth(region), coverage, second(1));
        }
        map.update(HugePage::nth(3), 110, second(2));
        map.update(HugePage::nth(4), 140, second(2));
        map.update(HugePage::nth(1), 149, second(2));
        assert_eq!(drain(&mut map), [3, 1, 2, 4]);
    }

    #[test]
    fn the_code_always_puts_to_the_head() {
        let mut map = AccessMap::new(Rules { placement: Placement::AlwaysFirst, ..PAPER });
        for region in [1, 2, 3] {
            map.update(HugePage::nth(region), 100, second(1));
        }
        map.update(HugePage::nth(1), 100, second(2));
        assert_eq!(drain(&mut map), [1, 3, 2]);
    }

    #[test]
    fn averages_move_as_the_rules_say() {
        let mut map = AccessMap::new(Rules { memory: 6, from_zero: true, ..PAPER });
        map.update(HugePage::nth(1), 500, second(1));
        assert_eq!(map.top(), Some(200 / 50));
        map.update(HugePage::nth(1), 500, second(2));
        assert_eq!(map.top(), Some(320 / 50));
        // The same sample again changes nothing.
        map.update(HugePage::nth(1), 0, second(2));
        assert_eq!(map.top(), Some(320 / 50));
        map.update(HugePage::nth(1), 0, second(3));
        assert_eq!(map.top(), Some(192 / 50));
    }

    #[test]
    fn what_is_taken_out_comes_back_with_the_next_sample_and_what_failed_comes_last() {
        let mut map = AccessMap::new(PAPER);
        map.update(HugePage::nth(1), 500, second(1));
        map.update(HugePage::nth(2), 10, second(1));
        assert_eq!(map.take(), Some(HugePage::nth(1)));
        assert_eq!(map.waiting(0), 1);
        map.put_last(HugePage::nth(1));
        assert_eq!(drain(&mut map), [2, 1]);
        map.update(HugePage::nth(1), 500, second(2));
        assert_eq!((map.top(), map.len()), (Some(9), 2));
        map.retain(|region| region != HugePage::nth(1));
        assert_eq!((map.top(), map.len()), (None, 1));
    }
}
