//! Samples of the times of first touches: clears a few regions at a time, and reads them several
//! times.
//!
//! A first touch after a clearing costs the target about as much as ten TLB misses. It may come
//! long after the last reading. So every cleared bit is charged as if its page were touched. The
//! number of cleared bits keeps the slow-down of the target within the budget even then. Reading
//! costs the target nothing.

use super::contiguity;
use super::touches::{History, Reading, Touches, neighbours_among};
use crate::tracker::{PageBits, TrackError, Tracker};
use megapage_kernel::clear_refs::clear_accessed;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::{KernelRoot, ProcessClock};
use megapage_snapshot::{Leaf, MappingKind, PAGES, Process, Region, TrackerKind};
use megapage_units::{HugePage, Pid, VirtRange};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Options of a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeOptions {
    /// Duration of the probe.
    pub time: Duration,
    /// Largest slow-down of the target, as a share of its processor time.
    pub budget: f64,
    /// Cost of a first touch after a clearing to the target, in nanoseconds.
    pub first_access_ns: f64,
    /// Seed for the choice of regions.
    pub seed: u64,
}

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Times of the readings after the clearing, in a quick round and in a slow one. Steps grow by 3.16
/// each; a tracker that needs longer for one reading skips some.
const QUICK: [Duration; 5] = [us(0), us(100), us(316), us(1000), us(3160)];
const SLOW: [Duration; 6] = [us(1000), us(3160), us(10_000), us(31_600), us(100_000), us(316_000)];
/// Times of the readings after the clearing of shared memory, which is read as a whole.
const WHOLE: [Duration; 7] = [us(0), us(1000), us(3160), us(10_000), us(31_600), us(100_000), us(316_000)];
/// Regions in a quick round: few, so that clearing and reading them takes less than a step.
const QUICK_REGIONS: usize = 2;
/// Quick rounds for each slow one.
const QUICK_ROUNDS: usize = 2;
/// Largest number of regions in a slow round. First touches of 16,000 cleared pages within some
/// milliseconds delay a process by a part of these, and it seems slower than it is. Also, reading
/// must not take longer than the first step.
const MOST_REGIONS: usize = 32;
/// Regions on huge pages in a slow round: one bit each.
const HUGE_REGIONS: usize = 64;
/// One in this many probed regions is a quiet one. Quiet regions are mostly alike, so that a few
/// stand for all.
const QUIET_TURN: usize = 4;
/// Largest number of regions that wait for a closer look.
const MOST_HOT: usize = 64;
/// Longest wait for the first round of a process of shared memory, in multiples of the requested
/// time.
const LONGEST_WAIT: f64 = 4.0;
/// Least usage, in processors, of a process that is waited for.
const LEAST_USAGE: f64 = 0.05;
/// Least part of its time in which a process is taken to progress, however much first touches delay
/// it.
const LEAST_PROGRESS: f64 = 0.2;
/// Part of the cost of a first touch that counts as delay. Other visits of the process take page
/// walks, too, and a part of the cost overlaps.
const DELAYED: f64 = 0.5;
/// Greatest factor by which slow rounds of a target that runs only part of the time are stretched.
const LONGEST_STRETCH: f64 = 8.0;

/// Probes `process`, with the regions `process.regions`, using `tracker`. `wait` sleeps for a time,
/// and returns true to go on. Probes fewer of the `quiet` regions, in which no sample of accesses
/// has found a touched page ([`Touches::stratify`]). Returns the samples until the process ended.
/// Fails if the first cycle of rounds fails, or a later one for a reason other than the end of the
/// process.
///
/// Leaves out memory that other processes map, too, because MADV_COLD does not touch it. A process
/// that mostly uses shared memory ([`uses_shared`]) is judged by that alone, if the tracker reads
/// page tables. Its accessed bits are cleared all at once (`clear_refs`), at the cost of every page
/// that it has.
pub fn probe(
    root: &KernelRoot,
    tracker: &mut dyn Tracker,
    process: &Process,
    quiet: &BTreeMap<HugePage, u16>,
    options: &ProbeOptions,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<Touches, TrackError> {
    let pid = process.id.pid;
    let shared = uses_shared(process) && tracker.kind() == TrackerKind::Bpf;
    let (base, huge): (Vec<&Region>, Vec<&Region>) = process
        .regions
        .iter()
        .filter(|region| if shared { is_shared(process, region) } else { is_private(process, region) })
        .partition(|it| it.leaf == Leaf::Base);
    let pages = |which: bool| {
        let counted = base.iter().filter(|region| (shared || is_promotable(process, region)) == which);
        counted.map(|region| u64::from(region.present)).sum()
    };
    let clock = ProcessClock::open(root, pid).map_err(|_| TrackError::Gone(pid))?;
    let start = Moment::now(&clock, pid)?;
    let mut run = Run {
        root,
        tracker,
        pid,
        clock: &clock,
        start,
        touches: Touches {
            promotable_pages: pages(true),
            quiet_pages: 0,
            other_pages: pages(false),
            huge_regions: huge.len() as u64,
            parallel: 1.0,
            ..Touches::default()
        },
        wait,
        spent: 0.0,
        cpu: 0.0,
        hot: VecDeque::new(),
        shared,
        first_access: options.first_access_ns * 1e-9,
    };
    let all = base.clone();
    let mut base = Decks::new(base, quiet, options.seed);
    let mut huge = Deck::new(huge, options.seed ^ 1);
    let whole = options.time.as_secs_f64();
    let allowance = |run: &Run| {
        // Mean of the processor time so far and of the projected total: in the end it is the total.
        let ahead = (run.now().map_or(0.0, |now| now.cpu) + whole * run.usage()) / 2.0;
        (options.budget * ahead.max(0.0) / (options.first_access_ns.max(1.0) * 1e-9)) - run.spent
    };
    let mut first = true;
    // If the budget does not pay for the first round in the requested time, the probe goes on for
    // longer: otherwise it would find nothing.
    let longest = |first: bool, run: &Run| match first && run.usage() > LEAST_USAGE {
        true => options.time.mul_f64(LONGEST_WAIT),
        false => options.time,
    };
    while shared && start.wall.elapsed() < longest(first, &run) {
        // A round takes all regions or none: it waits until the budget pays for all.
        let paid = allowance(&run) >= resident_pages(process);
        let chosen = if paid { &all[..] } else { &[] };
        match run.round(process, chosen, &WHOLE, 1.0, false) {
            Ok(()) => {}
            Err(Stop::Track(error)) if first || !is_end(&error) => return Err(error),
            Err(_) => break,
        }
        first &= !paid;
    }
    while !shared && start.wall.elapsed() < options.time {
        let outcome = (0..QUICK_ROUNDS)
            .try_for_each(|_| {
                // Random regions alternate with one that was full at the first reading: with fewer
                // regions, readings come sooner.
                if run.affordable(allowance(&run)) > 0
                    && let Some(hot) = run.next_hot(&process.regions)
                {
                    run.round(process, &[hot], &QUICK, 1.0, true)?;
                }
                let affordable = run.affordable(allowance(&run)).min(QUICK_REGIONS);
                let chosen = base.deal(affordable.max(usize::from(first)));
                run.round(process, &chosen, &QUICK, 1.0, false)
            })
            .and_then(|()| {
                let affordable = run.affordable(allowance(&run)).min(MOST_REGIONS);
                let mut chosen = base.deal(affordable);
                chosen.extend(huge.deal(HUGE_REGIONS));
                let left = options.time.saturating_sub(start.wall.elapsed()).as_secs_f64();
                let longest = SLOW[SLOW.len() - 1].as_secs_f64();
                let stretch = (1.0 / run.usage().max(0.01)).clamp(1.0, LONGEST_STRETCH);
                run.round(process, &chosen, &SLOW, stretch.min((left / longest).max(0.1)), false)
            });
        match outcome {
            Ok(()) => {}
            Err(Stop::Asked) => break,
            Err(Stop::Track(error)) if first || !is_end(&error) => return Err(error),
            Err(Stop::Track(_)) => break,
        }
        first = false;
    }
    let mut touches = run.finish();
    touches.stratify(quiet);
    Ok(touches)
}

/// Returns true if the process ended or was replaced. Samples until then hold.
fn is_end(error: &TrackError) -> bool {
    matches!(error, TrackError::Gone(_)) || matches!(error, TrackError::Kernel(error) if error.is_gone())
}

/// Returns true if a process has more than four times as much shared memory as private memory.
pub fn uses_shared(process: &Process) -> bool {
    let pages = |which: &dyn Fn(&Region) -> bool| -> u64 {
        let counted = process.regions.iter().filter(|region| which(region));
        counted.map(|region| u64::from(region.present)).sum()
    };
    pages(&|region| is_shared(process, region)) > 4 * pages(&|region| is_private(process, region))
}

/// Returns true for shared memory that can be sampled, on base pages or huge ones.
fn is_shared(process: &Process, region: &Region) -> bool {
    process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
        mapping.kind == MappingKind::Shared && region.present > 0 && !mapping.flags.locked
    })
}

/// Returns the number of present pages of a process: the most that clearing all of its bits can
/// cost.
fn resident_pages(process: &Process) -> f64 {
    process.regions.iter().map(|region| f64::from(region.present)).sum()
}

/// Returns true for private anonymous memory that can be sampled.
fn is_private(process: &Process, region: &Region) -> bool {
    process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
        let kind = matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous | MappingKind::Hugetlb);
        kind && region.present > 0 && !mapping.flags.shared && !mapping.flags.device && !mapping.flags.locked
    })
}

/// Returns true if a huge page could map the region, provided that the settings and prctl(2) allow
/// it.
pub fn is_promotable(process: &Process, region: &Region) -> bool {
    is_private(process, region)
        && process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
            region.whole
                && mapping.kind != MappingKind::Hugetlb
                && !mapping.flags.no_huge
                && !mapping.flags.userfault
        })
}

/// Moment, in wall clock time and in processor time of the target.
#[derive(Clone, Copy, Debug)]
struct Moment {
    wall: Instant,
    cpu: f64,
}

impl Moment {
    fn now(clock: &ProcessClock, pid: Pid) -> Result<Moment, TrackError> {
        let cpu = clock.now().map_err(|_| TrackError::Gone(pid))?.as_secs_f64();
        Ok(Moment { wall: Instant::now(), cpu })
    }
}

/// Regions in random order, dealt round and round.
struct Deck<'a> {
    regions: Vec<&'a Region>,
    next: usize,
}

impl<'a> Deck<'a> {
    fn new(mut regions: Vec<&'a Region>, seed: u64) -> Deck<'a> {
        // Fisher-Yates shuffle with SplitMix64.
        let mut state = seed;
        for at in (1..regions.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            regions.swap(at, ((z ^ (z >> 31)) % (at as u64 + 1)) as usize);
        }
        Deck { regions, next: 0 }
    }

    /// Returns the next `count` regions, each once.
    fn deal(&mut self, count: usize) -> Vec<&'a Region> {
        let count = count.min(self.regions.len());
        let dealt = (0..count).map(|n| self.regions[(self.next + n) % self.regions.len()]).collect();
        self.next = (self.next + count) % self.regions.len().max(1);
        dealt
    }
}

/// Two decks: quiet regions, and the others.
struct Decks<'a> {
    quiet: Deck<'a>,
    others: Deck<'a>,
    /// Regions dealt since the last turn of a quiet one.
    since: usize,
}

impl<'a> Decks<'a> {
    fn new(regions: Vec<&'a Region>, quiet: &BTreeMap<HugePage, u16>, seed: u64) -> Decks<'a> {
        let (quiet, others) = regions.into_iter().partition(|region| quiet.contains_key(&region.page));
        Decks { quiet: Deck::new(quiet, seed), others: Deck::new(others, seed), since: 0 }
    }

    /// Returns the next `count` regions, each once. One in [`QUIET_TURN`] is a quiet one if there
    /// are any.
    fn deal(&mut self, count: usize) -> Vec<&'a Region> {
        self.since += count;
        let turns = self.since / QUIET_TURN;
        self.since %= QUIET_TURN;
        let mut dealt =
            self.quiet.deal(turns.min(count).max(count.saturating_sub(self.others.regions.len())));
        dealt.extend(self.others.deal(count - dealt.len()));
        dealt
    }
}

enum Stop {
    Asked,
    Track(TrackError),
}

impl From<TrackError> for Stop {
    fn from(error: TrackError) -> Stop {
        Stop::Track(error)
    }
}

struct Run<'a> {
    root: &'a KernelRoot,
    tracker: &'a mut dyn Tracker,
    pid: Pid,
    clock: &'a ProcessClock,
    start: Moment,
    touches: Touches,
    wait: &'a mut dyn FnMut(Duration) -> bool,
    /// First touches charged so far: one for each cleared page.
    spent: f64,
    /// Processor time of the target at the last reading, since the start.
    cpu: f64,
    /// Regions that were full at the first reading, for a closer look at each.
    hot: VecDeque<HugePage>,
    /// True if shared memory is sampled.
    shared: bool,
    /// Time of a first touch, in seconds.
    first_access: f64,
}

impl Run<'_> {
    /// Returns the present moment, with processor time since the start.
    fn now(&self) -> Result<Moment, TrackError> {
        Moment::now(self.clock, self.pid).map(|now| Moment { cpu: now.cpu - self.start.cpu, ..now })
    }

    /// Returns the number of processors that the target keeps busy; 1 in the first 50 ms.
    fn usage(&self) -> f64 {
        let wall = self.start.wall.elapsed().as_secs_f64();
        match self.now() {
            Ok(now) if wall > 0.05 => now.cpu / wall,
            _ => 1.0,
        }
    }

    /// Returns the number of regions for which this many first touches pay.
    fn affordable(&self, touches: f64) -> usize {
        (touches / f64::from(PAGES)).clamp(0.0, 1e6) as usize
    }

    /// Returns a region for a closer look. `regions` is ascending.
    fn next_hot<'r>(&mut self, regions: &'r [Region]) -> Option<&'r Region> {
        let page = self.hot.pop_front()?;
        let at = regions.binary_search_by_key(&page, |region| region.page).ok()?;
        Some(&regions[at])
    }

    /// Clears `chosen` and reads them at `steps`, stretched. `close`: see [`History::close`].
    fn round(
        &mut self,
        process: &Process,
        chosen: &[&Region],
        steps: &[Duration],
        stretch: f64,
        close: bool,
    ) -> Result<(), Stop> {
        if chosen.is_empty() {
            let end = steps.last().copied().unwrap_or_default().mul_f64(stretch);
            return if (self.wait)(end) { Ok(()) } else { Err(Stop::Asked) };
        }
        let mut sorted: Vec<&Region> = chosen.to_vec();
        sorted.sort_by_key(|region| region.page);
        sorted.dedup_by_key(|region| region.page);
        let ranges: Vec<VirtRange> = sorted.iter().map(|region| region.range()).collect();
        let before = Moment::now(self.clock, self.pid)?;
        // The charge comes first, because the clearing may fail half-way.
        self.spent += match self.shared {
            true => resident_pages(process),
            false => self.charge(&sorted, &ranges),
        };
        self.tracker.clear(self.pid, &ranges)?;
        if self.shared {
            // Clears the bits that the tracker skipped because other processes map the pages, too.
            clear_accessed(self.root, self.pid).map_err(TrackError::from)?;
        }
        let after = Moment::now(self.clock, self.pid)?;
        let mut histories: Vec<History> = sorted
            .iter()
            .map(|region| History {
                page: region.page,
                huge: region.leaf.is_huge(),
                promotable: self.shared || is_promotable(process, region),
                close,
                quiet: false,
                present: region.present,
                readings: Vec::with_capacity(steps.len()),
            })
            .collect();
        let mut bits: Vec<Vec<Option<PageBits>>> = vec![Vec::with_capacity(steps.len()); histories.len()];
        let mut asked = false;
        let mut due = Duration::ZERO;
        for step in steps {
            let next = step.mul_f64(stretch);
            let elapsed = after.wall.elapsed();
            // A late reading is skipped: it would fall into the next step.
            if elapsed > next.mul_f64(2.0).max(due) && !next.is_zero() {
                continue;
            }
            if next > elapsed && !(self.wait)(next - elapsed) {
                asked = true;
                break;
            }
            due = next;
            self.read(&ranges, &mut histories, &mut bits, (before.cpu, after.cpu))?;
        }
        self.mask(&mut histories, &mut bits);
        for (history, bits) in histories.iter_mut().zip(&bits) {
            note_neighbours(history, bits);
        }
        for history in &histories {
            if history.is_full_at_once() && self.hot.len() < MOST_HOT {
                self.hot.push_back(history.page);
            }
        }
        self.touches
            .histories
            .extend(histories.into_iter().filter(|it| it.present > 0 && !it.readings.is_empty()));
        if asked { Err(Stop::Asked) } else { Ok(()) }
    }

    /// Returns the number of bits that clearing `regions` clears: each causes a first touch sooner
    /// or later. Bits that are clear already were charged when they were cleared. Counts all pages
    /// if the tracker cannot report the bits beforehand at no cost.
    fn charge(&mut self, regions: &[&Region], ranges: &[VirtRange]) -> f64 {
        let whole = |region: &Region| if region.leaf.is_huge() { 1.0 } else { f64::from(region.present) };
        let found = match self.tracker.kind() {
            TrackerKind::Bpf => self.tracker.read(self.pid, ranges).unwrap_or_default(),
            _ => Vec::new(),
        };
        let set = |region: &&Region| {
            let at = found.binary_search_by_key(&region.page, |read| read.page).ok()?;
            let accessed = f64::from(found[at].accessed?);
            Some(if found[at].leaf.is_huge() { accessed.min(1.0) } else { accessed })
        };
        regions.iter().map(|region| set(region).unwrap_or_else(|| whole(region))).sum()
    }

    fn read(
        &mut self,
        ranges: &[VirtRange],
        histories: &mut [History],
        bits: &mut [Vec<Option<PageBits>>],
        cleared: (f64, f64),
    ) -> Result<(), Stop> {
        let before = Moment::now(self.clock, self.pid)?.cpu;
        let found = self.tracker.read(self.pid, ranges)?;
        let after = Moment::now(self.clock, self.pid)?.cpu;
        self.cpu = after - self.start.cpu;
        // The process does not progress during first touches.
        let touched: f64 = found.iter().filter_map(|region| region.accessed).map(f64::from).sum();
        let delay = touched * self.first_access * DELAYED;
        let count = histories.len() as f64;
        for (number, (history, bits)) in histories.iter_mut().zip(bits).enumerate() {
            let Ok(at) = found.binary_search_by_key(&history.page, |region| region.page) else { continue };
            let region = &found[at];
            // A region that was split or promoted meanwhile has no history.
            let (Some(touched), true) = (region.accessed, region.leaf.is_huge() == history.huge) else {
                history.present = 0;
                continue;
            };
            // Regions are cleared, and read, one after the other: times are interpolated.
            let along = (number as f64 + 0.5) / count;
            let between = |start: f64, end: f64| start + (end - start) * along;
            let cpu = (between(before, after) - between(cleared.0, cleared.1)).max(0.0);
            let cpu = (cpu - delay).max(LEAST_PROGRESS * cpu);
            let unsure = (after - before) + (cleared.1 - cleared.0);
            history.present = history.present.min(region.present.max(touched));
            history.readings.push(Reading { cpu, unsure, touched, neighbours: None });
            bits.push(region.bits.filter(|_| !history.huge));
        }
        Ok(())
    }

    /// Leaves out pages that others map too, if the tracker does not clear those.
    fn mask(&self, histories: &mut [History], bits: &mut [Vec<Option<PageBits>>]) {
        if self.shared || !self.tracker.leaves_shared() {
            return;
        }
        let Ok(pagemap) = Pagemap::open(self.root, self.pid) else { return };
        let base = histories.iter_mut().zip(bits).filter(|(history, _)| !history.huge);
        for (history, bits) in base {
            let Ok(entries) = pagemap.entries(history.page.range()) else {
                history.present = 0;
                continue;
            };
            let mut own: PageBits = [0; PAGES as usize / 64];
            for (page, entry) in entries.iter().enumerate() {
                own[page / 64] |= u64::from(entry.is_exclusive()) << (page % 64);
            }
            let count = |bits: &PageBits| bits.iter().map(|word| word.count_ones()).sum::<u32>() as u16;
            history.present = history.present.min(count(&own));
            for (reading, bits) in history.readings.iter_mut().zip(bits) {
                if let Some(bits) = bits {
                    bits.iter_mut().zip(&own).for_each(|(bits, own)| *bits &= own);
                    reading.touched = count(bits);
                }
            }
        }
    }

    fn finish(mut self) -> Touches {
        let seconds = self.start.wall.elapsed().as_secs_f64();
        self.touches.seconds = seconds;
        // An ended process has no clock any more.
        self.touches.cpu_seconds = self.now().map_or(self.cpu, |now| now.cpu);
        self.touches.parallel = (self.touches.cpu_seconds / seconds.max(1e-6)).max(1.0);
        self.touches.contiguity = contiguity::of_sampled(self.root, self.pid, &self.touches);
        self.touches
    }
}

/// Counts, for each reading, the new pages with a new neighbour. `bits`: the touched pages of each
/// reading.
fn note_neighbours(history: &mut History, bits: &[Option<PageBits>]) {
    let mut former: PageBits = [0; PAGES as usize / 64];
    for (reading, bits) in history.readings.iter_mut().zip(bits) {
        reading.neighbours = bits.as_ref().map(|bits| neighbours_among(bits, &former));
        former = bits.unwrap_or(former);
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
