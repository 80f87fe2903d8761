//! Translation cost without a performance monitoring unit: from when pages are first touched after their bits were
//! cleared. Pure.
//!
//! First touches give the rates at which pages are visited ([`Rates`]). What visits cost was timed on this machine, on
//! base pages and on huge ones, by the memory over which they spread and by how many are under way at once
//! ([`AccessTimes`]). A page that is visited as seldom as a page of so much memory would be, all of it visited alike, is
//! taken to cost as much as one of those. The visits come at some rate; were each waited for, they would take more time
//! than there is, or less: that shows how many must be under way at once, at the least, and with it what huge pages
//! would save. How often the TLB is missed ([`tlb`](megapage_tlb)) is reported beside it.

use super::calibrate::{AccessTimes, OVERLAPS, Step, Timed};
use super::rates::Rates;
use super::touches::{History, Record, Touches};
use megapage_snapshot::{AccessClass, AccessProfile, CostSource, TranslationCost};
use megapage_tlb::{Class, EntrySize, Geometry, walks};
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

/// An estimate, with its basis.
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
    /// Visits of base pages per second of processor time that the first level of the TLB does not answer.
    pub visits: f64,
    /// What huge pages would save each of them, in nanoseconds: the best guess.
    pub saved_ns: f64,
    /// Whether times are a guess, for this machine could not be timed.
    pub is_guess: bool,
    /// The memory over which the visits spread that matter, in bytes.
    pub footprint: f64,
    /// The share of the visits that come in the order of addresses, 0 to 1.
    pub streaming: f64,
    /// Visits that would be under way at once, were each waited for: above 1 they overlap at least so far.
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

/// Up to so many visits under way at once, they are taken for dependent ones.
const MOST_DEPENDENT: f64 = 1.5;
/// Timed accesses, in bursts after others, find less in the caches than those of a program at its steady work: up to so
/// many times as much time as there is, is no proof of overlap.
const TOLERANCE: f64 = 1.5;
/// How far a program may hide what it waits for, beyond what its rate of visits proves: so many times as many visits
/// at once. A processor looks some hundred instructions ahead; visits that come seldomer overlap only where they come in
/// bunches.
const BUNCH: f64 = 3.0;
/// The timed accesses leave the caches to the page tables and to the lines that are read; a program's other data push
/// the tables out: a walk of its costs up to so many times as much.
const CACHE_SPREAD: f64 = 1.5;
/// The largest share that translation may take: the worst that is known of, nested paging and all, stays below it.
const LARGEST_SHARE: f64 = 0.8;

/// Estimates from what was sampled.
pub fn estimate(touches: &Touches, geometry: &Geometry, times: &AccessTimes) -> Result<Estimate, NoEstimate> {
    if touches.cpu_seconds * 1000.0 < LEAST_CPU_MS as f64 {
        return Err(NoEstimate::Idle);
    }
    let touched = touches.promotable_pages.saturating_sub(touches.quiet_pages);
    let promotable = Stratum::of(touches, touched as f64, |it| !it.huge && it.promotable && !it.quiet);
    let quiet = Stratum::of(touches, touches.quiet_pages as f64, |it| it.quiet && !it.huge);
    let other = Stratum::of(touches, touches.other_pages as f64, |it| !it.huge && !it.promotable);
    let huge = Stratum::of(touches, touches.huge_regions as f64, |it| it.huge);
    let strata = [&promotable, &quiet, &other, &huge];
    if strata.iter().all(|stratum| stratum.is_none()) {
        return Err(NoEstimate::NoSample);
    }

    // Each thread has a TLB of its own, and the rates are per second of all threads together.
    let parallel = touches.parallel.max(1.0);
    let mine = |classes: Vec<Class>| -> Vec<Class> {
        classes.into_iter().map(|class| Class { pages: class.pages / parallel, ..class }).collect()
    };
    let of = |stratum: &Option<Stratum>, size| {
        let (classes, at_least): (Vec<Class>, Vec<bool>) =
            stratum.as_ref().map_or(Vec::new(), |it| it.classes(size)).into_iter().unzip();
        (mine(classes), at_least)
    };
    let (mut movable, mut at_least) = of(&promotable, EntrySize::Base);
    let (seldom, seldom_at_least) = of(&quiet, EntrySize::Base);
    movable.extend(seldom);
    at_least.extend(seldom_at_least);
    let (mut fixed, fixed_at_least) = of(&other, EntrySize::Base);
    at_least.extend(fixed_at_least);
    let fixed_base = fixed.len();
    fixed.extend(of(&huge, EntrySize::Huge2m).0);
    let load: Vec<Class> = movable.iter().chain(&fixed).copied().collect();
    let by_chance = walks(geometry, &load).total() * parallel;
    let promoted = [&promotable, &quiet].into_iter().flatten().flat_map(Stratum::classes_when_huge);
    let promoted = mine(promoted.collect());
    let when_huge: Vec<Class> = promoted.iter().chain(&fixed).copied().collect();

    let order = Order::of(touches);
    // In order, every page but those that the TLB holds walks once a round.
    let in_order = if by_chance > 0.0 { touches.rate_in_order().min(by_chance) } else { 0.0 };
    let now = order.streaming * in_order + (1.0 - order.streaming) * by_chance;
    let walks_when_huge = (walks(geometry, &when_huge).total() * parallel).min(now);

    let reach = f64::from(geometry.second) * BASE_PAGE as f64;
    let visits: Vec<Visits> = load[..movable.len() + fixed_base]
        .iter()
        .enumerate()
        .map(|(index, class)| {
            let of = Visits::of(class, index < movable.len(), &load, parallel, order, geometry, times);
            Visits { at_least: at_least[index] && of.bytes <= 2.0 * reach, ..of }
        })
        .collect();
    let mut visits = possible(visits, times.least());
    // While a program does something else, its other data push page tables out of the caches.
    let elsewhere = (1.0 - waited(&visits)).max(0.0);
    let in_a_second = |class: &Class| class.pages * parallel * (1.0 - (-class.rate).exp());
    let visited = load[..movable.len() + fixed_base].iter().map(in_a_second).sum::<f64>() * BASE_PAGE as f64;
    for it in visits.iter_mut().filter(|it| !it.at_least) {
        it.step = times.at(it.bytes + elsewhere * visited);
    }
    let could_be_huge =
        touches.promotable_pages as f64 / ((touches.promotable_pages + touches.other_pages) as f64).max(1.0);
    let demand = Demand {
        visits: &visits,
        stream: order.streaming * in_order,
        contiguity: touches.contiguity,
        could_be_huge,
        times,
    };
    let found = demand.shares();
    let noise = statistical(strata);
    let class = match () {
        () if order.streaming > 0.5 => AccessClass::Streaming,
        () if found.under_way < MOST_DEPENDENT => AccessClass::Dependent,
        () => AccessClass::Random,
    };
    // What is guessed may be nothing, or twice as much.
    let (least, most) = if times.is_guess() { (0.0, 2.0) } else { (1.0 - noise, 1.0 + noise) };
    let spread = |share: f64, factor: f64| (share * factor).clamp(0.0, LARGEST_SHARE);
    let low = spread(found.low.all, least);
    let high = spread(found.high.all, most);
    let likely = found.likely.all.clamp(low, high);
    let gain = |share: f64| 1.0 / (1.0 - share);
    let gain_low = gain(spread(found.low.movable, least));
    let gain_high = gain(spread(found.high.movable, most));
    // The sum of nothing is a negative zero.
    let all_visits = visits.iter().map(|it| it.rate).sum::<f64>() + 0.0;
    Ok(Estimate {
        cost: TranslationCost { share: likely, low, high, source: CostSource::Estimated },
        gain: Factor {
            low: gain_low,
            likely: gain(found.likely.movable.min(LARGEST_SHARE)).clamp(gain_low, gain_high),
            high: gain_high,
        },
        walks: now,
        walks_when_huge,
        visits: all_visits,
        saved_ns: if all_visits > 0.0 { found.likely.all / all_visits * 1e9 } else { 0.0 },
        is_guess: times.is_guess(),
        footprint: footprint(&visits) * parallel,
        streaming: order.streaming,
        under_way: found.under_way,
        class,
        regions: touches.histories.len(),
        touches: strata.iter().filter_map(|it| it.as_ref()).map(|it| it.touched).sum(),
        cpu_seconds: touches.cpu_seconds,
        profiles: profiles(strata, class, order),
    })
}

/// Visits of pages of one rate that miss the first level of the TLB and do not come in order.
struct Visits {
    /// Per second of processor time.
    rate: f64,
    /// Whether the pages could be huge.
    movable: bool,
    /// Whether the pages, few enough for that, were all touched by the first look, so that `rate` is what it is at
    /// least. Visits that come so fast do not wait for each other.
    at_least: bool,
    /// The most of them that there is time for: `rate`, but where that is known from below alone.
    most: f64,
    /// The memory that would be visited as seldom, page by page, were all of it visited alike.
    bytes: f64,
    /// What such visits take.
    step: Step,
}

impl Visits {
    /// How far these overlap where others do by `overlap`.
    fn overlap(&self, overlap: f64) -> f64 {
        if self.at_least { (OVERLAPS - 1) as f64 } else { overlap }
    }

    fn of(
        class: &Class,
        movable: bool,
        load: &[Class],
        parallel: f64,
        order: Order,
        geometry: &Geometry,
        times: &AccessTimes,
    ) -> Visits {
        // Pages that are visited, on average, between two visits of one of these.
        let between: f64 = match class.rate > 0.0 {
            true => load.iter().map(|it| it.pages * (1.0 - (-it.rate / class.rate).exp())).sum(),
            false => 0.0,
        };
        // Of pages visited alike, a part of 1 - 1/e is.
        let pages = between / (1.0 - (-1.0f64).exp());
        let bytes = pages * BASE_PAGE as f64;
        let missed = (1.0 - f64::from(geometry.first_base) / pages.max(1.0)).max(0.0);
        let rate = class.pages * class.rate * parallel * missed * (1.0 - order.streaming);
        Visits { rate, movable, at_least: false, most: rate, bytes, step: times.at(bytes) }
    }
}

/// Leaves out visits to less memory than was timed (`least`, in bytes: a half of what the second level of the TLB reaches),
/// which huge pages save next to nothing, and those that there is no time for: of the fastest, which are known least. A page
/// that was found touched a moment after its clearing may be visited a million times a second, or have been touched just
/// then.
fn possible(mut visits: Vec<Visits>, least: f64) -> Vec<Visits> {
    visits.retain(|it| it.bytes > least);
    visits.sort_by(|one, other| other.bytes.total_cmp(&one.bytes));
    let mut left = 1.0;
    for visits in &mut visits {
        let each = visits.step.overlapping[OVERLAPS - 1].base * 1e-9;
        let most = left / each;
        visits.rate = visits.rate.min(most);
        visits.most = if visits.at_least { most } else { visits.rate };
        left = (left - visits.rate * each).max(0.0);
    }
    visits
}

/// The share of the time that visits would take, were each waited for: without those that are not.
fn waited(visits: &[Visits]) -> f64 {
    visits.iter().filter(|it| !it.at_least).map(|it| it.rate * it.step.overlapping[0].base).sum::<f64>()
        * 1e-9
}

/// What the visits of a program ask for.
struct Demand<'a> {
    visits: &'a [Visits],
    /// Pages per second that are visited in order.
    stream: f64,
    /// How far these lie side by side in physical memory.
    contiguity: Option<f64>,
    /// The share of base pages that could be huge.
    could_be_huge: f64,
    times: &'a AccessTimes,
}

/// A share of the processor time: of all base pages, and of those that could be huge.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    all: f64,
    movable: f64,
}

/// What of the processor time huge pages would save.
#[derive(Clone, Copy, Debug)]
struct Shares {
    low: Share,
    likely: Share,
    high: Share,
    under_way: f64,
}

impl Demand<'_> {
    /// The time that the visits take for each second, `overlap` (from 0: each waited for) as in [`OVERLAPS`].
    fn time(&self, overlap: f64) -> f64 {
        let time = |it: &Visits| it.rate * at_overlap(&it.step, it.overlap(overlap), |timed| timed.base);
        self.visits.iter().map(time).sum::<f64>() * 1e-9
    }

    fn saved(&self, overlap: f64, of: impl Fn(&Timed) -> f64 + Copy) -> Share {
        self.saved_at(|visits| visits.rate, overlap, of)
    }

    /// As `saved`, of so many visits.
    fn saved_at(
        &self,
        rate: impl Fn(&Visits) -> f64,
        overlap: f64,
        of: impl Fn(&Timed) -> f64 + Copy,
    ) -> Share {
        let mut share = Share::default();
        for visits in self.visits {
            let saved = rate(visits) * at_overlap(&visits.step, visits.overlap(overlap), of) * 1e-9;
            share.all += saved;
            share.movable += if visits.movable { saved } else { 0.0 };
        }
        share
    }

    fn shares(&self) -> Shares {
        let last = (OVERLAPS - 1) as f64;
        let under_way = waited(self.visits);
        // The least overlap at which there is time enough: time falls as overlap rises.
        let (mut low, mut high) = (0.0, last);
        if under_way <= TOLERANCE {
            high = 0.0;
        }
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.time(middle) > TOLERANCE { low = middle } else { high = middle }
        }
        let least = high;
        // More than there is time for is more than the timed accesses do: it shares what time there is.
        let fits = |overlap: f64| 1.0 / self.time(overlap).max(1.0);
        let deepest = (least + BUNCH.log2()).min(last);
        let dependent = self.saved(least, Timed::saving).by(fits(least));
        let bunched = self.saved(deepest, Timed::saving).by(fits(deepest));
        // Visits that overlap for certain may do so just enough, or as far as the processor can, with computing between.
        let apart = 0.5 * (under_way / TOLERANCE).max(1.0).log2().min(1.0);
        let likely = dependent.by(1.0 - apart).with(bunched.by(apart));
        let low =
            self.saved(deepest, |timed| timed.base * (1.0 - 1.0 / timed.ratio[0]).max(0.0)).by(fits(deepest));
        let most = |timed: &Timed| timed.base * (1.0 - 1.0 / timed.ratio[1]).max(0.0);
        let high = self.saved_at(|visits| visits.most, least, most).by(fits(least));
        let stream = self.stream();
        Shares {
            low: low.at_most(likely).plus(stream[0], self.could_be_huge),
            likely: likely.plus(stream[1], self.could_be_huge),
            high: high.by(CACHE_SPREAD).at_least(likely).plus(stream[2], self.could_be_huge),
            under_way,
        }
    }

    /// What a stream would save: at full speed what was timed; the slower it is, the more of it is fetched ahead of its
    /// use. What was timed are pages that lie apart: at each the processor has to begin anew with fetching ahead, which it
    /// has not where the next page lies right behind.
    fn stream(&self) -> [f64; 3] {
        // Of the two largest: both lie in memory, and the differences are small.
        let steps = self.times.steps();
        let large = &steps[steps.len().saturating_sub(2)..];
        let mean = |of: fn(&Timed) -> f64| {
            large.iter().map(|step| of(&step.stream)).sum::<f64>() / large.len().max(1) as f64
        };
        let base = mean(|timed| timed.base);
        let busy = (self.stream * base * 1e-9).min(1.0);
        let apart = self.contiguity.map(|share| (1.0 - share).clamp(0.0, 1.0));
        // How much of it is not hidden behind computing: nothing up to a share of its full speed, all from another on. The
        // rate is an estimate from below.
        let of = |ratio: f64, (none, all): (f64, f64)| {
            let shows = ((busy - none) / (all - none)).clamp(0.0, 1.0);
            busy * (1.0 - 1.0 / ratio.max(1.0)) * shows
        };
        [
            apart.unwrap_or(0.0) * of(mean(|timed| timed.ratio[0]), (0.7, 1.0)),
            apart.unwrap_or(0.5) * of(mean(|timed| timed.base / timed.huge), (0.4, 0.8)),
            // A break costs more than its share where the pieces between breaks are short.
            apart.unwrap_or(1.0).sqrt() * of(mean(|timed| timed.ratio[1]), (0.0, 0.5)),
        ]
    }
}

impl Share {
    fn by(self, factor: f64) -> Share {
        Share { all: self.all * factor, movable: self.movable * factor }
    }

    fn with(self, other: Share) -> Share {
        Share { all: self.all + other.all, movable: self.movable + other.movable }
    }

    fn at_most(self, other: Share) -> Share {
        Share { all: self.all.min(other.all), movable: self.movable.min(other.movable) }
    }

    fn at_least(self, other: Share) -> Share {
        Share { all: self.all.max(other.all), movable: self.movable.max(other.movable) }
    }

    fn plus(self, share: f64, movable: f64) -> Share {
        Share { all: self.all + share, movable: self.movable + share * movable }
    }
}

/// Between two overlaps that were timed.
fn at_overlap(step: &Step, overlap: f64, of: impl Fn(&Timed) -> f64) -> f64 {
    let low = (overlap as usize).min(OVERLAPS - 2);
    let along = overlap - low as f64;
    let [one, other] = [&step.overlapping[low], &step.overlapping[low + 1]].map(of);
    one + (other - one) * along
}

/// The memory over which visits spread: the mean of what they spread over each, by how often they come.
fn footprint(visits: &[Visits]) -> f64 {
    let all: f64 = visits.iter().map(|it| it.rate).sum();
    let sum: f64 = visits.iter().map(|it| it.rate * it.bytes).sum();
    if all > 0.0 { sum / all } else { 0.0 }
}

/// Histories of one kind, and of how many pages (or regions) they are a sample.
struct Stratum<'a> {
    /// Those whose readings give rates, and the rates.
    histories: Vec<&'a History>,
    rates: Option<Rates>,
    /// Those that were full at the first reading, and the rates of their pages as far as closer looks show them.
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
        // Of full regions the closest looks show the most.
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

    /// Pages by rate, and whether that is known from below alone.
    fn classes(&self, size: EntrySize) -> Vec<(Class, bool)> {
        let count = |histories: &[&History]| -> f64 {
            histories.iter().flat_map(|it| it.records()).map(|it| it.count).sum()
        };
        let of = |rates: &Option<Rates>, pages: f64, at_least: bool| -> Vec<(Class, bool)> {
            let class = |(share, rate)| (Class { size, pages: share * pages, rate }, at_least);
            rates.iter().flat_map(Rates::classes).map(class).collect()
        };
        let mut classes = of(&self.rates, self.weight() * count(&self.histories), false);
        classes.extend(of(&self.full_rates, self.weight() * count(&self.full), true));
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

/// The relative error, at 90 %, that comes of sampling: regions differ, and few were looked at.
fn statistical(strata: [&Option<Stratum>; 4]) -> f64 {
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

fn profiles(strata: [&Option<Stratum>; 4], class: AccessClass, order: Order) -> Vec<(u64, AccessProfile)> {
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
