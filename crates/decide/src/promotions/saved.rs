//! What the guards remember, as values: so that cool-downs outlive the process that runs the policy.

use super::{Demoted, Promotions, RegionMemory};
use megapage_snapshot::{PAGES, ProcessId};
use megapage_units::HUGE_2M;
use std::time::Duration;

/// Most regions taken back: 256 GiB.
const MOST: usize = 1 << 17;

/// What is known of one region that something was done to. Times are on the snapshot's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedRegion {
    /// Whose.
    pub process: ProcessId,
    /// Its first address.
    pub region: u64,
    /// The last action.
    pub acted: Duration,
    /// The last promotion.
    pub promoted: Option<Duration>,
    /// The last demotion or recovery.
    pub demoted: Option<SavedDemotion>,
    /// Failures in a row.
    pub failures: u32,
    /// Nothing before that time.
    pub not_before: Duration,
    /// The size, in bytes and less than 2 MiB, that it was promoted to.
    pub small: Option<u64>,
}

/// A demotion, as far as it decides about a promotion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedDemotion {
    /// When.
    pub at: Duration,
    /// The share of memory in use then, 0 to 1.
    pub in_use: f64,
    /// Base pages present afterwards, where a snapshot has shown that.
    pub present: Option<u16>,
}

impl Promotions {
    /// All regions that are stored, ascending by process and address.
    pub fn saved_regions(&self) -> Vec<SavedRegion> {
        let regions = self.processes.iter().flat_map(|(id, process)| {
            process.regions.iter().map(|(start, memory)| SavedRegion {
                process: *id,
                region: *start,
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

    /// Takes back what was saved. What cannot be true at the time `now` is skipped; what is known already
    /// stays.
    pub fn restore(&mut self, now: Duration, regions: &[SavedRegion]) {
        let past = |time: Duration| time <= now;
        for one in regions.iter().take(MOST) {
            let sound = one.region.is_multiple_of(HUGE_2M as u64)
                && past(one.acted)
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
            process.regions.entry(one.region).or_insert(RegionMemory {
                acted: one.acted,
                promoted: one.promoted,
                demoted: one.demoted.map(|demoted| Demoted {
                    at: demoted.at,
                    in_use: demoted.in_use,
                    present: demoted.present,
                }),
                failures: one.failures,
                not_before: one.not_before.min(now + self.limits.back_off_most),
                small: one.small.filter(|small| *small < HUGE_2M as u64),
            });
        }
    }
}
