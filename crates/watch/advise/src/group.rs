//! Groups of processes that share memory, each with one advice: a database server's backends, a web
//! server's workers.

use megapage_act::promote::SharedMemory;
use megapage_kernel::KernelRoot;
use megapage_kernel::maps::read_maps;
use megapage_kernel::object::{ObjectId, object_of};
use megapage_kernel::process::read_stat;
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_units::{Bytes, HUGE_2M, Pid};
use std::collections::BTreeMap;
use std::time::Duration;

/// Least size of an object of shared memory that puts its processes into one group: a huge page.
const LEAST_SHARED: Bytes = Bytes(HUGE_2M as u64);
/// Time for which processor time is compared, to find the member that works most.
const COMPARED: Duration = Duration::from_millis(300);

/// Processes that map an object of shared memory in common, or one process that shares with none of
/// the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// All members, ascending; never empty.
    pub members: Vec<Pid>,
    /// Member that is observed: it took most processor time lately.
    pub leader: Pid,
    /// Member that promotion is requested for: the leader's oldest ancestor among the members,
    /// which outlives the others.
    pub root: Pid,
}

/// Shared memory of a group, and its members besides the observed process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shared {
    /// The memory; `None` if it could not be looked at.
    pub memory: Option<SharedMemory>,
    /// Members of the group besides the observed one, as observed.
    pub others: Vec<megapage_snapshot::Process>,
    /// [`Group::root`].
    pub root: Option<Pid>,
}

/// Sorts `pids` into groups, in the order of their first members. `wait` sleeps for a time; it is
/// called only if a group has several members. A process that cannot be looked at becomes a group
/// by itself.
pub fn groups(root: &KernelRoot, pids: &[Pid], wait: &mut dyn FnMut(Duration) -> bool) -> Vec<Group> {
    let mut groups: Vec<Vec<Pid>> = Vec::new();
    let mut of_object: BTreeMap<ObjectId, usize> = BTreeMap::new();
    for &pid in pids {
        let devices = MemoryDevices::seen_by(root, pid);
        let objects: Vec<ObjectId> = read_maps(root, pid)
            .unwrap_or_default()
            .into_iter()
            .filter(|map| map.shared && map.range.len() >= LEAST_SHARED)
            .filter(|map| devices.holds(map.device, &map.name))
            .filter_map(|map| object_of(map.device, map.inode, &map.name))
            .collect();
        let mut met: Vec<usize> =
            objects.iter().filter_map(|object| of_object.get(object).copied()).collect();
        met.sort_unstable();
        met.dedup();
        let place = met.first().copied().unwrap_or(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(pid);
        // A process that shares with several groups joins them.
        for other in met.into_iter().skip(1) {
            let moved = std::mem::take(&mut groups[other]);
            groups[place].extend(moved);
            of_object.values_mut().filter(|at| **at == other).for_each(|at| *at = place);
        }
        of_object.extend(objects.into_iter().map(|object| (object, place)));
    }
    groups.retain(|members| !members.is_empty());
    let cpu = |pid: Pid| read_stat(root, pid).map_or(Duration::ZERO, |stat| stat.cpu);
    let before: BTreeMap<Pid, Duration> = pids.iter().map(|&pid| (pid, cpu(pid))).collect();
    if groups.iter().any(|members| members.len() > 1) {
        wait(COMPARED);
    }
    groups
        .into_iter()
        .map(|mut members| {
            members.sort_unstable();
            let work = |pid: &Pid| {
                let now = cpu(*pid);
                (now.saturating_sub(before.get(pid).copied().unwrap_or(now)), now)
            };
            // The first of equals leads: `max_by_key` returns the last, so the order is reversed.
            let leader = members.iter().copied().rev().max_by_key(work).unwrap_or(members[0]);
            Group { root: ancestor(root, leader, &members), leader, members }
        })
        .collect()
}

/// Returns the oldest ancestor of `pid` among `members`.
fn ancestor(root: &KernelRoot, pid: Pid, members: &[Pid]) -> Pid {
    let mut found = pid;
    // Each step leads to another member, so `members` bounds the steps.
    for _ in members {
        match read_stat(root, found) {
            Ok(stat) if stat.parent != found && members.contains(&stat.parent) => found = stat.parent,
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates processes from (pid, parent, ticks of processor time, their maps).
    fn tree(processes: &[(i32, i32, u64, &str)]) -> (tempfile::TempDir, KernelRoot) {
        let tree = tempfile::tempdir().unwrap();
        for (pid, parent, ticks, maps) in processes {
            let directory = tree.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("maps"), maps).unwrap();
            let rest = "0 ".repeat(36);
            let stat = format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {rest}");
            std::fs::write(directory.join("stat"), stat).unwrap();
        }
        let root = KernelRoot::captured(tree.path());
        (tree, root)
    }

    const BUFFERS: &str = "7f0000000000-7f0010000000 rw-s 00000000 00:01 42 /dev/zero (deleted)\n";
    const OTHER: &str = "7f1000000000-7f1010000000 rw-s 00000000 00:01 43 /memfd:x (deleted)\n";
    const SMALL: &str = "7f2000000000-7f2000001000 rw-s 00000000 00:01 44 /memfd:y (deleted)\n";
    const DISK: &str = "7f3000000000-7f3010000000 rw-s 00000000 08:01 45 /var/lib/a\n";

    #[test]
    fn who_shares_memory_is_one_group_and_who_works_leads_it() {
        let both = [BUFFERS, OTHER].concat();
        let rest = [SMALL, DISK].concat();
        let (_keep, root) = tree(&[
            (10, 1, 5, BUFFERS),
            (11, 10, 900, &[BUFFERS, SMALL].concat()),
            (12, 10, 30, BUFFERS),
            (20, 1, 7, &rest),
            (21, 20, 7, &rest),
            (30, 1, 3, OTHER),
        ]);
        let pids = [10, 11, 12, 20, 21, 30].map(Pid);
        let mut waits = 0;
        let found = groups(&root, &pids, &mut |_| {
            waits += 1;
            true
        });
        let members: Vec<Vec<i32>> =
            found.iter().map(|group| group.members.iter().map(|pid| pid.0).collect()).collect();
        assert_eq!(members, [vec![10, 11, 12], vec![20], vec![21], vec![30]]);
        assert_eq!((found[0].leader, found[0].root, waits), (Pid(11), Pid(10), 1));
        assert_eq!(
            (found[2].leader, found[2].root),
            (Pid(21), Pid(21)),
            "a parent of no common memory is no root"
        );
        // A process that maps both makes one group of two.
        let (_keep, root) =
            tree(&[(10, 1, 5, BUFFERS), (30, 1, 3, OTHER), (40, 1, 9, &both), (50, 1, 1, OTHER)]);
        let found = groups(&root, &[10, 30, 40, 50, 99].map(Pid), &mut |_| true);
        assert_eq!(found[0].members, [10, 30, 40, 50].map(Pid));
        assert_eq!(
            (found[1].members.as_slice(), found.len()),
            ([Pid(99)].as_slice(), 2),
            "one that has gone"
        );
    }
}
