//! Detection of memory that fills fast between two passes. It reads a few small files, about ten
//! times a second.

use megapage_kernel::cgroup::memory_usage;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_snapshot::{MemoryLimit, Snapshot};
use megapage_units::Bytes;
use std::collections::BTreeMap;

/// Divisor of the available memory: use of such a part makes the policy look again...
const PART: u64 = 4;
/// ...or use of this part of the whole, if that is more.
const LEAST_PART: u64 = 64;
/// Maximum number of control groups that one look reads: the [`FULLEST`], then others in rotation.
/// At the defaults (256 processes, ten looks a second) each group is read about once a second. This
/// is often enough to notice a group that fills, and cheap enough for the daemon's CPU budget.
const MOST_READ: usize = 32;
/// Number of control groups that every look reads: those with the largest share of their limit in
/// use.
const FULLEST: usize = 8;

/// Memory in use at the last pass, for the machine and for limited control groups.
#[derive(Clone, Debug, Default)]
pub struct Filling {
    /// Available memory, and the decrease that counts as news.
    machine: Option<(Bytes, Bytes)>,
    /// Limited groups: the fullest first, then the others. [`Filling::is_news`] rotates the others.
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    directory: String,
    usage: Bytes,
    news: Bytes,
}

impl Filling {
    /// Starts from the last snapshot.
    pub fn since(root: &KernelRoot, snapshot: &Snapshot) -> Filling {
        let news = |whole: Bytes, left: Bytes| Bytes((left.0 / PART).max(whole.0 / LEAST_PART));
        let memory = &snapshot.machine.memory;
        let limits = snapshot.processes.iter().filter_map(|process| process.memory_limit.as_ref());
        let limits: BTreeMap<&str, &MemoryLimit> =
            limits.map(|limit| (limit.group.as_str(), limit)).collect();
        let group = |limit: &MemoryLimit| {
            // Read in the same way as later: with page cache.
            let usage = memory_usage(root, &limit.group)?;
            let news = news(limit.limit, limit.limit.saturating_sub(limit.usage));
            Some(Group { directory: limit.group.clone(), usage, news })
        };
        let mut limits: Vec<&MemoryLimit> = limits.into_values().collect();
        limits.sort_by(|one, other| other.in_use().total_cmp(&one.in_use()));
        let groups = limits.into_iter().filter_map(group).collect();
        let machine =
            (memory.total > Bytes::ZERO).then(|| (memory.available, news(memory.total, memory.available)));
        Filling { machine, groups }
    }

    /// Returns true if memory in use has grown much since the last pass: that of the machine, or of
    /// a control group that this look reads. Ignores files that cannot be read.
    pub fn is_news(&mut self, root: &KernelRoot) -> bool {
        let group = |group: &Group| {
            memory_usage(root, &group.directory).is_some_and(|now| now.0 >= group.usage.0 + group.news.0)
        };
        let machine = |(available, news): (Bytes, Bytes)| {
            let now = meminfo(root).ok().and_then(|info| info.available);
            now.is_some_and(|now| now.0 + news.0 <= available.0)
        };
        let is_news = self.groups.iter().take(MOST_READ).any(group) || self.machine.is_some_and(machine);
        if let Some(others) = self.groups.get_mut(FULLEST..) {
            others.rotate_left(others.len().min(MOST_READ - FULLEST));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_observe::{Observer, Options};
    use megapage_snapshot::Process;
    use megapage_units::Pid;

    #[test]
    fn a_quarter_of_what_was_left_is_news() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let group = tree.path().join("sys/fs/cgroup/memory/g");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(tree.path().join("proc")).unwrap();
        let used = |mib: u64| {
            std::fs::write(group.join("memory.usage_in_bytes"), format!("{}\n", mib << 20)).unwrap();
        };
        let available = |mib: u64| {
            let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 16 << 20, mib << 10);
            std::fs::write(tree.path().join("proc/meminfo"), text).unwrap();
        };
        let options = Options { sample: false, ..Options::default() };
        let own = Pid(std::process::id().cast_signed());
        let mut snapshot = Observer::start(&KernelRoot::live(), options).unwrap().snapshot(&[own]);
        snapshot.machine.memory.total = Bytes::gib(16);
        snapshot.machine.memory.available = Bytes::gib(4);
        let limit = MemoryLimit {
            group: "/sys/fs/cgroup/memory/g".into(),
            limit: Bytes::gib(1),
            usage: Bytes::mib(824),
        };
        snapshot.processes[0].memory_limit = Some(limit);
        used(900);
        available(4096);
        let mut filling = Filling::since(&root, &snapshot);
        assert!(!filling.is_news(&root));
        used(949);
        assert!(!filling.is_news(&root));
        used(950);
        assert!(filling.is_news(&root));
        used(100);
        available(3073);
        assert!(!filling.is_news(&root));
        available(3072);
        assert!(filling.is_news(&root));
        std::fs::remove_dir_all(tree.path().join("proc")).unwrap();
        std::fs::remove_dir_all(&group).unwrap();
        assert!(!filling.is_news(&root));
    }

    #[test]
    fn the_fullest_groups_are_read_each_time_and_the_others_in_turn() {
        const BIG: u64 = 100;
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let used = |number: u64, mib: u64| {
            let group = tree.path().join(format!("sys/fs/cgroup/memory/{number}"));
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join("memory.usage_in_bytes"), format!("{}\n", mib << 20)).unwrap();
        };
        let options = Options { sample: false, ..Options::default() };
        let own = Pid(std::process::id().cast_signed());
        let mut snapshot = Observer::start(&KernelRoot::live(), options).unwrap().snapshot(&[own]);
        let template = snapshot.processes[0].clone();
        let process = |number: u64| {
            used(number, 100);
            let group = format!("/sys/fs/cgroup/memory/{number}");
            // Groups with low numbers have the most room. BIG has the largest limit, and is full.
            let (limit, usage) = if number == BIG { (65536, 65536) } else { (1000 - number, 100) };
            let (limit, usage) = (Bytes::mib(limit), Bytes::mib(usage));
            Process { memory_limit: Some(MemoryLimit { group, limit, usage }), ..template.clone() }
        };
        snapshot.processes = (0..=BIG).map(process).collect();
        let start = Filling::since(&root, &snapshot);
        let looks = |number: u64| {
            used(number, 900);
            let mut filling = start.clone();
            let count = (1..=9).find(|_| filling.is_news(&root));
            used(number, 100);
            count
        };
        let found: Vec<Option<u32>> = [99, 93, 92, 69, 68, 45, 44, 0].map(looks).into();
        assert_eq!(found, [1, 1, 1, 1, 2, 2, 3, 4].map(Some));
        used(BIG, 2000);
        let mut filling = start.clone();
        assert!((0..9).all(|_| filling.is_news(&root)), "the full group among idle ones");
    }
}
