//! HawkEye-PMU: promotes first the process that loses the largest share of its cycles to page
//! walks, its regions by access coverage. A process that loses next to nothing is never promoted.
//!
//! Source: HawkEye (ASPLOS 2019); ohp_get_target_mm in mm/ohp.c of the released kernel.

use super::hawkeye::HawkEye;
use crate::{Reason, Tick};
use megapage_snapshot::{Process, ProcessId};
use std::collections::BTreeMap;

/// Returns the share of cycles in page walks, 0 to 1; 0 if it is unknown.
fn cost(process: &Process) -> f64 {
    process.translation.map_or(0.0, |cost| cost.share)
}

pub(super) fn act(hawkeye: &mut HawkEye, tick: &mut Tick<'_>) {
    hawkeye.recover(tick, cost);
    let costs: BTreeMap<ProcessId, f64> =
        tick.processes().iter().map(|process| (process.id, cost(process))).collect();
    hawkeye.promote(tick, Reason::TranslationCost, |hawkeye| {
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
}
