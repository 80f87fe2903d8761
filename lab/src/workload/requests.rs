//! Requests to a working workload, line by line.

use super::way::Way;
use anyhow::{Context, Result, bail};
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The line by which a workload reports that its memory is filled.
pub const READY: &str = "ready";
/// Request to work.
pub const GO: &str = "go";
/// Request to pause, which is also the state at the start.
pub const PAUSE: &str = "pause";
/// Request to allocate and touch 4 MiB more. The kernel adds a process to khugepaged when it maps
/// or faults in memory that may be huge, not when the setting changes.
pub const FAULT: &str = "fault";
/// Request to report its findings since the last report.
pub const REPORT: &str = "report";
/// Request to read a word of each page of its memory once, and answer by the line [`TOUCHED`].
pub const TOUCH: &str = "touch";
/// Request to work in another way from now on; the way and the bytes of memory to work in follow.
pub const WORK: &str = "work";
/// Request to let KSM merge its memory: answered by the line [`MARKED`], or by the reason for a
/// failure.
pub const MERGE: &str = "merge";
/// Request to let KSM merge no more of its memory, answered like [`MERGE`].
pub const UNMERGE: &str = "unmerge";
/// Answer to [`MERGE`] and [`UNMERGE`].
pub const MARKED: &str = "marked";
/// Answer to [`TOUCH`].
pub const TOUCHED: &str = "touched";

/// Requests, as their reader passes them to the worker.
#[derive(Debug, Default)]
pub(super) struct Requests {
    working: AtomicBool,
    /// The numbers of requests [`FAULT`], [`REPORT`], and [`TOUCH`] so far.
    pub(super) faults: AtomicU64,
    pub(super) reports: AtomicU64,
    pub(super) touches: AtomicU64,
    /// The way and the bytes that [`WORK`] asked for last.
    pub(super) change: Mutex<Option<(Way, u64)>>,
    /// True if KSM is to merge.
    pub(super) merge: Mutex<Option<bool>>,
    ended: AtomicBool,
    /// Lock and condition for a worker that waits.
    gate: Mutex<()>,
    changed: Condvar,
}

impl Requests {
    /// Follows `input` until its end, or until an invalid line.
    pub(super) fn follow(&self, input: impl BufRead) -> Result<()> {
        let read = input.lines().try_for_each(|line| self.note(line?.trim()));
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
        read
    }

    fn note(&self, line: &str) -> Result<()> {
        match line {
            GO => self.working.store(true, Ordering::SeqCst),
            PAUSE => self.working.store(false, Ordering::SeqCst),
            FAULT => drop(self.faults.fetch_add(1, Ordering::SeqCst)),
            REPORT => drop(self.reports.fetch_add(1, Ordering::SeqCst)),
            TOUCH => drop(self.touches.fetch_add(1, Ordering::SeqCst)),
            MERGE | UNMERGE => *locked(&self.merge) = Some(line == MERGE),
            other => match other.strip_prefix(WORK) {
                Some(how) => *locked(&self.change) = Some(change(how)?),
                None => bail!(
                    "'{other}' is no request; the requests are {GO}, {PAUSE}, {FAULT}, {REPORT}, {TOUCH}, {MERGE}, {UNMERGE}, {WORK} WAY BYTES"
                ),
            },
        }
        self.wake();
        Ok(())
    }

    /// Returns true if it is to work.
    pub(super) fn working(&self) -> bool {
        self.working.load(Ordering::SeqCst)
    }

    /// Returns true if there are no more requests.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let _gate = self.gate.lock();
        self.changed.notify_all();
    }

    /// Waits for a change, at most a tenth of a second: the caller's next look finds a change that
    /// came before.
    pub(super) fn wait(&self) {
        if let Ok(gate) = self.gate.lock() {
            drop(self.changed.wait_timeout(gate, Duration::from_millis(100)));
        }
    }
}

pub(super) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses the way and the bytes behind [`WORK`].
fn change(how: &str) -> Result<(Way, u64)> {
    let mut words = how.split_whitespace();
    let way = words.next().and_then(|name| Way::ALL.into_iter().find(|way| way.name() == name));
    let bytes = words.next().and_then(|word| word.parse().ok());
    way.zip(bytes).filter(|_| words.next().is_none()).with_context(|| format!("'{how}' is no way and bytes"))
}
