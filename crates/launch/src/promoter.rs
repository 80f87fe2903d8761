//! Promotion from outside, pass after pass, while a program runs.

use crate::request::Fork;
use megapage_act::promote::{
    Bounds, PromoteError, PromoteOutcome, Promotion, Ready, candidates, part_shared,
};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::own_thread_time;
use megapage_units::{HUGE_2M, Pid, VirtRange};
use std::collections::BTreeMap;
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

/// For a program that has forked to save, so many hundredths of the time that a region took are left to the program after
/// it: a page fault waits for one collapse, and the next one does not again.
const SNAPSHOT_REST: u32 = 300;

/// The state of promoting one process.
#[derive(Debug)]
pub struct Promoter {
    pid: Pid,
    fork: Fork,
    /// A child was seen to share its memory: what is promoted from now on was huge before, and the program is at work.
    forked: bool,
    bounds: Bounds,
    ready: Ready,
    next: Instant,
    refusals: BTreeMap<u64, u8>,
    /// When refusals were last forgotten.
    forgotten: Instant,
    /// What all passes obtained.
    pub outcome: PromoteOutcome,
}

impl Promoter {
    /// A promoter whose first pass is due at once, or after `delay`.
    pub fn new(pid: Pid, delay: Duration, fork: Fork) -> Promoter {
        // A pass is kept short: signals for the program wait while one is made.
        let mut bounds = Bounds { time: Duration::from_millis(200), ..Bounds::default() };
        if fork != Fork::Auto {
            // Who shares a region is asked before each call: a fork during one is noticed by the next.
            bounds.batch = 1;
        }
        Promoter {
            pid,
            fork,
            forked: false,
            bounds,
            ready: Ready::default(),
            next: Instant::now() + delay,
            refusals: BTreeMap::new(),
            forgotten: Instant::now(),
            outcome: PromoteOutcome::default(),
        }
    }

    /// When the next pass is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// The regions that the next pass would promote: none that another process shares since a fork, and with
    /// [`Fork::Snapshot`] none at all while one does.
    pub fn plan(&self, root: &KernelRoot) -> Result<Promotion, PromoteError> {
        self.find(root).map(|(promotion, _)| promotion)
    }

    /// See [`Promoter::plan`]; and whether another process shares anything that was huge or is to be.
    fn find(&self, root: &KernelRoot) -> Result<(Promotion, bool), PromoteError> {
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
        Ok((Promotion { pid: self.pid, regions, bounds: self.bounds }, !shared.is_empty()))
    }

    /// One pass. Whether anything is left to do at once: the pass ran out of its time.
    pub fn pass(&mut self, root: &KernelRoot) -> Result<bool, PromoteError> {
        if self.fork != Fork::Auto && self.forgotten.elapsed() >= REFUSED_FOR {
            self.refusals.clear();
            self.forgotten = Instant::now();
        }
        let start = own_thread_time();
        let (mut promotion, shared) = self.find(root)?;
        let cost = own_thread_time().saturating_sub(start);
        self.forked |= shared;
        if self.forked && self.fork == Fork::Snapshot {
            promotion.bounds.rest_percent = SNAPSHOT_REST;
        }
        if promotion.regions.is_empty() {
            self.next = Instant::now() + LEAST_PAUSE.max(cost * COST_SPACING);
            return Ok(false);
        }
        let mut outcome = promotion.apply_with(root, &mut self.ready)?;
        let not_tried = outcome.not_tried as usize;
        // A pass that obtained nothing is not repeated at once: what it tried is refused for now.
        let unfinished =
            not_tried > 0 && outcome.no_memory == 0 && !outcome.gone && outcome.obtained_bytes > 0;
        // A later pass asks for these again.
        outcome.asked_bytes -= outcome.not_tried * HUGE_2M as u64;
        outcome.not_tried = 0;
        // A fork in between is no refusal: those regions are asked for again when the child is gone.
        outcome.asked_bytes -= outcome.shared * HUGE_2M as u64;
        if outcome.obtained_bytes < outcome.asked_bytes && outcome.shared == 0 && !outcome.gone {
            let tried = promotion.regions.len().saturating_sub(not_tried);
            self.note_refusals(root, &promotion.regions[..tried]);
        }
        self.outcome.add(outcome);
        let pause = if unfinished { Duration::ZERO } else { LEAST_PAUSE.max(cost * COST_SPACING) };
        self.next = Instant::now() + pause;
        Ok(unfinished)
    }

    /// Counts against each of the regions tried that is still a candidate. How many are remembered is bounded.
    fn note_refusals(&mut self, root: &KernelRoot, tried: &[VirtRange]) {
        let most = MOST_REGIONS + self.refusals.len();
        let Ok(left) = candidates(root, self.pid, LEAST_PRESENT, most) else { return };
        let left: std::collections::BTreeSet<u64> =
            left.regions.iter().map(|region| region.start()).collect();
        if self.refusals.len() > 16 * MOST_REGIONS {
            self.refusals.clear();
        }
        for region in tried.iter().filter(|region| left.contains(&region.start())) {
            *self.refusals.entry(region.start()).or_default() += 1;
        }
    }
}
