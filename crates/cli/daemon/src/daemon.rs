//! The daemon: observes, has the policy decide, has the actions carried out, and learns what became of them.

use crate::cadence::{Cadence, Cause};
use crate::children::{Children, Watched};
use crate::config::{Config, ConfigError, OnExit, STALL, WITHIN};
use crate::filling::Filling;
use crate::left::{Left, put_off};
use crate::new_processes::NewProcesses;
use crate::pass::{Pass, Times};
use crate::saved_state::SavedState;
use crate::select::{Select, Selected, Veto};
use crate::zeroing::Zeroing;
use megapage_act::execute::{Actuator, Done};
use megapage_decide::{Action, Obtained, Outcome, Reason, State, step};
use megapage_kernel::process::own_thread_time;
use megapage_kernel::{KernelError, KernelRoot, process_cpu_time};
use megapage_observe::watch::costs::{Costs, LEAST_PROBE};
use megapage_observe::{BootClock, Clock, ObserveError, Observer, Options};
use megapage_snapshot::{CostSource, HugePages, Missed, MissedWhy, Sampling, Snapshot};
use megapage_units::{Bytes, HUGE_2M, Pid};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Some task waits for memory for more than this share of 10 s: memory is short, in per cent.
const SHORT_PERCENT: f64 = 10.0;

/// Why there can be no daemon, in one line.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The observer.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The list of processes.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What a daemon is made of: on a running machine, or in a test.
pub struct Parts {
    /// Where kernel files are read.
    pub root: KernelRoot,
    /// Takes the snapshots.
    pub observer: Observer,
    /// Finds out what translation costs.
    pub costs: Option<Costs>,
    /// Carries actions out.
    pub actuator: Box<dyn Actuator>,
    /// What is known elsewhere of processes.
    pub veto: Veto,
    /// The time since boot, the observer's.
    pub clock: Box<dyn Clock>,
    /// Whether the actuator changes nothing.
    pub dry_run: bool,
    /// Whether accessed bits may be cleared.
    pub samples: bool,
}

/// See the module.
pub struct Daemon {
    config: Config,
    select: Select,
    state: State,
    parts: Parts,
    number: u64,
    before: Option<Arc<Snapshot>>,
    now: Option<Arc<Snapshot>>,
    selected: Selected,
    new_processes: NewProcesses,
    children: Children,
    zeroing: Zeroing,
    cadence: Cadence,
    /// This thread's processor time after the last pass: what others ask for, and timings, have bounds of their own.
    cpu_after: Duration,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Daemon");
        shown.field("config", &self.config).field("state", &self.state).field("number", &self.number);
        shown.finish_non_exhaustive()
    }
}

impl Daemon {
    /// A daemon on this machine, with `actuator`. Finds the best tracker (10 ms; 0.2 s the first three times after a
    /// boot) and times page walks where nothing counts them (some 0.1 s). Without `samples` no accessed bit is cleared.
    pub fn start(
        root: &KernelRoot,
        config: Config,
        actuator: Box<dyn Actuator>,
        veto: Veto,
        dry_run: bool,
        samples: bool,
    ) -> Result<Daemon, DaemonError> {
        let wanted = samples && config.make_policy().is_some_and(|policy| policy.samples());
        let (observer, costs) = observer(root, &config, wanted)?;
        let parts = Parts {
            root: root.clone(),
            observer,
            costs,
            actuator,
            veto,
            clock: Box::new(BootClock),
            dry_run,
            samples,
        };
        Daemon::with_parts(config, parts)
    }

    /// A daemon of given parts.
    pub fn with_parts(config: Config, parts: Parts) -> Result<Daemon, DaemonError> {
        Ok(Daemon {
            select: Select::new(&config.processes),
            state: config.state()?,
            config,
            parts,
            number: 0,
            before: None,
            now: None,
            selected: Selected::default(),
            new_processes: NewProcesses::default(),
            children: Children::default(),
            zeroing: Zeroing::default(),
            cadence: Cadence::default(),
            cpu_after: own_thread_time(),
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How access bits are sampled, or why not and what that lacks, in one line.
    pub fn sampling(&self) -> String {
        match (self.parts.observer.sampling(), self.parts.observer.why_unsampled()) {
            (Some(sampling), _) => sampled_by(sampling),
            (None, Some(why)) => format!("no access bits: {why}"),
            (None, None) => "no access bits: the policy asks for none".into(),
        }
    }

    /// Why translation costs stay a rough estimate, in one line: once for each time that accesses were to be timed in vain.
    pub fn take_not_timed(&mut self) -> Option<String> {
        let why = self.parts.costs.as_mut()?.take_failure()?;
        Some(format!("translation costs stay rough estimates: accesses could not be timed: {why}"))
    }

    /// How translation costs are found out, in one line.
    pub fn costing(&self) -> String {
        format!("translation costs {}", self.cost_source().map_or("not known", CostSource::name))
    }

    /// What a policy that goes by translation costs has to go by, where the processor does not count them, in one line;
    /// `None` where nothing is to be reported.
    pub fn cost_warning(&self) -> Option<String> {
        // A process that samples nothing, beside a daemon that does, says nothing of the machine.
        if !self.state.policy().needs_costs() || !self.parts.samples {
            return None;
        }
        let policy = self.state.policy().name();
        match self.cost_source() {
            Some(CostSource::Measured) => None,
            Some(_) => Some(format!(
                "policy {policy}: no performance counters here: it goes by estimates of translation costs, from samples"
            )),
            None => Some(format!(
                "policy {policy} promotes nothing here: no performance counters, and no estimates of translation costs: {}; \
                 choose another observe.tracker, or a policy that goes without: ingens, freebsd, linux",
                self.why_no_accesses()
            )),
        }
    }

    fn why_no_accesses(&self) -> String {
        let observer = &self.parts.observer;
        match (observer.sampling(), observer.why_unsampled()) {
            (Some(sampling), _) => format!("tracker {} tells no accesses", sampling.tracker.name()),
            (None, why) => why.unwrap_or("nothing is sampled").to_string(),
        }
    }

    fn cost_source(&self) -> Option<CostSource> {
        self.parts.costs.as_ref()?.source()
    }

    /// Takes another configuration. What was learnt stays, as far as it does not depend on what has changed: with
    /// another policy, or another tracker, that begins anew. On an error the former configuration stays in force.
    pub fn reload(&mut self, config: Config) -> Result<(), DaemonError> {
        let former = &self.config;
        let decides_alike = config.policy == former.policy
            && config.limits == former.limits
            && config.act.promoted_per_second == former.act.promoted_per_second
            && config.claims == former.claims;
        let fresh = if decides_alike { None } else { Some(config.state()?) };
        let samples = self.parts.samples && fresh.as_ref().unwrap_or(&self.state).policy().samples();
        let sampled = self.parts.samples && self.state.policy().samples();
        if config.observe != former.observe || samples != sampled {
            (self.parts.observer, self.parts.costs) = observer(&self.parts.root, &config, samples)?;
        }
        self.parts.actuator.configure(config.act.of_executor());
        if let Some(mut fresh) = fresh {
            fresh.succeed(&mut self.state);
            self.state = fresh;
        }
        self.select = Select::new(&config.processes);
        self.config = config;
        Ok(())
    }

    /// The kernel has reported that tasks wait for memory: the next pass knows.
    pub fn alarm(&mut self) {
        self.cadence.alarmed = true;
    }

    /// One pass, with samples that were started here and read after their window: for a caller that looks only once.
    pub fn single_pass(&mut self) -> Pass {
        self.pass_with(Observer::sample_once)
    }

    /// One pass. Never waits: samples are read with the pass, or by [`Daemon::idle`], after their window.
    pub fn pass(&mut self) -> Pass {
        self.pass_with(Observer::snapshot)
    }

    fn pass_with(&mut self, observe: impl FnOnce(&mut Observer, &[Pid]) -> Snapshot) -> Pass {
        self.select();
        let (cpu, all_cpu) = (own_thread_time(), process_cpu_time());
        let between = cpu.saturating_sub(self.cpu_after);
        let parts = &mut self.parts;
        let at = parts.clock.now();
        let mut snapshot = observe(&mut parts.observer, &self.selected.pids);
        // A shortage that the kernel has reported may be over before its averages show it.
        let reported = snapshot.machine.pressure;
        if let Some(pressure) = snapshot.machine.pressure.as_mut().filter(|_| self.cadence.alarmed) {
            let stalled = 100.0 * STALL.as_secs_f64() / WITHIN.as_secs_f64();
            pressure.some_10s = pressure.some_10s.max(stalled.min(100.0));
        }
        if let Some(costs) = &mut parts.costs {
            costs.refresh(&snapshot, &mut parts.observer);
        }
        let pressed = snapshot.machine.pressure.is_some_and(|pressure| pressure.some_10s >= SHORT_PERCENT);
        let short = std::mem::take(&mut self.cadence.alarmed) || pressed;
        let observed = parts.clock.now();
        let actions = step(observed, &snapshot, &mut self.state);
        self.zeroing.note(&self.state);
        snapshot.machine.pressure = reported;
        let decided = parts.clock.now();
        // Reported with those that cannot be looked at; the policy has seen neither.
        let vetoed = self.selected.vetoed.iter().cloned();
        snapshot.missed.extend(vetoed.map(|(pid, what)| Missed { pid, why: MissedWhy::Vetoed, what }));
        let looked = own_thread_time().saturating_sub(cpu);
        let (done, left) = self.act(decided, &actions);
        let acted = self.parts.clock.now();
        let cpu = process_cpu_time().saturating_sub(all_cpu);

        let snapshot = Arc::new(snapshot);
        self.before = self.now.replace(snapshot.clone());
        self.number += 1;
        self.cadence.probed = false;
        self.cpu_after = own_thread_time();
        let costs = self.parts.costs.as_ref();
        let working = costs.map_or_else(Vec::new, |costs| costs.working(self.before.as_deref(), &snapshot));
        let causes = [
            (Cause::Work, short || self.state.policy().wants_more()),
            (Cause::NewProcess, self.new_processes.wait(&snapshot, &working)),
            (Cause::RanOut, left.ran_out),
            (Cause::Shortage, actions.iter().any(is_urgent)),
        ];
        (self.cadence.began, self.cadence.cost) = (at, looked + between);
        self.cadence.note(observed, &left, &causes);
        self.children.note(&snapshot, self.config.limits.fork_quiet);
        Pass {
            number: self.number,
            at,
            policy: self.state.policy().name(),
            dry_run: self.parts.dry_run,
            done,
            left: left.actions,
            short,
            times: Times {
                observe: observed.saturating_sub(at),
                decide: decided.saturating_sub(observed),
                act: acted.saturating_sub(decided),
                cpu,
            },
            huge: Bytes(HugePages::of(&snapshot.processes) * HUGE_2M as u64),
            watched: snapshot.processes.len(),
            skipped: self.selected.left_out
                + self.selected.vetoed.len()
                + self.selected.pids.len().saturating_sub(snapshot.processes.len()),
            backed_off: self.parts.actuator.backed_off(),
            executor: self.parts.actuator.counted(),
            costs: self.cost_source(),
            snapshot,
        }
    }

    /// Between two passes, of which `left` is left: reads samples in time, or uses the time to learn what translation
    /// costs one of the processes. `wait` sleeps for a time, and returns whether to go on. Returns when `left` has
    /// passed, something was done, or `wait` has returned false.
    pub fn idle(&mut self, left: Duration, wait: &mut dyn FnMut(Duration) -> bool) {
        let parts = &mut self.parts;
        let due = parts.observer.next_read();
        if due.is_some_and(|due| due.is_zero()) {
            if parts.observer.complete_samples() && self.cadence.cause == Cause::NewProcess {
                self.cadence.cause = Cause::Sampled;
            }
            // The waiting work may be more important.
            wait(Duration::ZERO);
            return;
        }
        // For a large new process one pass more without a value would be worse than one a little later.
        let is_new = matches!(self.cadence.cause, Cause::NewProcess | Cause::Sampled);
        let extended = if is_new { left.max(LEAST_PROBE) } else { left };
        let time = extended.min(due.unwrap_or(extended));
        if let (Some(costs), Some(now), false) = (&mut parts.costs, &self.now, self.cadence.probed)
            && time >= LEAST_PROBE
        {
            // While all that are worth it are being sampled, none is probed; later one may be.
            let probed = costs.probe(self.before.as_deref(), now, &mut parts.observer, time, wait);
            self.cadence.probed = probed;
            if probed {
                return;
            }
        }
        wait(time.min(left));
    }

    /// How much memory is used, to be compared with a moment later.
    pub fn filling(&self) -> Filling {
        self.now.as_ref().map(|now| Filling::since(&self.parts.root, now)).unwrap_or_default()
    }

    /// Processes whose memory a forked child shares: when one does no more, a pass is due.
    pub(crate) fn sharing(&self) -> Vec<Watched> {
        self.children.watched()
    }

    /// How long to wait before the next pass: see [`Cadence::pause`].
    pub fn pause(&self) -> Duration {
        self.cadence.pause(&self.config)
    }

    /// Returns true, once, if a pass would find more to do than the last one: the first sample of a
    /// large new process was read.
    pub fn take_due(&mut self) -> bool {
        let is_due = self.cadence.cause == Cause::Sampled;
        if is_due {
            self.cadence.cause = Cause::NewProcess;
        }
        is_due
    }

    /// How long to wait at least, though memory is pressed, or a pass is due.
    pub fn least_pause(&self) -> Duration {
        self.cadence.least_pause(&self.config)
    }

    /// Undoes what was promoted, where the configuration says so. To be called last.
    pub fn stop(&mut self) -> Vec<Done> {
        match self.config.on_exit {
            OnExit::Leave => Vec::new(),
            OnExit::Undo => self.parts.actuator.undo(self.parts.clock.now()),
        }
    }

    /// What is to be known after a restart.
    pub fn saved_state(&self) -> SavedState {
        SavedState::new(self.state.saved_regions())
    }

    /// Takes back what was known before a restart.
    pub fn restore(&mut self, saved: &SavedState) {
        self.state.restore(self.parts.clock.now(), saved.regions());
    }

    fn select(&mut self) {
        // Where they cannot be listed this time, those of the last time are looked at.
        if let Ok(selected) = self.select.now(&self.parts.root, &mut self.parts.veto) {
            self.selected = selected;
        }
    }

    /// Hands each action to whom it is for, in order, and reports to the policy what became of it. Answers what was done,
    /// and what was deferred.
    fn act(&mut self, now: Duration, actions: &[Action]) -> (Vec<Done>, Left) {
        let mut done = Vec::new();
        // What the policy requests is within it already.
        let mut scannable = megapage_decide::Limits::default().scanned;
        let mut changes = Vec::new();
        for action in actions {
            match action {
                Action::Promote { .. } | Action::Demote { .. } | Action::Recover { .. } => {
                    changes.push(action.clone());
                }
                Action::ZeroScan { process, regions, .. } => {
                    if self.parts.dry_run {
                        // Reading marks pages as accessed, and a dry run changes nothing.
                        continue;
                    }
                    let start = self.parts.clock.now();
                    let urgent = is_urgent(action);
                    let observer = &mut self.parts.observer;
                    let scanned = observer.zero_scan(*process, regions, urgent, &mut scannable);
                    let obtained = if scanned.gone { Obtained::Gone } else { Obtained::Done };
                    let took = self.parts.clock.now().saturating_sub(start);
                    let outcome = Outcome { action: action.clone(), obtained };
                    done.push(Done { outcome, promoted: Bytes::ZERO, freed: Bytes::ZERO, took, why: None });
                }
            }
        }
        if !changes.is_empty() {
            done.extend(self.parts.actuator.carry_out(now, &changes));
        }
        let now = self.parts.clock.now();
        done.iter().for_each(|done| self.state.note(now, &done.outcome));
        let actuator = &self.parts.actuator;
        let left = put_off(&mut self.state, now, &changes, &done, |action| actuator.backs_off_until(action));
        (done, left)
    }
}

/// Which tracker is used, and why not the best.
fn sampled_by(sampling: &Sampling) -> String {
    let name = sampling.tracker.name();
    let known = match sampling.tracker.tells_accesses() {
        true => format!("access bits by {name}"),
        false => format!("no access bits: {name} tells only which memory is in use"),
    };
    match sampling.skipped.first() {
        Some((better, why)) => format!("{known} ({} cannot be used: {why})", better.name()),
        None => known,
    }
}

fn observer(
    root: &KernelRoot,
    config: &Config,
    sample: bool,
) -> Result<(Observer, Option<Costs>), ObserveError> {
    let budget = config.observe.budget_percent / 100.0;
    // Samples and probes for the estimate of costs share the budget.
    let mut costs = Costs::for_promotion(root, sample.then_some(budget / 2.0));
    let options = Options {
        tracker: config.tracker(),
        sample,
        budget: if costs.budget().is_some() { budget / 2.0 } else { budget },
        window: config.observe.window,
        // Where a policy asks for it.
        zero_scan: false,
        bounded: true,
        folios: false,
        promotes: true,
    };
    let observer = Observer::start(root, options)?;
    if !observer.sampling().is_some_and(|sampling| sampling.tracker.tells_accesses()) {
        costs.leave_estimates();
    }
    Ok((observer, Some(costs)))
}

/// Whether an action is of a policy that looks for memory to take back.
fn is_urgent(action: &Action) -> bool {
    matches!(action, Action::Recover { .. } | Action::ZeroScan { reason: Reason::Shortage, .. })
}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;
