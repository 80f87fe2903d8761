//! Actions on the running kernel.

use super::abilities::{self, Abilities, Split};
use super::verdict::{self, Verdict};
use super::work::{Group, Sorted, WINDOW, Work, group, sort};
use super::{Actuator, Counters, Done, ExecuteError, missing_rights};
use crate::engine::{Advice, Answer, Clock, Refusal, Target, Terms, Tried, advise, is_mapped, is_same};
use crate::remote::{RemoteError, lacking_ability};
use megapage_decide::{Action, Obtained, Outcome, Promotions, Reason};
use megapage_kernel::KernelRoot;
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HugePage};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most regions that are acted on together: one look at their page tables shows all results.
const CHUNK: usize = 256;
/// Longest time of [`Actuator::undo`]: 30 GiB at 1 GiB/s.
const UNDO: Duration = Duration::from_secs(30);

/// Executor of actions on the running machine, within the budgets of [`Promotions`]. It reads the
/// effect of each action from the page tables.
///
/// Between two lots of actions it holds no process open, and nothing of the machine. If it is
/// killed at any moment, every process stays as the kernel's last completed call left it.
#[derive(Debug)]
pub struct Executor {
    root: KernelRoot,
    abilities: Abilities,
    counters: Counters,
}

/// Result of each region; `None` if it was not tried.
type Settled = Vec<Option<(Verdict, Duration)>>;

impl Executor {
    /// Returns an executor for the running machine. It tries on a child process what the kernel can
    /// do, which takes some milliseconds: call it before other threads are busy with memory.
    ///
    /// # Errors
    /// An error if rights are missing (it names all), or if the effect of an action could not be
    /// seen.
    pub fn start(root: &KernelRoot) -> Result<Executor, ExecuteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive.into());
        }
        if let Some(missing) = missing_rights(root)? {
            return Err(ExecuteError::NotAllowed(missing));
        }
        Ok(Executor::with_abilities(root, abilities::find_out(root)?))
    }

    fn with_abilities(root: &KernelRoot, abilities: Abilities) -> Executor {
        Executor { root: root.clone(), abilities, counters: Counters::default() }
    }

    /// Returns the abilities found at the start.
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Returns its counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Demotes only regions that were made huge here and that are still huge. Budgets and back-offs
    /// do not apply, but no call is made after `most`. [`Promotions::made`] holds the regions that
    /// remain.
    pub fn undo_within(&mut self, now: Duration, most: Duration, promotions: &mut Promotions) -> Vec<Done> {
        let clock = Clock { now, started: Instant::now(), most, urgent: true };
        let mut answers = Vec::new();
        if self.abilities.split.is_none() {
            return answers;
        }
        let made: Vec<(ProcessId, HugePage)> = promotions.made().iter().copied().collect();
        for theirs in made.chunk_by(|(one, _), (other, _)| one == other) {
            for regions in theirs.chunks(CHUNK) {
                // Regions that the kernel skips because something holds them are tried once more,
                // and then stay huge.
                let process = regions[0].0;
                let mut left: Vec<HugePage> = regions.iter().map(|(_, region)| *region).collect();
                for last in [false, true] {
                    let settled = self.act(Work::Demote, process, &left, &clock, promotions);
                    let mut again = Vec::new();
                    for (region, settled) in left.into_iter().zip(settled) {
                        let Some((verdict, took)) = settled else {
                            again.push(region);
                            continue;
                        };
                        if verdict.obtained == Obtained::Busy && !last {
                            self.counters.demote.retried += 1;
                            again.push(region);
                            continue;
                        }
                        let action = Action::Demote { process, region, reason: Reason::Undo };
                        answers.push(self.settle(Work::Demote, &action, verdict, took, promotions));
                    }
                    left = again;
                }
            }
        }
        answers
    }

    /// Does one kind of work on regions of one process, without regard to budgets. Looks before a
    /// split, calls, and looks afterwards.
    fn act(
        &mut self,
        work: Work,
        id: ProcessId,
        regions: &[HugePage],
        clock: &Clock,
        promotions: &mut Promotions,
    ) -> Settled {
        let all = |verdict: Verdict| vec![Some((verdict, Duration::ZERO)); regions.len()];
        let first = |obtained, why| {
            let mut settled = vec![None; regions.len()];
            settled[0] = Some((Verdict::refused(obtained, why), Duration::ZERO));
            settled
        };
        if regions.is_empty() {
            return Vec::new();
        }
        let promotes = work == Work::Promote;
        let advice = match (work, self.abilities.split) {
            (Work::Promote, _) if lacking_ability(&self.root).is_some() => {
                return all(Verdict::refused(
                    Obtained::Unsupported,
                    "this kernel lacks MADV_COLLAPSE (Linux 6.1)",
                ));
            }
            (Work::Promote, _) => Advice::Collapse,
            (_, Some(Split::Cold)) => Advice::ColdSplit,
            (_, Some(Split::PageOut)) => match abilities::has_swap(&self.root) {
                Ok(false) => Advice::PageOut,
                _ => return first(Obtained::Busy, "MADV_PAGEOUT would swap: there is swap now"),
            },
            (_, None) => return first(Obtained::Unsupported, "this kernel splits no huge page from outside"),
        };
        let mut target = match Target::open(&self.root, id) {
            Ok(target) => target,
            Err(RemoteError::Gone(_)) => return all(verdict::gone()),
            Err(RemoteError::NotAllowed { .. }) => {
                return first(
                    Obtained::Denied,
                    "its memory map cannot be read: a security module forbids it",
                );
            }
            Err(_) => return first(Obtained::Busy, "its memory map cannot be opened"),
        };
        target.strict = true;
        // Only huge pages are split. Memory that a split frees is the difference between this look
        // and the one after it. A region to collapse is read right before its call instead: see
        // `Sharing::unfit`.
        let looked = if promotes { Ok(BTreeMap::new()) } else { target.look(regions) };
        let before = match looked {
            Ok(before) => before,
            Err(RemoteError::Gone(_)) => return all(verdict::gone()),
            Err(_) => return first(Obtained::Busy, "its page tables cannot be read"),
        };
        let wants =
            |region: &HugePage| promotes || before.get(region).is_some_and(|seen| seen.huge == Some(true));
        let mut wanted: Vec<HugePage> = regions.iter().copied().filter(wants).collect();
        // Neighbours share calls, whatever the policy's order among so few regions.
        wanted.sort_unstable();
        wanted.dedup();
        let counters = &mut self.counters;
        let terms = Terms::of(*clock);
        let tried = advise(promotions, advice, &mut target, &wanted, &terms, |call| counters.call(call));
        counters.pauses = promotions.pauses();
        let tried: BTreeMap<HugePage, Tried> = wanted.iter().copied().zip(tried).collect();
        for refusal in tried.values().filter_map(|tried| tried.answer.refusal()) {
            self.counters.of(work).refuse(refusal);
        }
        // The kernel's answers prove nothing: only the page tables show what came of the calls.
        let after = match target.look(regions) {
            Err(RemoteError::Gone(_)) => return all(verdict::gone()),
            looked => looked.ok(),
        };
        if !is_same(&self.root, id) {
            return all(verdict::gone());
        }
        let settle = |region: &HugePage| {
            let tried = tried.get(region);
            if wants(region) && tried.is_none_or(|tried| tried.answer == Answer::NotTried) {
                return None;
            }
            let tried = tried.copied().unwrap_or(Tried::NOT);
            let Some(after) = &after else {
                let unread = Verdict::refused(Obtained::Busy, "what came of it cannot be read");
                let of_process = tried.answer.refusal().filter(|refusal| refusal.is_final());
                return Some((of_process.map_or(unread, verdict::refused), tried.took));
            };
            let after = after.get(region)?;
            let verdict = match work {
                Work::Promote => {
                    let short = tried.answer == Answer::Refused(Refusal::NoMemory);
                    let mapped = short.then(|| is_mapped(&self.root, id, *region)).flatten();
                    verdict::promotion(tried.answer.refusal(), after, mapped)
                }
                Work::Demote | Work::Recover => verdict::split(tried.answer, before.get(region)?, after),
            };
            Some((verdict, tried.took))
        };
        regions.iter().map(settle).collect()
    }

    /// Carries a group out, as far as budgets and time allow. Writes answers to their places.
    fn carry_out_group(
        &mut self,
        group: &Group,
        actions: &[Action],
        clock: &Clock,
        answers: &mut [Option<Done>],
        promotions: &mut Promotions,
    ) {
        let mut regions = &group.regions[..];
        let promotes = group.work == Work::Promote;
        let unable = match group.work {
            Work::Promote if !self.abilities.collapse => Some("this kernel collapses nothing from outside"),
            Work::Recover if !self.abilities.frees_zeros => {
                Some("this kernel gives no pages of zeros back at a split (Linux 6.12)")
            }
            _ => None,
        };
        if let Some(why) = unable {
            let &(place, _) = &regions[0];
            self.counters.of(group.work).left.pause += regions.len() as u64 - 1;
            answers[place] = Some(unasked(&actions[place], Obtained::Unsupported, why));
            return;
        }
        while !regions.is_empty() {
            let left = &mut self.counters.of(group.work).left;
            if clock.is_up() {
                left.time += regions.len() as u64;
                return;
            }
            let now = clock.now();
            if !promotions.pause(now, group.process, promotes).is_zero() {
                left.pause += regions.len() as u64;
                return;
            }
            let taken = promotions.take(now, group.process, promotes, regions.len().min(CHUNK));
            if taken == 0 {
                left.budget += regions.len() as u64;
                return;
            }
            let (chunk, rest) = regions.split_at(taken);
            let asked: Vec<HugePage> = chunk.iter().map(|(_, region)| *region).collect();
            let settled = self.act(group.work, group.process, &asked, clock, promotions);
            let mut not_tried = 0;
            for (&(place, _), settled) in chunk.iter().zip(settled) {
                match settled {
                    None => not_tried += 1,
                    Some((verdict, took)) => {
                        let done = self.settle(group.work, &actions[place], verdict, took, promotions);
                        answers[place] = Some(done);
                    }
                }
            }
            if not_tried > 0 {
                promotions.give_back(now, group.process, promotes, not_tried);
                let left = &mut self.counters.of(group.work).left;
                let cause = if clock.is_up() { &mut left.time } else { &mut left.pause };
                *cause += (not_tried + rest.len()) as u64;
                return;
            }
            regions = rest;
        }
    }

    /// Stores the result of a verdict in `promotions`. Returns it as an answer.
    fn settle(
        &mut self,
        work: Work,
        action: &Action,
        verdict: Verdict,
        took: Duration,
        promotions: &mut Promotions,
    ) -> Done {
        self.counters.of(work).retried += u64::from(promotions.has_failed(action));
        if let Some((process, region)) = action.place() {
            match (work, verdict.obtained) {
                (_, Obtained::Gone) => promotions.forget(process),
                (Work::Promote, Obtained::Done) if verdict.promoted > Bytes::ZERO => {
                    self.counters.forgotten += u64::from(!promotions.made_huge(process, region));
                }
                (Work::Demote | Work::Recover, Obtained::Done) => promotions.split(process, region),
                _ => {}
            }
        }
        answer(action, verdict, took)
    }
}

/// Returns a verdict as the answer to an action.
fn answer(action: &Action, verdict: Verdict, took: Duration) -> Done {
    Done {
        outcome: Outcome { action: action.clone(), obtained: verdict.obtained },
        promoted: verdict.promoted,
        freed: verdict.freed,
        took,
        why: verdict.why.map(str::to_string),
    }
}

/// Returns the answer to an action for which the kernel was not asked.
fn unasked(action: &Action, obtained: Obtained, why: &'static str) -> Done {
    answer(action, Verdict::refused(obtained, why), Duration::ZERO)
}

impl Actuator for Executor {
    fn carry_out(&mut self, now: Duration, actions: &[Action], promotions: &mut Promotions) -> Vec<Done> {
        let clock = Clock { now, started: Instant::now(), most: promotions.budgets().time, urgent: false };
        promotions.forget_old(now, |process| is_same(&self.root, process));
        let mut answers: Vec<Option<Done>> = vec![None; actions.len()];
        let mut work = Vec::new();
        for (place, action) in actions.iter().enumerate() {
            match sort(action) {
                Sorted::Work(kind, process, region) => work.push((place, kind, process, region)),
                Sorted::Answer(obtained, why) => answers[place] = Some(unasked(action, obtained, why)),
                Sorted::Ignored => {}
            }
        }
        for group in work.chunks(WINDOW).flat_map(group) {
            self.carry_out_group(&group, actions, &clock, &mut answers, promotions);
        }
        answers.into_iter().flatten().collect()
    }

    fn counted(&self) -> Option<Counters> {
        Some(self.counters.clone())
    }

    fn undo(&mut self, now: Duration, promotions: &mut Promotions) -> Vec<Done> {
        self.undo_within(now, UNDO, promotions)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
