//! Requests of a caller between two snapshots: to read samples in time, and to scan for zeros for a
//! policy.

use super::Observer;
use super::target::{Pass, Target};
use super::zero_scan::{self, Thoroughness};
use crate::process::identify;
use megapage_snapshot::{AccessProfile, ProcessId};
use megapage_units::{Bytes, HugePage};
use std::time::Duration;

/// Result of a requested zero scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroScanned {
    /// Regions that were read.
    pub regions: usize,
    /// Regions that the next snapshot reads, because a sample of them is under way.
    pub later: usize,
    /// Regions that the budget deferred, or that could not be read whole.
    pub left: usize,
    /// True if the process has been replaced, has ended, or is not observed.
    pub gone: bool,
}

impl Observer {
    /// Completes the samples with a finished window, and does nothing else, at a fraction of the
    /// cost of a snapshot. The next snapshot reports a process that has ended. Returns true if one
    /// of them was the first sample of its process.
    pub fn complete_samples(&mut self) -> bool {
        let now = self.clock.now();
        let root = self.reader.root.clone();
        let Some(tracker) = self.tracker.as_mut() else { return false };
        let clock = self.clock.as_ref();
        let clock_now = || clock.now();
        let count = self.targets.len();
        let mut first = false;
        for target in self.targets.values_mut() {
            if target.read_due().is_none_or(|due| now < due) {
                continue;
            }
            if target.goes_on_waiting(now) {
                continue;
            }
            let Some((_, stat)) = identify(&root, target.id.pid).ok().filter(|(id, _)| *id == target.id)
            else {
                target.abandon();
                continue;
            };
            let mut pass =
                Pass { tracker: tracker.as_mut(), now: &clock_now, root: &root, cpu: None, seen: None };
            let former = target.is_sampled();
            target.earn(clock_now(), stat.cpu);
            // A failed reading is no longer due. The next snapshot finds the reason.
            let read = target.read_if_due(&mut pass, count);
            if read.is_err() || target.read_due().is_some_and(|due| due <= clock_now()) {
                target.abandon();
            }
            first |= !former && target.is_sampled();
        }
        first
    }

    /// Returns the time until a sample under way must be read; `None` if none is under way.
    pub fn next_read(&self) -> Option<Duration> {
        let due = self.targets.values().filter_map(Target::read_due).min()?;
        Some(due.saturating_sub(self.clock.now()))
    }

    /// Counts the zero-filled base pages of these huge pages of a process in the last snapshot,
    /// within `rest`, which it lowers. Reading marks pages as accessed. So the next snapshot reads
    /// regions with a sample under way, after the sample. If `urgent`, they are read at once and
    /// left out of the sample, and only a part of the pages is read ([`Thoroughness::Part`]). The
    /// next snapshot shows the counts.
    pub fn zero_scan(
        &mut self,
        id: ProcessId,
        regions: &[HugePage],
        urgent: bool,
        rest: &mut Bytes,
    ) -> ZeroScanned {
        let gone = ZeroScanned { gone: true, ..ZeroScanned::default() };
        let root = self.reader.root.clone();
        let is_still = || identify(&root, id.pid).is_ok_and(|(now, _)| now == id);
        let Some(target) = self.targets.get_mut(&id.pid).filter(|target| target.id == id) else {
            return gone;
        };
        if !root.is_live() || !is_still() {
            return gone;
        }
        let (later, now): (Vec<HugePage>, Vec<HugePage>) =
            regions.iter().partition(|region| !urgent && target.is_being_sampled(**region));
        // For an urgent caller, the kernel checks all pages when it splits a region.
        let thoroughness = if urgent { Thoroughness::Part } else { Thoroughness::All };
        let found = zero_scan::scan_these(&root, id.pid, &now, thoroughness, rest);
        if urgent {
            target.leave_out(&now);
        }
        // Nothing is noted if another program has the number now.
        if !is_still() {
            return gone;
        }
        found.iter().for_each(|(page, zeros)| target.history.of(*page).zeros = Some(*zeros));
        target.want_zeros(&later);
        ZeroScanned { regions: found.len(), later: later.len(), left: now.len() - found.len(), gone: false }
    }

    /// Notes the access profiles of regions of the process, as found by another source. Snapshots
    /// show each from the next one on, until another is noted or its region is gone.
    pub fn note_profiles(&mut self, id: ProcessId, profiles: &[(HugePage, AccessProfile)]) {
        if let Some(target) = self.targets.get_mut(&id.pid).filter(|target| target.id == id) {
            profiles.iter().for_each(|(page, profile)| target.history.of(*page).profile = Some(*profile));
        }
    }
}
