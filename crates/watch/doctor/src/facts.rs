//! What is known of a machine, a user and a program: plain data, from which everything else follows.

use megapage_kernel::ability::{Ability, Standing, THP};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::hugetlb::PoolCounts;
use megapage_kernel::identity::Capabilities;
use megapage_kernel::limits::{Limit, Limits, Sysctls};
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::ThpSettings;
use megapage_launch::program::Program;
use megapage_units::{Bytes, PageSize, Pid};
use std::path::PathBuf;

/// The user in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The login name, or the number where it has none.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The main group.
    pub gid: u32,
    /// All groups, the main one among them.
    pub groups: Vec<u32>,
    /// The same as the machine's own user namespace numbers them, which vm.hugetlb_shm_group is compared with.
    pub groups_of_machine: Vec<u32>,
    /// What the user's processes may do: the caller's own capabilities, or those that a login has.
    pub capabilities: Capabilities,
    /// Whether this is who runs the doctor.
    pub is_caller: bool,
}

/// One pool of hugetlb pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The size of its pages.
    pub page_size: PageSize,
    /// The machine's values.
    pub counts: PoolCounts,
    /// Free pages on the nodes that the user's processes may have memory from; `None`: those nodes are all.
    pub on_nodes: Option<u64>,
}

/// The machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: Bytes,
    /// What programs can have without swapping.
    pub available: Bytes,
    /// What is free in blocks of at least 2 MiB; `None`: not to be read here.
    pub in_huge_blocks: Option<Bytes>,
}

impl Memory {
    /// Whether less than 5 % is available.
    pub fn is_short(&self) -> bool {
        self.available.0 < self.total.0 / 20
    }
}

/// Limits of the user's processes, and where they were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// The limits themselves.
    pub limits: Limits,
    /// `this process`, `process 812 of tomcat`, or the file that governs logins.
    pub source: String,
}

/// A directory on the way to a mount point, with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
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
pub struct HugetlbMount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// The size of its pages.
    pub page_size: PageSize,
    /// What all its files together may hold; `None`: all of the pool.
    pub size: Option<Bytes>,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// The directories from the root to the mount point, itself the last.
    pub steps: Vec<Step>,
}

impl HugetlbMount {
    /// The directory that keeps this user from making a file in the mount; `None`: none does.
    ///
    /// Access control lists are not looked at; hugetlbfs has none.
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
pub struct PersistentSegment {
    /// Where it lies.
    pub path: PathBuf,
    /// The memory that it holds.
    pub memory: Bytes,
}

/// What surrounds the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The file that marks a container.
    pub container: Option<String>,
    /// Whether capabilities hold within a user namespace only.
    pub user_namespace: bool,
    /// Whether a seccomp filter is in force.
    pub seccomp_filter: bool,
    /// Whether SELinux is enforcing.
    pub selinux_enforcing: bool,
}

/// One trial and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// What was asked of the kernel.
    pub trial: Trial,
    /// Its answer, or why the trial could not be made.
    pub outcome: Result<Answer, String>,
}

/// What the kernel can do.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it; empty where that cannot be read.
    pub release: String,
    /// Each ability of the table, with its standing.
    pub abilities: Vec<(&'static Ability, Standing)>,
}

impl Kernel {
    /// Whether it has this ability; what was not looked up counts as there.
    pub fn has(&self, ability: &Ability) -> bool {
        self.abilities.iter().find(|(known, _)| known.id == ability.id).is_none_or(|(_, found)| found.present)
    }
}

/// Everything that [`diagnose`](crate::diagnose) looks at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The user in question.
    pub user: User,
    /// The kernel.
    pub kernel: Kernel,
    /// The process whose control groups and limits were taken; `None`: the caller.
    pub subject: Option<Pid>,
    /// The settings of transparent huge pages; `None`: the kernel has none, or does not show them
    /// ([`Facts::lacks_thp`]).
    pub thp: Option<ThpSettings>,
    /// Whether the caller may have transparent huge pages; `None`: the kernel does not say.
    pub thp_allowed: Option<bool>,
    /// The page size that MAP_HUGETLB means when none is given; `None`: no hugetlb pages.
    pub default_size: Option<PageSize>,
    /// The pools, by ascending size.
    pub pools: Vec<Pool>,
    /// The machine's memory.
    pub memory: Memory,
    /// The machine's settings.
    pub sysctls: Sysctls,
    /// The limits of the user's processes; `None`: no process to look at, and no file that says.
    pub limits: Option<UserLimits>,
    /// The limit on locked memory that a login of the user gets, with the file that says so.
    pub login_memlock: Option<(String, Limit)>,
    /// The hugetlbfs mounts.
    pub mounts: Vec<HugetlbMount>,
    /// The segments that nobody has open, as far as the caller may look, the largest first.
    pub persistent_segments: Vec<PersistentSegment>,
    /// The control groups.
    pub cgroups: Cgroups,
    /// Where memory may come from.
    pub nodes: MemoryNodes,
    /// Container, namespace, filters.
    pub confinement: Confinement,
    /// The machine's glibc; `None`: another C library.
    pub glibc: Option<(u32, u32)>,
    /// The environment's GLIBC_TUNABLES.
    pub tunables: Option<String>,
    /// The environment's HUGETLB_MORECORE.
    pub morecore: Option<String>,
    /// The device by which the host is told of free memory, and takes it back; `None`: it is not told, or that cannot be read.
    pub reporting_balloon: Option<String>,
    /// The switch that megapage is off by; `None`: it is on.
    pub off: Option<String>,
    /// The trials that were made.
    pub trials: Vec<Tried>,
    /// Why no trials were made; `None`: they were.
    pub untried: Option<String>,
    /// The program in question.
    pub program: Option<Program>,
    /// How `megapage run` reaches it, or why it does not; `None`: nobody has asked.
    pub reach: Option<Result<Reach, String>>,
}

/// How `megapage run` reaches a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The command that starts it on huge pages.
    pub command: String,
    /// By which mechanisms, each with its reason.
    pub how: String,
}

impl Facts {
    /// Returns true if the kernel has no transparent huge pages, and not only no /sys that would
    /// show their settings.
    pub fn lacks_thp(&self) -> bool {
        self.thp.is_none() && !self.kernel.has(&THP)
    }

    /// The pool of this page size.
    pub fn pool(&self, size: PageSize) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.page_size == size)
    }

    /// The answer to a trial that could be made.
    pub fn answer(&self, trial: &Trial) -> Option<Answer> {
        self.trials.iter().find(|tried| tried.trial == *trial)?.outcome.as_ref().ok().copied()
    }
}

/// What a new mapping can expect of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// This many pages are free and not reserved.
    Available(u64),
    /// None is, but the pool may grow by this many.
    OnDemand(u64),
    /// The pool holds no page.
    Empty,
    /// Every page is in use or reserved.
    Taken,
    /// Those that are free lie on nodes that the process may not have memory from.
    Elsewhere,
}

impl Pool {
    /// What a new mapping can expect.
    pub fn state(&self) -> PoolState {
        let counts = &self.counts;
        match counts.available().unwrap_or(counts.free) {
            0 => match counts.overcommit.unwrap_or(0).saturating_sub(counts.surplus) {
                0 if counts.total == 0 => PoolState::Empty,
                0 => PoolState::Taken,
                more => PoolState::OnDemand(more),
            },
            // A page that another node would have to grow does not count: growth follows the same nodes.
            _ if self.on_nodes == Some(0) => PoolState::Elsewhere,
            pages => PoolState::Available(pages),
        }
    }

    /// The pool's values in a line.
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
