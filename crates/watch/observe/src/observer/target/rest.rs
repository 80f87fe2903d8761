//! Samples of a process that does not run. It accesses nothing, and nothing is cleared or read to
//! show it.
//!
//! A process may not have run for a while when a sample is due. Then clearing waits until it runs,
//! or the window is over. Its processor time shows a run. The kernel counts it to the nanosecond
//! whenever the process leaves a processor. While it is on one, the count is a few milliseconds
//! late (up to a second on processors without a tick, nohz_full).
//!
//! Accesses of other processes to shared memory do not count for it: of such memory nothing is
//! reported. A process that shares its address space without being a thread of it (vfork(2)) has a
//! separate processor time.

use super::super::candidates::merge;
use super::{Candidate, EARLY, FIRST_WINDOW, Missed, Pass, ProcessSampling, Target};
use megapage_kernel::cpu_time_of;
use megapage_units::{Bytes, HugeCount, HugePage, Pid};
use std::time::Duration;

/// Sample whose clearing waits for the process to run.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Regions of the sample.
    list: Vec<Candidate>,
    /// True if a part of each region is to be sampled.
    in_part: bool,
    /// Regions that others may share, ascending.
    shared: Vec<HugePage>,
    /// Processor time of the process at the start of the wait, and the time of that.
    cpu: Duration,
    since: Duration,
    /// Time of the next check, and below the end of the window.
    pub(super) next: Duration,
    until: Duration,
}

impl Waiting {
    fn is_idle(&self, pid: Pid) -> bool {
        cpu_time_of(pid).is_ok_and(|cpu| cpu == self.cpu)
    }
}

impl Target {
    /// Returns the processor time of the process if a sample may wait for it to run. That is so if
    /// samples are for promotion and the process has not run since the last pass.
    pub(super) fn may_wait(&self, pass: &Pass<'_>) -> Option<Duration> {
        let cpu = pass.cpu.filter(|_| self.promotes && pass.tracker.leaves_shared())?;
        // The comparison is with the last look at the process.
        let is_idle = self.cpu_before.is_none_or(|before| before == cpu);
        (is_idle && cpu_time_of(self.id.pid).is_ok_and(|now| now == cpu)).then_some(cpu)
    }

    /// Makes a sample of these regions wait.
    pub(super) fn wait(
        &mut self,
        now: Duration,
        cpu: Duration,
        list: Vec<Candidate>,
        in_part: bool,
        shared: Vec<HugePage>,
    ) {
        let until = self.in_step(now + self.window);
        // A process that was never sampled is to be sampled as soon as it runs. For any other, the
        // next pass shows if it runs.
        let soon = self.shown.is_none();
        let next = if soon { self.in_step(now + self.window / FIRST_WINDOW / EARLY) } else { until };
        self.waiting = Some(Waiting { list, in_part, shared, cpu, since: now, next, until });
    }

    /// Returns the next of certain moments that all processes share: one wake-up serves all.
    fn in_step(&self, time: Duration) -> Duration {
        let step = (self.window / FIRST_WINDOW / EARLY).max(Duration::from_millis(1)).as_nanos();
        Duration::from_nanos((time.as_nanos().div_ceil(step) * step) as u64)
    }

    /// Ends the wait after a quarter of the window at the latest.
    pub(super) fn wait_no_longer(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.until = waiting.since + self.window / 4;
            waiting.next = waiting.until;
        }
    }

    /// Returns true if the sample still waits at `now`. The check is cheap.
    pub(in crate::observer) fn goes_on_waiting(&mut self, now: Duration) -> bool {
        let Some(waiting) = self.waiting.as_ref().filter(|waiting| now < waiting.until) else { return false };
        if now < waiting.next {
            return true;
        }
        if !waiting.is_idle(self.id.pid) {
            return false;
        }
        // The longer the process is idle, the rarer are the checks.
        let pause = (self.window / FIRST_WINDOW / EARLY).max((now - waiting.since) / 4);
        let next = self.in_step(now + pause).min(waiting.until);
        if let Some(waiting) = &mut self.waiting {
            waiting.next = next;
        }
        true
    }

    /// Completes the sample that has waited: nothing was accessed. If the process runs by now, its
    /// first sample is started. Any other sample is given up: the next pass reads the process
    /// afresh.
    pub(super) fn end_wait(&mut self, pass: &mut Pass<'_>, targets: usize) -> Result<(), Missed> {
        let now = (pass.now)();
        if self.goes_on_waiting(now) {
            return Ok(());
        }
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        if waiting.is_idle(self.id.pid) {
            self.note_idle(now, &waiting);
            return Ok(());
        }
        let may_start = self.account.as_ref().is_some_and(|account| account.may_start(now, &waiting.list));
        if self.shown.is_some() || !may_start {
            return Ok(());
        }
        // The process may have forked since: each page is checked for other users.
        let shared = waiting.list.iter().map(|one| one.page).collect();
        let started = self.start(pass, &waiting.list, waiting.in_part, shared, targets);
        self.unless_refused(now, started)
    }

    fn note_idle(&mut self, now: Duration, waiting: &Waiting) {
        let Some(account) = &mut self.account else { return };
        let own = |one: &&Candidate| waiting.shared.binary_search(&one.page).is_err();
        let own: Vec<&Candidate> = waiting.list.iter().filter(own).collect();
        account.cleared(now);
        account.learn(
            now.saturating_sub(waiting.since),
            own.iter().map(|one| u64::from(one.entries)).sum(),
            0,
            0,
        );
        for one in &own {
            self.history.note(one.page, 0, now);
            self.history.confirm_rate(one.page, 0, 1);
        }
        let pages: Vec<HugePage> = own.iter().map(|one| one.page).collect();
        self.shown = Some(ProcessSampling {
            window: now.saturating_sub(waiting.since),
            period: Some(account.period()),
            sampled: now,
            ranges: merge(&pages).len(),
            bytes: HugeCount(pages.len() as u64).bytes(),
            shared: Bytes::ZERO,
            cost: account.spent(),
            slowdown: account.slowdown(),
            samples: self.shown.as_ref().map_or(0, |shown| shown.samples) + 1,
        });
    }
}
