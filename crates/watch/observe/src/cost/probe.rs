//! Samples when pages are first touched: clears a few regions at a time and reads them again and again.
//!
//! A first touch after a clearing costs the target about as much as ten TLB misses, whenever it comes: also long after
//! the last reading. So every bit that is cleared is charged as if its page were touched, and no more bits are cleared
//! than keep the target's slow-down within the budget even then. Reading costs it nothing.

use super::contiguity;
use super::touches::{History, Reading, Touches, neighbours_among};
use crate::tracker::{PageBits, TrackError, Tracker};
use megapage_kernel::clear_refs::clear_accessed;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::{KernelRoot, ProcessClock};
use megapage_snapshot::{Leaf, MappingKind, PAGES, Process, Region, TrackerKind};
use megapage_units::{HUGE_2M, Pid, VirtRange};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How a process is probed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeOptions {
    /// For how long.
    pub time: Duration,
    /// The largest slow-down of the target, as a share of its processor time.
    pub budget: f64,
    /// What a first touch after a clearing costs the target, in nanoseconds.
    pub first_access_ns: f64,
    /// Chooses the regions.
    pub seed: u64,
}

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// When a region is read again after its clearing. Steps grow by 3.16 each; a tracker that needs longer for one reading
/// leaves some out.
const QUICK: [Duration; 5] = [us(0), us(100), us(316), us(1000), us(3160)];
const SLOW: [Duration; 6] = [us(1000), us(3160), us(10_000), us(31_600), us(100_000), us(316_000)];
/// When shared memory is read, all of it.
const WHOLE: [Duration; 7] = [us(0), us(1000), us(3160), us(10_000), us(31_600), us(100_000), us(316_000)];
/// Regions in a quick round: few, so that clearing and reading them takes less than a step.
const QUICK_REGIONS: usize = 2;
/// Quick rounds to each slow one.
const QUICK_ROUNDS: usize = 2;
/// Regions in a slow round, at most. A process that visits 16,000 cleared pages within some milliseconds is delayed by a
/// part of those, and seems slower than it is; and reading must not take longer than the first step.
const MOST_REGIONS: usize = 32;
/// Regions mapped huge in a slow round: one bit each.
const HUGE_REGIONS: usize = 64;
/// One in so many regions that are looked at is a quiet one: mostly they are alike, and a few say what they are like.
const QUIET_TURN: usize = 4;
/// Regions that wait for a closer look.
const MOST_HOT: usize = 64;
/// For how many times the time asked for the first round of a process of shared memory is waited for.
const LONGEST_WAIT: f64 = 4.0;
/// A process that uses less of a processor is not waited for.
const LEAST_USAGE: f64 = 0.05;
/// However much first touches delay a process, it is taken to get on by this part of its time.
const LEAST_PROGRESS: f64 = 0.2;
/// The part of a first touch's cost that is not in the process's other visits anyway: those take page walks, too, and
/// some of it overlaps.
const DELAYED: f64 = 0.5;
/// A target that runs for a part of the time is watched for longer, at most by this factor.
const LONGEST_STRETCH: f64 = 8.0;

/// Probes `process`, whose regions `process.regions` are, with `tracker`. `wait` sleeps for a time, and says whether to
/// go on. Of the regions `quiet`, of which no sample of accesses has found a page touched, fewer are looked at
/// ([`Touches::stratify`]). What was sampled until the process ended is returned; an error is one of the first clearing.
///
/// Memory that other processes map, too, is left out, for MADV_COLD leaves it as it is. A process that uses mostly shared
/// memory ([`uses_shared`]) is judged by that alone, where the tracker reads page tables: its own accessed bits are
/// cleared all at once (`clear_refs`), at the price of every page that it has.
pub fn probe(
    root: &KernelRoot,
    tracker: &mut dyn Tracker,
    process: &Process,
    quiet: &BTreeMap<u64, u16>,
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
        // What the target will have taken in the end, if it goes on as it does.
        let ahead = (run.now().map_or(0.0, |now| now.cpu) + whole * run.usage()) / 2.0;
        (options.budget * ahead.max(0.0) / (options.first_access_ns.max(1.0) * 1e-9)) - run.spent
    };
    let mut first = true;
    // A round that the budget does not pay for in the time is waited for a while longer: else nothing is known.
    let longest = |first: bool, run: &Run| match first && run.usage() > LEAST_USAGE {
        true => options.time.mul_f64(LONGEST_WAIT),
        false => options.time,
    };
    while shared && start.wall.elapsed() < longest(first, &run) {
        // All or nothing: where there is not enough for a round yet, it is waited for.
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
                // In turn any regions, and one that was full at once: the fewer, the sooner they are read.
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

/// Whether the process ended or was replaced: what was sampled until then holds.
fn is_end(error: &TrackError) -> bool {
    matches!(error, TrackError::Gone(_)) || matches!(error, TrackError::Kernel(error) if error.is_gone())
}

/// Whether a process uses shared memory rather than memory of its own: four times as much.
pub fn uses_shared(process: &Process) -> bool {
    let pages = |which: &dyn Fn(&Region) -> bool| -> u64 {
        let counted = process.regions.iter().filter(|region| which(region));
        counted.map(|region| u64::from(region.present)).sum()
    };
    pages(&|region| is_shared(process, region)) > 4 * pages(&|region| is_private(process, region))
}

/// Shared memory on base pages, or mapped huge.
fn is_shared(process: &Process, region: &Region) -> bool {
    process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
        mapping.kind == MappingKind::Shared && region.present > 0 && !mapping.flags.locked
    })
}

/// Every page that a process has present: what clearing all of its bits costs, at most.
fn resident_pages(process: &Process) -> f64 {
    process.regions.iter().map(|region| f64::from(region.present)).sum()
}

/// Private anonymous memory that can be sampled.
fn is_private(process: &Process, region: &Region) -> bool {
    process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
        let kind = matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous | MappingKind::Hugetlb);
        kind && region.present > 0 && !mapping.flags.shared && !mapping.flags.device && !mapping.flags.locked
    })
}

/// Whether a huge page could map the region, would the settings and prctl(2) allow it.
pub fn is_promotable(process: &Process, region: &Region) -> bool {
    is_private(process, region)
        && process.mappings.get(region.mapping as usize).is_some_and(|mapping| {
            region.whole
                && mapping.kind != MappingKind::Hugetlb
                && !mapping.flags.no_huge
                && !mapping.flags.userfault
        })
}

/// A moment: by the clock on the wall, and by the processor time of the target.
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
        // Fisher and Yates, with SplitMix64.
        let mut state = seed;
        for at in (1..regions.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            regions.swap(at, ((z ^ (z >> 31)) % (at as u64 + 1)) as usize);
        }
        Deck { regions, next: 0 }
    }

    /// The next `count`, each once.
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
    /// Regions dealt since a quiet one was.
    since: usize,
}

impl<'a> Decks<'a> {
    fn new(regions: Vec<&'a Region>, quiet: &BTreeMap<u64, u16>, seed: u64) -> Decks<'a> {
        let (quiet, others) = regions.into_iter().partition(|region| quiet.contains_key(&region.start));
        Decks { quiet: Deck::new(quiet, seed), others: Deck::new(others, seed), since: 0 }
    }

    /// The next `count`, each once: one in [`QUIET_TURN`] of the quiet ones, as far as there are.
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
    /// First touches that were charged: one for each page cleared.
    spent: f64,
    /// Processor time of the target when it was last looked at, since the start.
    cpu: f64,
    /// Regions that were full at the first reading, for a closer look at each.
    hot: VecDeque<u64>,
    /// Whether it is shared memory that is sampled.
    shared: bool,
    /// What a first touch takes, in seconds.
    first_access: f64,
}

impl Run<'_> {
    /// Time since the start.
    fn now(&self) -> Result<Moment, TrackError> {
        Moment::now(self.clock, self.pid).map(|now| Moment { cpu: now.cpu - self.start.cpu, ..now })
    }

    /// Processors that the target keeps busy; 1 as long as too little was seen.
    fn usage(&self) -> f64 {
        let wall = self.start.wall.elapsed().as_secs_f64();
        match self.now() {
            Ok(now) if wall > 0.05 => now.cpu / wall,
            _ => 1.0,
        }
    }

    /// Regions that so many first touches pay for.
    fn affordable(&self, touches: f64) -> usize {
        (touches / f64::from(PAGES)).clamp(0.0, 1e6) as usize
    }

    /// A region for a closer look. `regions`: ascending.
    fn next_hot<'r>(&mut self, regions: &'r [Region]) -> Option<&'r Region> {
        let start = self.hot.pop_front()?;
        let at = regions.binary_search_by_key(&start, |region| region.start).ok()?;
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
        sorted.sort_by_key(|region| region.start);
        sorted.dedup_by_key(|region| region.start);
        let ranges: Vec<VirtRange> = sorted.iter().map(|region| region.range()).collect();
        let before = Moment::now(self.clock, self.pid)?;
        // Charged before it is done, for it may be done in part and fail.
        self.spent += match self.shared {
            true => resident_pages(process),
            false => self.charge(&sorted, &ranges),
        };
        self.tracker.clear(self.pid, &ranges)?;
        if self.shared {
            // What the tracker has left out because others map it too.
            clear_accessed(self.root, self.pid).map_err(TrackError::from)?;
        }
        let after = Moment::now(self.clock, self.pid)?;
        let mut histories: Vec<History> = sorted
            .iter()
            .map(|region| History {
                start: region.start,
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
            // A reading that is late would come in the next step.
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
                self.hot.push_back(history.start);
            }
        }
        self.touches
            .histories
            .extend(histories.into_iter().filter(|it| it.present > 0 && !it.readings.is_empty()));
        if asked { Err(Stop::Asked) } else { Ok(()) }
    }

    /// The bits that clearing `regions` clears, each of which is a first touch sooner or later; those that are clear
    /// already were charged when they were cleared. All pages, where the tracker cannot say beforehand at no cost.
    fn charge(&mut self, regions: &[&Region], ranges: &[VirtRange]) -> f64 {
        let whole = |region: &Region| if region.leaf.is_huge() { 1.0 } else { f64::from(region.present) };
        let found = match self.tracker.kind() {
            TrackerKind::Bpf => self.tracker.read(self.pid, ranges).unwrap_or_default(),
            _ => Vec::new(),
        };
        let set = |region: &&Region| {
            let at = found.binary_search_by_key(&region.start, |read| read.start).ok()?;
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
        // First touches take time in which the process gets no further.
        let touched: f64 = found.iter().filter_map(|region| region.accessed).map(f64::from).sum();
        let delay = touched * self.first_access * DELAYED;
        let count = histories.len() as f64;
        for (number, (history, bits)) in histories.iter_mut().zip(bits).enumerate() {
            let Ok(at) = found.binary_search_by_key(&history.start, |region| region.start) else { continue };
            let region = &found[at];
            // What was split or promoted meanwhile has no history.
            let (Some(touched), true) = (region.accessed, region.leaf.is_huge() == history.huge) else {
                history.present = 0;
                continue;
            };
            // Regions are cleared, and read, one after the other.
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

    /// Leaves out pages that others map too, where the tracker does not clear those.
    fn mask(&self, histories: &mut [History], bits: &mut [Vec<Option<PageBits>>]) {
        if self.shared || !self.tracker.leaves_shared() {
            return;
        }
        let Ok(pagemap) = Pagemap::open(self.root, self.pid) else { return };
        let base = histories.iter_mut().zip(bits).filter(|(history, _)| !history.huge);
        for (history, bits) in base {
            let range = VirtRange::new(history.start, history.start + HUGE_2M as u64);
            let Some(entries) = range.and_then(|range| pagemap.entries(range).ok()) else {
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
        // A process that has ended has no clock any more.
        self.touches.cpu_seconds = self.now().map_or(self.cpu, |now| now.cpu);
        self.touches.parallel = (self.touches.cpu_seconds / seconds.max(1e-6)).max(1.0);
        self.touches.contiguity = contiguity::of_sampled(self.root, self.pid, &self.touches);
        self.touches
    }
}

/// How many new pages of each reading have a new neighbour. `bits`: what was touched by each reading.
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
