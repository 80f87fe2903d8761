//! What translation costs the processes that are watched: counted, where the processor counts; else estimated, one
//! process at a time.

use crate::cost::calibrate::{AccessTimes, NoTimes};
use crate::cost::estimate::estimate;
use crate::cost::pmu::Pmu;
use crate::cost::probe::{ProbeOptions, is_promotable, probe, uses_shared};
use crate::cost::touches::Touches;
use crate::{CostSource, Observer, Process, ProcessId, Snapshot};
use megapage_kernel::{KernelRoot, processor_of_tlbs};
use megapage_snapshot::{Leaf, Region};
use megapage_tlb::Geometry;
use megapage_units::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Processes whose page walks are counted at most: each thread takes descriptors.
const MOST_COUNTED: usize = 32;
/// Processes whose cost is estimated at most, those that take most processor time.
const MOST_ESTIMATED: usize = 8;
/// A process with less memory than this is not worth a probe: a TLB of today reaches as far, nearly.
const LEAST_RESIDENT: Bytes = Bytes::mib(16);
/// One that takes less of a processor has too few page walks to be seen, and too small a budget.
const LEAST_USAGE: f64 = 0.05;
/// A probe is not shorter than this: its slowest reading is 316 ms after the clearing.
pub const LEAST_PROBE: Duration = Duration::from_millis(500);
/// Nor longer: the user waits for a refresh meanwhile.
const LONGEST_PROBE: Duration = Duration::from_secs(2);
/// Probes that an estimate is based on: older ones are forgotten.
const MOST_PROBES: usize = 4;
/// Where it is about what could be promoted: a process with less than [`LEAST_RESIDENT`] of memory on base pages has little
/// to gain, and is probed again only after so long.
const SETTLED_PAUSE: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug)]
pub struct Costs {
    root: KernelRoot,
    source: Source,
    /// Whether it is about gains that are not had yet.
    gains_only: bool,
}

#[derive(Debug)]
enum Source {
    Counted(Pmu),
    Estimated(Box<Model>),
    /// Nothing is to be changed about the processes, or there is no tracker.
    None,
}

#[derive(Debug)]
struct Model {
    geometry: Geometry,
    times: AccessTimes,
    /// Why they are a guess, where timing was tried in vain.
    not_timed: Option<String>,
    /// Set until a caller has taken that.
    failed: bool,
    /// Times that are still to come, where they were not waited for.
    timing: Timing,
    /// The largest slow-down of a process by probes.
    budget: f64,
    probes: BTreeMap<ProcessId, VecDeque<Probe>>,
    /// When each was probed last, since boot; by the snapshots.
    probed: BTreeMap<ProcessId, Duration>,
    /// Counts the probes: the one whose turn was longest ago is next.
    turns: BTreeMap<ProcessId, u64>,
    turn: u64,
}

/// A probe that was made.
#[derive(Debug)]
struct Probe {
    /// How much memory the process had.
    resident: Bytes,
    touches: Touches,
}

/// Timing what accesses take, beside everything else.
#[derive(Debug)]
enum Timing {
    /// Nothing is to be timed, or no more.
    Done,
    /// It begins at this moment, or when there is a process that could be probed, right after the start: later it would be
    /// work at a time at which there is nothing to do. So many times it was tried in vain.
    Due(Instant, u32),
    /// A thread does it, after so many in vain.
    UnderWay(Receiver<Result<AccessTimes, NoTimes>>, u32),
}

/// Where memory is short, as it can be while a machine boots, it is tried again after so long, and so often in all.
const TRIED_AGAIN: Duration = Duration::from_secs(600);
const MOST_TRIES: u32 = 6;

impl Timing {
    /// Starts it, or takes what it has found.
    fn go_on(&mut self, root: &KernelRoot, geometry: &Geometry) -> Option<Result<AccessTimes, NoTimes>> {
        match self {
            Timing::Done => None,
            Timing::Due(from, _) if Instant::now() < *from => None,
            Timing::Due(_, tries) => {
                let (found, times) = channel();
                let (root, geometry) = (root.clone(), *geometry);
                // With the caller's priority: it maps and faults memory in, and a thread that waits for the lock of this address
                // space would wait for as long as programs with more priority keep it from going on.
                let timer = move || {
                    // The receiver may have gone.
                    let _ = found.send(AccessTimes::known(&root, &geometry));
                };
                let named = std::thread::Builder::new().name("timing".into());
                let tries = *tries;
                // Without a thread the values stay wide.
                *self = named.spawn(timer).map_or(Timing::Done, |_| Timing::UnderWay(times, tries));
                None
            }
            Timing::UnderWay(times, tries) => {
                let tries = *tries;
                match times.try_recv() {
                    Err(TryRecvError::Empty) => None,
                    found => self.take(found.ok(), tries),
                }
            }
        }
    }

    /// Takes what was found, and tries again later where only the moment was the wrong one.
    fn take(
        &mut self,
        found: Option<Result<AccessTimes, NoTimes>>,
        tries: u32,
    ) -> Option<Result<AccessTimes, NoTimes>> {
        let wrong_moment = matches!(found, Some(Err(NoTimes::Short | NoTimes::NoHugePages(_))));
        *self = match wrong_moment && tries + 1 < MOST_TRIES {
            true => Timing::Due(Instant::now() + TRIED_AGAIN, tries + 1),
            false => Timing::Done,
        };
        found
    }
}

impl Costs {
    /// `budget`: what probes may slow a process by; `None` where it is not to be touched. Without a performance
    /// monitoring unit accesses are timed, unless that was done before: by a thread, about three seconds of processor
    /// time, once there is a process that could be probed. No caller waits for it; until then the times are a guess.
    pub fn new(root: &KernelRoot, budget: Option<f64>) -> Costs {
        Costs::with_times(root, budget, |geometry| {
            let times = AccessTimes::cached(root, geometry).unwrap_or_else(AccessTimes::guessed);
            let timing = if times.is_enough() { Timing::Done } else { Timing::Due(Instant::now(), 0) };
            (times, timing)
        })
    }

    /// The same, but processes that have little to gain are probed rarely.
    pub fn for_promotion(root: &KernelRoot, budget: Option<f64>) -> Costs {
        Costs { gains_only: true, ..Costs::new(root, budget) }
    }

    /// Takes why this machine could not be timed: once for each time that it was tried in vain.
    pub fn take_failure(&mut self) -> Option<String> {
        let Source::Estimated(model) = &mut self.source else { return None };
        std::mem::take(&mut model.failed).then(|| model.not_timed.clone()).flatten()
    }

    /// Why estimates are based on a guess: this machine was not timed. `None` where they are not.
    pub fn why_guessed(&self) -> Option<&str> {
        match &self.source {
            Source::Estimated(model) if model.times.is_guess() => {
                Some(model.not_timed.as_deref().unwrap_or("accesses were not timed on this machine yet"))
            }
            _ => None,
        }
    }

    fn with_times(
        root: &KernelRoot,
        budget: Option<f64>,
        times: impl FnOnce(&Geometry) -> (AccessTimes, Timing),
    ) -> Costs {
        let source = match (Pmu::open(root), budget) {
            (Ok(pmu), _) => Source::Counted(pmu),
            (Err(_), Some(budget)) => {
                let geometry = Geometry::of(&processor_of_tlbs(root));
                let (times, timing) = times(&geometry);
                Source::Estimated(Box::new(Model {
                    times,
                    not_timed: None,
                    failed: false,
                    timing,
                    geometry,
                    budget,
                    probes: BTreeMap::new(),
                    probed: BTreeMap::new(),
                    turns: BTreeMap::new(),
                    turn: 0,
                }))
            }
            (Err(_), None) => Source::None,
        };
        Costs { root: root.clone(), source, gains_only: false }
    }

    /// How costs are found out; `None` where nothing reports them.
    pub fn source(&self) -> Option<CostSource> {
        match self.source {
            Source::Counted(_) => Some(CostSource::Measured),
            Source::Estimated(_) => Some(CostSource::Estimated),
            Source::None => None,
        }
    }

    /// The processes that a probe chooses from, by these snapshots, and by which snapshot (its time since boot) a probe of each was
    /// tried last: none where costs are not estimated.
    pub fn working(&self, before: Option<&Snapshot>, now: &Snapshot) -> Vec<(ProcessId, Option<Duration>)> {
        let Source::Estimated(model) = &self.source else { return Vec::new() };
        let ids = busiest(before, now).into_iter().map(|process| process.id);
        ids.map(|id| (id, model.probed.get(&id).copied())).collect()
    }

    /// From now on nothing is estimated: there is no tracker that could probe.
    pub fn leave_estimates(&mut self) {
        if matches!(self.source, Source::Estimated(_)) {
            self.source = Source::None;
        }
    }

    /// What probes may slow a process by; `None` where costs are not estimated.
    pub fn budget(&self) -> Option<f64> {
        match &self.source {
            Source::Estimated(model) => Some(model.budget),
            Source::Counted(_) | Source::None => None,
        }
    }

    /// Notes what the processor has counted for the largest processes of `now`, and forgets those that have gone.
    pub fn refresh(&mut self, now: &Snapshot, observer: &mut Observer) {
        let ids: Vec<ProcessId> = now.processes.iter().map(|process| process.id).collect();
        match &mut self.source {
            Source::Counted(pmu) => {
                let mut largest: Vec<&Process> = now.processes.iter().collect();
                largest.sort_by_key(|process| std::cmp::Reverse(process.backing.total()));
                largest.truncate(MOST_COUNTED);
                let ids: Vec<ProcessId> = largest.iter().map(|process| process.id).collect();
                pmu.retain(&ids);
                for id in ids {
                    // That one cannot be counted is no error: its cost is not known.
                    if let Ok(Some(cost)) = pmu.watch(id).and_then(|()| pmu.read(id)) {
                        observer.note_translation(id, cost);
                    }
                }
            }
            Source::Estimated(model) => {
                model.probes.retain(|id, _| ids.contains(id));
                model.turns.retain(|id, _| ids.contains(id));
                model.probed.retain(|id, _| ids.contains(id));
                // A single look begins with the first probe: it has no use for the timing.
                let begins = self.gains_only || !matches!(model.timing, Timing::Due(..));
                if begins && now.processes.iter().any(|process| process.backing.base >= LEAST_RESIDENT) {
                    model.go_on_timing(&self.root);
                }
            }
            Source::None => {}
        }
    }

    /// Probes one process, whose turn it is, for at most `limit`, and notes what is estimated of it. `wait` sleeps for
    /// a time, and returns whether to go on. A process of which the observer has a sample under way is not probed: each
    /// would clear what the other is to read. Answers whether there was one to probe; if not, no time has passed.
    pub fn probe(
        &mut self,
        before: Option<&Snapshot>,
        now: &Snapshot,
        observer: &mut Observer,
        limit: Duration,
        wait: &mut dyn FnMut(Duration) -> bool,
    ) -> bool {
        let Source::Estimated(model) = &mut self.source else { return false };
        let Some(first_access_ns) = observer.sampling().map(|sampling| sampling.first_access_ns) else {
            return false;
        };
        let free = busiest(before, now).into_iter().filter(|process| !observer.is_sampling(process.id));
        let worth = free.filter(|process| !self.gains_only || model.is_worth(process, now.taken));
        let next = worth.min_by_key(|process| model.turns.get(&process.id).copied().unwrap_or(0));
        let Some(process) = next else { return false };
        model.go_on_timing(&self.root);
        model.turn += 1;
        model.turns.insert(process.id, model.turn);
        let options = ProbeOptions {
            time: limit.min(LONGEST_PROBE),
            budget: model.budget,
            first_access_ns,
            seed: model.turn,
        };
        let mut sampled = process.clone();
        observer.note_samples(&mut sampled);
        let quiet = quiet(&sampled);
        let Some(tracker) = observer.tracker() else { return false };
        model.probed.insert(process.id, now.taken);
        // A process that has ended or is denied is reported by the next snapshot.
        let probed = probe(&self.root, tracker, process, &quiet, &options, wait);
        let Ok(touches) = probed else { return true };
        let probes = model.probes.entry(process.id).or_default();
        // Those that looked at few of the quiet regions say too much where it is not known any more which those are.
        if quiet.is_empty() && probes.back().is_some_and(|last| last.touches.quiet_pages > 0) {
            probes.clear();
        }
        // And those of a process less than half as large are of another time.
        let resident = process.backing.total();
        probes.retain(|probe| 2 * probe.resident.0 >= resident.0);
        probes.push_back(Probe { resident, touches });
        if probes.len() > MOST_PROBES {
            probes.pop_front();
        }
        let mut all = Touches::default();
        probes.iter().for_each(|probe| all.add(probe.touches.clone()));
        // Those of earlier probes, too.
        all.stratify(&quiet);
        if let Ok(estimate) = estimate(&all, &model.geometry, &model.times) {
            observer.note_translation(process.id, estimate.cost);
            observer.note_profiles(process.id, &estimate.profiles);
        }
        true
    }
}

impl Model {
    /// Starts to time accesses, or takes what came of it.
    fn go_on_timing(&mut self, root: &KernelRoot) {
        match self.timing.go_on(root, &self.geometry) {
            Some(Ok(times)) => self.times = times,
            Some(Err(why)) => {
                self.not_timed = Some(why.to_string());
                self.failed = true;
            }
            None => {}
        }
    }

    /// Whether a probe of the process can report a gain that is not had yet, or the last one is old.
    fn is_worth(&self, process: &Process, now: Duration) -> bool {
        let last = self.probed.get(&process.id);
        process.backing.base >= LEAST_RESIDENT
            || last.is_none_or(|last| now.saturating_sub(*last) >= SETTLED_PAUSE)
    }
}

/// The regions that could be huge of which the last sample has not found a page touched, or that it has not reached, where it found
/// others touched; each with its present pages. A probe looks at a few regions at a time, and would rarely meet the hot ones of
/// a process that uses a small part of its memory. It looks at quiet ones all the same: what moves is touched elsewhere by
/// now, and a first sample looks at a few pages of each region for a short time.
fn quiet(process: &Process) -> BTreeMap<u64, u16> {
    // Of memory that is shared all is probed at once.
    if uses_shared(process) {
        return BTreeMap::new();
    }
    let touched = |region: &&Region| region.accessed.is_some_and(|accessed| accessed.coverage > 0);
    let base = || {
        let base = process.regions.iter().filter(|region| region.leaf == Leaf::Base);
        base.filter(|region| is_promotable(process, region))
    };
    match base().any(|region| touched(&region)) {
        true => base().filter(|region| !touched(region)).map(|it| (it.start, it.present)).collect(),
        false => BTreeMap::new(),
    }
}

/// The processes with memory to speak of that took most processor time between the two snapshots, or since they were
/// started where there is but one.
fn busiest<'a>(before: Option<&Snapshot>, now: &'a Snapshot) -> Vec<&'a Process> {
    let usage = |process: &Process| {
        let Some(before) = before else { return Some(process.cpu.as_secs_f64()) };
        let seconds = now.taken.saturating_sub(before.taken).as_secs_f64().max(1e-3);
        let former = before.process(process.id.pid).filter(|former| former.id == process.id)?;
        Some(process.cpu.saturating_sub(former.cpu).as_secs_f64() / seconds)
    };
    let mut busy: Vec<(f64, &Process)> = now
        .processes
        .iter()
        .filter(|process| process.backing.total() >= LEAST_RESIDENT)
        .filter_map(|process| usage(process).map(|usage| (usage, process)))
        .filter(|(usage, _)| *usage >= LEAST_USAGE)
        .collect();
    busy.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.id.cmp(&other.1.id)));
    busy.truncate(MOST_ESTIMATED);
    busy.into_iter().map(|(_, process)| process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use megapage_units::Pid;

    /// This process at two moments, a second apart, with synthetic values.
    fn two() -> (Snapshot, Snapshot) {
        let root = KernelRoot::live();
        let options = Options { sample: false, ..Options::default() };
        let own = Pid(std::process::id().cast_signed());
        let mut now = Observer::start(&root, options).unwrap().snapshot(&[own]);
        now.processes[0].backing.base = Bytes::mib(100);
        let mut before = now.clone();
        before.taken = now.taken.checked_sub(Duration::from_secs(1)).unwrap();
        (before, now)
    }

    fn pids(before: &Snapshot, now: &Snapshot) -> Vec<i32> {
        busiest(Some(before), now).iter().map(|process| process.id.pid.0).collect()
    }

    #[test]
    fn those_that_work_and_have_memory_are_probed() {
        let (mut before, mut now) = two();
        let own = now.processes[0].id.pid.0;
        now.processes[0].cpu = before.processes[0].cpu + Duration::from_millis(400);
        assert_eq!(pids(&before, &now), [own]);
        now.processes[0].cpu = before.processes[0].cpu + Duration::from_millis(20);
        assert!(pids(&before, &now).is_empty(), "2 % of a processor");
        now.processes[0].cpu += Duration::from_millis(400);
        before.processes[0].id.start_ticks += 1;
        assert!(pids(&before, &now).is_empty(), "another process, of which the rate is not known");
        before.processes[0].id = now.processes[0].id;
        now.processes[0].backing = Default::default();
        assert!(pids(&before, &now).is_empty(), "no memory");
    }

    #[test]
    fn the_busiest_are_chosen_and_no_more_than_a_few() {
        let (mut before, mut now) = two();
        for number in 1..20 {
            let mut other = now.processes[0].clone();
            other.id.pid = Pid(1_000_000 + number);
            before.processes.push(other.clone());
            other.cpu += Duration::from_millis(100 * number as u64);
            now.processes.push(other);
        }
        let chosen = pids(&before, &now);
        assert_eq!((chosen.len(), chosen[0]), (MOST_ESTIMATED, 1_000_019));
    }

    #[test]
    fn quiet_regions_are_those_that_no_sample_found_touched_where_it_found_others() {
        use megapage_snapshot::{Accessed, Mapping, PAGES};
        use megapage_units::VirtRange;
        let region = |number: u64, coverage: u16| {
            let (average, sampled) = (f32::from(coverage), Duration::from_secs(9));
            let accessed = Accessed { coverage, average, last: None, sampled };
            Region { accessed: Some(accessed), ..Region::of_base_pages(number << 21, PAGES) }
        };
        let id = ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 1 };
        let mappings = vec![Mapping::anonymous(VirtRange::new(0, 1 << 40).unwrap())];
        let process =
            |regions| Process { regions, mappings: mappings.clone(), ..Process::without_memory(id, "p") };
        let starts = |regions| Vec::from_iter(quiet(&process(regions)).into_keys().map(|start| start >> 21));
        let never = || Region::of_base_pages(5 << 21, PAGES);
        let huge = Region { leaf: Leaf::Huge2m, ..region(6, 0) };
        assert_eq!(starts(vec![region(1, 0), region(2, 1), region(3, 0), never(), huge.clone()]), [1, 3, 5]);
        let touched = Region { accessed: region(6, 512).accessed, ..huge };
        assert!(starts(vec![region(1, 0), never(), touched]).is_empty(), "it may have been idle");
        assert!(starts(Vec::new()).is_empty());
    }

    #[test]
    fn a_timing_that_met_a_bad_moment_is_made_again_some_times() {
        let take = |found, tries| {
            let mut timing = Timing::Done;
            (timing.take(found, tries).is_some_and(|found| found.is_ok()), timing)
        };
        let (found, mut timing) = take(Some(Err(NoTimes::Short)), 0);
        assert!(!found && matches!(timing, Timing::Due(from, 1) if from > Instant::now()), "{timing:?}");
        assert!(timing.go_on(&KernelRoot::captured("none"), &Geometry::FALLBACK).is_none());
        assert!(matches!(timing, Timing::Due(_, 1)), "not yet");
        for (found, tries) in [
            (Some(Err(NoTimes::Short)), MOST_TRIES - 1),
            // There will not be more memory, and the thread will not come back.
            (Some(Err(NoTimes::Memory(String::new()))), 0),
            (None, 0),
        ] {
            let (found, timing) = take(found, tries);
            assert!(!found && matches!(timing, Timing::Done), "{timing:?}");
        }
        let (found, timing) = take(Some(Ok(AccessTimes::guessed())), 0);
        assert!(found && matches!(timing, Timing::Done));
    }
}
