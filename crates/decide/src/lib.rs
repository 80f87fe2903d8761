//! Policies: which memory becomes huge, which does not any longer, and what is to be known before.
//!
//! [`step`] is called now and then with a snapshot; it answers with actions, in the order in which they should be
//! done. [`State::note`] reports what became of them. The same objects run in the daemon, where snapshots are
//! observed and actions are system calls, and in the simulator, where both are modelled; there, page faults ask the
//! policy as well ([`State::on_fault`]).
//!
//! Architecture invariant: no I/O, no clock, no chance but from a seed, no threads, no global state: the same calls give the same
//! answers. Time is an argument. A policy does not know where it runs.

#![forbid(unsafe_code)]

mod action;
mod fault;
pub mod judge;
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
pub use limits::Limits;
pub use pace::Pace;
pub use policy::{Known, OWN, POLICIES, Policy, by_name, known};
pub use promotions::{SavedDemotion, SavedRegion};
pub use tick::{Answer, Tick};

use megapage_snapshot::{Machine, Process, ProcessId, Region, Snapshot};
use megapage_units::Bytes;
use promotions::{Kind, Promotions};
use std::collections::BTreeSet;
use std::time::Duration;

/// A policy, and the state of it and of its promotions between steps. That is bounded by the processes and regions of the
/// last snapshots.
#[derive(Debug)]
pub struct State {
    policy: Box<dyn Policy>,
    promotions: Promotions,
    /// The changes that the last step asked for, and the places of those that were tried.
    asked: Vec<Action>,
    tried: BTreeSet<(ProcessId, u64)>,
    last: Option<Duration>,
    lacked_zeroing: bool,
}

impl State {
    /// A policy that has seen nothing yet.
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

    /// The policy.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// What a first touch is answered with. Where there are no such faults to answer, on a running kernel, this is
    /// not called: no policy depends on it.
    pub fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        self.policy.on_fault(fault)
    }

    /// Whether the policy has wanted free memory zeroed ahead in a [`step`] so far: what no running kernel does when it is asked.
    pub fn lacked_zeroing(&self) -> bool {
        self.lacked_zeroing
    }

    /// Reports at the time `now` what became of an action of the last step that was tried. Until a snapshot shows its
    /// effect, it counts as not obtained. An action that nothing is reported of was not tried: the next step may ask for it
    /// at once.
    pub fn note(&mut self, now: Duration, outcome: &Outcome) {
        self.promotions.note(now, outcome);
        self.policy.note(now, outcome);
        self.tried.extend(outcome.action.place());
    }

    /// The same for what only a modelled machine does.
    pub fn note_model(&mut self, now: Duration, action: &ModelAction, obtained: Obtained) {
        if obtained == Obtained::Unsupported {
            self.promotions.is_unsupported(now, Kind::of_model(action));
        }
    }

    /// Puts an action off whose process the actuator leaves alone for now: its region is not asked for before `until`, so that
    /// others have their turn; where that has passed or is not known, it is let settle from the time `now`.
    pub fn put_off(&mut self, now: Duration, action: &Action, until: Option<Duration>) {
        let until = until.filter(|until| *until > now).unwrap_or(now + self.promotions.limits().settle);
        self.promotions.put_off(now, action, until);
    }

    /// What is stored of regions that something was done to: what must outlive a restart, or the next one would undo at
    /// once what this one has done.
    pub fn saved_regions(&self) -> Vec<SavedRegion> {
        self.promotions.saved_regions()
    }

    /// Takes over what is known of the promotions of `former`, which has decided until now.
    pub fn succeed(&mut self, former: &mut State) {
        self.promotions.succeed(&mut former.promotions);
    }

    /// Takes that back, at the time `now`. Processes that the next snapshot does not have are forgotten.
    pub fn restore(&mut self, now: Duration, regions: &[SavedRegion]) {
        self.promotions.restore(now, regions);
    }

    /// How many processes and regions are tracked.
    pub fn tracked(&self) -> usize {
        self.promotions.tracked() + self.policy.tracked()
    }
}

/// One step: looks at `snapshot` at the time `now`, on the snapshot's clock, and answers what to do, most important
/// first. Never more than the [`Limits`] allow, whatever the snapshot says.
pub fn step(now: Duration, snapshot: &Snapshot, state: &mut State) -> Vec<Action> {
    let asked = tick(now, snapshot, state, false).into_iter();
    asked
        .filter_map(|asked| match asked {
            Asked::Action(action) => Some(action),
            // Refused on a running machine.
            Asked::Model(_) => None,
        })
        .collect()
}

/// The same on a modelled machine, of which more can be asked.
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
    state.lacked_zeroing |= tick.lacked_zeroing();
    let asked = tick.into_asked();
    state.asked = asked
        .iter()
        .filter_map(|asked| match asked {
            Asked::Action(action) => action.region().map(|_| action.clone()),
            Asked::Model(_) => None,
        })
        .collect();
    asked
}

/// The share of memory in use, 0 to 1.
fn in_use(total: Bytes, free: Bytes) -> f64 {
    match total.0 {
        0 => 0.0,
        total => total.saturating_sub(free.0) as f64 / total as f64,
    }
}

/// The free memory fragmentation index for 2 MiB pages over all nodes, 0 to 1: the share of the free memory that is
/// unusable for them. 1 where nothing is free.
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

/// The region that starts at `start`.
fn region_at(process: &Process, start: u64) -> Option<&Region> {
    process.regions.binary_search_by_key(&start, |region| region.start).ok().map(|at| &process.regions[at])
}

/// A value that differs where any region has another sample.
fn samples(process: &Process) -> u64 {
    process.regions.iter().filter_map(|region| region.accessed).fold(1, |sum: u64, accessed| {
        sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ accessed.sampled.as_nanos() as u64
    })
}

#[cfg(test)]
mod tests;
