//! Constants of the policy.

use super::claims::Claim;
use super::gain::{MissCost, Model};
use super::watermarks;
use crate::{Pace, Tick};
use megapage_snapshot::{Leaf, Process, Region};
use megapage_units::PageSize;
use std::time::Duration;

/// Constants of the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Name in reports.
    pub name: &'static str,
    /// Weights and caps.
    pub claims: Vec<Claim>,
    /// Part of all huge memory that is guaranteed, divided by weight; 0 to 1.
    pub guarantee: f64,
    /// One of this number of promotions goes to a process below its guarantee, if there is one...
    pub guaranteed_turn: u64,
    /// ...and one of this number if memory suffices for all that could become huge. A process can
    /// then only lose time by being served later.
    pub plentiful_turn: u64,
    /// True if a guaranteed promotion must pay, too.
    pub guaranteed_pays: bool,
    /// Fill of a process's new regions that a huge fault requires just below the low watermark, 0
    /// to 1. It requires less, the farther memory is from the watermark. From the watermark on,
    /// regions must be full.
    pub fault_fill: f64,
    /// Regions promoted in a round if they pay at all...
    pub promote: Pace,
    /// ...and if they pay within `quick`.
    pub promote_quick: Pace,
    /// Processor time within which a quick promotion pays for itself.
    pub quick: Duration,
    /// Cost of a promotion, in processor time.
    pub copy_cost: Duration,
    /// Least further processor time that a process is expected to use...
    pub least_life: Duration,
    /// ...and the most.
    pub most_life: Duration,
    /// Least share of its time that a process must gain from all its streamed regions that are not
    /// huge. Below it, streamed regions do not count as gaining, since the part of a walk that
    /// prefetching leaves is uncertain. Counters or a trial that give the translation cost replace
    /// this condition.
    pub least_streaming: f64,
    /// Price of a byte bound without use, relative to a copied one, at half nearness to short
    /// memory. It rises without limit as memory gets short.
    pub bound_price: f64,
    /// Model of the gain.
    pub model: Model,
    /// Regions of one process with scores within this factor, 1 or more, are promoted in the order
    /// of their addresses. Samples are no finer, and one call can collapse neighbours. The
    /// comparison of processes stays exact.
    pub alike: f64,
    /// Watermarks of short memory.
    pub watermarks: watermarks::Constants,
    /// Least number of zero-filled base pages in a huge page that can be recovered.
    pub least_zeros: u16,
    /// Time for which the result of a zero scan holds...
    pub rescan: Duration,
    /// ...and the longest such time, if scans find next to nothing.
    pub rescan_most: Duration,
    /// Least time from one sample to the next...
    pub sample_every: Duration,
    /// ...which is so long that the first accesses after a clearing cost at most this share of a
    /// process's time.
    pub sample_budget: f64,
    /// Maximum of doublings of the time that `sample_budget` demands: one for each further sample
    /// in a row that led to no promotion.
    pub sample_rarer: u32,
    /// Cost of such a first access, if the observer has not measured it.
    pub first_access: Duration,
    /// Time after a process is first seen in which its regions without a sample are not promoted.
    /// It applies only if accesses are sampled at all.
    pub first_sample: Duration,
    /// Least share of a processor that a process must use for promotion without known accesses. If
    /// the tracker shows none (an old kernel without any interface for them), full regions are
    /// promoted, at the pace of `promote`.
    pub blind_usage: f64,
    /// Time from clearing the bits to reading them.
    pub window: Duration,
    /// Page size for regions in which 2 MiB would bind too much.
    pub small: PageSize,
    /// Blocks of 2 MiB zeroed ahead in a round, at least...
    pub pre_zero: Pace,
    /// ...and at most, if memory fills.
    pub pre_zero_most: u64,
}

impl Parameters {
    /// Returns the least seconds between two samples of a process, by the result of the last one.
    pub(super) fn least_period(&self, tick: &Tick<'_>, process: &Process) -> f64 {
        let measured = tick.snapshot().sampling.as_ref().map(|sampling| sampling.first_access_ns * 1e-9);
        let first_access =
            measured.filter(|cost| cost.is_finite()).unwrap_or(self.first_access.as_secs_f64());
        let pages = |region: &Region| match (region.leaf, region.accessed) {
            (Leaf::Base, Some(accessed)) => f64::from(accessed.coverage),
            // One bit, or unknown.
            _ => 1.0,
        };
        process.regions.iter().map(pages).sum::<f64>() * first_access / self.sample_budget
    }
}

impl Default for Parameters {
    /// Returns the constants of the daemon, the plan and the simulator.
    ///
    /// Eight regions a second are 16 MiB, 2 % of a core at 1 GiB/s. The measured budgets of the
    /// actuator pace quick promotions; 1024 regions are the most that it may move in a second. The
    /// costs of misses and first accesses were measured on a KVM guest (docs/policies.md).
    fn default() -> Parameters {
        Parameters {
            name: "megapage",
            claims: Vec::new(),
            guarantee: 0.25,
            guaranteed_turn: 4,
            plentiful_turn: 64,
            guaranteed_pays: true,
            // Zeroing 2 MiB takes as long as about 130 faults of base pages (465 us and 3.5 us in
            // HawkEye's fault table). Below a quarter, a huge page saves neither memory nor time.
            fault_fill: 0.25,
            promote: Pace { work: 8, every: Duration::from_secs(1) },
            promote_quick: Pace { work: 1024, every: Duration::from_secs(1) },
            quick: Duration::from_secs(30),
            copy_cost: Duration::from_millis(2),
            least_life: Duration::from_secs(30),
            most_life: Duration::from_secs(3600),
            // A reader with a modelled gain of 0.8 % has no measurable gain (`megapage-lab fair`).
            least_streaming: 0.02,
            bound_price: 8.0,
            model: Model { entries: 1536.0, miss: MissCost { streaming: 5.0, random: 7.0, dependent: 94.0 } },
            // A first sample of a 32nd of the pages is no finer. A call that names neighbours
            // disturbs other processors once for all of them.
            alike: 2.0,
            watermarks: watermarks::Constants {
                calm: 0.9,
                blind: 0.85,
                least: 0.5,
                gap: 0.1,
                lead: Duration::from_secs(20),
                stall: 2.0,
            },
            // The rest stays as bloat: fewer than 16 pages are at most 3 % of a huge page.
            least_zeros: 16,
            rescan: Duration::from_secs(30),
            rescan_most: Duration::from_secs(600),
            sample_every: Duration::from_secs(10),
            sample_budget: 0.005,
            sample_rarer: 3,
            first_access: Duration::from_nanos(470),
            first_sample: Duration::from_secs(5),
            blind_usage: 0.1,
            window: Duration::from_millis(100),
            small: PageSize::new(64 << 10).expect("a power of two"),
            pre_zero: Pace { work: 20, every: Duration::from_secs(1) },
            pre_zero_most: 128,
        }
    }
}
