//! Control groups: the hugetlb and memory limits that apply to a process, on hierarchies of version
//! 1, 2 or both.
//!
//! Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst, .../cgroup-v1/hugetlb.rst.

mod accounts;
mod limited;

pub use accounts::{GroupAccounts, Resource, machine_stalled};
pub use limited::{LimitedGroup, MemoryLimits, memory_usage};

use crate::mounts::{Mount, mounts};
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, PageSize, Pid};
use std::path::{Path, PathBuf};

/// The version of the hierarchy that a controller is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy apart from the unified one (`fstype cgroup`).
    V1,
    /// The unified hierarchy (`fstype cgroup2`).
    V2,
}

/// A limit, and the usage that is charged against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// `None`: unlimited.
    pub limit: Option<Bytes>,
    /// Bytes charged to the group and everything below it.
    pub usage: Bytes,
}

impl Charge {
    /// Returns the bytes that may still be charged; `None`: no limit here.
    pub fn room(self) -> Option<Bytes> {
        self.limit.map(|limit| limit.saturating_sub(self.usage))
    }
}

/// The hugetlb controller's values for one page size in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugetlbCharge {
    /// The pool that is limited.
    pub page_size: PageSize,
    /// `hugetlb.<size>.max`: charged page by page at the fault. The kernel answers a fault beyond
    /// it with SIGBUS.
    pub fault: Charge,
    /// `hugetlb.<size>.rsvd.max`: charged at mmap(2) or shmget(2), which answer ENOMEM beyond it.
    pub reservation: Charge,
}

/// One group, and a controller's values for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level<T> {
    /// Directory of its files, as the user would name it.
    pub directory: PathBuf,
    /// The controller's values.
    pub charged: T,
}

/// A process's group under one controller, and that group's ancestors as far as they can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage<T> {
    /// Version of the hierarchy that the controller is on.
    pub version: CgroupVersion,
    /// The group's path in `/proc/PID/cgroup`.
    pub path: String,
    /// The group itself first, then its ancestors. A level without limits is left out: the root of
    /// the hierarchy, or a group for which the controller is not enabled.
    pub levels: Vec<Level<T>>,
    /// True if no other level can limit the process. `false` inside a cgroup namespace or a
    /// container, where limits of ancestors apply without being visible.
    pub complete: bool,
}

/// Control groups of one process. A controller that the kernel lacks, or has disabled, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// The hugetlb controller; one entry for each page size at each level.
    pub hugetlb: Option<Lineage<Vec<HugetlbCharge>>>,
    /// The memory controller. The usage leaves out inactive page cache, which gives way to a
    /// charge.
    pub memory: Option<Lineage<Charge>>,
    /// True if hugetlb pages are charged to the memory controller as well (mount option
    /// `memory_hugetlb_accounting`, Linux 6.7).
    pub memory_counts_hugetlb: bool,
}

impl Cgroups {
    /// Reads the control groups of process `pid`, or of the caller.
    pub fn read(root: &KernelRoot, pid: Option<Pid>) -> Result<Cgroups, KernelError> {
        let own = match pid {
            Some(pid) => root.read(format!("proc/{pid}/cgroup")),
            None => root.read("proc/self/cgroup"),
        };
        let own = match own {
            Ok(text) => text,
            // A kernel without CONFIG_CGROUPS has no such file, though it has the process.
            Err(error) if error.is_gone() && pid.is_none() => return Ok(Cgroups::default()),
            Err(error) => return Err(error),
        };
        let mounts = mounts(root)?;
        // Absent on kernels without version 1 support.
        let known = root.read("proc/cgroups").unwrap_or_default();
        let view = View { root, own: &own, mounts: &mounts, known: &known };
        Ok(Cgroups {
            hugetlb: view.lineage("hugetlb", hugetlb_charges),
            memory: view.lineage("memory", memory_charge),
            memory_counts_hugetlb: mounts.iter().any(|mount| {
                version_of(mount) == Some(CgroupVersion::V2)
                    && mount.super_options.iter().any(|option| option == "memory_hugetlb_accounting")
            }),
        })
    }

    /// Returns true if the kernel may refuse (with SIGBUS) a fault on a hugetlb page that was
    /// successfully mapped.
    ///
    /// Errs towards `true`: any limit on faults at a visible level counts, whatever its size.
    /// Ancestors that can't be seen count as well.
    pub fn hugetlb_fault_may_be_refused(&self) -> bool {
        let by_hugetlb = self.hugetlb.as_ref().is_some_and(|lineage| {
            !lineage.complete
                || lineage
                    .levels
                    .iter()
                    .any(|level| level.charged.iter().any(|size| size.fault.limit.is_some()))
        });
        let by_memory = self.memory_counts_hugetlb
            && self.memory.as_ref().is_some_and(|lineage| {
                !lineage.complete || lineage.levels.iter().any(|level| level.charged.limit.is_some())
            });
        by_hugetlb || by_memory
    }

    /// Returns the least room for faults on pages of `size` over all visible levels; `None`: no
    /// visible limit.
    pub fn hugetlb_fault_room(&self, size: PageSize) -> Option<Bytes> {
        self.least_hugetlb_room(size, |charge| charge.fault)
    }

    /// Returns the least room for reservations of pages of `size` over all visible levels; `None`:
    /// no visible limit.
    pub fn hugetlb_reservation_room(&self, size: PageSize) -> Option<Bytes> {
        self.least_hugetlb_room(size, |charge| charge.reservation)
    }

    /// Returns the least room for ordinary memory over all visible levels; `None`: no visible
    /// limit.
    pub fn memory_room(&self) -> Option<Bytes> {
        self.memory.as_ref()?.levels.iter().filter_map(|level| level.charged.room()).min()
    }

    /// Returns the least limit on ordinary memory over all visible levels; `None`: no visible
    /// limit.
    pub fn memory_limit(&self) -> Option<Bytes> {
        self.memory.as_ref()?.levels.iter().filter_map(|level| level.charged.limit).min()
    }

    fn least_hugetlb_room(&self, size: PageSize, charge: impl Fn(&HugetlbCharge) -> Charge) -> Option<Bytes> {
        let levels = &self.hugetlb.as_ref()?.levels;
        levels
            .iter()
            .flat_map(|level| &level.charged)
            .filter(|charge| charge.page_size == size)
            .filter_map(|it| charge(it).room())
            .min()
    }
}

/// Line of one controller in `/proc/cgroups`.
struct Known {
    enabled: bool,
    /// Number of groups in its hierarchy. A single group is the root, which has no limits.
    groups: u64,
}

/// Data that is read once and needed for every controller.
struct View<'a> {
    root: &'a KernelRoot,
    own: &'a str,
    mounts: &'a [Mount],
    known: &'a str,
}

impl View<'_> {
    fn lineage<T>(
        &self,
        controller: &str,
        read: impl Fn(&KernelRoot, &Path, CgroupVersion) -> Option<T>,
    ) -> Option<Lineage<T>> {
        let known = self.known(controller);
        if known.as_ref().is_some_and(|known| !known.enabled) {
            return None;
        }
        let (version, path) = self.path(controller)?;
        let only_root = known.as_ref().is_some_and(|known| known.groups <= 1);
        let mount = self.mounts.iter().find(|mount| {
            version_of(mount) == Some(version)
                && (version == CgroupVersion::V2
                    || mount.super_options.iter().any(|option| option == controller))
        });
        let Some((mount, below)) = mount.and_then(|mount| Some((mount, below(&path, &mount.directory)?)))
        else {
            return Some(Lineage { version, path, levels: Vec::new(), complete: only_root });
        };
        let top = mount.point.clone();
        let is_root = self.is_hierarchy_root(&top, version);
        if version == CgroupVersion::V2 && is_root && known.is_none() && !self.offers(&top, controller) {
            return None;
        }
        let levels = below
            .ancestors()
            .map(|group| top.join(group))
            .filter_map(|directory| {
                let charged = read(self.root, relative(&directory), version)?;
                Some(Level { directory, charged })
            })
            .collect();
        Some(Lineage { version, path, levels, complete: is_root || only_root })
    }

    /// Parses the controller's line, `name hierarchy num_cgroups enabled`, after a header.
    fn known(&self, controller: &str) -> Option<Known> {
        let line = self.known.lines().find(|line| line.split_whitespace().next() == Some(controller))?;
        let mut fields = line.split_whitespace().skip(2);
        Some(Known { groups: fields.next()?.parse().ok()?, enabled: fields.next()? != "0" })
    }

    /// Returns the hierarchy that the controller is on, and the process's path there. Each line is
    /// `ID:controllers:path`; version 2 has the ID 0 and no controllers.
    fn path(&self, controller: &str) -> Option<(CgroupVersion, String)> {
        let mut unified = None;
        for line in self.own.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.split(',').any(|name| name == controller) {
                return Some((CgroupVersion::V1, path.to_string()));
            }
            if id == "0" && controllers.is_empty() {
                unified = Some((CgroupVersion::V2, path.to_string()));
            }
        }
        unified
    }

    /// Returns true if `top` is the root of a whole hierarchy, by its files. The root of a
    /// namespace or of a bind mount is none.
    fn is_hierarchy_root(&self, top: &Path, version: CgroupVersion) -> bool {
        let has = |name: &str| self.root.read(relative(&top.join(name))).is_ok();
        match version {
            CgroupVersion::V1 => has("release_agent"),
            CgroupVersion::V2 => has("cgroup.controllers") && !has("cgroup.events"),
        }
    }

    fn offers(&self, top: &Path, controller: &str) -> bool {
        let text = self.root.read(relative(&top.join("cgroup.controllers"))).unwrap_or_default();
        text.split_whitespace().any(|name| name == controller)
    }
}

/// Returns the version of the hierarchy that a mount shows; `None`: it is something else.
fn version_of(mount: &Mount) -> Option<CgroupVersion> {
    match mount.fs_type.as_str() {
        "cgroup" => Some(CgroupVersion::V1),
        "cgroup2" => Some(CgroupVersion::V2),
        _ => None,
    }
}

/// Returns `path` relative to the group that a mount shows as its root; `None` where it lies
/// outside.
fn below(path: &str, mount_root: &Path) -> Option<PathBuf> {
    let below = Path::new(path).strip_prefix(mount_root).ok()?;
    // A group above the namespace's root is shown as `/..`.
    let plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    plain.then(|| below.to_path_buf())
}

/// Returns an absolute path without its leading slash, as [`KernelRoot`] wants it.
fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Reads every `hugetlb.<size>.*` of a group; `None` where it has none.
fn hugetlb_charges(root: &KernelRoot, group: &Path, version: CgroupVersion) -> Option<Vec<HugetlbCharge>> {
    let (limit, usage) = match version {
        CgroupVersion::V1 => ("limit_in_bytes", "usage_in_bytes"),
        CgroupVersion::V2 => ("max", "current"),
    };
    let charge = |prefix: &str| {
        charge(root, &group.join(format!("{prefix}.{limit}")), &group.join(format!("{prefix}.{usage}")))
    };
    let mut charges: Vec<HugetlbCharge> = root
        .list(group)
        .ok()?
        .iter()
        .filter_map(|name| {
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(limit)?.strip_suffix('.')?;
            let page_size = size.parse().ok()?;
            let fault = charge(&format!("hugetlb.{size}"))?;
            // Reservations are limited from Linux 5.7 on.
            let reservation = charge(&format!("hugetlb.{size}.rsvd")).unwrap_or_default();
            Some(HugetlbCharge { page_size, fault, reservation })
        })
        .collect();
    charges.sort_by_key(|charge| charge.page_size);
    (!charges.is_empty()).then_some(charges)
}

/// Reads `memory.max` (2) or `memory.limit_in_bytes` (1) of a group; `None` where it has neither.
/// Inactive page cache is taken off the usage: the kernel drops it before it refuses a charge.
fn memory_charge(root: &KernelRoot, group: &Path, version: CgroupVersion) -> Option<Charge> {
    let (limit, usage) = match version {
        CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        CgroupVersion::V2 => ("memory.max", "memory.current"),
    };
    let mut charge = charge(root, &group.join(limit), &group.join(usage))?;
    let cache = match version {
        CgroupVersion::V1 => "total_inactive_file ",
        CgroupVersion::V2 => "inactive_file ",
    };
    let statistics = root.read(group.join("memory.stat")).unwrap_or_default();
    let cache = statistics.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse().ok());
    charge.usage = charge.usage.saturating_sub(Bytes(cache.unwrap_or(0)));
    Some(charge)
}

fn charge(root: &KernelRoot, limit: &Path, usage: &Path) -> Option<Charge> {
    // Version 1 has no word for "no limit": it shows the largest page counter, rounded down to a
    // whole page.
    const UNLIMITED: u64 = 1 << 62;
    let text = root.read(limit).ok()?;
    let limit = match text.trim() {
        "max" => None,
        value => Some(value.parse().ok()?).filter(|bytes| *bytes < UNLIMITED).map(Bytes),
    };
    Some(Charge { limit, usage: Bytes(root.read_u64(usage).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree as tree;

    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_2_takes_the_least_room_of_all_ancestors() {
        let (_keep, root) = tree(&[
            ("proc/self/cgroup", "0::/app.slice/db.service\n"),
            ("proc/self/mountinfo", V2),
            (
                "proc/cgroups",
                "#subsys_name\thierarchy\tnum_cgroups\tenabled\nhugetlb\t0\t90\t1\nmemory\t0\t90\t1\n",
            ),
            ("sys/fs/cgroup/cgroup.controllers", "memory hugetlb\n"),
            ("sys/fs/cgroup/app.slice/cgroup.events", "populated 1\n"),
            ("sys/fs/cgroup/app.slice/hugetlb.2MB.max", "10485760\n"),
            ("sys/fs/cgroup/app.slice/hugetlb.2MB.current", "6291456\n"),
            ("sys/fs/cgroup/app.slice/hugetlb.2MB.rsvd.max", "max\n"),
            ("sys/fs/cgroup/app.slice/hugetlb.2MB.rsvd.current", "8388608\n"),
            ("sys/fs/cgroup/app.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/app.slice/memory.current", "1000\n"),
            ("sys/fs/cgroup/app.slice/db.service/hugetlb.2MB.max", "8388608\n"),
            ("sys/fs/cgroup/app.slice/db.service/hugetlb.2MB.current", "2097152\n"),
            ("sys/fs/cgroup/app.slice/db.service/hugetlb.1GB.max", "max\n"),
            ("sys/fs/cgroup/app.slice/db.service/hugetlb.1GB.current", "0\n"),
            ("sys/fs/cgroup/app.slice/db.service/memory.max", "4096\n"),
            ("sys/fs/cgroup/app.slice/db.service/memory.current", "1000\n"),
            ("sys/fs/cgroup/app.slice/db.service/memory.stat", "anon 500\ninactive_file 400\n"),
        ]);
        let groups = Cgroups::read(&root, None).unwrap();
        let hugetlb = groups.hugetlb.as_ref().unwrap();
        assert!(hugetlb.complete);
        assert_eq!(hugetlb.version, CgroupVersion::V2);
        let directories: Vec<_> =
            hugetlb.levels.iter().map(|level| level.directory.to_str().unwrap()).collect();
        assert_eq!(directories, ["/sys/fs/cgroup/app.slice/db.service", "/sys/fs/cgroup/app.slice"]);
        assert_eq!(groups.hugetlb_fault_room(PageSize::HUGE_2M), Some(Bytes::mib(4)));
        assert_eq!(groups.hugetlb_fault_room(PageSize::HUGE_1G), None);
        assert_eq!(groups.hugetlb_reservation_room(PageSize::HUGE_2M), None);
        assert_eq!(groups.memory_room(), Some(Bytes(4096 - (1000 - 400))));
        assert!(groups.hugetlb_fault_may_be_refused());
    }

    #[test]
    fn version_1_reads_its_own_hierarchy_and_its_spelling_of_unlimited() {
        let (_keep, root) = tree(&[
            ("proc/77/cgroup", "9:hugetlb:/docker/ab\n4:memory:/docker/ab\n0::/\n"),
            (
                "proc/self/mountinfo",
                "40 31 0:36 / /sys/fs/cgroup/huge\\040tlb rw - cgroup cgroup rw,hugetlb\n\
                 35 31 0:32 /docker /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/huge tlb/release_agent", ""),
            ("sys/fs/cgroup/huge tlb/docker/ab/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n"),
            ("sys/fs/cgroup/huge tlb/docker/ab/hugetlb.2MB.usage_in_bytes", "0\n"),
            ("sys/fs/cgroup/memory/ab/memory.limit_in_bytes", "8192\n"),
            ("sys/fs/cgroup/memory/ab/memory.usage_in_bytes", "9000\n"),
        ]);
        let groups = Cgroups::read(&root, Some(Pid(77))).unwrap();
        let hugetlb = groups.hugetlb.as_ref().unwrap();
        assert_eq!(hugetlb.version, CgroupVersion::V1);
        assert!(hugetlb.complete);
        assert_eq!(hugetlb.levels[0].charged[0].fault.limit, None);
        assert!(!groups.hugetlb_fault_may_be_refused());
        // The mount shows /docker as its root and has no release_agent: groups above it can't be
        // seen.
        let memory = groups.memory.as_ref().unwrap();
        assert!(!memory.complete);
        assert_eq!(groups.memory_room(), Some(Bytes::ZERO));
    }

    #[test]
    fn in_a_namespace_hidden_ancestors_may_refuse_a_fault() {
        let files = [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/cgroup.events", "populated 1\n"),
        ];
        let (_keep, root) = tree(&files);
        let groups = Cgroups::read(&root, None).unwrap();
        assert!(!groups.hugetlb.as_ref().unwrap().complete);
        assert!(groups.hugetlb_fault_may_be_refused());

        // The kernel knows of no group but the root, so that no process can have set a limit.
        let alone = [&files[..], &[("proc/cgroups", "hugetlb\t0\t1\t1\n")]].concat();
        let (_keep, root) = tree(&alone);
        assert!(!Cgroups::read(&root, None).unwrap().hugetlb_fault_may_be_refused());

        let disabled = [&files[..], &[("proc/cgroups", "hugetlb\t0\t90\t0\n")]].concat();
        let (_keep, root) = tree(&disabled);
        assert_eq!(Cgroups::read(&root, None).unwrap().hugetlb, None);
    }

    #[test]
    fn an_unmounted_or_outer_group_is_not_visible() {
        let (_keep, root) = tree(&[
            ("proc/self/cgroup", "0::/../other\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/cgroup.controllers", "memory hugetlb\n"),
        ]);
        let groups = Cgroups::read(&root, None).unwrap();
        assert!(!groups.hugetlb.unwrap().complete);
        let (_keep, root) = tree(&[("proc/self/cgroup", "3:hugetlb:/a\n"), ("proc/self/mountinfo", "")]);
        assert!(Cgroups::read(&root, None).unwrap().hugetlb_fault_may_be_refused());
    }

    #[test]
    fn a_root_without_the_controller_has_none() {
        let (_keep, root) = tree(&[
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ]);
        let groups = Cgroups::read(&root, None).unwrap();
        assert_eq!(groups.hugetlb, None);
        assert!(groups.memory.is_some());
        let (_keep, root) = tree(&[]);
        assert_eq!(Cgroups::read(&root, None).unwrap(), Cgroups::default());
        assert!(Cgroups::read(&root, Some(Pid(5))).unwrap_err().is_gone());
    }

    #[test]
    fn hugetlb_charged_to_memory_counts() {
        let (_keep, root) = tree(&[
            ("proc/self/cgroup", "0::/a\n"),
            (
                "proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,memory_hugetlb_accounting\n",
            ),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "0\n"),
        ]);
        assert!(Cgroups::read(&root, None).unwrap().hugetlb_fault_may_be_refused());
    }

    #[test]
    fn the_running_machine_can_be_read() {
        Cgroups::read(&KernelRoot::live(), None).unwrap();
    }
}
