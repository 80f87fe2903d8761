//! What a part of a region's pages says of all of them, and how often they are visited.

use super::budget::Candidate;
use crate::tracker::{PART_PAGES, PageBits, RegionBits, part};
use megapage_snapshot::{AccessClass, AccessProfile, Leaf, PAGES, Region};
use std::time::Duration;

/// Base pages in a region from which on its part is likely to hold some.
const LEAST_FOR_PART: u16 = PAGES / 4 * 3;

/// The candidates as far as a part of each stands for it. Those that are hardly populated are left out: there may be
/// nothing in their part.
pub(super) fn in_part(list: &[Candidate], regions: &[&Region]) -> Vec<Candidate> {
    let share = f32::from(PART_PAGES) / f32::from(PAGES);
    let parts = list.iter().zip(regions).filter_map(|(whole, region)| match region.leaf {
        Leaf::Base if region.present < LEAST_FOR_PART => None,
        Leaf::Base => Some(Candidate {
            entries: PART_PAGES,
            last: whole.last.map(|(accessed, when)| (accessed * share, when)),
            ..*whole
        }),
        _ => Some(*whole),
    });
    parts.collect()
}

/// The pages of a region's [`part`], as bits.
pub(super) fn part_bits(start: u64) -> PageBits {
    let mut bits: PageBits = [0; PAGES as usize / 64];
    part(start).for_each(|page| bits[usize::from(page) / 64] |= 1 << (page % 64));
    bits
}

pub(super) fn both(one: &PageBits, other: &PageBits) -> PageBits {
    std::array::from_fn(|word| one[word] & other[word])
}

pub(super) fn ones(bits: &PageBits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Leaves out the bits that were not cleared.
pub(super) fn keep_part(read: &mut RegionBits) {
    if let (Some(bits), false) = (read.bits, read.leaf.is_huge()) {
        let kept = both(&bits, &part_bits(read.start));
        read.bits = Some(kept);
        read.accessed = Some(ones(&kept) as u16);
    }
}

/// What the part of a region says of all of it: the same share of its pages was accessed.
pub(super) fn accessed_by_part(read: &RegionBits) -> Option<u16> {
    match read.leaf.is_huge() {
        true => read.accessed,
        false => read.accessed.map(|pages| (pages * (PAGES / PART_PAGES)).min(read.present)),
    }
}

/// What was accessed early in the window of a process's first sample.
#[derive(Debug)]
pub(super) struct Peek {
    /// The regions of which something was, ascending.
    touched: Vec<u64>,
    /// The processor time that the process had taken by then.
    pub(super) worked: Duration,
}

/// Of the regions that were accessed whole at the end of the window, so many must have been accessed early in it, a
/// quarter through, for the process to come back to them; who goes through memory once has reached a quarter.
const COMES_BACK: f64 = 0.9;

impl Peek {
    /// From what was read of all regions of the sample.
    pub(super) fn new(read: &[RegionBits], in_part: bool, worked: Duration) -> Peek {
        let is_touched = |bits: &&RegionBits| match bits.bits.filter(|_| in_part && !bits.leaf.is_huge()) {
            Some(all) => ones(&both(&all, &part_bits(bits.start))) > 0,
            None => bits.accessed.is_some_and(|pages| pages > 0),
        };
        let mut touched: Vec<u64> = read.iter().filter(is_touched).map(|bits| bits.start).collect();
        touched.sort_unstable();
        Peek { touched, worked }
    }

    fn has(&self, start: u64) -> bool {
        self.touched.binary_search(&start).is_ok()
    }

    /// Whether the process comes back to what it accesses, by the regions that were accessed whole (`whole`) in the end.
    pub(super) fn comes_back(&self, whole: impl Iterator<Item = u64>) -> bool {
        let (mut early, mut all) = (0u32, 0u32);
        for start in whole {
            all += 1;
            early += u32::from(self.has(start));
        }
        f64::from(early) >= COMES_BACK * f64::from(all)
    }

    /// Whether a region that was accessed whole is one that the process comes back to.
    pub(super) fn is_visited_again(&self, start: u64, comes_back: bool) -> bool {
        comes_back && self.has(start)
    }
}

/// How often a region is visited of whose `present` pages, judged by `seen` of them, `accessed` were accessed while its
/// process took `worked` of processor time: visits that come at random leave out exp(-rate) of the pages. Where all were
/// accessed, half a page of those that were looked at is taken to be left out; unless it may have been once, in the order
/// of addresses (`again` is false): then it is one visit each.
pub(super) fn rate(accessed: u16, present: u16, seen: u16, worked: Duration, again: bool) -> AccessProfile {
    let share = f64::from(accessed) / f64::from(present.max(1));
    let most = 1.0 - 0.5 / f64::from(seen.max(1));
    let each = if share > most && !again { 1.0 } else { -(1.0 - share.clamp(0.0, most)).ln() };
    let visits = f64::from(present) * each / worked.as_secs_f64().max(1e-6);
    AccessProfile { visits, class: AccessClass::Random }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::HUGE_2M;

    #[test]
    fn rates_are_told_from_what_was_not_accessed() {
        let work = Duration::from_millis(50);
        let visits = |accessed, seen| rate(accessed, 512, seen, work, true).visits;
        assert_eq!(visits(0, 512), 0.0);
        // Half of the pages: ln 2 visits to each.
        let half = 512.0 * 2f64.ln() / 0.05;
        assert!((visits(256, 512) - half).abs() < 1e-6 * half);
        // All of sixteen: half a page of them may have been missed.
        let all = 512.0 * 32f64.ln() / 0.05;
        assert!((visits(512, 16) - all).abs() < 1e-6 * all);
        assert!(visits(512, 512) > visits(512, 16));
        // It may have been one visit to each.
        let once = |accessed| rate(accessed, 512, 16, work, false).visits;
        assert!((once(512) - 512.0 / 0.05).abs() < 1e-6);
        assert_eq!(once(256), visits(256, 16));
    }

    #[test]
    fn who_goes_through_memory_once_is_told_from_who_comes_back() {
        let read = |start: u64, pages: u16| RegionBits {
            start: start * HUGE_2M as u64,
            leaf: Leaf::Base,
            present: 512,
            zero_page: 0,
            swapped: 0,
            accessed: Some(pages),
            bits: None,
        };
        let starts = |count: u64| (0..count).map(|n| n * HUGE_2M as u64);
        // A scan has reached 20 of 80 regions a quarter through, and half of the next one.
        let early: Vec<RegionBits> =
            (0..80).map(|n| read(n, if n < 20 { 512 } else { 200 * u16::from(n == 20) })).collect();
        let scan = Peek::new(&early, false, Duration::from_millis(16));
        assert!(!scan.comes_back(starts(80)));
        assert!(!scan.is_visited_again(0, false));
        // Reads at random reach all that is in use from the start.
        let early: Vec<RegionBits> = (0..80).map(|n| read(n, 130)).collect();
        let random = Peek::new(&early, false, Duration::from_millis(16));
        assert!(random.comes_back(starts(80)));
        assert!(random.is_visited_again(79 * HUGE_2M as u64, true));
        assert!(!random.is_visited_again(80 * HUGE_2M as u64, true), "reached after the look");
    }

    #[test]
    fn parts_differ_from_region_to_region() {
        let places: std::collections::BTreeSet<u16> =
            (0..1000).map(|n| part(n * HUGE_2M as u64).start).collect();
        assert_eq!(places.len(), 32);
        assert!(places.iter().all(|first| first % PART_PAGES == 0 && first + PART_PAGES <= PAGES));
    }
}
