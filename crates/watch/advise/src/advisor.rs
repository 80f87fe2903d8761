//! Observes a process and gathers the inputs of a verdict.

use crate::origin::Origin;
use crate::{Advice, Attach, Facts, Gain, Group, Judged, Shared, Trial, TrialOutcome, judge, try_out};
use megapage_act::promote::{PromoteError, lacking_ability, lacking_right, shared_memory};
use megapage_kernel::ability::THP;
use megapage_kernel::process::{read_stat, read_status};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::{KernelError, KernelRoot, effective_uid, processor_of_tlbs};
use megapage_launch::machine::Machine;
use megapage_launch::mechanism::choose;
use megapage_launch::program::Program;
use megapage_launch::promoter::LEAST_PRESENT;
use megapage_launch::request::Request;
use megapage_observe::cost::calibrate::AccessTimes;
use megapage_observe::cost::estimate::{Estimate, NoEstimate, estimate};
use megapage_observe::cost::pmu::Pmu;
use megapage_observe::cost::probe::{ProbeOptions, probe, uses_shared};
use megapage_observe::cost::recording::Recording;
use megapage_observe::cost::touches::Touches;
use megapage_observe::tracker::{SelectError, Selected, select};
use megapage_observe::{ObserveError, Observer, Options as ObserverOptions, Thoroughness, count_zeros};
use megapage_snapshot::{
    CostSource, Leaf, MappingKind, MissedWhy, PAGES, Process, Region, TrackerKind, TranslationCost,
};
use megapage_tlb::Geometry;
use megapage_units::{BASE_PAGE, Bytes, HugePage, Pid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Options for an advisor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Time for which each process is observed.
    pub time: Duration,
    /// Largest slow-down of the target while it is observed, as a share of its processor time.
    pub budget: f64,
    /// The only tracker to use; `None` lets megapage choose.
    pub tracker: Option<TrackerKind>,
    /// Trial that makes a part of each process huge for a while, and compares; `None` for no trial.
    pub trial: Option<Trial>,
}

impl Default for Options {
    /// Returns ten seconds of observation at 1 % slow-down.
    fn default() -> Options {
        Options { time: Duration::from_secs(10), budget: 0.01, tracker: None, trial: None }
    }
}

/// Reason why there is no advice.
#[derive(Debug, Error)]
pub enum AdviseError {
    /// Memory accesses cannot be observed here.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The requested tracker does not work here.
    #[error(transparent)]
    Tracker(#[from] SelectError),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel cannot make the requested trial.
    #[error("no trial can be made: {0}")]
    Trial(PromoteError),
    /// The process cannot be observed; one line gives the reason.
    #[error("{what}")]
    Missed {
        /// Class of the reason.
        why: MissedWhy,
        /// The line.
        what: String,
    },
}

/// Basis of an advisor's values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Basis {
    /// Tracker of accesses; `None` if accesses are not tracked.
    pub tracker: Option<TrackerKind>,
    /// Reason why accesses are not tracked.
    pub no_tracker: Option<String>,
    /// Cost to the target of the first access to a page after a clearing, in nanoseconds.
    pub first_access_ns: Option<f64>,
    /// Largest slow-down of a target, as a share of its processor time.
    pub budget: f64,
    /// TLBs of one processor.
    pub tlb: Geometry,
    /// Times of accesses here, on base pages and on huge ones.
    pub times: AccessTimes,
    /// Reason why the times are a guess, if they are.
    pub not_timed: Option<String>,
    /// True if the processor counts page walks.
    pub pmu: bool,
}

/// Part of the time of observation, after which the memory of the process is looked at again.
const PART: Duration = Duration::from_millis(2500);

/// Pause between two looks at a process that settles.
const SETTLING_LOOK: Duration = Duration::from_millis(100);
/// Number of looks in a row after which a process has settled: none found a growth of more than 2
/// %.
const CALM_LOOKS: u32 = 5;

/// Observer of processes that gives advice on them.
pub struct Advisor {
    root: KernelRoot,
    options: Options,
    observer: Observer,
    /// Tracker in use, or the reason why there is none.
    selected: Result<Selected, SelectError>,
    machine: Machine,
    geometry: Geometry,
    times: AccessTimes,
    not_timed: Option<String>,
    recording: Option<Recording>,
    pmu: Option<Pmu>,
}

impl Advisor {
    /// Starts an advisor on this machine: starts a tracker of accesses, and times accesses (about
    /// three seconds of processor time).
    pub fn start(root: &KernelRoot, options: Options) -> Result<Advisor, AdviseError> {
        if let (Some(_), Some(ability)) = (options.trial, lacking_ability(root)) {
            return Err(AdviseError::Trial(PromoteError::Unsupported(ability)));
        }
        // The probe decides when to clear, and which pages.
        let folios = options.trial.is_some();
        let observing = ObserverOptions { sample: false, folios, ..ObserverOptions::default() };
        let geometry = Geometry::of(&processor_of_tlbs(root));
        let (times, not_timed) = match AccessTimes::renewed(root, &geometry) {
            Ok(times) => (times, None),
            Err(why) => (AccessTimes::guessed(), Some(why.to_string())),
        };
        Ok(Advisor {
            root: root.clone(),
            options,
            observer: Observer::start(root, observing)?,
            selected: match options.tracker {
                Some(kind) => Ok(select(root, Some(kind))?),
                // Small and huge programs are judged without a tracker.
                None => select(root, None),
            },
            machine: Machine::read(root)?,
            geometry,
            times,
            not_timed,
            recording: None,
            // Without a counter the cost is estimated, and the report says so.
            pmu: Pmu::open(root).ok(),
        })
    }

    /// Returns the basis of the values.
    pub fn basis(&self) -> Basis {
        let selected = self.selected.as_ref();
        Basis {
            tracker: selected.ok().map(|selected| selected.tracker.kind()),
            no_tracker: selected.err().map(ToString::to_string),
            first_access_ns: selected.ok().map(|selected| selected.first_access_ns),
            budget: self.options.budget,
            tlb: self.geometry,
            times: self.times.clone(),
            not_timed: self.not_timed.clone(),
            pmu: self.pmu.is_some(),
        }
    }

    /// Observes a group of processes and judges it. `wait` sleeps for a time, and returns true to
    /// go on. After false, the observations so far are judged.
    ///
    /// The leader of the group is observed, and the advice holds for all members.
    pub fn advise(
        &mut self,
        group: &Group,
        wait: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Advice, AdviseError> {
        let pid = group.leader;
        // The origin is unknown once the process has ended.
        let origin = Origin::of(&self.root, pid);
        let seen = self.observe(pid, wait)?;
        self.recording = seen.touches.as_ref().ok().map(|touches| Recording {
            program: seen.process.name.clone(),
            geometry: self.geometry,
            times: self.times.clone(),
            touches: touches.clone(),
            measured: None,
        });
        let judged = self.judged(&seen.process, seen.touches);
        let judged = match self.options.trial {
            Some(_) if self.has_ended(&seen.process) => no_trial(judged, "the process has ended"),
            Some(trial) => self.tried(&seen.process, &trial, judged, wait),
            None => judged,
        };
        let shared = self.shared(group);
        Ok(judge(&self.facts(seen.process, seen.time, origin, judged, shared)))
    }

    /// Returns the shared memory of a group, and its members besides the leader. Processes that
    /// have ended are skipped.
    fn shared(&mut self, group: &Group) -> Shared {
        let others: Vec<Pid> = group.members.iter().copied().filter(|pid| *pid != group.leader).collect();
        let others = if others.is_empty() { Vec::new() } else { self.observer.snapshot(&others).processes };
        let memory = [group.root, group.leader]
            .into_iter()
            .find_map(|pid| shared_memory(&self.root, pid, LEAST_PRESENT).ok())
            .filter(|memory| memory.resident_bytes > 0);
        Shared { memory, others, root: Some(group.root) }
    }

    /// Returns the samples behind the last advice; `None` if nothing could be sampled.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// Returns true if the process has ended, or is a zombie.
    fn has_ended(&self, process: &Process) -> bool {
        let stat = read_stat(&self.root, process.id.pid);
        !stat.is_ok_and(|stat| stat.start_ticks == process.id.start_ticks && !stat.is_zombie())
    }

    /// Waits until the process, just started, has stopped growing: it does its work until then only
    /// once. Waits at most for the time of observation.
    pub fn settle(&self, pid: Pid, wait: &mut dyn FnMut(Duration) -> bool) {
        let resident = || read_status(&self.root, pid).map(|status| (status.rss + status.hugetlb).0);
        let start = Instant::now();
        let (mut former, mut calm) = (0, 0);
        while calm < CALM_LOOKS && start.elapsed() < self.options.time && wait(SETTLING_LOOK) {
            let Ok(now) = resident() else { return };
            calm = if now > former + former / 50 { 0 } else { calm + 1 };
            former = now;
        }
    }

    /// Makes a trial and adds its outcome to `judged`.
    fn tried(
        &mut self,
        process: &Process,
        trial: &Trial,
        judged: Result<Judged, String>,
        wait: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Judged, String> {
        let outcome = match (&mut self.selected, lacking_right(&self.root, Some(process.id.pid))) {
            (_, Ok(Some(lacking))) => Err(lacking),
            (_, Err(error)) => Err(error.to_string()),
            (Err(why), _) => Err(why.to_string()),
            (Ok(selected), Ok(None)) => try_out(&self.root, selected, process, trial, wait),
        };
        match outcome {
            Ok(outcome) => with_trial(judged, outcome),
            Err(why) => no_trial(judged, &why),
        }
    }

    /// Observes a process. Returns it as last observed, with the samples or the reason why there
    /// are none.
    fn observe(&mut self, pid: Pid, wait: &mut dyn FnMut(Duration) -> bool) -> Result<Seen, AdviseError> {
        let start = Instant::now();
        let mut found: Option<(Process, Result<Touches, String>)> = None;
        let mut last = Duration::ZERO;
        let seen = |(process, touches), time| Seen { process, touches, time };
        let mut go_on = true;
        let mut seed = 1;
        loop {
            let snapshot = self.observer.snapshot(&[pid]);
            let Some(process) = snapshot.process(pid).cloned() else {
                // Samples from before its end still hold.
                return found.map(|found| seen(found, last)).ok_or_else(|| {
                    match snapshot.missed.into_iter().find(|missed| missed.pid == pid) {
                        Some(missed) => AdviseError::Missed { why: missed.why, what: missed.what },
                        None => AdviseError::Missed {
                            why: MissedWhy::Gone,
                            what: format!("process {pid} has ended"),
                        },
                    }
                });
            };
            if let Some((former, _)) = &found
                && former.id != process.id
            {
                let what = format!("process {pid} executed another program while it was observed: try again");
                return Err(AdviseError::Missed { why: MissedWhy::Replaced, what });
            }
            if let Some(pmu) = &mut self.pmu {
                // The cost of a process that cannot be counted is estimated.
                let _ = pmu.watch(process.id);
            }
            last = start.elapsed();
            let left = self.options.time.saturating_sub(last);
            if left.is_zero() || !go_on {
                let touches = found.map_or_else(|| Err("it was not observed".into()), |(_, touches)| touches);
                return Ok(seen((process, touches), last));
            }
            let selected = match &mut self.selected {
                Ok(selected) => selected,
                Err(why) => return Ok(seen((process, Err(why.to_string())), last)),
            };
            let options = ProbeOptions {
                // Shared memory is sampled all at once, with the budget of the whole time.
                time: if uses_shared(&process) { left } else { left.min(PART) },
                budget: self.options.budget,
                first_access_ns: selected.first_access_ns,
                seed,
            };
            seed += 1;
            let tracker = selected.tracker.as_mut();
            let mut asked = |time: Duration| {
                go_on = go_on && wait(time);
                go_on
            };
            let sampled = match probe(&self.root, tracker, &process, &BTreeMap::new(), &options, &mut asked) {
                Ok(later) => match found.take() {
                    // Samples from before a large growth say little of the process now.
                    Some((_, Ok(touches))) if later.grew_from(&touches) => Ok(later),
                    Some((_, Ok(mut touches))) => {
                        touches.add(later);
                        Ok(touches)
                    }
                    _ => Ok(later),
                },
                Err(error) => match found.take() {
                    Some((_, Ok(touches))) => Ok(touches),
                    _ => Err(error.to_string()),
                },
            };
            if sampled.is_err() {
                return Ok(seen((process, sampled), last));
            }
            found = Some((process, sampled));
        }
    }

    fn judged(&mut self, process: &Process, touches: Result<Touches, String>) -> Result<Judged, String> {
        let found = touches.and_then(|touches| {
            estimate(&touches, &self.geometry, &self.times).map_err(|error| match (&self.selected, error) {
                (Ok(selected), NoEstimate::NoSample) => without_bits(selected).unwrap_or(error.to_string()),
                _ => error.to_string(),
            })
        });
        let measured = self.pmu.as_mut().and_then(|pmu| pmu.read(process.id).ok().flatten());
        match (measured, found) {
            (Some(cost), found) => Ok(of_measured(cost, found.ok())),
            (None, Ok(found)) => Ok(of_estimate(found)),
            (None, Err(why)) => Err(why),
        }
    }

    fn facts(
        &self,
        process: Process,
        observed: Duration,
        origin: Origin,
        judged: Result<Judged, String>,
        shared: Shared,
    ) -> Facts {
        let Origin { command, retitled, directory, program } = origin;
        let forks = program.as_ref().map_or_else(|_| Vec::new(), forks);
        let plan = program.and_then(|program| {
            let request = request(&program, &command);
            choose(&program, &request, &self.machine).map_err(|error| error.to_string())
        });
        let attach = match (lacking_ability(&self.root), lacking_right(&self.root, Some(process.id.pid))) {
            (Some(ability), _) => Attach::Impossible(format!("this kernel lacks {}", ability.title())),
            (None, Ok(None)) => Attach::Allowed,
            (None, Ok(Some(lacking))) => Attach::Lacks(lacking),
            (None, Err(error)) => Attach::Lacks(error.to_string()),
        };
        let zero_share = zero_share(&self.root, &process);
        Facts {
            ended: self.has_ended(&process),
            process,
            shared,
            command,
            retitled,
            directory,
            has_thp: THP.is_there(&self.root),
            // An unknown setting does not count as `always`.
            thp_always: settings(&self.root)
                .is_ok_and(|thp| thp.is_some_and(|thp| thp.enabled == ThpEnabled::Always)),
            observed,
            judged,
            zero_share,
            plan,
            forks,
            pool_2m: self.machine.pool_2m,
            reach: Bytes(u64::from(self.geometry.second) * BASE_PAGE as u64),
            attach,
        }
    }
}

/// Most huge pages of a process that are searched for zeros: 64, an eighth of each, so 16 MiB are
/// read.
const MOST_LOOKED_THROUGH: usize = 64;

/// Returns the share of the private huge pages of a process that holds only zeros. Reads up to
/// [`MOST_LOOKED_THROUGH`] of them at equal distances.
fn zero_share(root: &KernelRoot, process: &Process) -> Option<f64> {
    let is_private_thp = |region: &&Region| {
        let kind = process.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
        region.leaf == Leaf::Huge2m && matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous))
    };
    let all: Vec<HugePage> =
        process.regions.iter().filter(is_private_thp).map(|region| region.page).collect();
    let step = all.len().div_ceil(MOST_LOOKED_THROUGH).max(1);
    let some: Vec<HugePage> = all.into_iter().step_by(step).collect();
    let counted = count_zeros(root, process.id.pid, &some, Thoroughness::Part);
    let zeros: u64 = counted.iter().map(|(_, zeros)| u64::from(*zeros)).sum();
    (!counted.is_empty()).then(|| zeros as f64 / (counted.len() as f64 * f64::from(PAGES)))
}

/// Observations of a process.
struct Seen {
    /// The process, as last observed.
    process: Process,
    /// Samples of it, or the reason why nothing could be sampled.
    touches: Result<Touches, String>,
    /// Time from the first look at it to the last.
    time: Duration,
}

/// Returns why the best available tracker does not distinguish single pages; `None` if it does.
fn without_bits(selected: &Selected) -> Option<String> {
    let kind = selected.tracker.kind();
    if kind <= TrackerKind::IdlePages {
        return None;
    }
    let better: Vec<String> = selected
        .skipped
        .iter()
        .filter(|(kind, _)| *kind <= TrackerKind::IdlePages)
        .map(|(kind, why)| format!("{}: {why}", kind.name()))
        .collect();
    let why = if better.is_empty() { "it was asked for".into() } else { better.join("; ") };
    Some(format!(
        "the {} tracker does not tell which pages are accessed ({why}){}",
        kind.name(),
        remedy(effective_uid())
    ))
}

/// Returns the user's remedy for that: none for root.
fn remedy(uid: u32) -> &'static str {
    if uid == 0 { "" } else { "; run as root" }
}

/// Adds to `judged` the reason why no trial was made.
fn no_trial(judged: Result<Judged, String>, why: &str) -> Result<Judged, String> {
    let mut judged = judged.map_err(|before| format!("{before}; no trial: {why}"))?;
    judged.notes.push(format!("no trial was made: {why}"));
    Ok(judged)
}

/// Returns the request by which `megapage run` would start the program, with defaults only.
fn request(program: &Program, command: &[String]) -> Request {
    let arguments = command.iter().skip(1).map(OsString::from).collect();
    Request { arguments, ..Request::plain(&program.path) }
}

fn forks(program: &Program) -> Vec<String> {
    let mut names: Vec<String> = program
        .forks
        .iter()
        .map(|import| import.file.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn of_estimate(found: Estimate) -> Judged {
    let gain = Gain {
        low: found.gain.low,
        likely: found.gain.likely,
        high: found.gain.high,
        source: CostSource::Estimated,
    };
    Judged { cost: found.cost, gain, estimate: Some(found), notes: Vec::new(), trial: None }
}

/// Judges by a counter: it shows the present cost of walks, and the estimate gives the part that
/// huge pages would take away.
fn of_measured(cost: TranslationCost, found: Option<Estimate>) -> Judged {
    let removable = found
        .as_ref()
        .map_or(1.0, |found| if found.walks > 0.0 { 1.0 - found.walks_when_huge / found.walks } else { 0.0 });
    let gain = |share: f64| (1.0 / (1.0 - (share * removable).clamp(0.0, 0.95))).max(1.0);
    let gain = Gain {
        // The processor hides part of the walks behind other work. Without an estimate, the walks
        // that would go are unknown.
        low: if found.is_some() { gain(cost.low * 0.5) } else { 1.0 },
        likely: gain(cost.share),
        high: gain(cost.high),
        // The cost is measured; the part of it that would go is not.
        source: CostSource::Estimated,
    };
    Judged { cost, gain, estimate: found, notes: Vec::new(), trial: None }
}

/// Adds a trial. The trial decides if it is sharper: if it shows a difference, or rules out more
/// than the estimate.
fn with_trial(judged: Result<Judged, String>, outcome: TrialOutcome) -> Result<Judged, String> {
    let tried = outcome.cost.map(|cost| {
        let gain = |share: f64| 1.0 / (1.0 - share);
        let gain = Gain {
            low: gain(cost.low),
            likely: gain(cost.share),
            high: gain(cost.high),
            source: CostSource::Tried,
        };
        Judged { cost, gain, estimate: None, notes: outcome.notes.clone(), trial: None }
    });
    let mut found = match (judged, tried) {
        (Ok(before), Some(tried)) if tried.gain.low > 1.0 || tried.gain.high < before.gain.high => {
            Judged { estimate: before.estimate, ..tried }
        }
        (Ok(before), _) => Judged { notes: [before.notes, outcome.notes.clone()].concat(), ..before },
        (Err(_), Some(tried)) => tried,
        (Err(why), None) => return Err(format!("{why}; {}", outcome.notes.join("; "))),
    };
    found.trial = Some(outcome);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_advised_to_become_root() {
        assert_eq!(remedy(0), "");
        assert!(remedy(1000).contains("root"));
    }

    #[test]
    fn a_gain_from_a_measured_cost_is_an_estimate() {
        let cost = TranslationCost { share: 0.3, low: 0.25, high: 0.35, source: CostSource::Measured };
        let judged = of_measured(cost, None);
        assert_eq!((judged.cost.source, judged.gain.source), (CostSource::Measured, CostSource::Estimated));
        assert_eq!(judged.gain.low, 1.0, "it is unknown which walks would go");
        assert!(judged.gain.likely > 1.4 && judged.gain.high > judged.gain.likely);
    }
}
