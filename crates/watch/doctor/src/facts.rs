//! Facts about a machine, a user and a program: plain data, from which everything else follows.

use megapage_kernel::ability::{Ability, Standing, THP};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::hugetlb::PoolCounts;
use megapage_kernel::identity::Capabilities;
use megapage_kernel::limits::{Limit, Limits, Sysctls};
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::ThpSettings;
use megapage_launch::program::Program;
use megapage_units::{Bytes, PageSize};
use std::path::PathBuf;

/// The user in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// Login name, or the number if there is no name.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The main group.
    pub gid: u32,
    /// All groups, including the main one.
    pub groups: Vec<u32>,
    /// The same groups by their numbers in the machine's initial user namespace:
    /// vm.hugetlb_shm_group is compared with these.
    pub groups_of_machine: Vec<u32>,
    /// Rights of the user's processes: the caller's capabilities, or those that a login has.
    pub capabilities: Capabilities,
    /// True if this user runs the doctor.
    pub is_caller: bool,
}

/// One pool of hugetlb pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// The size of its pages.
    pub page_size: PageSize,
    /// The machine's values.
    pub counts: PoolCounts,
    /// Free pages on the nodes that the user's processes may take memory from; `None` if those are
    /// all nodes.
    pub on_nodes: Option<u64>,
}

/// The machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Total memory.
    pub total: Bytes,
    /// Memory that programs can get without swapping.
    pub available: Bytes,
    /// Memory that is free in blocks of at least 2 MiB; `None` if it cannot be read here.
    pub in_huge_blocks: Option<Bytes>,
}

impl Memory {
    /// Returns true if less than 5 % is available.
    pub fn is_short(&self) -> bool {
        self.available.0 < self.total.0 / 20
    }
}

/// Limits of the user's processes, and their source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserLimits {
    /// The limits themselves.
    pub limits: Limits,
    /// `this process`, `process 812 of tomcat`, or the file that governs logins.
    pub source: String,
}

/// A directory on the way to a mount point, with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The directory.
    pub path: PathBuf,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
}

/// A hugetlbfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HugetlbMount {
    /// Mount point.
    pub point: PathBuf,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Most bytes that all its files together may hold; `None` for all of the pool.
    pub size: Option<Bytes>,
    /// True if nothing can be written.
    pub read_only: bool,
    /// Directories from the root to the mount point, including the mount point.
    pub steps: Vec<Step>,
}

impl HugetlbMount {
    /// Returns the directory that keeps this user from creating a file in the mount; `None` if none
    /// does.
    ///
    /// Ignores access control lists: hugetlbfs has none.
    pub fn denied_at(&self, user: &User) -> Option<&Step> {
        const SEARCH: u32 = 0o1;
        const WRITE: u32 = 0o2;
        if user.capabilities.dac_override() {
            return None;
        }
        let last = self.steps.len().saturating_sub(1);
        self.steps.iter().enumerate().find_map(|(index, step)| {
            let needed = if index == last { SEARCH | WRITE } else { SEARCH };
            let class = match step {
                step if step.uid == user.uid => 6,
                step if user.groups.contains(&step.gid) => 3,
                _ => 0,
            };
            (step.mode >> class & needed != needed).then_some(step)
        })
    }
}

/// A segment on hugetlb pages that no process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersistentSegment {
    /// Path of the segment.
    pub path: PathBuf,
    /// The memory that it holds.
    pub memory: Bytes,
}

/// Surroundings of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// The file that marks a container.
    pub container: Option<String>,
    /// True if capabilities hold within a user namespace only.
    pub user_namespace: bool,
    /// True if a seccomp filter is in force.
    pub seccomp_filter: bool,
    /// True if SELinux is enforcing.
    pub selinux_enforcing: bool,
}

/// One trial and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    /// Request to the kernel.
    pub trial: Trial,
    /// Answer of the kernel, or the reason why the trial could not be made.
    pub outcome: Result<Answer, String>,
}

/// Release and abilities of the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// Release, as `uname -r` prints it; empty if it cannot be read.
    pub release: String,
    /// Each ability of the table, with its standing.
    pub abilities: Vec<(&'static Ability, Standing)>,
}

impl Kernel {
    /// Returns true if the kernel has this ability. An ability that was not looked up counts as
    /// present.
    pub fn has(&self, ability: &Ability) -> bool {
        self.abilities.iter().find(|(known, _)| known.id == ability.id).is_none_or(|(_, found)| found.present)
    }
}

/// All facts that [`diagnose`](crate::diagnose) looks at.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The user in question.
    pub user: User,
    /// The kernel.
    pub kernel: Kernel,
    /// Settings of transparent huge pages; `None` if the kernel has none, or does not show them
    /// ([`Facts::lacks_thp`]).
    pub thp: Option<ThpSettings>,
    /// True if the caller may have transparent huge pages; `None` if the kernel does not say.
    pub thp_allowed: Option<bool>,
    /// Page size of MAP_HUGETLB without a size; `None` if there are no hugetlb pages.
    pub default_size: Option<PageSize>,
    /// The pools, by ascending size.
    pub pools: Vec<Pool>,
    /// The machine's memory.
    pub memory: Memory,
    /// The machine's settings.
    pub sysctls: Sysctls,
    /// Limits of the user's processes; `None` if there is no process to look at, and no file with
    /// limits.
    pub limits: Option<UserLimits>,
    /// Limit on locked memory for a login of the user, with the file that sets it.
    pub login_memlock: Option<(String, Limit)>,
    /// The hugetlbfs mounts.
    pub mounts: Vec<HugetlbMount>,
    /// Segments that no process has open, as far as the caller may look, the largest first.
    pub persistent_segments: Vec<PersistentSegment>,
    /// The control groups.
    pub cgroups: Cgroups,
    /// Nodes that memory may come from.
    pub nodes: MemoryNodes,
    /// Container, namespace, filters.
    pub confinement: Confinement,
    /// Version of the machine's glibc; `None` for another C library.
    pub glibc: Option<(u32, u32)>,
    /// The environment's GLIBC_TUNABLES.
    pub tunables: Option<String>,
    /// The environment's HUGETLB_MORECORE.
    pub morecore: Option<String>,
    /// Device that reports free memory to the host, which takes it back; `None` if there is none,
    /// or if it cannot be read.
    pub reporting_balloon: Option<String>,
    /// Switch that turns megapage off; `None` if it is on.
    pub off: Option<String>,
    /// The trials that were made.
    pub trials: Vec<Tried>,
    /// Reason why no trials were made; `None` if they were.
    pub untried: Option<String>,
    /// The program in question.
    pub program: Option<Program>,
    /// Way in which `megapage run` reaches the program, or the reason why it does not; `None` if
    /// this was not asked.
    pub reach: Option<Result<Reach, String>>,
}

/// Way in which `megapage run` reaches a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The command that starts it on huge pages.
    pub command: String,
    /// Mechanisms used, each with its reason.
    pub how: String,
}

impl Facts {
    /// Returns true if the kernel has no transparent huge pages, and not only no /sys that would
    /// show their settings.
    pub fn lacks_thp(&self) -> bool {
        self.thp.is_none() && !self.kernel.has(&THP)
    }

    /// Returns the pool of this page size.
    pub fn pool(&self, size: PageSize) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.page_size == size)
    }

    /// Returns the answer to a trial that could be made.
    pub fn answer(&self, trial: &Trial) -> Option<Answer> {
        self.trials.iter().find(|tried| tried.trial == *trial)?.outcome.as_ref().ok().copied()
    }
}

/// Pages that a new mapping can expect from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    /// Pages that are free and not reserved.
    Available(u64),
    /// No free page, but the pool may grow by this many pages.
    OnDemand(u64),
    /// No page in the pool.
    Empty,
    /// No page left: every one is in use or reserved.
    Taken,
    /// Free pages only on nodes that the process may not take memory from.
    Elsewhere,
}

impl Pool {
    /// Returns the pages that a new mapping can expect.
    pub fn state(&self) -> PoolState {
        let counts = &self.counts;
        match counts.available().unwrap_or(counts.free) {
            0 => match counts.overcommit.unwrap_or(0).saturating_sub(counts.surplus) {
                0 if counts.total == 0 => PoolState::Empty,
                0 => PoolState::Taken,
                more => PoolState::OnDemand(more),
            },
            // Pages that the pool could grow by on another node do not count: growth follows the
            // same nodes.
            _ if self.on_nodes == Some(0) => PoolState::Elsewhere,
            pages => PoolState::Available(pages),
        }
    }

    /// Returns the pool's values in one line.
    pub fn describe(&self) -> String {
        let counts = &self.counts;
        format!(
            "{} pages of {}: {} free, {} reserved, {} surplus, overcommit {}",
            counts.total,
            self.page_size,
            counts.free,
            counts.reserved.unwrap_or(0),
            counts.surplus,
            counts.overcommit.unwrap_or(0),
        )
    }
}
