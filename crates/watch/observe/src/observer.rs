//! The observer: snapshots of chosen processes, one after the other, with samples of their access bits as often as
//! the budget of each allows.

mod budget;
mod candidates;
mod cycle;
pub(crate) mod fair;
mod history;
mod outstanding;
mod part;
mod requests;
mod target;
mod zero_scan;

pub use history::NEW_WEIGHT;
pub use requests::ZeroScanned;
pub use zero_scan::{Thoroughness, count_zeros};

use crate::machine::machine;
use crate::mappings::FlagState;
use crate::process::{Reader, gone, identify, missed};
use crate::tracker::{SelectError, Selected, Tracker, select};
use budget::Terms;
use fair::{Fair, most_regions};
use megapage_kernel::cgroup::{Cgroups, MemoryLimits};
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::process::ticks;
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::{KernelError, KernelRoot, boot_time, cpu_time_of};
use megapage_snapshot::{
    Machine, MemoryLimit, Missed, MissedWhy, Process, ProcessId, Sampling, Snapshot, TrackerKind,
    TranslationCost,
};
use megapage_units::{Bytes, Pid};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use target::Target;
use thiserror::Error;

/// What a first access costs a large program, over what it costs the small one that it is measured on: with 1 GiB,
/// whose page tables do not stay in the second-level cache, 425 ns were lost (medians of eight clearings, reading and
/// writing at random) where the measurement gave 311 to 375.
const LARGER: f64 = 1.25;

/// How an observer works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Use this tracker and no other; `None`: the best that passes its self-test.
    pub tracker: Option<TrackerKind>,
    /// Whether to sample access bits at all. Without it nothing about a target is changed, not even a bit.
    pub sample: bool,
    /// The largest slow-down of a target by sampling, as a share of its processor time. Default 0.01: 1 %.
    pub budget: f64,
    /// From clearing the bits to reading them. Default 1 s.
    pub window: Duration,
    /// Whether to count the zero-filled base pages of huge pages, 128 MiB of memory at most in each snapshot.
    pub zero_scan: bool,
    /// Whether a snapshot is bounded in time and memory, whatever the processes are made of: processes with too many
    /// mappings for their size are not looked at, and the others after three seconds in the next snapshot, fairly among
    /// users. For an observer of other users' processes that runs unasked, and for long.
    pub bounded: bool,
    /// Whether to look up on folios of what order base pages lie (CAP_SYS_ADMIN). About 30 ms for each GiB.
    pub folios: bool,
    /// Whether it is about what is to be promoted. Then the first sample of a process is early, of a sixteenth of the
    /// window, which shows how often pages are visited, and paid for by the processor time that it took before it was observed. And one that is nearly all on
    /// huge pages, of which a sample says little, is sampled once a minute at most.
    pub promotes: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tracker: None,
            sample: true,
            budget: 0.01,
            window: Duration::from_secs(1),
            zero_scan: false,
            bounded: false,
            folios: false,
            promotes: false,
        }
    }
}

/// Why there can be no observer.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// A file about the machine could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An option is out of range.
    #[error("{0}")]
    BadOption(String),
    /// The tracker that was asked for cannot be used.
    #[error("{0}")]
    NoTracker(String),
}

/// The time, as the observer sees it: a parameter, so that tests need not wait.
pub trait Clock: Send {
    /// Time since boot; never falls.
    fn now(&self) -> Duration;
    /// Returns when at least `time` has passed.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        boot_time()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Takes snapshots; see the module.
pub struct Observer {
    options: Options,
    clock: Box<dyn Clock>,
    reader: Reader,
    tracker: Option<Box<dyn Tracker>>,
    sampling: Option<Sampling>,
    why_unsampled: Option<String>,
    machine: Machine,
    targets: BTreeMap<Pid, Target>,
    fair: Fair,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("options", &self.options)
            .field("sampling", &self.sampling)
            .field("targets", &self.targets.keys())
            .finish_non_exhaustive()
    }
}

impl Observer {
    /// An observer on the machine's clock, with the tracker that was asked for or the best that passes its self-test
    /// (10 ms; 0.2 s the first three times after a boot). Where none does, or `root` is a captured tree, nothing is sampled, and
    /// [`why_unsampled`](Observer::why_unsampled) says why; a tracker that was asked for and cannot be used is an
    /// error.
    pub fn start(root: &KernelRoot, options: Options) -> Result<Observer, ObserveError> {
        check(&options)?;
        let (selected, why_not) = match options.sample.then(|| select(root, options.tracker)) {
            None => (None, None),
            Some(Ok(selected)) => (Some(selected), None),
            Some(Err(error @ SelectError::Unusable { .. })) => {
                return Err(ObserveError::NoTracker(error.to_string()));
            }
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let mut observer = Observer::with_parts(root, options, selected, Box::new(BootClock))?;
        observer.why_unsampled = why_not;
        Ok(observer)
    }

    /// An observer with given parts: of a synthetic tree, with a synthetic clock and tracker, or of this machine without
    /// a tracker. `selected` is not used where `options.sample` is off.
    pub fn with_parts(
        root: &KernelRoot,
        options: Options,
        selected: Option<Selected>,
        clock: Box<dyn Clock>,
    ) -> Result<Observer, ObserveError> {
        check(&options)?;
        let selected = selected.filter(|_| options.sample);
        let sampling = selected.as_ref().map(|selected| Sampling {
            tracker: selected.tracker.kind(),
            lacks: selected.tracker.lacks().to_vec(),
            skipped: selected.skipped.clone(),
            first_access_ns: selected.first_access_ns,
            budget: options.budget,
        });
        let machine = machine(root)?;
        let limit = Cgroups::read(root, None).ok().and_then(|groups| groups.memory_limit());
        Ok(Observer {
            fair: Fair::new(most_regions(machine.memory.total, limit)),
            machine,
            reader: Reader {
                root: root.clone(),
                devices: MemoryDevices::read(root),
                bounded: options.bounded,
                flags: if options.folios { FrameFlags::open(root).ok() } else { None },
            },
            options,
            clock,
            tracker: selected.map(|selected| selected.tracker),
            why_unsampled: None,
            sampling,
            targets: BTreeMap::new(),
        })
    }

    /// How access bits are sampled; `None` where they are not.
    pub fn sampling(&self) -> Option<&Sampling> {
        self.sampling.as_ref()
    }

    /// Why nothing is sampled though it was asked for, in one line; `None` where something is, or it was not.
    pub fn why_unsampled(&self) -> Option<&str> {
        self.why_unsampled.as_deref()
    }

    /// The tracker itself, for estimators. What they clear or read is theirs to fit into the budget.
    pub fn tracker(&mut self) -> Option<&mut dyn Tracker> {
        match &mut self.tracker {
            Some(tracker) => Some(tracker.as_mut()),
            None => None,
        }
    }

    /// What address translation costs the process, as a source outside has found: shown from the next snapshot on,
    /// until the process is another or is not asked for.
    pub fn note_translation(&mut self, id: ProcessId, cost: TranslationCost) {
        if let Some(target) = self.targets.get_mut(&id.pid).filter(|target| target.id == id) {
            target.translation = Some(cost);
        }
    }

    /// Sets what samples have said of the regions of `process`, an earlier snapshot's, since then.
    pub fn note_samples(&self, process: &mut Process) {
        let Some(target) = self.targets.get(&process.id.pid).filter(|target| target.id == process.id) else {
            return;
        };
        for region in &mut process.regions {
            region.accessed = target.history.accessed(region.start).copied().or(region.accessed);
        }
    }

    /// Whether the bits of this process were cleared and are still to be read: what clears or reads them meanwhile
    /// spoils the sample.
    pub fn is_sampling(&self, id: ProcessId) -> bool {
        self.targets.get(&id.pid).is_some_and(|target| target.id == id && target.is_cleared())
    }

    /// How long until a sample must be read or may be started; `None` where there is nothing to sample.
    pub fn next_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let due = self.targets.values().filter_map(|target| target.due).min()?;
        Some(due.saturating_sub(now))
    }

    /// Reads everything now; completes the samples that are due, and starts new ones as far as the budgets allow.
    /// Never sleeps. Processes that are not asked for any more are forgotten.
    ///
    /// A machine file that cannot be read leaves the machine as it was last read; a process that cannot be read is
    /// in [`Snapshot::missed`].
    pub fn snapshot(&mut self, pids: &[Pid]) -> Snapshot {
        self.pass(pids, true)
    }

    /// One shot: clears the bits, sleeps the window, reads. The first sample is of as many regions as cost no more
    /// than the budget of the window whatever the target does; where regions are deferred, a second one follows at once,
    /// of as many as the budget then allows: more, where little was accessed. A longer window pays for more.
    /// Regions that were not reached have no values.
    pub fn sample_once(&mut self, pids: &[Pid]) -> Snapshot {
        // There is no later pass for what this one leaves.
        let bounded = std::mem::replace(&mut self.options.bounded, false);
        let snapshot = self.sample_all_once(pids);
        self.options.bounded = bounded;
        snapshot
    }

    fn sample_all_once(&mut self, pids: &[Pid]) -> Snapshot {
        let mut left: BTreeSet<Pid> = pids.iter().copied().collect();
        let mut lost: Vec<Missed> = Vec::new();
        let mut snapshot = self.pass(pids, true);
        self.targets.values_mut().for_each(Target::only_once);
        for another in [true, false] {
            // A process that is missed now is not taken up again: its sample is lost.
            for missed in snapshot.missed.iter().filter(|missed| snapshot.process(missed.pid).is_none()) {
                left.remove(&missed.pid);
                lost.push(missed.clone());
            }
            let Some(due) = self.targets.values().filter_map(Target::read_due).max() else { break };
            self.clock.sleep(due.saturating_sub(self.clock.now()));
            if another {
                self.targets.values_mut().for_each(Target::hurry);
            }
            let pids: Vec<Pid> = left.iter().copied().collect();
            snapshot = self.pass(&pids, another);
        }
        for sampling in snapshot.processes.iter_mut().filter_map(|process| process.sampling.as_mut()) {
            // No other follows.
            sampling.period = None;
        }
        snapshot.missed.retain(|missed| !lost.iter().any(|other| other.pid == missed.pid));
        snapshot.missed.extend(lost);
        snapshot.missed.sort_by_key(|missed| missed.pid);
        snapshot
    }

    /// One round over all processes. `start`: whether new samples may be started.
    fn pass(&mut self, pids: &[Pid], start: bool) -> Snapshot {
        let pids: BTreeSet<Pid> = pids.iter().copied().collect();
        self.targets.retain(|pid, _| pids.contains(pid));
        if let Ok(machine) = machine(&self.reader.root) {
            self.machine = machine;
        }
        let mut processes = Vec::new();
        let mut missed = Vec::new();
        let root = self.reader.root.clone();
        let limits = MemoryLimits::new(&root).ok();
        let mut round = Round { start, limits, targets: pids.len(), zero_bytes: zero_scan::MOST_BYTES };
        if self.options.bounded {
            self.pass_bounded(pids, &mut round, &mut processes, &mut missed);
        } else {
            for pid in pids {
                self.take(pid, &mut round, &mut processes, &mut missed);
            }
        }
        // At the end: nothing in a snapshot is newer than the snapshot.
        let taken = self.clock.now();
        Snapshot { taken, machine: self.machine.clone(), sampling: self.sampling.clone(), processes, missed }
    }

    /// One process, into the one list or the other.
    fn take(
        &mut self,
        pid: Pid,
        round: &mut Round<'_>,
        processes: &mut Vec<Process>,
        missed: &mut Vec<Missed>,
    ) {
        match self.observe(pid, round, missed) {
            Ok(process) => processes.push(process),
            Err(why) => {
                // What was known of it is not shown again.
                self.targets.remove(&pid);
                missed.push(why);
            }
        }
    }

    /// As many as there is time for, fairly among users. Both lists are ascending in the end.
    fn pass_bounded(
        &mut self,
        pids: BTreeSet<Pid>,
        round: &mut Round<'_>,
        processes: &mut Vec<Process>,
        missed: &mut Vec<Missed>,
    ) {
        self.fair.keep(|pid| pids.contains(pid));
        let began = self.clock.now();
        let mut turns = self.fair.turns(&self.reader.root, pids.into_iter());
        let mut now = began;
        while now.saturating_sub(began) < fair::LONGEST_PASS
            && let Some((pid, user)) = turns.next()
        {
            let (start, before, found_beyond) = (now, processes.len(), self.fair.found_beyond);
            self.take(pid, round, processes, missed);
            now = self.clock.now();
            let taken = processes.get(before);
            let (user_now, regions) = taken.map_or((user, 0), |process| (process.uid, process.regions.len()));
            self.fair.looked(pid, user_now, now);
            if self.fair.found_beyond > found_beyond {
                turns.note_beyond(user);
            }
            if !turns.took(user, now.saturating_sub(start), regions)
                && let Some(process) = processes.pop()
            {
                self.targets.remove(&pid);
                self.fair.note_beyond(process.id, now);
                missed.push(fair::too_many_regions(pid, &process.name, self.fair.most_regions));
            }
        }
        // What is known of these stays; it is shown when it is fresh.
        missed.extend(turns.remaining().map(fair::postponed));
        processes.sort_by_key(|process| process.id.pid);
        missed.sort_by_key(|missed| missed.pid);
    }

    fn observe(
        &mut self,
        pid: Pid,
        round: &mut Round<'_>,
        also_missed: &mut Vec<Missed>,
    ) -> Result<Process, Missed> {
        let root = self.reader.root.clone();
        let (id, stat) = identify(&root, pid)?;
        if self.options.bounded && self.fair.left_alone(id, self.clock.now()) {
            return Err(fair::too_many_mappings(pid, &stat.name));
        }
        // To the nanosecond, before anything is read: what is the same afterwards has not run.
        let cpu = if root.is_live() { cpu_time_of(pid).ok() } else { None };
        let mut target = match self.targets.remove(&pid) {
            Some(former) if former.id == id => former,
            Some(former) if former.is_cleared() => return Err(replaced(former.id, id)),
            _ => {
                let started = ticks(id.start_ticks);
                let age = self.clock.now().saturating_sub(started).as_secs_f64();
                // Without an access tracker nothing is cleared, so nothing is charged.
                let sampling = self.sampling.as_ref().filter(|sampling| sampling.tracker.tells_accesses());
                let terms = sampling.map(|sampling| self.terms(sampling));
                Target::new(id, terms, stat.cpu.as_secs_f64() / age, stat.cpu)
            }
        };
        let clock = self.clock.as_ref();
        let now = || clock.now();
        let tracker = self.tracker.as_mut();
        let mut sampling =
            tracker.map(|tracker| target::Pass { tracker: tracker.as_mut(), now: &now, root: &root, cpu });
        if let Some(pass) = &mut sampling {
            target.earn(pass, stat.cpu);
            target.read_if_due(pass, round.targets).map_err(|lost| lost_why(&root, id, lost))?;
        }
        let tables: Option<&mut dyn Tracker> = match &mut sampling {
            Some(pass) => Some(&mut *pass.tracker),
            None => None,
        };
        let state = FlagState { cpu, thp: self.machine.thp.clone() };
        let found = self
            .reader
            .read(id, &stat, &mut target.details, &now, &state, tables)
            .map_err(|error| missed(pid, &stat.name, &error));
        if self.options.bounded {
            match &found {
                Err(why) if why.why == MissedWhy::Bounded => self.fair.note_beyond(id, now()),
                _ => self.fair.note_within(pid),
            }
        }
        let mut found = found?;
        let process = &mut found.process;
        if self.options.zero_scan && self.reader.root.is_live() && !target.is_cleared() {
            zero_scan::scan(
                &self.reader.root,
                process,
                &mut target.history,
                &mut target.zero_cursor,
                &mut round.zero_bytes,
            );
        }
        let (wanted, rest) = (target.wanted_zeros(), &mut round.zero_bytes);
        for (start, zeros) in zero_scan::scan_these(&root, pid, &wanted, Thoroughness::All, rest) {
            target.history.note_zeros(start, zeros);
        }
        target.history.fill(&mut process.regions);
        if let Some(pass) = &mut sampling {
            let started = target.start_if_due(pass, process, &found.candidates, found.shares, round);
            started.map_err(|lost| lost_why(&root, id, lost))?;
        }
        let group = round.limits.as_mut().and_then(|limits| limits.of(pid).ok().flatten());
        process.memory_limit =
            group.map(|found| MemoryLimit { group: found.directory, limit: found.limit, usage: found.usage });
        process.translation = target.translation;
        process.sampling = target.shown();
        // Whatever was read above was read of this process only if it is still the same.
        match identify(&root, pid) {
            Ok((still, _)) if still == id => {}
            Ok((other, _)) => return Err(replaced(id, other)),
            Err(why) => return Err(why),
        }
        also_missed.extend(target.refused.as_ref().map(|(refused, _)| refused.clone()));
        self.targets.insert(pid, target);
        Ok(found.process)
    }

    fn terms(&self, sampling: &Sampling) -> Terms {
        Terms {
            // A cost of nothing would make every sample free.
            first_access: (sampling.first_access_ns * LARGER).max(1e-3) * 1e-9,
            budget: self.options.budget,
            window: self.options.window,
            promotes: self.options.promotes,
        }
    }
}

fn check(options: &Options) -> Result<(), ObserveError> {
    // Written so that what is no number is refused, too.
    if !(options.budget > 0.0 && options.budget <= 1.0) {
        let what = format!("the sampling budget is {}; it must be above 0 and at most 1", options.budget);
        return Err(ObserveError::BadOption(what));
    }
    if options.window < Duration::from_millis(1) {
        let what = format!("the sampling window is {:?}; it must be at least 1 ms", options.window);
        return Err(ObserveError::BadOption(what));
    }
    Ok(())
}

/// What one round over all processes shares.
struct Round<'a> {
    start: bool,
    /// `None` where mounts cannot be read.
    limits: Option<MemoryLimits<'a>>,
    /// Processes that are sampled.
    targets: usize,
    /// What may still be read to look for zeros.
    zero_bytes: Bytes,
}

/// A tracker cannot distinguish a process that has ended from one that has executed another program.
fn lost_why(root: &KernelRoot, id: ProcessId, lost: Missed) -> Missed {
    match identify(root, id.pid) {
        Ok((now, _)) => replaced(id, now),
        Err(_) => lost,
    }
}

fn replaced(former: ProcessId, now: ProcessId) -> Missed {
    let pid = former.pid;
    // Without the right to see its stack there is nothing to compare.
    if former.start_ticks != now.start_ticks {
        return Missed { what: format!("process {pid} has ended, and another has its number"), ..gone(pid) };
    }
    // Of a process that is about to end, whose memory is gone, proc_pid_stat(5) shows no stack.
    if former.start_stack != 0 && now.start_stack == 0 {
        return Missed {
            what: format!("process {pid} has ended, or may no longer be looked at"),
            ..gone(pid)
        };
    }
    let what = format!("process {pid} has executed another program: what was known of it no longer holds");
    Missed { pid, why: MissedWhy::Replaced, what }
}
