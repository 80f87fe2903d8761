//! Processes that are new and large, or have grown much. They get a closer look: until their hot
//! regions are known, and until they were probed for their translation cost.

use megapage_snapshot::{Leaf, ProcessId, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time for which a process is new: one that cannot be sampled by then is looked at as
/// rarely as the others.
const NEW: Duration = Duration::from_secs(30);
/// Samples that suffice for a new process, or for one since it has grown: the first shows which
/// regions are hot, and how hot.
const ENOUGH_SAMPLES: u64 = 1;
/// Number of regions on base pages at which a process is large: 256 MiB. Smaller ones come and go
/// by the thousand.
const LARGE: usize = 128;

/// Growth in regions, as a share of those that a process had when it was new, at which it is new
/// again; at least [`LARGE`] more. Samples of a server while it was filled do not describe its use
/// of memory since.
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
    /// Time at which it was last being filled: the last of its snapshots with [`FILLING`] regions
    /// more than the one before.
    filled: Duration,
    /// Number of samples at which it counts as sampled since.
    enough: u64,
}

impl Known {
    fn new(now: Duration, regions: usize, samples: u64) -> Known {
        Known { since: now, regions, last_regions: regions, filled: now, enough: samples + ENOUGH_SAMPLES }
    }

    fn has_grown(&self, regions: usize) -> bool {
        regions >= self.regions + LARGE.max((self.regions as f64 * GROWN) as usize)
    }
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: ProcessId,
    /// Number of regions on base pages, and of all regions.
    base: usize,
    regions: usize,
    samples: u64,
}

impl NewProcesses {
    /// Takes in a snapshot. Returns true if a large new process in it waits for its samples or for
    /// a probe. `working` has the processes that work, each with the time of its last probe; a
    /// probe must come after the process was new and filled.
    pub fn wait(&mut self, snapshot: &Snapshot, working: &[(ProcessId, Option<Duration>)]) -> bool {
        let tells = snapshot.sampling.as_ref().is_some_and(|sampling| sampling.tracker.tells_accesses());
        let seen = snapshot.processes.iter().map(|process| Seen {
            id: process.id,
            base: process.regions.iter().filter(|region| region.leaf == Leaf::Base).count(),
            regions: process.regions.len(),
            samples: process.sampling.as_ref().map_or(0, |sampling| sampling.samples),
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
        for seen in seen {
            let Seen { regions, .. } = seen;
            // A sample may be under way that began while the process was still being filled.
            let fresh = Known::new(now, regions, seen.samples + 1);
            let known = match former.get(&seen.id) {
                None => Known::new(now, regions, 0),
                Some(known) if known.has_grown(regions) => fresh,
                Some(known) if regions >= known.last_regions + FILLING => {
                    Known { since: known.since, regions: known.regions, ..fresh }
                }
                Some(known) => Known { last_regions: regions, ..*known },
            };
            self.0.insert(seen.id, known);
            let is_new = now.saturating_sub(known.since) < NEW && seen.base >= LARGE;
            let is_unprobed = |&(id, last): &(ProcessId, Option<Duration>)| {
                id == seen.id && last.is_none_or(|last| last < known.filled)
            };
            waits |= is_new && (seen.samples < known.enough || working.iter().any(is_unprobed));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    fn seen(pid: i32, base: usize, samples: u64) -> Seen {
        Seen { id: ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 }, base, regions: base, samples }
    }

    #[test]
    fn a_large_process_is_new_until_it_was_sampled_or_time_is_up() {
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, pid, base, samples| {
            new_processes.note(Duration::from_secs(seconds), [seen(pid, base, samples)].into_iter(), &[])
        };
        assert!(note(100, 7, 300, 0));
        assert!(note(129, 7, 300, 0));
        assert!(!note(129, 7, 300, 1), "sampled");
        assert!(!note(130, 7, 300, 0), "time is up");
        assert!(!note(131, 8, 20, 0), "small");
        assert!(note(132, 7, 300, 0), "it was gone, and is another");
    }

    #[test]
    fn one_that_works_is_new_until_it_was_probed() {
        let mut new_processes = NewProcesses::default();
        let process = seen(7, 300, 1);
        let mut note = |seconds, working: &[(ProcessId, Option<Duration>)]| {
            new_processes.note(Duration::from_secs(seconds), [process].into_iter(), working)
        };
        assert!(note(100, &[(process.id, None)]));
        assert!(!note(101, &[]), "it sleeps");
        assert!(!note(101, &[(process.id, Some(Duration::from_secs(100)))]), "probed");
        assert!(!note(101, &[(seen(8, 300, 1).id, None)]), "another");
        assert!(note(102, &[(process.id, None)]));
        assert!(!note(130, &[(process.id, None)]), "time is up");
    }

    #[test]
    fn a_probe_counts_once_the_process_is_filled() {
        let mut new_processes = NewProcesses::default();
        let at = Duration::from_secs;
        let mut note = |seconds, regions, probed| {
            // Each second brings a sample.
            let process = seen(7, regions, seconds);
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
        let mut note = |seconds, regions, samples| {
            new_processes.note(Duration::from_secs(seconds), [seen(7, regions, samples)].into_iter(), &[])
        };
        assert!(note(100, 300, 0));
        assert!(note(101, 400, 1), "it is being filled");
        assert!(note(102, 401, 2), "the sample began while it was being filled");
        assert!(!note(103, 402, 3));
    }

    #[test]
    fn one_that_has_grown_much_is_new_again() {
        let mut new_processes = NewProcesses::default();
        let at = Duration::from_secs;
        let mut note = |seconds, regions, samples, probed| {
            let process = seen(7, regions, samples);
            let working = [(process.id, Some(at(probed)))];
            new_processes.note(at(seconds), [process].into_iter(), &working)
        };
        assert!(note(100, 200, 0, 100));
        assert!(!note(101, 200, 1, 100));
        assert!(!note(140, 327, 5, 100), "a little");
        assert!(note(141, 328, 5, 100), "by 256 MiB");
        assert!(note(142, 328, 6, 142), "this sample was under way");
        assert!(note(143, 328, 7, 100), "sampled since, but not probed");
        assert!(!note(144, 328, 7, 141));
        assert!(note(150, 4000, 6, 141));
        assert!(!note(181, 4999, 6, 141), "time is up, and less than a quarter more");
        assert!(!note(182, 400, 6, 141));
        assert!(!note(183, 4000, 6, 141), "as large as it was");
        assert!(note(184, 5000, 6, 141));
    }
}
