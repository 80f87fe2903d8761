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

/// How often a region is visited of whose `present` pages, judged by `seen` of them, `accessed` were accessed while its
/// process took `worked` of processor time: visits that come at random leave out exp(-rate) of the pages. Where all were
/// accessed, half a page of those that were looked at is taken to be left out. That the visits overlap is the cautious
/// guess.
pub(super) fn rate(accessed: u16, present: u16, seen: u16, worked: Duration) -> AccessProfile {
    let share = f64::from(accessed) / f64::from(present.max(1));
    let most = 1.0 - 0.5 / f64::from(seen.max(1));
    let each = -(1.0 - share.clamp(0.0, most)).ln();
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
        let visits = |accessed, seen| rate(accessed, 512, seen, work).visits;
        assert_eq!(visits(0, 512), 0.0);
        // Half of the pages: ln 2 visits to each.
        let half = 512.0 * 2f64.ln() / 0.05;
        assert!((visits(256, 512) - half).abs() < 1e-6 * half);
        // All of sixteen: half a page of them may have been missed.
        let all = 512.0 * 32f64.ln() / 0.05;
        assert!((visits(512, 16) - all).abs() < 1e-6 * all);
        assert!(visits(512, 512) > visits(512, 16));
    }

    #[test]
    fn parts_differ_from_region_to_region() {
        let places: std::collections::BTreeSet<u16> =
            (0..1000).map(|n| part(n * HUGE_2M as u64).start).collect();
        assert_eq!(places.len(), 32);
        assert!(places.iter().all(|first| first % PART_PAGES == 0 && first + PART_PAGES <= PAGES));
    }
}
