//! Control groups, containers, filters, the host, and the C library.

use crate::catalog;
use crate::facts::{Facts, PoolState};
use crate::finding::Finding;
use megapage_kernel::cgroup::{CgroupVersion, Charge};
use megapage_kernel::limits::Limit;
use megapage_kernel::thp::{ThpEnabled, path};
use megapage_units::{Bytes, PageSize};

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = hugetlb_groups(facts);
    let off = |why: &String| Finding::new(&catalog::MEGAPAGE_OFF, "what switches it off", why.clone());
    findings.extend(facts.off.as_ref().map(off));
    findings.extend(memory_group(facts));
    findings.extend(confinement(facts));
    findings.extend(host(facts));
    findings.extend(glibc(facts));
    findings.extend(morecore(facts));
    findings
}

/// Returns the name of a limit's file, such as `hugetlb.2MB.max`, with sizes as the kernel spells
/// them there.
fn limit_file(version: CgroupVersion, size: PageSize, reservation: bool) -> String {
    let size = match size.kib() {
        kib if kib >= 1 << 20 => format!("{}GB", kib >> 20),
        kib if kib >= 1 << 10 => format!("{}MB", kib >> 10),
        kib => format!("{kib}KB"),
    };
    let reservation = if reservation { ".rsvd" } else { "" };
    let limit = match version {
        CgroupVersion::V1 => "limit_in_bytes",
        CgroupVersion::V2 => "max",
    };
    format!("hugetlb.{size}{reservation}.{limit}")
}

fn charge_text(charge: Charge) -> String {
    format!("{} (in use {})", Limit(charge.limit), charge.usage)
}

fn hugetlb_groups(facts: &Facts) -> Vec<Finding> {
    let Some(lineage) = &facts.cgroups.hugetlb else { return Vec::new() };
    let mut findings = Vec::new();
    for level in &lineage.levels {
        for charge in &level.charged {
            let page = charge.page_size.bytes();
            let file = |reservation| {
                let name = limit_file(lineage.version, charge.page_size, reservation);
                level.directory.join(name).display().to_string()
            };
            let finding = |kind| {
                Finding::new(kind, file(false), charge_text(charge.fault))
                    .and(file(true), charge_text(charge.reservation))
                    .fill("CGROUP/hugetlb.2MB.max", &file(false))
                    .fill("CGROUP/hugetlb.2MB.rsvd.max", &file(true))
            };
            let full = |charge: Charge| charge.room().is_some_and(|room| room < page);
            if full(charge.fault) || full(charge.reservation) {
                findings.push(finding(&catalog::CGROUP_HUGETLB_FULL));
            } else if let Some(most) = charge.fault.limit
                && charge.reservation.limit.is_none_or(|reservation| reservation > most)
            {
                let finding = finding(&catalog::CGROUP_HUGETLB_SIGBUS);
                findings.push(finding.fill("echo LIMIT", &format!("echo {}", most.0)));
            }
        }
    }
    if !lineage.complete {
        findings.push(Finding::new(
            &catalog::CGROUP_HUGETLB_HIDDEN,
            "the control group's path, as seen from here",
            lineage.path.clone(),
        ));
    }
    findings
}

fn memory_group(facts: &Facts) -> Option<Finding> {
    // Memory that a program of some size faults in at once; with less room, huge pages are refused
    // one by one.
    const LITTLE: Bytes = Bytes::mib(64);
    let lineage = facts.cgroups.memory.as_ref()?;
    let tight = |charge: Charge| {
        charge.room().zip(charge.limit).is_some_and(|(room, limit)| room < LITTLE.max(Bytes(limit.0 / 20)))
    };
    let level = lineage.levels.iter().find(|level| tight(level.charged))?;
    let directory = level.directory.display().to_string();
    Some(Finding::new(
        &catalog::CGROUP_MEMORY_TIGHT,
        format!("the memory limit of {directory}"),
        charge_text(level.charged),
    ))
}

fn confinement(facts: &Facts) -> Vec<Finding> {
    let confinement = &facts.confinement;
    let mut findings = Vec::new();
    if let Some(mark) = &confinement.container {
        findings.push(Finding::new(&catalog::CONTAINER, mark.clone(), "is there"));
    } else if confinement.user_namespace {
        let value = "not the machine's own user namespace";
        findings.push(Finding::new(&catalog::CONTAINER, "the map of user numbers", value));
    }
    if confinement.seccomp_filter {
        findings.push(Finding::new(&catalog::SECCOMP_FILTER, "Seccomp in the status of this process", "2"));
    }
    if confinement.selinux_enforcing {
        findings.push(Finding::new(&catalog::SELINUX_ENFORCING, "SELinux's enforce", "1"));
    }
    findings
}

/// Returns the finding on the use that a virtual machine's host makes of its memory.
fn host(facts: &Facts) -> Option<Finding> {
    let balloon = facts.reporting_balloon.as_deref()?;
    Some(Finding::new(
        &catalog::FREE_MEMORY_REPORTED,
        format!("features of {balloon}"),
        "free page reporting",
    ))
}

/// Returns the findings on the tunable that glibc reads from the environment, and on its chance to
/// work.
fn glibc(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let too_old = facts.glibc.is_some_and(|version| version < (2, 35));
    if let Some((major, minor)) = facts.glibc.filter(|_| too_old) {
        findings.push(Finding::new(&catalog::GLIBC_OLD, "the version of glibc", format!("{major}.{minor}")));
    }
    let asked = facts.tunables.as_deref().and_then(heap_tunable);
    let Some(value) = asked.filter(|value| *value != "0") else { return findings };
    let source = "glibc.malloc.hugetlb in GLIBC_TUNABLES";
    let dead = match value {
        _ if facts.glibc.is_none() || too_old => {
            Some(("the C library".to_string(), "does not know it".to_string()))
        }
        "1" => match &facts.thp {
            None => facts.lacks_thp().then(|| (path("enabled"), "no such file".into())),
            Some(_) if facts.thp_allowed == Some(false) => {
                Some(("THP_enabled in the status of this process".into(), "0".into()))
            }
            // Under 'madvise' glibc asks for huge pages; under 'always' it need not ask.
            Some(thp) => (thp.anonymous(PageSize::HUGE_2M) == ThpEnabled::Never)
                .then(|| (path("enabled"), thp.enabled.to_string())),
        },
        // The value 2 means the default size, and a larger one a size in bytes.
        size => {
            let size = match size {
                "2" => facts.default_size,
                bytes => bytes.parse().ok().and_then(PageSize::new),
            };
            match size.and_then(|size| facts.pool(size)) {
                None => Some(("the pools".into(), "none of that size".into())),
                Some(pool) => match pool.state() {
                    PoolState::Empty | PoolState::Taken | PoolState::Elsewhere => {
                        Some(("the pool".into(), pool.describe()))
                    }
                    PoolState::Available(_) | PoolState::OnDemand(_) => None,
                },
            }
        }
    };
    findings.push(match dead {
        None => Finding::new(&catalog::TUNABLE_SET, source, value),
        Some((where_, what)) => Finding::new(&catalog::TUNABLE_DEAD, source, value).and(where_, what),
    });
    findings
}

/// First glibc without __morecore.
const WITHOUT_MORECORE: (u32, u32) = (2, 34);

/// Returns the finding for libhugetlbfs' variable if nothing reads it: glibc no longer does, and
/// another C library never did.
fn morecore(facts: &Facts) -> Option<Finding> {
    let value = facts.morecore.as_deref().filter(|value| asks_for_heap(value))?;
    let version = match facts.glibc {
        Some(version) if version < WITHOUT_MORECORE => return None,
        Some((major, minor)) => format!("{major}.{minor}"),
        None => "another C library".into(),
    };
    let finding = Finding::new(&catalog::MORECORE_DEAD, "HUGETLB_MORECORE in the environment", value);
    Some(finding.and("the version of glibc", version))
}

/// Returns true if HUGETLB_MORECORE=`value` asks for anything; see libhugetlbfs(7).
pub(crate) fn asks_for_heap(value: &str) -> bool {
    !value.eq_ignore_ascii_case("no") && value != "0"
}

/// Returns the last setting of `glibc.malloc.hugetlb` in the colon-separated list: the one that the
/// loader takes.
fn heap_tunable(tunables: &str) -> Option<&str> {
    tunables.split(':').filter_map(|entry| entry.strip_prefix("glibc.malloc.hugetlb=")).next_back()
}
