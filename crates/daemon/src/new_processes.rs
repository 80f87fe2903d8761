//! Processes that are new and large: worth a closer look until they were sampled.

use megapage_snapshot::{Leaf, ProcessId, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// A process is new for so long at most: one that cannot be sampled by then is looked at as rarely as the others.
const NEW: Duration = Duration::from_secs(30);
/// Samples that say enough of a new process: the first one shows what is hot, and how hot.
const ENOUGH_SAMPLES: u64 = 1;
/// Regions on base pages from which on a process is large: 256 MiB. Smaller ones come and go by the thousand.
const LARGE: usize = 128;

/// When each process was first seen, as far as it is in the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct NewProcesses(BTreeMap<ProcessId, Duration>);

impl NewProcesses {
    /// Takes a snapshot in, and says whether a large new process in it waits for its samples.
    pub fn wait(&mut self, snapshot: &Snapshot) -> bool {
        let tells = snapshot.sampling.as_ref().is_some_and(|sampling| sampling.tracker.tells_accesses());
        let seen = snapshot.processes.iter().map(|process| {
            let base = process.regions.iter().filter(|region| region.leaf == Leaf::Base).count();
            (process.id, base, process.sampling.as_ref().map_or(0, |sampling| sampling.samples))
        });
        self.note(snapshot.taken, seen) && tells
    }

    /// Each process with its regions on base pages and its samples so far.
    fn note(&mut self, now: Duration, seen: impl Iterator<Item = (ProcessId, usize, u64)>) -> bool {
        let former = std::mem::take(&mut self.0);
        let mut some = false;
        for (id, base, samples) in seen {
            let since = former.get(&id).copied().unwrap_or(now);
            self.0.insert(id, since);
            some |= now.saturating_sub(since) < NEW && base >= LARGE && samples < ENOUGH_SAMPLES;
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    #[test]
    fn a_large_process_is_new_until_it_was_sampled_or_time_is_up() {
        let id = |pid| ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 };
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, pid, base, samples| {
            new_processes.note(Duration::from_secs(seconds), [(id(pid), base, samples)].into_iter())
        };
        assert!(note(100, 7, 300, 0));
        assert!(note(129, 7, 300, 0));
        assert!(!note(129, 7, 300, 1), "sampled");
        assert!(!note(130, 7, 300, 0), "time is up");
        assert!(!note(131, 8, 20, 0), "small");
        assert!(note(132, 7, 300, 0), "it was gone, and is another");
    }
}
