//! Calls that make and split huge pages of another process: the only way in which megapage does so.
//! Each call runs under the latency guard, and the page tables are looked at before and after.
//!
//! [`Engine::advise`] is the only function of this crate that makes the call; the daemon's
//! executor, promotion and demotion go through it. The guard has three rules. A call names only as
//! many regions as keep the process's mmap lock for a bounded time. After each call the engine
//! pauses for a moment; after a slow one it backs off from the process for longer. Nothing is
//! collapsed while the machine has less available memory than the safe [`floor`]. Each region gets
//! its own result.

mod advise;
mod answer;
#[cfg(test)]
#[path = "engine/model_tests.rs"]
mod model;
mod pace;
mod target;
mod turn;

pub(crate) use answer::{Advice, Answer, Call, Refusal, Tried};
pub use pace::Latency;
pub(crate) use target::{CanaryTarget, Target, is_mapped, is_same};
pub(crate) use turn::{Clock, Terms};

use advise::{Advisable, advise};
use megapage_kernel::{KernelRoot, boot_time};
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HugePage};
use pace::{Batch, Pause, Speed};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;
use turn::Pace;

/// Factor by which a call that collapses may take longer than one that splits. A collapse gives the
/// lock up between two regions. It has every processor empty its LRU queues, which costs less if
/// done once for several regions.
const COLLAPSE_CALL: u32 = 4;
/// Longest pauses between two calls: of those that the guard takes, and of those that a caller asks
/// for.
const MOST_PAUSE: Duration = Duration::from_millis(1);
const MOST_ASKED_PAUSE: Duration = Duration::from_millis(50);
/// Regions that are collapsed between two looks at the machine's memory: 64 MiB.
const FLOOR_LOOK: usize = 32;
/// Most processes whose pace is stored, and the time for which it is stored after the last call.
const MOST_PROCESSES: usize = 4096;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Returns the available memory that promotion does not use: 5 % of all memory. Below it, a
/// collapse would reclaim memory of other processes while the process waits for its mmap lock.
pub(crate) fn floor(total: Bytes) -> Bytes {
    Bytes(total.0 / 20)
}

/// Engine that makes and splits huge pages of other processes, within its [`Latency`]. It stores
/// the pace of each process, and holds no process open between two calls.
#[derive(Debug)]
pub struct Engine {
    root: KernelRoot,
    latency: Latency,
    processes: BTreeMap<ProcessId, Pace>,
    no_memory: Pause,
    pauses: Pauses,
}

/// Numbers of pauses and back-offs, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pauses {
    /// Back-offs because a call's work took too long.
    pub slow: u64,
    /// Back-offs because a call waited for very long, or its regions together took too long.
    pub late: u64,
    /// Pauses of all promotions, for lack of memory.
    pub memory: u64,
    /// Pauses of a process's promotions, because its control group had no room.
    pub group: u64,
}

impl Engine {
    /// Returns an engine that knows no process yet.
    pub fn new(root: &KernelRoot, latency: Latency) -> Engine {
        Engine {
            root: root.clone(),
            latency,
            processes: BTreeMap::new(),
            no_memory: Pause::default(),
            pauses: Pauses::default(),
        }
    }

    /// Returns the machine that it acts on.
    pub(crate) fn root(&self) -> &KernelRoot {
        &self.root
    }

    /// Takes other bounds from now on. Forgets the pace of all processes, and learns it again
    /// within these bounds.
    pub(crate) fn configure(&mut self, latency: Latency) {
        self.processes.clear();
        self.latency = latency;
    }

    /// Returns the time for which no memory of the process is promoted from now on; zero if
    /// promotion is not backed off.
    pub fn pause(&self, process: ProcessId) -> Duration {
        self.backs_off_until(process, true).saturating_sub(boot_time())
    }

    /// Returns the same for splits.
    pub(crate) fn pause_of_splits(&self, process: ProcessId) -> Duration {
        self.backs_off_until(process, false).saturating_sub(boot_time())
    }

    /// Returns the end of the process's back-off, since boot; a time in the past if it is not
    /// backed off.
    pub(crate) fn backs_off_until(&self, process: ProcessId, promotes: bool) -> Duration {
        match self.processes.get(&process) {
            Some(pace) => pace.backs_off_until(promotes, &self.no_memory),
            None if promotes => self.no_memory.until(),
            None => Duration::ZERO,
        }
    }

    /// Returns the numbers of pauses so far.
    pub(crate) fn pauses(&self) -> Pauses {
        self.pauses
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&mut self, process: ProcessId) {
        self.processes.remove(&process);
    }

    /// Forgets the pace of processes that were not acted on for long; of all processes if there are
    /// too many.
    pub(crate) fn forget_idle(&mut self, now: Duration) {
        if self.processes.len() > MOST_PROCESSES {
            self.processes.clear();
        }
        self.processes.retain(|_, pace| now.saturating_sub(pace.used) < REMEMBERED_FOR);
    }

    /// Gives `advice` to each of `regions`, as far as the guard and `terms` allow; the other
    /// regions are [`Answer::NotTried`]. `watch` sees each call.
    pub(crate) fn advise(
        &mut self,
        advice: Advice,
        target: &mut Target,
        regions: &[HugePage],
        terms: &Terms,
        watch: impl FnMut(&Call),
    ) -> Vec<Tried> {
        self.guarded(advice, target.id(), target, regions, terms, watch)
    }

    fn guarded<T: Advisable>(
        &mut self,
        advice: Advice,
        id: ProcessId,
        target: &mut T,
        regions: &[HugePage],
        terms: &Terms,
        mut watch: impl FnMut(&Call),
    ) -> Vec<Tried> {
        let mut untried = vec![Tried::NOT; regions.len()];
        let (clock, promotes) = (&terms.clock, advice == Advice::Collapse);
        let rests = !clock.urgent && self.backs_off_until(id, promotes) > clock.now();
        if regions.is_empty() || rests || clock.is_up() {
            return untried;
        }
        if promotes && target.is_below_floor() {
            self.pause_for_memory(clock.now());
            untried[0].answer = Answer::Refused(Refusal::BelowFloor);
            return untried;
        }
        let Engine { latency, processes, no_memory, pauses, .. } = self;
        let pace = processes.entry(id).or_default();
        pace.used = clock.now();
        let mut batch = if promotes { pace.collapse } else { pace.split };
        let most = if promotes { latency.call * COLLAPSE_CALL } else { latency.call };
        let named = |batch: Batch| batch.size().min(terms.batch).max(1);
        let (mut left, mut shortages, mut to_look) = (regions.len(), 0, FLOOR_LOOK);
        let mut short = false;
        let mut size = named(batch);
        let tried = advise(target, advice, regions, size, |target, call| {
            let Some(call) = call else { return (!clock.is_up()).then_some(size) };
            watch(&call);
            batch.learn(call, most);
            left = left.saturating_sub(call.regions);
            to_look = to_look.saturating_sub(call.regions);
            match Speed::of(call, latency) {
                Speed::Fine => pace.pause.ease(),
                Speed::Slow => {
                    pauses.slow += 1;
                    pace.pause.start_after(call, clock.now(), latency);
                    if !clock.urgent {
                        return None;
                    }
                }
                Speed::Late => {
                    pauses.late += 1;
                    pace.pause.start_once(clock.now(), latency);
                    if !clock.urgent {
                        return None;
                    }
                }
            }
            match call.refused {
                Some(Refusal::GroupFull) if promotes => {
                    pauses.group += 1;
                    pace.group_full.start(clock.now(), latency);
                    return None;
                }
                // A region that was unmapped meanwhile says nothing about the others.
                Some(Refusal::NoMemory)
                    if promotes && call.at.is_none_or(|at| target.is_mapped(regions[at]) != Some(false)) =>
                {
                    shortages += 1;
                    short = shortages >= terms.shortages;
                    if short {
                        return None;
                    }
                }
                Some(refusal) if refusal.is_final() => return None,
                None if promotes && !call.failed => {
                    shortages = 0;
                    pace.group_full.ease();
                    (0..call.regions).for_each(|_| no_memory.ease());
                }
                _ => {}
            }
            if clock.is_up() {
                return None;
            }
            let asked = (call.took * terms.pause_percent / 100).min(MOST_ASKED_PAUSE);
            sleep((call.took * latency.pause_percent / 100).min(MOST_PAUSE).max(asked));
            size = named(batch);
            if promotes && to_look == 0 && left > 0 {
                to_look = FLOOR_LOOK;
                short = target.is_below_floor();
                if short {
                    return None;
                }
            }
            Some(size)
        });
        match advice {
            Advice::Collapse => pace.collapse = batch,
            Advice::ColdSplit | Advice::PageOut => pace.split = batch,
        }
        if short {
            self.pause_for_memory(clock.now());
        }
        tried
    }

    /// Ends the pause of all promotions for lack of memory, for a caller that has its own back-off
    /// for it.
    pub(crate) fn end_memory_pause(&mut self) {
        self.no_memory = Pause::default();
    }

    fn pause_for_memory(&mut self, now: Duration) {
        if self.no_memory.is_over(now) {
            self.no_memory.start(now, &self.latency);
            self.pauses.memory += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model::{Model, answers, region};
    use super::*;
    use megapage_units::Pid;
    use std::time::Instant;

    const NOW: Duration = Duration::from_secs(1000);
    const ID: ProcessId = ProcessId { pid: Pid(1), start_ticks: 1, start_stack: 1 };
    const OTHER: ProcessId = ProcessId { pid: Pid(2), start_ticks: 1, start_stack: 1 };
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn engine() -> Engine {
        Engine::new(&KernelRoot::live(), Latency { pause_percent: 0, ..Latency::default() })
    }

    fn terms(now: Duration, urgent: bool) -> Terms {
        let most = Duration::from_secs(600);
        Terms::of(Clock { now, started: Instant::now(), most, urgent })
    }

    fn regions(count: u64) -> Vec<HugePage> {
        (0..count).map(region).collect()
    }

    fn turn(engine: &mut Engine, id: ProcessId, model: &mut Model, count: u64, terms: &Terms) -> usize {
        let tried = engine.guarded(Advice::Collapse, id, model, &regions(count), terms, |_| {});
        answers(&tried).iter().filter(|answer| **answer == Answer::Accepted).count()
    }

    #[test]
    fn a_call_names_as_many_regions_as_hold_the_lock_for_its_time() {
        for (advice, most) in [(Advice::Collapse, 4), (Advice::ColdSplit, 1)] {
            let mut model = Model { busy: MILLISECOND / 4, took: MILLISECOND / 4, ..Model::refusing(&[]) };
            let mut engine = engine();
            let mut longest = Duration::ZERO;
            let tried = engine.guarded(advice, ID, &mut model, &regions(64), &terms(NOW, false), |call| {
                longest = longest.max(call.busy);
            });
            assert_eq!(answers(&tried), vec![Answer::Accepted; 64], "{advice:?}");
            assert!(longest > MILLISECOND / 4 && longest <= most * MILLISECOND, "{advice:?} {longest:?}");
            assert_eq!(model.sizes()[0], 1, "nothing is known of it yet");
        }
        // The caller's batch is a bound, too.
        let (mut model, mut engine) = (Model::refusing(&[]), engine());
        assert_eq!(turn(&mut engine, ID, &mut model, 8, &Terms { batch: 1, ..terms(NOW, false) }), 8);
        assert_eq!(model.sizes(), [1; 8]);
    }

    #[test]
    fn a_process_whose_lock_was_held_for_long_is_left_alone_and_no_other() {
        let mut slow = Model { busy: 16 * MILLISECOND, took: 16 * MILLISECOND, ..Model::refusing(&[]) };
        let (mut fine, mut engine) = (Model::refusing(&[]), engine());
        assert_eq!(turn(&mut engine, ID, &mut slow, 8, &terms(NOW, false)), 1);
        let until = engine.backs_off_until(ID, true);
        assert!(until >= NOW + Latency::default().pause, "{until:?}");
        assert_eq!(turn(&mut engine, ID, &mut slow, 8, &terms(NOW, false)), 0);
        assert_eq!(slow.sizes(), [1], "not even asked");
        assert_eq!(turn(&mut engine, OTHER, &mut fine, 8, &terms(NOW, false)), 8);
        // After its back-off it has its turn, and a longer back-off follows.
        assert_eq!(turn(&mut engine, ID, &mut slow, 8, &terms(until, false)), 1);
        assert!(engine.backs_off_until(ID, true) >= until + 2 * Latency::default().pause);
        assert_eq!(engine.pauses(), Pauses { slow: 2, ..Pauses::default() });
        // An urgent turn, such as a caller's undo, goes on.
        assert_eq!(turn(&mut engine, ID, &mut slow, 8, &terms(until, true)), 8);
    }

    #[test]
    fn a_call_that_waited_pauses_its_process_for_the_first_time_of_pauses() {
        let mut late = Model { took: Duration::from_secs(1), ..Model::refusing(&[]) };
        let mut engine = engine();
        for round in 1..4 {
            assert!(turn(&mut engine, ID, &mut late, 8, &terms(NOW * round, false)) > 0);
            assert_eq!(late.sizes().len(), round as usize, "one call, then it is left alone");
            let pause = engine.backs_off_until(ID, false) - NOW * round;
            let first = Latency::default().pause;
            assert!(pause >= first && pause < first + Duration::from_secs(60), "{pause:?}");
        }
        assert_eq!(engine.pauses(), Pauses { late: 3, ..Pauses::default() });
    }

    #[test]
    fn nothing_is_collapsed_below_the_safe_floor_and_what_is_huge_can_be_split() {
        let mut model = Model { calls_to_floor: 0, ..Model::refusing(&[]) };
        let mut engine = engine();
        let tried = engine.guarded(Advice::Collapse, ID, &mut model, &regions(3), &terms(NOW, false), |_| {});
        let untried = Answer::NotTried;
        assert_eq!(answers(&tried), [Answer::Refused(Refusal::BelowFloor), untried, untried]);
        assert!(model.calls.borrow().is_empty() && !answers(&tried)[0].was_asked());
        assert_eq!(engine.pauses(), Pauses { memory: 1, ..Pauses::default() });
        assert!(engine.backs_off_until(OTHER, true) > NOW, "of no process");
        assert_eq!(turn(&mut engine, OTHER, &mut Model::refusing(&[]), 3, &terms(NOW, false)), 0);
        let split =
            engine.guarded(Advice::ColdSplit, ID, &mut model, &regions(3), &terms(NOW, false), |_| {});
        assert_eq!(answers(&split), [Answer::Accepted; 3]);
        // Available memory is looked at now and then while more is collapsed.
        let mut model = Model { calls_to_floor: 1, ..Model::refusing(&[]) };
        let done = turn(&mut engine, ID, &mut model, 1000, &terms(NOW * 2, false));
        assert!((FLOOR_LOOK..2 * FLOOR_LOOK).contains(&done), "{done}");
        assert_eq!(engine.pauses().memory, 2);
    }

    #[test]
    fn want_of_memory_pauses_promotion_and_a_full_group_that_of_its_process() {
        // ENOMEM at the second, third and fifth region. The third is not mapped any more, which
        // says nothing.
        let mut model = Model::refusing(&[(1, 12), (2, 12), (4, 12)]);
        model.unmapped = [region(2)].into();
        let mut one = engine();
        assert_eq!(turn(&mut one, ID, &mut model, 8, &terms(NOW, false)), 1);
        assert!(one.backs_off_until(OTHER, true) > NOW && one.backs_off_until(OTHER, false) <= NOW);
        let mut two = engine();
        let patient = Terms { shortages: 2, batch: 1, ..terms(NOW, false) };
        assert_eq!(turn(&mut two, ID, &mut model, 8, &patient), 7 - 2, "in between one was obtained");
        assert_eq!((one.pauses().memory, two.pauses().memory), (1, 0));
        let mut full = engine();
        let mut model = Model::refusing(&[(1, 16)]);
        assert_eq!(turn(&mut full, ID, &mut model, 8, &terms(NOW, false)), 1);
        assert!(full.backs_off_until(ID, true) > NOW && full.backs_off_until(OTHER, true) <= NOW);
        assert!(full.backs_off_until(ID, false) <= NOW, "it can be split");
        assert_eq!(full.pauses(), Pauses { group: 1, ..Pauses::default() });
    }

    #[test]
    fn nothing_is_called_for_when_time_is_up_and_what_has_ended_is_forgotten() {
        let (mut model, mut engine) = (Model::refusing(&[]), engine());
        let up = Terms::of(Clock { now: NOW, started: Instant::now(), most: Duration::ZERO, urgent: true });
        assert_eq!((turn(&mut engine, ID, &mut model, 8, &up), model.sizes().len()), (0, 0));
        assert_eq!(turn(&mut engine, ID, &mut model, 8, &terms(NOW, false)), 8);
        assert_eq!(engine.processes.len(), 1);
        engine.forget_idle(NOW + REMEMBERED_FOR / 2);
        assert_eq!(engine.processes.len(), 1);
        engine.forget_idle(NOW + REMEMBERED_FOR * 2);
        assert!(engine.processes.is_empty());
    }
}
