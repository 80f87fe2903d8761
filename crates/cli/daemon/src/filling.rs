//! Detection of memory that fills fast between two passes. It reads a few small files, about ten
//! times a second.

use megapage_kernel::cgroup::memory_usage;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_snapshot::Snapshot;
use megapage_units::Bytes;

/// Divisor of the available memory: use of such a part makes the policy look again...
const PART: u64 = 4;
/// ...or use of this part of the whole, if that is more.
const LEAST_PART: u64 = 64;

/// Memory in use at the last pass, for the machine and for limited control groups.
#[derive(Clone, Debug, Default)]
pub struct Filling {
    /// Available memory, and the decrease that counts as news.
    machine: Option<(Bytes, Bytes)>,
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
        let mut groups: Vec<Group> = Vec::new();
        for limit in snapshot.processes.iter().filter_map(|process| process.memory_limit.as_ref()) {
            if groups.iter().any(|group| group.directory == limit.group) {
                continue;
            }
            // Read in the same way as later: with page cache.
            let Some(usage) = memory_usage(root, &limit.group) else { continue };
            let news = news(limit.limit, limit.limit.saturating_sub(limit.usage));
            groups.push(Group { directory: limit.group.clone(), usage, news });
        }
        let machine =
            (memory.total > Bytes::ZERO).then(|| (memory.available, news(memory.total, memory.available)));
        Filling { machine, groups }
    }

    /// Returns true if much more is in use by now. A file that cannot be read does not count.
    pub fn is_news(&self, root: &KernelRoot) -> bool {
        let group = |group: &Group| {
            memory_usage(root, &group.directory).is_some_and(|now| now.0 >= group.usage.0 + group.news.0)
        };
        let machine = |(available, news): (Bytes, Bytes)| {
            let now = meminfo(root).ok().and_then(|info| info.available);
            now.is_some_and(|now| now.0 + news.0 <= available.0)
        };
        self.groups.iter().any(group) || self.machine.is_some_and(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_observe::{Observer, Options};
    use megapage_snapshot::MemoryLimit;
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
        let filling = Filling::since(&root, &snapshot);
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
}
