//! Looking at one process for a while: heat over time, within the budget of all sampling.

use crate::{ObserveError, Observer, Options};
use megapage_kernel::KernelRoot;
use megapage_snapshot::{Heat, Missed, MissedWhy, Process, ProcessId, Snapshot};
use megapage_units::Pid;
use std::time::Duration;

/// Between two looks at least so much time passes, whatever is due.
const LEAST_WAIT: Duration = Duration::from_millis(20);

/// Watches one process; see the module.
#[derive(Debug)]
pub struct HeatWatch {
    observer: Observer,
    pid: Pid,
    id: Option<ProcessId>,
    heat: Heat,
    last: Snapshot,
}

impl HeatWatch {
    /// Starts sampling `pid`. Accesses must be told: a tracker that cannot is an error.
    pub fn start(root: &KernelRoot, pid: Pid, options: Options) -> Result<HeatWatch, ObserveError> {
        let mut observer = Observer::start(root, options)?;
        if !observer.sampling().is_some_and(|sampling| sampling.tracker.tells_accesses()) {
            let why = observer.why_unsampled().unwrap_or("no tracker of accesses can be used here");
            return Err(ObserveError::NoTracker(format!("not sampled: {why}")));
        }
        let last = observer.snapshot(&[pid]);
        let mut watch = HeatWatch { observer, pid, id: None, heat: Heat::new(last.taken), last };
        // What is wrong with the process from the start is told at the first look.
        watch.id = watch.process().map(|process| process.id);
        Ok(watch)
    }

    /// Looks again; whether something new was sampled. The error: it has ended, or cannot be looked at any more.
    pub fn look(&mut self) -> Result<bool, Missed> {
        self.last = self.observer.snapshot(&[self.pid]);
        let pid = self.pid;
        let missed = self.last.missed.iter().find(|missed| missed.pid == pid).cloned();
        let Some(process) = self.last.process(pid) else {
            let gone = || Missed { pid, why: MissedWhy::Gone, what: format!("process {pid} has ended") };
            return Err(missed.unwrap_or_else(gone));
        };
        if self.id.is_some_and(|id| id != process.id) {
            let what = format!("process {pid} has ended, and another has its number");
            return Err(Missed { pid, why: MissedWhy::Gone, what });
        }
        Ok(self.heat.add(process, self.last.taken))
    }

    /// How long until looking again tells something, at least 20 ms and at most `most`.
    pub fn due(&self, most: Duration) -> Duration {
        self.observer.next_due().unwrap_or(most).max(LEAST_WAIT).min(most)
    }

    /// The process, as it was seen last.
    pub fn process(&self) -> Option<&Process> {
        self.last.process(self.pid)
    }

    /// What was seen so far.
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// The last snapshot.
    pub fn last(&self) -> &Snapshot {
        &self.last
    }
}
