//! Actions on the running kernel.

use super::abilities::{self, Abilities, Split};
use super::budget::{Bucket, Budget};
use super::regions::Regions;
use super::verdict::{self, Verdict};
use super::work::{Group, Sorted, WINDOW, Work, group, sort};
use super::{Actuator, Counters, Done, ExecuteError, ExecutorOptions, missing_rights};
use crate::engine::{Advice, Answer, Clock, Engine, Refusal, Target, Terms, Tried, is_mapped, is_same};
use crate::remote::{RemoteError, lacking_ability};
use megapage_decide::{Action, Obtained, Outcome, Reason};
use megapage_kernel::KernelRoot;
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HUGE_2M, HugePage};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes that each action counts for in a budget.
const ACTION: Bytes = Bytes(HUGE_2M as u64);
/// Regions between two looks at the page tables; neighbours among them share a call.
const CHUNK: usize = 256;
/// Longest time of [`Actuator::undo`]: 30 GiB at 1 GiB/s.
const UNDO: Duration = Duration::from_secs(30);
/// Most processes whose budget is stored, and the time for which it is stored after the last
/// action.
const MOST_PROCESSES: usize = 4096;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Most failed regions that are stored for a kind of work, to count retries. Beyond, the counts are
/// too low.
const MOST_FAILED: usize = 1 << 16;

/// Executor of actions on the running machine, within its budgets. It reports the effect of each by
/// the page tables.
///
/// Between two lots of actions it holds no process open, and nothing of the machine. If it is
/// killed at any moment, every process stays as the kernel's last completed call left it.
#[derive(Debug)]
pub struct Executor {
    root: KernelRoot,
    options: ExecutorOptions,
    abilities: Abilities,
    counters: Counters,
    moved: Bucket,
    scanned: Bucket,
    /// Makes all calls.
    engine: Engine,
    budgets: BTreeMap<ProcessId, Budget>,
    promoted: Regions,
    /// Regions that were not obtained when they were tried last, by the kind of work.
    failed: [Regions; Work::COUNT],
    /// Time at which processes that have ended were last forgotten.
    swept: Duration,
    /// Back-offs in the counters that were reported already.
    backed_off: u64,
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
    pub fn start(root: &KernelRoot, options: ExecutorOptions) -> Result<Executor, ExecuteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive.into());
        }
        if let Some(missing) = missing_rights(root)? {
            return Err(ExecuteError::NotAllowed(missing));
        }
        Ok(Executor::with_abilities(root, options, abilities::find_out(root)?))
    }

    fn with_abilities(root: &KernelRoot, options: ExecutorOptions, abilities: Abilities) -> Executor {
        Executor {
            root: root.clone(),
            options,
            abilities,
            counters: Counters::default(),
            moved: Bucket::new(options.moved, Duration::ZERO),
            scanned: Bucket::new(options.scanned, Duration::ZERO),
            engine: Engine::new(root, options.latency()),
            budgets: BTreeMap::new(),
            promoted: Regions::default(),
            failed: Default::default(),
            swept: Duration::ZERO,
            backed_off: 0,
        }
    }

    /// Returns the abilities found at the start.
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Returns its counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of regions that it has promoted and not demoted since, of processes not
    /// known to have ended.
    pub fn promoted(&self) -> usize {
        self.promoted.count()
    }

    /// Demotes regions that this executor has promoted and that are still huge, and only those.
    /// Budgets and back-offs do not apply, but no call is made after `most`. [`Executor::promoted`]
    /// counts the regions that remain.
    pub fn undo_within(&mut self, now: Duration, most: Duration) -> Vec<Done> {
        let clock = Clock { now, started: Instant::now(), most, urgent: true };
        let mut answers = Vec::new();
        if self.abilities.split.is_none() {
            return answers;
        }
        for process in self.promoted.processes() {
            for regions in self.promoted.regions(process).chunks(CHUNK) {
                // Regions that the kernel skips because something holds them are tried once more,
                // and then stay huge.
                let mut left = regions.to_vec();
                for last in [false, true] {
                    let settled = self.act(Work::Demote, process, &left, &clock);
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
                        self.remember(Work::Demote, process, region, &verdict);
                        let action = Action::Demote { process, region, reason: Reason::Undo };
                        self.counters.asked(&action);
                        answers.push(self.note(&action, verdict, took));
                    }
                    left = again;
                }
            }
        }
        answers
    }

    /// Does one kind of work on regions of one process, without regard to budgets: looks, calls,
    /// looks again.
    fn act(&mut self, work: Work, id: ProcessId, regions: &[HugePage], clock: &Clock) -> Settled {
        let all = |verdict: Verdict| vec![Some((verdict, Duration::ZERO)); regions.len()];
        let first = |obtained, why| {
            let mut settled = vec![None; regions.len()];
            settled[0] = Some((Verdict::refused(obtained, why), Duration::ZERO));
            settled
        };
        if regions.is_empty() {
            return Vec::new();
        }
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
        let before = match target.look(regions) {
            Ok(before) => before,
            Err(RemoteError::Gone(_)) => return all(verdict::gone()),
            Err(_) => return first(Obtained::Busy, "its page tables cannot be read"),
        };
        // Skips regions already in the wanted state, and those with nothing to collapse any more.
        let wants = |region: &HugePage| {
            before.get(region).is_some_and(|seen| match work {
                Work::Promote => seen.huge != Some(true) && (seen.present > 0 || seen.swapped > 0),
                Work::Demote | Work::Recover => seen.huge == Some(true),
            })
        };
        let mut wanted: Vec<HugePage> = regions.iter().copied().filter(wants).collect();
        // Neighbours share calls, whatever the policy's order among so few regions.
        wanted.sort_unstable();
        wanted.dedup();
        let tried = self.call(advice, &mut target, &wanted, clock);
        for refusal in tried.values().filter_map(|tried| tried.answer.refusal()) {
            self.counters.of(work).refuse(refusal);
        }
        let after = match target.look(regions) {
            Ok(after) => after,
            Err(RemoteError::Gone(_)) => return all(verdict::gone()),
            Err(_) => {
                return all(Verdict::refused(Obtained::Busy, "what came of it cannot be read"));
            }
        };
        if !is_same(&self.root, id) {
            return all(verdict::gone());
        }
        let settle = |region: &HugePage| {
            let (before, after) = (before.get(region)?, after.get(region)?);
            let tried = tried.get(region);
            if wants(region) && tried.is_none_or(|tried| tried.answer == Answer::NotTried) {
                return None;
            }
            let tried = tried.copied().unwrap_or(Tried::NOT);
            let verdict = match work {
                Work::Promote if !wants(region) && after.huge != Some(true) => verdict::empty(before),
                Work::Promote => {
                    let short = tried.answer == Answer::Refused(Refusal::NoMemory);
                    let mapped = short.then(|| is_mapped(&self.root, id, *region)).flatten();
                    verdict::promotion(tried.answer, before, after, mapped)
                }
                Work::Demote | Work::Recover => verdict::split(tried.answer, before, after),
            };
            Some((verdict, tried.took))
        };
        regions.iter().map(settle).collect()
    }

    /// Makes the calls. Returns the answers, by region.
    fn call(
        &mut self,
        advice: Advice,
        target: &mut Target,
        wanted: &[HugePage],
        clock: &Clock,
    ) -> BTreeMap<HugePage, Tried> {
        let Executor { engine, counters, .. } = self;
        let tried = engine.advise(advice, target, wanted, &Terms::of(*clock), |call| counters.call(*call));
        counters.paused(engine.pauses());
        wanted.iter().copied().zip(tried).collect()
    }

    /// Carries a group out, as far as budgets and time allow. Writes answers to their places.
    fn carry_out_group(
        &mut self,
        group: &Group,
        actions: &[Action],
        clock: &Clock,
        answers: &mut [Option<Done>],
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
            answers[place] = Some(self.answer(&actions[place], Obtained::Unsupported, why));
            return;
        }
        while !regions.is_empty() {
            if clock.is_up() {
                self.counters.of(group.work).left.time += regions.len() as u64;
                return;
            }
            let (options, now) = (&self.options, clock.now());
            if self.engine.backs_off_until(group.process, promotes) > now {
                self.counters.of(group.work).left.pause += regions.len() as u64;
                return;
            }
            let budget = self.budgets.entry(group.process).or_insert_with(|| Budget::new(options, clock.now));
            budget.used = now;
            let (own, all) = if promotes {
                (&mut budget.moved, &mut self.moved)
            } else {
                (&mut budget.scanned, &mut self.scanned)
            };
            own.fill(now, ACTION);
            all.fill(now, ACTION);
            let mut taken = 0;
            while taken < regions.len().min(CHUNK) && own.has(ACTION) && all.has(ACTION) {
                own.take(ACTION);
                all.take(ACTION);
                taken += 1;
            }
            if taken == 0 {
                self.counters.of(group.work).left.budget += regions.len() as u64;
                return;
            }
            let (chunk, rest) = regions.split_at(taken);
            let asked: Vec<HugePage> = chunk.iter().map(|(_, region)| *region).collect();
            let settled = self.act(group.work, group.process, &asked, clock);
            let mut not_tried = 0;
            for (&(place, region), settled) in chunk.iter().zip(settled) {
                match settled {
                    None => not_tried += 1,
                    Some((verdict, took)) => {
                        self.remember(group.work, group.process, region, &verdict);
                        answers[place] = Some(self.note(&actions[place], verdict, took));
                    }
                }
            }
            if not_tried > 0 {
                let unused = Bytes(ACTION.0 * not_tried);
                if let Some(budget) = self.budgets.get_mut(&group.process) {
                    let own = if promotes { &mut budget.moved } else { &mut budget.scanned };
                    own.give_back(unused);
                }
                let all = if promotes { &mut self.moved } else { &mut self.scanned };
                all.give_back(unused);
                let count = not_tried + rest.len() as u64;
                let left = &mut self.counters.of(group.work).left;
                *(if clock.is_up() { &mut left.time } else { &mut left.pause }) += count;
                return;
            }
            regions = rest;
        }
    }

    /// Stores what a verdict means for later.
    fn remember(&mut self, work: Work, process: ProcessId, region: HugePage, verdict: &Verdict) {
        let failed = &mut self.failed[work as usize];
        if failed.remove(process, region) {
            self.counters.of(work).retried += 1;
        }
        if !matches!(verdict.obtained, Obtained::Done | Obtained::Gone) {
            failed.add(process, region, MOST_FAILED);
        }
        match (work, verdict.obtained) {
            (_, Obtained::Gone) => {
                self.failed.iter_mut().for_each(|failed| failed.remove_process(process));
                self.promoted.remove_process(process);
                self.budgets.remove(&process);
                self.engine.forget(process);
            }
            (Work::Promote, Obtained::Done) => {
                let is_kept = verdict.promoted == Bytes::ZERO
                    || self.promoted.add(process, region, self.options.remembered);
                self.counters.forgotten += u64::from(!is_kept);
            }
            (Work::Demote | Work::Recover, Obtained::Done) => {
                self.promoted.remove(process, region);
            }
            _ => {}
        }
    }

    /// Counts a verdict, and returns it as an answer.
    fn note(&mut self, action: &Action, verdict: Verdict, took: Duration) -> Done {
        let done = Done {
            outcome: Outcome { action: action.clone(), obtained: verdict.obtained },
            promoted: verdict.promoted,
            freed: verdict.freed,
            took,
            why: verdict.why.map(str::to_string),
        };
        self.counters.done(&done);
        done
    }

    /// Counts and returns the answer to an action for which the kernel was not asked.
    fn answer(&mut self, action: &Action, obtained: Obtained, why: &'static str) -> Done {
        self.note(action, Verdict::refused(obtained, why), Duration::ZERO)
    }

    /// Forgets the pace of processes that were not acted on for long, and everything about those
    /// that have ended.
    fn forget(&mut self, now: Duration) {
        self.engine.forget_idle(now);
        if self.budgets.len() > MOST_PROCESSES {
            self.budgets.clear();
        }
        self.budgets.retain(|_, budget| now.saturating_sub(budget.used) < REMEMBERED_FOR);
        for failed in self.failed.iter_mut().filter(|failed| failed.count() >= MOST_FAILED) {
            *failed = Regions::default();
        }
        // Processes that are no longer acted on are looked up now and then, and when there is no
        // room left.
        if self.promoted.count() >= self.options.remembered || now >= self.swept + REMEMBERED_FOR {
            self.swept = now;
            for regions in self.failed.iter_mut().chain([&mut self.promoted]) {
                for process in regions.processes() {
                    if !is_same(&self.root, process) {
                        regions.remove_process(process);
                    }
                }
            }
        }
    }
}

impl Actuator for Executor {
    fn carry_out(&mut self, now: Duration, actions: &[Action]) -> Vec<Done> {
        let clock = Clock { now, started: Instant::now(), most: self.options.time, urgent: false };
        self.forget(now);
        let mut answers: Vec<Option<Done>> = vec![None; actions.len()];
        let mut work = Vec::new();
        for (place, action) in actions.iter().enumerate() {
            self.counters.asked(action);
            match sort(action) {
                Sorted::Work(kind, process, region) => work.push((place, kind, process, region)),
                Sorted::Answer(obtained, why) => answers[place] = Some(self.answer(action, obtained, why)),
                Sorted::Ignored => {}
            }
        }
        for window in work.chunks(WINDOW) {
            for group in group(window) {
                self.carry_out_group(&group, actions, &clock, &mut answers);
            }
        }
        // The policy's `Promotions` say when memory is asked for again.
        self.engine.end_memory_pause();
        answers.into_iter().flatten().collect()
    }

    fn configure(&mut self, options: ExecutorOptions) {
        if options != self.options {
            // Rates and batches are learnt again, within the new bounds.
            (self.moved, self.scanned) =
                (Bucket::new(options.moved, Duration::ZERO), Bucket::new(options.scanned, Duration::ZERO));
            self.budgets.clear();
            self.engine.configure(options.latency());
            self.options = options;
        }
    }

    fn backed_off(&mut self) -> u64 {
        let now = self.counters.pauses().iter().map(|(_, times)| times).sum();
        now - std::mem::replace(&mut self.backed_off, now)
    }

    fn backs_off_until(&self, action: &Action) -> Option<Duration> {
        let promotes = matches!(action, Action::Promote { .. });
        Some(self.engine.backs_off_until(action.process(), promotes))
    }

    fn counted(&self) -> Option<Counters> {
        Some(self.counters)
    }

    fn undo(&mut self, now: Duration) -> Vec<Done> {
        self.undo_within(now, UNDO)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
