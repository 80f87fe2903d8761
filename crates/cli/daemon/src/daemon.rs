//! The daemon: observes, lets the policy decide, has the actions carried out, and reports their
//! results to the policy.

use crate::cadence::{Cadence, Cause};
use crate::children::{Children, Watched};
use crate::config::{Config, ConfigError, OnExit, STALL, WITHIN};
use crate::filling::Filling;
use crate::new_processes::NewProcesses;
use crate::pass::{Pass, Times};
use crate::saved_state::SavedState;
use crate::select::{Select, Selected, Veto};
use crate::zeroing::Zeroing;
use megapage_act::execute::{Actuator, Done};
use megapage_decide::{Action, Left, Obtained, Outcome, Reason, State, step};
use megapage_kernel::process::own_thread_time;
use megapage_kernel::{KernelError, KernelRoot, process_cpu_time};
use megapage_observe::watch::costs::{Costs, LEAST_PROBE};
use megapage_observe::{BootClock, Clock, ObserveError, Observer, Options};
use megapage_snapshot::{CostSource, HugePages, Missed, MissedWhy, Sampling, Snapshot};
use megapage_units::{Bytes, HUGE_2M, Pid};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Share of 10 s, in per cent, in which some task waits for memory: from it on, memory is short.
const SHORT_PERCENT: f64 = 10.0;

/// Reason why there can be no daemon, in one line.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The observer cannot start.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The processes cannot be listed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Parts of a daemon: on a running machine, or in a test.
pub struct Parts {
    /// Root below which kernel files are read.
    pub root: KernelRoot,
    /// Observer that takes the snapshots.
    pub observer: Observer,
    /// Source of translation costs.
    pub costs: Option<Costs>,
    /// Actuator that carries actions out.
    pub actuator: Box<dyn Actuator>,
    /// Veto against acting on a process, from knowledge elsewhere.
    pub veto: Veto,
    /// Time since boot, the observer's.
    pub clock: Box<dyn Clock>,
    /// True if the actuator changes nothing.
    pub dry_run: bool,
    /// True if accessed bits may be cleared.
    pub samples: bool,
}

/// The daemon of this module.
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
    /// This thread's processor time after the last pass. Requests of others, and timings, have
    /// separate budgets.
    cpu_after: Duration,
}

impl Daemon {
    /// Starts a daemon on this machine, with `actuator`. Finds the best tracker (10 ms; 0.2 s the
    /// first three times after a boot), and times page walks if nothing counts them (some 0.1 s).
    /// Without `samples` no accessed bit is cleared.
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

    /// Creates a daemon from given parts.
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

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns how access bits are sampled, or why they are not and what that lacks, in one line.
    pub fn sampling(&self) -> String {
        match (self.parts.observer.sampling(), self.parts.observer.why_unsampled()) {
            (Some(sampling), _) => sampled_by(sampling),
            (None, Some(why)) => format!("no access bits: {why}"),
            (None, None) => "no access bits: the policy asks for none".into(),
        }
    }

    /// Returns why translation costs stay a rough estimate, in one line: once for each attempt to
    /// time accesses that failed.
    pub fn take_not_timed(&mut self) -> Option<String> {
        let why = self.parts.costs.as_mut()?.take_failure()?;
        Some(format!("translation costs stay rough estimates: accesses could not be timed: {why}"))
    }

    /// Returns the source of translation costs, in one line.
    pub fn costing(&self) -> String {
        format!("translation costs {}", self.cost_source().map_or("not known", CostSource::name))
    }

    /// Returns the basis of a policy that needs translation costs, if the processor does not count
    /// them, in one line; `None` if there is nothing to report.
    pub fn cost_warning(&self) -> Option<String> {
        // A process that samples nothing, beside a daemon that does, shows nothing about the
        // machine.
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
            (Some(sampling), _) => format!("tracker {} does not show accesses", sampling.tracker.name()),
            (None, why) => why.unwrap_or("nothing is sampled").to_string(),
        }
    }

    fn cost_source(&self) -> Option<CostSource> {
        self.parts.costs.as_ref()?.source()
    }

    /// Takes another configuration. Knowledge that does not depend on the changes stays; with
    /// another policy, or another tracker, it starts from nothing. On an error the former
    /// configuration stays in force.
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
        if let Some(mut fresh) = fresh {
            fresh.succeed(&mut self.state);
            self.state = fresh;
        }
        self.state.promotions().configure(config.act.budgets());
        self.select = Select::new(&config.processes);
        self.config = config;
        Ok(())
    }

    /// Notes for the next pass that the kernel has reported tasks that wait for memory.
    pub fn alarm(&mut self) {
        self.cadence.alarmed = true;
    }

    /// Makes one pass, with samples that are started here and read after their window: for a caller
    /// that looks only once.
    pub fn single_pass(&mut self) -> Pass {
        self.pass_with(Observer::sample_once)
    }

    /// Makes one pass. Never waits: samples are read with the pass, or by [`Daemon::idle`], after
    /// their window.
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
        // Reported with those that cannot be looked at; the policy sees none of these.
        let vetoed = self.selected.vetoed.iter().cloned();
        snapshot.missed.extend(vetoed.map(|(pid, what)| Missed { pid, why: MissedWhy::Vetoed, what }));
        let looked = own_thread_time().saturating_sub(cpu);
        let pauses = self.state.promotions().pauses().count();
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
            backed_off: self.state.promotions().pauses().count() - pauses,
            executor: self.parts.actuator.counted(),
            costs: self.cost_source(),
            snapshot,
        }
    }

    /// Runs between passes; `left` is the time to the next. Reads samples in time, or uses the time
    /// to probe one process for its translation cost. `wait` sleeps for a time, and returns true to
    /// go on. Returns when `left` has passed, when something was done, or when `wait` has returned
    /// false.
    pub fn idle(&mut self, left: Duration, wait: &mut dyn FnMut(Duration) -> bool) {
        let parts = &mut self.parts;
        let due = parts.observer.next_read();
        if due.is_some_and(|due| due.is_zero()) {
            if parts.observer.complete_samples() && self.cadence.cause == Cause::NewProcess {
                self.cadence.cause = Cause::Sampled;
            }
            // Work that waits may be more important.
            wait(Duration::ZERO);
            return;
        }
        // For a large new process, one more pass without a value would be worse than a slightly
        // later pass.
        let is_new = matches!(self.cadence.cause, Cause::NewProcess | Cause::Sampled);
        let extended = if is_new { left.max(LEAST_PROBE) } else { left };
        let time = extended.min(due.unwrap_or(extended));
        if let (Some(costs), Some(now), false) = (&mut parts.costs, &self.now, self.cadence.probed)
            && time >= LEAST_PROBE
        {
            // If all processes worth it are being sampled, none is probed; later one may be.
            let probed = costs.probe(self.before.as_deref(), now, &mut parts.observer, time, wait);
            self.cadence.probed = probed;
            if probed {
                return;
            }
        }
        wait(time.min(left));
    }

    /// Returns the memory in use now, to be compared with a later moment.
    pub fn filling(&self) -> Filling {
        self.now.as_ref().map(|now| Filling::since(&self.parts.root, now)).unwrap_or_default()
    }

    /// Returns the processes whose memory a forked child shares: when one no longer does, a pass is
    /// due.
    pub(crate) fn sharing(&self) -> Vec<Watched> {
        self.children.watched()
    }

    /// Returns the wait before the next pass: see [`Cadence::pause`].
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

    /// Returns the shortest wait, even if memory is pressed or a pass is due.
    pub fn least_pause(&self) -> Duration {
        self.cadence.least_pause(&self.config)
    }

    /// Undoes the promotions, if the configuration says so. Call it last.
    pub fn stop(&mut self) -> Vec<Done> {
        match self.config.on_exit {
            OnExit::Leave => Vec::new(),
            OnExit::Undo => self.parts.actuator.undo(self.parts.clock.now(), self.state.promotions()),
        }
    }

    /// Returns the state that a restart needs.
    pub fn saved_state(&mut self) -> SavedState {
        SavedState::new(self.state.promotions().saved_regions())
    }

    /// Restores the state from before a restart.
    pub fn restore(&mut self, saved: &SavedState) {
        self.state.promotions().restore(self.parts.clock.now(), saved.regions());
    }

    fn select(&mut self) {
        // If the processes cannot be listed this time, those of the last time are looked at.
        if let Ok(selected) = self.select.now(&self.parts.root, &mut self.parts.veto) {
            self.selected = selected;
        }
    }

    /// Hands each action, in order, to the actuator or to the observer, and reports the results to
    /// the policy. Returns the actions done, and those deferred.
    fn act(&mut self, now: Duration, actions: &[Action]) -> (Vec<Done>, Left) {
        let mut done = Vec::new();
        // The policy's requests keep this limit already.
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
            done.extend(self.parts.actuator.carry_out(now, &changes, self.state.promotions()));
        }
        let now = self.parts.clock.now();
        done.iter().for_each(|done| self.state.note(now, &done.outcome));
        (done, self.state.put_off(now))
    }
}

/// Returns the tracker in use, and why it is not the best.
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
        // Zeros are scanned when a policy asks for it.
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

/// Returns true if an action is of a policy that looks for memory to take back.
fn is_urgent(action: &Action) -> bool {
    matches!(action, Action::Recover { .. } | Action::ZeroScan { reason: Reason::Shortage, .. })
}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;
