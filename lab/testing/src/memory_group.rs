//! A control group for one user, with a limit on memory: made, and removed again.
//!
//! Sources: Documentation/admin-guide/cgroup-v1/memory.rst, .../cgroup-v2.rst.

use crate::undo::Undo;
use megapage_kernel::cgroup::{CgroupVersion, Cgroups};
use megapage_kernel::{KernelError, KernelRoot, mounts};
use megapage_units::{Bytes, Pid};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Attempts to remove a group whose processes are just ending, and the pause between them.
const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);
/// Script that tries the same for a minute.
const REMOVE: &str =
    "n=0; while [ $n -lt 1200 ] && [ -d \"$1\" ] && ! rmdir \"$1\"; do n=$((n+1)); sleep 0.05; done";

/// A group below the caller's own. It is removed when the value is dropped, once its processes have
/// ended, and also when this process is killed.
#[derive(Debug)]
pub struct MemoryGroup {
    root: KernelRoot,
    /// Relative to the root.
    directory: PathBuf,
    version: CgroupVersion,
    undo: Option<Undo>,
}

/// Memory that a group is charged with, and the effects of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Memory that is charged now, page cache included.
    pub usage: Bytes,
    /// The most that was charged at once; `None` if the kernel does not record it (version 2 before
    /// Linux 5.19).
    pub peak: Option<Bytes>,
    /// Times that a charge met the limit and had to reclaim.
    pub limit_hits: u64,
    /// Processes that the kernel killed for lack of memory in the group.
    pub oom_kills: u64,
}

impl MemoryGroup {
    /// Makes the group `name` with `limit`. The limit is on memory; it includes swap if the kernel
    /// counts that in version 1: so there is no way round the limit by swapping. An earlier group
    /// of that name, without processes, is removed first. If the name ends in the caller's process
    /// identifier, the groups of killed users with their own identifiers are removed, too, if they
    /// have no processes.
    ///
    /// ENOENT if there is no memory controller. Other errors are those of mkdir(2) and of the
    /// files. Among them is EBUSY: a group of version 2 with processes cannot have children.
    pub fn create(root: &KernelRoot, name: &str, limit: Bytes) -> Result<MemoryGroup, KernelError> {
        let nowhere = || KernelError::Io {
            path: root.path("proc/cgroups"),
            source: io::Error::from_raw_os_error(libc::ENOENT),
        };
        let memory = Cgroups::read(root, None)?.memory.ok_or_else(nowhere)?;
        let version = memory.version;
        // The root of a hierarchy of version 2 has no limit, and is no level: then the group goes
        // below the mount point.
        let parent = match memory.levels.first() {
            Some(level) => level.directory.clone(),
            None => mount_point(root).ok_or_else(nowhere)?,
        };
        let parent = parent.strip_prefix("/").unwrap_or(&parent).to_path_buf();
        if version == CgroupVersion::V2 {
            root.write(parent.join("cgroup.subtree_control"), "+memory")?;
        }
        remove_left_over(root, &parent, name);
        let mut group = MemoryGroup { root: root.clone(), directory: parent.join(name), version, undo: None };
        let path = root.path(&group.directory);
        fs::remove_dir(&path).ok();
        let io_error = |source: io::Error| KernelError::Io { path: path.clone(), source };
        fs::create_dir(&path).map_err(io_error)?;
        group.undo = Some(Undo::start(REMOVE, &[path.as_os_str()]).map_err(io_error)?);
        group.set_limit(limit)?;
        Ok(group)
    }

    /// Sets the limit. EBUSY if more is in use and cannot be reclaimed.
    pub fn set_limit(&self, limit: Bytes) -> Result<(), KernelError> {
        match self.version {
            CgroupVersion::V1 => {
                self.root.write(self.file("memory.limit_in_bytes"), &limit.0.to_string())?;
            }
            CgroupVersion::V2 => self.root.write(self.file("memory.max"), &limit.0.to_string())?,
        }
        self.allow_swap(limit, Bytes::ZERO)
    }

    /// Lets a group whose limit is `limit` have `swap` of swap space in addition;
    /// [`MemoryGroup::set_limit`] sets it to none. In version 1 the kernel limits the sum of both:
    /// EINVAL if that is less than the limit.
    pub fn allow_swap(&self, limit: Bytes, swap: Bytes) -> Result<(), KernelError> {
        let (file, most) = match self.version {
            CgroupVersion::V1 => ("memory.memsw.limit_in_bytes", limit + swap),
            CgroupVersion::V2 => ("memory.swap.max", swap),
        };
        // Absent without accounting of swap (swapaccount=0).
        match self.root.write(self.file(file), &most.0.to_string()) {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts a process into the group, which is charged with its memory from now on.
    pub fn add(&self, pid: Pid) -> Result<(), KernelError> {
        self.root.write(self.file("cgroup.procs"), &pid.to_string())
    }

    /// Returns the memory that it is charged with, and the effects of its limit.
    pub fn usage(&self) -> Result<GroupUsage, KernelError> {
        let count = |file: &str, key: &str| -> Result<u64, KernelError> {
            let text = self.root.read(self.file(file))?;
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
            Ok(found.unwrap_or(0))
        };
        let peak = |file: &str| self.root.read_u64(self.file(file)).ok().map(Bytes);
        Ok(match self.version {
            CgroupVersion::V1 => GroupUsage {
                peak: peak("memory.max_usage_in_bytes"),
                usage: Bytes(self.root.read_u64(self.file("memory.usage_in_bytes"))?),
                limit_hits: self.root.read_u64(self.file("memory.failcnt"))?,
                oom_kills: count("memory.oom_control", "oom_kill ")?,
            },
            CgroupVersion::V2 => GroupUsage {
                peak: peak("memory.peak"),
                usage: Bytes(self.root.read_u64(self.file("memory.current"))?),
                limit_hits: count("memory.events", "max ")?,
                oom_kills: count("memory.events", "oom_kill ")?,
            },
        })
    }

    /// Returns the group's directory, as the user would name it.
    pub fn directory(&self) -> PathBuf {
        Path::new("/").join(&self.directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVE_TRIES {
            // EBUSY: a killed process has not gone yet.
            match fs::remove_dir(self.root.path(&self.directory)) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => sleep(REMOVE_PAUSE),
                _ => break,
            }
        }
        if let Some(undo) = self.undo.take() {
            undo.release();
        }
    }
}

/// Removes the groups `PREFIX-PID` without processes below `parent`, if `name` is one of them and
/// no process with that number lives.
fn remove_left_over(root: &KernelRoot, parent: &Path, name: &str) {
    let split = |name: &str| {
        let (prefix, number) = name.rsplit_once('-')?;
        Some((prefix.to_string(), number.parse::<u32>().ok()?))
    };
    let Some((prefix, own)) = split(name).filter(|(_, number)| *number == std::process::id()) else { return };
    for other in root.list(parent).unwrap_or_default() {
        let is_left = split(&other).is_some_and(|(its, number)| {
            its == prefix && number != own && !root.path(format!("proc/{number}")).exists()
        });
        if is_left {
            // EBUSY: a process lives in it.
            fs::remove_dir(root.path(parent.join(other))).ok();
        }
    }
}

/// Returns the mount point of the unified hierarchy.
fn mount_point(root: &KernelRoot) -> Option<PathBuf> {
    mounts::mounts(root).ok()?.into_iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| mount.point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{require_root, skip, until, wait_for};
    use megapage_kernel::spawn::{Signals, poll_child, signal};
    use std::process::{Command, Stdio};

    fn captured_tree(files: &[(&str, &str)]) -> (tempfile::TempDir, KernelRoot) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = KernelRoot::captured(directory.path());
        (directory, root)
    }

    #[test]
    fn a_child_is_charged_in_the_group() {
        if !require_root() {
            return;
        }
        let name = format!("megapage-test-{}", std::process::id());
        let group = match MemoryGroup::create(&KernelRoot::live(), &name, Bytes::mib(64)) {
            Ok(group) => group,
            Err(error) => return skip(&format!("no memory group can be made here: {error}")),
        };
        let signals = Signals::take(&[signal::SIGCHLD]).unwrap();
        let mut command = Command::new("sh");
        // It waits for its group before it takes memory.
        command
            .args(["-c", "read go; x=$(head -c 20000000 /dev/zero | tr '\\0' x); read end"])
            .stdin(Stdio::piped());
        let (reader, mut writer) = io::pipe().unwrap();
        command.stdin(reader);
        let pid = signals.spawn_bound(&mut command, signal::SIGKILL).unwrap();
        drop(command);
        group.add(pid).unwrap();
        io::Write::write_all(&mut writer, b"go\n").unwrap();
        wait_for("19 MiB", || group.usage().unwrap().usage >= Bytes::mib(19));
        let usage = group.usage().unwrap();
        assert_eq!(usage.oom_kills, 0);
        assert!(usage.peak.is_none_or(|peak| peak >= Bytes::mib(19)), "{usage:?}");
        let directory = group.directory();
        assert!(directory.exists());
        drop(writer);
        until("its end", || poll_child(pid).unwrap());
        drop(group);
        assert!(!directory.exists());
        // The shell removes the group of a killed owner.
        let mut group = MemoryGroup::create(&KernelRoot::live(), &name, Bytes::mib(64)).unwrap();
        assert!(directory.exists());
        drop(group.undo.take());
        assert!(!directory.exists());
    }

    #[test]
    fn version_2_is_written_to_by_its_own_names() {
        let (keep, root) = captured_tree(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"),
            ("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t90\t1\n"),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", ""),
        ]);
        // A synthetic tree makes no files in a new group: writing the limit fails, with its own
        // path.
        let error = MemoryGroup::create(&root, "bench", Bytes::mib(8)).unwrap_err();
        assert!(error.to_string().contains("sys/fs/cgroup/bench/memory.max"), "{error}");
        assert_eq!(root.read("sys/fs/cgroup/cgroup.subtree_control").unwrap(), "+memory");
        assert!(!keep.path().join("sys/fs/cgroup/bench").exists(), "and the group is gone again");
        // Removes the groups of users that were killed with all their processes, but no group of a
        // living process.
        let own = std::process::id();
        for directory in ["bench-4000001", "bench-4000002", "other-4000001", "bench-x"] {
            fs::create_dir(keep.path().join("sys/fs/cgroup").join(directory)).unwrap();
        }
        fs::create_dir(keep.path().join("proc/4000002")).unwrap();
        MemoryGroup::create(&root, &format!("bench-{own}"), Bytes::mib(8)).unwrap_err();
        let left = root.list("sys/fs/cgroup").unwrap();
        assert_eq!(
            left,
            ["bench-4000002", "bench-x", "cgroup.controllers", "cgroup.subtree_control", "other-4000001"]
        );

        let directory = PathBuf::from("sys/fs/cgroup/other");
        fs::create_dir(root.path(&directory)).unwrap();
        let group = MemoryGroup { root: root.clone(), directory, version: CgroupVersion::V2, undo: None };
        for (file, text) in [
            ("memory.current", "4096\n"),
            ("memory.events", "low 0\nmax 7\noom 2\noom_kill 1\n"),
            ("memory.peak", "8192\n"),
        ] {
            fs::write(root.path(group.file(file)), text).unwrap();
        }
        let expected =
            GroupUsage { usage: Bytes(4096), peak: Some(Bytes(8192)), limit_hits: 7, oom_kills: 1 };
        assert_eq!(group.usage().unwrap(), expected);
        for file in ["memory.max", "memory.swap.max"] {
            fs::write(root.path(group.file(file)), "max\n").unwrap();
        }
        let limits = || ["memory.max", "memory.swap.max"].map(|file| root.read(group.file(file)).unwrap());
        group.set_limit(Bytes::kib(8)).unwrap();
        assert_eq!(limits(), ["8192", "0"], "there is no way round the limit");
        group.allow_swap(Bytes::kib(8), Bytes::kib(4)).unwrap();
        assert_eq!(limits(), ["8192", "4096"]);
        // The directory of the synthetic tree stays: to rmdir(2) it is not empty, unlike a group of
        // the kernel's.
    }

    #[test]
    fn without_a_controller_there_is_no_group() {
        let (_keep, root) =
            captured_tree(&[("proc/self/cgroup", ""), ("proc/self/mountinfo", ""), ("proc/cgroups", "")]);
        assert!(MemoryGroup::create(&root, "bench", Bytes::mib(8)).unwrap_err().is_gone());
    }
}
