//! HawkEye-PMU: the process that loses the largest share of its cycles to page walks is promoted first, its regions by
//! access coverage. A process that loses next to nothing is not promoted at all.
//!
//! Source: HawkEye (ASPLOS 2019); ohp_get_target_mm in mm/ohp.c of the released kernel.

use super::hawkeye::{HawkEye, Parameters};
use crate::{Action, Fault, FaultSize, Outcome, Policy, Reason, Tick};
use megapage_snapshot::{Process, ProcessId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The policy.
#[derive(Clone, Debug)]
pub struct HawkEyePmu(HawkEye);

impl HawkEyePmu {
    /// HawkEye-PMU with these constants.
    pub fn new(parameters: Parameters) -> HawkEyePmu {
        HawkEyePmu(HawkEye::new(parameters))
    }
}

/// The share of cycles in page walks, 0 to 1; 0 where not measured.
fn cost(process: &Process) -> f64 {
    process.translation.map_or(0.0, |cost| cost.share)
}

impl Policy for HawkEyePmu {
    fn name(&self) -> &'static str {
        self.0.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        self.0.track(tick);
        self.0.recover(tick, cost);
        let costs: BTreeMap<ProcessId, f64> =
            tick.processes().iter().map(|process| (process.id, cost(process))).collect();
        self.0.promote(tick, Reason::TranslationCost, |hawkeye| {
            let (regions, bucket) = hawkeye.parameters.least_candidates;
            let lowest = hawkeye.parameters.lowest_bucket;
            let candidates = || {
                hawkeye.turns().filter_map(|(id, map)| {
                    let cost = *costs.get(&id)?;
                    let enough = map.waiting(bucket) >= regions && map.top().is_some_and(|top| top >= lowest);
                    (enough && cost > 0.0 && cost >= hawkeye.parameters.least_cost).then_some((id, cost))
                })
            };
            let highest = candidates().map(|(_, cost)| cost).max_by(f64::total_cmp)?;
            candidates().find(|(_, cost)| *cost >= highest - hawkeye.parameters.equal_cost).map(|(id, _)| id)
        });
        self.0.pre_zero(tick);
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        self.0.on_fault(fault)
    }

    fn needs_costs(&self) -> bool {
        true
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
