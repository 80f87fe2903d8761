//! External promotion, in passes, while a program runs.

use crate::request::Fork;
use megapage_act::promote::{
    Applied, Bounds, PromoteError, PromoteOutcome, Promotion, SharedMemory, candidates, identify,
    part_shared, shared_memory,
};
use megapage_decide::Promotions;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::{KernelRoot, boot_time};
use megapage_units::{Bytes, HugeCount, HugePage, Pid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Fewest present base pages, of 512, for which a region is promoted: half. With fewer, a huge page
/// would hold more zeros than data.
pub const LEAST_PRESENT: u16 = 256;
/// Most regions in one pass: 8 GiB. The next pass continues behind them.
const MOST_REGIONS: usize = 4096;
/// Least pause between two passes.
const LEAST_PAUSE: Duration = Duration::from_millis(500);
/// Least pause between two passes, as a multiple of the processor time of the search for
/// candidates. The search thus takes at most 1 % of a processor.
const COST_SPACING: u32 = 100;
/// Refusals of a region after which it is backed off.
const MOST_REFUSALS: u8 = 3;
/// Longest back-off of such a region in a program that forks. A write after a fork splits a region
/// that has just been promoted, which looks like a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Passes in a row that obtain nothing, after which a pass that ran out of time is not repeated at
/// once.
const MOST_FRUITLESS: u32 = 5;

/// Largest number of requested regions that are counted: 2 TiB.
const MOST_COUNTED: usize = 1 << 20;

/// Pause after the collapse of a region, in hundredths of its time, for a program that has forked
/// to save. A page fault waits for one collapse, but not for the next one as well.
const SNAPSHOT_REST: u32 = 300;

/// The plan of a pass.
struct Found {
    promotion: Promotion,
    /// True if another process shares a private region that was huge or is a candidate.
    is_shared_by_fork: bool,
    shared: SharedMemory,
    /// Bytes that the program has excluded from huge pages.
    excluded: Bytes,
}

/// State of the promotion of one process.
#[derive(Debug)]
pub struct Promoter {
    pid: Pid,
    fork: Fork,
    /// True once a child was seen to share its memory. From then on, promoted memory was huge
    /// before, and the program is at work.
    forked: bool,
    bounds: Bounds,
    promotions: Promotions,
    next: Instant,
    refusals: BTreeMap<HugePage, u8>,
    /// Time at which refusals were last cleared.
    forgotten: Instant,
    /// Passes in a row that obtained nothing.
    fruitless: u32,
    /// Requested regions. The next field holds those that became huge.
    asked: BTreeSet<HugePage>,
    obtained: BTreeSet<HugePage>,
    /// Outcome of all passes.
    pub outcome: PromoteOutcome,
    /// The shared memory, as of the last look at it.
    pub shared: SharedMemory,
}

impl Promoter {
    /// Returns a promoter whose first pass is due after `delay`.
    pub fn new(pid: Pid, delay: Duration, fork: Fork) -> Promoter {
        // A short pass: signals for the program wait while one runs.
        let mut bounds = Bounds { time: Duration::from_millis(200), ..Bounds::default() };
        if fork != Fork::Auto {
            // The sharers of a region are looked up before each call: the next call notices a fork
            // during this one.
            bounds.batch = 1;
        }
        Promoter {
            pid,
            fork,
            forked: false,
            bounds,
            promotions: Promotions::default(),
            next: Instant::now() + delay,
            refusals: BTreeMap::new(),
            forgotten: Instant::now(),
            fruitless: 0,
            asked: BTreeSet::new(),
            obtained: BTreeSet::new(),
            outcome: PromoteOutcome::default(),
            shared: SharedMemory::default(),
        }
    }

    /// Returns the time at which the next pass is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Returns the regions that the next pass would promote. A region that another process shares
    /// since a fork is not among them. With [`Fork::Snapshot`], none is while any region is shared.
    pub fn plan(&self, root: &KernelRoot) -> Result<Promotion, PromoteError> {
        self.find(root).map(|found| found.promotion)
    }

    /// Finds the regions as [`Promoter::plan`] does, and further facts of the look.
    fn find(&self, root: &KernelRoot) -> Result<Found, PromoteError> {
        // Identifies the process before the look-up: if it ends or executes another program, its
        // regions are not acted on.
        let process = identify(root, self.pid)?;
        // Looks up as many more candidates as there are refusals, so that refused ones take no
        // other's place.
        let found = candidates(root, self.pid, LEAST_PRESENT, MOST_REGIONS + self.refusals.len())?;
        let refused =
            |region: &HugePage| self.refusals.get(region).is_some_and(|&times| times >= MOST_REFUSALS);
        let regions =
            found.regions.into_iter().filter(|region| !refused(region)).take(MOST_REGIONS).collect();
        let (own, shared) = part_shared(root, self.pid, regions)?;
        let waits = self.fork == Fork::Snapshot && !shared.is_empty();
        let regions = if waits { Vec::new() } else { own };
        Ok(Found {
            promotion: Promotion { process, regions, bounds: self.bounds },
            is_shared_by_fork: !shared.is_empty(),
            shared: found.shared,
            excluded: found.excluded,
        })
    }

    /// Makes one pass. Returns true if another one is due at once, because the pass ran out of its
    /// time.
    pub fn pass(&mut self, root: &KernelRoot) -> Result<bool, PromoteError> {
        if self.fork != Fork::Auto && self.forgotten.elapsed() >= REFUSED_FOR {
            self.refusals.clear();
            self.forgotten = Instant::now();
        }
        let start = own_thread_time();
        let Found { mut promotion, is_shared_by_fork, shared, excluded } = self.find(root)?;
        self.outcome.excluded_bytes = excluded.0;
        let cost = own_thread_time().saturating_sub(start);
        self.forked |= is_shared_by_fork;
        self.shared = shared;
        if self.forked && self.fork == Fork::Snapshot {
            promotion.bounds.pause_percent = SNAPSHOT_REST;
        }
        if promotion.regions.is_empty() {
            self.next = Instant::now() + LEAST_PAUSE.max(cost * COST_SPACING);
            return Ok(false);
        }
        let mut applied = match promotion.apply(root, &mut self.promotions) {
            // Another program runs in the process now: the next pass looks at that.
            Err(PromoteError::Gone(_)) if identify(root, self.pid).is_ok() => {
                self.next = Instant::now() + LEAST_PAUSE.max(cost * COST_SPACING);
                return Ok(false);
            }
            applied => applied?,
        };
        let rest = self.promotions.pause(boot_time(), promotion.process, true);
        let outcome = &mut applied.outcome;
        // A pass that ran out of its time is repeated at once, unless several passes obtained
        // nothing.
        self.fruitless = if outcome.obtained_bytes > 0 { 0 } else { self.fruitless + 1 };
        let goes_on = self.fruitless < MOST_FRUITLESS;
        let unfinished = outcome.not_tried > 0 && outcome.no_memory == 0 && !outcome.gone && goes_on;
        // A later pass asks for these again.
        outcome.not_tried = 0;
        // A fork meanwhile is no refusal: those regions are requested again when the child has
        // ended.
        if applied.huge.len() < applied.tried.len() && applied.outcome.shared == 0 && !applied.outcome.gone {
            self.note_refusals(root, &applied.tried);
        }
        self.note(&applied);
        if self.shared.promotable_bytes > 0 && !applied.outcome.gone {
            self.shared = shared_memory(root, self.pid, LEAST_PRESENT)?;
        }
        let pause = if unfinished { Duration::ZERO } else { LEAST_PAUSE.max(cost * COST_SPACING) };
        self.next = Instant::now() + pause.max(rest);
        Ok(unfinished)
    }

    /// Adds the outcome of a pass. A region that is requested again counts once.
    fn note(&mut self, applied: &Applied) {
        self.outcome.add(applied.outcome);
        for region in applied.tried.iter().chain(&applied.huge) {
            if self.asked.len() < MOST_COUNTED {
                self.asked.insert(*region);
            }
        }
        self.obtained.extend(applied.huge.iter().filter(|it| self.asked.contains(it)));
        let bytes = |regions: &BTreeSet<HugePage>| HugeCount(regions.len() as u64).bytes().0;
        (self.outcome.asked_bytes, self.outcome.obtained_bytes) = (bytes(&self.asked), bytes(&self.obtained));
    }

    /// Counts a refusal for each tried region that is still a candidate. The number of stored
    /// regions is bounded.
    fn note_refusals(&mut self, root: &KernelRoot, tried: &[HugePage]) {
        let most = MOST_REGIONS + self.refusals.len();
        let Ok(left) = candidates(root, self.pid, LEAST_PRESENT, most) else { return };
        let left: BTreeSet<HugePage> = left.regions.into_iter().collect();
        if self.refusals.len() > 16 * MOST_REGIONS {
            self.refusals.clear();
        }
        for region in tried.iter().filter(|region| left.contains(region)) {
            *self.refusals.entry(*region).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_asked_for_again_counts_once() {
        let pass = |tried: &[u64], huge: &[u64]| Applied {
            outcome: PromoteOutcome {
                asked_bytes: tried.len() as u64 * HugePage::SIZE,
                obtained_bytes: huge.len() as u64 * HugePage::SIZE,
                calls: 1,
                ..PromoteOutcome::default()
            },
            tried: tried.iter().copied().map(HugePage::nth).collect(),
            left: Vec::new(),
            huge: huge.iter().copied().map(HugePage::nth).collect(),
        };
        let mut promoter = Promoter::new(Pid(1), Duration::ZERO, Fork::Auto);
        for _ in 0..12 {
            promoter.note(&pass(&[1, 2, 3], &[1]));
            promoter.note(&pass(&[2, 3], &[2, 5]));
        }
        let outcome = promoter.outcome;
        assert_eq!((outcome.asked_bytes >> 21, outcome.obtained_bytes >> 21, outcome.calls), (4, 3, 24));
    }
}
