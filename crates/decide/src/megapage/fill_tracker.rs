//! Fill of a process's new regions. Some regions are watched before they are old enough to judge.

use crate::{Reason, Tick, region_at};
use megapage_snapshot::{Leaf, PAGES, Process};
use megapage_units::HugePage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum of regions of a process watched at a time.
const MOST: usize = 32;
/// Age at which a region is judged. A program that fills its memory in order has passed it by then.
const RIPE: Duration = Duration::from_secs(10);
/// Weight of one more region in the average.
const WEIGHT: f64 = 0.1;

/// The watched regions, and the result so far.
#[derive(Clone, Debug)]
pub(crate) struct FillTracker {
    /// Time at which each was first seen.
    young: BTreeMap<HugePage, Duration>,
    /// All regions of the last snapshot, ascending; `None` before the first one, in which all would
    /// be new.
    known: Option<Vec<HugePage>>,
    /// Average used share of a region, 0 to 1.
    fill: f64,
}

impl Default for FillTracker {
    fn default() -> FillTracker {
        // Assumes at first that a program fills the memory that it requests.
        FillTracker { young: BTreeMap::new(), known: None, fill: 1.0 }
    }
}

impl FillTracker {
    /// Takes in new regions and judges the ripe ones. Requests a zero scan of those whose zeros are
    /// unknown.
    pub fn observe(&mut self, tick: &mut Tick<'_>, process: &Process) {
        let now = tick.now();
        let mut unknown = Vec::new();
        self.young.retain(|start, born| {
            let Some(region) = region_at(process, *start) else { return false };
            if now.saturating_sub(*born) < RIPE {
                return true;
            }
            let used = match (region.leaf, region.zeros) {
                (Leaf::Base, zeros) => region.present.saturating_sub(zeros.unwrap_or(0)),
                (_, Some(zeros)) => PAGES.saturating_sub(zeros),
                (_, None) => {
                    unknown.push(*start);
                    return true;
                }
            };
            self.fill += WEIGHT * (f64::from(used) / f64::from(PAGES) - self.fill);
            false
        });
        tick.zero_scan(process, &unknown, Reason::Period);

        if let Some(known) = &self.known {
            let mut known = known.iter().peekable();
            let is_new = |start: &HugePage| {
                while known.next_if(|old| **old < *start).is_some() {}
                known.peek().is_none_or(|old| **old != *start)
            };
            let starts = process.regions.iter().map(|region| region.page);
            let new: Vec<HugePage> = starts.filter(is_new).collect();
            // Takes some from everywhere.
            let step = new.len().div_ceil(MOST).max(1);
            for start in new.into_iter().step_by(step).take(MOST.saturating_sub(self.young.len())) {
                self.young.insert(start, now);
            }
        }
        self.known = Some(process.regions.iter().map(|region| region.page).collect());
    }

    /// Returns the average used share of a new region of the process, 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill
    }

    /// Returns the number of tracked regions.
    pub fn len(&self) -> usize {
        self.young.len() + self.known.as_ref().map_or(0, Vec::len)
    }
}
