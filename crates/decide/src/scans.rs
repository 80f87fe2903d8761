//! Zero scans of whole processes, a piece in each step.

use crate::{Reason, Tick};
use megapage_snapshot::{Leaf, Process, ProcessId};
use megapage_units::HugePage;
use std::collections::BTreeMap;
use std::time::Duration;

/// Progress of the scan of each process's huge pages, and the time at which that pass began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scans(BTreeMap<ProcessId, Scan>);

#[derive(Clone, Copy, Debug)]
struct Scan {
    began: Duration,
    next: HugePage,
    whole: bool,
}

impl Scans {
    /// Requests a count of the zeros in a process's huge pages, from low to high addresses, as far
    /// as the budget allows. Returns true if a pass is complete: one that completes now, or one
    /// that began less than `fresh` ago.
    pub fn advance(&mut self, tick: &mut Tick<'_>, process: &Process, fresh: Duration) -> bool {
        let new = Scan { began: tick.now(), next: HugePage::nth(0), whole: false };
        let scan = self.0.entry(process.id).or_insert(new);
        if scan.whole && tick.now().saturating_sub(scan.began) < fresh {
            return true;
        }
        if scan.whole {
            *scan = new;
        }
        let wanted: Vec<HugePage> = process
            .regions
            .iter()
            .filter(|region| {
                region.page >= scan.next && region.leaf == Leaf::Huge2m && tick.is_allowed(process, region)
            })
            .map(|region| region.page)
            .collect();
        let done = tick.zero_scan(process, &wanted, Reason::Shortage);
        scan.whole = done == wanted.len();
        if let Some(last) = done.checked_sub(1).and_then(|last| wanted.get(last)) {
            scan.next = last.offset(1);
        }
        scan.whole
    }

    /// Returns true if the complete pass over the process began at least `fresh` ago.
    pub fn is_stale(&self, now: Duration, id: ProcessId, fresh: Duration) -> bool {
        self.0.get(&id).is_some_and(|scan| scan.whole && now.saturating_sub(scan.began) >= fresh)
    }

    /// Forgets the processes for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&ProcessId) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// Returns the number of tracked processes.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
