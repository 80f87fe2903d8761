//! Demotion: the kernel's split of huge pages in another process, and proof of its effect.
//!
//! It uses the *cold split*: MADV_COLD on one base page inside a transparent huge page splits it
//! whole. Since Linux 6.12 a split also maps base pages that hold only zeros to the shared page of
//! zeros, and frees them: demotion recovers bloat. Nothing is written to swap.

use crate::engine::{Advice, Answer, Clock, Refusal, Target, Terms, advise};
use crate::execute::split_line;
use crate::remote::{Bounds, RemoteError, call_failed, identify};
use megapage_decide::Promotions;
use megapage_kernel::pagemap::Region;
use megapage_kernel::{KernelRoot, boot_time};
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HUGE_2M, HugePage, Pid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Regions of one process whose huge pages are to be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// The process. Another one with its number, or another program, is not touched.
    pub process: ProcessId,
    /// Regions of the process.
    pub regions: Vec<HugePage>,
    /// Bounds on its cost.
    pub bounds: Bounds,
}

/// Outcome of a demotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DemoteOutcome {
    /// Regions asked for.
    pub asked: u64,
    /// Regions of those that were huge before, by the page tables.
    pub huge_before: u64,
    /// Regions of those that are not huge any more.
    pub demoted: u64,
    /// Bytes of the demoted regions that are no longer present: base pages of zeros that the kernel
    /// freed. A program that fills or frees pages at the same moment shifts this value.
    pub freed_bytes: u64,
    /// Regions that the kernel refuses to split: locked memory or hugetlb pages (EINVAL).
    pub not_splittable: u64,
    /// Regions that are not mapped any more (ENOMEM).
    pub unmapped: u64,
    /// Regions that were not tried: time was up, or the process ended.
    pub not_tried: u64,
    /// System calls made.
    pub calls: u64,
    /// Time from the first call to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time of the calls, in nanoseconds: the process may have waited that long for its
    /// memory.
    pub busy_ns: u64,
    /// True if the process ended in between, which is no error.
    pub gone: bool,
}

impl DemoteOutcome {
    /// Returns the sum of this outcome and that of a later turn, for the regions that this one did
    /// not reach.
    fn and(self, later: DemoteOutcome) -> DemoteOutcome {
        DemoteOutcome {
            asked: self.asked,
            huge_before: self.huge_before,
            demoted: self.demoted + later.demoted,
            freed_bytes: self.freed_bytes + later.freed_bytes,
            not_splittable: self.not_splittable + later.not_splittable,
            unmapped: self.unmapped + later.unmapped,
            not_tried: later.not_tried,
            calls: self.calls + later.calls,
            elapsed_ns: self.elapsed_ns + later.elapsed_ns,
            busy_ns: self.busy_ns + later.busy_ns,
            gone: later.gone,
        }
    }

    /// Returns the number of huge regions that the kernel skipped though nothing speaks against a
    /// split. A forked process shares their pages, or something else held them at the moment.
    pub fn skipped(&self) -> u64 {
        let accounted = self.demoted + self.not_splittable + self.unmapped + self.not_tried;
        self.huge_before.saturating_sub(accounted)
    }
}

/// Checks that memory of `pid` can be demoted, and that the effect can be seen. If this fails,
/// nothing is promoted that is to be undone later.
///
/// # Errors
/// [`RemoteError::Unseen`] before Linux 6.7 without root; other errors as of [`Demotion::apply`].
pub fn check(root: &KernelRoot, pid: Pid) -> Result<(), RemoteError> {
    // A demotion of no region is enough to find out whether its effect could be seen.
    let process = identify(root, pid)?;
    let nothing = Demotion { process, regions: Vec::new(), bounds: Bounds::default() };
    nothing.apply(root, &mut Promotions::default()).map(|_| ())
}

impl Demotion {
    /// Asks the kernel to split the huge pages of the regions, batch by batch, and reads the effect
    /// from the page tables. Skips regions that are not huge: advice on one would only cool it.
    /// These regions were promoted for a limited time, so a slow call does not stop it: the next
    /// one follows, with fewer regions.
    ///
    /// # Errors
    /// [`RemoteError::Gone`] also if another process has its number now, or it runs another
    /// program.
    pub fn apply(
        &self,
        root: &KernelRoot,
        promotions: &mut Promotions,
    ) -> Result<DemoteOutcome, RemoteError> {
        self.turn(root, promotions, true).map(|(outcome, _)| outcome)
    }

    /// Does the same for huge pages whose split is not urgent. If the process is backed off after a
    /// slow call, sleeps until that ends and splits the others, within the time of the bounds.
    pub fn apply_patiently(
        &self,
        root: &KernelRoot,
        promotions: &mut Promotions,
    ) -> Result<DemoteOutcome, RemoteError> {
        let start = Instant::now();
        let mut sum: Option<DemoteOutcome> = None;
        let mut part = self.clone();
        loop {
            part.bounds.time = self.bounds.time.saturating_sub(start.elapsed());
            let (outcome, left) = match (part.turn(root, promotions, false), sum) {
                // The process ended between two turns.
                (Err(RemoteError::Gone(_)), Some(former)) => {
                    return Ok(DemoteOutcome { gone: true, ..former });
                }
                (turn, _) => turn?,
            };
            let all = sum.map_or(outcome, |former| former.and(outcome));
            sum = Some(all);
            let rest = promotions.pause(boot_time(), self.process, false);
            let is_over = left.is_empty() || all.gone || rest.is_zero();
            if is_over || start.elapsed() + rest >= self.bounds.time {
                return Ok(all);
            }
            sleep(rest);
            part.regions = left;
        }
    }

    /// Makes one turn. Returns its outcome, and the regions that it did not reach.
    fn turn(
        &self,
        root: &KernelRoot,
        promotions: &mut Promotions,
        urgent: bool,
    ) -> Result<(DemoteOutcome, Vec<HugePage>), RemoteError> {
        let pid = self.process.pid;
        let mut target = Target::open_permitted(root, self.process)?;
        target.require_leaves()?;
        let before: BTreeMap<HugePage, Region> =
            target.look(&self.regions)?.into_iter().filter(|(_, region)| region.huge == Some(true)).collect();
        let mut outcome = DemoteOutcome {
            asked: self.regions.len() as u64,
            huge_before: before.len() as u64,
            ..DemoteOutcome::default()
        };
        let regions: Vec<HugePage> = before.values().map(|region| region.page).collect();
        let start = Instant::now();
        let clock = Clock { now: boot_time(), started: start, most: self.bounds.time, urgent };
        let terms =
            Terms { batch: self.bounds.batch, pause_percent: self.bounds.pause_percent, ..Terms::of(clock) };
        let (mut calls, mut busy) = (0, Duration::ZERO);
        let tried = advise(promotions, Advice::ColdSplit, &mut target, &regions, &terms, |call| {
            calls += 1;
            busy += call.busy;
        });
        outcome.calls = calls;
        outcome.busy_ns = busy.as_nanos() as u64;
        outcome.elapsed_ns = start.elapsed().as_nanos() as u64;
        let mut left = Vec::new();
        for (tried, region) in tried.into_iter().zip(&regions) {
            match tried.answer {
                // Regions that are still huge afterwards were skipped.
                Answer::Accepted | Answer::Refused(Refusal::Busy | Refusal::GroupFull) => {}
                Answer::NotTried => {
                    left.push(*region);
                    outcome.not_tried += 1;
                }
                Answer::Refused(Refusal::Invalid) => outcome.not_splittable += 1,
                Answer::Refused(Refusal::NoMemory) => outcome.unmapped += 1,
                Answer::Refused(refusal) => {
                    if let Some(error) =
                        call_failed(root, pid, refusal.to_error(), Advice::ColdSplit.ability())
                    {
                        return Err(error);
                    }
                    outcome.gone = true;
                    outcome.not_tried += 1;
                }
            }
        }
        match target.look(&regions) {
            Ok(after) => {
                for (start, region) in after.iter().filter(|(_, region)| region.huge == Some(false)) {
                    let Some(was) = before.get(start) else { continue };
                    outcome.demoted += 1;
                    outcome.freed_bytes += was.present_bytes().saturating_sub(region.present_bytes()).0;
                }
            }
            Err(RemoteError::Gone(_)) => outcome.gone = true,
            Err(error) => return Err(error),
        }
        Ok((outcome, left))
    }

    /// Returns the shell lines that correspond to [`Demotion::apply`]. No shell command splits
    /// single regions: the lines name the calls.
    pub fn dry_run(&self) -> Vec<String> {
        self.regions
            .iter()
            .map(|region| split_line(self.process.pid, &region.range().to_string(), ""))
            .collect()
    }

    /// Returns the most that this can demote, in bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.regions.len() as u64 * HUGE_2M as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::is_root;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn a_captured_tree_is_not_acted_on() {
        let process = identify(&KernelRoot::live(), own()).unwrap();
        let demotion = Demotion { process, regions: vec![], bounds: Bounds::default() };
        let tree = tempfile::tempdir().unwrap();
        let refused = demotion.apply(&KernelRoot::captured(tree.path()), &mut Promotions::default());
        assert!(matches!(refused, Err(RemoteError::NotLive)));
    }

    #[test]
    fn own_memory_can_be_demoted_or_the_reason_is_reported() {
        match check(&KernelRoot::live(), own()) {
            Ok(()) => assert!(is_root(), "without CAP_SYS_NICE nothing is possible"),
            Err(RemoteError::NotAllowed { lacking, .. }) => assert!(lacking.contains("CAP_SYS_NICE")),
            Err(error) => assert!(matches!(error, RemoteError::Unseen), "{error}"),
        }
    }

    #[test]
    fn turns_add_up_to_the_regions_that_were_asked_for() {
        let first = DemoteOutcome {
            asked: 10,
            huge_before: 8,
            demoted: 3,
            freed_bytes: 4096,
            not_tried: 5,
            calls: 3,
            ..DemoteOutcome::default()
        };
        let second =
            DemoteOutcome { asked: 5, huge_before: 5, demoted: 4, calls: 2, ..DemoteOutcome::default() };
        let both = first.and(second);
        assert_eq!((both.asked, both.huge_before, both.demoted, both.not_tried), (10, 8, 7, 0));
        assert_eq!((both.calls, both.freed_bytes, both.skipped()), (5, 4096, 1));
    }

    #[test]
    fn what_was_skipped_is_what_remains() {
        let outcome = DemoteOutcome {
            asked: 10,
            huge_before: 8,
            demoted: 4,
            not_splittable: 1,
            unmapped: 1,
            not_tried: 1,
            ..DemoteOutcome::default()
        };
        assert_eq!(outcome.skipped(), 1);
    }
}
