//! Zero scans of whole processes, a piece in each step.

use crate::{Reason, Tick};
use megapage_snapshot::{Leaf, Process, ProcessId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How far each process's huge pages were scanned, and when that pass began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scans(BTreeMap<ProcessId, Scan>);

#[derive(Clone, Copy, Debug)]
struct Scan {
    began: Duration,
    next: u64,
    whole: bool,
}

impl Scans {
    /// Has the zeros of a process's huge pages counted, from low to high addresses, as far as the budget goes. Whether
    /// a pass that began within `fresh` is complete.
    pub fn advance(&mut self, tick: &mut Tick<'_>, process: &Process, fresh: Duration) -> bool {
        let new = Scan { began: tick.now(), next: 0, whole: false };
        let scan = self.0.entry(process.id).or_insert(new);
        if scan.whole && tick.now().saturating_sub(scan.began) < fresh {
            return true;
        }
        if scan.whole {
            *scan = new;
        }
        let wanted: Vec<u64> = process
            .regions
            .iter()
            .filter(|region| {
                region.start >= scan.next && region.leaf == Leaf::Huge2m && tick.is_allowed(process, region)
            })
            .map(|region| region.start)
            .collect();
        let done = tick.zero_scan(process, &wanted, Reason::Shortage);
        scan.whole = done == wanted.len();
        if let Some(last) = done.checked_sub(1).and_then(|last| wanted.get(last)) {
            scan.next = last + 1;
        }
        scan.whole
    }

    /// Whether a complete pass over the process is older than `fresh`.
    pub fn is_stale(&self, now: Duration, id: ProcessId, fresh: Duration) -> bool {
        self.0.get(&id).is_some_and(|scan| scan.whole && now.saturating_sub(scan.began) >= fresh)
    }

    /// Forgets the processes that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&ProcessId) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// Processes tracked.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
