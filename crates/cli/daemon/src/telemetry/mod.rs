//! Summary of the passes so far: sums, the last decisions, and the processes that they were about.
//!
//! All of it is bounded: sums by the numbers of policies, kinds of action and results; processes by
//! [`MOST_PROCESSES`]; decisions by the caller's number.

pub mod metrics;
mod status;
pub mod table;
mod value;

use crate::Pass;
use megapage_act::execute::{Counters, Done, Histogram};
use megapage_decide::{Action, Obtained};
use megapage_snapshot::daemon::{Decision, PassStatus, ProcessStatus, Totals};
use megapage_snapshot::{CostSource, ProcessId, TrackerKind};
use megapage_units::shown::one_line;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most processes that are known with their actions.
const MOST_PROCESSES: usize = 4096;

/// Upper bounds, in seconds, for the time of one action. The latency guard's 15 ms are one of them.
const ACTION_SECONDS: [f64; 12] =
    [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 15e-3, 50e-3, 250e-3, 1.0];

/// Upper bounds, in seconds, for the time of a part of a pass.
const PASS_SECONDS: [f64; 10] = [1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0, 5.0];

/// The parts of a pass.
const PARTS: [&str; 3] = ["observe", "decide", "act"];

/// All notes.
#[derive(Debug)]
pub(crate) struct Telemetry {
    /// Most processes that are shown one by one.
    shown: usize,
    /// Most decisions that are stored.
    kept: usize,
    started: Duration,
    passes: u64,
    last: Option<Last>,
    actions: BTreeMap<(&'static str, &'static str, &'static str), u64>,
    moved: BTreeMap<&'static str, Totals>,
    action_seconds: BTreeMap<&'static str, Histogram>,
    pass_seconds: [Histogram; PARTS.len()],
    pass_cpu: Duration,
    left: u64,
    backed_off: u64,
    /// Executor's counts since the daemon's start.
    executor: Option<Counters>,
    processes: HashMap<ProcessId, Known>,
    decided: u64,
    /// Decisions as they are reported, except for their age.
    decisions: VecDeque<Decision>,
}

/// The last pass, without its snapshot: that may be large.
#[derive(Debug)]
struct Last {
    status: PassStatus,
    ended: Duration,
    /// Time of its end, since the epoch.
    wall: Duration,
    policy: &'static str,
    dry_run: bool,
    tracker: Option<TrackerKind>,
    costs: Option<CostSource>,
}

/// A process as the last pass saw it, and the sum of actions on it.
#[derive(Debug)]
struct Known {
    uid: u32,
    cgroup: String,
    status: ProcessStatus,
}

impl Known {
    /// Returns a weight by which processes with most huge memory, or most memory moved, come first.
    fn weight(&self) -> u64 {
        let done = &self.status.done;
        self.status.huge_bytes.saturating_add(done.promoted_bytes).saturating_add(done.freed_bytes)
    }
}

impl Telemetry {
    /// Creates an empty summary, at the time `now` since boot. It reports `shown` processes one by
    /// one, and stores `kept` decisions.
    pub fn new(now: Duration, shown: usize, kept: usize) -> Telemetry {
        Telemetry {
            shown,
            kept,
            started: now,
            passes: 0,
            last: None,
            actions: BTreeMap::new(),
            moved: BTreeMap::new(),
            action_seconds: BTreeMap::new(),
            pass_seconds: std::array::from_fn(|_| Histogram::new(&PASS_SECONDS)),
            pass_cpu: Duration::ZERO,
            left: 0,
            backed_off: 0,
            executor: None,
            processes: HashMap::new(),
            decided: 0,
            decisions: VecDeque::new(),
        }
    }

    /// Changes the number of processes that are reported.
    pub fn resize(&mut self, shown: usize) {
        self.shown = shown;
    }

    /// Returns the number of passes so far.
    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    /// Adds a pass that ended at the time `now` since boot.
    pub fn note(&mut self, pass: &Pass, now: Duration) {
        self.passes += 1;
        self.left += pass.left;
        self.backed_off += pass.backed_off;
        self.executor = pass.executor.clone();
        self.pass_cpu += pass.times.cpu;
        let times = [pass.times.observe, pass.times.decide, pass.times.act];
        for (part, time) in self.pass_seconds.iter_mut().zip(times) {
            part.observe(time.as_secs_f64());
        }
        self.see(pass);
        let mut sum = Totals::default();
        for done in &pass.done {
            let one = totals(done);
            sum.add(&one);
            let kind = kind(&done.outcome.action);
            *self.actions.entry((pass.policy, kind, done.outcome.obtained.name())).or_default() += 1;
            self.action_seconds
                .entry(kind)
                .or_insert_with(|| Histogram::new(&ACTION_SECONDS))
                .observe(done.took.as_secs_f64());
            if let Some(known) = self.processes.get_mut(&done.outcome.action.process()) {
                known.status.done.add(&one);
            }
            self.keep(pass, done);
        }
        self.moved.entry(pass.policy).or_default().add(&sum);
        self.last = Some(Last {
            status: PassStatus {
                number: pass.number,
                at_seconds: pass.at.as_secs_f64(),
                ago_seconds: 0.0,
                observe_seconds: pass.times.observe.as_secs_f64(),
                decide_seconds: pass.times.decide.as_secs_f64(),
                act_seconds: pass.times.act.as_secs_f64(),
                cpu_seconds: pass.times.cpu.as_secs_f64(),
                watched: pass.watched as u64,
                skipped: pass.skipped as u64,
                huge_bytes: pass.huge.0,
                short: pass.short,
                actions: sum.actions,
                obtained: sum.obtained,
                left: pass.left,
                backed_off: pass.backed_off,
                promoted_bytes: sum.promoted_bytes,
                freed_bytes: sum.freed_bytes,
            },
            ended: now,
            wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            policy: pass.policy,
            dry_run: pass.dry_run,
            tracker: pass.snapshot.sampling.as_ref().map(|sampling| sampling.tracker),
            costs: pass.costs,
        });
    }

    /// Takes over the present processes; forgets those that are no longer among them.
    fn see(&mut self, pass: &Pass) {
        let mut before = std::mem::take(&mut self.processes);
        for process in pass.snapshot.processes.iter().take(MOST_PROCESSES) {
            let done = before.remove(&process.id).map_or_else(Totals::default, |known| known.status.done);
            let status = ProcessStatus {
                pid: process.id.pid.0,
                start_ticks: process.id.start_ticks,
                name: clean(&process.name),
                huge_bytes: process.backing.huge().0,
                resident_bytes: process.backing.total().0,
                bloat_bytes: process.bloat().0,
                translation_share: process.translation.map(|cost| cost.share),
                done,
            };
            let known = Known { uid: process.uid, cgroup: clean(&process.cgroup), status };
            self.processes.insert(process.id, known);
        }
    }

    fn keep(&mut self, pass: &Pass, done: &Done) {
        self.decided += 1;
        let action = &done.outcome.action;
        let process = action.process();
        if self.decisions.len() >= self.kept {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            number: self.decided,
            at_seconds: pass.at.as_secs_f64(),
            ago_seconds: 0.0,
            pid: Some(process.pid.0),
            process: self.processes.get(&process).map(|known| known.status.name.clone()).unwrap_or_default(),
            action: kind(action).into(),
            region: action.region().map(|start| format!("{start:x}")),
            reason: action.reason().to_string(),
            obtained: done.outcome.obtained.name().into(),
            promoted_bytes: done.promoted.0,
            freed_bytes: done.freed.0,
            took_seconds: done.took.as_secs_f64(),
            why: done.why.as_deref().map(clean),
            dry_run: pass.dry_run,
        });
    }

    /// Returns the processes that are reported one by one, heaviest first.
    fn heaviest(&self) -> Vec<&Known> {
        let mut all: Vec<_> = self.processes.iter().collect();
        all.sort_by_key(|(id, known)| (std::cmp::Reverse(known.weight()), **id));
        all.into_iter().map(|(_, known)| known).take(self.shown).collect()
    }
}

/// Returns one action's contribution to the sums.
pub(crate) fn totals(done: &Done) -> Totals {
    Totals {
        actions: 1,
        obtained: u64::from(done.outcome.obtained == Obtained::Done),
        promoted_bytes: done.promoted.0,
        freed_bytes: done.freed.0,
    }
}

/// Returns the kind of an action, as its JSON names it.
pub(crate) fn kind(action: &Action) -> &'static str {
    match action {
        Action::Promote { .. } => "promote",
        Action::Demote { .. } => "demote",
        Action::Recover { .. } => "recover",
        Action::ZeroScan { .. } => "zero-scan",
    }
}

/// Returns a text from elsewhere, in one line of at most 200 characters.
pub(crate) fn clean(text: &str) -> String {
    let cut: String = text.chars().take(200).collect();
    one_line(&cut)
}

#[cfg(test)]
pub(crate) mod tests;
