//! Calls that change a process: the budgets by time, the pauses, and the regions made huge.
//!
//! The executor and the engine of `act` borrow [`Promotions`] for their calls. They report the cost
//! and the result of a call, and ask for the next allowed one.

use super::budget::{Bucket, Budgets};
use super::latency::{Batch, Call, Pause, Speed};
use super::{Kind, Promotions};
use crate::Action;
use megapage_snapshot::ProcessId;
use megapage_units::HugePage;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most processes whose pace is stored, and the time for which it is stored after the last call.
const MOST_PROCESSES: usize = 4096;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Pace at which one process is acted on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    moved: Bucket,
    scanned: Bucket,
    collapse: Batch,
    split: Batch,
    /// Back-off after slow calls.
    slow: Pause,
    /// Back-off of promotions because its control group is full.
    group_full: Pause,
    /// Time of the last use.
    used: Duration,
}

impl Pace {
    fn new(now: Duration) -> Pace {
        Pace {
            moved: Bucket::new(now),
            scanned: Bucket::new(now),
            collapse: Batch::default(),
            split: Batch::default(),
            slow: Pause::default(),
            group_full: Pause::default(),
            used: now,
        }
    }

    fn batch(&mut self, promotes: bool) -> &mut Batch {
        if promotes { &mut self.collapse } else { &mut self.split }
    }
}

/// Numbers of pauses and back-offs, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Back-offs because a call's work took too long.
    pub slow: u64,
    /// Back-offs because a call waited for very long, or its regions together took too long.
    pub late: u64,
    /// Pauses of all promotions, for lack of memory.
    pub memory: u64,
    /// Pauses of a process's promotions, because its control group had no room.
    pub group: u64,
}

impl Pauses {
    /// Returns the total of all causes.
    pub fn count(&self) -> u64 {
        self.slow + self.late + self.memory + self.group
    }
}

impl Promotions {
    /// Returns the bounds on the cost of changes.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Replaces the bounds. If they differ, forgets the pace of all processes and learns it again
    /// within the new bounds.
    pub fn configure(&mut self, budgets: Budgets) {
        if budgets != self.budgets {
            (self.moved, self.scanned) = (Bucket::new(Duration::ZERO), Bucket::new(Duration::ZERO));
            self.paces.clear();
            self.budgets = budgets;
        }
    }

    /// Returns the numbers of pauses so far.
    pub fn pauses(&self) -> Pauses {
        self.pauses
    }

    /// Returns the end of the process's back-off after slow calls. Promotions also back off after
    /// the control group was full. The end is in the past if there is no back-off.
    pub fn backs_off_until(&self, id: ProcessId, promotes: bool) -> Duration {
        self.paces.get(&id).map_or(Duration::ZERO, |pace| match promotes {
            true => pace.slow.until.max(pace.group_full.until),
            false => pace.slow.until,
        })
    }

    /// Returns the time from `now` until calls on the process are allowed; zero if they are. A lack
    /// of memory pauses promotions as well.
    pub fn pause(&self, now: Duration, id: ProcessId, promotes: bool) -> Duration {
        let memory = if promotes { self.no_memory.until } else { Duration::ZERO };
        self.backs_off_until(id, promotes).max(memory).saturating_sub(now)
    }

    /// Takes the bytes of at most `most` actions on a process from the budgets. Returns the number
    /// of actions that the budgets allowed.
    pub fn take(&mut self, now: Duration, id: ProcessId, promotes: bool, most: usize) -> usize {
        let Budgets { moved, moved_per_process, scanned, scanned_per_process, .. } = self.budgets;
        let rates = if promotes { [moved_per_process, moved] } else { [scanned_per_process, scanned] };
        let mut buckets = self.buckets(now, id, promotes);
        let filled = buckets.iter_mut().zip(rates).map(|(bucket, rate)| bucket.fill(now, rate));
        let taken = filled.fold(most, usize::min);
        buckets.into_iter().for_each(|bucket| bucket.take(taken));
        taken
    }

    /// Gives back actions that were taken from the budgets and not tried.
    pub fn give_back(&mut self, now: Duration, id: ProcessId, promotes: bool, actions: usize) {
        self.buckets(now, id, promotes).into_iter().for_each(|bucket| bucket.give_back(actions));
    }

    /// Returns the number of regions that the next call on a process may name.
    pub fn batch(&mut self, now: Duration, id: ProcessId, promotes: bool) -> usize {
        pace(&mut self.paces, now, id).batch(promotes).size()
    }

    /// Learns from the times of a call on a process. Returns false if the process is backed off.
    pub fn learn(&mut self, now: Duration, id: ProcessId, promotes: bool, call: Call) -> bool {
        let (latency, pace) = (&self.budgets.latency, pace(&mut self.paces, now, id));
        pace.batch(promotes).learn(call, promotes, latency);
        let speed = pace.slow.learn(now, call, latency);
        self.pauses.slow += u64::from(speed == Speed::Slow);
        self.pauses.late += u64::from(speed == Speed::Late);
        speed == Speed::Fine
    }

    /// Notes that the kernel accepted the promotion of this many regions of a process.
    pub fn accepted(&mut self, now: Duration, id: ProcessId, regions: usize) {
        pace(&mut self.paces, now, id).group_full.ease();
        (0..regions).for_each(|_| self.no_memory.ease());
    }

    /// Pauses the promotions of a process because its control group is full.
    pub fn group_is_full(&mut self, now: Duration, id: ProcessId) {
        let latency = self.budgets.latency;
        pace(&mut self.paces, now, id).group_full.start(now, latency.pause, latency.pause_most);
        self.pauses.group += 1;
    }

    /// Pauses all promotions for lack of memory, unless they are paused already.
    pub fn memory_is_short(&mut self, now: Duration) {
        self.step.short = true;
        self.pauses.memory += u64::from(self.back_off_for_memory(now));
    }

    /// Stores a region that was made huge. Returns false if there was no room.
    pub fn made_huge(&mut self, id: ProcessId, region: HugePage) -> bool {
        let has_room = self.made.len() < self.budgets.remembered;
        self.made.contains(&(id, region)) || has_room && self.made.insert((id, region))
    }

    /// Forgets a region that is not huge any more.
    pub fn split(&mut self, id: ProcessId, region: HugePage) {
        self.made.remove(&(id, region));
    }

    /// Returns the regions that were made huge and not split since, by process and address.
    /// Leaves out processes that are known to have ended.
    pub fn made(&self) -> &BTreeSet<(ProcessId, HugePage)> {
        &self.made
    }

    /// Returns true if the last try of an action of this kind on the region failed.
    pub fn has_failed(&self, action: &Action) -> bool {
        let memory = action.place().and_then(|(id, region)| self.region(id, region));
        memory.is_some_and(|memory| memory.failed == Some(Kind::of(action)))
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, id: ProcessId) {
        self.paces.remove(&id);
        let all = (id, HugePage::containing(0))..=(id, HugePage::containing(u64::MAX));
        let theirs: Vec<(ProcessId, HugePage)> = self.made.range(all).copied().collect();
        theirs.into_iter().for_each(|(id, region)| self.split(id, region));
    }

    /// Forgets the pace of processes that were not acted on for long, or of all processes if there
    /// are too many. Forgets processes for which `is_alive` returns false, at intervals and when no
    /// room is left.
    pub fn forget_old(&mut self, now: Duration, is_alive: impl Fn(ProcessId) -> bool) {
        if self.paces.len() > MOST_PROCESSES {
            self.paces.clear();
        }
        self.paces.retain(|_, pace| now.saturating_sub(pace.used) < REMEMBERED_FOR);
        if self.made.len() >= self.budgets.remembered || now >= self.swept + REMEMBERED_FOR {
            self.swept = now;
            let processes: BTreeSet<ProcessId> = self.made.iter().map(|(id, _)| *id).collect();
            processes.into_iter().filter(|id| !is_alive(*id)).for_each(|id| self.forget(id));
        }
    }

    /// Returns the budget of the process and that of all processes.
    fn buckets(&mut self, now: Duration, id: ProcessId, promotes: bool) -> [&mut Bucket; 2] {
        let pace = pace(&mut self.paces, now, id);
        match promotes {
            true => [&mut pace.moved, &mut self.moved],
            false => [&mut pace.scanned, &mut self.scanned],
        }
    }
}

/// Returns the pace of a process, and notes its use at `now`.
fn pace(paces: &mut BTreeMap<ProcessId, Pace>, now: Duration, id: ProcessId) -> &mut Pace {
    let pace = paces.entry(id).or_insert_with(|| Pace::new(now));
    pace.used = now;
    pace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Obtained, Outcome, Reason};
    use megapage_units::{Bytes, PageSize, Pid};

    const SECOND: Duration = Duration::from_secs(1);

    fn process(pid: i32) -> ProcessId {
        ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 }
    }

    #[test]
    fn the_count_is_that_of_the_regions_and_bounded() {
        let mut promotions = Promotions::default();
        promotions.configure(Budgets { remembered: 4, ..Budgets::default() });
        for at in 0..3 {
            assert!(promotions.made_huge(process(1), HugePage::nth(at)));
            assert!(promotions.made_huge(process(1), HugePage::nth(at)), "twice is once");
        }
        assert!(promotions.made_huge(process(2), HugePage::nth(7)));
        assert!(!promotions.made_huge(process(2), HugePage::nth(8)));
        assert!(promotions.made_huge(process(2), HugePage::nth(7)), "it is there already");
        assert_eq!(promotions.made().len(), 4);
        promotions.split(process(2), HugePage::nth(8));
        promotions.split(process(2), HugePage::nth(7));
        assert!(promotions.made().iter().all(|(id, _)| *id == process(1)));
        promotions.forget(process(1));
        promotions.forget(process(1));
        assert!(promotions.made().is_empty());
    }

    #[test]
    fn both_the_budget_of_a_process_and_that_of_all_are_kept() {
        let mut promotions = Promotions::default();
        let (moved, moved_per_process) = (Bytes::mib(12), Bytes::mib(8));
        promotions.configure(Budgets { moved, moved_per_process, ..Budgets::default() });
        let mut take = |pid| promotions.take(SECOND, process(pid), true, 3);
        assert_eq!([take(1), take(1), take(2), take(2)], [3, 1, 2, 0]);
        assert_eq!(promotions.take(SECOND, process(1), false, 3), 3, "splits have their own");
        promotions.give_back(SECOND, process(2), true, 1);
        assert_eq!(promotions.take(SECOND, process(1), true, 3), 0, "its own is used up");
        assert_eq!(promotions.take(SECOND, process(3), true, 3), 1);
    }

    #[test]
    fn one_lack_of_memory_backs_off_once() {
        let mut promotions = Promotions::new(Limits::default());
        let size = PageSize::HUGE_2M;
        let action =
            Action::Promote { process: process(1), region: HugePage::nth(1), size, reason: Reason::Gain };
        let outcome = |obtained| Outcome { action: action.clone(), obtained };
        // The call reports the lack first, and the outcome reports it again.
        promotions.memory_is_short(SECOND);
        promotions.note(SECOND * 2, &outcome(Obtained::NoMemory));
        assert_eq!(promotions.pause(SECOND, process(2), true), Limits::default().back_off);
        assert_eq!(promotions.pause(SECOND, process(2), false), Duration::ZERO);
        assert_eq!(promotions.pauses().memory, 1);
        // The back-off belongs to no process, and ends with the next success.
        assert_eq!(promotions.backs_off_until(process(1), true), Duration::ZERO);
        promotions.note(SECOND * 3, &outcome(Obtained::Done));
        assert_eq!(promotions.pause(SECOND * 3, process(2), true), Duration::ZERO);
    }

    #[test]
    fn a_process_is_forgotten_once_idle_and_its_regions_once_it_has_ended() {
        let mut promotions = Promotions::default();
        promotions.batch(SECOND, process(1), true);
        assert!(
            promotions.made_huge(process(1), HugePage::nth(1))
                && promotions.made_huge(process(2), HugePage::nth(1))
        );
        promotions.forget_old(SECOND + REMEMBERED_FOR / 2, |_| false);
        assert_eq!((promotions.paces.len(), promotions.made().len()), (1, 2));
        promotions.forget_old(SECOND + REMEMBERED_FOR * 2, |id| id == process(1));
        assert_eq!((promotions.paces.len(), promotions.made().len()), (0, 1));
    }
}
