//! Processes that are new and large, or have grown much. They get a closer look: until their hot
//! regions are known, and until they were probed for their translation cost.

use megapage_snapshot::{Leaf, ProcessId, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time for which a process is new: one that cannot be sampled by then is looked at as
/// rarely as the others.
const NEW: Duration = Duration::from_secs(30);
/// Number of regions on base pages at which a process is large: 256 MiB. Smaller ones come and go
/// by the thousand.
const LARGE: usize = 128;

/// Growth in regions, as a share of those that a process had when it was new, at which it is new
/// again; at least [`LARGE`] more. Once it is no longer being filled, [`LARGE`] more suffice.
const GROWN: f64 = 0.25;

/// Growth in regions from one snapshot to the next at which a process is being filled: 32 MiB.
/// Samples and probes from that time show the filling, not the use of memory afterwards.
const FILLING: usize = 16;

/// Processes of the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct NewProcesses(BTreeMap<ProcessId, Known>);

/// Record of a process.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Time at which it was first seen, or had grown.
    since: Duration,
    /// Number of its regions at that time.
    regions: usize,
    /// Number of its regions in the last snapshot.
    last_regions: usize,
    /// True if it was being filled then: [`FILLING`] regions more than in the snapshot before.
    filling: bool,
    /// Time of the last snapshot in which it was being filled, or had grown; 0 if none.
    filled: Duration,
}

impl Known {
    fn new(now: Duration, regions: usize) -> Known {
        Known { since: now, regions, last_regions: regions, filling: false, filled: Duration::ZERO }
    }

    /// Returns the record for the next snapshot of the same process.
    fn again(self, now: Duration, regions: usize) -> Known {
        let growth = regions.saturating_sub(self.regions);
        let has_grown = growth >= LARGE.max((self.regions as f64 * GROWN) as usize);
        let filling = regions >= self.last_regions + FILLING;
        let has_ended = self.filling && !filling && growth >= LARGE;
        let filled = if filling || has_grown { now } else { self.filled };
        let first = if has_grown || has_ended { (now, regions) } else { (self.since, self.regions) };
        Known { since: first.0, regions: first.1, last_regions: regions, filling, filled }
    }
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: ProcessId,
    /// Number of regions on base pages, and of all regions.
    base: usize,
    regions: usize,
    /// Time at which its last sample began; `None` without a sample.
    sampled: Option<Duration>,
}

impl NewProcesses {
    /// Takes in a snapshot. Returns true if a large new process in it waits for a sample or for a
    /// probe. `working` has the processes that work, each with the time of its last probe. A sample
    /// must begin, and a probe come, after the process was filled.
    pub fn wait(&mut self, snapshot: &Snapshot, working: &[(ProcessId, Option<Duration>)]) -> bool {
        let tells = snapshot.sampling.as_ref().is_some_and(|sampling| sampling.tracker.tells_accesses());
        let seen = snapshot.processes.iter().map(|process| Seen {
            id: process.id,
            base: process.regions.iter().filter(|region| region.leaf == Leaf::Base).count(),
            regions: process.regions.len(),
            sampled: process.sampling.as_ref().map(|last| last.sampled.saturating_sub(last.window)),
        });
        self.note(snapshot.taken, seen, working) && tells
    }

    fn note(
        &mut self,
        now: Duration,
        seen: impl Iterator<Item = Seen>,
        working: &[(ProcessId, Option<Duration>)],
    ) -> bool {
        let former = std::mem::take(&mut self.0);
        let mut waits = false;
        for Seen { id, base, regions, sampled } in seen {
            let known = former.get(&id).map_or(Known::new(now, regions), |known| known.again(now, regions));
            self.0.insert(id, known);
            let is_new = now.saturating_sub(known.since) < NEW && base >= LARGE;
            let before = |last: Option<Duration>| last.is_none_or(|last| last < known.filled);
            let is_unprobed = |(other, last): &(ProcessId, Option<Duration>)| *other == id && before(*last);
            waits |= is_new && (before(sampled) || working.iter().any(is_unprobed));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    fn seen(pid: i32, base: usize, sampled: Option<u64>) -> Seen {
        let id = ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 };
        Seen { id, base, regions: base, sampled: sampled.map(Duration::from_secs) }
    }

    #[test]
    fn a_large_process_is_new_until_it_was_sampled_or_time_is_up() {
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, pid, base, sampled| {
            new_processes.note(Duration::from_secs(seconds), [seen(pid, base, sampled)].into_iter(), &[])
        };
        assert!(note(100, 7, 300, None));
        assert!(note(129, 7, 300, None));
        assert!(!note(129, 7, 300, Some(99)), "sampled");
        assert!(!note(130, 7, 300, None), "time is up");
        assert!(!note(131, 8, 20, None), "small");
        assert!(note(132, 7, 300, None), "it was gone, and is another");
    }

    #[test]
    fn one_that_works_is_new_until_it_was_probed() {
        let mut new_processes = NewProcesses::default();
        let process = seen(7, 300, Some(99));
        let mut note = |seconds, working: &[(ProcessId, Option<Duration>)]| {
            new_processes.note(Duration::from_secs(seconds), [process].into_iter(), working)
        };
        assert!(note(100, &[(process.id, None)]));
        assert!(!note(101, &[]), "it sleeps");
        assert!(!note(101, &[(process.id, Some(Duration::from_secs(100)))]), "probed");
        assert!(!note(101, &[(seen(8, 300, None).id, None)]), "another");
        assert!(note(102, &[(process.id, None)]));
        assert!(!note(130, &[(process.id, None)]), "time is up");
    }

    #[test]
    fn a_probe_counts_once_the_process_is_filled() {
        let mut new_processes = NewProcesses::default();
        let at = Duration::from_secs;
        let mut note = |seconds, regions, probed| {
            let process = seen(7, regions, Some(seconds));
            new_processes.note(at(seconds), [process].into_iter(), &[(process.id, Some(at(probed)))])
        };
        assert!(!note(100, 300, 100));
        assert!(note(101, 320, 100), "it is being filled since");
        assert!(note(102, 400, 101));
        assert!(note(103, 401, 101), "it is filled; the last probe was made before");
        assert!(!note(104, 402, 103));
        assert!(note(129, 420, 103));
        assert!(!note(130, 426, 103), "time is up");
    }

    #[test]
    fn a_sample_counts_if_it_began_once_the_process_is_filled() {
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, regions, sampled| {
            let process = seen(7, regions, sampled);
            new_processes.note(Duration::from_secs(seconds), [process].into_iter(), &[])
        };
        assert!(note(100, 300, None));
        assert!(note(101, 400, Some(100)), "it is being filled");
        assert!(note(102, 401, Some(100)), "the sample began while it was being filled");
        assert!(!note(103, 402, Some(102)));
    }

    #[test]
    fn one_whose_filling_has_ended_is_new_again() {
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, regions, sampled| {
            let process = seen(7, regions, Some(sampled));
            new_processes.note(Duration::from_secs(seconds), [process].into_iter(), &[])
        };
        for seconds in 100..=140 {
            note(seconds, 1000 + 20 * (seconds as usize - 100), seconds);
        }
        // It had grown by a quarter for the last time at 129 s.
        assert!(note(141, 1801, 139));
        assert!(note(165, 1801, 139));
        assert!(!note(166, 1801, 142), "sampled since");
        assert!(!note(171, 1801, 139), "time is up");
    }

    #[test]
    fn one_that_has_grown_much_is_new_again() {
        let mut new_processes = NewProcesses::default();
        let at = Duration::from_secs;
        let mut note = |seconds, regions, sampled, probed| {
            let process = seen(7, regions, sampled);
            let working = [(process.id, Some(at(probed)))];
            new_processes.note(at(seconds), [process].into_iter(), &working)
        };
        assert!(note(100, 200, None, 100));
        assert!(!note(101, 200, Some(100), 100));
        assert!(!note(140, 327, Some(139), 100), "a little");
        assert!(note(141, 328, Some(139), 100), "by 256 MiB");
        assert!(note(142, 328, Some(140), 142), "the sample began before");
        assert!(note(143, 328, Some(142), 100), "sampled since, but not probed");
        assert!(!note(144, 328, Some(142), 142));
        assert!(note(150, 4000, Some(142), 142));
        assert!(!note(181, 4999, Some(142), 142), "time is up, and less than a quarter more");
        assert!(!note(182, 400, Some(142), 142));
        assert!(!note(183, 4000, Some(142), 142), "as large as it was");
        assert!(note(184, 5000, Some(142), 142));
    }
}
