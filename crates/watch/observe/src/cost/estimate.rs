//! Translation cost without a performance monitoring unit, from the times of first touches after a
//! clearing of accessed bits. Pure.
//!
//! First touches give the rates of visits to pages ([`Rates`]). The cost of a visit was timed on
//! this machine, on base pages and on huge pages ([`AccessTimes`]). It depends on the memory over
//! which visits spread, and on the number of visits under way at once. Each page is compared with
//! evenly visited memory in which a page is visited equally seldom. It is taken to cost as much as
//! a page of that memory.
//!
//! If each visit were waited for, all of them might take more time than there is. That gives the
//! least number of visits under way at once, and with it the saving by huge pages. The number of
//! TLB misses ([`tlb`](megapage_tlb)) is reported beside it.

use super::calibrate::{AccessTimes, OVERLAPS, Step, Timed};
use super::rates::Rates;
use super::touches::{History, Record, Touches};
use megapage_snapshot::{AccessClass, AccessProfile, CostSource, TranslationCost};
use megapage_tlb::{Class, EntrySize, Geometry, walks};
use megapage_units::{BASE_PAGE, HugePage};
use serde::Serialize;

/// Factor with an interval of about 90 %: `low <= likely <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Factor {
    /// Lower end.
    pub low: f64,
    /// Best guess.
    pub likely: f64,
    /// Upper end.
    pub high: f64,
}

/// Estimate, with its basis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Share of its processor time that the process spends in page walks.
    pub cost: TranslationCost,
    /// Speed-up by huge pages wherever they can be.
    pub gain: Factor,
    /// Page walks per second of processor time, of all sizes.
    pub walks: f64,
    /// Page walks per second of processor time if all memory that can be huge were.
    pub walks_when_huge: f64,
    /// Visits of base pages per second of processor time that the first level of the TLB does not
    /// answer.
    pub visits: f64,
    /// Time that huge pages would save each of these visits, in nanoseconds: the best guess.
    pub saved_ns: f64,
    /// True if access times are a guess, because this machine could not be timed.
    pub is_guess: bool,
    /// Memory over which the relevant visits spread, in bytes.
    pub footprint: f64,
    /// Share of the visits that come in the order of addresses, 0 to 1.
    pub streaming: f64,
    /// Visits under way at once if each were waited for; above 1 they overlap at least so far.
    pub under_way: f64,
    /// Main access pattern of the process.
    pub class: AccessClass,
    /// Number of sampled regions.
    pub regions: usize,
    /// Number of pages with an observed first touch.
    pub touches: f64,
    /// Processor seconds that the process took while it was sampled.
    pub cpu_seconds: f64,
    /// Profiles of the sampled regions, by first address.
    #[serde(skip)]
    pub profiles: Vec<(HugePage, AccessProfile)>,
}

/// Reason why there is no estimate.
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

/// Largest number of visits under way at once that are taken for dependent ones.
const MOST_DEPENDENT: f64 = 1.5;
/// Least proof of overlap: the visits need this many times as much time as there is. Timed accesses
/// come in bursts after others, and find less in the caches than a program at steady work.
const TOLERANCE: f64 = 1.5;
/// Further factor by which visits of a program may overlap, beyond the overlap that their rate
/// proves. A processor looks some hundred instructions ahead. Rarer visits overlap only if they
/// come in bunches.
const BUNCH: f64 = 3.0;
/// Greatest factor on the cost of a page walk by the program's other data, which push page tables
/// out of the caches. Timed accesses leave the caches to the page tables and to the lines that are
/// read.
const CACHE_SPREAD: f64 = 1.5;
/// Largest share that translation may take. The worst known share, with nested paging, stays below
/// it.
const LARGEST_SHARE: f64 = 0.8;

/// Estimates the cost and the gain from sampled touches.
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

    // Each thread has its own TLB. The rates are per second of all threads together.
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
    // In a stream, every page that the TLB does not hold walks once a round.
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
    // While a program does other work, its other data push page tables out of the caches.
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
    // Guessed times may save nothing, or twice as much.
    let (least, most) = if times.is_guess() { (0.0, 2.0) } else { (1.0 - noise, 1.0 + noise) };
    let spread = |share: f64, factor: f64| (share * factor).clamp(0.0, LARGEST_SHARE);
    let low = spread(found.low.all, least);
    let high = spread(found.high.all, most);
    let likely = found.likely.all.clamp(low, high);
    let gain = |share: f64| 1.0 / (1.0 - share);
    let gain_low = gain(spread(found.low.movable, least));
    let gain_high = gain(spread(found.high.movable, most));
    // An empty sum is a negative zero.
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
    /// Visits per second of processor time.
    rate: f64,
    /// True if the pages could be huge.
    movable: bool,
    /// True if the regions were full at the first reading, and the pages are few. Then `rate` is a
    /// lower bound. Such fast visits do not wait for each other.
    at_least: bool,
    /// Greatest rate for which there is time if `rate` is a lower bound; otherwise `rate`.
    most: f64,
    /// Amount of evenly visited memory with equally seldom visits of each page.
    bytes: f64,
    /// Times of such visits.
    step: Step,
}

impl Visits {
    /// Returns the overlap of these visits if others overlap by `overlap`.
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
        // Pages visited, on average, between two visits of one of these.
        let between: f64 = match class.rate > 0.0 {
            true => load.iter().map(|it| it.pages * (1.0 - (-it.rate / class.rate).exp())).sum(),
            false => 0.0,
        };
        // With even visits, a part of 1 - 1/e of the pages is visited in between.
        let pages = between / (1.0 - (-1.0f64).exp());
        let bytes = pages * BASE_PAGE as f64;
        let missed = (1.0 - f64::from(geometry.first_base) / pages.max(1.0)).max(0.0);
        let rate = class.pages * class.rate * parallel * missed * (1.0 - order.streaming);
        Visits { rate, movable, at_least: false, most: rate, bytes, step: times.at(bytes) }
    }
}

/// Leaves out visits to at most `least` bytes, the least timed memory: half the reach of the second
/// level of the TLB. Huge pages save next to nothing there. Limits the rates to the time there is,
/// the slowest visits first. So the limit falls on the fastest, which are known least. A page that
/// was touched a moment after its clearing may be visited a million times a second, or only then.
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

/// Returns the share of the time that visits would take if each were waited for. Leaves out those
/// with `at_least`, which are not waited for.
fn waited(visits: &[Visits]) -> f64 {
    visits.iter().filter(|it| !it.at_least).map(|it| it.rate * it.step.overlapping[0].base).sum::<f64>()
        * 1e-9
}

/// Visits of a program.
struct Demand<'a> {
    visits: &'a [Visits],
    /// Pages per second that are visited in order.
    stream: f64,
    /// Share of these that lie side by side in physical memory.
    contiguity: Option<f64>,
    /// Share of base pages that could be huge.
    could_be_huge: f64,
    times: &'a AccessTimes,
}

/// Share of the processor time: for all base pages, and for those that could be huge.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    all: f64,
    movable: f64,
}

/// Shares of the processor time that huge pages would save.
#[derive(Clone, Copy, Debug)]
struct Shares {
    low: Share,
    likely: Share,
    high: Share,
    under_way: f64,
}

impl Demand<'_> {
    /// Returns the time of the visits in each second. `overlap` is an index as in [`OVERLAPS`]; 0:
    /// each visit is waited for.
    fn time(&self, overlap: f64) -> f64 {
        let time = |it: &Visits| it.rate * at_overlap(&it.step, it.overlap(overlap), |timed| timed.base);
        self.visits.iter().map(time).sum::<f64>() * 1e-9
    }

    fn saved(&self, overlap: f64, of: impl Fn(&Timed) -> f64 + Copy) -> Share {
        self.saved_at(|visits| visits.rate, overlap, of)
    }

    /// Returns the same as `saved`, for visits at other rates.
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
        // Finds the least overlap with enough time: time falls as overlap rises.
        let (mut low, mut high) = (0.0, last);
        if under_way <= TOLERANCE {
            high = 0.0;
        }
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.time(middle) > TOLERANCE { low = middle } else { high = middle }
        }
        let least = high;
        // If the visits take more than the whole time, the savings shrink in proportion.
        let fits = |overlap: f64| 1.0 / self.time(overlap).max(1.0);
        let deepest = (least + BUNCH.log2()).min(last);
        let dependent = self.saved(least, Timed::saving).by(fits(least));
        let bunched = self.saved(deepest, Timed::saving).by(fits(deepest));
        // Visits that certainly overlap may do so just enough, or as far as the processor can, with
        // computing between.
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

    /// Returns the savings of a stream: low, likely and high. At full speed they are as timed. The
    /// slower the stream, the more of it is prefetched in time. Timed pages lie apart in physical
    /// memory, and the processor restarts its prefetching at each. It does not if the next page
    /// lies right behind.
    fn stream(&self) -> [f64; 3] {
        // The mean of the two largest steps is used: both lie in memory, and they differ little.
        let steps = self.times.steps();
        let large = &steps[steps.len().saturating_sub(2)..];
        let mean = |of: fn(&Timed) -> f64| {
            large.iter().map(|step| of(&step.stream)).sum::<f64>() / large.len().max(1) as f64
        };
        let base = mean(|timed| timed.base);
        let busy = (self.stream * base * 1e-9).min(1.0);
        let apart = self.contiguity.map(|share| (1.0 - share).clamp(0.0, 1.0));
        // Share not hidden behind computing: none up to a first part of full speed, all from a
        // second part on. The rate is an estimate from below.
        let of = |ratio: f64, (none, all): (f64, f64)| {
            let shows = ((busy - none) / (all - none)).clamp(0.0, 1.0);
            busy * (1.0 - 1.0 / ratio.max(1.0)) * shows
        };
        [
            apart.unwrap_or(0.0) * of(mean(|timed| timed.ratio[0]), (0.7, 1.0)),
            apart.unwrap_or(0.5) * of(mean(|timed| timed.base / timed.huge), (0.4, 0.8)),
            // A break costs more than its share if the pieces between breaks are short.
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

/// Interpolates between two timed overlaps.
fn at_overlap(step: &Step, overlap: f64, of: impl Fn(&Timed) -> f64) -> f64 {
    let low = (overlap as usize).min(OVERLAPS - 2);
    let along = overlap - low as f64;
    let [one, other] = [&step.overlapping[low], &step.overlapping[low + 1]].map(of);
    one + (other - one) * along
}

/// Returns the memory over which visits spread: the mean over all visits, weighted by their rates.
fn footprint(visits: &[Visits]) -> f64 {
    let all: f64 = visits.iter().map(|it| it.rate).sum();
    let sum: f64 = visits.iter().map(|it| it.rate * it.bytes).sum();
    if all > 0.0 { sum / all } else { 0.0 }
}

/// Histories of one kind, with the number of pages (or regions) of the process that they sample.
struct Stratum<'a> {
    /// Histories with readings that give rates, and the rates.
    histories: Vec<&'a History>,
    rates: Option<Rates>,
    /// Histories that were full at the first reading. Their rates come from closer looks, as far as
    /// there are any.
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
        // For full regions, closer looks show the most.
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

    /// Returns the number of the process's pages for which each sampled one stands.
    fn weight(&self) -> f64 {
        self.population / self.sampled
    }

    /// Returns the pages by rate, each with true if the rate is a lower bound.
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

    /// Returns one entry for each sampled region, with the visits of all its pages. It stands for
    /// the regions that were not sampled, too.
    fn classes_when_huge(&self) -> Vec<Class> {
        let of =
            |it: &&History| Class { size: EntrySize::Huge2m, pages: self.weight(), rate: self.visits(it) };
        self.regions().map(of).collect()
    }
}

/// Order in which pages are touched.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// Share of walks that come in the order of addresses.
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

/// Returns the relative sampling error, at 90 %: regions differ, and only few were sampled.
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

fn profiles(
    strata: [&Option<Stratum>; 4],
    class: AccessClass,
    order: Order,
) -> Vec<(HugePage, AccessProfile)> {
    let mut found: Vec<(HugePage, AccessProfile)> = Vec::new();
    for stratum in strata.into_iter().flatten() {
        for history in stratum.regions() {
            let own = match history.order() {
                Some((score, _)) if score > 0.5 => AccessClass::Streaming,
                Some(_) if order.streaming > 0.5 => AccessClass::Random,
                _ => class,
            };
            let visits = stratum.visits(history);
            found.push((history.page, AccessProfile { visits, class: own }));
        }
    }
    found.sort_by_key(|(page, _)| *page);
    // Several histories of one region become one: their visits are averaged, with more weight for
    // later ones.
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
