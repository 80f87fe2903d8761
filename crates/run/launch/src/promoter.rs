//! External promotion, pass after pass, while a program runs.

use crate::request::Fork;
use megapage_act::promote::{
    Applied, Bounds, PromoteError, PromoteOutcome, Promotion, SharedMemory, candidates, identify,
    part_shared, shared_memory,
};
use megapage_act::{Engine, Latency};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::own_thread_time;
use megapage_units::{Bytes, HUGE_2M, Pid, VirtRange};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A region is promoted when at least half of its 512 base pages are present: below, a huge page would hold
/// more zeros than data.
pub const LEAST_PRESENT: u16 = 256;
/// Regions in one pass: 8 GiB. The next pass goes on where this one ended.
const MOST_REGIONS: usize = 4096;
/// Between two passes passes at least this time,
const LEAST_PAUSE: Duration = Duration::from_millis(500);
/// and at least this many times the processor time of looking for candidates: at most 1 % of it.
const COST_SPACING: u32 = 100;
/// A region that was refused so often is left alone,
const MOST_REFUSALS: u8 = 3;
/// but where the program forks for so long only: a write after a fork splits what has just been promoted, which looks the
/// same.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// A pass that ran out of its time is repeated at once, but only so often where nothing comes of it.
const MOST_FRUITLESS: u32 = 5;

/// Regions that are counted as asked for, at most: 2 TiB.
const MOST_COUNTED: usize = 1 << 20;

/// For a program that has forked to save, so many hundredths of the time that a region took are left to the program after
/// it: a page fault waits for one collapse, and the next one does not again.
const SNAPSHOT_REST: u32 = 300;

/// What a pass would do.
struct Found {
    promotion: Promotion,
    /// Whether another process shares anything private that was huge or is to be.
    is_shared_by_fork: bool,
    shared: SharedMemory,
    /// What the program has excluded from huge pages.
    excluded: Bytes,
}

/// The state of promoting one process.
#[derive(Debug)]
pub struct Promoter {
    pid: Pid,
    fork: Fork,
    /// A child was seen to share its memory: what is promoted from now on was huge before, and the program is at work.
    forked: bool,
    bounds: Bounds,
    /// Made with the first pass that has something to do.
    engine: Option<Engine>,
    next: Instant,
    refusals: BTreeMap<u64, u8>,
    /// When refusals were last forgotten.
    forgotten: Instant,
    /// Passes in a row that obtained nothing.
    fruitless: u32,
    /// The regions asked for, by their first addresses, and those of them that were obtained.
    asked: BTreeSet<u64>,
    obtained: BTreeSet<u64>,
    /// What all passes obtained.
    pub outcome: PromoteOutcome,
    /// The shared memory, as it was when it was looked at last.
    pub shared: SharedMemory,
}

impl Promoter {
    /// A promoter whose first pass is due at once, or after `delay`.
    pub fn new(pid: Pid, delay: Duration, fork: Fork) -> Promoter {
        // A pass is kept short: signals for the program wait while one is made.
        let mut bounds = Bounds { time: Duration::from_millis(200), ..Bounds::default() };
        if fork != Fork::Auto {
            // Sharers of a region are looked up before each call: a fork during one is noticed by the next.
            bounds.batch = 1;
        }
        Promoter {
            pid,
            fork,
            forked: false,
            bounds,
            engine: None,
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

    /// When the next pass is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// The regions that the next pass would promote: none that another process shares since a fork, and with
    /// [`Fork::Snapshot`] none at all while one does.
    pub fn plan(&self, root: &KernelRoot) -> Result<Promotion, PromoteError> {
        self.find(root).map(|found| found.promotion)
    }

    /// See [`Promoter::plan`]; and whether another process shares anything that was huge or is to be.
    fn find(&self, root: &KernelRoot) -> Result<Found, PromoteError> {
        // Before anything is looked up: what is found is of this process and program, or nothing is done.
        let process = identify(root, self.pid)?;
        // Those that are left alone do not take the places of others.
        let found = candidates(root, self.pid, LEAST_PRESENT, MOST_REGIONS + self.refusals.len())?;
        let refused = |region: &VirtRange| {
            self.refusals.get(&region.start()).is_some_and(|&times| times >= MOST_REFUSALS)
        };
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

    /// One pass. Whether anything is left to do at once: the pass ran out of its time.
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
        let engine = self.engine.get_or_insert_with(|| Engine::new(root, Latency::default()));
        let mut applied = match promotion.apply(engine) {
            // Another program runs in it now: the next pass looks at that.
            Err(PromoteError::Gone(_)) if identify(root, self.pid).is_ok() => {
                self.next = Instant::now() + LEAST_PAUSE.max(cost * COST_SPACING);
                return Ok(false);
            }
            applied => applied?,
        };
        let rest = engine.pause(promotion.process);
        let outcome = &mut applied.outcome;
        // What a pass tried in vain is refused for now, unless the machine is so slow that it had no time for more.
        self.fruitless = if outcome.obtained_bytes > 0 { 0 } else { self.fruitless + 1 };
        let goes_on = self.fruitless < MOST_FRUITLESS;
        let unfinished = outcome.not_tried > 0 && outcome.no_memory == 0 && !outcome.gone && goes_on;
        // A later pass asks for these again.
        outcome.not_tried = 0;
        // A fork in between is no refusal: those regions are asked for again when the child is gone.
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

    /// Adds what came of a pass. A region that was asked for again counts once.
    fn note(&mut self, applied: &Applied) {
        self.outcome.add(applied.outcome);
        for region in applied.tried.iter().chain(&applied.huge) {
            if self.asked.len() < MOST_COUNTED {
                self.asked.insert(region.start());
            }
        }
        let counted = applied.huge.iter().map(|region| region.start()).filter(|it| self.asked.contains(it));
        self.obtained.extend(counted);
        let bytes = |regions: &BTreeSet<u64>| regions.len() as u64 * HUGE_2M as u64;
        (self.outcome.asked_bytes, self.outcome.obtained_bytes) = (bytes(&self.asked), bytes(&self.obtained));
    }

    /// Counts against each of the regions tried that is still a candidate. How many are stored is bounded.
    fn note_refusals(&mut self, root: &KernelRoot, tried: &[VirtRange]) {
        let most = MOST_REGIONS + self.refusals.len();
        let Ok(left) = candidates(root, self.pid, LEAST_PRESENT, most) else { return };
        let left: BTreeSet<u64> = left.regions.iter().map(|region| region.start()).collect();
        if self.refusals.len() > 16 * MOST_REGIONS {
            self.refusals.clear();
        }
        for region in tried.iter().filter(|region| left.contains(&region.start())) {
            *self.refusals.entry(region.start()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_asked_for_again_counts_once() {
        let region = |number: u64| {
            VirtRange::new(number * HUGE_2M as u64, (number + 1) * HUGE_2M as u64).expect("a region")
        };
        let pass = |tried: &[u64], huge: &[u64]| Applied {
            outcome: PromoteOutcome {
                asked_bytes: tried.len() as u64 * HUGE_2M as u64,
                obtained_bytes: huge.len() as u64 * HUGE_2M as u64,
                calls: 1,
                ..PromoteOutcome::default()
            },
            tried: tried.iter().copied().map(region).collect(),
            left: Vec::new(),
            huge: huge.iter().copied().map(region).collect(),
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
