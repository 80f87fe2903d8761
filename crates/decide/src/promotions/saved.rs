//! State of the guards as values, so that cool-downs outlive the process that runs the policy.

use super::{Demoted, Promotions, RegionMemory};
use megapage_snapshot::{PAGES, ProcessId};
use megapage_units::HugePage;
use std::time::Duration;

/// Maximum of regions taken back: 256 GiB.
const MOST: usize = 1 << 17;

/// Stored history of one region that an action was tried or put off for. Times are on the
/// snapshot's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedRegion {
    /// The process.
    pub process: ProcessId,
    /// First address of the region.
    pub region: u64,
    /// Time of the last action.
    pub acted: Duration,
    /// Time of the last promotion.
    pub promoted: Option<Duration>,
    /// The last demotion or recovery.
    pub demoted: Option<SavedDemotion>,
    /// Failures in a row.
    pub failures: u32,
    /// End of the back-off.
    pub not_before: Duration,
    /// Page size that it was promoted to, in bytes and less than 2 MiB.
    pub small: Option<u64>,
}

/// A demotion, as far as it matters for a later promotion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedDemotion {
    /// Time of the demotion.
    pub at: Duration,
    /// Share of memory in use at that time, 0 to 1.
    pub in_use: f64,
    /// Base pages present afterwards; `None` before a snapshot has shown the effect.
    pub present: Option<u16>,
}

impl Promotions {
    /// Returns the stored history of each region that an action was tried or put off for, ascending
    /// by process and address. It must survive a restart: without it, the next process would undo
    /// the actions of this one at once.
    pub fn saved_regions(&self) -> Vec<SavedRegion> {
        let regions = self.processes.iter().flat_map(|(id, process)| {
            process.regions.iter().map(|(start, memory)| SavedRegion {
                process: *id,
                region: start.start(),
                acted: memory.acted,
                promoted: memory.promoted,
                demoted: memory.demoted.map(|demoted| SavedDemotion {
                    at: demoted.at,
                    in_use: demoted.in_use,
                    present: demoted.present,
                }),
                failures: memory.failures,
                not_before: memory.not_before,
                small: memory.small,
            })
        });
        regions.collect()
    }

    /// Takes back saved regions. Skips those with values that are impossible at the time `now`.
    /// Does not overwrite a region that is already known. Forgets processes that the next snapshot
    /// does not contain.
    pub fn restore(&mut self, now: Duration, regions: &[SavedRegion]) {
        let past = |time: Duration| time <= now;
        for one in regions.iter().take(MOST) {
            let Some(page) = HugePage::at(one.region) else { continue };
            let sound = past(one.acted)
                && one.promoted.is_none_or(past)
                && one.demoted.is_none_or(|demoted| {
                    past(demoted.at)
                        && (0.0..=1.0).contains(&demoted.in_use)
                        && demoted.present.is_none_or(|present| present <= PAGES)
                });
            if !sound {
                continue;
            }
            let process = self.processes.entry(one.process).or_default();
            process.regions.entry(page).or_insert(RegionMemory {
                acted: one.acted,
                promoted: one.promoted,
                demoted: one.demoted.map(|demoted| Demoted {
                    at: demoted.at,
                    in_use: demoted.in_use,
                    present: demoted.present,
                }),
                failures: one.failures,
                failed: None,
                not_before: one.not_before.min(now + self.limits.back_off_most),
                small: one.small.filter(|small| *small < HugePage::SIZE),
            });
        }
    }
}
