//! What any policy may do: the budgets of a step, what is never touched, and what is not tried again too soon.
//!
//! Nothing is charged when a policy asks. [`Promotions::note`] charges what was tried; what was not tried may be asked for
//! again at once.

mod forks;
mod saved;

pub use saved::{SavedDemotion, SavedRegion};

use crate::{Action, Answer, Limits, ModelAction, Obtained, Outcome, in_use};
use forks::Forks;
use megapage_snapshot::{Leaf, Mapping, MappingKind, MissedWhy, Process, ProcessId, Region, Snapshot};
use megapage_units::{HUGE_2M, PageSize, Pid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The state of a process.
#[derive(Clone, Debug, Default)]
struct ProcessMemory {
    /// Children that were seen to share its memory.
    forks: Forks,
    /// Denied to us until then.
    denied: Option<Duration>,
    /// Regions that something was done to.
    regions: BTreeMap<u64, RegionMemory>,
}

/// The state of a region that something was done to.
#[derive(Clone, Copy, Debug)]
struct RegionMemory {
    /// The last action.
    acted: Duration,
    /// The last promotion that was tried.
    promoted: Option<Duration>,
    /// The last demotion or recovery that was tried.
    demoted: Option<Demoted>,
    /// Failures, or actions without a visible effect, in a row.
    failures: u32,
    /// Nothing before that time.
    not_before: Duration,
    /// Bytes of the pages smaller than 2 MiB that it was promoted to; a snapshot need not show that.
    small: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Demoted {
    at: Duration,
    /// The share of memory in use then.
    in_use: f64,
    /// Base pages present afterwards; `None` until a snapshot has shown the effect.
    present: Option<u16>,
}

/// What of a process may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Open {
    /// It is denied to us.
    Nothing,
    /// It forks: a huge page would be copied with the child's next write. Shared memory never is.
    Shared,
    /// Everything.
    All,
}

/// Owns budgets, back-offs, and what was done to each region.
#[derive(Clone, Debug)]
pub(crate) struct Promotions {
    limits: Limits,
    step: Step,
    processes: BTreeMap<ProcessId, ProcessMemory>,
    /// No promotion before that time, for lack of memory; and how often in a row.
    no_memory: Option<(Duration, u32)>,
    /// Kinds of action that this machine cannot do, and until when that is believed: what was found out while memory
    /// was short may turn out otherwise.
    unsupported: BTreeMap<Kind, Duration>,
}

/// The step that is under way, or was the last.
#[derive(Clone, Debug, Default)]
struct Step {
    /// The share of the machine's memory in use, 0 to 1.
    in_use: f64,
    /// Bytes to be copied and zeroed, and to be read, and the number of actions.
    moved: u64,
    scanned: u64,
    actions: usize,
    /// Regions that an action was accepted for: one each.
    places: BTreeSet<(ProcessId, u64)>,
}

/// Kinds of action, as far as a machine may be unable to do them.
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
    pub fn new(limits: Limits) -> Promotions {
        let (processes, unsupported) = (BTreeMap::new(), BTreeMap::new());
        Promotions { limits, step: Step::default(), processes, no_memory: None, unsupported }
    }

    /// Takes over what `former` knows, and keeps its own limits.
    pub fn succeed(&mut self, former: &mut Promotions) {
        let limits = self.limits;
        *self = std::mem::replace(former, Promotions::new(limits));
        self.limits = limits;
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the share of the machine's memory in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        self.step.in_use
    }

    /// Takes a new snapshot in: forgets processes that are gone, learns what has taken effect, and answers the processes that may
    /// be looked at, each with what of it may be changed.
    pub fn observe<'a>(&mut self, now: Duration, snapshot: &'a Snapshot) -> Vec<(&'a Process, Open)> {
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

        // A child that has not executed a program has its parent's stack, where it was.
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

    /// Whether the machine can do that, as far as is known.
    pub fn can(&self, now: Duration, kind: Kind) -> bool {
        self.unsupported.get(&kind).is_none_or(|until| now >= *until)
    }

    /// Whether memory for promotions may be there.
    pub fn has_memory(&self, now: Duration) -> bool {
        self.no_memory.is_none_or(|(until, _)| now >= until)
    }

    /// Returns true if what was done to the region before allows a promotion now.
    pub fn may_promote(&self, now: Duration, id: ProcessId, region: &Region) -> bool {
        let known = self.region(id, region.start);
        known.is_none_or(|memory| memory.may_promote(now, region, self.in_use(), &self.limits))
    }

    /// The regions of a process that [`Promotions::may_promote`] allows, with their places among its regions.
    pub fn promotable<'p>(
        &self,
        now: Duration,
        process: &'p Process,
    ) -> impl Iterator<Item = (usize, &'p Region)> {
        // Both ascend: one pass over the two.
        let known = self.processes.get(&process.id).map(|memory| memory.regions.iter());
        let mut known = known.into_iter().flatten().peekable();
        process.regions.iter().enumerate().filter(move |(_, region)| {
            while known.next_if(|(start, _)| **start < region.start).is_some() {}
            let memory = known.peek().filter(|(start, _)| **start == region.start);
            memory.is_none_or(|(_, memory)| memory.may_promote(now, region, self.in_use(), &self.limits))
        })
    }

    /// Whether what was done to the region before allows a demotion now. Where memory runs short, a promotion that
    /// was a mistake is undone at once.
    pub fn may_demote(&self, now: Duration, id: ProcessId, region: u64, short: bool) -> bool {
        let Some(memory) = self.region(id, region) else { return true };
        now >= memory.not_before
            && (short
                || memory
                    .promoted
                    .is_none_or(|promoted| now.saturating_sub(promoted) >= self.limits.cool_down))
    }

    /// Whether the region was promoted to pages of `size` bytes or larger before, less than 2 MiB.
    pub fn has_small(&self, id: ProcessId, region: u64, size: u64) -> bool {
        self.region(id, region).and_then(|memory| memory.small).is_some_and(|small| small >= size)
    }

    /// Accepts one action of this step that moves and scans so many bytes, if the budgets leave as much. A region has
    /// one action in a step.
    pub fn accept(&mut self, place: Option<(ProcessId, u64)>, moved: u64, scanned: u64) -> Answer {
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

    /// Returns the huge pages that this step may still move and scan; none once it has as many actions as it may.
    pub fn left(&self) -> (u64, u64) {
        let (limits, step) = (&self.limits, &self.step);
        let left = |most: u64, used: u64| match step.actions >= limits.actions {
            true => 0,
            false => most.saturating_sub(used) / HUGE_2M as u64,
        };
        (left(limits.moved.0, step.moved), left(limits.scanned.0, step.scanned))
    }

    /// Charges an action that was tried, and learns what became of it.
    pub fn note(&mut self, now: Duration, outcome: &Outcome) {
        let (action, limits) = (&outcome.action, self.limits);
        if let Some((id, region)) = action.place() {
            let in_use = self.in_use();
            self.region_mut(now, id, region).acted_on(now, action, in_use, &limits);
        }
        if outcome.obtained == Obtained::Unsupported {
            self.is_unsupported(now, Kind::of(action));
            return;
        }
        let promotion = matches!(action, Action::Promote { .. });
        // Several refusals of one step are one: an actuator may stop at the first or go on.
        if promotion && outcome.obtained == Obtained::NoMemory && self.has_memory(now) {
            let times = self.no_memory.map_or(0, |(_, times)| times);
            self.no_memory = Some((now + back_off(times, &limits), times.saturating_add(1)));
        } else if promotion && outcome.obtained == Obtained::Done {
            self.no_memory = None;
        }
        // Only processes in the last snapshot, or acted on, are stored.
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

    /// This machine cannot do such a thing.
    pub fn is_unsupported(&mut self, now: Duration, kind: Kind) {
        self.unsupported.insert(kind, now + self.limits.back_off_most);
    }

    /// Leaves the region of an action alone until then, which is no failure.
    pub fn put_off(&mut self, now: Duration, action: &Action, until: Duration) {
        if let Some((id, region)) = action.place() {
            let memory = self.region_mut(now, id, region);
            memory.not_before = memory.not_before.max(until);
        }
    }

    /// Processes and regions tracked.
    pub fn tracked(&self) -> usize {
        self.processes.values().map(|process| 1 + process.regions.len()).sum()
    }

    fn region(&self, id: ProcessId, region: u64) -> Option<&RegionMemory> {
        self.processes.get(&id)?.regions.get(&region)
    }

    fn region_mut(&mut self, now: Duration, id: ProcessId, region: u64) -> &mut RegionMemory {
        let process = self.processes.entry(id).or_default();
        process.regions.entry(region).or_insert(RegionMemory::new(now))
    }
}

impl RegionMemory {
    fn new(now: Duration) -> RegionMemory {
        RegionMemory { acted: now, promoted: None, demoted: None, failures: 0, not_before: now, small: None }
    }

    /// Something was tried. Until a snapshot shows the effect, it has failed.
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

    /// Learns what has taken effect, and forgets regions that are gone or to which nothing applies any longer.
    fn observe(&mut self, now: Duration, process: &Process, limits: &Limits) {
        let mut regions = process.regions.iter().peekable();
        self.regions.retain(|start, memory| {
            while regions.next_if(|region| region.start < *start).is_some() {}
            let Some(region) = regions.peek().filter(|region| region.start == *start) else { return false };
            let wants_huge = memory.demoted.is_none();
            if (region.leaf == Leaf::Huge2m) == wants_huge {
                memory.failures = 0;
                if let Some(demoted) = &mut memory.demoted {
                    demoted.present.get_or_insert(region.present);
                }
            }
            memory.demoted.is_some()
                || now < memory.not_before
                // Failures are stored for longer than the longest wait, or they would never add up.
                || now.saturating_sub(memory.acted) < limits.back_off_most.max(limits.cool_down) * 2
        });
    }
}

/// `back_off`, doubled `times` times, at most `back_off_most`.
fn back_off(times: u32, limits: &Limits) -> Duration {
    let factor = 1u32.checked_shl(times).unwrap_or(u32::MAX);
    limits.back_off.saturating_mul(factor).min(limits.back_off_most)
}

/// Whether a process is as a snapshot describes processes: regions ascending, aligned, with possible values. One
/// that is not is left alone.
fn is_sound(process: &Process) -> bool {
    let possible = |region: &Region| {
        region.start.is_multiple_of(HUGE_2M as u64)
            && region.start.checked_add(HUGE_2M as u64).is_some()
            && region.present <= megapage_snapshot::PAGES
    };
    process.regions.iter().all(possible) && process.regions.is_sorted_by(|a, b| a.start < b.start)
}

/// Whether a mapping holds a region whole, and no process has locked it, watches it (userfaultfd), or wants it without huge pages.
pub(crate) fn is_unhindered(mapping: &Mapping, region: &Region) -> bool {
    let flags = &mapping.flags;
    region.whole
        && mapping.range.start() <= region.start
        && region.start.checked_add(HUGE_2M as u64).is_some_and(|end| end <= mapping.range.end())
        && !(flags.no_huge || flags.locked || flags.userfault || flags.device)
}

/// Whether a region may be sampled, promoted or demoted at all: private anonymous memory that one mapping holds
/// whole, and that no process has locked, watches (userfaultfd), or wants without huge pages.
pub(crate) fn is_allowed(process: &Process, region: &Region) -> bool {
    let Some(mapping) = process.mappings.get(region.mapping as usize) else { return false };
    matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous)
        && !mapping.flags.shared
        && is_unhindered(mapping, region)
}
