//! The one owner of promotions: what may be done, what was done, and what has to wait.
//!
//! For all policies it guards the budgets of a step, the memory that is never touched, and the
//! back-offs after actions. When actions are carried out, it keeps the budgets by time, the pauses,
//! and the regions made huge: see the module `calls`.
//!
//! A request counts against the budgets of its step only. [`Promotions::note`] charges an action
//! that was tried to its region. An action that was not tried may be requested again at once.

mod budget;
mod calls;
mod forks;
mod latency;
mod saved;

pub use budget::Budgets;
pub use calls::Pauses;
pub use latency::{Call, Latency};
pub use saved::{SavedDemotion, SavedRegion};

use crate::{Action, Answer, Limits, ModelAction, Obtained, Outcome, in_use};
use budget::Bucket;
use calls::Pace;
use forks::Forks;
use latency::{Pause, doubled};
use megapage_snapshot::{Leaf, Mapping, MappingKind, MissedWhy, Process, ProcessId, Region, Snapshot};
use megapage_units::{HugePage, PageSize, Pid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// State of a process.
#[derive(Clone, Debug, Default)]
struct ProcessMemory {
    /// Children that were seen to share its memory.
    forks: Forks,
    /// Time up to which the kernel is assumed to deny access to it.
    denied: Option<Duration>,
    /// Regions that an action was tried or put off for.
    regions: BTreeMap<HugePage, RegionMemory>,
}

/// State of a region that an action was tried or put off for.
#[derive(Clone, Copy, Debug)]
struct RegionMemory {
    /// Time of the last action.
    acted: Duration,
    /// Time of the last promotion that was tried.
    promoted: Option<Duration>,
    /// The last demotion or recovery that was tried.
    demoted: Option<Demoted>,
    /// Failures in a row, actions without a visible effect included.
    failures: u32,
    /// Kind of the last action, if it failed.
    failed: Option<Kind>,
    /// End of the back-off.
    not_before: Duration,
    /// Bytes of the pages smaller than 2 MiB that it was promoted to. A snapshot need not show
    /// that.
    small: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Demoted {
    at: Duration,
    /// Share of memory in use at that time.
    in_use: f64,
    /// Base pages present afterwards; `None` before a snapshot has shown the effect.
    present: Option<u16>,
}

/// Extent to which a process may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Open {
    /// Nothing: access to it is denied.
    Nothing,
    /// Shared memory only, as it forks. A private huge page would be copied with the child's next
    /// write; shared memory never is.
    Shared,
    /// Everything.
    All,
}

/// Budgets, back-offs, and the actions done to each region.
#[derive(Clone, Debug)]
pub struct Promotions {
    limits: Limits,
    step: Step,
    processes: BTreeMap<ProcessId, ProcessMemory>,
    /// Back-off of all promotions after a lack of memory.
    no_memory: Pause,
    /// Kinds of action that this machine cannot do, each with the time up to which that is assumed.
    /// A result found while memory was short may be different later.
    unsupported: BTreeMap<Kind, Duration>,
    /// Bounds on the cost of calls. The next fields hold the remaining bytes of all processes, and
    /// the pace of each process that was acted on.
    budgets: Budgets,
    moved: Bucket,
    scanned: Bucket,
    paces: BTreeMap<ProcessId, Pace>,
    pauses: Pauses,
    /// Regions that were made huge and not split since.
    made: BTreeSet<(ProcessId, HugePage)>,
    /// Time at which processes that have ended were last forgotten.
    swept: Duration,
}

impl Default for Promotions {
    /// Returns the promotions of a caller without a policy. A lack of memory backs off promotions
    /// by the times that slow calls back off a process.
    fn default() -> Promotions {
        let Latency { pause, pause_most, .. } = Latency::default();
        Promotions::new(Limits { back_off: pause, back_off_most: pause_most, ..Limits::default() })
    }
}

/// The current step, or the last one.
#[derive(Clone, Debug, Default)]
struct Step {
    /// Share of the machine's memory in use, 0 to 1.
    in_use: f64,
    /// Bytes to be copied and zeroed, bytes to be read, and the number of actions.
    moved: u64,
    scanned: u64,
    actions: usize,
    /// True if a call of this step found no memory.
    short: bool,
    /// Regions with an accepted action: at most one action each.
    places: BTreeSet<(ProcessId, HugePage)>,
}

/// Kinds of action that a machine may be unable to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Promote(u64),
    Demote,
    Recover,
    Sample,
    ZeroScan,
    PreZero,
}

impl Kind {
    fn of(action: &Action) -> Kind {
        match action {
            Action::Promote { size, .. } => Kind::Promote(size.bytes().0),
            Action::Demote { .. } => Kind::Demote,
            Action::Recover { .. } => Kind::Recover,
            Action::ZeroScan { .. } => Kind::ZeroScan,
        }
    }

    pub fn of_model(action: &ModelAction) -> Kind {
        match action {
            ModelAction::Sample { .. } => Kind::Sample,
            ModelAction::PreZero { .. } => Kind::PreZero,
        }
    }
}

impl Promotions {
    /// Returns the promotions of a machine on which nothing was done yet.
    pub fn new(limits: Limits) -> Promotions {
        Promotions {
            limits,
            step: Step::default(),
            processes: BTreeMap::new(),
            no_memory: Pause::default(),
            unsupported: BTreeMap::new(),
            budgets: Budgets::default(),
            moved: Bucket::new(Duration::ZERO),
            scanned: Bucket::new(Duration::ZERO),
            paces: BTreeMap::new(),
            pauses: Pauses::default(),
            made: BTreeSet::new(),
            swept: Duration::ZERO,
        }
    }

    /// Takes over the state of `former`, and keeps its own limits.
    pub(crate) fn succeed(&mut self, former: &mut Promotions) {
        let limits = self.limits;
        *self = std::mem::replace(former, Promotions::new(limits));
        self.limits = limits;
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the share of the machine's memory in use, 0 to 1.
    pub(crate) fn in_use(&self) -> f64 {
        self.step.in_use
    }

    /// Takes in a new snapshot: forgets processes that are gone and learns which actions took
    /// effect. Returns the processes to look at, each with the extent to which it may be changed.
    pub(crate) fn observe<'a>(&mut self, now: Duration, snapshot: &'a Snapshot) -> Vec<(&'a Process, Open)> {
        let memory = &snapshot.machine.memory;
        self.step = Step { in_use: in_use(memory.total, memory.available), ..Step::default() };
        let mut seen = BTreeSet::new();
        let sound: Vec<&Process> = snapshot
            .processes
            .iter()
            .filter(|process| is_sound(process) && seen.insert(process.id))
            .collect();
        let unreadable: BTreeSet<Pid> = snapshot
            .missed
            .iter()
            .filter(|missed| !matches!(missed.why, MissedWhy::Gone | MissedWhy::Replaced))
            .map(|missed| missed.pid)
            .collect();
        self.processes.retain(|id, _| seen.contains(id) || unreadable.contains(&id.pid));

        // A child that has not executed a program has its stack at the same address as its parent.
        let families: BTreeSet<(Pid, u64)> = sound
            .iter()
            .filter(|process| process.id.start_stack != 0 && process.parent != process.id.pid)
            .map(|process| (process.parent, process.id.start_stack))
            .collect();
        sound
            .into_iter()
            .map(|process| {
                let shares = process.sharing_children.is_some_and(|children| children > 0)
                    || families.contains(&(process.id.pid, process.id.start_stack));
                if shares {
                    self.processes.entry(process.id).or_default().forks.shared(now);
                } else if let Some(memory) = self.processes.get_mut(&process.id) {
                    memory.forks.alone();
                }
                let open = match self.processes.get_mut(&process.id) {
                    None => Open::All,
                    Some(memory) => {
                        memory.observe(now, process, &self.limits);
                        memory.open(now, &self.limits)
                    }
                };
                (process, open)
            })
            .collect()
    }

    /// Returns true unless the machine is known to be unable to do that.
    pub(crate) fn can(&self, now: Duration, kind: Kind) -> bool {
        self.unsupported.get(&kind).is_none_or(|until| now >= *until)
    }

    /// Returns true unless promotions are backed off for lack of memory.
    pub(crate) fn has_memory(&self, now: Duration) -> bool {
        self.no_memory.is_over(now)
    }

    /// Backs off all promotions for lack of memory. Returns false if they are backed off already.
    fn back_off_for_memory(&mut self, now: Duration) -> bool {
        let starts = self.has_memory(now);
        if starts {
            // A shorter one would end before the lot of calls that found no memory.
            let (limits, least) = (&self.limits, self.budgets.latency.pause);
            self.no_memory.start(now, limits.back_off.max(least), limits.back_off_most.max(least));
        }
        starts
    }

    /// Returns true if the past actions on the region allow a promotion now.
    pub(crate) fn may_promote(&self, now: Duration, id: ProcessId, region: &Region) -> bool {
        let known = self.region(id, region.page);
        known.is_none_or(|memory| memory.may_promote(now, region, self.in_use(), &self.limits))
    }

    /// Returns the regions of a process that [`Promotions::may_promote`] allows, with their places
    /// among its regions.
    pub(crate) fn promotable<'p>(
        &self,
        now: Duration,
        process: &'p Process,
    ) -> impl Iterator<Item = (usize, &'p Region)> {
        // Both ascend, so one pass over the two suffices.
        let known = self.processes.get(&process.id).map(|memory| memory.regions.iter());
        let mut known = known.into_iter().flatten().peekable();
        process.regions.iter().enumerate().filter(move |(_, region)| {
            while known.next_if(|(start, _)| **start < region.page).is_some() {}
            let memory = known.peek().filter(|(start, _)| **start == region.page);
            memory.is_none_or(|(_, memory)| memory.may_promote(now, region, self.in_use(), &self.limits))
        })
    }

    /// Returns true if the past actions on the region allow a demotion now. With `short` memory the
    /// cool-down does not apply, so that a wrong promotion is undone at once.
    pub(crate) fn may_demote(&self, now: Duration, id: ProcessId, region: HugePage, short: bool) -> bool {
        let Some(memory) = self.region(id, region) else { return true };
        now >= memory.not_before
            && (short
                || memory
                    .promoted
                    .is_none_or(|promoted| now.saturating_sub(promoted) >= self.limits.cool_down))
    }

    /// Returns true if the region was promoted to pages of at least `size` bytes before, but less
    /// than 2 MiB.
    pub(crate) fn has_small(&self, id: ProcessId, region: HugePage, size: u64) -> bool {
        self.region(id, region).and_then(|memory| memory.small).is_some_and(|small| small >= size)
    }

    /// Accepts one action of this step that moves and scans the given bytes, if the budgets allow
    /// it. A region has at most one action in a step.
    pub(crate) fn accept(
        &mut self,
        place: Option<(ProcessId, HugePage)>,
        moved: u64,
        scanned: u64,
    ) -> Answer {
        let (limits, step) = (&self.limits, &mut self.step);
        let all = (step.moved.saturating_add(moved), step.scanned.saturating_add(scanned));
        if place.is_some_and(|place| step.places.contains(&place)) {
            return Answer::Refused;
        }
        if step.actions >= limits.actions || all.0 > limits.moved.0 || all.1 > limits.scanned.0 {
            return Answer::Spent;
        }
        (step.moved, step.scanned) = all;
        step.actions += 1;
        step.places.extend(place);
        Answer::Accepted
    }

    /// Returns the number of huge pages that this step may still move, and still scan. Both are 0
    /// once the step has all its actions.
    pub(crate) fn left(&self) -> (u64, u64) {
        let (limits, step) = (&self.limits, &self.step);
        let left = |most: u64, used: u64| match step.actions >= limits.actions {
            true => 0,
            false => most.saturating_sub(used) / HugePage::SIZE,
        };
        (left(limits.moved.0, step.moved), left(limits.scanned.0, step.scanned))
    }

    /// Charges an action that was tried, and learns its outcome.
    pub fn note(&mut self, now: Duration, outcome: &Outcome) {
        let (action, limits) = (&outcome.action, self.limits);
        if let Some((id, region)) = action.place() {
            let in_use = self.in_use();
            let memory = self.region_mut(now, id, region);
            memory.acted_on(now, action, in_use, &limits);
            let (kind, failed) =
                (Kind::of(action), !matches!(outcome.obtained, Obtained::Done | Obtained::Gone));
            memory.failed = if failed { Some(kind) } else { memory.failed.filter(|it| *it != kind) };
        }
        if outcome.obtained == Obtained::Unsupported {
            self.is_unsupported(now, Kind::of(action));
            return;
        }
        let promotion = matches!(action, Action::Promote { .. });
        // Counts several refusals of one step as one: an actuator may stop at the first or go on.
        if promotion && outcome.obtained == Obtained::NoMemory {
            // The call itself has reported it, where the kernel was asked.
            if !self.step.short {
                self.back_off_for_memory(now);
            }
        } else if promotion && outcome.obtained == Obtained::Done {
            self.no_memory = Pause::default();
            self.step.short = false;
        }
        // Stores only processes that were in the last snapshot, or that were acted on.
        let Some(process) = self.processes.get_mut(&action.process()) else { return };
        match outcome.obtained {
            Obtained::Denied => process.denied = Some(now + limits.back_off_most),
            Obtained::Done => {
                if let Action::Promote { region, size, .. } = action
                    && *size < PageSize::HUGE_2M
                    && let Some(memory) = process.regions.get_mut(region)
                {
                    memory.failures = 0;
                    memory.small = Some(size.bytes().0);
                }
            }
            Obtained::Gone | Obtained::NoMemory | Obtained::Unsupported => {}
            Obtained::Busy | Obtained::Impossible => {
                if let Some(memory) = action.region().and_then(|region| process.regions.get_mut(&region)) {
                    memory.not_before = now
                        + match outcome.obtained {
                            Obtained::Impossible => limits.back_off_most,
                            _ => back_off(memory.failures.saturating_sub(1), &limits),
                        };
                }
            }
        }
    }

    /// Notes that this machine cannot do such an action.
    pub(crate) fn is_unsupported(&mut self, now: Duration, kind: Kind) {
        self.unsupported.insert(kind, now + self.limits.back_off_most);
    }

    /// Backs off from a region until `until`. This is not a failure.
    pub(crate) fn put_off(&mut self, now: Duration, id: ProcessId, region: HugePage, until: Duration) {
        let memory = self.region_mut(now, id, region);
        memory.not_before = memory.not_before.max(until);
    }

    /// Returns the number of tracked processes and regions.
    pub(crate) fn tracked(&self) -> usize {
        self.processes.values().map(|process| 1 + process.regions.len()).sum()
    }

    fn region(&self, id: ProcessId, region: HugePage) -> Option<&RegionMemory> {
        self.processes.get(&id)?.regions.get(&region)
    }

    fn region_mut(&mut self, now: Duration, id: ProcessId, region: HugePage) -> &mut RegionMemory {
        let process = self.processes.entry(id).or_default();
        process.regions.entry(region).or_insert(RegionMemory::new(now))
    }
}

impl RegionMemory {
    fn new(now: Duration) -> RegionMemory {
        RegionMemory {
            acted: now,
            promoted: None,
            demoted: None,
            failures: 0,
            failed: None,
            not_before: now,
            small: None,
        }
    }

    /// Notes an action that was tried. It counts as failed before a snapshot shows the effect.
    fn acted_on(&mut self, now: Duration, action: &Action, in_use: f64, limits: &Limits) {
        if matches!(action, Action::Promote { .. }) {
            (self.promoted, self.demoted) = (Some(now), None);
        } else {
            self.demoted = Some(Demoted { at: now, in_use, present: None });
            self.small = None;
        }
        self.acted = now;
        self.not_before = now
            + match self.failures {
                0 => limits.settle,
                failures => limits.settle.max(back_off(failures - 1, limits)),
            };
        self.failures = self.failures.saturating_add(1);
    }

    fn may_promote(&self, now: Duration, region: &Region, in_use: f64, limits: &Limits) -> bool {
        now >= self.not_before
            && self.demoted.is_none_or(|demoted| {
                let present = demoted.present.unwrap_or(region.present);
                now.saturating_sub(demoted.at) >= limits.cool_down
                    && (present.abs_diff(region.present) >= limits.changed_pages
                        || demoted.in_use - in_use >= limits.relief)
            })
    }
}

impl ProcessMemory {
    fn open(&self, now: Duration, limits: &Limits) -> Open {
        match (self.denied.is_none_or(|until| now >= until), self.forks.are_over(now, limits.fork_quiet)) {
            (false, _) => Open::Nothing,
            (true, false) => Open::Shared,
            (true, true) => Open::All,
        }
    }

    /// Learns which actions took effect. Forgets regions that are gone, and regions without any
    /// state that still applies.
    fn observe(&mut self, now: Duration, process: &Process, limits: &Limits) {
        let mut regions = process.regions.iter().peekable();
        self.regions.retain(|start, memory| {
            while regions.next_if(|region| region.page < *start).is_some() {}
            let Some(region) = regions.peek().filter(|region| region.page == *start) else { return false };
            let wants_huge = memory.demoted.is_none();
            if (region.leaf == Leaf::Huge2m) == wants_huge {
                memory.failures = 0;
                if let Some(demoted) = &mut memory.demoted {
                    demoted.present.get_or_insert(region.present);
                }
            }
            memory.demoted.is_some()
                || now < memory.not_before
                // Stores failures for longer than the longest back-off, so that they can add up.
                || now.saturating_sub(memory.acted) < limits.back_off_most.max(limits.cool_down) * 2
        });
    }
}

/// Returns `back_off`, doubled `times` times, at most `back_off_most`.
fn back_off(times: u32, limits: &Limits) -> Duration {
    doubled(limits.back_off, times, limits.back_off_most)
}

/// Returns true if a process is sound: its regions are ascending and have possible values, and none
/// is the last of the address space. An unsound process is skipped.
fn is_sound(process: &Process) -> bool {
    process.regions.last().is_none_or(|region| region.page.end() < u64::MAX)
        && process.regions.iter().all(|region| region.present <= megapage_snapshot::PAGES)
        && process.regions.is_sorted_by(|a, b| a.page < b.page)
}

/// Returns true if one mapping holds a region whole, and nothing forbids a huge page there. The
/// mapping is not locked, watched (userfaultfd), of device memory, or excluded by
/// `MADV_NOHUGEPAGE`.
pub(crate) fn is_unhindered(mapping: &Mapping, region: &Region) -> bool {
    let flags = &mapping.flags;
    region.whole
        && mapping.range.start() <= region.page.start()
        && region.page.end() <= mapping.range.end()
        && !(flags.no_huge || flags.locked || flags.userfault || flags.device)
}

/// Returns true if a region may be sampled, promoted or demoted. It is private anonymous memory
/// that one mapping holds whole. The mapping is not locked, watched (userfaultfd), of device
/// memory, or excluded by `MADV_NOHUGEPAGE`.
pub(crate) fn is_allowed(process: &Process, region: &Region) -> bool {
    let Some(mapping) = process.mappings.get(region.mapping as usize) else { return false };
    matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous)
        && !mapping.flags.shared
        && is_unhindered(mapping, region)
}
