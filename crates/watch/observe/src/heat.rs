//! Samples of one process for a while: heat over time, within the budget of all sampling.

use crate::{ObserveError, Observer, Options};
use megapage_kernel::KernelRoot;
use megapage_snapshot::{Heat, Missed, MissedWhy, Process, ProcessId, Snapshot};
use megapage_units::Pid;
use std::time::Duration;

/// Least time between two looks, whatever is due.
const LEAST_WAIT: Duration = Duration::from_millis(20);

/// Watch over one process; see the module.
#[derive(Debug)]
pub struct HeatWatch {
    observer: Observer,
    pid: Pid,
    id: Option<ProcessId>,
    heat: Heat,
    last: Snapshot,
}

impl HeatWatch {
    /// Starts sampling `pid`. Fails if the tracker cannot report accesses.
    pub fn start(root: &KernelRoot, pid: Pid, options: Options) -> Result<HeatWatch, ObserveError> {
        let mut observer = Observer::start(root, options)?;
        if !observer.sampling().is_some_and(|sampling| sampling.tracker.tells_accesses()) {
            let why = observer.why_unsampled().unwrap_or("no tracker of accesses can be used here");
            return Err(ObserveError::NoTracker(format!("not sampled: {why}")));
        }
        let last = observer.snapshot(&[pid]);
        let mut watch = HeatWatch { observer, pid, id: None, heat: Heat::new(last.taken), last };
        // A process that cannot be read is reported by the first look.
        watch.id = watch.process().map(|process| process.id);
        Ok(watch)
    }

    /// Looks again, and returns true if there is a new sample. Fails if the process has ended or
    /// cannot be read any more.
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

    /// Returns the time until the next look can show something new: at least 20 ms, at most `most`.
    pub fn due(&self, most: Duration) -> Duration {
        self.observer.next_due().unwrap_or(most).max(LEAST_WAIT).min(most)
    }

    /// Returns the process as of the last look.
    pub fn process(&self) -> Option<&Process> {
        self.last.process(self.pid)
    }

    /// Returns the heat seen so far.
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Returns the last snapshot.
    pub fn last(&self) -> &Snapshot {
        &self.last
    }
}
