//! The gain of a process from each of its regions being huge.
//!
//! Coverage tells the number of accessed pages, but neither how often they are accessed nor if the
//! program waits for the page walk. Here a region counts by its misses. These are visits of base
//! pages (a rate), times the part that misses the TLB, times the cost of a miss in the access
//! class.
//!
//! The TLB is Che's approximation of an LRU cache (Che, Tung, Wang, "Hierarchical Web caching
//! systems", 2002) over the process's regions. If the process's translation cost is known, it sets
//! the sum. The model then only divides it among the regions.

use megapage_snapshot::{AccessClass, Leaf, Process, Region};
use std::collections::BTreeMap;

/// Cost of a miss in nanoseconds, by access class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissCost {
    /// Streaming: walks are prefetched.
    pub streaming: f64,
    /// Random: walks overlap.
    pub random: f64,
    /// Dependent: the program waits.
    pub dependent: f64,
}

impl MissCost {
    fn of(self, class: AccessClass) -> f64 {
        match class {
            AccessClass::Streaming => self.streaming,
            AccessClass::Random => self.random,
            AccessClass::Dependent => self.dependent,
        }
    }
}

/// Constants of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Entries of the second-level TLB for base pages.
    pub entries: f64,
    /// Cost of a miss.
    pub miss: MissCost,
}

/// Accesses to one region, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Base pages that are visited.
    pages: f64,
    /// Visits of all of them, per second of processor time.
    visits: f64,
    class: AccessClass,
}

impl Load {
    fn sane(self) -> Load {
        let sane = |value: f64| if value.is_finite() { value.clamp(0.0, 1e12) } else { 0.0 };
        Load { pages: sane(self.pages), visits: sane(self.visits), class: self.class }
    }
}

/// Returns the known accesses to a region. `window` is that of the sample, in seconds. A sampled
/// page was visited at least once in it. Without a sample or an estimate, each present page counts
/// as visited once in it. [`gains`] replaces this load by [`Mean`] if other regions were sampled.
/// `class` is that of regions without a profile.
fn load(region: &Region, window: f64, class: AccessClass) -> Load {
    let pages = match region.accessed {
        Some(accessed) => f64::from(accessed.average),
        None => f64::from(region.present),
    };
    let load = match region.profile {
        Some(profile) => Load { pages: pages.max(1.0), visits: profile.visits, class: profile.class },
        None => Load { pages, visits: pages / window, class },
    };
    load.sane()
}

/// Returns the class with the most visits of the regions with a profile; random without one.
fn main_class(regions: &[Region]) -> AccessClass {
    let mut visits: BTreeMap<AccessClass, f64> = BTreeMap::new();
    for profile in regions.iter().filter_map(|region| region.profile) {
        *visits.entry(profile.class).or_default() += profile.visits.max(0.0);
    }
    let main = visits.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    main.map_or(AccessClass::Random, |(class, _)| class)
}

/// Returns true if a region of base pages has been sampled.
pub(super) fn is_sampled_base(region: &Region) -> bool {
    region.leaf == Leaf::Base && region.accessed.is_some()
}

/// Average accesses to each present base page. A region without any data is taken to be like this.
/// It ranks after the regions found hot and before those found cold. Huge pages are excluded, as
/// one bit shows of all their 512 pages. As the hot regions become huge, the others must not look
/// hot for it.
#[derive(Clone, Copy, Debug)]
struct Mean {
    pages: f64,
    visits: f64,
}

impl Mean {
    /// Returns the average of the sampled regions; `None` if there are none.
    fn new(process: &Process, loads: &[Load]) -> Option<Mean> {
        let (mut pages, mut visits, mut present) = (0.0, 0.0, 0.0);
        for (region, load) in process.regions.iter().zip(loads).filter(|(region, _)| is_sampled_base(region))
        {
            pages += load.pages;
            visits += load.visits;
            present += f64::from(region.present);
        }
        (present > 0.0).then(|| Mean { pages: pages / present, visits: visits / present })
    }

    /// Returns the presumed load of a region with `present` pages.
    fn load(&self, present: u16, class: AccessClass) -> Load {
        let present = f64::from(present);
        Load { pages: self.pages * present, visits: self.visits * present, class }.sane()
    }
}

/// Gain of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Share of the process's processor time that it would gain if the region became huge, or would
    /// lose if it were split: 0 or more. The sum over the regions that are not huge is less than 1.
    pub share: f64,
    /// Presumed access class: as observed, or that of most of the process's memory.
    pub class: AccessClass,
}

impl Gain {
    pub(super) fn streams(&self) -> bool {
        self.class == AccessClass::Streaming
    }
}

/// Gains of the processes' regions, computed at the first use.
pub(super) struct Gains<'a> {
    model: Model,
    pub(super) processes: &'a [&'a Process],
    known: Vec<Option<Vec<Gain>>>,
}

impl<'a> Gains<'a> {
    pub(super) fn new(model: Model, processes: &'a [&'a Process]) -> Gains<'a> {
        Gains { model, processes, known: vec![None; processes.len()] }
    }

    /// Returns the gains of the `at`th process, by the places of its regions.
    pub(super) fn of(&mut self, at: usize) -> &[Gain] {
        self.known[at].get_or_insert_with(|| gains(self.processes[at], &self.model))
    }

    /// Returns the gain left to the `at`th process from all its streamed regions that are not huge.
    pub(super) fn streaming(&mut self, at: usize) -> f64 {
        let regions = self.processes[at].regions.iter().zip(self.of(at));
        let streamed = regions.filter(|(region, gain)| !region.leaf.is_huge() && gain.streams());
        streamed.map(|(_, gain)| gain.share).sum()
    }
}

/// Returns the gain of each region, in their order.
pub fn gains(process: &Process, model: &Model) -> Vec<Gain> {
    let window = process.sampling.as_ref().map_or(1.0, |sampling| sampling.window.as_secs_f64().max(1e-3));
    let class = main_class(&process.regions);
    let mut loads: Vec<Load> = process.regions.iter().map(|region| load(region, window, class)).collect();
    if let Some(mean) = Mean::new(process, &loads) {
        for (region, load) in process.regions.iter().zip(&mut loads) {
            if region.leaf == Leaf::Base && region.accessed.is_none() && region.profile.is_none() {
                *load = mean.load(region.present, class);
            }
        }
    }
    // Computes the loss of huge pages as if none were huge: without one alone, hardly anything
    // changes.
    let bins = Bins::new(process, &loads, false, model.entries);
    let any_huge = process.regions.iter().any(|region| region.leaf != Leaf::Base);
    let without = any_huge.then(|| Bins::new(process, &loads, true, model.entries));
    let lost: Vec<f64> = process
        .regions
        .iter()
        .zip(&loads)
        .map(|(region, load)| {
            let bins = without.as_ref().filter(|_| region.leaf != Leaf::Base).unwrap_or(&bins);
            match Bins::of(load.visits, load.pages) {
                Some(bin) => load.visits * bins.missed(bin) * model.miss.of(load.class) * 1e-9,
                None => 0.0,
            }
        })
        .collect();

    // Only regions that are not huge contribute to the measured cost.
    let is_base = |region: &Region| !region.leaf.is_huge();
    let modelled: f64 =
        process.regions.iter().zip(&lost).filter(|(region, _)| is_base(region)).map(|(_, lost)| lost).sum();
    let scale = match process.translation {
        Some(cost) if modelled > 0.0 && cost.share.is_finite() => cost.share.clamp(0.0, 0.99) / modelled,
        // Time lost to misses is part of the processor time: of 1 s, `modelled / (1 + modelled)`.
        _ => 1.0 / (1.0 + lost.iter().sum::<f64>()),
    };
    let classes = loads.iter().map(|load| load.class);
    lost.iter().zip(classes).map(|(lost, class)| Gain { share: lost * scale, class }).collect()
}

/// Pages by their visit rates, similar rates together: a bin for each eighth of a power of two.
struct Bins {
    bins: Vec<Bin>,
    /// See [`characteristic_time`].
    time: f64,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    pages: f64,
    visits: f64,
}

impl Bins {
    /// Number of bins, for rates from 2^-64 to 2^64 a second.
    const COUNT: usize = 128 * 8;

    /// Sorts the pages into bins, for a TLB of `entries` entries. With `split`, it treats all
    /// regions as not huge.
    fn new(process: &Process, loads: &[Load], split: bool, entries: f64) -> Bins {
        let mut bins = vec![Bin::default(); Bins::COUNT];
        for (region, load) in process.regions.iter().zip(loads) {
            // A huge page has one entry, which all visits use.
            let pages = if split || region.leaf == Leaf::Base { load.pages } else { 1.0 };
            if let Some(bin) = Bins::of(load.visits, pages) {
                bins[bin].pages += pages;
                bins[bin].visits += load.visits;
            }
        }
        let used: Vec<Bin> = bins.iter().copied().filter(|bin| bin.pages > 0.0).collect();
        Bins { bins, time: characteristic_time(&used, entries) }
    }

    /// Returns the bin of pages with these visits; `None` if there is no visit.
    fn of(visits: f64, pages: f64) -> Option<usize> {
        // Takes the exponent and the first three bits of the fraction: a logarithm in eighths,
        // without computing one.
        const LOWEST: usize = (1023 - 64) * 8;
        let eighths = ((visits / pages).to_bits() >> 49) as usize;
        (visits > 0.0 && pages > 0.0).then(|| eighths.saturating_sub(LOWEST).min(Bins::COUNT - 1))
    }

    /// Returns the part of the visits in a bin with pages that misses the TLB, 0 to 1.
    fn missed(&self, bin: usize) -> f64 {
        (-self.bins[bin].visits / self.bins[bin].pages * self.time).exp()
    }
}

/// Returns Che's characteristic time, in seconds of processor time: the time that a page stays in
/// the TLB without a visit. Infinite if all visited pages fit.
fn characteristic_time(bins: &[Bin], entries: f64) -> f64 {
    if bins.iter().map(|bin| bin.pages).sum::<f64>() <= entries {
        return f64::INFINITY;
    }
    let resident = |time: f64| -> f64 {
        bins.iter().map(|bin| bin.pages * (1.0 - (-bin.visits / bin.pages * time).exp())).sum()
    };
    // The time is between a nanosecond and the longest possible; the loop halves its logarithm.
    let (mut low, mut high) = (-30.0_f64, 40.0_f64);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if resident(middle.exp2()) < entries { low = middle } else { high = middle }
    }
    low.exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::*;
    use megapage_snapshot::{AccessProfile, CostSource, TranslationCost};

    fn shares(process: &Process, model: &Model) -> Vec<f64> {
        gains(process, model).iter().map(|gain| gain.share).collect()
    }

    const MODEL: Model =
        Model { entries: 1536.0, miss: MissCost { streaming: 5.0, random: 7.0, dependent: 94.0 } };

    fn visited(n: u64, visits: f64, class: AccessClass) -> Region {
        Region { profile: Some(AccessProfile { visits, class }), ..accessed(base(n, 512), 512, SECOND) }
    }

    #[test]
    fn what_fits_the_tlb_gains_nothing() {
        let small = process(1, (0..3).map(|n| visited(n, 1e6, AccessClass::Dependent)).collect());
        assert_eq!(shares(&small, &MODEL), [0.0; 3]);
        let large = process(1, (0..4).map(|n| visited(n, 1e6, AccessClass::Dependent)).collect());
        assert!(shares(&large, &MODEL)[0] > 0.0);
    }

    #[test]
    fn misses_are_those_of_a_uniform_load() {
        // The TLB holds 1536 of the 20480 pages of 40 regions that are visited alike: 92.5 % of the
        // visits miss.
        let process = process(1, (0..40).map(|n| visited(n, 1000.0, AccessClass::Dependent)).collect());
        let gain: f64 = shares(&process, &MODEL).iter().sum();
        let lost = 40_000.0 * 0.925 * 94e-9;
        assert!((gain - lost / (1.0 + lost)).abs() / gain < 0.01, "{gain}");
    }

    #[test]
    fn at_equal_coverage_the_class_and_the_rate_decide() {
        let mut regions: Vec<Region> = (0..40).map(|n| visited(n, 1e4, AccessClass::Streaming)).collect();
        regions[7] = visited(7, 1e4, AccessClass::Dependent);
        regions[8] = visited(8, 2e4, AccessClass::Streaming);
        let gain = shares(&process(1, regions), &MODEL);
        assert!(gain[7] > 10.0 * gain[0]);
        assert!(gain[8] > gain[0] && gain[8] < gain[7]);
    }

    #[test]
    fn a_known_cost_is_shared_out_among_base_pages() {
        let mut regions: Vec<Region> = (0..40).map(|n| visited(n, 1e4, AccessClass::Random)).collect();
        regions[0].leaf = Leaf::Huge2m;
        let mut process = process(1, regions);
        process.translation =
            Some(TranslationCost { share: 0.39, low: 0.3, high: 0.45, source: CostSource::Measured });
        let gain = shares(&process, &MODEL);
        assert!((gain[1..].iter().sum::<f64>() - 0.39).abs() < 1e-9);
    }

    #[test]
    fn what_was_never_sampled_comes_between_the_hot_and_the_cold() {
        let mut regions: Vec<Region> = (0..20).map(|n| base(n, 512)).collect();
        regions.extend((20..40).map(|n| accessed(base(n, 512), 3, SECOND)));
        regions.extend((40..60).map(|n| accessed(base(n, 512), 512, SECOND)));
        let gain = shares(&process(1, regions.clone()), &MODEL);
        assert!(gain[50] > 1.5 * gain[0] && gain[0] > 1.5 * gain[30] && gain[30] > 0.0, "{gain:?}");
        // As the hot regions become huge, it is taken to be as cold as the remaining ones.
        regions[40..].iter_mut().for_each(|region| region.leaf = Leaf::Huge2m);
        let gain = shares(&process(1, regions.clone()), &MODEL);
        assert!((gain[0] - gain[30]).abs() <= 1e-9 * gain[30], "{gain:?}");
        // If every sample has found nothing, there is nothing to gain.
        regions[20..40].iter_mut().for_each(|region| *region = accessed(region.clone(), 0, SECOND));
        let gain = shares(&process(1, regions), &MODEL);
        assert_eq!(gain[..40], [0.0; 40]);
    }

    #[test]
    fn regions_without_a_profile_have_the_main_class() {
        let regions: Vec<Region> = (0..80).map(|n| accessed(base(n, 512), 512, SECOND)).collect();
        let random = gains(&process(1, regions.clone()), &MODEL);
        assert_eq!(random[20].class, AccessClass::Random);
        let mut regions = regions;
        (0..10).for_each(|n| regions[n] = visited(n as u64, 512.0, AccessClass::Dependent));
        regions[10] = visited(10, 512.0, AccessClass::Streaming);
        regions[9].leaf = Leaf::Huge2m;
        let gain = gains(&process(1, regions), &MODEL);
        assert_eq!(gain[20].class, AccessClass::Dependent);
        assert!((gain[20].share - gain[5].share).abs() < 0.01 * gain[5].share, "{gain:?}");
    }

    #[test]
    fn absurd_figures_give_finite_gains() {
        for absurd in [f64::NAN, f64::INFINITY, -5.0, 0.0, f64::MAX] {
            let regions = (0..40).map(|n| visited(n, absurd, AccessClass::Random)).collect();
            let mut process = process(1, regions);
            let sane = |all: Vec<f64>| all.iter().all(|gain| gain.is_finite() && *gain >= 0.0);
            assert!(sane(shares(&process, &MODEL)), "{absurd}");
            process.translation =
                Some(TranslationCost { share: absurd, low: 0.0, high: 0.0, source: CostSource::Estimated });
            assert!(sane(shares(&process, &MODEL)), "{absurd}");
        }
    }
}
