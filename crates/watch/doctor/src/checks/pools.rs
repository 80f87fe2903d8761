//! Pools of hugetlb pages, and the file systems on top of them.

use crate::catalog;
use crate::facts::{Facts, HugetlbMount, PersistentSegment, Pool, PoolState};
use crate::finding::Finding;
use megapage_kernel::hugetlb::{PoolFile, PoolScope, path};
use megapage_units::{Bytes, PageSize};

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.pools.is_empty() {
        findings.push(Finding::new(&catalog::HUGETLB_ABSENT, "page sizes of hugetlb pools", "none"));
    }
    findings.extend(facts.pools.iter().filter_map(|pool| of_pool(facts, pool)));
    findings.extend(mounts(facts));
    findings.extend(persistent_segments(facts));
    findings
}

/// Returns the finding for free pages that a cpuset or a memory policy keeps away.
fn elsewhere(facts: &Facts, pool: &Pool) -> Finding {
    let list = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let grammar = format!("{}=NODE:+1", pool.page_size);
    let file = path(pool.page_size, PoolScope::Machine, PoolFile::Pages);
    let mut finding = Finding::new(&catalog::POOL_ELSEWHERE, format!("/{file}"), pool.describe())
        .and("Mems_allowed_list in the status of the process", list(&facts.nodes.allowed))
        .fill("2m=NODE:+512", &grammar);
    if let Some(bound) = &facts.nodes.bound {
        finding = finding.and("its memory policy (numa_maps)", format!("bind to {}", list(bound)));
    }
    finding
}

fn of_pool(facts: &Facts, pool: &Pool) -> Option<Finding> {
    let is_default = facts.default_size == Some(pool.page_size);
    let kind = match pool.state() {
        PoolState::Available(_) => return None,
        PoolState::OnDemand(_) => &catalog::POOL_ON_DEMAND,
        PoolState::Taken => &catalog::POOL_TAKEN,
        PoolState::Elsewhere => return Some(elsewhere(facts, pool)),
        PoolState::Empty if is_default => &catalog::POOL_EMPTY,
        PoolState::Empty => &catalog::POOL_SIZE_UNUSED,
    };
    let file = path(pool.page_size, PoolScope::Machine, PoolFile::Pages);
    let finding = Finding::new(kind, format!("/{file}"), pool.describe());
    // The catalog's lines name the usual sizes.
    Some(match pool.page_size {
        PageSize::HUGE_2M => finding.fill("1GB:+1", "2MB:+512"),
        PageSize::HUGE_1G => finding.fill("2MB:+512", "1GB:+1"),
        other => {
            let grammar = format!("{other}:+1");
            finding.fill("2MB:+512", &grammar).fill("1GB:+1", &grammar)
        }
    })
}

/// Most segments that are named; the others are counted.
const MOST_NAMED: usize = 5;

fn persistent_segments(facts: &Facts) -> Option<Finding> {
    let (first, others) = facts.persistent_segments.split_first()?;
    let path = |segment: &PersistentSegment| segment.path.display().to_string();
    let mut finding = Finding::new(&catalog::SEGMENTS_KEPT, path(first), first.memory.to_string())
        .fill("SEGMENT", &path(first));
    let named = others.len().min(MOST_NAMED - 1);
    for other in &others[..named] {
        finding = finding.and(path(other), other.memory.to_string());
    }
    let rest = &others[named..];
    if !rest.is_empty() {
        let memory: Bytes = rest.iter().map(|segment| segment.memory).sum();
        finding = finding.and(format!("{} more", rest.len()), memory.to_string());
    }
    Some(finding)
}

fn mounts(facts: &Facts) -> Vec<Finding> {
    if facts.pools.is_empty() {
        return Vec::new();
    }
    if facts.mounts.is_empty() {
        return vec![Finding::new(&catalog::HUGETLBFS_NOT_MOUNTED, "mounts of type hugetlbfs", "none")];
    }
    let mut findings = Vec::new();
    let denials: Vec<(&HugetlbMount, String)> = facts
        .mounts
        .iter()
        .filter_map(|mount| match mount.denied_at(&facts.user) {
            Some(step) => Some((
                mount,
                format!("{} is {}:{} {:04o}", step.path.display(), step.uid, step.gid, step.mode & 0o7777),
            )),
            None => mount.read_only.then(|| (mount, "mounted read-only".to_string())),
        })
        .collect();
    if let Some(((first, why), others)) = denials.split_first() {
        let point = first.point.display().to_string();
        let mut finding = Finding::new(&catalog::HUGETLBFS_DENIED, point.clone(), why.clone())
            .fill("MOUNTPOINT", &point)
            .fill("gid=GID", &format!("gid={}", facts.user.gid));
        for (mount, why) in others {
            finding = finding.and(mount.point.display().to_string(), why.clone());
        }
        findings.push(finding);
    }
    for mount in &facts.mounts {
        let held = facts.pool(mount.page_size).map_or(0, |pool| pool.counts.total);
        let pool = Bytes(mount.page_size.bytes().0.saturating_mul(held));
        if let Some(size) = mount.size.filter(|size| *size < pool || *size < mount.page_size.bytes()) {
            let point = mount.point.display().to_string();
            let finding =
                Finding::new(&catalog::HUGETLBFS_SIZE_LIMITED, point.clone(), format!("size={size}"))
                    .and(format!("the pool of {}", mount.page_size), pool.to_string());
            findings.push(finding.fill("MOUNTPOINT", &point));
        }
    }
    findings
}
