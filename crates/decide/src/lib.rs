//! Policies: they decide which memory becomes huge and which huge pages are split.
//!
//! [`step`] is called with a snapshot and returns actions, in the order in which they should be
//! done. [`State::note`] reports the outcome of each action. The daemon and the simulator run the
//! same objects. In the daemon, snapshots are observed and actions are system calls; in the
//! simulator, both are modelled. There, page faults ask the policy as well ([`State::on_fault`]).
//!
//! Architecture invariant: no I/O, no clock, no chance but from a seed, no threads, no global
//! state: the same calls give the same answers. Time is an argument. A policy does not know where
//! it runs.

#![forbid(unsafe_code)]

mod action;
mod fault;
pub mod judge;
mod left;
mod limits;
pub mod megapage;
mod objects;
mod pace;
mod policy;
mod promotions;
mod published;
mod scans;
mod tick;

pub use action::{Action, Asked, ModelAction, Obtained, Outcome, Reason};
pub use fault::{Fault, FaultSize, Headroom, Reservation};
pub use left::Left;
pub use limits::Limits;
pub use pace::Pace;
pub use policy::{Known, OWN, POLICIES, Policy, by_name, known};
pub use promotions::{Budgets, Call, Latency, Pauses, Promotions, SavedDemotion, SavedRegion};
pub use tick::{Answer, Tick};

use megapage_snapshot::{Machine, Process, ProcessId, Region, Snapshot};
use megapage_units::{Bytes, HugePage};
use promotions::Kind;
use std::collections::BTreeSet;
use std::time::Duration;

/// A policy, with its state and that of its promotions between steps. The processes and regions of
/// the last snapshots bound the size of this state.
#[derive(Debug)]
pub struct State {
    policy: Box<dyn Policy>,
    promotions: Promotions,
    /// Changes requested by the last step, and the places of those that were tried.
    asked: Vec<Action>,
    tried: BTreeSet<(ProcessId, HugePage)>,
    last: Option<Duration>,
    lacked_zeroing: bool,
}

impl State {
    /// Returns the state of a policy that has seen no snapshot yet.
    pub fn new(policy: Box<dyn Policy>, limits: Limits) -> State {
        State {
            policy,
            promotions: Promotions::new(limits),
            asked: Vec::new(),
            tried: BTreeSet::new(),
            last: None,
            lacked_zeroing: false,
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Returns the answer to a first touch. A running kernel answers its page faults itself and
    /// never calls this: no policy depends on it.
    pub fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        self.policy.on_fault(fault)
    }

    /// Returns true if the policy has asked a running machine to zero free memory ahead in a
    /// [`step`] so far. No running kernel does that on request.
    pub fn lacked_zeroing(&self) -> bool {
        self.lacked_zeroing
    }

    /// Reports the outcome of an action of the last step that was tried, at the time `now`. The
    /// action counts as not obtained before a snapshot shows its effect. An action without a report
    /// counts as not tried: the next step may ask for it at once.
    pub fn note(&mut self, now: Duration, outcome: &Outcome) {
        self.promotions.note(now, outcome);
        self.policy.note(now, outcome);
        self.tried.extend(outcome.action.place());
    }

    /// Reports the outcome of an action that only a modelled machine does.
    pub fn note_model(&mut self, now: Duration, action: &ModelAction, obtained: Obtained) {
        if obtained == Obtained::Unsupported {
            self.promotions.is_unsupported(now, Kind::of_model(action));
        }
    }

    /// Returns the promotions. An actuator borrows them.
    pub fn promotions(&mut self) -> &mut Promotions {
        &mut self.promotions
    }

    /// Takes over the knowledge about promotions of `former`, which has decided so far.
    pub fn succeed(&mut self, former: &mut State) {
        self.promotions.succeed(&mut former.promotions);
    }

    /// Returns the number of tracked processes and regions.
    pub fn tracked(&self) -> usize {
        self.promotions.tracked() + self.policy.tracked()
    }
}

/// Runs one step: looks at `snapshot` at the time `now`, on the snapshot's clock. Returns actions,
/// most important first, and never more than the [`Limits`] allow, for any snapshot.
pub fn step(now: Duration, snapshot: &Snapshot, state: &mut State) -> Vec<Action> {
    let asked = tick(now, snapshot, state, false).into_iter();
    asked
        .filter_map(|asked| match asked {
            Asked::Action(action) => Some(action),
            // A running machine refuses these.
            Asked::Model(_) => None,
        })
        .collect()
}

/// Runs one step on a modelled machine, which can do more.
pub fn step_on_model(now: Duration, snapshot: &Snapshot, state: &mut State) -> Vec<Asked> {
    tick(now, snapshot, state, true)
}

fn tick(now: Duration, snapshot: &Snapshot, state: &mut State, is_model: bool) -> Vec<Asked> {
    let elapsed = state.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
    state.last = Some(now);
    let tried = std::mem::take(&mut state.tried);
    let mut untried = std::mem::take(&mut state.asked);
    untried.retain(|action| action.place().is_some_and(|place| !tried.contains(&place)));
    let mut tick = Tick::new(now, elapsed, snapshot, &mut state.promotions, untried, is_model);
    state.policy.tick(&mut tick);
    state.lacked_zeroing |= tick.lacked_zeroing;
    let asked = tick.asked;
    state.asked = asked
        .iter()
        .filter_map(|asked| match asked {
            Asked::Action(action) => action.region().map(|_| action.clone()),
            Asked::Model(_) => None,
        })
        .collect();
    asked
}

/// Returns the share of memory in use, 0 to 1.
fn in_use(total: Bytes, free: Bytes) -> f64 {
    match total.0 {
        0 => 0.0,
        total => total.saturating_sub(free.0) as f64 / total as f64,
    }
}

/// Returns the free memory fragmentation index for 2 MiB pages over all nodes, 0 to 1. This is the
/// share of the free memory that is unusable for them. Returns 1 if nothing is free.
fn fragmentation(machine: &Machine) -> f64 {
    let free: f64 = machine.nodes.iter().map(|node| node.free.0 as f64).sum();
    if free <= 0.0 {
        return 1.0;
    }
    let unusable: f64 = machine
        .nodes
        .iter()
        .map(|node| node.fragmentation.unwrap_or(1.0).clamp(0.0, 1.0) * node.free.0 as f64)
        .sum();
    unusable / free
}

/// Returns the region at `page`; `None` if the process has none.
fn region_at(process: &Process, page: HugePage) -> Option<&Region> {
    process.regions.binary_search_by_key(&page, |region| region.page).ok().map(|at| &process.regions[at])
}

/// Returns a value that changes if any region has another sample.
fn samples(process: &Process) -> u64 {
    process.regions.iter().filter_map(|region| region.accessed).fold(1, |sum: u64, accessed| {
        sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ accessed.sampled.as_nanos() as u64
    })
}

#[cfg(test)]
mod tests;
