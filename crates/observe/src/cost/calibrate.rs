//! What a page walk costs on this machine: timed once, at the start.

use megapage_kernel::process::own_thread_time;
use megapage_kernel::{WalkOrder, WalkProbe};
use megapage_units::{BASE_PAGE, HUGE_2M};
use serde::Serialize;
use std::io;

/// What one page walk costs when so much memory is walked, in nanoseconds, by the way the program goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WalkCost {
    /// The memory, in bytes: the more, the farther its page-table entries lie from the processor.
    pub bytes: u64,
    /// When the next address depends on what is read: the whole walk is waited for.
    pub dependent: f64,
    /// When addresses are known early: walks overlap each other and the reads.
    pub random: f64,
    /// One page after the other.
    pub streaming: f64,
}

/// The cost of a walk by the memory that is walked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WalkCosts {
    /// By memory, ascending; never empty.
    steps: Vec<WalkCost>,
    /// What a read takes that the processor's own caches do not hold and that is waited for, without its page walk: of
    /// 16 MiB, and
    latency: f64,
    /// by how much it rises each time that memory doubles, for a cache shared by all holds less and less of it.
    latency_rise: f64,
    /// What a miss of the first level of the TLB costs that the second level answers.
    second_hit: f64,
    /// How far the timings were apart, as a share of the least.
    spread: f64,
    /// Whether the timings made no sense.
    guess: bool,
}

/// Memory for which walks are timed, in parts of 2 MiB. The first is held by the TLB and is what the others are
/// compared with.
const PARTS: [usize; 5] = [1, 8, 32, 128, 512];
/// Pages that the first level of every TLB holds.
const FIRST_LEVEL_PAGES: u64 = 32;
/// Reads in one timing, and how many are made: the best counts, for whatever else the processor does only adds, and
/// short ones are more often left alone.
const READS: u64 = 4_000;
const LEAST_ROUNDS: u64 = 12;
const MOST_ROUNDS: u64 = 60;
const ORDERS: [WalkOrder; 3] = [WalkOrder::Dependent, WalkOrder::Random, WalkOrder::Sequential];
/// Memory on which the latency of a read is timed, in regions of 2 MiB: more than a core has caches of its own, and
/// four times as much.
const LATENCY_REGIONS: [usize; 2] = [8, 32];
/// Doublings over which latency is taken to rise, from 16 MiB to 1 GiB, and the factor that it rises by at most.
const LATENCY_DOUBLINGS: f64 = 6.0;
const LATENCY_FACTOR: f64 = 2.2;
/// By how much latency rises with each doubling at the least: memory took 1.9 to 2.1 times as long as the last-level
/// cache (chases through 1 GiB and through 16 MiB of huge pages, Sapphire Rapids under KVM).
const LEAST_RISE: f64 = 0.15;

impl WalkCosts {
    /// Costs from a table, ascending by memory, and a latency in nanoseconds; `None` where the table is empty or does
    /// not ascend.
    pub fn from_table(steps: Vec<WalkCost>, latency: f64) -> Option<WalkCosts> {
        let ascends = steps.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        (!steps.is_empty() && ascends).then_some(WalkCosts {
            steps,
            latency,
            latency_rise: 0.0,
            second_hit: 0.0,
            spread: 0.0,
            guess: false,
        })
    }

    /// What a miss of the first level of the TLB costs that the second level answers, in nanoseconds, several of them
    /// under way at once.
    pub fn second_hit(&self) -> f64 {
        self.second_hit
    }

    /// What a read among `bytes` takes that the processor's own caches do not hold and that is waited for, in
    /// nanoseconds.
    pub fn latency(&self, bytes: f64) -> f64 {
        let least = (LATENCY_REGIONS[0] * HUGE_2M) as f64;
        let doublings = (bytes / least).max(1.0).log2().min(LATENCY_DOUBLINGS);
        (self.latency + self.latency_rise * doublings).min(self.latency * LATENCY_FACTOR)
    }

    /// Times walks on this machine: some 150 to 700 ms of processor time, 66 MiB of memory and 2 MiB of page tables.
    /// All timings are made in turns, so that what else the machine does falls on all of them, until they are
    /// plausible: more memory costs no less, and a walk that is waited for no less than one that overlaps.
    pub fn measure() -> io::Result<WalkCosts> {
        let mut probe = WalkProbe::reserve(1, PARTS[PARTS.len() - 1])?;
        probe.grow(PARTS[PARTS.len() - 1])?;
        let mut far = Vec::new();
        for regions in LATENCY_REGIONS {
            let mut large = WalkProbe::reserve(regions, 1)?;
            large.grow(1)?;
            far.push(large);
        }
        let mut first_level = Best::default();
        let mut near = [[Best::default(); ORDERS.len()]; PARTS.len()];
        let mut latencies = [Best::default(); LATENCY_REGIONS.len()];
        for round in 0..MOST_ROUNDS {
            let seed = round * READS;
            first_level.note(|n| probe.read_within(FIRST_LEVEL_PAGES, WalkOrder::Random, READS, seed + n));
            for (parts, bests) in PARTS.into_iter().zip(&mut near) {
                let pages = (parts * HUGE_2M / BASE_PAGE) as u64;
                for (order, best) in ORDERS.into_iter().zip(bests) {
                    best.note(|n| probe.read_within(pages, order, READS, seed + n));
                }
            }
            for (large, best) in far.iter().zip(&mut latencies) {
                best.note(|n| large.read(WalkOrder::Far, READS, seed + n));
            }
            if round + 1 < LEAST_ROUNDS {
                continue;
            }
            let timed =
                PARTS.into_iter().zip(&near).map(|(parts, [dependent, random, streaming])| WalkCost {
                    bytes: (parts * HUGE_2M) as u64,
                    dependent: dependent.least,
                    random: random.least,
                    streaming: streaming.least,
                });
            let timed: Vec<WalkCost> = timed.collect();
            let last = round + 1 == MOST_ROUNDS;
            if !last && !is_plausible(&timed) {
                continue;
            }
            let mut costs = WalkCosts::above_first(&timed);
            let walks = LATENCY_REGIONS.map(|regions| costs.at((regions * HUGE_2M) as f64).dependent);
            let [small, large] = [0, 1].map(|at| (latencies[at].least - walks[at]).max(0.0));
            let doublings = (LATENCY_REGIONS[1] as f64 / LATENCY_REGIONS[0] as f64).log2();
            costs.latency = small;
            // A large last-level cache holds both sizes; a program's gigabyte it does not.
            costs.latency_rise = ((large - small) / doublings).max(small * LEAST_RISE);
            costs.second_hit = (timed[0].random - first_level.least).max(0.0);
            costs.spread = near.iter().map(|[dependent, ..]| dependent.spread()).fold(0.0, f64::max);
            return Ok(if is_plausible(&timed) { costs } else { costs.guessed() });
        }
        // Not reached: the last round answers.
        Err(io::Error::other("no timing"))
    }

    /// Whether the timings made no sense, so that the costs are guessed from the latency of memory alone.
    pub fn is_guess(&self) -> bool {
        self.guess
    }

    /// How far the timings were apart, as a share of the least.
    pub fn spread(&self) -> f64 {
        self.spread
    }

    /// The costs as shares of a read's latency, which can be told on the busiest machine: as timed on a quiet one
    /// (Sapphire Rapids under KVM, Linux 6.18).
    fn guessed(self) -> WalkCosts {
        const OF_LATENCY: [f64; PARTS.len() - 1] = [0.04, 0.1, 0.2, 0.4];
        let latency = self.latency;
        let steps = self.steps.iter().zip(OF_LATENCY).map(|(step, share)| WalkCost {
            dependent: latency * share,
            random: latency * share / 8.0,
            ..*step
        });
        WalkCosts { steps: steps.collect(), guess: true, ..self }
    }

    /// What each timing has over the first. Costs never fall with memory: where one does, that is noise.
    fn above_first(timed: &[WalkCost]) -> WalkCosts {
        let first = timed[0];
        let mut floor = WalkCost { bytes: 0, dependent: 0.0, random: 0.0, streaming: 0.0 };
        let steps = timed[1..].iter().map(|step| {
            floor = WalkCost {
                bytes: step.bytes,
                dependent: (step.dependent - first.dependent).max(floor.dependent),
                random: (step.random - first.random).max(floor.random),
                streaming: (step.streaming - first.streaming).max(floor.streaming),
            };
            floor
        });
        WalkCosts {
            steps: steps.collect(),
            latency: first.dependent,
            latency_rise: 0.0,
            second_hit: 0.0,
            spread: 0.0,
            guess: false,
        }
    }

    /// The cost where `bytes` are walked: between two timings by the logarithm of the memory, beyond the last as it
    /// rose before.
    pub fn at(&self, bytes: f64) -> WalkCost {
        let steps = &self.steps;
        let at = steps.partition_point(|step| (step.bytes as f64) < bytes).clamp(1, steps.len().max(2) - 1);
        let (Some(low), Some(high)) = (steps.get(at - 1), steps.get(at)) else { return steps[0] };
        let span = (high.bytes as f64 / low.bytes as f64).ln();
        // Below the first timing the entries are as near; far beyond the last they are in memory all the same.
        let along = ((bytes.max(1.0) / low.bytes as f64).ln() / span).clamp(0.0, FARTHEST);
        let between = |low: f64, high: f64| low + (high - low) * along;
        WalkCost {
            bytes: bytes as u64,
            dependent: between(low.dependent, high.dependent),
            random: between(low.random, high.random),
            streaming: between(low.streaming, high.streaming),
        }
    }
}

/// The least and all the others of several timings of the same.
#[derive(Clone, Copy, Debug)]
struct Best {
    least: f64,
    sum: f64,
    count: f64,
}

impl Default for Best {
    fn default() -> Best {
        Best { least: f64::INFINITY, sum: 0.0, count: 0.0 }
    }
}

impl Best {
    /// Times `read`, which makes [`READS`] reads, in nanoseconds for each. It is done once before, for the caches
    /// hold what was timed last. Its argument makes the two different.
    fn note(&mut self, read: impl Fn(u64)) {
        read(0);
        // Other pages: a program does not come back to those that it has just read.
        let start = own_thread_time();
        read(READS / 2 + 1);
        let each = (own_thread_time() - start).as_secs_f64() * 1e9 / READS as f64;
        self.least = self.least.min(each);
        self.sum += each;
        self.count += 1.0;
    }

    /// How far the mean is above the least, as a share of that.
    fn spread(&self) -> f64 {
        if self.least > 0.0 { (self.sum / self.count / self.least - 1.0).max(0.0) } else { 0.0 }
    }
}

/// Timings that are no farther apart, in nanoseconds, are equal.
const CLOSE: f64 = 0.5;

/// Whether more memory costs no less, the most of it something, and waiting no less than overlapping.
fn is_plausible(timed: &[WalkCost]) -> bool {
    let (Some(first), Some(last)) = (timed.first(), timed.last()) else { return false };
    timed.windows(2).all(|pair| pair[1].dependent >= pair[0].dependent)
        && timed.iter().all(|step| step.dependent - first.dependent + CLOSE >= step.random - first.random)
        && last.dependent > 1.2 * first.dependent
}

/// How far beyond the last timing costs are taken to rise: by as much again as between the last two, twice.
const FARTHEST: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn step(bytes: u64, cost: f64) -> WalkCost {
        WalkCost { bytes, dependent: cost, random: cost / 8.0, streaming: cost / 4.0 }
    }

    #[test]
    fn costs_lie_between_their_neighbours() {
        let costs =
            WalkCosts::from_table(vec![step(1 << 24, 10.0), step(1 << 26, 20.0), step(1 << 30, 60.0)], 80.0)
                .unwrap();
        assert_eq!(costs.at(1.0).dependent, 10.0);
        assert!((costs.at((1u64 << 25) as f64).dependent - 15.0).abs() < 1e-9);
        assert!((costs.at((1u64 << 28) as f64).dependent - 40.0).abs() < 1e-9);
        assert!((costs.at((1u64 << 30) as f64).random - 7.5).abs() < 1e-9);
        // 16 GiB: as much again; without end it does not rise.
        assert!((costs.at((1u64 << 34) as f64).dependent - 100.0).abs() < 1e-9);
        assert_eq!(costs.at(1e18).dependent, costs.at(1e16).dependent);
        assert_eq!(WalkCosts::from_table(vec![step(4096, 5.0)], 80.0).unwrap().at(1e9).dependent, 5.0);
        assert!(WalkCosts::from_table(vec![], 80.0).is_none());
    }

    #[test]
    fn noise_does_not_make_more_memory_cheaper() {
        let costs = WalkCosts::above_first(&[step(2, 10.0), step(4, 30.0), step(8, 25.0), step(16, 5.0)]);
        let found: Vec<f64> = costs.steps.iter().map(|step| step.dependent).collect();
        assert_eq!(found, [20.0, 20.0, 20.0]);
    }

    #[test]
    fn timings_that_make_no_sense_are_not_used() {
        let rising = [step(2, 10.0), step(4, 12.0), step(8, 20.0), step(16, 40.0), step(32, 60.0)];
        assert!(is_plausible(&rising));
        let mut falling = rising;
        falling[3].dependent = 11.0;
        assert!(!is_plausible(&falling));
        let mut overlapping = rising;
        overlapping[4].random = 90.0;
        assert!(!is_plausible(&overlapping));
        assert!(!is_plausible(&[step(2, 10.0); 5]));
        let guess = WalkCosts { latency: 100.0, ..WalkCosts::above_first(&falling) }.guessed();
        assert!(guess.is_guess());
        assert_eq!(guess.at(32.0).dependent, 40.0);
    }

    #[test]
    fn this_machine_is_timed() {
        let costs = WalkCosts::measure().unwrap();
        assert_eq!(costs.steps.len(), PARTS.len() - 1);
        assert!(costs.steps.iter().all(|step| step.dependent >= 0.0 && step.dependent.is_finite()));
        assert!(costs.latency(1e9) >= costs.latency(1e6) && costs.latency(1e6) >= 0.0);
    }
}
