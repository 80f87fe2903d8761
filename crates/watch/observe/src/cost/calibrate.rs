//! The times of accesses on this machine, on base pages and on huge pages, measured on memory of
//! our own.

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

/// Time of one access, in nanoseconds, for one access order and one amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Time on base pages.
    pub base: f64,
    /// Time on huge pages.
    pub huge: f64,
    /// Bounds of the speed-up by huge pages (base over huge), with 90 % confidence, from the spread
    /// of the pairs of timings.
    pub ratio: [f64; 2],
}

impl Timed {
    /// Returns the time that huge pages save each access, in nanoseconds: the best guess. `ratio`
    /// shows its uncertainty.
    pub fn saving(&self) -> f64 {
        (self.base - self.huge).max(0.0)
    }
}

/// Times of accesses to one amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Amount of memory, in bytes.
    pub bytes: u64,
    /// Random accesses, by the number under way at once: [`OVERLAPS`].
    pub overlapping: [Timed; OVERLAPS],
    /// Pages read from the first to the last word, one page after the other.
    pub stream: Timed,
}

/// Number of degrees of overlap: 1, 2, 4 and 8 chains of dependent accesses, and accesses that do
/// not wait for each other.
pub const OVERLAPS: usize = 5;
const ORDERS: [AccessOrder; OVERLAPS] = [
    AccessOrder::Chains(1),
    AccessOrder::Chains(2),
    AccessOrder::Chains(4),
    AccessOrder::Chains(8),
    AccessOrder::Random,
];

/// Access times of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessTimes {
    /// Steps, ascending by memory. Never empty.
    steps: Vec<Step>,
    /// Number of timings. 0: none, the times are a guess.
    times: u32,
    /// Time of the latest timing, in seconds since 1970; 0 if unknown.
    #[serde(default)]
    taken: u64,
}

/// Least memory that is timed, in bytes: most of a smaller one is in the caches.
const LEAST_MEMORY: u64 = 64 << 20;
/// Largest memory that is timed if the user waits for it, in bytes. It is mapped twice, on base
/// pages and on huge pages. A debug build is for tests.
pub(super) const MOST_MEMORY: u64 = if cfg!(debug_assertions) { 128 << 20 } else { 512 << 20 };
/// Largest memory that is timed by a program that runs unasked beside all others, in bytes.
pub(super) const MOST_UNASKED: u64 = 128 << 20;
/// Divisor of the free memory: beyond the least, both mappings together take at most this part. The
/// page cache is of more use to others.
const SHARE_OF_FREE: u64 = 2;
/// Least number of warm-up accesses, and (below) number of timed accesses in each chain. A burst
/// takes some milliseconds in any order. Disturbances of some microseconds do not matter in that.
/// Other programs now and then take a shared processor, as they do from the programs under test. A
/// debug build is for tests.
const WARM: u64 = 6_000;
const TIMED: u64 = if cfg!(debug_assertions) { 1_000 } else { 16_000 };
/// Numbers of independent accesses, timed and warm-up, for each dependent one.
const UNWAITED: (u64, u64) = (16, 4);
/// Warm-up visits of each cache line of the page tables (8 entries), on average. A working program
/// returns to a line within about a millisecond and finds it in the caches. With fewer visits, most
/// accesses are the first to their line since the last burst, and wait for memory. Huge pages then
/// seem to save three times as much as they do.
const VISITS_OF_TABLES: u64 = 2;
/// Longest time of a timing; a longer one is given up. An emulated or crowded machine says nothing
/// about real accesses, and a caller may wait. This is several times the usual time.
const LONGEST: Duration = Duration::from_secs(20);
/// Number of pages in one timing of a stream.
const STREAM_PAGES: u64 = 4096;
/// Number of pairs of timings.
const PAIRS: usize = 13;
/// Number of page table entries in one cache line.
const ENTRIES_IN_A_LINE: u64 = 8;
/// Least share of huge memory in a timing of huge pages.
const LEAST_HUGE: f64 = 0.95;

/// Reason why nothing could be timed.
#[derive(Debug, thiserror::Error)]
pub enum NoTimes {
    /// There is too little memory.
    #[error("{0}")]
    Memory(String),
    /// Others need the memory.
    #[error("memory is short: tasks wait for it, or what was available was taken meanwhile")]
    Short,
    /// Too little memory lay on huge pages.
    #[error("only {0:.0} % of the memory to be timed could be had on huge pages")]
    NoHugePages(f64),
    /// Memory could not be mapped.
    #[error("memory to be timed: {0}")]
    Map(#[from] io::Error),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] megapage_kernel::KernelError),
    /// The machine is emulated, or too busy.
    #[error("timing accesses took more than {0} s: the machine is emulated, or too busy")]
    Slow(u64),
    /// The timings are implausible.
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

    /// Returns true if the steps ascend and every time and ratio is plausible.
    pub(super) fn is_sound(&self) -> bool {
        let ascends = self.steps.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        let sound = |timed: &Timed| {
            [timed.base, timed.huge].into_iter().all(|ns| ns.is_finite() && ns > 0.01 && ns < 1e6)
                && timed.ratio.into_iter().all(|ratio| ratio > 0.01 && ratio < 100.0)
        };
        let all = |step: &Step| step.overlapping.iter().chain([&step.stream]).all(sound);
        !self.steps.is_empty() && ascends && self.steps.iter().all(all)
    }

    /// Times this machine, with about 3 s of processor time. During that it takes from 128 MiB of
    /// memory up to twice `most`, as [`Spare::budget`] allows. Beyond the least it takes at most a
    /// half of the free memory. It takes memory 16 MiB at a time, and releases it at once if memory
    /// becomes short. Bursts on base pages and on huge pages alternate, so that other load disturbs
    /// both.
    pub fn measure(root: &KernelRoot, geometry: &Geometry, most: u64) -> Result<AccessTimes, NoTimes> {
        let found = Spare::read(root)?;
        found.allows(Bytes(2 * LEAST_MEMORY)).map_err(|why| NoTimes::Memory(why.to_string()))?;
        if found.pressed {
            return Err(NoTimes::Short);
        }
        // An unreadable state counts as short memory.
        let holds = |taken: u64| Spare::read(root).is_ok_and(|now| now.holds(&found, taken));
        AccessTimes::measure_within(root, geometry, room(&found, most), LONGEST, &holds)
    }

    /// Times this machine in twice `room` bytes. `holds` takes the bytes mapped so far, and returns
    /// true to go on.
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

    /// Returns the times of a quiet Zen 5 under KVM (Linux 6.18), for a machine that cannot be
    /// timed.
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

    /// Returns the median of several timings of one machine, value by value; `None` for no timing.
    /// Leaves out timings of another shape than the last. The pairs of one timing share the moment
    /// and the pages. So the uncertainty of the median follows from the spread between timings and
    /// from the interval of each.
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
            // The two times of a pair belong together: their ratio is the most certain value.
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

    /// Returns true if this machine could not be timed.
    pub fn is_guess(&self) -> bool {
        self.times == 0
    }

    /// Returns the number of timings of the machine.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Returns true if these times were made within `seconds` of the others.
    pub(super) fn is_near(&self, others: &AccessTimes, seconds: u64) -> bool {
        self.taken.abs_diff(others.taken) <= seconds
    }

    /// Returns the same times, made at another moment.
    #[cfg(test)]
    pub(super) fn made_at(self, taken: u64) -> AccessTimes {
        AccessTimes { taken, ..self }
    }

    /// Returns the bytes of the least timed memory beyond the reach of the first level of the TLB.
    pub(super) fn least(&self) -> f64 {
        self.steps.get(1).or(self.steps.first()).map_or(0.0, |step| step.bytes as f64)
    }

    /// Returns the steps, ascending by memory.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the times for this amount of memory. Between two steps it interpolates by the
    /// logarithm of the memory. Beyond the last, times rise as between the last two, for at most
    /// [`FARTHEST`] doublings.
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
            // The saving is extrapolated directly: a difference of two extrapolated times would be
            // mostly noise.
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

/// Returns the size of each of the two mappings, provided that the least is allowed.
fn room(spare: &Spare, most: u64) -> u64 {
    let free = (spare.free.0 / SHARE_OF_FREE / 2).max(LEAST_MEMORY);
    (spare.budget().0 / 2).min(free).min(most)
}

/// Doublings of memory beyond the last step over which times are taken to rise.
const FARTHEST: f64 = 2.0;

/// Returns the reach of the second level of the TLB with base pages, in bytes.
fn reach(geometry: &Geometry) -> u64 {
    u64::from(geometry.second.clamp(1024, 8192)) * BASE_PAGE as u64
}

/// Returns the sizes to time, in bytes. They are three quarters of the reach of the first level of
/// the TLB, then half, all and twice the reach of the second. The last two are a quarter of `most`,
/// and `most`.
fn sizes(geometry: &Geometry, most: u64) -> Vec<u64> {
    let reach = reach(geometry);
    let rounded = |bytes: u64| (bytes / HUGE_2M as u64).max(1) * HUGE_2M as u64;
    let mut sizes = vec![u64::from(geometry.first_base.clamp(16, 512)) * BASE_PAGE as u64 * 3 / 4];
    sizes.extend([reach / 2, reach, 2 * reach, most / 4, most].map(|bytes| rounded(bytes).min(most)));
    sizes.sort_unstable();
    // Two nearly equal sizes would show noise.
    sizes.dedup_by(|later, kept| 2 * *later < 3 * *kept);
    sizes
}

/// Returns the share of the memory on huge pages.
fn huge_share(root: &KernelRoot, memory: &TimedMemory) -> Result<f64, NoTimes> {
    let own = Pid(std::process::id().cast_signed());
    let range = memory.range();
    let regions = Pagemap::open(root, own)?.regions(range)?;
    if regions.iter().all(|region| region.huge.is_some()) {
        let huge =
            regions.iter().filter(|region| region.huge == Some(true) && region.present == PAGES).count();
        return Ok(huge as f64 / regions.len().max(1) as f64);
    }
    // Before Linux 6.7 only the sums by mapping show it.
    let mappings = read_smaps(root, own)?;
    let mapping =
        mappings.iter().find(|it| it.range.start() <= range.start() && range.end() <= it.range.end());
    Ok(mapping.map_or(0.0, |it| it.backing().huge().0 as f64 / range.len().0 as f64).min(1.0))
}

/// Two mappings of the same size.
struct Pair {
    base: TimedMemory,
    huge: TimedMemory,
}

/// Timings of one size: all degrees of overlap, then a stream.
type Round = [f64; OVERLAPS + 1];

impl Pair {
    /// Times every order on both mappings. `resident` is set for memory so small that a program
    /// finds it again in the caches and in the TLB. Then each mapping is read once right before it
    /// is timed. Returns `None` if this is not done by `until`.
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
                    // Each round uses other places.
                    let seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let timed = |order| burst(memory, order, within, seed);
                    let [one, two, four, eight, random] = ORDERS.map(timed);
                    [one, two, four, eight, random, timed(AccessOrder::Stream)]
                };
                // The second mapping meets other caches, so that the order alternates.
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

/// Returns the nanoseconds of each access.
fn burst(memory: &TimedMemory, order: AccessOrder, bytes: usize, seed: u64) -> f64 {
    let tables = WARM.max(VISITS_OF_TABLES * bytes as u64 / BASE_PAGE as u64 / ENTRIES_IN_A_LINE);
    let (warm, count) = match order {
        AccessOrder::Stream => (STREAM_PAGES / 8, STREAM_PAGES),
        AccessOrder::Chains(count) => (tables, TIMED * u64::from(count)),
        AccessOrder::Random => (tables * UNWAITED.1, TIMED * UNWAITED.0),
    };
    memory.read(order, bytes, warm, seed);
    let start = own_thread_time();
    // Other lines are timed: a program does not return to those that it has just read.
    memory.read(order, bytes, count, seed.wrapping_add(warm));
    (own_thread_time() - start).as_secs_f64() * 1e9 / count as f64
}

/// Summarizes pairs of times on base and on huge pages. The ratio is the median one, with its
/// interval (sign test). The time on huge pages is the lower quartile, which was disturbed least.
fn summary(pairs: &[[f64; 2]]) -> Timed {
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(pairs.iter().map(|[base, huge]| base / huge.max(1e-9)).collect());
    let huge = sorted(pairs.iter().map(|[_, huge]| *huge).collect());
    let huge = huge[huge.len() / 4];
    // Among 13 values, the 4th to the 10th hold the median with 91 %.
    let reach = (pairs.len() as f64 / 2.0 - 0.83 * (pairs.len() as f64).sqrt()).max(0.0) as usize;
    let (low, high) = (ratios[reach], ratios[ratios.len() - 1 - reach]);
    Timed { base: huge * ratios[ratios.len() / 2], huge, ratio: [low, high] }
}

/// Returns the 90 % ends of the ratio `middle`, the median of the ratios of `all`. They combine the
/// spread between timings (Student's t) with the spread within each; both shrink with the number of
/// timings.
fn ends(all: &[Timed], middle: f64) -> [f64; 2] {
    let count = all.len() as f64;
    if all.len() < 2 {
        return all.first().map_or([middle; 2], |it| it.ratio);
    }
    // One-sided 5 % of Student's t, by degrees of freedom. With more degrees it is nearly that of
    // the normal distribution.
    const STUDENT: [f64; 5] = [6.31, 2.92, 2.35, 2.13, 2.02];
    let student = STUDENT.get(all.len() - 2).copied().unwrap_or(1.9);
    let logarithms: Vec<f64> = all.iter().map(|it| (it.base / it.huge).ln()).collect();
    let mean = logarithms.iter().sum::<f64>() / count;
    let variance = logarithms.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let between = student * student * variance;
    let end = |end: usize| {
        let within: f64 =
            all.iter().map(|it| (it.ratio[end] * it.huge / it.base).ln().powi(2)).sum::<f64>() / count;
        // A median is less certain than a mean, by this factor.
        1.25 * ((between + within) / count).sqrt()
    };
    [middle * (-end(0)).exp(), middle * end(1).exp()]
}

/// Returns the times of a synthetic machine, multiplied by `factor`.
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
