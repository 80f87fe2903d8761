//! The memory and accesses of a service, by its recording.

use crate::fleet::Host;
use crate::recording::{Heat, Service, class};
use crate::translation::{Part, WalkCosts, translation};
use megapage_snapshot::{AccessClass, PAGES};
use megapage_units::HUGE_2M;
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns the memory that huge pages hold or could hold, in bytes.
pub(super) fn present(service: &Service) -> u64 {
    service.huge + service.could
}

/// One service at the moments at which it existed.
#[derive(Default)]
pub(super) struct Series<'a> {
    there: Vec<&'a Service>,
    /// Maximum of regions that it needed.
    pub(super) most: u32,
    pub(super) measured: bool,
}

impl<'a> Series<'a> {
    /// Returns the services of a host, by name.
    pub(super) fn all(host: &'a Host) -> BTreeMap<&'a str, Series<'a>> {
        let mut all: BTreeMap<&str, Series<'_>> = BTreeMap::new();
        for service in host.moments.iter().flat_map(|(_, moment)| &moment.services) {
            let series = all.entry(&service.id).or_default();
            series.there.push(service);
            series.most = series.most.max(service.need);
            series.measured |= service.cost.is_some_and(|cost| cost.measured);
        }
        all
    }

    /// Returns the likely cost, weighted by the processor time of the moments at which it was
    /// known. Without such a moment, returns `None`.
    pub(super) fn cost(&self) -> Option<f64> {
        let known: Vec<(f64, f64)> =
            self.there.iter().filter_map(|it| it.cost.map(|cost| (cost.likely, it.cpu.max(1e-9)))).collect();
        let weight: f64 = known.iter().map(|(_, cpu)| cpu).sum();
        (weight > 0.0).then(|| known.iter().map(|(share, cpu)| share * cpu).sum::<f64>() / weight)
    }
}

/// Fill and accesses of a service's memory.
pub(super) struct Shape {
    /// Maximum of regions.
    pub(super) most: u32,
    /// Present base pages of each region, 1 to 512.
    pub(super) density: u16,
    pub(super) class: AccessClass,
    /// Accessed pages, number of regions, and their share of all visits, the least accessed first.
    heat: Vec<(u16, u32, f64)>,
}

impl Shape {
    pub(super) fn of(series: &Series<'_>, scale: u32) -> Shape {
        let (mut bytes, mut regions) = (0.0, 0.0);
        let mut steps: BTreeMap<u16, (f64, f64)> = BTreeMap::new();
        let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
        for service in &series.there {
            bytes += present(service) as f64;
            regions += f64::from(service.need);
            for Heat { pages, regions, visits } in &service.heat {
                let step = steps.entry(*pages).or_default();
                step.0 += f64::from(*regions);
                step.1 += visits;
            }
            if let Some(class) = &service.class {
                *classes.entry(class).or_default() += 1;
            }
        }
        let density = (bytes / (regions.max(1.0) * HUGE_2M as f64) * f64::from(PAGES)).round();
        let density = (density as u16).clamp(1, PAGES);
        let most = series.most.div_ceil(scale);
        let name = classes.iter().max_by_key(|(name, count)| (**count, std::cmp::Reverse(**name)));
        let sampled: f64 = steps.values().map(|(regions, _)| regions).sum();
        let mut heat = Vec::new();
        let mut left = most;
        // Without estimates of visits, the number of accessed pages replaces them.
        let visits: f64 = steps.values().map(|(_, visits)| visits).sum();
        let weight = |pages: u16, (regions, of): (f64, f64)| match visits > 0.0 {
            true => of,
            false => regions * f64::from(pages),
        };
        let all: f64 = steps.iter().map(|(pages, step)| weight(*pages, *step)).sum();
        for (pages, step) in &steps {
            let count = ((step.0 / sampled.max(1.0) * f64::from(most)).round() as u32).min(left);
            left -= count;
            if count > 0 && *pages > 0 && all > 0.0 {
                heat.push((*pages, count, weight(*pages, *step) / all));
            }
        }
        if heat.is_empty() {
            heat.push((density, most, 1.0));
        }
        let class = name.and_then(|(name, _)| class(name)).unwrap_or(AccessClass::Random);
        Shape { most, density, class, heat }
    }

    /// Returns the places of regions with the same accesses, with their heat. The least accessed
    /// lie first.
    pub(super) fn places(&self) -> impl Iterator<Item = (Range<usize>, (u16, u32, f64))> {
        let accessed: u32 = self.heat.iter().map(|(_, count, _)| count).sum();
        let mut next = self.most.saturating_sub(accessed) as usize;
        self.heat.iter().map(move |heat| {
            let start = next;
            next += heat.1 as usize;
            (start..next, *heat)
        })
    }

    /// Returns the load on the TLB with `rate` visits a second. `counts` returns the number of
    /// regions on base pages and of huge ones at the given places.
    pub(super) fn load(&self, rate: f64, counts: impl Fn(Range<usize>) -> (usize, usize)) -> Vec<Part> {
        let mut load = Vec::new();
        for (places, (pages, count, share)) in self.places() {
            let (base, huge) = counts(places);
            let part = |regions: usize, pages: u16, huge: bool| Part {
                regions: regions as f64,
                pages: regions as f64 * f64::from(pages),
                visits: rate * share * regions as f64 / f64::from(count),
                class: self.class,
                huge,
            };
            load.push(part(base, pages.min(self.density), false));
            load.push(part(huge, pages, true));
        }
        load
    }

    /// Returns the load if all regions exist, on base pages or huge.
    pub(super) fn whole(&self, rate: f64, huge: bool) -> Vec<Part> {
        self.load(rate, |places| if huge { (0, places.len()) } else { (places.len(), 0) })
    }

    /// Returns the visits per second of work at which base pages give the recorded cost; 0 if
    /// nothing was recorded.
    pub(super) fn calibrate(&self, walks: &WalkCosts, series: &Series<'_>) -> f64 {
        let Some(share) = series.cost().filter(|share| *share > 0.0) else { return 0.0 };
        let seconds = |rate: f64, huge: bool| translation(walks, &self.whole(rate, huge), None).seconds();
        let found = |rate: f64| {
            let on_base = seconds(rate, false);
            let kept = if series.measured { 1.0 } else { seconds(rate, true).min(on_base) };
            (on_base - kept) / on_base
        };
        // The cost rises with the visits, up to a bound. Bisects on a logarithmic scale.
        let (mut low, mut high) = (1.0f64, 1e10f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if found(middle) < share { low = middle } else { high = middle }
        }
        low
    }
}
