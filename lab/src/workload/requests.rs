//! What a workload is asked while it works, line by line.

use super::way::Way;
use anyhow::{Context, Result, bail};
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The line by which a workload says that its memory is filled.
pub const READY: &str = "ready";
/// What can be asked of it, a line each: to work,
pub const GO: &str = "go";
/// to do nothing, which is also what it begins with,
pub const PAUSE: &str = "pause";
/// to allocate and touch 4 MiB more (the kernel adds a process to khugepaged when it maps or faults in memory that may
/// be huge, not when the setting changes),
pub const FAULT: &str = "fault";
/// to say what it has found since it was last asked,
pub const REPORT: &str = "report";
/// to read a word of each page of its memory once, and say so by the line [`TOUCHED`],
pub const TOUCH: &str = "touch";
/// and, with a way and a number of bytes behind it, to work in that way in so much of its memory from now on.
pub const WORK: &str = "work";
/// To have KSM merge its memory, and to have it merge none any more: answered by the line [`MARKED`], or by why not.
pub const MERGE: &str = "merge";
/// See [`MERGE`].
pub const UNMERGE: &str = "unmerge";
/// See [`MERGE`].
pub const MARKED: &str = "marked";
/// See [`TOUCH`].
pub const TOUCHED: &str = "touched";

/// What is asked for, as the reader of requests leaves it for the worker.
#[derive(Debug, Default)]
pub(super) struct Requests {
    working: AtomicBool,
    /// How many times [`FAULT`] was, [`REPORT`], and [`TOUCH`].
    pub(super) faults: AtomicU64,
    pub(super) reports: AtomicU64,
    pub(super) touches: AtomicU64,
    /// The way and the bytes that [`WORK`] asked for last.
    pub(super) change: Mutex<Option<(Way, u64)>>,
    /// True if KSM is to merge.
    pub(super) merge: Mutex<Option<bool>>,
    ended: AtomicBool,
    /// For a worker that waits.
    gate: Mutex<()>,
    changed: Condvar,
}

impl Requests {
    /// Follows `input` to their end, or to one that is none.
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

    /// Whether to work.
    pub(super) fn working(&self) -> bool {
        self.working.load(Ordering::SeqCst)
    }

    /// Whether there are no more requests.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let _gate = self.gate.lock();
        self.changed.notify_all();
    }

    /// Waits for a change, at most a tenth of a second: one that came before is found by the caller's next look.
    pub(super) fn wait(&self) {
        if let Ok(gate) = self.gate.lock() {
            drop(self.changed.wait_timeout(gate, Duration::from_millis(100)));
        }
    }
}

pub(super) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way and the bytes behind [`WORK`].
fn change(how: &str) -> Result<(Way, u64)> {
    let mut words = how.split_whitespace();
    let way = words.next().and_then(|name| Way::ALL.into_iter().find(|way| way.name() == name));
    let bytes = words.next().and_then(|word| word.parse().ok());
    way.zip(bytes).filter(|_| words.next().is_none()).with_context(|| format!("'{how}' is no way and bytes"))
}
