//! The translation cost of the watched processes: counted if the processor counts it, else
//! estimated, one process at a time.

use crate::cost::calibrate::{AccessTimes, NoTimes};
use crate::cost::estimate::estimate;
use crate::cost::pmu::Pmu;
use crate::cost::probe::{ProbeOptions, is_promotable, probe, uses_shared};
use crate::cost::touches::Touches;
use crate::{CostSource, Observer, Process, ProcessId, Snapshot};
use megapage_kernel::{KernelRoot, processor_of_tlbs};
use megapage_snapshot::{Leaf, Region};
use megapage_tlb::Geometry;
use megapage_units::{Bytes, HugePage};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Largest number of processes with counted page walks: each thread takes descriptors.
const MOST_COUNTED: usize = 32;
/// Largest number of processes with an estimated cost: those that take most processor time.
const MOST_ESTIMATED: usize = 8;
/// Least memory of a process for a probe: the TLBs of today reach nearly as far.
const LEAST_RESIDENT: Bytes = Bytes::mib(16);
/// Least usage of a processor for a probe. With less, page walks are too few to be seen, and the
/// budget is too small.
const LEAST_USAGE: f64 = 0.05;
/// Shortest probe: its slowest reading is 316 ms after the clearing.
pub const LEAST_PROBE: Duration = Duration::from_millis(500);
/// Longest probe: the user waits for a refresh meanwhile.
const LONGEST_PROBE: Duration = Duration::from_secs(2);
/// Largest number of probes behind an estimate: older ones are forgotten.
const MOST_PROBES: usize = 4;
/// Least time between probes, for promotion, of a process with less than [`LEAST_RESIDENT`] of
/// memory on base pages: it has little to gain.
const SETTLED_PAUSE: Duration = Duration::from_secs(300);

/// Source of the translation costs; see the module.
#[derive(Debug)]
pub struct Costs {
    root: KernelRoot,
    source: Source,
    /// True if only possible gains by promotion matter.
    gains_only: bool,
}

#[derive(Debug)]
enum Source {
    Counted(Pmu),
    Estimated(Box<Model>),
    /// No source: the processes are not to be changed, or there is no tracker.
    None,
}

#[derive(Debug)]
struct Model {
    geometry: Geometry,
    times: AccessTimes,
    /// Reason why the times are a guess, after a failed timing.
    not_timed: Option<String>,
    /// True until a caller has taken that reason.
    failed: bool,
    /// Timing that is still to come, if it was not waited for.
    timing: Timing,
    /// Largest slow-down of a process by probes.
    budget: f64,
    probes: BTreeMap<ProcessId, VecDeque<Probe>>,
    /// Time since boot of the snapshot before the last probe of each process.
    probed: BTreeMap<ProcessId, Duration>,
    /// Number of the last probe of each process: the one with the lowest is next.
    turns: BTreeMap<ProcessId, u64>,
    turn: u64,
}

/// Probe that was made.
#[derive(Debug)]
struct Probe {
    /// Memory of the process at the time.
    resident: Bytes,
    touches: Touches,
}

/// State of timing accesses, which goes on in the background.
#[derive(Debug)]
enum Timing {
    /// Nothing is to be timed, or no more.
    Done,
    /// Timing begins at this moment at the earliest, once there is a process that could be probed.
    /// Right after the start is best: later it would disturb an idle time. The number counts failed
    /// attempts.
    Due(Instant, u32),
    /// A thread times, after this number of failed attempts.
    UnderWay(Receiver<Result<AccessTimes, NoTimes>>, u32),
}

/// Pause after an attempt without enough memory, as can happen while a machine boots; and below the
/// most attempts.
const TRIED_AGAIN: Duration = Duration::from_secs(600);
const MOST_TRIES: u32 = 6;

impl Timing {
    /// Starts the timing, or takes its result.
    fn go_on(&mut self, root: &KernelRoot, geometry: &Geometry) -> Option<Result<AccessTimes, NoTimes>> {
        match self {
            Timing::Done => None,
            Timing::Due(from, _) if Instant::now() < *from => None,
            Timing::Due(_, tries) => {
                let (found, times) = channel();
                let (root, geometry) = (root.clone(), *geometry);
                // The thread has the caller's priority. It maps memory and takes page faults. At a
                // lower priority, other programs could hold it up, and with it any thread that
                // waits for the lock of this address space.
                let timer = move || {
                    // The receiver may have gone.
                    let _ = found.send(AccessTimes::known(&root, &geometry));
                };
                let named = std::thread::Builder::new().name("timing".into());
                let tries = *tries;
                // Without a thread the values stay uncertain.
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

    /// Takes the result, and tries again later if only the moment was unsuitable.
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
    /// Opens the source of costs. `budget` is the largest slow-down of a process by probes; `None`:
    /// processes are not to be touched.
    ///
    /// Without a performance monitoring unit, a thread times accesses, unless that was done before.
    /// It takes about three seconds of processor time, once there is a process that could be
    /// probed. No caller waits for it; until then the times are a guess.
    pub fn new(root: &KernelRoot, budget: Option<f64>) -> Costs {
        Costs::with_times(root, budget, |geometry| {
            let times = AccessTimes::cached(root, geometry).unwrap_or_else(AccessTimes::guessed);
            let timing = if times.is_enough() { Timing::Done } else { Timing::Due(Instant::now(), 0) };
            (times, timing)
        })
    }

    /// Opens the same source, which probes processes with little to gain only rarely.
    pub fn for_promotion(root: &KernelRoot, budget: Option<f64>) -> Costs {
        Costs { gains_only: true, ..Costs::new(root, budget) }
    }

    /// Takes the reason why this machine could not be timed: once for each failed attempt.
    pub fn take_failure(&mut self) -> Option<String> {
        let Source::Estimated(model) = &mut self.source else { return None };
        std::mem::take(&mut model.failed).then(|| model.not_timed.clone()).flatten()
    }

    /// Returns the reason why estimates rest on a guess: this machine was not timed. `None` if they
    /// do not.
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

    /// Returns the kind of source of the costs; `None` if there is none.
    pub fn source(&self) -> Option<CostSource> {
        match self.source {
            Source::Counted(_) => Some(CostSource::Measured),
            Source::Estimated(_) => Some(CostSource::Estimated),
            Source::None => None,
        }
    }

    /// Returns the processes from which the next probe is chosen, by these snapshots. Each comes
    /// with the time since boot of the snapshot of its last probe. Returns none if costs are not
    /// estimated.
    pub fn working(&self, before: Option<&Snapshot>, now: &Snapshot) -> Vec<(ProcessId, Option<Duration>)> {
        let Source::Estimated(model) = &self.source else { return Vec::new() };
        let ids = busiest(before, now).into_iter().map(|process| process.id);
        ids.map(|id| (id, model.probed.get(&id).copied())).collect()
    }

    /// Stops estimating, because no tracker can probe.
    pub fn leave_estimates(&mut self) {
        if matches!(self.source, Source::Estimated(_)) {
            self.source = Source::None;
        }
    }

    /// Returns the largest slow-down of a process by probes; `None` if costs are not estimated.
    pub fn budget(&self) -> Option<f64> {
        match &self.source {
            Source::Estimated(model) => Some(model.budget),
            Source::Counted(_) | Source::None => None,
        }
    }

    /// Notes the counts of the processor for the largest processes of `now`, and forgets those that
    /// have gone.
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
                    // A process that cannot be counted is no error: its cost is unknown.
                    if let Ok(Some(cost)) = pmu.watch(id).and_then(|()| pmu.read(id)) {
                        observer.note_translation(id, cost);
                    }
                }
            }
            Source::Estimated(model) => {
                model.probes.retain(|id, _| ids.contains(id));
                model.turns.retain(|id, _| ids.contains(id));
                model.probed.retain(|id, _| ids.contains(id));
                // Outside of promotion the first probe starts the timing: a single look has no use
                // for it.
                let begins = self.gains_only || !matches!(model.timing, Timing::Due(..));
                if begins && now.processes.iter().any(|process| process.backing.base >= LEAST_RESIDENT) {
                    model.go_on_timing(&self.root);
                }
            }
            Source::None => {}
        }
    }

    /// Probes the next process for at most `limit`, and notes its estimate. `wait` sleeps for a
    /// time, and returns true to go on. Skips a process with a sample of the observer under way:
    /// each would clear the bits of the other. Returns true if there was a process to probe; if
    /// not, no time has passed.
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
        // The next snapshot reports a process that has ended or is denied.
        let probed = probe(&self.root, tracker, process, &quiet, &options, wait);
        let Ok(touches) = probed else { return true };
        let probes = model.probes.entry(process.id).or_default();
        // Earlier probes sampled few of the quiet regions. If the quiet regions are no longer
        // known, they would give too much weight to the others.
        if quiet.is_empty() && probes.back().is_some_and(|last| last.touches.quiet_pages > 0) {
            probes.clear();
        }
        // Probes of the process when it was less than half as large are outdated.
        let resident = process.backing.total();
        probes.retain(|probe| 2 * probe.resident.0 >= resident.0);
        probes.push_back(Probe { resident, touches });
        if probes.len() > MOST_PROBES {
            probes.pop_front();
        }
        let mut all = Touches::default();
        probes.iter().for_each(|probe| all.add(probe.touches.clone()));
        // This includes the regions of earlier probes.
        all.stratify(&quiet);
        if let Ok(estimate) = estimate(&all, &model.geometry, &model.times) {
            observer.note_translation(process.id, estimate.cost);
            observer.note_profiles(process.id, &estimate.profiles);
        }
        true
    }
}

impl Model {
    /// Starts to time accesses, or takes the result.
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

    /// Returns true if a probe of the process can show a gain by promotion, or the last probe is
    /// old.
    fn is_worth(&self, process: &Process, now: Duration) -> bool {
        let last = self.probed.get(&process.id);
        process.backing.base >= LEAST_RESIDENT
            || last.is_none_or(|last| now.saturating_sub(*last) >= SETTLED_PAUSE)
    }
}

/// Returns the quiet regions with their present pages. They could be huge, and the last sample has
/// found no touched page in them, or has not reached them. There are none unless it found others
/// touched.
///
/// A probe reads a few regions at a time. It would rarely meet the hot ones of a process that uses
/// a small part of its memory. It still reads some quiet ones: accesses move, and a first sample
/// covers only a few pages of each region for a short time.
fn quiet(process: &Process) -> BTreeMap<HugePage, u16> {
    // All shared memory is probed at once.
    if uses_shared(process) {
        return BTreeMap::new();
    }
    let touched = |region: &&Region| region.accessed.is_some_and(|accessed| accessed.coverage > 0);
    let base = || {
        let base = process.regions.iter().filter(|region| region.leaf == Leaf::Base);
        base.filter(|region| is_promotable(process, region))
    };
    match base().any(|region| touched(&region)) {
        true => base().filter(|region| !touched(region)).map(|it| (it.page, it.present)).collect(),
        false => BTreeMap::new(),
    }
}

/// Returns the processes with enough memory that took most processor time between the two
/// snapshots. With one snapshot only, the time since their start counts.
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

    /// Returns this process at two moments, a second apart, with synthetic values.
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
            Region { accessed: Some(accessed), ..Region::of_base_pages(HugePage::nth(number), PAGES) }
        };
        let id = ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 1 };
        let mappings = vec![Mapping::anonymous(VirtRange::new(0, 1 << 40).unwrap())];
        let process =
            |regions| Process { regions, mappings: mappings.clone(), ..Process::without_memory(id, "p") };
        let starts = |regions| Vec::from_iter(quiet(&process(regions)).into_keys().map(HugePage::number));
        let never = || Region::of_base_pages(HugePage::nth(5), PAGES);
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
            // There will not be more memory, and the thread will not return.
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
