//! What one pass over processes may take, and in which order they come: no user's processes keep those of others from being
//! looked at, whatever they are made of.

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_status;
use megapage_snapshot::{Missed, MissedWhy, ProcessId};
use megapage_units::{Bytes, Pid};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long a pass takes at most: what is left comes first in the next one. A process that was begun is finished.
pub(super) const LONGEST_PASS: Duration = Duration::from_secs(3);
/// Mappings of one process that are looked at whatever its size: more than most programs have.
const LEAST_MAPPINGS: usize = 4096;
/// A further one for each so much of its anonymous memory: what has more is made of splinters, of which none can be huge.
const BYTES_A_MAPPING: u64 = 64 << 10;
/// As many at most: the kernel's own default (`vm.max_map_count`). They take us some 0.1 s, and 15 MB.
const MOST_MAPPINGS: usize = 65_536;
/// Regions that are stored of all processes, at most: 2 TiB of memory. One takes about 600 bytes of
/// ours.
const MOST_REGIONS: usize = 1 << 20;
/// As many are stored anywhere.
const LEAST_REGIONS: usize = 4096;
/// One is stored for each so much of the machine's memory, eight times what it could hold were it
/// whole, so that they take a 400th of it; and for each so much of the limit of our own control
/// group, so that they take a quarter of that.
const MEMORY_A_REGION: u64 = 256 << 10;
const LIMIT_A_REGION: u64 = 2400;
/// Those of one user are stored up to this part of all.
const PART_OF_USER: usize = 2;
/// Processes of one user that are found to be beyond a bound in one pass: to find that out takes some milliseconds each, which
/// the next pass would wait for many times over. The user's others that were never looked at then come in the next one.
const MOST_BEYOND: usize = 4;
/// For how long a process is left alone that is beyond a bound, at first; twice as long each further time,
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// and at most this long.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The mappings that a process may have to be looked at.
pub(crate) fn most_mappings(anonymous: Bytes) -> usize {
    (LEAST_MAPPINGS + (anonymous.0 / BYTES_A_MAPPING) as usize).min(MOST_MAPPINGS)
}

/// Regions that are stored of all processes on a machine with so much memory, in a control group
/// with this limit.
pub(super) fn most_regions(memory: Bytes, limit: Option<Bytes>) -> usize {
    let of_group = limit.map_or(u64::MAX, |limit| limit.0 / LIMIT_A_REGION);
    ((memory.0 / MEMORY_A_REGION).min(of_group) as usize).clamp(LEAST_REGIONS, MOST_REGIONS)
}

/// A process that was beyond a bound.
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
    /// When each process was looked at last, and whose it was.
    looked: BTreeMap<Pid, (Duration, u32)>,
    /// How often a process was found to be beyond a bound.
    pub(super) found_beyond: u64,
}

impl Fair {
    pub(super) fn new(most_regions: usize) -> Fair {
        Fair { most_regions, beyond: BTreeMap::new(), looked: BTreeMap::new(), found_beyond: 0 }
    }

    /// Forgets processes that are not asked for any more.
    pub(super) fn keep(&mut self, wanted: impl Fn(&Pid) -> bool) {
        self.beyond.retain(|pid, _| wanted(pid));
        self.looked.retain(|pid, _| wanted(pid));
    }

    /// The processes in the order of their turns.
    pub(super) fn turns(&self, root: &KernelRoot, pids: impl Iterator<Item = Pid>) -> Turns {
        let mut users: BTreeMap<u32, (Known, VecDeque<Pid>)> = BTreeMap::new();
        for pid in pids {
            let known = self.looked.get(&pid);
            // One that has ended is found out when it is its turn.
            let user = known.map(|(_, user)| *user);
            let user = user.or_else(|| read_status(root, pid).ok().map(|status| status.uids[0]));
            let (old, new) = users.entry(user.unwrap_or(u32::MAX)).or_default();
            match known {
                Some((at, _)) if !self.beyond.contains_key(&pid) => old.push((*at, pid)),
                _ => new.push_back(pid),
            }
        }
        let queue = |(user, (mut old, new)): (u32, (Known, VecDeque<Pid>))| {
            // The process not looked at for the longest time comes first.
            old.sort();
            let old = old.into_iter().map(|(_, pid)| pid).collect();
            Queue { user, took: Duration::ZERO, regions: 0, beyond: 0, old, new, new_next: false }
        };
        Turns { queues: users.into_iter().map(queue).collect(), regions: 0, most_regions: self.most_regions }
    }

    /// `pid` of `user` was looked at.
    pub(super) fn looked(&mut self, pid: Pid, user: u32, at: Duration) {
        self.looked.insert(pid, (at, user));
    }

    /// Whether the process is left alone for now.
    pub(super) fn left_alone(&mut self, id: ProcessId, now: Duration) -> bool {
        self.beyond.get(&id.pid).is_some_and(|beyond| beyond.id == id && now < beyond.until)
    }

    /// The process is beyond a bound.
    pub(super) fn note_beyond(&mut self, id: ProcessId, now: Duration) {
        self.found_beyond += 1;
        let former = self.beyond.get(&id.pid).filter(|beyond| beyond.id == id);
        let pause = former.map_or(FIRST_PAUSE, |beyond| (beyond.pause * 2).min(LONGEST_PAUSE));
        self.beyond.insert(id.pid, Beyond { id, until: now + pause, pause });
    }

    /// The process is within all bounds.
    pub(super) fn note_within(&mut self, pid: Pid) {
        self.beyond.remove(&pid);
    }
}

/// When each was looked at last.
type Known = Vec<(Duration, Pid)>;

/// The processes of one user.
#[derive(Debug)]
struct Queue {
    user: u32,
    took: Duration,
    regions: usize,
    /// Those that were found to be beyond a bound in this pass.
    beyond: usize,
    /// Those that were within all bounds when they were looked at last,
    old: VecDeque<Pid>,
    /// and those that were not, or never looked at. They take turns.
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

/// See [`Fair::turns`].
#[derive(Debug)]
pub(super) struct Turns {
    queues: Vec<Queue>,
    regions: usize,
    most_regions: usize,
}

impl Turns {
    /// The next process, and its user: of the user whose processes have taken least by now.
    pub(super) fn next(&mut self) -> Option<(Pid, u32)> {
        let queue = self.queues.iter_mut().filter(|queue| queue.has_next()).min_by_key(|queue| queue.took)?;
        queue.next().map(|pid| (pid, queue.user))
    }

    /// A process of `user` was found to be beyond a bound.
    pub(super) fn note_beyond(&mut self, user: u32) {
        self.queues.iter_mut().filter(|queue| queue.user == user).for_each(|queue| queue.beyond += 1);
    }

    /// A process of `user` has taken this. Whether its regions, so many, may be stored.
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

    /// Those whose turn has not come.
    pub(super) fn remaining(self) -> impl Iterator<Item = Pid> {
        self.queues.into_iter().flat_map(|queue| queue.old.into_iter().chain(queue.new))
    }
}

/// The entry for a process that has more mappings than it may have.
pub(crate) fn too_many_mappings(pid: Pid, name: &str) -> Missed {
    let what = format!(
        "process {pid} ({name}) has too many mappings for its size: more than {LEAST_MAPPINGS}, and one for each 64 KiB \
         of anonymous memory, or than {MOST_MAPPINGS}; it is not looked at"
    );
    Missed { pid, why: MissedWhy::Bounded, what }
}

/// The entry for a process whose regions do not fit.
pub(super) fn too_many_regions(pid: Pid, name: &str, most: usize) -> Missed {
    let what = format!(
        "process {pid} ({name}) is not looked at: {most} regions of all processes together, and {} of one user's, are \
         looked at on a machine of this size",
        most / PART_OF_USER
    );
    Missed { pid, why: MissedWhy::Bounded, what }
}

/// The entry for a process whose turn has not come.
pub(super) fn postponed(pid: Pid) -> Missed {
    let what = format!("process {pid} comes in the next pass: this one has taken {LONGEST_PASS:?}");
    Missed { pid, why: MissedWhy::Postponed, what }
}

#[cfg(test)]
mod tests;
