//! The bounds of one pass over processes, and their order. No user's processes, whatever they
//! consist of, keep those of others from being observed.

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_status;
use megapage_snapshot::{Missed, MissedWhy, ProcessId};
use megapage_units::{Bytes, Pid};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Longest pass: the remaining processes come first in the next one. A process that was begun is
/// finished.
pub(super) const LONGEST_PASS: Duration = Duration::from_secs(3);
/// Mappings of one process that are read whatever its size: more than most programs have.
const LEAST_MAPPINGS: usize = 4096;
/// Anonymous memory of a process for each further mapping, in bytes. A process with more mappings
/// consists of splinters, none of which can be huge.
const BYTES_A_MAPPING: u64 = 64 << 10;
/// Largest number of mappings of one process: the kernel's own default (`vm.max_map_count`). They
/// take about 0.1 s and 15 MB.
const MOST_MAPPINGS: usize = 65_536;
/// Largest number of regions that are stored of all processes: 2 TiB of memory. One takes about 600
/// bytes of our memory.
const MOST_REGIONS: usize = 1 << 20;
/// Regions that are stored on any machine.
const LEAST_REGIONS: usize = 4096;
/// Bytes of the machine's memory for each stored region: eight times as many regions as whole ones
/// fit, which take a 400th of the memory. Below, bytes of the limit of our own control group for
/// each: stored regions take a quarter of it.
const MEMORY_A_REGION: u64 = 256 << 10;
const LIMIT_A_REGION: u64 = 2400;
/// Divisor of all stored regions that gives the most of one user.
const PART_OF_USER: usize = 2;
/// Largest number of processes of one user that one pass finds beyond a bound. Each takes some
/// milliseconds, so that many would delay the next pass. The user's other processes that were never
/// observed then come in the next pass.
const MOST_BEYOND: usize = 4;
/// First back-off of a process beyond a bound. It doubles each further time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Longest back-off of such a process.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// Returns the most mappings with which a process is observed.
pub(crate) fn most_mappings(anonymous: Bytes) -> usize {
    (LEAST_MAPPINGS + (anonymous.0 / BYTES_A_MAPPING) as usize).min(MOST_MAPPINGS)
}

/// Returns the number of regions of all processes that are stored, on a machine with this memory,
/// in a control group with this limit.
pub(super) fn most_regions(memory: Bytes, limit: Option<Bytes>) -> usize {
    let of_group = limit.map_or(u64::MAX, |limit| limit.0 / LIMIT_A_REGION);
    ((memory.0 / MEMORY_A_REGION).min(of_group) as usize).clamp(LEAST_REGIONS, MOST_REGIONS)
}

/// Process that was beyond a bound.
#[derive(Debug)]
struct Beyond {
    id: ProcessId,
    until: Duration,
    pause: Duration,
}

/// State from one pass to the next.
#[derive(Debug)]
pub(super) struct Fair {
    /// See [`most_regions`].
    pub(super) most_regions: usize,
    beyond: BTreeMap<Pid, Beyond>,
    /// Time of the last look at each process, and its user.
    looked: BTreeMap<Pid, (Duration, u32)>,
    /// Number of times that a process was found beyond a bound.
    pub(super) found_beyond: u64,
}

impl Fair {
    pub(super) fn new(most_regions: usize) -> Fair {
        Fair { most_regions, beyond: BTreeMap::new(), looked: BTreeMap::new(), found_beyond: 0 }
    }

    /// Forgets processes that are no longer asked for.
    pub(super) fn keep(&mut self, wanted: impl Fn(&Pid) -> bool) {
        self.beyond.retain(|pid, _| wanted(pid));
        self.looked.retain(|pid, _| wanted(pid));
    }

    /// Returns the processes in the order of their turns.
    pub(super) fn turns(&self, root: &KernelRoot, pids: impl Iterator<Item = Pid>) -> Turns {
        let mut users: BTreeMap<u32, (Known, VecDeque<Pid>)> = BTreeMap::new();
        for pid in pids {
            let known = self.looked.get(&pid);
            // A process that has ended is detected in its turn.
            let user = known.map(|(_, user)| *user);
            let user = user.or_else(|| read_status(root, pid).ok().map(|status| status.uids[0]));
            let (old, new) = users.entry(user.unwrap_or(u32::MAX)).or_default();
            match known {
                Some((at, _)) if !self.beyond.contains_key(&pid) => old.push((*at, pid)),
                _ => new.push_back(pid),
            }
        }
        let queue = |(user, (mut old, new)): (u32, (Known, VecDeque<Pid>))| {
            // The process not observed for the longest time comes first.
            old.sort();
            let old = old.into_iter().map(|(_, pid)| pid).collect();
            Queue { user, took: Duration::ZERO, regions: 0, beyond: 0, old, new, new_next: false }
        };
        Turns { queues: users.into_iter().map(queue).collect(), regions: 0, most_regions: self.most_regions }
    }

    /// Notes that `pid` of `user` was observed.
    pub(super) fn looked(&mut self, pid: Pid, user: u32, at: Duration) {
        self.looked.insert(pid, (at, user));
    }

    /// Returns true if the process is backed off for now.
    pub(super) fn left_alone(&mut self, id: ProcessId, now: Duration) -> bool {
        self.beyond.get(&id.pid).is_some_and(|beyond| beyond.id == id && now < beyond.until)
    }

    /// Notes that the process is beyond a bound.
    pub(super) fn note_beyond(&mut self, id: ProcessId, now: Duration) {
        self.found_beyond += 1;
        let former = self.beyond.get(&id.pid).filter(|beyond| beyond.id == id);
        let pause = former.map_or(FIRST_PAUSE, |beyond| (beyond.pause * 2).min(LONGEST_PAUSE));
        self.beyond.insert(id.pid, Beyond { id, until: now + pause, pause });
    }

    /// Notes that the process is within all bounds.
    pub(super) fn note_within(&mut self, pid: Pid) {
        self.beyond.remove(&pid);
    }
}

/// Processes with the time of the last look at each.
type Known = Vec<(Duration, Pid)>;

/// Processes of one user.
#[derive(Debug)]
struct Queue {
    user: u32,
    took: Duration,
    regions: usize,
    /// Number of processes found beyond a bound in this pass.
    beyond: usize,
    /// Processes that were within all bounds at the last look.
    old: VecDeque<Pid>,
    /// Processes that were beyond a bound, or never observed. They alternate with `old`.
    new: VecDeque<Pid>,
    new_next: bool,
}

impl Queue {
    fn new_may(&self) -> bool {
        self.beyond < MOST_BEYOND && !self.new.is_empty()
    }

    fn has_next(&self) -> bool {
        !self.old.is_empty() || self.new_may()
    }

    fn next(&mut self) -> Option<Pid> {
        self.new_next = !self.new_next;
        match self.new_may() && (self.new_next || self.old.is_empty()) {
            true => self.new.pop_front(),
            false => self.old.pop_front(),
        }
    }
}

/// Turns of the processes; see [`Fair::turns`].
#[derive(Debug)]
pub(super) struct Turns {
    queues: Vec<Queue>,
    regions: usize,
    most_regions: usize,
}

impl Turns {
    /// Returns the next process, with its user. It belongs to the user with the least time taken so
    /// far.
    pub(super) fn next(&mut self) -> Option<(Pid, u32)> {
        let queue = self.queues.iter_mut().filter(|queue| queue.has_next()).min_by_key(|queue| queue.took)?;
        queue.next().map(|pid| (pid, queue.user))
    }

    /// Notes that a process of `user` was found beyond a bound.
    pub(super) fn note_beyond(&mut self, user: u32) {
        self.queues.iter_mut().filter(|queue| queue.user == user).for_each(|queue| queue.beyond += 1);
    }

    /// Notes the time that a process of `user` has taken. Returns true if its `regions` regions may
    /// be stored.
    pub(super) fn took(&mut self, user: u32, time: Duration, regions: usize) -> bool {
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.user == user) else { return true };
        queue.took += time;
        let fits = queue.regions + regions <= self.most_regions / PART_OF_USER
            && self.regions + regions <= self.most_regions;
        if fits {
            queue.regions += regions;
            self.regions += regions;
        }
        fits
    }

    /// Returns the processes that have had no turn.
    pub(super) fn remaining(self) -> impl Iterator<Item = Pid> {
        self.queues.into_iter().flat_map(|queue| queue.old.into_iter().chain(queue.new))
    }
}

/// Returns the entry for a process with too many mappings.
pub(crate) fn too_many_mappings(pid: Pid, name: &str) -> Missed {
    let what = format!(
        "process {pid} ({name}) has too many mappings for its size: more than {LEAST_MAPPINGS}, and one for each 64 KiB \
         of anonymous memory, or than {MOST_MAPPINGS}; it is not looked at"
    );
    Missed { pid, why: MissedWhy::Bounded, what }
}

/// Returns the entry for a process with more regions than fit.
pub(super) fn too_many_regions(pid: Pid, name: &str, most: usize) -> Missed {
    let what = format!(
        "process {pid} ({name}) is not looked at: {most} regions of all processes together, and {} of one user's, are \
         looked at on a machine of this size",
        most / PART_OF_USER
    );
    Missed { pid, why: MissedWhy::Bounded, what }
}

/// Returns the entry for a process without a turn in this pass.
pub(super) fn postponed(pid: Pid) -> Missed {
    let what = format!("process {pid} comes in the next pass: this one has taken {LONGEST_PASS:?}");
    Missed { pid, why: MissedWhy::Postponed, what }
}

#[cfg(test)]
mod tests;
