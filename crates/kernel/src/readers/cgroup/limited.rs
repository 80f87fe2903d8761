//! Memory limits of many processes: each control group is read once.

use super::{Charge, Level, View, memory_charge};
use crate::mounts::{Mount, mounts};
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::collections::BTreeMap;

/// A control group whose memory is limited, as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedGroup {
    /// Directory of its files.
    pub directory: String,
    /// The lower of two limits. Beyond `memory.max` processes are killed; beyond `memory.high` they
    /// are made to wait.
    pub limit: Bytes,
    /// Bytes charged, without inactive page cache, which gives way.
    pub usage: Bytes,
}

/// Memory limits of many processes at one moment. Each group is read once, and its values are kept.
#[derive(Debug)]
pub struct MemoryLimits<'a> {
    root: &'a KernelRoot,
    mounts: Vec<Mount>,
    known: String,
    /// Fullest limited group, by the text of `/proc/PID/cgroup`.
    groups: BTreeMap<String, Option<LimitedGroup>>,
}

impl<'a> MemoryLimits<'a> {
    /// Reads the mounts and the controllers; no group is read yet.
    pub fn new(root: &'a KernelRoot) -> Result<MemoryLimits<'a>, KernelError> {
        let known = root.read("proc/cgroups").unwrap_or_default();
        Ok(MemoryLimits { root, mounts: mounts(root)?, known, groups: BTreeMap::new() })
    }

    /// Returns the fullest, by its share, of the groups that limit the memory of `pid`: its own and
    /// those above. `None` where no visible group limits it.
    pub fn of(&mut self, pid: Pid) -> Result<Option<LimitedGroup>, KernelError> {
        let own = self.root.read(format!("proc/{pid}/cgroup"))?;
        if let Some(group) = self.groups.get(&own) {
            return Ok(group.clone());
        }
        let view = View { root: self.root, own: &own, mounts: &self.mounts, known: &self.known };
        let lineage = view.lineage("memory", memory_charge);
        let levels = lineage.into_iter().flat_map(|lineage| lineage.levels);
        let limited = levels.filter_map(|level| limited(self.root, level));
        let fullest = limited.max_by(|one, other| one.share().total_cmp(&other.share()));
        self.groups.insert(own, fullest.clone());
        Ok(fullest)
    }
}

impl LimitedGroup {
    fn share(&self) -> f64 {
        self.usage.0 as f64 / self.limit.0.max(1) as f64
    }
}

fn limited(root: &KernelRoot, level: Level<Charge>) -> Option<LimitedGroup> {
    let Charge { limit, usage } = level.charged;
    let directory = level.directory.display().to_string();
    // Only version 2 has `memory.high`. Its "max" is no number, and no bound.
    let high = root.read(format!("{}/memory.high", directory.trim_start_matches('/'))).ok();
    let high = high.and_then(|text| text.trim().parse().ok()).map(Bytes);
    let limit = limit.into_iter().chain(high).min()?;
    Some(LimitedGroup { directory, limit, usage })
}

/// Returns the memory that a group is charged with, page cache included: one small file. The group
/// is given by its directory.
pub fn memory_usage(root: &KernelRoot, directory: &str) -> Option<Bytes> {
    let directory = directory.trim_start_matches('/');
    let read = |name: &str| root.read_u64(format!("{directory}/{name}")).ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes")).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn the_fullest_group_above_a_process_counts() {
        let (_keep, root) = captured_tree(&[
            ("proc/7/cgroup", "4:memory:/a/b\n0::/\n"),
            ("proc/8/cgroup", "4:memory:/\n0::/\n"),
            ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/release_agent", ""),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "900\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 100\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "500\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n"),
        ]);
        let mut limits = MemoryLimits::new(&root).unwrap();
        let directory = root.path("sys/fs/cgroup/memory/a").display().to_string();
        let found = limits.of(Pid(7)).unwrap().unwrap();
        assert_eq!((found.limit, found.usage), (Bytes(1000), Bytes(800)));
        assert!(directory.ends_with(found.directory.trim_start_matches('/')), "{found:?}");
        assert_eq!(memory_usage(&root, &found.directory), Some(Bytes(900)));
        assert_eq!(limits.of(Pid(8)).unwrap(), None);
        assert!(limits.of(Pid(9)).unwrap_err().is_gone());
        assert_eq!(memory_usage(&root, "/sys/fs/cgroup/none"), None);
    }

    #[test]
    fn a_group_is_as_limited_as_its_lower_mark() {
        for (high, most, expected) in [
            ("700", "1000", Some(700)),
            ("max", "1000", Some(1000)),
            ("700", "max", Some(700)),
            ("max", "max", None),
        ] {
            let (_keep, root) = captured_tree(&[
                ("proc/7/cgroup", "0::/a\n"),
                ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
                ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
                ("sys/fs/cgroup/a/cgroup.controllers", "memory\n"),
                ("sys/fs/cgroup/a/memory.high", high),
                ("sys/fs/cgroup/a/memory.max", most),
                ("sys/fs/cgroup/a/memory.current", "600\n"),
                ("sys/fs/cgroup/a/memory.stat", "inactive_file 0\n"),
            ]);
            let found = MemoryLimits::new(&root).unwrap().of(Pid(7)).unwrap();
            assert_eq!(found.map(|group| group.limit.0), expected, "{high} {most}");
        }
    }
}
