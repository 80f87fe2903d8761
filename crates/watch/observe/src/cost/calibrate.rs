//! What accesses take on this machine, on base pages and on huge ones: timed on memory of our own.

use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spare::Spare;
use megapage_kernel::{AccessOrder, KernelRoot, TimedMemory, TimedPages};
use megapage_snapshot::PAGES;
use megapage_tlb::Geometry;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One way of access, on as much memory: the time of one access, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// On base pages.
    pub base: f64,
    /// On huge pages.
    pub huge: f64,
    /// How many times as fast huge pages are: at least and at most, with 90 %, as the pairs of timings differ.
    pub ratio: [f64; 2],
}

impl Timed {
    /// What huge pages save each access, in nanoseconds: the best guess, however unsure; `ratio` says how unsure.
    pub fn saving(&self) -> f64 {
        (self.base - self.huge).max(0.0)
    }
}

/// Accesses to so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The memory, in bytes.
    pub bytes: u64,
    /// Random accesses, by how many are under way at once: [`OVERLAPS`].
    pub overlapping: [Timed; OVERLAPS],
    /// A page read from its first to its last word, one page after the other.
    pub stream: Timed,
}

/// Degrees of overlap that are timed: 1, 2, 4 and 8 chains of dependent accesses, and accesses that do not wait for each
/// other.
pub const OVERLAPS: usize = 5;
const ORDERS: [AccessOrder; OVERLAPS] = [
    AccessOrder::Chains(1),
    AccessOrder::Chains(2),
    AccessOrder::Chains(4),
    AccessOrder::Chains(8),
    AccessOrder::Random,
];

/// The timings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessTimes {
    /// By memory, ascending; the first is held by the second level of the TLB, the others are not. Never empty.
    steps: Vec<Step>,
    /// How often all was timed. 0: never, they are a guess.
    times: u32,
    /// When, in seconds since 1970, the latest; 0 where that is unknown.
    #[serde(default)]
    taken: u64,
}

/// Less is not worth timing: most of it is in the caches.
const LEAST_MEMORY: u64 = 64 << 20;
/// The most memory that is timed where the user waits for it; there are two of it, on base pages
/// and on huge ones. A debug build is for tests.
pub(super) const MOST_MEMORY: u64 = if cfg!(debug_assertions) { 128 << 20 } else { 512 << 20 };
/// The most for a program that runs beside all others, unasked.
pub(super) const MOST_UNASKED: u64 = 128 << 20;
/// The share of the free memory beyond which no more than the least is timed: the page cache is of
/// more use to others.
const SHARE_OF_FREE: u64 = 2;
/// Accesses that are made first, at least; and those then timed, in each of as many chains as there are side by side: a
/// burst takes some milliseconds in any order. What disturbs it for some microseconds is lost in that, and a processor
/// that is shared is lost to others now and then, as it is to the programs that are judged. A debug build is for tests.
const WARM: u64 = 6_000;
const TIMED: u64 = if cfg!(debug_assertions) { 1_000 } else { 16_000 };
/// How many accesses that wait for nothing are timed, and made first, for one that does.
const UNWAITED: (u64, u64) = (16, 4);
/// How often each cache line of the page tables (8 entries) is visited first, on average. A program at its work comes back
/// to it within a millisecond or some and finds it in the caches; after fewer visits most accesses are the first to
/// their line since the last burst, which wait for memory, and huge pages seem to save three times as much as they do.
const VISITS_OF_TABLES: u64 = 2;
/// A timing that takes longer is given up: an emulated or a crowded machine says nothing of real accesses, and a caller
/// may wait. Several times what it takes.
const LONGEST: Duration = Duration::from_secs(20);
/// Pages in one timing of a stream.
const STREAM_PAGES: u64 = 4096;
/// Pairs of timings.
const PAIRS: usize = 13;
/// Entries of a page table in one cache line.
const ENTRIES_IN_A_LINE: u64 = 8;
/// How much memory must be huge for a timing of huge pages to be one.
const LEAST_HUGE: f64 = 0.95;

/// Why nothing could be timed.
#[derive(Debug, thiserror::Error)]
pub enum NoTimes {
    /// There is too little memory.
    #[error("{0}")]
    Memory(String),
    /// Others need the memory.
    #[error("memory is short: tasks wait for it, or what was available was taken meanwhile")]
    Short,
    /// No huge pages could be had.
    #[error("only {0:.0} % of the memory to be timed could be had on huge pages")]
    NoHugePages(f64),
    /// Memory could not be mapped.
    #[error("memory to be timed: {0}")]
    Map(#[from] io::Error),
    /// A kernel file.
    #[error(transparent)]
    Kernel(#[from] megapage_kernel::KernelError),
    /// The machine is emulated, or has no time.
    #[error("timing accesses took more than {0} s: the machine is emulated, or too busy")]
    Slow(u64),
    /// The timings are not those of a machine.
    #[error("the timings make no sense")]
    Senseless,
}

impl AccessTimes {
    /// Returns times from a table, ascending by memory, if they are sound.
    #[cfg(test)]
    pub(super) fn from_table(steps: Vec<Step>) -> Option<AccessTimes> {
        let times = AccessTimes { steps, times: 1, taken: 0 };
        times.is_sound().then_some(times)
    }

    /// Whether every value is one.
    pub(super) fn is_sound(&self) -> bool {
        let ascends = self.steps.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        let sound = |timed: &Timed| {
            [timed.base, timed.huge].into_iter().all(|ns| ns.is_finite() && ns > 0.01 && ns < 1e6)
                && timed.ratio.into_iter().all(|ratio| ratio > 0.01 && ratio < 100.0)
        };
        let all = |step: &Step| step.overlapping.iter().chain([&step.stream]).all(sound);
        !self.steps.is_empty() && ascends && self.steps.iter().all(all)
    }

    /// Times this machine: about 3 s of processor time, and for as long 128 MiB of memory up to
    /// twice `most`, as [`Spare::budget`] allows; beyond the least at most a half of what is free.
    /// It is taken 16 MiB at a time, and released at once where memory becomes short. Bursts on
    /// base pages and on huge pages take turns, so that what else the machine does falls on both.
    pub fn measure(root: &KernelRoot, geometry: &Geometry, most: u64) -> Result<AccessTimes, NoTimes> {
        let found = Spare::read(root)?;
        found.allows(Bytes(2 * LEAST_MEMORY)).map_err(|why| NoTimes::Memory(why.to_string()))?;
        if found.pressed {
            return Err(NoTimes::Short);
        }
        // Where it cannot be looked at any more, that is unknown.
        let holds = |taken: u64| Spare::read(root).is_ok_and(|now| now.holds(&found, taken));
        AccessTimes::measure_within(root, geometry, room(&found, most), LONGEST, &holds)
    }

    /// The same in twice `room` bytes. `holds` is given how much of it is taken, and says whether that can go on.
    fn measure_within(
        root: &KernelRoot,
        geometry: &Geometry,
        room: u64,
        longest: Duration,
        holds: &dyn Fn(u64) -> bool,
    ) -> Result<AccessTimes, NoTimes> {
        let until = Instant::now() + longest;
        let sizes = sizes(geometry, room);
        let most = *sizes.last().unwrap_or(&LEAST_MEMORY);
        let map = |pages, before: u64| {
            let mapped =
                TimedMemory::map(most as usize, pages, &mut |present| holds(before + present as u64));
            mapped?.ok_or(NoTimes::Short)
        };
        let base = map(TimedPages::Base, 0)?;
        let huge = map(TimedPages::Huge, most)?;
        let share = huge_share(root, &huge)?;
        if share < LEAST_HUGE {
            return Err(NoTimes::NoHugePages(100.0 * share));
        }
        let pair = Pair { base, huge };
        let cached = 2 * reach(geometry);
        let mut steps = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            if !holds(2 * most) {
                return Err(NoTimes::Short);
            }
            let step = pair.step(bytes, bytes <= cached, until);
            steps.push(step.ok_or(NoTimes::Slow(longest.as_secs()))?);
        }
        drop(pair);
        let taken = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let times = AccessTimes { steps, times: 1, taken };
        if times.is_sound() { Ok(times) } else { Err(NoTimes::Senseless) }
    }

    /// For a machine that cannot be timed: as on a quiet Zen 5 under KVM (Linux 6.18).
    pub fn guessed() -> AccessTimes {
        let timed = |(base, huge): (f64, f64)| Timed { base, huge, ratio: [base / huge; 2] };
        let step = |mib: u64, pairs: [(f64, f64); OVERLAPS + 1]| {
            let [one, two, four, eight, random, stream] = pairs.map(timed);
            Step { bytes: mib << 20, overlapping: [one, two, four, eight, random], stream }
        };
        let steps = vec![
            step(4, [(60.0, 60.0), (30.0, 30.0), (16.0, 16.0), (9.0, 9.0), (5.0, 5.0), (90.0, 90.0)]),
            step(16, [(150.0, 140.0), (80.0, 75.0), (40.0, 38.0), (20.0, 19.0), (9.0, 8.8), (90.0, 90.0)]),
            step(
                64,
                [(175.0, 157.0), (90.0, 81.0), (42.0, 38.5), (22.0, 20.5), (10.4, 10.0), (195.0, 128.0)],
            ),
            step(
                256,
                [(260.0, 190.0), (120.0, 95.0), (58.0, 45.0), (28.0, 23.0), (12.5, 10.6), (195.0, 128.0)],
            ),
        ];
        AccessTimes { steps, times: 0, taken: 0 }
    }

    /// The median of several timings of one machine, value by value; `None` of none. Those of another shape than the
    /// last are left out. The pairs of one timing were made at one moment and on the same pages: how sure the median of
    /// several is, their difference shows it, and what each knows of itself beside it.
    pub fn median(all: &[AccessTimes]) -> Option<AccessTimes> {
        let last = all.last()?;
        let sizes = |times: &AccessTimes| times.steps.iter().map(|step| step.bytes).collect::<Vec<_>>();
        let alike: Vec<&AccessTimes> = all.iter().filter(|times| sizes(times) == sizes(last)).collect();
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let [low, high] = [(values.len() - 1) / 2, values.len() / 2].map(|at| values[at]);
            (low + high) / 2.0
        };
        let timed = |of: &dyn Fn(&AccessTimes) -> Timed| {
            let all: Vec<Timed> = alike.iter().map(|times| of(times)).collect();
            let number = |of: &dyn Fn(&Timed) -> f64| middle(all.iter().map(of).collect());
            let huge = number(&|it| it.huge);
            // Pairs were timed together: their ratio is what is known best.
            let ratio = number(&|it| it.base / it.huge);
            Timed { base: huge * ratio, huge, ratio: ends(&all, ratio) }
        };
        let step = |at: usize| Step {
            bytes: last.steps[at].bytes,
            overlapping: std::array::from_fn(|n| timed(&|times| times.steps[at].overlapping[n])),
            stream: timed(&|times| times.steps[at].stream),
        };
        let times = alike.iter().fold(0u32, |sum, it| sum.saturating_add(it.times));
        let taken = alike.iter().map(|it| it.taken).max().unwrap_or(0);
        let steps = (0..last.steps.len()).map(step).collect();
        Some(AccessTimes { steps, times, taken })
    }

    /// Whether this machine could not be timed.
    pub fn is_guess(&self) -> bool {
        self.times == 0
    }

    /// How often the machine was timed.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Whether they were made within `seconds` of others.
    pub(super) fn is_near(&self, others: &AccessTimes, seconds: u64) -> bool {
        self.taken.abs_diff(others.taken) <= seconds
    }

    /// The same, made at another moment.
    #[cfg(test)]
    pub(super) fn made_at(self, taken: u64) -> AccessTimes {
        AccessTimes { taken, ..self }
    }

    /// Bytes of the least memory that was timed beyond what the first level of the TLB holds.
    pub(super) fn least(&self) -> f64 {
        self.steps.get(1).or(self.steps.first()).map_or(0.0, |step| step.bytes as f64)
    }

    /// By memory, ascending.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The times for so much memory: between two timings by the logarithm of the memory; beyond the last they rise on
    /// as between the last two, for as long as [`FARTHEST`] says.
    pub fn at(&self, bytes: f64) -> Step {
        let steps = &self.steps;
        let at = steps.partition_point(|step| (step.bytes as f64) < bytes).clamp(1, steps.len().max(2) - 1);
        let (Some(low), Some(high)) = (steps.get(at - 1), steps.get(at)) else { return steps[0] };
        let span = (high.bytes as f64 / low.bytes as f64).log2();
        let beyond = 1.0 + FARTHEST / span;
        let along = ((bytes.max(1.0) / low.bytes as f64).log2() / span).clamp(0.0, beyond);
        let between = |low: f64, high: f64| {
            if along > 1.0 {
                high + (high - low).max(0.0) * (along - 1.0)
            } else {
                low + (high - low) * along
            }
        };
        let mix = |low: &Timed, high: &Timed| {
            let huge = between(low.huge, high.huge);
            // What is saved rises by itself: as a difference of two risen times it would be mostly noise.
            let saving = between(low.saving(), high.saving());
            let ratio =
                [0, 1].map(|end| low.ratio[end] + (high.ratio[end] - low.ratio[end]) * along.min(1.0));
            Timed { base: huge + saving, huge, ratio }
        };
        Step {
            bytes: bytes as u64,
            overlapping: std::array::from_fn(|n| mix(&low.overlapping[n], &high.overlapping[n])),
            stream: mix(&low.stream, &high.stream),
        }
    }
}

/// Returns the size of each of the two, where the least is allowed.
fn room(spare: &Spare, most: u64) -> u64 {
    let free = (spare.free.0 / SHARE_OF_FREE / 2).max(LEAST_MEMORY);
    (spare.budget().0 / 2).min(free).min(most)
}

/// Doublings of memory beyond the last timing over which times are taken to rise on.
const FARTHEST: f64 = 2.0;

/// What the second level of the TLB reaches with base pages, in bytes.
fn reach(geometry: &Geometry) -> u64 {
    u64::from(geometry.second.clamp(1024, 8192)) * BASE_PAGE as u64
}

/// Memory that is timed: what the first level of the TLB holds; a half of what the second does, all of that, twice that;
/// then as much as may be, and a quarter of that.
fn sizes(geometry: &Geometry, most: u64) -> Vec<u64> {
    let reach = reach(geometry);
    let rounded = |bytes: u64| (bytes / HUGE_2M as u64).max(1) * HUGE_2M as u64;
    let mut sizes = vec![u64::from(geometry.first_base.clamp(16, 512)) * BASE_PAGE as u64 * 3 / 4];
    sizes.extend([reach / 2, reach, 2 * reach, most / 4, most].map(|bytes| rounded(bytes).min(most)));
    sizes.sort_unstable();
    // Two that are nearly the same show noise.
    sizes.dedup_by(|later, kept| 2 * *later < 3 * *kept);
    sizes
}

/// How much of the memory lies on huge pages.
fn huge_share(root: &KernelRoot, memory: &TimedMemory) -> Result<f64, NoTimes> {
    let own = Pid(std::process::id().cast_signed());
    let range = memory.range();
    let regions = Pagemap::open(root, own)?.regions(range)?;
    if regions.iter().all(|region| region.huge.is_some()) {
        let huge =
            regions.iter().filter(|region| region.huge == Some(true) && region.present == PAGES).count();
        return Ok(huge as f64 / regions.len().max(1) as f64);
    }
    // Before 6.7 only the sums by mapping show it.
    let mappings = read_smaps(root, own)?;
    let mapping =
        mappings.iter().find(|it| it.range.start() <= range.start() && range.end() <= it.range.end());
    Ok(mapping.map_or(0.0, |it| it.backing().huge().0 as f64 / range.len().0 as f64).min(1.0))
}

/// The same memory twice.
struct Pair {
    base: TimedMemory,
    huge: TimedMemory,
}

/// Timings of one size: of all degrees of overlap, then of a stream.
type Round = [f64; OVERLAPS + 1];

impl Pair {
    /// Times every order on both. `resident`: so little that a program which comes back to it finds it where it left it,
    /// in the caches and in the TLB; both then have it there when they are timed, one after the other. `None` where that
    /// is not done by `until`.
    fn step(&self, bytes: u64, resident: bool, until: Instant) -> Option<Step> {
        let within = bytes as usize;
        let rounds: Option<Vec<[Round; 2]>> = (0..PAIRS as u64)
            .map(|round| {
                if Instant::now() >= until {
                    return None;
                }
                let of = |memory: &TimedMemory| {
                    if resident {
                        memory.read(AccessOrder::Stream, within, bytes / BASE_PAGE as u64, 0);
                    }
                    // Other places in each round.
                    let seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let timed = |order| burst(memory, order, within, seed);
                    let [one, two, four, eight, random] = ORDERS.map(timed);
                    [one, two, four, eight, random, timed(AccessOrder::Stream)]
                };
                // The one that goes second meets other caches: they take turns at that, too.
                Some(if round % 2 == 0 {
                    let base = of(&self.base);
                    [base, of(&self.huge)]
                } else {
                    let huge = of(&self.huge);
                    [of(&self.base), huge]
                })
            })
            .collect();
        let rounds = rounds?;
        let timed = |order: usize| {
            summary(&rounds.iter().map(|round| [round[0][order], round[1][order]]).collect::<Vec<_>>())
        };
        Some(Step { bytes, overlapping: std::array::from_fn(timed), stream: timed(OVERLAPS) })
    }
}

/// Nanoseconds of each access.
fn burst(memory: &TimedMemory, order: AccessOrder, bytes: usize, seed: u64) -> f64 {
    let tables = WARM.max(VISITS_OF_TABLES * bytes as u64 / BASE_PAGE as u64 / ENTRIES_IN_A_LINE);
    let (warm, count) = match order {
        AccessOrder::Stream => (STREAM_PAGES / 8, STREAM_PAGES),
        AccessOrder::Chains(count) => (tables, TIMED * u64::from(count)),
        AccessOrder::Random => (tables * UNWAITED.1, TIMED * UNWAITED.0),
    };
    memory.read(order, bytes, warm, seed);
    let start = own_thread_time();
    // Other lines: a program does not come back to those that it has just read.
    memory.read(order, bytes, count, seed.wrapping_add(warm));
    (own_thread_time() - start).as_secs_f64() * 1e9 / count as f64
}

/// Of pairs of times on base and on huge pages: the ratio is the median one, with its interval (sign test); the time on
/// huge pages is of the quarter that was disturbed least.
fn summary(pairs: &[[f64; 2]]) -> Timed {
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(pairs.iter().map(|[base, huge]| base / huge.max(1e-9)).collect());
    let huge = sorted(pairs.iter().map(|[_, huge]| *huge).collect());
    let huge = huge[huge.len() / 4];
    // Of 13 values the 4th and the 10th hold the median with 91 %.
    let reach = (pairs.len() as f64 / 2.0 - 0.83 * (pairs.len() as f64).sqrt()).max(0.0) as usize;
    let (low, high) = (ratios[reach], ratios[ratios.len() - 1 - reach]);
    Timed { base: huge * ratios[ratios.len() / 2], huge, ratio: [low, high] }
}

/// The 90 % ends of the ratio `middle`, the median of those of `all`: the spread between timings (Student's t), and that
/// within each, which several make narrower.
fn ends(all: &[Timed], middle: f64) -> [f64; 2] {
    let count = all.len() as f64;
    if all.len() < 2 {
        return all.first().map_or([middle; 2], |it| it.ratio);
    }
    // One-sided 5 % of Student's t, by degrees of freedom; with more it is nearly the normal distribution's.
    const STUDENT: [f64; 5] = [6.31, 2.92, 2.35, 2.13, 2.02];
    let student = STUDENT.get(all.len() - 2).copied().unwrap_or(1.9);
    let logarithms: Vec<f64> = all.iter().map(|it| (it.base / it.huge).ln()).collect();
    let mean = logarithms.iter().sum::<f64>() / count;
    let variance = logarithms.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let between = student * student * variance;
    let end = |end: usize| {
        let within: f64 =
            all.iter().map(|it| (it.ratio[end] * it.huge / it.base).ln().powi(2)).sum::<f64>() / count;
        // A median is known worse than a mean, by this factor.
        1.25 * ((between + within) / count).sqrt()
    };
    [middle * (-end(0)).exp(), middle * end(1).exp()]
}

/// Times as on a synthetic machine, all of them times `factor`.
#[cfg(test)]
pub(super) fn synthetic(factor: f64) -> AccessTimes {
    let mut times = AccessTimes { times: 1, ..AccessTimes::guessed() };
    for step in &mut times.steps {
        for timed in step.overlapping.iter_mut().chain([&mut step.stream]) {
            timed.base *= factor;
            timed.huge *= factor;
        }
    }
    times
}

#[cfg(test)]
#[path = "calibrate_tests.rs"]
mod tests;
