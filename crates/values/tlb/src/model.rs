//! Misses of a two-level TLB.

use crate::Geometry;
use serde::Serialize;

/// Memory that one TLB entry translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntrySize {
    /// 4 KiB.
    Base,
    /// 2 MiB.
    Huge2m,
    /// 1 GiB.
    Huge1g,
}

/// Pages with equal accesses: each `rate` times a second, at random moments (a Poisson process).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Size of one of them. A huge page's rate is the sum of the rates of its base pages.
    pub size: EntrySize,
    /// Number of pages, 0 or more; need not be whole.
    pub pages: f64,
    /// Accesses to each page, per second, 0 or more. Consecutive accesses to one page count as one:
    /// only the first can miss.
    pub rate: f64,
}

/// Events that a load causes, per second of the load's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Walks {
    /// Page walks for 4 KiB pages.
    pub base: f64,
    /// Page walks for 2 MiB pages.
    pub huge_2m: f64,
    /// Page walks for 1 GiB pages.
    pub huge_1g: f64,
    /// Misses of the first level that the second level holds: a few cycles each.
    pub second_hits: f64,
}

impl Walks {
    /// Returns the page walks of all sizes.
    pub fn total(&self) -> f64 {
        self.base + self.huge_2m + self.huge_1g
    }
}

/// Returns the time for which an entry stays in an LRU cache of `capacity` entries after its last
/// access. It is the T at which `sum(pages * (1 - exp(-rate T))) = capacity`. Infinite if all pages
/// fit. `load` consists of pages and rates.
pub fn characteristic_time(load: impl Iterator<Item = (f64, f64)> + Clone, capacity: f64) -> f64 {
    let live = load.filter(|(pages, rate)| *pages > 0.0 && *rate > 0.0);
    let distinct: f64 = live.clone().map(|(pages, _)| pages).sum();
    if distinct <= capacity {
        return f64::INFINITY;
    }
    let total_rate: f64 = live.clone().map(|(pages, rate)| pages * rate).sum();
    // The sum is concave in T, so Newton's steps from the left never pass the root. If rates differ
    // by many orders of magnitude, a step may be short: the bound is for that.
    let mut time = capacity / total_rate;
    for _ in 0..MOST_STEPS {
        let (mut held, mut slope) = (0.0, 0.0);
        for (pages, rate) in live.clone() {
            let stays = (-rate * time).exp();
            held += pages * (1.0 - stays);
            slope += pages * rate * stays;
        }
        let step = (capacity - held) / slope;
        if step.is_nan() || step <= time * 1e-9 {
            break;
        }
        time += step;
    }
    time
}

const MOST_STEPS: usize = 200;

/// Returns the page walks of `load` on a TLB of this geometry. It has a first level for each size,
/// and a second that 4 KiB and 2 MiB entries share.
pub fn walks(geometry: &Geometry, load: &[Class]) -> Walks {
    let (each, second_hits) = solve(geometry, load);
    let of =
        |size| load.iter().zip(&each).filter(|(class, _)| class.size == size).map(|(_, walks)| walks).sum();
    Walks {
        base: of(EntrySize::Base),
        huge_2m: of(EntrySize::Huge2m),
        huge_1g: of(EntrySize::Huge1g),
        second_hits,
    }
}

/// Returns the page walks per second of each class of `load`, in its order: for callers that cost
/// them by class.
pub fn walks_each(geometry: &Geometry, load: &[Class]) -> Vec<f64> {
    solve(geometry, load).0
}

/// Returns the walks of each class, and the sum of hits in the second level.
fn solve(geometry: &Geometry, load: &[Class]) -> (Vec<f64>, f64) {
    let first = |size: EntrySize| {
        let capacity = match size {
            EntrySize::Base => geometry.first_base,
            EntrySize::Huge2m => geometry.first_2m,
            EntrySize::Huge1g => geometry.first_1g,
        };
        let alike = load.iter().filter(move |class| class.size == size);
        characteristic_time(alike.map(|class| (class.pages, class.rate)), f64::from(capacity))
    };
    let first = [first(EntrySize::Base), first(EntrySize::Huge2m), first(EntrySize::Huge1g)];
    let first_time = |class: &Class| first[class.size as usize];
    // Accesses that reach the second level: those that come later than the first level remembers.
    let missing = |class: &Class| class.rate * survives(class.rate, first_time(class));
    let second = |is_in: fn(EntrySize) -> bool, capacity: u32| {
        let alike = load.iter().filter(move |class| is_in(class.size));
        characteristic_time(alike.map(|class| (class.pages, missing(class))), f64::from(capacity))
    };
    let shared = second(|size| size != EntrySize::Huge1g, geometry.second);
    let giant = second(|size| size == EntrySize::Huge1g, geometry.second_1g);

    let mut second_hits = 0.0;
    let each = load.iter().map(|class| {
        let rate = missing(class);
        let second_time = if class.size == EntrySize::Huge1g { giant } else { shared };
        // The access missed the first level, so the entry is already older than that level's time.
        let longer = if second_time.is_infinite() {
            f64::INFINITY
        } else {
            (second_time - first_time(class).min(second_time)).max(0.0)
        };
        let walks = class.pages * rate * survives(rate, longer);
        second_hits += class.pages * rate - walks;
        walks
    });
    (each.collect(), second_hits)
}

/// Returns the chance that a page of `rate` is not accessed for `time`.
fn survives(rate: f64, time: f64) -> f64 {
    if rate <= 0.0 || time.is_infinite() { 0.0 } else { (-rate * time).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact_tests::{Lru, TwoLevel};

    const SMALL: Geometry = Geometry {
        first_base: 16,
        first_2m: 8,
        first_1g: 4,
        second: 256,
        second_1g: 16,
        source: crate::GeometrySource::Fallback,
    };

    /// SplitMix64, so that a trace is the same everywhere.
    struct Random(u64);

    impl Random {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Draws `count` pages by weight, with their sizes, and returns the exact share of accesses
    /// that walk.
    fn exactly(pages: &[(EntrySize, f64)], count: usize, ways: Option<u32>) -> f64 {
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for (_, weight) in pages {
            sum += weight;
            sums.push(sum);
        }
        let mut tlb = TwoLevel::new(&SMALL, ways);
        let mut random = Random(7);
        let mut walks = 0;
        for access in 0..2 * count {
            let at = random.unit() * sum;
            let page = sums.partition_point(|&upto| upto <= at).min(pages.len() - 1);
            let walked = tlb.access(pages[page].0, page as u64);
            // The first half warms up.
            walks += usize::from(walked && access >= count);
        }
        walks as f64 / count as f64
    }

    fn modelled(pages: &[(EntrySize, f64)]) -> f64 {
        let total: f64 = pages.iter().map(|(_, weight)| weight).sum();
        let load: Vec<Class> =
            pages.iter().map(|&(size, weight)| Class { size, pages: 1.0, rate: weight / total }).collect();
        walks(&SMALL, &load).total()
    }

    fn agree(name: &str, pages: &[(EntrySize, f64)], tolerance: f64) {
        let (exact, model) = (exactly(pages, 50_000, None), modelled(pages));
        assert!((exact - model).abs() <= tolerance, "{name}: exact {exact}, model {model}");
        // Eight ways lose a little to conflicts.
        let ways = exactly(pages, 50_000, Some(8));
        assert!((ways - model).abs() <= tolerance + 0.02, "{name}: 8 ways {ways}, model {model}");
    }

    #[test]
    fn uniform_zipf_and_mixed_loads_walk_as_an_exact_lru_does() {
        let base = |count: usize, weight: fn(usize) -> f64| {
            (0..count).map(move |n| (EntrySize::Base, weight(n))).collect::<Vec<_>>()
        };
        agree("uniform", &base(1000, |_| 1.0), 0.01);
        agree("uniform, fits", &base(250, |_| 1.0), 0.01);
        agree("uniform, large", &base(20_000, |_| 1.0), 0.01);
        agree("zipf 0.8", &base(5000, |n| 1.0 / (n as f64 + 1.0).powf(0.8)), 0.01);
        agree("zipf 1.2", &base(5000, |n| 1.0 / (n as f64 + 1.0).powf(1.2)), 0.01);
        agree("hot and cold", &base(4000, |n| if n < 100 { 100.0 } else { 1.0 }), 0.01);
        let mut mixed = base(1500, |n| 1.0 / (n as f64 + 1.0));
        mixed.extend((0..100).map(|n| (EntrySize::Huge2m, 2.0 / f64::from(n + 1))));
        mixed.extend((0..40).map(|_| (EntrySize::Huge1g, 0.05)));
        agree("mixed", &mixed, 0.015);
    }

    /// Checks a sequential scan. An LRU that is too small for the round holds nothing of it; Che's
    /// model assumes independent accesses and keeps a part. With many more pages than entries, as
    /// at streaming, the two agree.
    #[test]
    fn a_sequential_scan_misses_on_every_page() {
        let count = 20_000u64;
        let mut tlb = TwoLevel::new(&SMALL, None);
        let walks =
            (0..3 * count).filter(|n| tlb.access(EntrySize::Base, n % count) && *n >= 2 * count).count();
        assert_eq!(walks as u64, count);
        let pages: Vec<_> = (0..count).map(|_| (EntrySize::Base, 1.0)).collect();
        let model = modelled(&pages);
        assert!(model > 0.98, "{model}");
    }

    #[test]
    fn what_fits_never_walks_and_nothing_is_nothing() {
        assert_eq!(walks(&SMALL, &[]), Walks::default());
        let fits = Class { size: EntrySize::Base, pages: 200.0, rate: 1e6 };
        let found = walks(&SMALL, &[fits]);
        assert_eq!(found.total(), 0.0);
        assert!(found.second_hits > 1e8, "{found:?}");
        let idle = Class { size: EntrySize::Base, pages: 1e9, rate: 0.0 };
        assert_eq!(walks(&SMALL, &[idle, fits]).total(), 0.0);
        assert_eq!(walks_each(&SMALL, &[idle, fits]), [0.0, 0.0]);
    }

    /// Checks the same accesses on huge pages: 512 times fewer entries.
    #[test]
    fn huge_entries_reach_further() {
        let base = Class { size: EntrySize::Base, pages: 64.0 * 512.0, rate: 10.0 };
        let huge = Class { size: EntrySize::Huge2m, pages: 64.0, rate: 10.0 * 512.0 };
        assert!(walks(&SMALL, &[base]).total() > 0.98 * 10.0 * 64.0 * 512.0);
        assert_eq!(walks(&SMALL, &[huge]).total(), 0.0);
    }

    #[test]
    fn rates_that_differ_by_twelve_orders_are_solved() {
        let load = [(1e6, 1e-6), (1e3, 1e6), (1e4, 1.0)];
        for capacity in [10.0, 1000.5, 5000.0, 500_000.0] {
            let time = characteristic_time(load.iter().copied(), capacity);
            let held: f64 = load.iter().map(|(pages, rate)| pages * (1.0 - (-rate * time).exp())).sum();
            assert!((held - capacity).abs() < 1e-3 * capacity, "{capacity}: {held}");
        }
        assert_eq!(characteristic_time([(5.0, 1.0)].into_iter(), 5.0), f64::INFINITY);
    }

    #[test]
    fn the_exact_lru_is_one() {
        let mut lru = Lru::new(2, None);
        assert_eq!(
            [1, 2, 1, 3, 2, 3, 1].map(|page| lru.access(page)),
            [false, false, true, false, false, true, false]
        );
    }
}
