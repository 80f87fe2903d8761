//! What a workload is asked while it works, line by line.

use anyhow::{Result, bail};
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The line by which a workload says that its memory is filled.
pub const READY: &str = "ready";
/// What can be asked of it, a line each: to work,
pub const GO: &str = "go";
/// to do nothing, which is also what it begins with,
pub const PAUSE: &str = "pause";
/// to allocate and touch 4 MiB more (the kernel tells khugepaged of a process when it maps or faults in memory that may
/// be huge, not when the setting changes),
pub const FAULT: &str = "fault";
/// and to say what it has found since it was last asked.
pub const REPORT: &str = "report";

/// What is asked for, as the reader of requests leaves it for the worker.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    working: AtomicBool,
    faults: AtomicU64,
    reports: AtomicU64,
    ended: AtomicBool,
    /// For a worker that waits.
    gate: Mutex<()>,
    changed: Condvar,
}

impl Wishes {
    /// Follows `requests` to their end, or to one that is none.
    pub(super) fn follow(&self, requests: impl BufRead) -> Result<()> {
        let read = requests.lines().try_for_each(|line| self.note(line?.trim()));
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
            other => bail!("'{other}' is no request; the requests are {GO}, {PAUSE}, {FAULT}, {REPORT}"),
        }
        self.wake();
        Ok(())
    }

    /// Whether to work.
    pub(super) fn working(&self) -> bool {
        self.working.load(Ordering::SeqCst)
    }

    /// How many times [`FAULT`] was asked for.
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }

    /// How many times [`REPORT`] was.
    pub(super) fn reports(&self) -> u64 {
        self.reports.load(Ordering::SeqCst)
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
