//! The extrapolation from a part of a region's pages to all of them, and the rates of their visits.

use super::budget::Candidate;
use crate::tracker::{PART_PAGES, PageBits, RegionBits, part};
use megapage_snapshot::{AccessClass, AccessProfile, Leaf, PAGES, Region};
use megapage_units::HugePage;
use std::time::Duration;

/// Least present pages of a region from which its part is likely to hold some.
const LEAST_FOR_PART: u16 = PAGES / 4 * 3;

/// Returns the candidates as far as a part of each stands for it. Leaves out sparsely populated
/// ones: their part may be empty.
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

/// Returns true if parts stand for all of these regions: at most one in eight regions on base pages
/// is sparsely populated.
pub(super) fn stand_for_all(regions: &[&Region]) -> bool {
    let on_base = || regions.iter().filter(|region| !region.leaf.is_huge());
    8 * on_base().filter(|region| region.present >= LEAST_FOR_PART).count() >= 7 * on_base().count()
}

/// Returns the pages of a region's [`part`], as bits.
pub(super) fn part_bits(region: HugePage) -> PageBits {
    let mut bits: PageBits = [0; PAGES as usize / 64];
    part(region).for_each(|page| bits[usize::from(page) / 64] |= 1 << (page % 64));
    bits
}

pub(super) fn both(one: &PageBits, other: &PageBits) -> PageBits {
    std::array::from_fn(|word| one[word] & other[word])
}

pub(super) fn ones(bits: &PageBits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Removes the bits that were not cleared.
pub(super) fn keep_part(read: &mut RegionBits) {
    if let (Some(bits), false) = (read.bits, read.leaf.is_huge()) {
        let kept = both(&bits, &part_bits(read.page));
        read.bits = Some(kept);
        read.accessed = Some(ones(&kept) as u16);
    }
}

/// Returns the accessed pages of a whole region, at the share of its part.
pub(super) fn accessed_by_part(read: &RegionBits) -> Option<u16> {
    match read.leaf.is_huge() {
        true => read.accessed,
        false => read.accessed.map(|pages| (pages * (PAGES / PART_PAGES)).min(read.present)),
    }
}

/// Accesses early in the window of a process's first sample.
#[derive(Debug)]
pub(super) struct PartialWindow {
    /// Regions with some accessed page, ascending.
    touched: Vec<HugePage>,
    /// Regions with all pages accessed, ascending.
    whole: Vec<HugePage>,
    /// Processor time of the process from the clearing to this look.
    pub(super) worked: Duration,
}

/// Least share, among regions accessed whole by the end of the window, of those accessed a quarter
/// through it. Then the process returns to its memory. A single pass has reached a quarter.
const COMES_BACK: f64 = 0.9;

impl PartialWindow {
    /// Returns the early accesses, from a reading of all regions of the sample.
    pub(super) fn new(read: &[RegionBits], in_part: bool, worked: Duration) -> PartialWindow {
        let touched = |bits: &RegionBits| match bits.bits.filter(|_| in_part && !bits.leaf.is_huge()) {
            Some(all) => (ones(&both(&all, &part_bits(bits.page))) as u16, PART_PAGES.min(bits.present)),
            None => (bits.accessed.unwrap_or(0), bits.present),
        };
        let those = |is: &dyn Fn((u16, u16)) -> bool| {
            let mut pages: Vec<HugePage> =
                read.iter().filter(|bits| is(touched(bits))).map(|bits| bits.page).collect();
            pages.sort_unstable();
            pages
        };
        let touched = those(&|(pages, _)| pages > 0);
        PartialWindow { touched, whole: those(&|(pages, all)| pages > 0 && pages >= all), worked }
    }

    fn has(&self, page: HugePage) -> bool {
        self.touched.binary_search(&page).is_ok()
    }

    /// Returns true if the process returns to its memory, judged by the regions accessed whole
    /// (`whole`) in the end.
    pub(super) fn comes_back(&self, whole: impl Iterator<Item = HugePage>) -> bool {
        let (mut early, mut all) = (0u32, 0u32);
        for page in whole {
            all += 1;
            early += u32::from(self.has(page));
        }
        f64::from(early) >= COMES_BACK * f64::from(all)
    }

    /// Returns true if the process returns to a region that was accessed whole.
    pub(super) fn is_visited_again(&self, page: HugePage, comes_back: bool) -> bool {
        comes_back && self.has(page)
    }
}

/// Least time of a read that waits for a page walk and for memory.
const LEAST_WAIT: Duration = Duration::from_nanos(150);

/// Returns the rate of visits and the access class for the regions of a first sample. `found` are
/// those on base pages with some accessed pages, each with the processor time of the process while
/// it was sampled. If only the part of each was looked at (`in_part`), the accessed pages are
/// extrapolated. `untouched` is the number of sampled regions without an access. `sampled` is the
/// part of the process's memory that was sampled, 0 to 1.
///
/// Random visits miss exp(-rate) of the pages. If all pages that were looked at were accessed, half
/// a page is taken as missed. If all were accessed at the early look, one visit to each until then
/// is taken. A process that goes through its memory in order has visited the reached regions once,
/// and will reach the others. Then the visits are shared out among both.
///
/// In regions with missed pages, the number of visits is known. If most visits are to these, and
/// there is time to wait for each visit, all are taken as waited for. A program with so much time
/// between two visits has nothing under way beside them.
pub(super) fn profiles(
    found: &[(&RegionBits, Duration)],
    in_part: bool,
    untouched: usize,
    sampled: f64,
    early: Option<&PartialWindow>,
) -> Vec<(HugePage, AccessProfile)> {
    let accessed = |it: &RegionBits| f64::from(it.accessed.unwrap_or(0));
    let most = |it: &RegionBits| most(if in_part { PART_PAGES } else { it.present });
    let is_whole = |it: &RegionBits| accessed(it) > f64::from(it.present) * most(it);
    let whole = || found.iter().filter(|(it, _)| is_whole(it)).map(|(it, _)| it.page);
    let comes_back = early.is_some_and(|early| early.comes_back(whole()));
    let once = |it: &RegionBits| {
        is_whole(it) && !early.is_some_and(|early| early.is_visited_again(it.page, comes_back))
    };
    let rate = |it: &RegionBits, worked, each| rate(it.present, worked, each);
    let in_order: Vec<f64> =
        found.iter().filter(|(it, _)| once(it)).map(|(it, worked)| rate(it, *worked, 1.0)).collect();
    let shared_out = in_order.iter().sum::<f64>() / (in_order.len() + untouched).max(1) as f64;
    let visits = |(it, worked): &(&RegionBits, Duration)| match early {
        _ if once(it) => shared_out,
        Some(early) if is_whole(it) && early.whole.binary_search(&it.page).is_ok() => {
            rate(it, early.worked, 1.0)
        }
        _ => {
            let share = accessed(it) / f64::from(it.present.max(1));
            rate(it, *worked, -(1.0 - share.min(most(it))).ln())
        }
    };
    let of = |whole: bool| found.iter().filter(|(it, _)| is_whole(it) == whole).map(visits).sum::<f64>();
    let (at_least, counted) = (of(true), of(false));
    let in_a_second = (at_least + counted) / sampled.clamp(1e-3, 1.0);
    let waits = counted > at_least && in_a_second * LEAST_WAIT.as_secs_f64() <= 1.0;
    let class = |it: &RegionBits| match () {
        () if once(it) => AccessClass::Streaming,
        () if waits => AccessClass::Dependent,
        () => AccessClass::Random,
    };
    let profile = |it: &(&RegionBits, Duration)| AccessProfile { visits: visits(it), class: class(it.0) };
    found.iter().map(|it| (it.0.page, profile(it))).collect()
}

/// Returns the largest share of the `seen` pages that random visits reach: all but half a page.
fn most(seen: u16) -> f64 {
    1.0 - 0.5 / f64::from(seen.max(1))
}

/// Returns the visits of a region per second of processor time, for `each` visits to each page in
/// the sample, during which the process `worked`.
fn rate(present: u16, worked: Duration, each: f64) -> f64 {
    f64::from(present) * each / worked.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::candidates::candidate;
    use super::*;

    fn read(number: u64, pages: u16) -> RegionBits {
        RegionBits {
            page: HugePage::nth(number),
            leaf: Leaf::Base,
            present: 512,
            zero_page: 0,
            swapped: 0,
            accessed: Some(pages),
            bits: None,
        }
    }

    /// Returns the profiles of regions that were sampled in 80 ms.
    fn of(
        found: &[RegionBits],
        in_part: bool,
        untouched: usize,
        sampled: f64,
        early: Option<&PartialWindow>,
    ) -> Vec<AccessProfile> {
        let found: Vec<_> = found.iter().map(|read| (read, Duration::from_millis(80))).collect();
        let profiles = profiles(&found, in_part, untouched, sampled, early);
        profiles.into_iter().map(|(_, profile)| profile).collect()
    }

    /// Returns a reading of 256 regions a quarter through.
    fn a_quarter_through(pages: impl Fn(u64) -> u16) -> PartialWindow {
        let early: Vec<RegionBits> = (0..256).map(|n| read(n, pages(n))).collect();
        PartialWindow::new(&early, false, Duration::from_millis(20))
    }

    #[test]
    fn rates_are_distinguished_from_what_was_not_accessed() {
        let visits = |accessed, seen, early: u16| {
            let window = a_quarter_through(|_| early);
            of(&[read(0, accessed)], seen == PART_PAGES, 0, 1.0, Some(&window))[0].visits
        };
        // Half of the pages have ln 2 visits each.
        let half = 512.0 * 2f64.ln() / 0.08;
        assert!((visits(256, 512, 90) - half).abs() < 1e-6 * half);
        // All of sixteen pages: half a page of them may have been missed.
        let all = 512.0 * 32f64.ln() / 0.08;
        assert!((visits(512, 16, 300) - all).abs() < 1e-6 * all);
        assert!(visits(512, 512, 300) > visits(512, 16, 300));
        // All were accessed a quarter through already: at least once each by then.
        assert!((visits(512, 16, 512) - 512.0 / 0.02).abs() < 1e-6);
        // None was accessed by then: it may have been one visit to each.
        assert!((visits(512, 16, 0) - 512.0 / 0.08).abs() < 1e-6);
        let unknown = of(&[read(0, 512)], true, 0, 1.0, None)[0];
        assert!((unknown.visits - 512.0 / 0.08).abs() < 1e-6);
    }

    #[test]
    fn a_sequential_scan_will_reach_the_remainder() {
        let scan = a_quarter_through(|n| 512 * u16::from(n < 20));
        let reached: Vec<RegionBits> = (0..80).map(|n| read(n, 512)).collect();
        let profiled = of(&reached, true, 240, 1.0, Some(&scan));
        let expected = 512.0 / 0.08 * 80.0 / 320.0;
        assert!(profiled.iter().all(|it| it.class == AccessClass::Streaming), "{profiled:?}");
        assert!(profiled.iter().all(|it| (it.visits - expected).abs() < 1e-6), "{profiled:?}");
    }

    #[test]
    fn few_visits_that_are_counted_are_taken_to_be_waited_for() {
        let class = |regions: u64, accessed, sampled| {
            let early = a_quarter_through(|_| accessed / 3);
            let found: Vec<RegionBits> = (0..regions).map(|n| read(n, accessed)).collect();
            of(&found, false, 0, sampled, Some(&early))[0].class
        };
        // A fifth of the pages of 256 regions gives 366,000 visits a second. Nine tenths give 3.8
        // million, 265 ns each.
        assert_eq!(class(256, 102, 1.0), AccessClass::Dependent);
        assert_eq!(class(256, 461, 1.0), AccessClass::Dependent);
        assert_eq!(
            class(256, 461, 0.25),
            AccessClass::Random,
            "four times as many, with what was not sampled"
        );
        assert_eq!(class(1024, 500, 1.0), AccessClass::Random);
        // The rate of a region accessed whole is unknown.
        assert_eq!(class(256, 512, 1.0), AccessClass::Random);
    }

    #[test]
    fn one_pass_is_distinguished_from_repeated_passes() {
        let pages = |count: u64| (0..count).map(HugePage::nth);
        // A scan has reached 20 of 80 regions a quarter through, and a part of the next one.
        let early: Vec<RegionBits> =
            (0..80).map(|n| read(n, if n < 20 { 512 } else { 200 * u16::from(n == 20) })).collect();
        let scan = PartialWindow::new(&early, false, Duration::from_millis(16));
        assert!(!scan.comes_back(pages(80)));
        assert!(!scan.is_visited_again(HugePage::nth(0), false));
        // Random reads reach all memory in use from the start.
        let early: Vec<RegionBits> = (0..80).map(|n| read(n, 130)).collect();
        let random = PartialWindow::new(&early, false, Duration::from_millis(16));
        assert!(random.comes_back(pages(80)));
        assert!(random.is_visited_again(HugePage::nth(79), true));
        assert!(!random.is_visited_again(HugePage::nth(80), true), "reached after the look");
    }

    #[test]
    fn parts_stand_for_all_where_next_to_no_region_is_hardly_populated() {
        let profiled = |sparse: u64, huge: u64| {
            let mut regions: Vec<Region> = (0..80)
                .map(|n| Region::of_base_pages(HugePage::nth(n), if n < sparse { 100 } else { 512 }))
                .collect();
            regions.extend(
                (80..80 + huge)
                    .map(|n| Region { leaf: Leaf::Huge2m, ..Region::of_base_pages(HugePage::nth(n), 512) }),
            );
            let regions: Vec<&Region> = regions.iter().collect();
            let list: Vec<Candidate> = regions.iter().map(|region| candidate(region)).collect();
            assert_eq!(in_part(&list, &regions).len() as u64, 80 - sparse + huge);
            stand_for_all(&regions)
        };
        assert!(profiled(0, 0) && profiled(10, 0) && profiled(0, 1000));
        assert!(!profiled(11, 0) && !profiled(80, 0));
        assert!(!profiled(80, 1000), "what is huge stands for itself alone");
    }

    #[test]
    fn parts_differ_from_region_to_region() {
        let places: std::collections::BTreeSet<u16> =
            (0..1000).map(|n| part(HugePage::nth(n)).start).collect();
        assert_eq!(places.len(), 32);
        assert!(places.iter().all(|first| first % PART_PAGES == 0 && first + PART_PAGES <= PAGES));
    }
}
