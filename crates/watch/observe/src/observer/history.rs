//! The results of earlier samples and zero scans of the regions of one process.

use crate::tracker::RegionBits;
use megapage_snapshot::{AccessProfile, Accessed, Leaf, Region};
use megapage_units::HugePage;
use std::collections::HashMap;
use std::time::Duration;

/// Weight of a new sample in the moving average. HawkEye's released code weighs (6 old + 4 new) /
/// 10 (Panwar et al., ASPLOS 2019).
pub const NEW_WEIGHT: f32 = 0.4;

/// Results by region.
#[derive(Debug, Default)]
pub(crate) struct History(HashMap<HugePage, Known>);

/// Results for one region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    accessed: Option<Accessed>,
    /// Number of zero pages that the last zero scan found in the huge page.
    pub(crate) zeros: Option<u16>,
    /// Profile that an estimator found.
    pub(crate) profile: Option<AccessProfile>,
    /// Rate from a sample with a window short enough for one. Used if no estimator has found any.
    pub(crate) rate: Option<AccessProfile>,
}

/// Least share of a region's pages that a later sample must find accessed to confirm an earlier
/// rate.
const STILL: f32 = 0.9;

impl History {
    /// Returns the results for a region, to note one.
    pub(crate) fn of(&mut self, page: HugePage) -> &mut Known {
        self.0.entry(page).or_default()
    }

    /// Notes a reading of one region at `now`.
    pub(crate) fn note(&mut self, page: HugePage, coverage: u16, now: Duration) {
        let known = self.of(page);
        let former = known.accessed;
        let fresh = f32::from(coverage);
        let average = former.map_or(fresh, |former| former.average + NEW_WEIGHT * (fresh - former.average));
        let last = if coverage > 0 { Some(now) } else { former.and_then(|former| former.last) };
        known.accessed = Some(Accessed { coverage, average, last, sampled: now });
    }

    /// Returns the result of the last sample for the region.
    pub(crate) fn accessed(&self, page: HugePage) -> Option<Accessed> {
        self.0.get(&page)?.accessed
    }

    /// Checks an earlier rate. A sample with a window too long for a rate found `coverage` of the
    /// `present` pages of the region accessed. The rate holds if these are nearly all.
    pub(crate) fn confirm_rate(&mut self, page: HugePage, coverage: u16, present: u16) {
        if f32::from(coverage) < STILL * f32::from(present) {
            self.of(page).rate = None;
        }
    }

    /// Fills in the known results of `regions`, and forgets regions that no longer exist: one that
    /// returns later is another.
    pub(crate) fn fill(&mut self, regions: &mut [Region]) {
        let mut kept = HashMap::with_capacity(self.0.len());
        for region in regions {
            let Some(mut known) = self.0.remove(&region.page) else { continue };
            // Zeros are counted in huge pages only: after a split, base pages may have been freed.
            known.zeros = known.zeros.filter(|_| region.leaf == Leaf::Huge2m);
            // One entry stands for all of a huge page: the rate of base pages does not hold for it.
            known.rate = known.rate.filter(|_| !region.leaf.is_huge());
            (region.accessed, region.zeros) = (known.accessed, known.zeros);
            region.profile = known.profile.or(known.rate);
            kept.insert(region.page, known);
        }
        self.0 = kept;
    }
}

/// Returns the number of entries with an accessed bit in a region that was read: 1 for a huge page.
pub(crate) fn entries(bits: &RegionBits) -> u64 {
    if bits.leaf.is_huge() { 1 } else { u64::from(bits.present) }
}

/// Returns the number of those that were accessed; all if the tracker cannot report it.
pub(crate) fn accessed_entries(bits: &RegionBits) -> u64 {
    match bits.accessed {
        None => entries(bits),
        Some(pages) if bits.leaf.is_huge() => u64::from(pages > 0),
        Some(pages) => u64::from(pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_snapshot::AccessClass;

    #[test]
    fn the_average_is_hawkeyes_and_recency_is_kept() {
        let (mut history, page) = (History::default(), HugePage::nth(0));
        let at = Duration::from_secs;
        history.note(page, 500, at(1));
        history.note(page, 0, at(31));
        let accessed = history.accessed(page).unwrap();
        // The average is (6 x 500 + 4 x 0) / 10.
        assert_eq!((accessed.coverage, accessed.average), (0, 300.0));
        assert_eq!((accessed.last, accessed.sampled), (Some(at(1)), at(31)));
        history.note(page, 512, at(61));
        assert!((history.accessed(page).unwrap().average - (0.6 * 300.0 + 0.4 * 512.0)).abs() < 0.01);
        history.note(HugePage::nth(1), 0, at(61));
        assert_eq!(history.accessed(HugePage::nth(1)).unwrap().last, None, "never accessed while observed");
    }

    #[test]
    fn a_rate_holds_while_all_is_accessed_and_until_an_estimator_knows_better() {
        let profile = |visits| AccessProfile { visits, class: AccessClass::Random };
        let page = HugePage::nth(0);
        let region = || Region::of_base_pages(page, 512);
        let shown = |history: &mut History| {
            let mut regions = [region()];
            history.fill(&mut regions);
            regions[0].profile.map(|profile| profile.visits)
        };
        let mut history = History::default();
        history.of(page).rate = Some(profile(7.0));
        assert_eq!(shown(&mut history), Some(7.0));
        history.confirm_rate(page, 500, 512);
        assert_eq!(shown(&mut history), Some(7.0));
        history.of(page).profile = Some(profile(9.0));
        assert_eq!(shown(&mut history), Some(9.0));
        let mut history = History::default();
        history.of(page).rate = Some(profile(7.0));
        history.confirm_rate(page, 400, 512);
        assert_eq!(shown(&mut history), None);
        history.of(page).rate = Some(profile(7.0));
        let mut huge = [Region { leaf: Leaf::Huge2m, ..region() }];
        history.fill(&mut huge);
        assert_eq!((huge[0].profile, shown(&mut history)), (None, None));
    }
}
