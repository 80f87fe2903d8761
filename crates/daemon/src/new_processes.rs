//! Processes that are new and large: worth a closer look until it is known what of them is hot, and they were probed for what
//! translation costs them.

use megapage_snapshot::{Leaf, ProcessId, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// A process is new for so long at most: one that cannot be sampled by then is looked at as rarely as the others.
const NEW: Duration = Duration::from_secs(30);
/// Samples that say enough of a new process: the first one shows what is hot, and how hot.
const ENOUGH_SAMPLES: u64 = 1;
/// Regions on base pages from which on a process is large: 256 MiB. Smaller ones come and go by the thousand.
const LARGE: usize = 128;

/// The processes of the last snapshot, and when each was first seen.
#[derive(Debug, Default)]
pub(crate) struct NewProcesses(BTreeMap<ProcessId, Duration>);

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: ProcessId,
    /// Regions on base pages.
    base: usize,
    samples: u64,
}

impl NewProcesses {
    /// Takes a snapshot in, and says whether a large new process in it waits for its samples, or is one of `unprobed`: those that
    /// work, and will be probed for their cost.
    pub fn wait(&mut self, snapshot: &Snapshot, unprobed: &[ProcessId]) -> bool {
        let tells = snapshot.sampling.as_ref().is_some_and(|sampling| sampling.tracker.tells_accesses());
        let seen = snapshot.processes.iter().map(|process| Seen {
            id: process.id,
            base: process.regions.iter().filter(|region| region.leaf == Leaf::Base).count(),
            samples: process.sampling.as_ref().map_or(0, |sampling| sampling.samples),
        });
        self.note(snapshot.taken, seen, unprobed) && tells
    }

    fn note(&mut self, now: Duration, seen: impl Iterator<Item = Seen>, unprobed: &[ProcessId]) -> bool {
        let former = std::mem::take(&mut self.0);
        let mut waits = false;
        for seen in seen {
            let since = former.get(&seen.id).copied().unwrap_or(now);
            self.0.insert(seen.id, since);
            let is_new = now.saturating_sub(since) < NEW && seen.base >= LARGE;
            waits |= is_new && (seen.samples < ENOUGH_SAMPLES || unprobed.contains(&seen.id));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    fn seen(pid: i32, base: usize, samples: u64) -> Seen {
        Seen { id: ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 }, base, samples }
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
        let mut note = |seconds, unprobed: &[ProcessId]| {
            new_processes.note(Duration::from_secs(seconds), [process].into_iter(), unprobed)
        };
        assert!(note(100, &[process.id]));
        assert!(!note(101, &[]), "probed, or it sleeps");
        assert!(!note(101, &[seen(8, 300, 1).id]), "another");
        assert!(note(102, &[process.id]));
        assert!(!note(130, &[process.id]), "time is up");
    }
}
