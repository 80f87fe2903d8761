//! Processes that are new and large: worth a closer look until it is known what of them is hot, and they were probed for what
//! translation costs them.

use megapage_observe::watch::costs::{LEAST_USAGE, MOST_ESTIMATED as MOST_PROBED};
use megapage_snapshot::{Leaf, ProcessId, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// A process is new for so long at most: one that cannot be sampled by then is looked at as rarely as the others.
const NEW: Duration = Duration::from_secs(30);
/// Samples that say enough of a new process: the first one shows what is hot, and how hot.
const ENOUGH_SAMPLES: u64 = 1;
/// Regions on base pages from which on a process is large: 256 MiB. Smaller ones come and go by the thousand.
const LARGE: usize = 128;

/// The processes of the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct NewProcesses(BTreeMap<ProcessId, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// When it was first seen.
    since: Duration,
    /// When it was seen last, and the processor time that it had taken by then.
    last: (Duration, Duration),
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: ProcessId,
    cpu: Duration,
    /// Regions on base pages.
    base: usize,
    samples: u64,
    /// Whether it was probed for its cost, or will not be.
    probed: bool,
}

impl NewProcesses {
    /// Takes a snapshot in, and says whether a large new process in it waits for its samples or, where it works, to be probed for
    /// its cost: `probed` says of which that was tried, or will not be.
    pub fn wait(&mut self, snapshot: &Snapshot, probed: impl Fn(ProcessId) -> bool) -> bool {
        let tells = snapshot.sampling.as_ref().is_some_and(|sampling| sampling.tracker.tells_accesses());
        let seen = snapshot.processes.iter().map(|process| Seen {
            id: process.id,
            cpu: process.cpu,
            base: process.regions.iter().filter(|region| region.leaf == Leaf::Base).count(),
            samples: process.sampling.as_ref().map_or(0, |sampling| sampling.samples),
            probed: probed(process.id),
        });
        self.note(snapshot.taken, seen) && tells
    }

    fn note(&mut self, now: Duration, seen: impl Iterator<Item = Seen>) -> bool {
        let former = std::mem::take(&mut self.0);
        let (mut sampled, mut probed, mut working) = (true, true, 0);
        for seen in seen {
            let known = former.get(&seen.id);
            let since = known.map_or(now, |known| known.since);
            self.0.insert(seen.id, Known { since, last: (now, seen.cpu) });
            let works = known.is_some_and(|Known { last: (then, cpu), .. }| {
                let elapsed = now.saturating_sub(*then).as_secs_f64();
                seen.cpu.saturating_sub(*cpu).as_secs_f64() >= LEAST_USAGE * elapsed
            });
            working += usize::from(works);
            if now.saturating_sub(since) < NEW && seen.base >= LARGE {
                sampled &= seen.samples >= ENOUGH_SAMPLES;
                probed &= seen.probed || !works;
            }
        }
        // Where more work than are probed, one of the others would be waited for in vain.
        !sampled || !probed && working <= MOST_PROBED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    fn seen(pid: i32, base: usize, samples: u64) -> Seen {
        let id = ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 };
        Seen { id, cpu: Duration::from_secs(1), base, samples, probed: true }
    }

    #[test]
    fn a_large_process_is_new_until_it_was_sampled_or_time_is_up() {
        let mut new_processes = NewProcesses::default();
        let mut note = |seconds, pid, base, samples| {
            new_processes.note(Duration::from_secs(seconds), [seen(pid, base, samples)].into_iter())
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
        let mut note = |millis, cpu, probed| {
            let process = Seen { cpu: Duration::from_millis(cpu), probed, ..seen(7, 300, 1) };
            new_processes.note(Duration::from_millis(millis), [process].into_iter())
        };
        assert!(!note(100_000, 5000, false), "whether it works is not known");
        assert!(note(101_000, 5100, false));
        assert!(!note(102_000, 5120, false), "it sleeps");
        assert!(note(103_000, 6120, false));
        assert!(!note(104_000, 7120, true), "known");
        assert!(!note(131_000, 9999, false), "time is up");
    }
}
