//! The constants of the policy.

use super::claims::Claim;
use super::gain::{MissCost, Model};
use super::watermarks;
use crate::{Pace, Tick};
use megapage_snapshot::{Leaf, Process, Region};
use megapage_units::PageSize;
use std::time::Duration;

/// The constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The name that reports show.
    pub name: &'static str,
    /// Weights and caps.
    pub claims: Vec<Claim>,
    /// The part of all huge memory that is guaranteed, divided by weight; 0 to 1.
    pub guarantee: f64,
    /// One in so many promotions goes to a process below its guarantee, while there is one...
    pub guaranteed_turn: u64,
    /// ...and one in so many where memory suffices for all that could become huge, so that being served later is all
    /// that a process can lose.
    pub plentiful_turn: u64,
    /// Whether also what is guaranteed must pay.
    pub guaranteed_pays: bool,
    /// How full a region must be that a fault makes huge, 0 to 1, as memory comes near the low watermark; from there on it
    /// must be full.
    pub fault_fill: f64,
    /// Regions promoted in a round, of whatever pays...
    pub promote: Pace,
    /// ...and with those that pay within `quick`.
    pub promote_quick: Pace,
    /// A promotion that pays for itself within so much processor time is quick.
    pub quick: Duration,
    /// What a promotion costs, in processor time.
    pub copy_cost: Duration,
    /// A process is expected to use at least so much more processor time...
    pub least_life: Duration,
    /// ...and at most so much.
    pub most_life: Duration,
    /// What streams is promoted for what it gains only once the process would gain at least this share of its time from all
    /// that it streams and that is not huge, or where counters measure its translation cost: what prefetching leaves of a
    /// walk is known no better.
    pub least_streaming: f64,
    /// What a byte that is bound for nothing costs against one that is copied, when memory is nearly short.
    pub bound_price: f64,
    /// How the gain is modelled.
    pub model: Model,
    /// Regions of one process whose scores lie within this factor, 1 or more, are promoted in the order of their addresses:
    /// samples are no finer, and neighbours can be collapsed by one call. Processes are compared as exactly as ever.
    pub alike: f64,
    /// When memory is short.
    pub watermarks: watermarks::Constants,
    /// A huge page with at least so many zero-filled base pages can be recovered.
    pub least_zeros: u16,
    /// The result of a zero scan holds so long...
    pub rescan: Duration,
    /// ...or, where scans find next to nothing, up to so long.
    pub rescan_most: Duration,
    /// From one sample to the next, at least...
    pub sample_every: Duration,
    /// ...and so long that the first accesses after a clearing cost no more than this share of a process's time.
    pub sample_budget: f64,
    /// With each sample that led to no promotion the time to the next doubles, so often at the most.
    pub sample_rarer: u32,
    /// What such a first access costs, where the observer has not measured it.
    pub first_access: Duration,
    /// From when a process is first seen, regions that were not sampled yet wait for that as long as this before they
    /// are promoted, where accesses are sampled at all.
    pub first_sample: Duration,
    /// Where the tracker shows no accesses (an old kernel without any interface for them), full regions are promoted, at the
    /// pace of those that need not pay soon, of a process that takes at least so much of a processor.
    pub blind_usage: f64,
    /// From clearing the bits to reading them.
    pub window: Duration,
    /// The size for what 2 MiB would bloat.
    pub small: PageSize,
    /// Blocks of 2 MiB zeroed ahead in a round, at least...
    pub pre_zero: Pace,
    /// ...and at most, where memory fills.
    pub pre_zero_most: u64,
}

impl Parameters {
    /// How many seconds must lie between two samples of a process, by what the last one found.
    pub(super) fn least_period(&self, tick: &Tick<'_>, process: &Process) -> f64 {
        let measured = tick.snapshot().sampling.as_ref().map(|sampling| sampling.first_access_ns * 1e-9);
        let first_access =
            measured.filter(|cost| cost.is_finite()).unwrap_or(self.first_access.as_secs_f64());
        let pages = |region: &Region| match (region.leaf, region.accessed) {
            (Leaf::Base, Some(accessed)) => f64::from(accessed.coverage),
            // One bit, or not known.
            _ => 1.0,
        };
        process.regions.iter().map(pages).sum::<f64>() * first_access / self.sample_budget
    }
}

impl Default for Parameters {
    /// Returns the constants of the daemon, the plan and the simulator.
    ///
    /// Eight regions a second are 16 MiB, 2 % of a core at 1 GiB/s. Quick promotions are paced by the measured budgets of
    /// the actuator; 1024 regions are what it may move in a second. Misses and first accesses cost what was measured on a
    /// KVM guest (docs/policies.md).
    fn default() -> Parameters {
        Parameters {
            name: "megapage",
            claims: Vec::new(),
            guarantee: 0.25,
            guaranteed_turn: 4,
            plentiful_turn: 64,
            guaranteed_pays: true,
            // Zeroing 2 MiB takes as long as about 130 faults of base pages (465 us and 3.5 us in HawkEye's fault
            // table): below a quarter, a huge page saves memory neither nor time.
            fault_fill: 0.25,
            promote: Pace { work: 8, every: Duration::from_secs(1) },
            promote_quick: Pace { work: 1024, every: Duration::from_secs(1) },
            quick: Duration::from_secs(30),
            copy_cost: Duration::from_millis(2),
            least_life: Duration::from_secs(30),
            most_life: Duration::from_secs(3600),
            // A reader of whom the model says 0.8 % gains nothing that can be measured (`megapage-lab fair`).
            least_streaming: 0.02,
            bound_price: 8.0,
            model: Model { entries: 1536.0, miss: MissCost { streaming: 5.0, random: 7.0, dependent: 94.0 } },
            // A first sample of a 32nd of the pages is no finer, and calls that name neighbours disturb other processors
            // once for all of them.
            alike: 2.0,
            watermarks: watermarks::Constants {
                calm: 0.9,
                blind: 0.85,
                least: 0.5,
                gap: 0.1,
                lead: Duration::from_secs(20),
                stall: 2.0,
            },
            // The rest of each huge page stays as bloat: of 16 pages at most 3 %.
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
