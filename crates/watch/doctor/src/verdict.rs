//! Outcomes of the user's requests for huge pages, way by way: reasoned from the values read, and
//! replaced by the kernel's answer if it was tried.

use crate::catalog::{self, Kind};
use crate::facts::{Facts, HugetlbMount, PoolState};
use crate::finding::{
    Basis, EACCES, EINVAL, ENOMEM, ENOSPC, ENOSYS, EPERM, EROFS, Outcome, Verdict, errno_name, signal_name,
};
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::ThpEnabled;
use megapage_units::{BASE_PAGE, Bytes, PageSize};

const SIGBUS: i32 = 7;

/// Conclusion from the facts for one way: `Ok`, or the failure with its reason.
type Forecast = Result<(), Cause>;

/// Reason for a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cause {
    /// Kind of failure.
    end: End,
    /// Finding that explains it.
    kind: &'static Kind,
    /// Reason, to stand behind "because".
    clause: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Errno(i32),
    Signal(i32),
    BasePages,
}

fn cause(end: End, kind: &'static Kind, clause: impl Into<String>) -> Forecast {
    Err(Cause { end, kind, clause: clause.into() })
}

/// Returns every way in which this user could ask, with its outcome.
pub fn verdicts(facts: &Facts) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for pool in &facts.pools {
        let size = pool.page_size;
        verdicts.push(judge(
            facts,
            format!("mmap(MAP_HUGETLB) of {size}"),
            Some(size),
            map_hugetlb(facts, size),
            facts.answer(&Trial::MapHugetlb(size)),
        ));
    }
    if let Some(size) = facts.default_size {
        verdicts.push(judge(
            facts,
            format!("shmget(SHM_HUGETLB) of {size}"),
            Some(size),
            shm_hugetlb(facts, size),
            facts.answer(&Trial::ShmHugetlb(size)),
        ));
    }
    for mount in &facts.mounts {
        let trial = Trial::Hugetlbfs { directory: mount.point.clone(), size: mount.page_size };
        verdicts.push(judge(
            facts,
            format!("a file in the hugetlbfs {}", mount.point.display()),
            Some(mount.page_size),
            hugetlbfs(facts, mount),
            facts.answer(&trial),
        ));
    }
    verdicts.push(judge(
        facts,
        "madvise(MADV_HUGEPAGE)".into(),
        None,
        thp(facts, true),
        facts.answer(&Trial::MadviseThp),
    ));
    // This verdict follows from the settings alone.
    if facts.thp.is_some() || facts.lacks_thp() {
        verdicts.push(judge(facts, "memory without asking".into(), None, thp(facts, false), None));
    }
    verdicts.push(judge(
        facts,
        "promotion of another process".into(),
        None,
        outside(facts),
        facts.answer(&Trial::CollapseOther),
    ));
    verdicts
}

/// Returns the trials that failed without an explanation: the forecast was different.
pub(crate) fn unexplained(facts: &Facts) -> Vec<(Trial, Answer)> {
    let expected = |trial: &Trial| match trial {
        Trial::MapHugetlb(size) => Some(map_hugetlb(facts, *size)),
        Trial::ShmHugetlb(size) => Some(shm_hugetlb(facts, *size)),
        Trial::Hugetlbfs { directory, .. } => {
            let mount = facts.mounts.iter().find(|mount| mount.point == *directory)?;
            Some(hugetlbfs(facts, mount))
        }
        Trial::MadviseThp => Some(thp(facts, true)),
        Trial::CollapseOther => Some(outside(facts)),
        Trial::ShmPermission { .. } | Trial::PopulateWrite => None,
    };
    facts
        .trials
        .iter()
        .filter_map(|tried| Some((tried.trial.clone(), *tried.outcome.as_ref().ok()?)))
        .filter(|(trial, answer)| match (end_of(*answer), expected(trial)) {
            // THP promises base pages if no block is free: that is not a refusal.
            (None | Some(End::BasePages), _) | (_, None) => false,
            (Some(end), Some(forecast)) => forecast.err().is_none_or(|cause| cause.end != end),
        })
        .collect()
}

/// Returns how a trial ended; `None` for a huge page.
fn end_of(answer: Answer) -> Option<End> {
    match answer {
        Answer::Obtained => None,
        Answer::BasePages => Some(End::BasePages),
        Answer::Refused { errno, .. } => Some(End::Errno(errno)),
        Answer::Killed(signal) => Some(End::Signal(signal)),
    }
}

fn judge(
    facts: &Facts,
    way: String,
    size: Option<PageSize>,
    forecast: Forecast,
    answer: Option<Answer>,
) -> Verdict {
    let end = match answer {
        Some(answer) => end_of(answer),
        None => forecast.as_ref().err().map(|cause| cause.end),
    };
    let user = &facts.user.name;
    let (outcome, errno, what) = match end {
        None => (Outcome::Works, None, format!("Works for user {user}")),
        Some(End::Errno(errno)) => {
            let what = format!("Fails for user {user} with errno {errno} ({})", errno_name(errno));
            (Outcome::Fails, Some(errno), what)
        }
        Some(End::Signal(signal)) => {
            (Outcome::Kills, None, format!("Kills a program of user {user} with {}", signal_name(signal)))
        }
        Some(End::BasePages) => (Outcome::BasePages, None, format!("Gives user {user} base pages")),
    };
    let (because, reason) = match (end, forecast) {
        (None, _) => (Vec::new(), size.and_then(|size| room(facts, size)).unwrap_or_default()),
        (Some(end), Err(cause)) if cause.end == end => {
            (vec![cause.kind.id.as_str()], format!(" because {}", cause.clause))
        }
        (Some(End::BasePages), _) => {
            let short = facts.memory.is_short();
            let kind = if short { &catalog::MEMORY_SHORT } else { &catalog::MEMORY_FRAGMENTED };
            (vec![kind.id.as_str()], " because no huge page was free at that moment".into())
        }
        (Some(_), _) => {
            (vec![catalog::REFUSED_UNEXPLAINED.id.as_str()], ", and nothing that was read says why".into())
        }
    };
    let basis = if answer.is_some() { Basis::Tried } else { Basis::Reasoned };
    Verdict { way, outcome, errno, basis, sentence: format!("{what}{reason}."), because }
}

/// Returns how much memory works: the pool's pages, as far as the control groups allow.
fn room(facts: &Facts, size: PageSize) -> Option<String> {
    let (pages, how) = match facts.pool(size)?.state() {
        PoolState::Available(pages) => (pages, ""),
        PoolState::OnDemand(pages) => (pages, ", taken on demand"),
        PoolState::Empty | PoolState::Taken | PoolState::Elsewhere => return None,
    };
    let pool = Bytes(size.bytes().0.saturating_mul(pages));
    let groups = [facts.cgroups.hugetlb_fault_room(size), facts.cgroups.hugetlb_reservation_room(size)];
    let bytes = groups.into_iter().flatten().fold(pool, Bytes::min);
    Some(format!(", up to {bytes}{how}"))
}

/// Forecasts mmap(2) with MAP_HUGETLB of one page.
fn map_hugetlb(facts: &Facts, size: PageSize) -> Forecast {
    if let Some(limits) = &facts.limits {
        for (name, limit) in [("RLIMIT_AS", limits.limits.address_space), ("RLIMIT_DATA", limits.limits.data)]
        {
            if !limit.admits(size.bytes()) {
                let clause = format!("{name} of {} is {limit}, less than a page", limits.source);
                return cause(End::Errno(ENOMEM), &catalog::ADDRESS_SPACE_LIMITED, clause);
            }
        }
    }
    page_of_pool(facts, size)
}

/// Forecasts shmget(2) with SHM_HUGETLB of one page; the checks are in the kernel's order.
fn shm_hugetlb(facts: &Facts, size: PageSize) -> Forecast {
    let bytes = size.bytes();
    if let Some(shmmax) = facts.sysctls.shmmax.filter(|shmmax| *shmmax < bytes) {
        return cause(
            End::Errno(EINVAL),
            &catalog::SHMMAX_SMALL,
            format!("kernel.shmmax is {shmmax}, less than a page"),
        );
    }
    let all = |pages: u64| Bytes(pages.saturating_mul(BASE_PAGE as u64));
    if let Some(shmall) = facts.sysctls.shmall.map(all).filter(|shmall| *shmall < bytes) {
        return cause(
            End::Errno(ENOSPC),
            &catalog::SHMMAX_SMALL,
            format!("kernel.shmall is {shmall} in all, less than a page"),
        );
    }
    if let Err(why) = shm_permission(facts) {
        let by_memlock = facts.answer(&Trial::ShmPermission { size, bytes }) == Some(Answer::Obtained);
        if !by_memlock {
            return cause(End::Errno(EPERM), &catalog::SHM_NOT_PERMITTED, why);
        }
    }
    page_of_pool(facts, size)
}

/// Checks if the kernel lets the user pass for SHM_HUGETLB. Old kernels have a second check, by
/// RLIMIT_MEMLOCK, that only a trial shows.
///
/// # Errors
/// The reason why the kernel does not let the user pass.
pub(crate) fn shm_permission(facts: &Facts) -> Result<(), String> {
    let user = &facts.user;
    let group = facts.sysctls.hugetlb_shm_group;
    if group.is_some_and(|group| user.groups_of_machine.contains(&group)) {
        return Ok(());
    }
    if user.capabilities.ipc_lock() {
        if !facts.confinement.user_namespace {
            return Ok(());
        }
        return Err(
            "CAP_IPC_LOCK holds in a user namespace only, and vm.hugetlb_shm_group is not a group of \
                    the user's"
                .into(),
        );
    }
    Err(match group {
        // The kernel's default is group 0, which has no member but root.
        None | Some(0) => "no group is named in vm.hugetlb_shm_group, and the user lacks CAP_IPC_LOCK".into(),
        Some(group) => {
            format!("the user is not in group {group} (vm.hugetlb_shm_group) and lacks CAP_IPC_LOCK")
        }
    })
}

/// Forecasts a new file of one page.
fn hugetlbfs(facts: &Facts, mount: &HugetlbMount) -> Forecast {
    let kind = &catalog::HUGETLBFS_DENIED;
    if let Some(step) = mount.denied_at(&facts.user) {
        let clause = format!(
            "{} belongs to {}:{} with mode {:04o}",
            step.path.display(),
            step.uid,
            step.gid,
            step.mode & 0o7777
        );
        return cause(End::Errno(EACCES), kind, clause);
    }
    if mount.read_only {
        return cause(End::Errno(EROFS), kind, "it is mounted read-only");
    }
    if let Some(size) = mount.size.filter(|size| *size < mount.page_size.bytes()) {
        let kind = &catalog::HUGETLBFS_SIZE_LIMITED;
        return cause(End::Errno(ENOMEM), kind, format!("the mount's size={size} is less than a page"));
    }
    page_of_pool(facts, mount.page_size)
}

/// Forecasts the checks that every hugetlb page has to pass: the pool, the limit on reservations,
/// the limit on faults.
fn page_of_pool(facts: &Facts, size: PageSize) -> Forecast {
    let enomem = End::Errno(ENOMEM);
    let Some(pool) = facts.pool(size) else {
        let clause = format!("the kernel has no pages of {size}");
        return cause(End::Errno(EINVAL), &catalog::HUGETLB_ABSENT, clause);
    };
    match pool.state() {
        PoolState::Available(_) | PoolState::OnDemand(_) => {}
        PoolState::Empty if Some(size) == facts.default_size => {
            return cause(enomem, &catalog::POOL_EMPTY, format!("no page of {size} is reserved"));
        }
        PoolState::Empty => {
            return cause(enomem, &catalog::POOL_SIZE_UNUSED, format!("no page of {size} is reserved"));
        }
        PoolState::Taken => {
            let counts = &pool.counts;
            let clause = format!(
                "of {} pages of {size} none is available: {} free, {} of them reserved by others",
                counts.total,
                counts.free,
                counts.reserved.unwrap_or(0)
            );
            return cause(enomem, &catalog::POOL_TAKEN, clause);
        }
        PoolState::Elsewhere => {
            let clause =
                format!("the free pages of {size} lie on nodes that the process may not have memory from");
            return cause(enomem, &catalog::POOL_ELSEWHERE, clause);
        }
    }
    let too_small = |room: Option<Bytes>| room.filter(|room| *room < size.bytes());
    if let Some(room) = too_small(facts.cgroups.hugetlb_reservation_room(size)) {
        let clause = format!("the control group may reserve only {room} more in pages of {size}");
        return cause(enomem, &catalog::CGROUP_HUGETLB_FULL, clause);
    }
    if let Some(room) = too_small(facts.cgroups.hugetlb_fault_room(size)) {
        let clause = format!("the control group may touch only {room} more in pages of {size}");
        return cause(End::Signal(SIGBUS), &catalog::CGROUP_HUGETLB_FULL, clause);
    }
    Ok(())
}

/// Forecasts anonymous memory, with or without madvise(MADV_HUGEPAGE).
fn thp(facts: &Facts, asked: bool) -> Forecast {
    if facts.lacks_thp() {
        let end = if asked { End::Errno(EINVAL) } else { End::BasePages };
        return cause(end, &catalog::THP_ABSENT, "the kernel has no transparent huge pages");
    }
    if facts.thp_allowed == Some(false) {
        let clause = "prctl(PR_SET_THP_DISABLE) is in force";
        return cause(End::BasePages, &catalog::THP_DISABLED_FOR_PROCESS, clause);
    }
    match facts.thp.as_ref().map(|settings| settings.anonymous(PageSize::HUGE_2M)) {
        Some(ThpEnabled::Never) => {
            cause(End::BasePages, &catalog::THP_NEVER, "transparent huge pages are set to 'never'")
        }
        Some(ThpEnabled::Madvise) if !asked => {
            cause(End::BasePages, &catalog::THP_ON_REQUEST, "transparent huge pages are set to 'madvise'")
        }
        _ => Ok(()),
    }
}

/// Returns true if no setting makes MADV_COLLAPSE fail, so that EINVAL means that the kernel does
/// not know it. In trials MADV_COLLAPSE overrides 'never', but that is not documented.
pub(crate) fn collapse_should_work(facts: &Facts) -> bool {
    let enabled = facts.thp.as_ref().is_some_and(|thp| thp.anonymous(PageSize::HUGE_2M) != ThpEnabled::Never);
    enabled && facts.thp_allowed != Some(false)
}

/// Returns true if a trial of madvise(MADV_HUGEPAGE) got base pages although no setting explains
/// it.
pub(crate) fn none_was_free(facts: &Facts) -> bool {
    facts.answer(&Trial::MadviseThp) == Some(Answer::BasePages)
        && thp(facts, true).err().is_none_or(|cause| cause.end != End::BasePages)
}

/// Forecasts process_madvise(MADV_COLLAPSE) on another process of the same user.
fn outside(facts: &Facts) -> Forecast {
    if facts.lacks_thp() {
        return cause(End::Errno(EINVAL), &catalog::THP_ABSENT, "the kernel has no transparent huge pages");
    }
    if !facts.user.capabilities.sys_nice() {
        let clause = "the user lacks CAP_SYS_NICE";
        return cause(End::Errno(EPERM), &catalog::OUTSIDE_NOT_PERMITTED, clause);
    }
    if facts.confinement.user_namespace {
        let clause = "CAP_SYS_NICE holds in a user namespace only";
        return cause(End::Errno(EPERM), &catalog::OUTSIDE_NOT_PERMITTED, clause);
    }
    match facts.answer(&Trial::CollapseOther) {
        Some(Answer::Refused { errno: errno @ (EINVAL | ENOSYS), .. }) if collapse_should_work(facts) => {
            cause(End::Errno(errno), &catalog::COLLAPSE_UNSUPPORTED, "this kernel does not have it")
        }
        // The trial's target inherits the flag, as does every program that is started from here.
        _ if facts.thp_allowed == Some(false) => {
            let clause = "prctl(PR_SET_THP_DISABLE) is in force for what is started from here";
            cause(End::Errno(EINVAL), &catalog::THP_DISABLED_FOR_PROCESS, clause)
        }
        Some(Answer::Refused { errno, .. }) if facts.thp.is_some() && !collapse_should_work(facts) => {
            cause(End::Errno(errno), &catalog::THP_NEVER, "transparent huge pages are set to 'never'")
        }
        _ => Ok(()),
    }
}
