//! The results of earlier samples and zero scans of the regions of one process.

use crate::tracker::RegionBits;
use megapage_snapshot::{AccessProfile, Accessed, Leaf, Region};
use std::collections::HashMap;
use std::time::Duration;

/// Weight of a new sample in the moving average. HawkEye's released code weighs (6 old + 4 new) /
/// 10 (Panwar et al., ASPLOS 2019).
pub const NEW_WEIGHT: f32 = 0.4;

/// Results by the first address of the region.
#[derive(Debug, Default)]
pub(crate) struct History {
    accessed: HashMap<u64, Accessed>,
    zeros: HashMap<u64, u16>,
    profiles: HashMap<u64, AccessProfile>,
    /// Rates from a sample with a short window, used if no estimator has found any.
    rates: HashMap<u64, AccessProfile>,
}

/// Least share of a region's pages that a later sample must find accessed to confirm an earlier
/// rate.
const STILL: f32 = 0.9;

impl History {
    /// Notes a reading of one region at `now`.
    pub(crate) fn note(&mut self, start: u64, coverage: u16, now: Duration) {
        let former = self.accessed.get(&start);
        let fresh = f32::from(coverage);
        let average = former.map_or(fresh, |former| former.average + NEW_WEIGHT * (fresh - former.average));
        let last = if coverage > 0 { Some(now) } else { former.and_then(|former| former.last) };
        self.accessed.insert(start, Accessed { coverage, average, last, sampled: now });
    }

    /// Returns the result of the last sample for the region at `start`.
    pub(crate) fn accessed(&self, start: u64) -> Option<&Accessed> {
        self.accessed.get(&start)
    }

    /// Notes the number of zero pages that the zero scan found in the huge page at `start`.
    pub(crate) fn note_zeros(&mut self, start: u64, zeros: u16) {
        self.zeros.insert(start, zeros);
    }

    /// Notes the profile that an estimator found for the region at `start`.
    pub(crate) fn note_profile(&mut self, start: u64, profile: AccessProfile) {
        self.profiles.insert(start, profile);
    }

    /// Notes the rate of the region at `start`, from a sample with a window short enough for a
    /// rate.
    pub(crate) fn note_rate(&mut self, start: u64, rate: AccessProfile) {
        self.rates.insert(start, rate);
    }

    /// Checks an earlier rate. A sample with a window too long for a rate found `coverage` of the
    /// `present` pages at `start` accessed. The rate holds if these are nearly all.
    pub(crate) fn confirm_rate(&mut self, start: u64, coverage: u16, present: u16) {
        if f32::from(coverage) < STILL * f32::from(present) {
            self.rates.remove(&start);
        }
    }

    /// Fills in the known results of `regions`, and forgets regions that no longer exist: one that
    /// returns later is another.
    pub(crate) fn fill(&mut self, regions: &mut [Region]) {
        let mut accessed = HashMap::with_capacity(self.accessed.len());
        let mut zeros = HashMap::with_capacity(self.zeros.len());
        let mut profiles = HashMap::with_capacity(self.profiles.len());
        let mut rates = HashMap::with_capacity(self.rates.len());
        for region in regions {
            if let Some(known) = self.accessed.remove(&region.start()) {
                region.accessed = Some(known);
                accessed.insert(region.start(), known);
            }
            // Zeros are counted in huge pages only: after a split, base pages may have been freed.
            if let Some(known) = self.zeros.remove(&region.start()).filter(|_| region.leaf == Leaf::Huge2m) {
                region.zeros = Some(known);
                zeros.insert(region.start(), known);
            }
            // One entry stands for all of a huge page: the rate of base pages does not hold for it.
            if let Some(known) = self.rates.remove(&region.start()).filter(|_| !region.leaf.is_huge()) {
                region.profile = Some(known);
                rates.insert(region.start(), known);
            }
            if let Some(known) = self.profiles.remove(&region.start()) {
                region.profile = Some(known);
                profiles.insert(region.start(), known);
            }
        }
        self.accessed = accessed;
        self.zeros = zeros;
        self.profiles = profiles;
        self.rates = rates;
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
    use megapage_units::HugePage;

    #[test]
    fn the_average_is_hawkeyes_and_recency_is_kept() {
        let mut history = History::default();
        let at = Duration::from_secs;
        history.note(0, 500, at(1));
        history.note(0, 0, at(31));
        let accessed = *history.accessed(0).unwrap();
        // The average is (6 x 500 + 4 x 0) / 10.
        assert_eq!((accessed.coverage, accessed.average), (0, 300.0));
        assert_eq!((accessed.last, accessed.sampled), (Some(at(1)), at(31)));
        history.note(0, 512, at(61));
        assert!((history.accessed(0).unwrap().average - (0.6 * 300.0 + 0.4 * 512.0)).abs() < 0.01);
        history.note(1, 0, at(61));
        assert_eq!(history.accessed(1).unwrap().last, None, "never accessed while observed");
    }

    #[test]
    fn a_rate_holds_while_all_is_accessed_and_until_an_estimator_knows_better() {
        let profile = |visits| AccessProfile { visits, class: AccessClass::Random };
        let region = || Region::of_base_pages(HugePage::nth(0), 512);
        let shown = |history: &mut History| {
            let mut regions = [region()];
            history.fill(&mut regions);
            regions[0].profile.map(|profile| profile.visits)
        };
        let mut history = History::default();
        history.note_rate(0, profile(7.0));
        assert_eq!(shown(&mut history), Some(7.0));
        history.confirm_rate(0, 500, 512);
        assert_eq!(shown(&mut history), Some(7.0));
        history.note_profile(0, profile(9.0));
        assert_eq!(shown(&mut history), Some(9.0));
        let mut history = History::default();
        history.note_rate(0, profile(7.0));
        history.confirm_rate(0, 400, 512);
        assert_eq!(shown(&mut history), None);
        history.note_rate(0, profile(7.0));
        let mut huge = [Region { leaf: Leaf::Huge2m, ..region() }];
        history.fill(&mut huge);
        assert_eq!((huge[0].profile, shown(&mut history)), (None, None));
    }
}
