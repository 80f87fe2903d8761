//! Samples of a process that does not run: it accesses nothing, and nothing is cleared or read to know it.
//!
//! Where it had not run for a while when a sample is due, clearing waits until it does, or the window is over. Its
//! processor time shows it, which the kernel counts to the nanosecond whenever it leaves a processor, and a few milliseconds
//! late while it is on one (up to a second on processors without a tick, nohz_full). Accesses of others to memory that they
//! share are none of its own: of that nothing is reported. Nor is the time of a process that shares its address space without
//! being a thread of it (vfork(2)) its own.

use super::super::candidates::merge;
use super::{Candidate, EARLY, FIRST_WINDOW, Missed, Pass, ProcessSampling, Target};
use megapage_kernel::cpu_time_of;
use megapage_units::{Bytes, HUGE_2M, Pid};
use std::time::Duration;

/// A sample whose clearing waits for the process to run.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Of which regions.
    list: Vec<Candidate>,
    /// Whether of a part of each.
    in_part: bool,
    /// The first addresses of those that others may share, ascending.
    shared: Vec<u64>,
    /// The processor time of the process since then.
    cpu: Duration,
    since: Duration,
    /// When it is looked at again, and when the window is over.
    pub(super) next: Duration,
    until: Duration,
}

impl Waiting {
    fn is_idle(&self, pid: Pid) -> bool {
        cpu_time_of(pid).is_ok_and(|cpu| cpu == self.cpu)
    }
}

impl Target {
    /// Whether the process has not run since `cpu` was read, as far as that is asked: a sample may wait for it.
    pub(super) fn may_wait(&self, pass: &Pass<'_>) -> Option<Duration> {
        let cpu = pass.cpu.filter(|_| self.promotes && pass.tracker.leaves_shared())?;
        // Since the last look at the process.
        let is_idle = self.cpu_before.is_none_or(|before| before == cpu);
        (is_idle && cpu_time_of(self.id.pid).is_ok_and(|now| now == cpu)).then_some(cpu)
    }

    /// Has a sample of these regions wait.
    pub(super) fn wait(
        &mut self,
        now: Duration,
        cpu: Duration,
        list: Vec<Candidate>,
        in_part: bool,
        shared: Vec<u64>,
    ) {
        let until = self.in_step(now + self.window);
        // What was never sampled is to be, as soon as it runs. Of what was, the next pass sees whether it runs.
        let soon = self.shown.is_none();
        let next = if soon { self.in_step(now + self.window / FIRST_WINDOW / EARLY) } else { until };
        self.waiting = Some(Waiting { list, in_part, shared, cpu, since: now, next, until });
    }

    /// The next of certain moments, which all processes share: one look serves them all.
    fn in_step(&self, time: Duration) -> Duration {
        let step = (self.window / FIRST_WINDOW / EARLY).max(Duration::from_millis(1)).as_nanos();
        Duration::from_nanos((time.as_nanos().div_ceil(step) * step) as u64)
    }

    /// Ends the wait at a quarter of the window at the latest.
    pub(super) fn wait_no_longer(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.until = waiting.since + self.window / 4;
            waiting.next = waiting.until;
        }
    }

    /// Whether the sample goes on waiting at `now`, which is cheap to ask.
    pub(in crate::observer) fn goes_on_waiting(&mut self, now: Duration) -> bool {
        let Some(waiting) = self.waiting.as_ref().filter(|waiting| now < waiting.until) else { return false };
        if now < waiting.next {
            return true;
        }
        if !waiting.is_idle(self.id.pid) {
            return false;
        }
        // The longer it is idle, the less there is to hurry for.
        let pause = (self.window / FIRST_WINDOW / EARLY).max((now - waiting.since) / 4);
        let next = self.in_step(now + pause).min(waiting.until);
        if let Some(waiting) = &mut self.waiting {
            waiting.next = next;
        }
        true
    }

    /// Completes the sample that has waited: nothing was accessed. Where the process runs by now, the first sample of it is
    /// started; any other is given up, for the next pass to see what it holds by then.
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
        // It may have forked since: whether a page is its own is looked up for each.
        let shared = waiting.list.iter().map(|one| one.start).collect();
        let started = self.start(pass, &waiting.list, waiting.in_part, shared, targets);
        self.unless_refused(now, started)
    }

    fn note_idle(&mut self, now: Duration, waiting: &Waiting) {
        let Some(account) = &mut self.account else { return };
        let own = |one: &&Candidate| waiting.shared.binary_search(&one.start).is_err();
        let own: Vec<&Candidate> = waiting.list.iter().filter(own).collect();
        account.cleared(now);
        account.learn(
            now.saturating_sub(waiting.since),
            own.iter().map(|one| u64::from(one.entries)).sum(),
            0,
            0,
        );
        for one in &own {
            self.history.note(one.start, 0, now);
            self.history.confirm_rate(one.start, 0, 1);
        }
        let starts: Vec<u64> = own.iter().map(|one| one.start).collect();
        self.shown = Some(ProcessSampling {
            window: now.saturating_sub(waiting.since),
            period: Some(account.period()),
            sampled: now,
            ranges: merge(&starts).len(),
            bytes: Bytes((starts.len() * HUGE_2M) as u64),
            shared: Bytes::ZERO,
            cost: account.spent(),
            slowdown: account.slowdown(),
            samples: self.shown.as_ref().map_or(0, |shown| shown.samples) + 1,
        });
    }
}
