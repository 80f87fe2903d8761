//! Abilities of the kernel, as trials show them, and the rights to use them.

use crate::catalog;
use crate::facts::Facts;
use crate::finding::{EINVAL, ENOSYS, Finding, describe};
use crate::verdict::{collapse_should_work, unexplained};
use megapage_kernel::probe::{Answer, Trial};

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let refused = |trial: &Trial, errnos: &[i32]| match facts.answer(trial) {
        Some(answer @ Answer::Refused { errno, .. }) if errnos.contains(&errno) => Some(describe(answer)),
        _ => None,
    };
    let collapse = "trial: process_madvise(MADV_COLLAPSE) on another process";
    if collapse_should_work(facts)
        && let Some(answer) = refused(&Trial::CollapseOther, &[EINVAL, ENOSYS])
    {
        findings.push(Finding::new(&catalog::COLLAPSE_UNSUPPORTED, collapse, answer));
    }
    let has_nice = facts.user.capabilities.sys_nice();
    if !has_nice || facts.confinement.user_namespace {
        let source = format!("CAP_SYS_NICE of user {}", facts.user.name);
        let mut finding = Finding::new(&catalog::OUTSIDE_NOT_PERMITTED, source, capability_text(has_nice));
        if let Some(answer) = facts.answer(&Trial::CollapseOther) {
            finding = finding.and(collapse, describe(answer));
        }
        findings.push(finding);
    }
    if let Some(answer) = refused(&Trial::PopulateWrite, &[EINVAL]) {
        let source = "trial: madvise(MADV_POPULATE_WRITE)";
        findings.push(Finding::new(&catalog::POPULATE_UNSUPPORTED, source, answer));
    }
    for (trial, answer) in unexplained(facts) {
        findings.push(Finding::new(&catalog::REFUSED_UNEXPLAINED, trial_text(&trial), describe(answer)));
    }
    findings
}

/// Returns why a capability does not count: it is missing, or it holds in a user namespace only.
pub(super) fn capability_text(is_there: bool) -> &'static str {
    if is_there { "in a user namespace only" } else { "no" }
}

fn trial_text(trial: &Trial) -> String {
    match trial {
        Trial::MapHugetlb(size) => format!("trial: mmap(MAP_HUGETLB) of one page of {size}"),
        Trial::ShmHugetlb(size) => format!("trial: shmget(SHM_HUGETLB) of one page of {size}"),
        Trial::ShmPermission { size, .. } => format!("trial: shmget(SHM_HUGETLB) of {size}, not touched"),
        Trial::Hugetlbfs { directory, .. } => format!("trial: a file in {}", directory.display()),
        Trial::MadviseThp => "trial: madvise(MADV_HUGEPAGE) and a write".into(),
        Trial::PopulateWrite => "trial: madvise(MADV_POPULATE_WRITE)".into(),
        Trial::CollapseOther => "trial: process_madvise(MADV_COLLAPSE) on another process".into(),
    }
}
