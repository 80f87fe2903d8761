//! HawkEye-G: works without counters. Promotes first the region with the highest access coverage
//! over all processes. Processes with equally high ones take turns.
//!
//! Source: HawkEye (ASPLOS 2019); get_ohp_global_kaddr in mm/ohp.c of the released kernel.

use super::hawkeye::HawkEye;
use crate::{Reason, Tick};
use megapage_snapshot::Process;

pub(super) fn act(hawkeye: &mut HawkEye, tick: &mut Tick<'_>) {
    hawkeye.recover(tick, coverage);
    hawkeye.promote(tick, Reason::Coverage, |hawkeye| {
        let highest = hawkeye.turns().filter_map(|(_, map)| map.top()).max()?;
        (highest >= hawkeye.parameters.lowest_bucket).then_some(())?;
        hawkeye.turns().find(|(_, map)| map.top() == Some(highest)).map(|(id, _)| id)
    });
}

/// Returns the coverage of all sampled regions, which replaces translation cost without counters.
fn coverage(process: &Process) -> f64 {
    process.mean_coverage().unwrap_or(0.0)
}
