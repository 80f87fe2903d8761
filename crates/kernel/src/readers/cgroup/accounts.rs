//! Accounts that a control group of version 2 keeps: processor time and pressure.

use super::{below, relative, version_of};
use crate::cgroup::CgroupVersion;
use crate::mounts::mounts;
use crate::pressure::stalled;
use crate::{KernelError, KernelRoot};
use megapage_units::Pid;
use std::path::PathBuf;
use std::time::Duration;

megapage_units::named! {
    /// A resource that tasks wait for (Documentation/accounting/psi.rst).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Resource {
        /// A processor.
        Cpu = "cpu",
        /// Memory.
        Memory = "memory",
        /// Input and output.
        Io = "io",
    }
}

/// Returns the time for which some task of the machine has waited so far.
pub fn machine_stalled(root: &KernelRoot, resource: Resource) -> Result<Duration, KernelError> {
    read_stalled(root, format!("proc/pressure/{}", resource.name()))
}

fn read_stalled(root: &KernelRoot, path: String) -> Result<Duration, KernelError> {
    let text = root.read(&path)?;
    stalled(&text).ok_or_else(|| KernelError::Parse {
        path: root.path(&path),
        line: 1,
        what: "expected a line 'some' with total".into(),
    })
}

/// The accounts of one control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAccounts {
    directory: PathBuf,
}

impl GroupAccounts {
    /// Returns the accounts of the group of `pid`. `None` if the group is not of version 2, cannot
    /// be seen, or is the root of all groups.
    pub fn of(root: &KernelRoot, pid: Pid) -> Result<Option<GroupAccounts>, KernelError> {
        let own = root.read(format!("proc/{pid}/cgroup"))?;
        let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Ok(None) };
        let mounts = mounts(root)?;
        let unified = mounts.iter().filter(|mount| version_of(mount) == Some(CgroupVersion::V2));
        let directory = unified.filter_map(|it| Some(it.point.join(below(path, &it.directory)?))).next();
        let accounts = directory.map(|directory| GroupAccounts { directory });
        Ok(accounts.filter(|it| path != "/" && it.processor(root).is_ok()))
    }

    /// Returns the processor time that the group and all below it have taken so far (`usage_usec`
    /// of `cpu.stat`).
    pub fn processor(&self, root: &KernelRoot) -> Result<Duration, KernelError> {
        let path = relative(&self.directory).join("cpu.stat");
        let text = root.read(&path)?;
        let value = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok());
        value.map(Duration::from_micros).ok_or_else(|| KernelError::Parse {
            path: root.path(&path),
            line: 1,
            what: "expected a line 'usage_usec'".into(),
        })
    }

    /// Returns the time for which some task of the group has waited so far.
    pub fn stalled(&self, root: &KernelRoot, resource: Resource) -> Result<Duration, KernelError> {
        let path = relative(&self.directory).join(format!("{}.pressure", resource.name()));
        read_stalled(root, path.display().to_string())
    }

    /// Returns the group's directory, as a user would name it.
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn a_groups_time_and_pressure_are_read() {
        let (_keep, root) = captured_tree(&[
            ("proc/7/cgroup", "0::/system.slice/a.service\n"),
            ("proc/8/cgroup", "0::/\n"),
            ("proc/9/cgroup", "4:memory:/x\n"),
            ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/cpu.stat", "usage_usec 99\n"),
            (
                "sys/fs/cgroup/system.slice/a.service/cpu.stat",
                "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
            ),
            (
                "sys/fs/cgroup/system.slice/a.service/io.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=250\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            ),
            ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n"),
        ]);
        let group = GroupAccounts::of(&root, Pid(7)).unwrap().unwrap();
        assert!(group.directory().ends_with("system.slice/a.service"));
        assert_eq!(group.processor(&root).unwrap(), Duration::from_millis(1500));
        assert_eq!(group.stalled(&root, Resource::Io).unwrap(), Duration::from_micros(250));
        assert!(group.stalled(&root, Resource::Memory).unwrap_err().is_gone());
        assert_eq!(machine_stalled(&root, Resource::Cpu).unwrap(), Duration::from_secs(3));
        assert_eq!(GroupAccounts::of(&root, Pid(8)).unwrap(), None, "that is the whole machine");
        assert_eq!(GroupAccounts::of(&root, Pid(9)).unwrap(), None);
    }
}
