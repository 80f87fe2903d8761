//! How full a process makes new regions: some of them are watched until they are old enough to judge.

use crate::{Reason, Tick, region_at};
use megapage_snapshot::{Leaf, PAGES, Process};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most regions of a process watched at a time.
const MOST: usize = 32;
/// How old a region must be to be judged: a program that fills its memory in order has gone on by then.
const RIPE: Duration = Duration::from_secs(10);
/// The weight of one more region in the average.
const WEIGHT: f64 = 0.1;

/// The regions watched, and what was learnt.
#[derive(Clone, Debug)]
pub(crate) struct FillTracker {
    /// When each was first seen.
    young: BTreeMap<u64, Duration>,
    /// All regions of the last snapshot, ascending; `None` before the first, when all would be new.
    known: Option<Vec<u64>>,
    /// The average share of a region that is used, 0 to 1.
    fill: f64,
}

impl Default for FillTracker {
    fn default() -> FillTracker {
        // Until something else is known, a program fills what it asks for.
        FillTracker { young: BTreeMap::new(), known: None, fill: 1.0 }
    }
}

impl FillTracker {
    /// Takes new regions in, judges the ripe ones, and has those of them scanned of which it is not known how much is
    /// zero.
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
            let is_new = |start: &u64| {
                while known.next_if(|old| **old < *start).is_some() {}
                known.peek().is_none_or(|old| **old != *start)
            };
            let starts = process.regions.iter().map(|region| region.start);
            let new: Vec<u64> = starts.filter(is_new).collect();
            // Some from everywhere.
            let step = new.len().div_ceil(MOST).max(1);
            for start in new.into_iter().step_by(step).take(MOST.saturating_sub(self.young.len())) {
                self.young.insert(start, now);
            }
        }
        self.known = Some(process.regions.iter().map(|region| region.start).collect());
    }

    /// The average share of a new region that the process uses, 0 to 1.
    pub fn fill(&self) -> f64 {
        self.fill
    }

    /// Regions tracked.
    pub fn len(&self) -> usize {
        self.young.len() + self.known.as_ref().map_or(0, Vec::len)
    }
}
