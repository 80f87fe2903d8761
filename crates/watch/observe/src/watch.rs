//! Repeated looks at processes: the list of processes, the changes, and our own cost.

pub mod costs;

use crate::outline::{outlines, outlines_of};
use crate::owners::Owners;
use crate::{ObserveError, Observer, Options, SelectError, select_processes};
use costs::Costs;
use megapage_kernel::{KernelError, KernelRoot, process_cpu_time};
use megapage_snapshot::{Outline, Snapshot};
use megapage_units::{Bytes, Pid};
use std::time::Duration;
use thiserror::Error;

/// Largest number of processes that are read, those with most memory first. This bounds the time of
/// a refresh.
const MOST_PROCESSES: usize = 256;
/// Least time between two refreshes, in multiples of our processor time for one: 20 means 5 % of
/// one processor.
const OWN_SHARE: u32 = 20;

/// Processes to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Processes that match these patterns (see [`select_processes`]), new ones included.
    Named(Vec<String>),
    /// All processes with at least this much resident memory, hugetlb pages included.
    AtLeast(Bytes),
}

/// Reason why there is nothing to watch.
#[derive(Debug, Error)]
pub enum WatchError {
    /// Processes could not be selected.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The observer could not start.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Processes could not be listed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Watch over processes; see the module.
#[derive(Debug)]
pub struct Watch {
    root: KernelRoot,
    which: Which,
    observer: Observer,
    costs: Costs,
    pids: Vec<Pid>,
    outlines: Vec<Outline>,
    owners: Owners,
    left_out: usize,
    before: Option<Snapshot>,
    now: Snapshot,
    own: Duration,
    /// True if a process was probed since the last refresh: one each time.
    probed: bool,
}

impl Watch {
    /// Selects the processes and takes the first snapshot.
    pub fn start(root: &KernelRoot, which: Which, options: Options) -> Result<Watch, WatchError> {
        if let Which::Named(patterns) = &which {
            select_processes(root, patterns)?;
        }
        // Samples and probes for the estimate of costs share the budget.
        let half = options.budget / 2.0;
        let mut costs = Costs::new(root, options.sample.then_some(half));
        let budget = if costs.budget().is_some() { half } else { options.budget };
        let mut observer = Observer::start(root, Options { budget, ..options })?;
        if !observer.sampling().is_some_and(|sampling| sampling.tracker.tells_accesses()) {
            costs.leave_estimates();
        }
        let now = observer.snapshot(&[]);
        let mut watch = Watch {
            root: root.clone(),
            which,
            observer,
            costs,
            pids: Vec::new(),
            outlines: Vec::new(),
            owners: Owners::default(),
            left_out: 0,
            before: None,
            now,
            own: Duration::ZERO,
            probed: false,
        };
        watch.refresh()?;
        watch.before = None;
        Ok(watch)
    }

    /// Takes a snapshot of the present processes. Changes count from the one before.
    pub fn refresh(&mut self) -> Result<(), WatchError> {
        let start = process_cpu_time();
        self.probed = false;
        self.select()?;
        let now = self.observer.snapshot(&self.pids);
        self.before = Some(std::mem::replace(&mut self.now, now));
        self.costs.refresh(&self.now, &mut self.observer);
        self.own = process_cpu_time().saturating_sub(start);
        Ok(())
    }

    /// Uses the time between two refreshes; `left` is the time to the next. Waits for the next due
    /// sample, or probes the translation cost of one process. `wait` sleeps for a time, and returns
    /// true to go on. Returns when `left` has passed, something is due or was done, or `wait` has
    /// returned false.
    pub fn idle(&mut self, left: Duration, wait: &mut dyn FnMut(Duration) -> bool) {
        let due = self.observer.next_due().unwrap_or(left);
        if due.is_zero() {
            self.observer.snapshot(&self.pids);
            return;
        }
        let time = left.min(due);
        if !self.probed && time >= costs::LEAST_PROBE {
            let before = self.before.as_ref();
            self.probed = self.costs.probe(before, &self.now, &mut self.observer, time, wait);
            if self.probed {
                return;
            }
        }
        wait(time);
    }

    /// Returns the time to wait between two refreshes. It is `asked`, or longer if the last refresh
    /// took more than 5 % of that in processor time.
    pub fn pace(&self, asked: Duration) -> Duration {
        asked.max(self.own * OWN_SHARE)
    }

    /// Returns the last snapshot.
    pub fn now(&self) -> &Snapshot {
        &self.now
    }

    /// Returns the snapshot before it, from which changes count; `None` after the first.
    pub fn before(&self) -> Option<&Snapshot> {
        self.before.as_ref()
    }

    /// Returns the values of the watched processes that all users may see.
    pub fn outlines(&self) -> &[Outline] {
        &self.outlines
    }

    /// Returns the reason why nothing is sampled though the options ask for it.
    pub fn unsampled(&self) -> Option<&str> {
        self.observer.why_unsampled()
    }

    /// Returns the largest slow-down of a process by probing, as a share of its processor time, in
    /// addition to sampling. `None` if no cost is estimated.
    pub fn probe_budget(&self) -> Option<f64> {
        self.costs.budget()
    }

    /// Returns the reason why estimated costs rest on a guess: accesses were not timed on this
    /// machine. `None` if they do not.
    pub fn why_uncalibrated(&self) -> Option<&str> {
        self.costs.why_guessed()
    }

    /// Returns the number of processes beyond the 256 largest, which are not shown.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    fn select(&mut self) -> Result<(), WatchError> {
        self.outlines = match &self.which {
            Which::AtLeast(least) => outlines(&self.root, *least)?,
            Which::Named(patterns) => {
                // A pattern may match nothing for a while.
                let found = patterns
                    .iter()
                    .filter_map(|pattern| select_processes(&self.root, std::slice::from_ref(pattern)).ok());
                let mut pids: Vec<Pid> = found.flatten().collect();
                pids.sort();
                pids.dedup();
                outlines_of(&self.root, &pids)
            }
        };
        self.outlines.sort_by_key(|outline| std::cmp::Reverse(outline.resident()));
        self.left_out = self.outlines.len().saturating_sub(MOST_PROCESSES);
        self.outlines.truncate(MOST_PROCESSES);
        self.owners.complete(&self.root, &mut self.outlines);
        self.pids = self.outlines.iter().map(|outline| outline.pid).collect();
        Ok(())
    }
}
