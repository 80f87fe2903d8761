//! What a caller asks of the observer between two snapshots: reading samples in time, and looking for zeros where
//! a policy wants to know.

use super::zero_scan::{self, Thoroughness};
use super::{Observer, target};
use crate::process::identify;
use megapage_snapshot::{AccessProfile, ProcessId};
use megapage_units::Bytes;
use std::time::Duration;

/// What became of a zero scan that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroScanned {
    /// Regions that were read.
    pub regions: usize,
    /// Regions that are read with the next snapshot, since a sample of them is under way.
    pub later: usize,
    /// Regions that the budget deferred, or that could not be read whole.
    pub left: usize,
    /// Whether the process is another by now, or has gone, or is not observed.
    pub gone: bool,
}

impl Observer {
    /// Completes the samples whose window is over, and nothing else: a fraction of what a snapshot costs. A process that
    /// has gone is reported by the next snapshot. Answers whether one of them was the first of its process.
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
                target::Pass { tracker: tracker.as_mut(), now: &clock_now, root: &root, cpu: None };
            let former = target.is_sampled();
            target.earn(&pass, stat.cpu);
            // What could not be read is not due any longer. The next snapshot finds out why.
            let read = target.read_if_due(&mut pass, count);
            if read.is_err() || target.read_due().is_some_and(|due| due <= clock_now()) {
                target.abandon();
            }
            first |= !former && target.is_sampled();
        }
        first
    }

    /// How long until a sample that is under way must be read; `None` where none is.
    pub fn next_read(&self) -> Option<Duration> {
        let due = self.targets.values().filter_map(target::Target::read_due).min()?;
        Some(due.saturating_sub(self.clock.now()))
    }

    /// Counts the zero-filled base pages of these huge pages of a process that was in the last snapshot, within `rest`,
    /// which it lowers. Reading marks pages as accessed: regions of which a sample is under way are read with the
    /// next snapshot, after the sample; or, where the matter is `urgent`, at once, left out of the sample, and by a part
    /// of the pages ([`Thoroughness::Part`]). The counts are in the next snapshot.
    pub fn zero_scan(
        &mut self,
        id: ProcessId,
        regions: &[u64],
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
        let (later, now): (Vec<u64>, Vec<u64>) =
            regions.iter().partition(|region| !urgent && target.is_being_sampled(**region));
        // A caller in a hurry has the kernel look through what is split.
        let thoroughness = if urgent { Thoroughness::Part } else { Thoroughness::All };
        let found = zero_scan::scan_these(&root, id.pid, &now, thoroughness, rest);
        if urgent {
            target.leave_out(&now);
        }
        // Of another program that has the number now, nothing is noted.
        if !is_still() {
            return gone;
        }
        found.iter().for_each(|(start, zeros)| target.history.note_zeros(*start, *zeros));
        target.want_zeros(&later);
        ZeroScanned { regions: found.len(), later: later.len(), left: now.len() - found.len(), gone: false }
    }

    /// How regions of the process are accessed, as a source outside has found: shown from the next snapshot on, each
    /// until another is noted or its region is gone.
    pub fn note_profiles(&mut self, id: ProcessId, profiles: &[(u64, AccessProfile)]) {
        if let Some(target) = self.targets.get_mut(&id.pid).filter(|target| target.id == id) {
            profiles.iter().for_each(|(start, profile)| target.history.note_profile(*start, *profile));
        }
    }
}
