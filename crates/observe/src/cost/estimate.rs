//! Translation cost without a performance monitoring unit: from when pages are first touched after their bits were
//! cleared. Pure.
//!
//! First touches give the rates at which pages are visited ([`Rates`]); those and the TLB's geometry give the page
//! walks per second of processor time ([`tlb`](megapage_tlb)); what a walk costs was timed on this machine
//! ([`WalkCosts`]). Walks that come seldom are waited for, each by itself: they cost their latency. As they come more
//! often the program is bound by memory, and walks share its time with the reads after them, overlapped or not, in the
//! proportion of their latencies: that bounds the share. A program that goes through its memory in order pays at the
//! start of each page, where prefetching ends, but only as far as that is not hidden by its computing.

use super::calibrate::{WalkCost, WalkCosts};
use super::rates::Rates;
use super::touches::{History, Record, Touches};
use megapage_snapshot::{AccessClass, AccessProfile, CostSource, TranslationCost};
use megapage_tlb::{Class, EntrySize, Geometry, walks, walks_each};
use megapage_units::BASE_PAGE;
use serde::Serialize;

/// A factor, with an interval of about 90 %: `low <= likely <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Factor {
    /// The lower end.
    pub low: f64,
    /// The best guess.
    pub likely: f64,
    /// The upper end.
    pub high: f64,
}

/// An estimate, with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The share of its processor time that the process spends in page walks.
    pub cost: TranslationCost,
    /// How many times as fast it would be with huge pages wherever they can be.
    pub gain: Factor,
    /// Page walks per second of processor time, of all sizes.
    pub walks: f64,
    /// The same if all that can be huge were.
    pub walks_when_huge: f64,
    /// What one of them costs, in nanoseconds: the best guess.
    pub walk_ns: f64,
    /// Whether that is a guess, for timings on this machine made no sense.
    pub walk_is_guess: bool,
    /// The memory that is walked, in bytes: of base pages that are visited often enough to matter.
    pub footprint: f64,
    /// The share of the walks that come in the order of addresses, 0 to 1.
    pub streaming: f64,
    /// Walks, with the reads after them, that are under way at once: above 1 they overlap, and cannot all be waited
    /// for.
    pub under_way: f64,
    /// The way that the process goes through its memory for the most part.
    pub class: AccessClass,
    /// Regions that were sampled.
    pub regions: usize,
    /// Pages whose first touch was seen.
    pub touches: f64,
    /// Processor seconds that the process took while it was sampled.
    pub cpu_seconds: f64,
    /// The sampled regions' profiles, by first address.
    #[serde(skip)]
    pub profiles: Vec<(u64, AccessProfile)>,
}

/// Why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEstimate {
    /// The process was idle.
    #[error(
        "it took less than {LEAST_CPU_MS} ms of processor time while it was sampled: an idle process has no cost"
    )]
    Idle,
    /// Nothing could be sampled.
    #[error("no region of it could be sampled")]
    NoSample,
}

const LEAST_CPU_MS: u64 = 20;

/// Above so many walks under way at once, accesses are taken for random, not for dependent ones.
const MOST_DEPENDENT: f64 = 1.5;
/// How sharply the share bends from one bound to the other.
const SHARPNESS: f64 = 8.0;
/// Walks that overlap cost this much less than their part: a processor has several walkers, and they are waited for
/// together.
const OVERLAP_SPARES: f64 = 0.2;
/// The share of time, would the start of every page be waited for, above which that is not hidden in a stream: it is
/// then as fast as memory allows.
const STREAM_BOUND: f64 = 0.35;
/// The largest share that walks may take: the worst that is known of, nested paging and all, stays below it.
const LARGEST_SHARE: f64 = 0.8;
/// The timed walks find their page-table entries in the processor's caches more often than those of a program whose
/// data fill the caches: the true cost lies between once and twice what was timed.
const CACHE_SPREAD: f64 = 2.0;
/// The largest share that second-level hits are taken to have.
const MOST_OF_HITS: f64 = 0.3;
/// From outside it cannot be told how far a program hides what it waits for: by about two thirds at most.
const LEAST_SEEN: f64 = 0.35;

/// Estimates from what was sampled.
pub fn estimate(touches: &Touches, geometry: &Geometry, costs: &WalkCosts) -> Result<Estimate, NoEstimate> {
    if touches.cpu_seconds * 1000.0 < LEAST_CPU_MS as f64 {
        return Err(NoEstimate::Idle);
    }
    let promotable = Stratum::of(touches, touches.promotable_pages as f64, |it| !it.huge && it.promotable);
    let other = Stratum::of(touches, touches.other_pages as f64, |it| !it.huge && !it.promotable);
    let huge = Stratum::of(touches, touches.huge_regions as f64, |it| it.huge);
    if promotable.is_none() && other.is_none() && huge.is_none() {
        return Err(NoEstimate::NoSample);
    }
    let strata = [&promotable, &other, &huge];

    // Each thread has a TLB of its own, and the rates are per second of all threads together.
    let parallel = touches.parallel.max(1.0);
    let mine = |classes: Vec<Class>| -> Vec<Class> {
        classes.into_iter().map(|class| Class { pages: class.pages / parallel, ..class }).collect()
    };
    let of = |stratum: &Option<Stratum>, size| stratum.as_ref().map_or(Vec::new(), |it| it.classes(size));
    let movable = mine(of(&promotable, EntrySize::Base));
    let mut fixed = mine(of(&other, EntrySize::Base));
    fixed.extend(mine(of(&huge, EntrySize::Huge2m)));
    let load: Vec<Class> = movable.iter().chain(&fixed).copied().collect();
    let each = walks_each(geometry, &load);
    let second_hits = |load: &[Class]| walks(geometry, load).second_hits * parallel;
    let by_chance: f64 = each.iter().sum::<f64>() * parallel;
    let footprint = footprint(&load, &each) * parallel;

    // What stays on base pages (or is huge) walks on; what becomes huge walks less, and through smaller tables.
    let promoted = mine(promotable.as_ref().map_or(Vec::new(), Stratum::classes_when_huge));
    let when_huge: Vec<Class> = promoted.iter().chain(&fixed).copied().collect();
    let then = walks_each(geometry, &when_huge);
    let (promoted_walks, fixed_walks) = then.split_at(promoted.len());
    let sum = |walks: &[f64]| walks.iter().sum::<f64>() * parallel;

    let order = Order::of(touches);
    // In order, every page but those that the TLB holds walks once a round.
    let in_order = if by_chance > 0.0 { touches.rate_in_order().min(by_chance) } else { 0.0 };
    let now = order.streaming * in_order + (1.0 - order.streaming) * by_chance;
    // The same correction for what is left of them.
    let corrected = |walks: f64| if by_chance > 0.0 { (walks / by_chance).min(1.0) * now } else { 0.0 };
    let fixed_walks = corrected(sum(fixed_walks));
    let promoted_walks = corrected(sum(promoted_walks)).min(now - fixed_walks.min(now));
    let cost = costs.at(footprint);
    let latency = Latency { far: costs.latency(footprint), near: costs.latency(0.0) };
    // Hits of the second level cost little each, but hot memory that the first level does not hold has many.
    let second_share = |load: &[Class]| (second_hits(load) * costs.second_hit() * 1e-9).min(MOST_OF_HITS);
    let (hits_now, hits_then) = (second_share(&load), second_share(&when_huge));
    let shares = Shares::of(now, order, &cost, latency).with(hits_now);
    // Walks are the same for those that stay; a part of them takes its part of the time.
    let stays = if now > 0.0 { (fixed_walks / now).min(1.0) } else { 1.0 };
    let huge_now = Shares::of(promoted_walks, order, &costs.at(0.0), latency).with(hits_then.min(hits_now));
    let under_way =
        now * (1.0 - order.streaming) * (cost.dependent * CACHE_SPREAD.sqrt() + latency.far) * 1e-9;
    let noise = statistical(strata);
    let spread = |share: f64, factor: f64| (share * factor).clamp(0.0, LARGEST_SHARE);
    // What is guessed may be nothing, or twice as much.
    let (least, most) = if costs.is_guess() { (0.0, CACHE_SPREAD) } else { (1.0 - noise, 1.0 + noise) };
    let low = spread(shares.low, least / (1.0 + costs.spread().min(1.0)));
    let high = spread(shares.high, most);
    let likely = shares.likely.clamp(low, high);
    let gain = |share: f64, huge: f64| {
        let hits = hits_now.min(share);
        let left = ((share - hits) * stays + huge).min(share);
        ((1.0 - left) / (1.0 - share)).max(1.0)
    };
    let class = match () {
        () if order.streaming > 0.5 => AccessClass::Streaming,
        () if under_way < MOST_DEPENDENT => AccessClass::Dependent,
        () => AccessClass::Random,
    };
    Ok(Estimate {
        cost: TranslationCost { share: likely, low, high, source: CostSource::Estimated },
        gain: Factor {
            low: gain(low, huge_now.likely),
            likely: gain(likely, huge_now.likely),
            high: gain(high, huge_now.low),
        },
        walks: now,
        walks_when_huge: fixed_walks + promoted_walks,
        walk_ns: if now > 0.0 { shares.likely / now * 1e9 } else { 0.0 },
        walk_is_guess: costs.is_guess(),
        footprint,
        streaming: order.streaming,
        under_way,
        class,
        regions: touches.histories.len(),
        touches: strata.iter().filter_map(|it| it.as_ref()).map(|it| it.touched).sum(),
        cpu_seconds: touches.cpu_seconds,
        profiles: profiles(strata, class, order),
    })
}

/// Histories of one kind, and of how many pages (or regions) they are a sample.
struct Stratum<'a> {
    /// Those whose readings tell rates, and the rates.
    histories: Vec<&'a History>,
    rates: Option<Rates>,
    /// Those that were full at the first reading, and the rates of their pages as far as closer looks tell them.
    full: Vec<&'a History>,
    full_rates: Option<Rates>,
    /// Pages, or huge regions, of the process.
    population: f64,
    sampled: f64,
    touched: f64,
}

impl<'a> Stratum<'a> {
    fn of(touches: &'a Touches, population: f64, which: impl Fn(&History) -> bool) -> Option<Stratum<'a>> {
        let kind = || touches.histories.iter().filter(|it| which(it) && !it.readings.is_empty());
        let (full, histories): (Vec<_>, Vec<_>) =
            kind().filter(|it| !it.close).partition(|it| it.is_full_at_once());
        let all: Vec<Record> = histories.iter().chain(&full).flat_map(|it| it.records()).collect();
        let sampled: f64 = all.iter().map(|it| it.count).sum();
        let records: Vec<Record> = histories.iter().flat_map(|it| it.records()).collect();
        // Of full regions the closest looks tell the most.
        let close: Vec<Record> = kind().filter(|it| it.close).flat_map(History::records).collect();
        let looked = if close.is_empty() { full.iter().flat_map(|it| it.records()).collect() } else { close };
        (population > 0.0 && sampled > 0.0).then(|| Stratum {
            touched: all.iter().filter(|it| it.before.is_finite()).map(|it| it.count).sum(),
            rates: Rates::fit(&records),
            histories,
            full,
            full_rates: Rates::fit(&looked),
            population,
            sampled,
        })
    }

    /// How many of the process's pages each sampled one stands for.
    fn weight(&self) -> f64 {
        self.population / self.sampled
    }

    fn classes(&self, size: EntrySize) -> Vec<Class> {
        let count = |histories: &[&History]| -> f64 {
            histories.iter().flat_map(|it| it.records()).map(|it| it.count).sum()
        };
        let of = |rates: &Option<Rates>, pages: f64| -> Vec<Class> {
            let class = |(share, rate)| Class { size, pages: share * pages, rate };
            rates.iter().flat_map(Rates::classes).map(class).collect()
        };
        let mut classes = of(&self.rates, self.weight() * count(&self.histories));
        classes.extend(of(&self.full_rates, self.weight() * count(&self.full)));
        classes
    }

    fn regions(&self) -> impl Iterator<Item = &&'a History> {
        self.histories.iter().chain(&self.full)
    }

    fn visits(&self, history: &History) -> f64 {
        let rates = if history.is_full_at_once() { &self.full_rates } else { &self.rates };
        let visits = |record: &Record| rates.as_ref().map_or(0.0, |rates| rates.visits(record));
        history.records().iter().map(visits).sum()
    }

    /// One entry for each sampled region, standing for as many as were not sampled, with all its pages' visits.
    fn classes_when_huge(&self) -> Vec<Class> {
        let of =
            |it: &&History| Class { size: EntrySize::Huge2m, pages: self.weight(), rate: self.visits(it) };
        self.regions().map(of).collect()
    }
}

/// The memory over which walks spread, in bytes: as many pages as would walk as unevenly if all walked alike.
fn footprint(load: &[Class], each: &[f64]) -> f64 {
    let (mut sum, mut squares) = (0.0, 0.0);
    for (class, walks) in load.iter().zip(each) {
        if class.size == EntrySize::Base && class.pages > 0.0 {
            sum += walks;
            squares += walks * walks / class.pages;
        }
    }
    if squares > 0.0 { sum * sum / squares * BASE_PAGE as f64 } else { 0.0 }
}

/// The order in which pages are touched.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// The share of walks that come in the order of addresses.
    streaming: f64,
}

impl Order {
    fn of(touches: &Touches) -> Order {
        let (mut sum, mut weight) = (0.0, 0.0);
        for (score, touched) in touches.histories.iter().filter_map(History::order) {
            sum += score * touched;
            weight += touched;
        }
        Order { streaming: if weight > 0.0 { sum / weight } else { 0.0 } }
    }
}

/// What a read takes that misses the caches, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Latency {
    /// Anywhere in the memory that is walked.
    far: f64,
    /// Where prefetching has come close: at the start of a page in order.
    near: f64,
}

/// The shares of time that walks take.
#[derive(Clone, Copy, Debug)]
struct Shares {
    low: f64,
    likely: f64,
    high: f64,
}

impl Shares {
    /// With the share of second-level hits, which may be hidden or not.
    fn with(self, hits: f64) -> Shares {
        let sum = |share: f64, hits: f64| (share + hits).min(LARGEST_SHARE);
        Shares { low: self.low, likely: sum(self.likely, hits), high: sum(self.high, hits * CACHE_SPREAD) }
    }

    fn of(walks: f64, order: Order, cost: &WalkCost, latency: Latency) -> Shares {
        let scattered = walks * (1.0 - order.streaming) * 1e-9;
        let streamed = walks * order.streaming * 1e-9;
        // The one bound: each walk waited for. The other: as much of the time as walks are of walks and reads.
        let bent = |factor: f64| {
            let walk = cost.dependent * factor;
            let waited = scattered * walk;
            let overlap = (scattered * (walk + latency.far) - 1.0).clamp(0.0, 1.0);
            let bound = walk / (walk + latency.far).max(1e-9) * (1.0 - OVERLAP_SPARES * overlap);
            if waited <= 0.0 || bound <= 0.0 {
                return 0.0;
            }
            waited * (1.0 + (waited / bound).powf(SHARPNESS)).powf(-1.0 / SHARPNESS)
        };
        let starts = |factor: f64| {
            let waited = streamed * (latency.near + cost.streaming) * factor;
            waited * (waited / STREAM_BOUND).powi(2).min(1.0)
        };
        let floor = scattered * cost.random.min(cost.dependent) + streamed * cost.streaming;
        let likely = bent(CACHE_SPREAD.sqrt()).max(scattered * cost.random)
            + starts(1.0).max(streamed * cost.streaming);
        let high =
            bent(CACHE_SPREAD) + starts(CACHE_SPREAD.sqrt()).max(streamed * cost.streaming * CACHE_SPREAD);
        let low = (LEAST_SEEN * bent(1.0)).max(floor.min(bent(1.0) + streamed * cost.streaming));
        Shares { low: low.min(likely), likely, high }
    }
}

/// The relative error, at 90 %, that comes of sampling: regions differ, and few were looked at.
fn statistical(strata: [&Option<Stratum>; 3]) -> f64 {
    let Some(largest) = strata.into_iter().flatten().max_by(|a, b| a.touched.total_cmp(&b.touched)) else {
        return 1.0;
    };
    let visits: Vec<f64> = largest.regions().map(|it| largest.visits(it)).collect();
    let count = visits.len() as f64;
    let mean = visits.iter().sum::<f64>() / count;
    if mean <= 0.0 || count < 2.0 {
        return 1.0;
    }
    let variance = visits.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (1.645 * (variance / count).sqrt() / mean).min(1.0)
}

fn profiles(strata: [&Option<Stratum>; 3], class: AccessClass, order: Order) -> Vec<(u64, AccessProfile)> {
    let mut found: Vec<(u64, AccessProfile)> = Vec::new();
    for stratum in strata.into_iter().flatten() {
        for history in stratum.regions() {
            let own = match history.order() {
                Some((score, _)) if score > 0.5 => AccessClass::Streaming,
                Some(_) if order.streaming > 0.5 => AccessClass::Random,
                _ => class,
            };
            let visits = stratum.visits(history);
            found.push((history.start, AccessProfile { visits, class: own }));
        }
    }
    found.sort_by_key(|(start, _)| *start);
    // The last of several histories of one region stands for all.
    found.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1.visits = (kept.1.visits + later.1.visits) / 2.0;
        }
        same
    });
    found
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
