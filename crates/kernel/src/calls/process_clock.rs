//! Processor time of another process while it runs, to the microsecond.
//!
//! The process's own clock (clock_getcpuclockid(3)) advances in ticks while its threads run on
//! other processors: steps of 1 to 10 ms. The kernel's task clock (perf_event_open(2)) is read on
//! the processors where they run.

use crate::KernelRoot;
use crate::cpu_time::cpu_time_of;
use crate::perf::{Event, Group, Scope};
use crate::process::list_threads;
use megapage_units::Pid;
use std::cell::Cell;
use std::io;
use std::time::Duration;

/// Most threads that are counted, one descriptor each. With more, the process's own clock is used.
const MOST_THREADS: usize = 64;
/// Longest lag of the process's own clock for each running thread: a tick of a kernel of 100 Hz.
const LONGEST_TICK: Duration = Duration::from_millis(10);

/// Clock of one process. It has the steps of the process's own clock if the task clock is refused
/// ([`ProcessClock::is_fine`]).
#[derive(Debug)]
pub struct ProcessClock {
    pid: Pid,
    threads: Vec<Group>,
    /// Time to add to the sum of the threads' clocks.
    origin: Cell<Duration>,
    last: Cell<Duration>,
}

impl ProcessClock {
    /// Starts to count. ESRCH if there is no such process.
    pub fn open(root: &KernelRoot, pid: Pid) -> io::Result<ProcessClock> {
        let origin = cpu_time_of(pid)?;
        let count = |thread: &i32| {
            // The threads that this thread starts are counted with it.
            Group::open(*thread, &[Event::TASK_CLOCK], Scope { user_only: true, new_threads: true })
        };
        let threads = list_threads(root, pid).unwrap_or_default();
        let threads: io::Result<Vec<Group>> = match threads.len() {
            0..=MOST_THREADS => threads.iter().map(count).collect(),
            _ => Ok(Vec::new()),
        };
        let clock = ProcessClock {
            pid,
            threads: threads.unwrap_or_default(),
            origin: Cell::new(origin),
            last: Cell::new(origin),
        };
        Ok(clock)
    }

    /// Returns true if it advances between ticks.
    pub fn is_fine(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Returns the processor time of all its threads. It never falls. ESRCH if the process has
    /// ended.
    pub fn now(&self) -> io::Result<Duration> {
        let coarse = cpu_time_of(self.pid)?;
        let counted: io::Result<u64> = self
            .threads
            .iter()
            .map(|group| group.read().map(|reading| reading.counts.first().copied().unwrap_or_default()))
            .sum();
        let time = match counted {
            Ok(counted) if self.is_fine() => {
                let fine = self.origin.get() + Duration::from_nanos(counted);
                let latest = coarse + LONGEST_TICK * (self.threads.len() as u32 + 1);
                // The sum may lack a thread, or hold one that is not the process's. Its own clock
                // is right.
                let right = fine.clamp(coarse, latest.max(coarse));
                if right > fine {
                    self.origin.set(self.origin.get() + (right - fine));
                } else {
                    self.origin.set(self.origin.get().saturating_sub(fine - right));
                }
                right
            }
            _ => coarse,
        };
        self.last.set(time.max(self.last.get()));
        Ok(self.last.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::own_cpu_time;

    #[test]
    fn it_is_the_time_of_the_process() {
        let own = Pid(std::process::id().cast_signed());
        let clock = ProcessClock::open(&KernelRoot::live(), own).unwrap();
        let mut last = clock.now().unwrap();
        for _ in 0..50 {
            std::hint::black_box((0..20_000u64).sum::<u64>());
            let now = clock.now().unwrap();
            assert!(now >= last, "{last:?} {now:?}");
            last = now;
        }
        // The time lies between the process's own clock before, and that clock after plus the ticks
        // that each thread may run ahead of it.
        let before = own_cpu_time();
        let asked = clock.now().unwrap();
        let latest = own_cpu_time() + LONGEST_TICK * (clock.threads.len() as u32 + 1);
        assert!(before <= asked && asked <= latest, "{before:?} {asked:?} {latest:?}");
    }

    #[test]
    fn a_missing_process_has_none() {
        assert!(ProcessClock::open(&KernelRoot::live(), Pid(1 << 28)).is_err());
    }
}
