//! Rights of the user, and the limits that the user's processes run with.

use super::kernel::capability_text;
use crate::catalog::{self, Severity};
use crate::facts::{Facts, PoolState};
use crate::finding::{Finding, describe};
use crate::verdict::shm_permission;
use megapage_kernel::limits::Limit;
use megapage_kernel::probe::{Answer, Trial};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M};

/// Limit on locked memory below which a note is given: a database or a JVM of some size locks as
/// much.
const MUCH_LOCKED: Bytes = Bytes::gib(1);

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(shm(facts));
    findings.extend(shm_sizes(facts));
    findings.extend(memlock(facts));
    if let Some(found) = &facts.limits {
        let (space, data) = (found.limits.address_space, found.limits.data);
        if space.0.is_some() || data.0.is_some() {
            findings.push(
                Finding::new(
                    &catalog::ADDRESS_SPACE_LIMITED,
                    format!("RLIMIT_AS of {}", found.source),
                    space.to_string(),
                )
                .and(format!("RLIMIT_DATA of {}", found.source), data.to_string()),
            );
        }
    }
    if facts.sysctls.overcommit_memory == Some(2) {
        findings.push(Finding::new(&catalog::OVERCOMMIT_STRICT, "vm.overcommit_memory", "2"));
    }
    if let Some(count) = facts.sysctls.max_map_count {
        let reach = Bytes(count.saturating_mul(HUGE_2M as u64));
        if reach < facts.memory.total {
            findings.push(Finding::new(&catalog::MAP_COUNT_LOW, "vm.max_map_count", count.to_string()).and(
                "MemTotal",
                format!("{}, where so many pieces of 2 MiB make {reach}", facts.memory.total),
            ));
        }
    }
    findings
}

/// Checks SHM_HUGETLB: the permission, and the exception to it in old kernels.
fn shm(facts: &Facts) -> Option<Finding> {
    let size = facts.default_size?;
    shm_permission(facts).err()?;
    let user = &facts.user;
    let answer = facts.answer(&Trial::ShmPermission { size, bytes: size.bytes() });
    let kind = match answer {
        Some(Answer::Obtained) => &catalog::SHM_BY_MEMLOCK,
        _ => &catalog::SHM_NOT_PERMITTED,
    };
    let group = facts.sysctls.hugetlb_shm_group;
    let mut finding = Finding::new(
        kind,
        "vm.hugetlb_shm_group",
        group.map_or("no such setting".into(), |group| group.to_string()),
    )
    .and(format!("groups of user {}", user.name), list(&user.groups))
    .and("CAP_IPC_LOCK", capability_text(user.capabilities.ipc_lock()))
    .fill("USER", &user.name)
    .fill("GID", &user.gid.to_string());
    if let Some(answer) = answer {
        finding = finding.and("trial: shmget(SHM_HUGETLB) without taking a page", describe(answer));
    }
    // The missing right matters only if pages are reserved.
    if facts.pool(size).is_none_or(|pool| pool.state() == PoolState::Empty) {
        finding.severity = Severity::Note;
    }
    // If a group is named already, joining it is enough.
    if let Some(group @ 1..) = group
        && kind.id == catalog::SHM_NOT_PERMITTED.id
    {
        let name = megapage_kernel::identity::group_name(group).unwrap_or(group.to_string());
        finding.remedy = vec![format!("usermod --append --groups {name} {}", user.name)];
    }
    Some(finding)
}

fn list(groups: &[u32]) -> String {
    groups.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Compares kernel.shmmax and kernel.shmall with the possible size of a segment: the default pool,
/// or a gigabyte.
fn shm_sizes(facts: &Facts) -> Option<Finding> {
    let pool = facts.pool(facts.default_size?)?;
    let held = Bytes(pool.page_size.bytes().0.saturating_mul(pool.counts.total));
    let wanted = held.max(Bytes::gib(1));
    let shmmax = facts.sysctls.shmmax?;
    let shmall = Bytes(facts.sysctls.shmall?.saturating_mul(BASE_PAGE as u64));
    (shmmax < wanted || shmall < wanted).then(|| {
        Finding::new(&catalog::SHMMAX_SMALL, "kernel.shmmax", shmmax.to_string())
            .and("kernel.shmall", format!("{shmall} in all"))
            .and(format!("the pool of {}", pool.page_size), held.to_string())
    })
}

fn memlock(facts: &Facts) -> Option<Finding> {
    if facts.user.capabilities.ipc_lock() {
        return None;
    }
    let small = |limit: Limit| limit.0.is_some_and(|bytes| bytes < MUCH_LOCKED);
    let running = facts.limits.as_ref().filter(|found| small(found.limits.locked));
    let login = facts.login_memlock.as_ref().filter(|(_, limit)| small(*limit));
    let (first, second) = (
        running.map(|found| (format!("RLIMIT_MEMLOCK of {}", found.source), found.limits.locked)),
        login.map(|(file, limit)| (format!("memlock for logins in {file}"), *limit)),
    );
    let mut found = first.into_iter().chain(second);
    let (source, limit) = found.next()?;
    let mut finding = Finding::new(&catalog::MEMLOCK_LIMITED, source, limit.to_string());
    for (source, limit) in found {
        finding = finding.and(source, limit.to_string());
    }
    Some(finding.fill("USER", &facts.user.name))
}
