//! Synthetic snapshots.

use crate::megapage::Parameters;
use crate::{
    Action, Asked, Limits, ModelAction, Obtained, Outcome, Pace, Policy, State, step, step_on_model,
};
use megapage_snapshot::{
    Accessed, Leaf, Machine, Mapping, Memory, Node, PAGES, Process, ProcessId, Region, Snapshot,
};
use megapage_units::{Bytes, HugePage, Pid, VirtRange};
use std::time::Duration;

/// Returns constants under which every rule shows on small snapshots. Those of the daemon require
/// more before they promote.
pub fn constants() -> Parameters {
    Parameters {
        guaranteed_pays: false,
        promote: Pace { work: 32, every: SECOND },
        promote_quick: Pace { work: 128, every: SECOND },
        least_life: SECOND * 120,
        least_streaming: 0.0,
        alike: 1.0,
        least_zeros: 64,
        ..Parameters::default()
    }
}

pub const SECOND: Duration = Duration::from_secs(1);

/// First address of the synthetic mappings.
pub const BASE: u64 = 0x7f00_0000_0000;

/// Returns the `n`th region of a synthetic process.
pub fn at(n: u64) -> HugePage {
    HugePage::containing(BASE).offset(n)
}

pub fn id(pid: i32) -> ProcessId {
    ProcessId { pid: Pid(pid), start_ticks: 100 + pid as u64, start_stack: 0x7fff_0000_0000 + pid as u64 }
}

/// Returns a region of base pages, the `n`th of its process.
pub fn base(n: u64, present: u16) -> Region {
    Region::of_base_pages(at(n), present)
}

/// Returns a huge page, the `n`th region of its process, with this many zero-filled base pages.
pub fn huge(n: u64, zeros: u16) -> Region {
    Region { leaf: Leaf::Huge2m, zeros: Some(zeros), ..base(n, PAGES) }
}

/// Returns the region as found by a sample at `sampled`.
pub fn accessed(region: Region, coverage: u16, sampled: Duration) -> Region {
    let last = (coverage > 0).then_some(sampled);
    Region { accessed: Some(Accessed { coverage, average: f32::from(coverage), last, sampled }), ..region }
}

/// Returns a process with one large anonymous mapping that holds these regions.
pub fn process(pid: i32, regions: Vec<Region>) -> Process {
    let rss: Bytes = regions.iter().map(Region::present_bytes).sum();
    Process {
        uid: 1000,
        cpu: SECOND * 100,
        rss,
        rss_anonymous: rss,
        mappings: vec![Mapping::anonymous(VirtRange::new(BASE, BASE + (1 << 40)).unwrap())],
        regions,
        ..Process::without_memory(id(pid), &format!("p{pid}"))
    }
}

/// Returns a snapshot of a machine of 16 GiB with this share in use, not fragmented.
pub fn snapshot(taken: Duration, in_use: f64, processes: Vec<Process>) -> Snapshot {
    let total = Bytes::gib(16);
    let free = Bytes((total.0 as f64 * (1.0 - in_use)) as u64);
    Snapshot {
        taken,
        machine: Machine {
            memory: Memory { total, free, available: free, ..Memory::default() },
            nodes: vec![Node {
                node: 0,
                free,
                huge_available: free.0 / HugePage::SIZE,
                fragmentation: Some(0.0),
            }],
            ..Machine::default()
        },
        sampling: None,
        processes,
        missed: Vec::new(),
    }
}

pub fn state(policy: impl Policy + 'static) -> State {
    State::new(Box::new(policy), Limits::default())
}

/// Runs a step and reports all its actions as done. No snapshot has shown their effect.
pub fn run(at: Duration, snapshot: &Snapshot, state: &mut State) -> Vec<Action> {
    let actions = step(at, snapshot, state);
    actions.iter().for_each(|action| state.note(at, &outcome(action, Obtained::Done)));
    actions
}

/// Returns the ranges of each sample that a modelled machine is asked for.
pub fn sampled_ranges(at: Duration, snapshot: &Snapshot, state: &mut State) -> Vec<Vec<VirtRange>> {
    let asked = step_on_model(at, snapshot, state).into_iter();
    asked
        .filter_map(|asked| match asked {
            Asked::Model(ModelAction::Sample { ranges, .. }) => Some(ranges),
            Asked::Model(ModelAction::PreZero { .. }) => None,
            Asked::Action(action) => {
                state.note(at, &outcome(&action, Obtained::Done));
                None
            }
        })
        .collect()
}

/// Returns the promotions among the actions, as pid and number of the region.
pub fn promoted(actions: &[Action]) -> Vec<(i32, u64)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Promote { process, region, .. } => {
                Some((process.pid.0, region.number() - at(0).number()))
            }
            _ => None,
        })
        .collect()
}

/// Returns the demotions and recoveries among the actions, as pid and number of the region.
pub fn demoted(actions: &[Action]) -> Vec<(i32, u64)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Demote { process, region, .. } | Action::Recover { process, region, .. } => {
                Some((process.pid.0, region.number() - at(0).number()))
            }
            _ => None,
        })
        .collect()
}

/// Returns the outcome of an action.
pub fn outcome(action: &Action, obtained: Obtained) -> Outcome {
    Outcome { action: action.clone(), obtained }
}
