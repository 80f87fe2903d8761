//! Back-off of processes whose memory map is locked: the processes, the end of each back-off, and
//! counts.

use megapage_units::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Longest waits if other processes have missed their deadlines lately: many locked processes must
/// not stop us for minutes. A helper that is not blocked gets more time, however short the
/// deadline.
const SHORT: Duration = Duration::from_millis(200);
const SHORTEST: Duration = Duration::from_millis(50);
/// Span of time that counts as "lately". The next two are the numbers of missed deadlines in it,
/// from which on the next ones are short, and shortest.
const LATELY: Duration = Duration::from_secs(30);
const FIRST_FEW: usize = 2;
const MANY: usize = 10;
/// Back-off of a process after its first missed deadline. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Longest back-off of a process.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Most processes whose back-off is stored.
const MOST_REMEMBERED: usize = 4096;

/// Reason why a process gave no answer: its memory map is locked, or was a moment ago. Comes within
/// an [`std::io::Error`] of kind `TimedOut`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Locked {
    /// The process was asked, and has not answered.
    #[error("process {pid} did not answer within {}: its memory map is locked", short(*.waited))]
    NoAnswer {
        /// The process.
        pid: Pid,
        /// Time for which the answer was waited for.
        waited: Duration,
    },
    /// The process was not asked, because it is backed off: it has not answered before.
    #[error(
        "process {pid} does not answer: its memory map is locked; it is tried again in {}",
        short(*.rest)
    )]
    LeftAlone {
        /// The process.
        pid: Pid,
        /// Time to the end of its back-off.
        rest: Duration,
    },
    /// The process was not asked. Too many uninterruptible calls wait already, of all processes or
    /// of its user's, or no helper became free in time.
    #[error(
        "process {pid} is skipped: too many calls wait for locked memory maps already, and cannot be ended"
    )]
    Refused {
        /// The process.
        pid: Pid,
    },
}

fn short(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

/// Counts since the program started, and the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Missed deadlines.
    pub missed: u64,
    /// Processes that are backed off at the moment.
    pub locked: usize,
    /// Helpers that were killed and have not ended: they wait in the kernel for a locked memory
    /// map.
    pub stuck: usize,
    /// Calls that were not made because too many helpers are stuck or at work.
    pub refused: u64,
}

/// Back-off of a process that has missed its deadline.
#[derive(Debug)]
struct Entry {
    start_ticks: u64,
    until: Instant,
    pause: Duration,
}

/// Back-offs and counts.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<Pid, Entry>,
    lately: VecDeque<Instant>,
    pub(super) missed: u64,
    pub(super) refused: u64,
}

impl Table {
    pub(super) const fn new() -> Table {
        Table { entries: BTreeMap::new(), lately: VecDeque::new(), missed: 0, refused: 0 }
    }

    /// Returns the time that is left of the back-off of `pid`. Calls `start_ticks` only if it
    /// matters: another process may have the number.
    pub(super) fn left_alone(
        &mut self,
        pid: Pid,
        now: Instant,
        start_ticks: impl FnOnce() -> Option<u64>,
    ) -> Option<Duration> {
        let entry = self.entries.get(&pid)?;
        if start_ticks() != Some(entry.start_ticks) {
            self.entries.remove(&pid);
            return None;
        }
        Some(entry.until.saturating_duration_since(now)).filter(|rest| !rest.is_zero())
    }

    /// Returns the longest wait for the next answer.
    pub(super) fn deadline(&mut self, now: Instant) -> Duration {
        while self.lately.front().is_some_and(|when| now.saturating_duration_since(*when) > LATELY) {
            self.lately.pop_front();
        }
        match self.lately.len() {
            0..FIRST_FEW => DEADLINE,
            FIRST_FEW..MANY => SHORT,
            _ => SHORTEST,
        }
    }

    /// Notes that `pid` has missed its deadline.
    pub(super) fn miss(&mut self, pid: Pid, start_ticks: u64, now: Instant) {
        self.missed += 1;
        self.lately.push_back(now);
        if self.lately.len() > MANY {
            self.lately.pop_front();
        }
        let former = self.entries.get(&pid).filter(|entry| entry.start_ticks == start_ticks);
        let pause = former.map_or(FIRST_PAUSE, |entry| (entry.pause * 2).min(LONGEST_PAUSE));
        if self.entries.len() >= MOST_REMEMBERED {
            // Removes the entry whose back-off ends first.
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.until).map(|(pid, _)| *pid);
            first.map(|first| self.entries.remove(&first));
        }
        self.entries.insert(pid, Entry { start_ticks, until: now + pause, pause });
    }

    /// Notes that `pid` has answered.
    pub(super) fn answered(&mut self, pid: Pid) {
        self.entries.remove(&pid);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn locked(&self, now: Instant) -> usize {
        self.entries.values().filter(|entry| entry.until > now).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(table: &mut Table, pid: i32, now: Instant) {
        table.miss(Pid(pid), 7, now);
    }

    #[test]
    fn one_that_misses_again_is_left_alone_for_longer() {
        let (mut table, start) = (Table::new(), Instant::now());
        let rest = |table: &mut Table, now| table.left_alone(Pid(1), now, || Some(7));
        assert_eq!(rest(&mut table, start), None);
        miss(&mut table, 1, start);
        assert_eq!(rest(&mut table, start), Some(FIRST_PAUSE));
        let later = start + FIRST_PAUSE;
        assert_eq!(rest(&mut table, later), None, "it is asked again");
        miss(&mut table, 1, later);
        assert_eq!(rest(&mut table, later), Some(FIRST_PAUSE * 2));
        (0..20).for_each(|_| miss(&mut table, 1, later));
        assert_eq!(rest(&mut table, later), Some(LONGEST_PAUSE));
        assert_eq!((table.missed, table.locked(later)), (22, 1));
        assert_eq!(table.left_alone(Pid(1), later, || Some(8)), None, "another process has the number");
        assert!(table.is_empty());
    }

    #[test]
    fn many_that_are_locked_are_waited_for_less_long() {
        let (mut table, start) = (Table::new(), Instant::now());
        assert_eq!(table.deadline(start), DEADLINE);
        let mut waited = Duration::ZERO;
        for pid in 0..256 {
            waited += table.deadline(start);
            miss(&mut table, pid, start);
        }
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        assert_eq!(table.deadline(start + LATELY * 2), DEADLINE, "that was long ago");
    }

    #[test]
    fn the_memory_of_them_is_bounded() {
        let (mut table, start) = (Table::new(), Instant::now());
        (0..2 * MOST_REMEMBERED as i32).for_each(|pid| miss(&mut table, pid, start));
        assert_eq!(table.entries.len(), MOST_REMEMBERED);
        table.answered(Pid(2 * MOST_REMEMBERED as i32 - 1));
        assert_eq!(table.entries.len(), MOST_REMEMBERED - 1);
    }
}
