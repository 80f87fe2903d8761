//! The observer: snapshots of chosen processes, one after the other. It samples their access bits
//! as often as the budget of each allows.

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
use megapage_units::{Bytes, Pid, VirtRange};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use target::Target;
use thiserror::Error;

/// Cost of a first access in a large program, relative to the small program of the measurement.
/// With 1 GiB, page tables do not stay in the second-level cache. There 425 ns were lost (medians
/// of eight clearings, reading and writing at random); the measurement gave 311 to 375.
const LARGER: f64 = 1.25;

/// Options of an observer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Tracker to use, and no other; `None`: the best one that passes its self-test.
    pub tracker: Option<TrackerKind>,
    /// True if access bits are sampled. Otherwise the observer changes nothing in a target, not
    /// even a bit.
    pub sample: bool,
    /// Largest slow-down of a target by sampling, as a share of its processor time. Default 0.01: 1
    /// %.
    pub budget: f64,
    /// Time from clearing the bits to reading them. Default 1 s.
    pub window: Duration,
    /// True if the zero-filled base pages of huge pages are counted, in at most 128 MiB of memory
    /// for each snapshot.
    pub zero_scan: bool,
    /// True if a snapshot is bounded in time and memory, whatever the processes consist of.
    /// Processes with too many mappings for their size are skipped. After three seconds the
    /// remaining ones wait for the next snapshot, fairly among users. Meant for an observer that
    /// runs unasked and for long on other users' processes.
    pub bounded: bool,
    /// True if the orders of the folios under base pages are looked up (CAP_SYS_ADMIN). Takes about
    /// 30 ms for each GiB.
    pub folios: bool,
    /// True if the samples serve to choose regions for promotion. Then the first sample of a
    /// process is early, with a sixteenth of the window. It shows how often pages are visited. The
    /// processor time that the process took before it was observed pays for it. A process that is
    /// nearly all on huge pages is sampled at most once a minute, because a sample says little
    /// about it.
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

/// Reason why there is no observer.
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

/// Clock of the observer; a parameter, so that tests need not wait.
pub trait Clock: Send {
    /// Returns the time since boot, which never falls.
    fn now(&self) -> Duration;
    /// Sleeps for at least `time`.
    fn sleep(&self, time: Duration);
}

/// Clock of the machine.
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

/// Observer of processes; see the module.
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
    /// Starts an observer on the machine's clock. It uses the tracker of the options, or the best
    /// one that passes its self-test (10 ms; 0.2 s the first three times after a boot).
    ///
    /// If none passes, or `root` is a captured tree, nothing is sampled, and
    /// [`why_unsampled`](Observer::why_unsampled) says why. A tracker of the options that cannot be
    /// used is an error.
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

    /// Returns an observer with given parts: for a synthetic tree with a synthetic clock and
    /// tracker, or for this machine without a tracker. `selected` is not used if `options.sample`
    /// is off.
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

    /// Returns the way in which access bits are sampled; `None` if they are not.
    pub fn sampling(&self) -> Option<&Sampling> {
        self.sampling.as_ref()
    }

    /// Returns the reason, in one line, why nothing is sampled though the options ask for it.
    /// `None` if something is sampled, or the options do not ask for it.
    pub fn why_unsampled(&self) -> Option<&str> {
        self.why_unsampled.as_deref()
    }

    /// Returns the tracker itself, for estimators. They must fit their own clearing and reading
    /// into the budget.
    pub fn tracker(&mut self) -> Option<&mut dyn Tracker> {
        self.tracker.as_mut().map(|tracker| tracker.as_mut() as _)
    }

    /// Notes the translation cost of the process, as found by another source. Snapshots show it
    /// from the next one on, until the process is replaced or no longer asked for.
    pub fn note_translation(&mut self, id: ProcessId, cost: TranslationCost) {
        if let Some(target) = self.targets.get_mut(&id.pid).filter(|target| target.id == id) {
            target.translation = Some(cost);
        }
    }

    /// Sets the accesses of the regions of `process`, from an earlier snapshot, to the results of
    /// the samples since then.
    pub fn note_samples(&self, process: &mut Process) {
        let Some(target) = self.targets.get(&process.id.pid).filter(|target| target.id == process.id) else {
            return;
        };
        for region in &mut process.regions {
            region.accessed = target.history.accessed(region.page).or(region.accessed);
        }
    }

    /// Returns true if the bits of this process were cleared and are still to be read. To clear or
    /// read them meanwhile would spoil the sample.
    pub fn is_sampling(&self, id: ProcessId) -> bool {
        self.targets.get(&id.pid).is_some_and(|target| target.id == id && target.is_cleared())
    }

    /// Returns the time until a sample must be read or may be started; `None` if there is nothing
    /// to sample.
    pub fn next_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let due = self.targets.values().filter_map(|target| target.due).min()?;
        Some(due.saturating_sub(now))
    }

    /// Reads everything now. Completes the samples that are due, and starts new ones as far as the
    /// budgets allow. Never sleeps. Forgets processes that are no longer asked for.
    ///
    /// If a machine file cannot be read, the machine stays as it was last read. A process that
    /// cannot be read is in [`Snapshot::missed`].
    pub fn snapshot(&mut self, pids: &[Pid]) -> Snapshot {
        self.pass(pids, true)
    }

    /// Takes one snapshot with samples: clears the bits, sleeps for the window, reads. The first
    /// sample has as many regions as cost no more than the budget of the window, whatever the
    /// target does. If it defers regions, a second sample follows at once, with as many as the
    /// budget then allows. That is more where little was accessed, and more with a longer window.
    /// Regions that no sample reached have no values.
    pub fn sample_once(&mut self, pids: &[Pid]) -> Snapshot {
        // No later pass follows that could take the rest.
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
            // A process that is missed now is not sampled again: its sample is lost.
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
            // No other sample follows.
            sampling.period = None;
        }
        snapshot.missed.retain(|missed| !lost.iter().any(|other| other.pid == missed.pid));
        snapshot.missed.extend(lost);
        snapshot.missed.sort_by_key(|missed| missed.pid);
        snapshot
    }

    /// Makes one round over all processes. `start`: true if new samples may be started.
    fn pass(&mut self, pids: &[Pid], start: bool) -> Snapshot {
        let pids: BTreeSet<Pid> = pids.iter().copied().collect();
        let dropped: Vec<Pid> = self.targets.keys().filter(|pid| !pids.contains(pid)).copied().collect();
        dropped.into_iter().for_each(|pid| self.forget(pid));
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
        // The time is taken at the end: nothing in a snapshot is newer than the snapshot.
        let taken = self.clock.now();
        Snapshot { taken, machine: self.machine.clone(), sampling: self.sampling.clone(), processes, missed }
    }

    /// Observes one process, and adds it to one of the two lists.
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
                // The next snapshots do not show the former samples again.
                self.forget(pid);
                missed.push(why);
            }
        }
    }

    fn forget(&mut self, pid: Pid) {
        self.targets.remove(&pid);
        self.tracker.iter_mut().for_each(|tracker| tracker.forget(pid));
    }

    /// Observes as many processes as the time allows, fairly among users. Both lists are ascending
    /// in the end.
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
                self.forget(pid);
                self.fair.note_beyond(process.id, now);
                missed.push(fair::too_many_regions(pid, &process.name, self.fair.most_regions));
            }
        }
        // The samples of these processes are kept, and shown when the processes are next read.
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
        // Read to the nanosecond, before anything else: a process with the same value afterwards
        // has not run.
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
        target.earn(now(), stat.cpu);
        // One reading of the page tables serves the snapshot, the end of a sample, and the start of
        // the next one.
        let (outstanding, mut seen) = (target.outstanding(), None);
        let tables = |ranges: &[VirtRange]| {
            let before = now();
            let (held, bits) = self.tracker.as_mut()?.held(pid, ranges, &outstanding)?;
            seen = Some((before, bits));
            Some(held)
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
        let tracker = self.tracker.as_mut().map(Box::as_mut);
        let mut sampling = tracker.map(|tracker| target::Pass { tracker, now: &now, root: &root, cpu, seen });
        if let Some(pass) = &mut sampling {
            target.read_if_due(pass, round.targets).map_err(|lost| lost_why(&root, id, lost))?;
        }
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
        if let Some(pass) = sampling.as_mut().filter(|_| !wanted.is_empty()) {
            // The scan marks pages as accessed: a sample that starts now reads the tables again.
            pass.seen = None;
        }
        for (page, zeros) in zero_scan::scan_these(&root, pid, &wanted, Thoroughness::All, rest) {
            target.history.of(page).zeros = Some(zeros);
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
        // The readings above are of this process only if it is still the same.
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
            // With a cost of zero every sample would be free.
            first_access: (sampling.first_access_ns * LARGER).max(1e-3) * 1e-9,
            budget: self.options.budget,
            window: self.options.window,
            promotes: self.options.promotes,
        }
    }
}

fn check(options: &Options) -> Result<(), ObserveError> {
    // In this form the check refuses NaN, too.
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

/// State that one round over all processes shares.
struct Round<'a> {
    start: bool,
    /// Memory limits of control groups; `None` if mounts cannot be read.
    limits: Option<MemoryLimits<'a>>,
    /// Number of processes in the round.
    targets: usize,
    /// Bytes that may still be read in search of zeros.
    zero_bytes: Bytes,
}

/// Returns the reason why a process is lost. A tracker cannot distinguish a process that has ended
/// from one that has executed another program.
fn lost_why(root: &KernelRoot, id: ProcessId, lost: Missed) -> Missed {
    match identify(root, id.pid) {
        Ok((now, _)) => replaced(id, now),
        Err(_) => lost,
    }
}

fn replaced(former: ProcessId, now: ProcessId) -> Missed {
    let pid = former.pid;
    // Without the right to see the stack address, only the start time is compared.
    if former.start_ticks != now.start_ticks {
        return Missed { what: format!("process {pid} has ended, and another has its number"), ..gone(pid) };
    }
    // A process about to end has no memory any more, and proc_pid_stat(5) shows no stack.
    if former.start_stack != 0 && now.start_stack == 0 {
        return Missed {
            what: format!("process {pid} has ended, or may no longer be looked at"),
            ..gone(pid)
        };
    }
    let what = format!("process {pid} has executed another program: what was known of it no longer holds");
    Missed { pid, why: MissedWhy::Replaced, what }
}
