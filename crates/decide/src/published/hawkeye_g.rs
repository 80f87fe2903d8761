//! HawkEye-G: without counters. The region with the highest access coverage of all processes is promoted first;
//! processes that have equally high ones take turns.
//!
//! Source: HawkEye (ASPLOS 2019); get_ohp_global_kaddr in mm/ohp.c of the released kernel.

use super::hawkeye::{HawkEye, Parameters};
use crate::{Action, Fault, FaultSize, Outcome, Policy, Reason, Tick};
use megapage_snapshot::Process;
use std::time::Duration;

/// The policy.
#[derive(Clone, Debug)]
pub struct HawkEyeG(HawkEye);

impl HawkEyeG {
    /// HawkEye-G with these constants.
    pub fn new(parameters: Parameters) -> HawkEyeG {
        HawkEyeG(HawkEye::new(parameters))
    }
}

impl Policy for HawkEyeG {
    fn name(&self) -> &'static str {
        self.0.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        self.0.track(tick);
        self.0.recover(tick, coverage);
        self.0.promote(tick, Reason::Coverage, |hawkeye| {
            let highest = hawkeye.turns().filter_map(|(_, map)| map.top()).max()?;
            (highest >= hawkeye.parameters.lowest_bucket).then_some(())?;
            hawkeye.turns().find(|(_, map)| map.top() == Some(highest)).map(|(id, _)| id)
        });
        self.0.pre_zero(tick);
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        self.0.on_fault(fault)
    }

    fn prefers_zeroed(&self) -> bool {
        true
    }

    fn note(&mut self, _now: Duration, outcome: &Outcome) {
        self.0.note(outcome);
    }

    fn untried(&mut self, action: &Action) {
        self.0.untried(action);
    }

    fn tracked(&self) -> usize {
        self.0.tracked()
    }
}

/// Without counters, the coverage of all sampled regions stands in for translation cost.
fn coverage(process: &Process) -> f64 {
    process.mean_coverage().unwrap_or(0.0)
}
