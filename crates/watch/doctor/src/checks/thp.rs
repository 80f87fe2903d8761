//! Transparent huge pages: the settings, the process's flag, and memory in one piece.

use crate::catalog;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::verdict::none_was_free;
use megapage_kernel::thp::{ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, path};
use megapage_units::PageSize;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &facts.thp {
        None => {
            let kind = if facts.lacks_thp() { &catalog::THP_ABSENT } else { &catalog::THP_UNSEEN };
            findings.push(Finding::new(kind, path("enabled"), "no such file"));
        }
        Some(settings) => findings.extend(settings_findings(settings)),
    }
    if facts.thp_allowed == Some(false) {
        findings.push(Finding::new(
            &catalog::THP_DISABLED_FOR_PROCESS,
            "THP_enabled in the status of this process",
            "0",
        ));
    }
    findings.extend(memory(facts));
    findings
}

fn settings_findings(settings: &ThpSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let size = PageSize::HUGE_2M;
    let anonymous = settings.anonymous(size);
    let by_size = settings.sizes.iter().find(|entry| entry.page_size == size);
    let with_both = |kind| {
        let finding = Finding::new(kind, path("enabled"), settings.enabled.to_string());
        match by_size {
            Some(entry) => {
                finding.and(path(&format!("hugepages-{}kB/enabled", size.kib())), entry.enabled.to_string())
            }
            None => finding,
        }
    };
    match anonymous {
        ThpEnabled::Never => {
            let mut finding = with_both(&catalog::THP_NEVER);
            // The size's setting overrides the global one.
            if by_size.is_some_and(|entry| entry.enabled == ThpEnabled::Never) {
                let own = path(&format!("hugepages-{}kB/enabled", size.kib()));
                finding.remedy.insert(0, format!("echo inherit > {own}"));
            }
            findings.push(finding);
        }
        ThpEnabled::Madvise => findings.push(with_both(&catalog::THP_ON_REQUEST)),
        ThpEnabled::Always | ThpEnabled::Inherit => {}
    }
    let defrag = |kind| Finding::new(kind, path("defrag"), settings.defrag.to_string());
    match settings.defrag {
        ThpDefrag::Never => findings.push(defrag(&catalog::THP_DEFRAG_NEVER)),
        ThpDefrag::Always if anonymous == ThpEnabled::Always => {
            findings.push(defrag(&catalog::THP_DEFRAG_STALLS));
        }
        _ => {}
    }
    if settings.khugepaged.is_some_and(|khugepaged| khugepaged.pages_to_scan == 0) {
        findings.push(Finding::new(&catalog::KHUGEPAGED_OFF, path("khugepaged/pages_to_scan"), "0"));
    }
    let mut between = settings.sizes.iter().filter(|entry| entry.page_size < size).peekable();
    if let Some(smallest) = between.peek().map(|entry| entry.page_size)
        && between.all(|entry| settings.anonymous(entry.page_size) == ThpEnabled::Never)
    {
        let source = format!("enabled of each size from {smallest}");
        findings.push(Finding::new(&catalog::MTHP_OFF, source, "never"));
    }
    if matches!(settings.shared(size), ThpShmem::Never | ThpShmem::Deny) {
        let value = settings.shmem.map_or("no such file".into(), |shmem| shmem.to_string());
        findings.push(Finding::new(&catalog::SHMEM_THP_OFF, path("shmem_enabled"), value));
    }
    findings
}

/// Returns the finding for memory that is short, or free only in small pieces.
fn memory(facts: &Facts) -> Option<Finding> {
    let memory = &facts.memory;
    let available = format!("{} of {}", memory.available, memory.total);
    if memory.is_short() {
        return Some(Finding::new(&catalog::MEMORY_SHORT, "MemAvailable", available));
    }
    let missed = none_was_free(facts);
    let scattered = memory.in_huge_blocks.is_some_and(|blocks| blocks.0 < memory.available.0 / 20);
    if !missed && !scattered {
        return None;
    }
    let finding = Finding::new(
        &catalog::MEMORY_FRAGMENTED,
        "free blocks of at least 2 MiB (buddyinfo)",
        memory.in_huge_blocks.map_or("not to be read here".into(), |blocks| blocks.to_string()),
    )
    .and("MemAvailable", available);
    Some(match missed {
        true => finding.and("trial: madvise(MADV_HUGEPAGE) and a write", "mapped base pages"),
        false => finding,
    })
}
