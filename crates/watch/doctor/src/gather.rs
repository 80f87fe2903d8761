//! Gathers the facts: reads the machine, and makes trials if possible.

use crate::facts::{
    Confinement, Facts, HugetlbMount, Kernel, Memory, PersistentSegment, Pool, Reach, Step, Tried, User,
    UserLimits,
};
use megapage_kernel::ability::standings;
use megapage_kernel::buddyinfo::{buddyinfo, order};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::hugetlb::{self, PoolScope, counts, page_sizes};
use megapage_kernel::identity::{self, Capabilities};
use megapage_kernel::limits::{Limits, Sysctls, limits_of_user, login_memlock};
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::mounts::hugetlbfs_mounts;
use megapage_kernel::page_reporting::reporting_balloon;
use megapage_kernel::probe::{Answer, Assumed, Trial, attempt};
use megapage_kernel::process::{Status, read_own_status, read_status};
use megapage_kernel::thp;
use megapage_kernel::{KernelError, KernelRoot, glibc, machine, meminfo, why_off};
use megapage_launch::applications::Application;
use megapage_launch::machine::Machine;
use megapage_launch::mechanism::choose;
use megapage_launch::program::{InspectError, Program, privilege_for};
use megapage_launch::request::{Mechanism, Request as RunRequest};
use megapage_segment::inventory::{Condition, Listed, inventory};
use megapage_units::shown::shell_word;
use megapage_units::{Bytes, PageSize, Pid};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Variable that asks libhugetlbfs to put malloc on huge pages: yes, a page size, or thp.
pub(crate) const MORECORE: &str = "HUGETLB_MORECORE";
/// Largest page that a trial takes: a gigabyte takes a second to clear, and is scarce.
const LARGEST_TRIED: Bytes = Bytes::mib(32);
/// Most hugetlbfs mounts that are tried; others are judged by the values read.
const MOST_MOUNTS_TRIED: usize = 16;

/// Subject of a diagnosis.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Login name or user number; `None` for the caller.
    pub user: Option<String>,
    /// Program, as given to a shell.
    pub program: Option<OsString>,
    /// True to conclude from readable values only, without requests to the kernel.
    pub only_read: bool,
}

/// Reason why the facts could not be gathered.
#[derive(Debug, Error)]
pub enum GatherError {
    /// The name service knows no such user.
    #[error("--user {0}: there is no such user; see `getent passwd`")]
    NoSuchUser(String),
    /// The name service itself failed.
    #[error("--user {name}: the user cannot be looked up: {error}")]
    Lookup {
        /// Name or number as given.
        name: String,
        /// Error of the name service.
        error: io::Error,
    },
    /// The program cannot be looked at.
    #[error("--for {0}")]
    Program(InspectError),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Returns the name and number of the user in question.
pub(crate) fn user_in_question(root: &KernelRoot, request: &Request) -> Result<(String, u32), GatherError> {
    let user = user(root, request.user.as_deref(), &read_own_status(root)?)?;
    Ok((user.name, user.uid))
}

/// Reads everything, then makes the trials. `root` may be a captured tree: then no trial is made.
pub fn gather(root: &KernelRoot, request: &Request) -> Result<Facts, GatherError> {
    let own = read_own_status(root)?;
    let user = user(root, request.user.as_deref(), &own)?;
    // The program is looked at before the trials: a misspelt name should cost nothing.
    let program = request.program.as_ref().map(Program::inspect).transpose();
    let program = program.map_err(GatherError::Program)?.map(|program| Program {
        // The rights that this user lacks count, not those that the caller lacks.
        privilege: privilege_for(&program.executable, user.uid, user.gid),
        ..program
    });
    let running = if user.is_caller { None } else { running_as(root, &user) };
    let (subject, limits) = match running {
        Some((pid, limits)) => (Some(pid), Some(limits)),
        None if user.is_caller => {
            (None, Some(UserLimits { limits: Limits::read(root, None)?, source: "this process".into() }))
        }
        None => (None, None),
    };
    let groups: Vec<String> = user.groups.iter().filter_map(|gid| identity::group_name(*gid)).collect();
    let login_memlock = login_memlock(root, &user.name, user.uid, user.gid, &groups);
    let memory = meminfo(root)?;
    let nodes = MemoryNodes::read(root, subject)?;
    let pools = page_sizes(root)?
        .into_iter()
        .map(|page_size| {
            let counts = counts(root, page_size, PoolScope::Machine)?;
            Ok(Pool { page_size, counts, on_nodes: on_nodes(root, page_size, &nodes)? })
        })
        .collect::<Result<Vec<Pool>, KernelError>>()?;
    let mut facts = Facts {
        kernel: kernel(root),
        thp: thp::settings(root)?,
        thp_allowed: own.thp_enabled.map(|_| !thp::is_switched_off(root, &own)),
        default_size: memory.default_huge_size.filter(|_| !pools.is_empty()),
        pools,
        memory: Memory {
            total: memory.total.unwrap_or_default(),
            available: memory.available.unwrap_or_default(),
            // Some containers hide this file.
            in_huge_blocks: buddyinfo(root)
                .ok()
                .map(|zones| zones.iter().map(|zone| zone.free_from(order(PageSize::HUGE_2M))).sum()),
        },
        sysctls: Sysctls::read(root),
        limits,
        login_memlock,
        mounts: hugetlbfs_mounts(root)?
            .into_iter()
            .map(|found| HugetlbMount {
                steps: steps(root, &found.mount.point),
                read_only: found.mount.is_read_only(),
                point: found.mount.point,
                page_size: found.page_size,
                size: found.size,
            })
            .collect(),
        persistent_segments: persistent_segments(root),
        cgroups: cgroups(root, subject)?,
        nodes,
        confinement: Confinement {
            container: identity::container(root),
            user_namespace: identity::in_user_namespace(root),
            seccomp_filter: own.seccomp_filter,
            selinux_enforcing: identity::selinux_enforcing(root),
        },
        glibc: glibc::glibc_version(),
        tunables: std::env::var("GLIBC_TUNABLES").ok(),
        morecore: std::env::var(MORECORE).ok(),
        reporting_balloon: reporting_balloon(root),
        off: why_off(root),
        trials: Vec::new(),
        untried: None,
        reach: program.as_ref().and_then(|program| reach(root, request, &user, program)),
        program,
        user,
    };
    match who_tries(root, request, &own, &facts) {
        Ok(who) => facts.trials = trials(&facts, who.as_ref()),
        Err(why) => facts.untried = Some(why),
    }
    Ok(facts)
}

/// Returns the way in which the caller would start the program: the choice depends on the caller's
/// rights and environment.
fn reach(
    root: &KernelRoot,
    request: &Request,
    user: &User,
    program: &Program,
) -> Option<Result<Reach, String>> {
    if request.only_read || !root.is_live() || !user.is_caller {
        return None;
    }
    let machine = match Machine::read(root) {
        Ok(machine) => machine,
        Err(error) => return Some(Err(error.to_string())),
    };
    let word = request.program.as_ref()?.to_string_lossy();
    let name = program.executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let known = Application::of_program(name);
    let mut run = RunRequest::plain(program.executable.as_os_str());
    if let Some(known) = known {
        known.complete(&mut run, false);
    }
    let plan = match choose(program, &run, &machine) {
        Ok(plan) => plan,
        Err(refusal) => return Some(Err(refusal.to_string())),
    };
    let used: Vec<String> = plan
        .considered
        .iter()
        .filter(|it| it.used)
        .map(|it| format!("{}: {}", it.mechanism, it.reason))
        .collect();
    if used.is_empty() {
        let why = plan.considered.iter().find(|it| it.mechanism == Mechanism::Preload);
        return Some(Err(why.map(|it| it.reason.clone()).unwrap_or_default()));
    }
    let mut words = vec!["megapage", "run"];
    words.extend(known.map(Application::options).unwrap_or_default());
    let word = shell_word(&word);
    words.extend(["--", &word]);
    words.extend(known.map_or(&[][..], |known| known.arguments));
    Some(Ok(Reach { command: words.join(" "), how: used.join("; ") }))
}

fn user(root: &KernelRoot, name: Option<&str>, own: &Status) -> Result<User, GatherError> {
    const EFFECTIVE: usize = 1;
    let (uid, gid) = (own.uids[EFFECTIVE], own.gids[EFFECTIVE]);
    let lookup = |name: &str, result: io::Result<Option<identity::Account>>| {
        result.map_err(|error| GatherError::Lookup { name: name.into(), error })
    };
    let other = match name {
        Some(name) => match lookup(name, identity::account(name))? {
            Some(account) if account.uid != uid => Some(account),
            Some(_) => None,
            None => return Err(GatherError::NoSuchUser(name.into())),
        },
        None => None,
    };
    Ok(match other {
        Some(account) => User {
            groups_of_machine: identity::groups_of_machine(root, &account.groups),
            name: account.name,
            uid: account.uid,
            gid: account.gid,
            groups: account.groups,
            capabilities: if account.uid == 0 { Capabilities(u64::MAX) } else { Capabilities::NONE },
            is_caller: false,
        },
        None => {
            // A number without a name is a valid user, as in many containers.
            let account = identity::account_of(uid).ok().flatten();
            let mut groups = own.groups.clone();
            if !groups.contains(&gid) {
                groups.insert(0, gid);
            }
            User {
                name: account.map_or_else(|| uid.to_string(), |account| account.name),
                uid,
                gid,
                groups_of_machine: identity::groups_of_machine(root, &groups),
                groups,
                capabilities: own.capabilities,
                is_caller: true,
            }
        }
    })
}

/// Reads the kernel's release and abilities.
pub(crate) fn kernel(root: &KernelRoot) -> Kernel {
    Kernel {
        release: machine(root).map(|machine| machine.kernel).unwrap_or_default(),
        abilities: standings(root),
    }
}

/// Returns the free pages on the nodes that memory may come from; `None` if those are all nodes.
fn on_nodes(root: &KernelRoot, size: PageSize, nodes: &MemoryNodes) -> Result<Option<u64>, KernelError> {
    let all = hugetlb::nodes(root)?;
    if all.iter().all(|node| nodes.may_use(*node)) {
        return Ok(None);
    }
    let usable = all.into_iter().filter(|node| nodes.may_use(*node));
    let mut free = 0;
    for node in usable {
        match counts(root, size, PoolScope::Node(node)) {
            Ok(found) => free += found.free,
            // A node without memory has no pool.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(free))
}

/// Returns a process that the user runs, with its limits.
fn running_as(root: &KernelRoot, user: &User) -> Option<(Pid, UserLimits)> {
    let (pid, limits) = limits_of_user(root, user.uid)?;
    let name = read_status(root, pid).map(|status| format!(" ({})", status.name)).unwrap_or_default();
    Some((pid, UserLimits { limits, source: format!("process {pid}{name}") }))
}

fn cgroups(root: &KernelRoot, subject: Option<Pid>) -> Result<Cgroups, KernelError> {
    match Cgroups::read(root, subject) {
        // The process has ended meanwhile: the caller's groups remain.
        Err(error) if error.is_gone() && subject.is_some() => Cgroups::read(root, None),
        found => found,
    }
}

/// Returns the segments that no process has open. On a captured tree there are none: its mounts are
/// another machine's.
fn persistent_segments(root: &KernelRoot) -> Vec<PersistentSegment> {
    if !root.is_live() {
        return Vec::new();
    }
    let found = inventory(root, &[]).unwrap_or_default();
    let holds = |segment: &Listed| {
        segment.hugetlb && segment.condition != Condition::InUse && segment.memory > Bytes::ZERO
    };
    let mut persistent: Vec<PersistentSegment> = found
        .segments
        .into_iter()
        .filter(holds)
        .map(|segment| PersistentSegment { path: segment.path, memory: segment.memory })
        .collect();
    persistent.sort_by_key(|segment| std::cmp::Reverse(segment.memory));
    persistent
}

/// Returns the directories from the root to `point`. A directory that cannot be looked at ends the
/// list: behind it, nothing is known to deny anything.
fn steps(root: &KernelRoot, point: &Path) -> Vec<Step> {
    let mut directories: Vec<PathBuf> = point.ancestors().map(Path::to_path_buf).collect();
    directories.reverse();
    directories
        .into_iter()
        .map_while(|path| {
            let relative = path.strip_prefix("/").unwrap_or(&path);
            let found = fs::metadata(root.path(relative)).ok()?;
            Some(Step { uid: found.uid(), gid: found.gid(), mode: found.mode(), path })
        })
        .collect()
}

/// Returns the user that the trials' children become (`None`: they stay the caller), or the reason
/// against trials.
fn who_tries(
    root: &KernelRoot,
    request: &Request,
    own: &Status,
    facts: &Facts,
) -> Result<Option<Assumed>, String> {
    let user = &facts.user;
    if request.only_read {
        return Err("only what can be read was asked for".into());
    }
    if !root.is_live() {
        return Err("this is not the running machine".into());
    }
    if user.is_caller {
        return Ok(None);
    }
    if own.uids[1] != 0 {
        return Err(format!("trying as user {} needs root", user.name));
    }
    let locked = facts.limits.as_ref().map(|found| found.limits.locked);
    Ok(Some(Assumed {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        locked: locked.or(facts.login_memlock.as_ref().map(|(_, limit)| *limit)),
    }))
}

fn trials(facts: &Facts, who: Option<&Assumed>) -> Vec<Tried> {
    let is_small = |size: PageSize| size.bytes() <= LARGEST_TRIED;
    let mut wanted: Vec<Trial> = facts
        .pools
        .iter()
        .map(|pool| pool.page_size)
        .filter(|size| is_small(*size))
        .map(Trial::MapHugetlb)
        .collect();
    if let Some(size) = facts.default_size {
        wanted.push(Trial::ShmPermission { size, bytes: size.bytes() });
        if is_small(size) {
            wanted.push(Trial::ShmHugetlb(size));
        }
    }
    wanted.extend(
        facts
            .mounts
            .iter()
            .filter(|mount| is_small(mount.page_size))
            .take(MOST_MOUNTS_TRIED)
            .map(|mount| Trial::Hugetlbfs { directory: mount.point.clone(), size: mount.page_size }),
    );
    if !facts.lacks_thp() {
        wanted.push(Trial::MadviseThp);
        // In a trial another user has no CAP_SYS_NICE, so the answer is known.
        if who.is_none() {
            wanted.push(Trial::CollapseOther);
        }
    }
    wanted.push(Trial::PopulateWrite);
    wanted.into_iter().map(|trial| Tried { outcome: outcome(who, &trial), trial }).collect()
}

fn outcome(who: Option<&Assumed>, trial: &Trial) -> Result<Answer, String> {
    let result = match attempt(who, trial) {
        // The user's limit can be above the limit that this process may set. Then this process's
        // limit applies, which matters only to SHM_HUGETLB on old kernels.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            attempt(who.map(|who| Assumed { locked: None, ..who.clone() }).as_ref(), trial)
        }
        result => result,
    };
    result.map_err(|error| error.to_string())
}
