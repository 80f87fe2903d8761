//! A trial: makes a part of a running process huge, compares its progress, and puts the part back.
//!
//! A program's progress is unknown from outside. The trial sees how fast it reaches pages that the
//! trial does not promote. A program that spends less time on page walks reaches them faster, per
//! second of its processor time. The comparison is made many times, alternating which side comes
//! first, so that a drift of the program does not show up as an effect.

use crate::interval::Interval;
use megapage_act::{Bounds, RemoteError, Reversible, demote};
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_launch::promoter::LEAST_PRESENT;
use megapage_observe::cost::probe::uses_shared;
use megapage_observe::tracker::{Selected, Tracker};
use megapage_snapshot::{CostSource, Leaf, MappingKind, Process, Region, TranslationCost};
use megapage_units::{Bytes, HugePage, Pid, VirtRange};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Requested trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Share of the candidate regions that is made huge, above 0, at most 0.5.
    pub share: f64,
    /// Longest time, without clean-up.
    pub time: Duration,
    /// Largest slow-down of the process while the trial lasts, by accesses to pages that the trial
    /// has cleared, as a share of its processor time. The next comparison waits until this is kept.
    pub budget: f64,
}

/// Outcome of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialOutcome {
    /// Cost that huge pages take away, scaled to the whole process; `None` if too little was seen.
    pub cost: Option<TranslationCost>,
    /// Number of comparisons.
    pub pairs: usize,
    /// Speed-up of the process with the part huge: the lower end of its interval of 90 %, the mean,
    /// and the upper end.
    pub faster: Option<[f64; 3]>,
    /// Most regions that were huge at a time.
    pub promoted: u64,
    /// Share of the candidates that the part consists of.
    pub share: f64,
    /// True if none of them is huge any more: they are split again, or the process ended first.
    pub undone: bool,
    /// Regions of the trial that are still huge.
    pub left_huge: u64,
    /// Upper bound of the slow-down, as a share of the processor time that the process took
    /// meanwhile. It counts first accesses to the pages that the trial cleared, but not waits for a
    /// region that is just being made huge.
    pub slowdown: f64,
    /// Remarks, one sentence each.
    pub notes: Vec<String>,
}

/// Most regions whose pages measure progress.
const CONTROLS: usize = 96;
const LEAST_CONTROLS: usize = 4;
/// Touched share of the controls at which a window is long enough.
const ENOUGH: f64 = 0.12;
const SHORTEST_WINDOW: Duration = Duration::from_millis(2);
const LONGEST_WINDOW: Duration = Duration::from_millis(500);
/// Pause after a promotion or its undoing, in which the caches fill again.
const SETTLE: Duration = Duration::from_millis(20);
/// Bounds of one promotion: no further call after two seconds.
const BOUNDS: Bounds = Bounds { batch: 16, time: Duration::from_secs(2), pause_percent: 0 };
/// Fewest comparisons for a verdict.
const LEAST_PAIRS: usize = 4;

/// Tries `process`; `selected` reports the pages that it touches. `wait` sleeps for a time, and
/// returns true to go on.
///
/// # Errors
/// One line with the reason why no trial could be made; then the trial has left nothing huge.
pub fn try_out(
    root: &KernelRoot,
    selected: &mut Selected,
    process: &Process,
    trial: &Trial,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<TrialOutcome, String> {
    let pid = process.id.pid;
    if uses_shared(process) {
        return Err(SHARED.into());
    }
    demote::check(root, pid).map_err(|error| error.to_string())?;
    let candidates: Vec<&Region> =
        process.regions.iter().filter(|region| is_candidate(process, region)).collect();
    let count = ((candidates.len() as f64 * trial.share).ceil() as usize).max(1);
    if candidates.len() < count + LEAST_CONTROLS {
        return Err(format!("{} regions could be promoted: too few for a trial", candidates.len()));
    }
    let shuffled = shuffled(candidates.iter().map(|region| region.page).collect());
    let mut part: Vec<HugePage> = shuffled[..count].to_vec();
    let mut controls: Vec<VirtRange> =
        shuffled[count..].iter().take(CONTROLS).map(|page| page.range()).collect();
    part.sort();
    controls.sort();
    let mut progress = Progress::start(selected, pid, controls, wait)?;
    let mut part = Reversible::guarded(root, process.id, part, BOUNDS)?;
    let share = count as f64 / candidates.len() as f64;

    let (start, mut pairs) = (Instant::now(), Vec::new());
    let mut stopped = None;
    while start.elapsed() < trial.time && stopped.is_none() {
        stopped = pair(&mut part, &mut progress, pairs.len() % 2 == 1, wait, &mut pairs).err();
        while stopped.is_none() && progress.slowdown() > trial.budget && start.elapsed() < trial.time {
            stopped = (!wait(SETTLE)).then_some(Stopped::Asked);
        }
    }
    let slowdown = progress.slowdown();
    let left_huge = part.undo().left;
    let mut notes = Vec::new();
    if let Some(Stopped::Because(why)) = stopped {
        notes.push(format!("the trial ended early: {why}"));
    }
    if left_huge > 0 {
        notes.push(format!(
            "{left_huge} regions could not be split again (shared by fork, or busy) and stay huge"
        ));
    }
    let found = Interval::of(&pairs).filter(|_| pairs.len() >= LEAST_PAIRS);
    let of = |log: f64| ((1.0 - (-log).exp()) / share).clamp(0.0, 0.95);
    let cost = found.map(|it| TranslationCost {
        share: of(it.mean),
        low: of(it.low),
        high: of(it.high),
        source: CostSource::Tried,
    });
    notes.push(match found {
        Some(it) if it.low > 0.0 => format!(
            "with {:.0} % of its regions huge it went {:.1} % faster ({} comparisons)",
            100.0 * share,
            100.0 * it.mean.exp_m1(),
            pairs.len()
        ),
        Some(_) => format!(
            "no difference seen in {} comparisons with {:.0} % of its regions huge; a larger --trial-share shows \
             smaller gains",
            pairs.len(),
            100.0 * share
        ),
        None => format!("{} comparisons were made, too few to tell", pairs.len()),
    });
    let back = |log: f64| log.exp();
    Ok(TrialOutcome {
        cost,
        pairs: pairs.len(),
        faster: found.map(|it| [back(it.low), back(it.mean), back(it.high)]),
        promoted: part.promoted(),
        share,
        undone: left_huge == 0,
        left_huge,
        slowdown,
        notes,
    })
}

/// Reason against a trial of shared memory. The kernel skips huge pages that several processes map
/// (madvise(2), MADV_COLD), and a trial promotes nothing that it cannot release.
const SHARED: &str = "most of its memory is shared, and huge pages of shared memory cannot be split again from outside: \
                      megapage run --attach makes them huge for good";

const ENDED: &str = "the process has ended, or executed another program";

/// Reason why no further comparison is made.
enum Stopped {
    Asked,
    Because(String),
}

/// Makes one comparison, base against huge; `huge_first` gives the order. Adds the logarithm of the
/// speed-up to `pairs`.
fn pair(
    part: &mut Reversible,
    progress: &mut Progress,
    huge_first: bool,
    wait: &mut dyn FnMut(Duration) -> bool,
    pairs: &mut Vec<f64>,
) -> Result<(), Stopped> {
    let mut speeds = [0.0; 2];
    for huge in [huge_first, !huge_first] {
        make(part, huge).map_err(Stopped::Because)?;
        if !wait(SETTLE) {
            return Err(Stopped::Asked);
        }
        speeds[usize::from(huge)] = progress.measure(wait)?;
    }
    if speeds.iter().all(|speed| speed.is_finite()) {
        pairs.push(speeds[1] - speeds[0]);
    }
    Ok(())
}

fn is_candidate(process: &Process, region: &Region) -> bool {
    let Some(mapping) = process.mappings.get(region.mapping as usize) else { return false };
    let flags = mapping.flags;
    matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous)
        && region.leaf == Leaf::Base
        && region.whole
        && region.present >= LEAST_PRESENT
        && is_restored(region.folios)
        && !(flags.shared || flags.locked || flags.no_huge || flags.userfault || flags.device)
}

/// Returns true if a split restores the folios under a region: a larger folio would be split for
/// good.
fn is_restored(folios: Option<[u16; 10]>) -> bool {
    folios.is_none_or(|orders| orders[1..].iter().all(|pages| *pages == 0))
}

/// Sorts pages into an order unrelated to addresses.
fn shuffled(mut pages: Vec<HugePage>) -> Vec<HugePage> {
    pages.sort_by_key(|page| {
        let z = page.start().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    });
    pages
}

/// Makes the part huge, or splits it.
fn make(part: &mut Reversible, huge: bool) -> Result<(), String> {
    if !huge {
        return match part.undo().left {
            0 => Ok(()),
            left => Err(format!("{left} regions could not be split again")),
        };
    }
    let outcome = part.promote().map_err(|error| match error {
        RemoteError::Gone(_) => ENDED.to_string(),
        error => error.to_string(),
    })?;
    match outcome {
        Some(outcome) if 10 * outcome.obtained_bytes < 9 * outcome.asked_bytes => {
            let (asked, obtained) = (Bytes(outcome.asked_bytes), Bytes(outcome.obtained_bytes));
            Err(format!("of {asked} only {obtained} could be made huge"))
        }
        _ => Ok(()),
    }
}

/// Meter of how fast the process reaches pages of the controls.
struct Progress<'a> {
    tracker: &'a mut dyn Tracker,
    pid: Pid,
    controls: Vec<VirtRange>,
    window: Duration,
    /// Growth of the share of touched pages when the process is a little faster: 1 if it grows
    /// evenly.
    elasticity: f64,
    /// Pages of the controls at the last look.
    pages: f64,
    /// Cost of one first access, and of all of them so far, in seconds of processor time.
    first_access: f64,
    spent: f64,
    /// Processor time of the process when the first pages were cleared.
    since: Duration,
}

impl<'a> Progress<'a> {
    /// Finds a window in which enough is touched, and how touches grow with time.
    fn start(
        selected: &'a mut Selected,
        pid: Pid,
        controls: Vec<VirtRange>,
        wait: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Progress<'a>, String> {
        let mut progress = Progress {
            tracker: selected.tracker.as_mut(),
            pid,
            controls,
            window: SHORTEST_WINDOW,
            elasticity: 1.0,
            pages: 1.0,
            first_access: selected.first_access_ns * 1e-9,
            spent: 0.0,
            since: cpu_time_of(pid).map_err(|_| ENDED.to_string())?,
        };
        let mut former: Option<(f64, f64)> = None;
        loop {
            let (touched, cpu) = progress.touched(wait).map_err(|stopped| match stopped {
                Stopped::Asked => "stopped before it began".to_string(),
                Stopped::Because(why) => why,
            })?;
            let share = touched / progress.pages;
            if cpu > 0.0 && touched > 0.0 {
                if let Some((share_before, cpu_before)) = former
                    && share > share_before
                    && cpu > 1.2 * cpu_before
                {
                    progress.elasticity =
                        ((share / share_before).ln() / (cpu / cpu_before).ln()).clamp(0.1, 1.0);
                }
                former = Some((share, cpu));
            }
            if share >= ENOUGH && former.is_some() && progress.window > SHORTEST_WINDOW {
                return Ok(progress);
            }
            if progress.window >= LONGEST_WINDOW {
                return match touched >= 1000.0 {
                    true => Ok(progress),
                    false => Err("it touches too little of its memory to compare its progress".into()),
                };
            }
            progress.window = (progress.window * 2).min(LONGEST_WINDOW);
        }
    }

    /// Returns the pages touched in one window, and the processor time that the process took in it.
    fn touched(&mut self, wait: &mut dyn FnMut(Duration) -> bool) -> Result<(f64, f64), Stopped> {
        let failed = |error: megapage_observe::tracker::TrackError| Stopped::Because(error.to_string());
        let cpu = |pid| cpu_time_of(pid).map_err(|_| Stopped::Because(ENDED.into()));
        self.tracker.clear(self.pid, &self.controls).map_err(failed)?;
        let before = cpu(self.pid)?;
        if !wait(self.window) {
            return Err(Stopped::Asked);
        }
        let after = cpu(self.pid)?;
        let found = self.tracker.read(self.pid, &self.controls).map_err(failed)?;
        let base = || found.iter().filter(|region| region.leaf == Leaf::Base);
        let pages: f64 = base().map(|region| f64::from(region.present)).sum();
        let touched = base().filter_map(|region| region.accessed).map(f64::from).sum();
        self.pages = pages.max(1.0);
        // Pages not touched in the window are touched later, or cleared again.
        self.spent += pages * self.first_access;
        Ok((touched, after.saturating_sub(before).as_secs_f64()))
    }

    /// Returns an upper bound of the cost of the clearings, as a share of the process's processor
    /// time since the first.
    fn slowdown(&self) -> f64 {
        let now = cpu_time_of(self.pid).unwrap_or(self.since);
        match now.saturating_sub(self.since).as_secs_f64() {
            cpu if cpu > 0.0 => (self.spent / cpu).min(1.0),
            // A process that took no processor time has accessed nothing.
            _ => 0.0,
        }
    }

    /// Returns the logarithm of the speed; not finite if the process was idle.
    fn measure(&mut self, wait: &mut dyn FnMut(Duration) -> bool) -> Result<f64, Stopped> {
        let (touched, cpu) = self.touched(wait)?;
        Ok((touched / self.pages).ln() / self.elasticity - cpu.ln())
    }
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;
