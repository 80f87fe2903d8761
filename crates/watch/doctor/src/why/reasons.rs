//! Reasons why one region is not on a huge page: derives them from facts, the decisive one first.
//!
//! The order is by necessity. First comes memory that can never be huge as it is mapped. Then come
//! the requests of the program, its ancestors and the machine, then the content of the range. Last
//! comes work that the kernel has not done yet.

use super::catalog as why;
use super::facts::{Place, WhyFacts};
use crate::catalog;
use crate::finding::Finding;
use megapage_kernel::thp::{Khugepaged, ThpEnabled, ThpSettings, ThpShmem, path};
use megapage_observe::{Leaf, MappingKind, PAGES};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize};
use std::time::Duration;

const SIZE: PageSize = PageSize::HUGE_2M;
/// Room below a memory limit at which huge pages are refused, but not yet base pages.
const LITTLE_ROOM: Bytes = Bytes::mib(4);

/// Returns the reasons, the decisive one first; empty only if the region is on a huge page.
pub(super) fn reasons(facts: &WhyFacts, place: &Place<'_>) -> Vec<Finding> {
    if is_huge(place) {
        return Vec::new();
    }
    let mut reasons = shape(facts, place);
    reasons.extend(asked(facts, place));
    if reasons.is_empty() && place.mapping.thp_eligible == Some(false) {
        let source = format!("THPeligible of {} in smaps", place.mapping.range);
        reasons.push(Finding::new(&why::NOT_ELIGIBLE, source, "0"));
    }
    reasons.extend(content(facts, place));
    if reasons.is_empty() {
        reasons = pace(facts, place);
    }
    let pid = facts.process.id.pid.to_string();
    // A collapse would undo KSM's merging, so promotion is not offered.
    let attaches = facts.collapse && !reasons.iter().any(|reason| reason.id == why::MERGED.id);
    let is_possible = |line: &String| attaches || !line.contains("run --attach");
    reasons
        .into_iter()
        .map(|mut reason| {
            reason.remedy.retain(is_possible);
            reason.fill("PROCESS", &pid)
        })
        .collect()
}

/// Returns true if the region is on a huge page, or will be at the first touch, as hugetlb memory
/// is.
pub(super) fn is_huge(place: &Place<'_>) -> bool {
    place.mapping.kind == MappingKind::Hugetlb || place.region.is_some_and(|region| region.leaf != Leaf::Base)
}

/// Returns the reasons in the mapping itself: its kind, and no room for a huge page.
fn shape(facts: &WhyFacts, place: &Place<'_>) -> Vec<Finding> {
    let mapping = place.mapping;
    let what = || format!("{} ({})", mapping.range, mapping.kind.name());
    let mut reasons = Vec::new();
    if mapping.kind == MappingKind::Special || mapping.flags.device {
        return vec![Finding::new(&why::SPECIAL_MAPPING, what(), named(&mapping.name))];
    }
    if !facts.has_thp {
        reasons.push(Finding::new(&catalog::THP_ABSENT, path("enabled"), "no such file"));
    }
    if mapping.range.aligned_interior(HUGE_2M as u64).is_none() {
        let mut small = Finding::new(&why::MAPPING_SMALL, what(), mapping.range.len().to_string());
        if !matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous) {
            // An allocator cannot change these mappings.
            small.remedy.clear();
        }
        reasons.push(small);
    } else if !place.is_whole() {
        let part = format!("{} of these 2 MiB", place.range().len());
        reasons.push(Finding::new(&why::MAPPING_EDGE, what(), part));
    }
    let is_of_file = matches!(mapping.kind, MappingKind::File | MappingKind::Shared);
    if let Some(offset) = place.extra.offset.filter(|_| is_of_file && reasons.is_empty()) {
        let past = |address: u64| Bytes(address % HUGE_2M as u64);
        if past(offset) != past(mapping.range.start()) {
            let kind = match mapping.kind {
                MappingKind::Shared => &why::SHARED_MISPLACED,
                _ => &why::FILE_MISPLACED,
            };
            reasons.push(
                Finding::new(kind, "the start of the mapping", beyond(past(mapping.range.start())))
                    .and("the place in the file", beyond(past(offset))),
            );
        }
    }
    // If the kernel itself calls the file eligible, it is.
    if mapping.kind == MappingKind::File && mapping.thp_eligible != Some(true) {
        reasons.push(Finding::new(&why::FILE_PAGES, what(), named(&mapping.name)));
    }
    reasons
}

fn named(name: &str) -> String {
    if name.is_empty() { "without a name".into() } else { name.into() }
}

fn beyond(bytes: Bytes) -> String {
    format!("{bytes} beyond a multiple of 2 MiB")
}

/// Returns the reasons in the requests of the program and its ancestors, and in the machine's
/// settings.
fn asked(facts: &WhyFacts, place: &Place<'_>) -> Vec<Finding> {
    let mapping = place.mapping;
    let mut reasons = Vec::new();
    let flag = |code: &str| format!("VmFlags of {} in smaps: {code}", mapping.range);
    if mapping.flags.no_huge {
        reasons.push(Finding::new(&why::ADVISED_AGAINST, flag("nh"), "set"));
    }
    if facts.process.thp_disabled {
        let source = format!("THP_enabled in the status of process {}", facts.process.id.pid);
        let pid = facts.process.id.pid.to_string();
        reasons.push(Finding::new(&catalog::THP_DISABLED_FOR_PROCESS, source, "0").fill("$$", &pid));
    }
    if let Some(thp) = &facts.machine.thp {
        match mapping.kind {
            MappingKind::Shared => reasons.extend(shared_setting(facts, place, thp)),
            MappingKind::Heap | MappingKind::Anonymous | MappingKind::Stack => {
                reasons.extend(anonymous_setting(place, thp));
            }
            MappingKind::File | MappingKind::Hugetlb | MappingKind::Special => {}
        }
    }
    if mapping.flags.userfault {
        reasons.push(Finding::new(&why::USERFAULT, flag("um, uw or ui"), "set"));
    }
    reasons
}

fn anonymous_setting(place: &Place<'_>, thp: &ThpSettings) -> Option<Finding> {
    let kind = match thp.anonymous(SIZE) {
        ThpEnabled::Never => &catalog::THP_NEVER,
        ThpEnabled::Madvise if !place.mapping.flags.huge => &why::NOT_ADVISED,
        ThpEnabled::Madvise | ThpEnabled::Always | ThpEnabled::Inherit => return None,
    };
    let mut finding = Finding::new(kind, path("enabled"), thp.enabled.to_string());
    if let Some(own) = thp.sizes.iter().find(|entry| entry.page_size == SIZE) {
        let file = path(&format!("hugepages-{}kB/enabled", SIZE.kib()));
        if own.enabled != ThpEnabled::Inherit {
            finding.remedy.insert(0, format!("echo inherit > {file}"));
        }
        finding = finding.and(file, own.enabled.to_string());
    }
    Some(finding)
}

fn shared_setting(facts: &WhyFacts, place: &Place<'_>, thp: &ThpSettings) -> Option<Finding> {
    let name = &place.mapping.name;
    let setting = thp.shared(SIZE);
    let source = path("shmem_enabled");
    // The files of a mount follow the mount's option, unless the setting overrides all.
    let mount = facts.tmpfs_of(name).filter(|_| !matches!(setting, ThpShmem::Deny | ThpShmem::Force));
    if let Some(tmpfs) = mount {
        let point = tmpfs.point.display().to_string();
        let is_off = match tmpfs.huge.as_str() {
            "never" => true,
            "advise" => !place.mapping.flags.huge,
            _ => false,
        };
        return is_off.then(|| {
            Finding::new(&why::TMPFS_NOT_HUGE, format!("huge= of the tmpfs at {point}"), tmpfs.huge.clone())
                .fill("MOUNTPOINT", &point)
        });
    }
    let kind = match setting {
        ThpShmem::Never | ThpShmem::Deny => &catalog::SHMEM_THP_OFF,
        ThpShmem::Advise if !place.mapping.flags.huge => &why::SHARED_NOT_ADVISED,
        ThpShmem::Advise | ThpShmem::Always | ThpShmem::WithinSize | ThpShmem::Force | ThpShmem::Inherit => {
            return None;
        }
    };
    let mut finding =
        Finding::new(kind, source, thp.shmem.map_or("no such file".into(), |shmem| shmem.to_string()));
    let own = thp.sizes.iter().find(|entry| entry.page_size == SIZE).and_then(|entry| entry.shmem);
    if thp.shmem == Some(ThpShmem::Never) && own.is_none_or(|own| own == ThpShmem::Inherit) {
        // 'never' concerns faults and khugepaged; promotion heeds only 'deny', and the setting for
        // the size.
        finding.remedy.insert(0, "megapage run --attach PROCESS".into());
    }
    Some(finding)
}

/// Returns the reasons in the content of the range.
fn content(facts: &WhyFacts, place: &Place<'_>) -> Vec<Finding> {
    let Some(region) = place.region.filter(|region| region.present + region.swapped > 0) else {
        let zeros = place.region.map_or(0, |region| region.zero_page);
        let value = format!("0 of {PAGES}, {zeros} on the shared page of zeros");
        return vec![Finding::new(&why::NEVER_TOUCHED, present_at(place), value)];
    };
    // The counts are for the region: if neighbours share it, they are not the mapping's.
    if !place.is_whole() {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    let khugepaged = facts.machine.thp.as_ref().and_then(|thp| thp.khugepaged);
    let most_absent = khugepaged.map_or(u64::from(PAGES), |khugepaged| khugepaged.max_ptes_none);
    let absent = place.absent();
    if u64::from(absent) > most_absent {
        let value = format!(
            "{} of {PAGES}; {} more are swapped out, {} on the shared page of zeros",
            region.present, region.swapped, region.zero_page
        );
        reasons.push(
            Finding::new(&why::SPARSE, present_at(place), value)
                .and(path("khugepaged/max_ptes_none"), most_absent.to_string()),
        );
    }
    let limits = facts.limits;
    if let Some(most) = limits.map(|limits| limits.max_ptes_swap)
        && u64::from(region.swapped) > most
    {
        let source = format!("base pages swapped out at {:x}", place.start);
        reasons.push(
            Finding::new(&why::SWAPPED_OUT, source, region.swapped.to_string())
                .and(path("khugepaged/max_ptes_swap"), most.to_string()),
        );
    }
    let is_anonymous = !matches!(place.mapping.kind, MappingKind::Shared | MappingKind::File);
    let is_merged = place.extra.merged > Bytes::ZERO;
    if let (Some(shared), Some(limits)) = (place.shared, limits)
        && is_anonymous
        && u64::from(shared) > if is_merged { 0 } else { limits.max_ptes_shared }
    {
        let source = format!("base pages shared with another process at {:x}", place.start);
        let kind = if is_merged { &why::MERGED } else { &why::SHARED_BY_FORK };
        let mut finding = Finding::new(kind, source, shared.to_string())
            .and(path("khugepaged/max_ptes_shared"), limits.max_ptes_shared.to_string());
        if let Some(children) = facts.process.sharing_children.filter(|children| *children > 0) {
            finding = finding.and("children that have not executed a program", children.to_string());
        }
        if is_merged {
            let source = format!("KSM of {} in smaps", place.mapping.range);
            finding = finding.and(source, place.extra.merged.to_string());
        }
        reasons.push(finding);
    }
    reasons
}

fn present_at(place: &Place<'_>) -> String {
    format!("base pages present at {:x}", place.start)
}

/// Returns the reasons why the kernel has not made it huge yet: only for memory that could be huge.
fn pace(facts: &WhyFacts, place: &Place<'_>) -> Vec<Finding> {
    let mut reasons = Vec::new();
    let machine = &facts.machine;
    let khugepaged = machine.thp.as_ref().and_then(|thp| thp.khugepaged);
    if khugepaged.is_some_and(|khugepaged| khugepaged.pages_to_scan == 0) {
        reasons.push(Finding::new(&catalog::KHUGEPAGED_OFF, path("khugepaged/pages_to_scan"), "0"));
    }
    reasons.extend(memory_group(facts));
    let free: u64 = machine.nodes.iter().map(|node| node.huge_available).sum();
    if free == 0 && !machine.nodes.is_empty() {
        let mut finding = Finding::new(&why::NONE_FREE, "free blocks of 2 MiB (buddyinfo)", "0");
        for node in &machine.nodes {
            if let Some(share) = node.fragmentation {
                let source = format!("free memory of node {} that is in smaller blocks", node.node);
                finding = finding.and(source, format!("{:.0} % of {}", 100.0 * share, node.free));
            }
        }
        if let Some(count) = machine.counters.get("thp_fault_fallback") {
            finding = finding.and("faults that got no huge page since boot", count.to_string());
        }
        reasons.push(finding);
        if khugepaged.is_some_and(|khugepaged| !khugepaged.defrag) {
            reasons.push(Finding::new(&why::KHUGEPAGED_TAKES_FREE, path("khugepaged/defrag"), "0"));
        }
    }
    if reasons.is_empty() {
        reasons.push(not_yet(facts, place, khugepaged));
    }
    if facts.pinned > Bytes::ZERO {
        let source = format!("VmPin in the status of process {}", facts.process.id.pid);
        reasons.push(Finding::new(&why::PINNED, source, facts.pinned.to_string()));
    }
    reasons
}

fn memory_group(facts: &WhyFacts) -> Option<Finding> {
    let lineage = facts.memory_group.as_ref()?;
    let tight =
        lineage.levels.iter().find(|level| level.charged.room().is_some_and(|room| room < LITTLE_ROOM))?;
    let limit = tight.charged.limit.unwrap_or_default();
    Some(Finding::new(
        &catalog::CGROUP_MEMORY_TIGHT,
        format!("the memory limit of {}", tight.directory.display()),
        format!("{limit} (in use {})", tight.charged.usage),
    ))
}

fn not_yet(facts: &WhyFacts, place: &Place<'_>, khugepaged: Option<Khugepaged>) -> Finding {
    let present = place.region.map_or(0, |region| region.present);
    let mut finding =
        Finding::new(&why::NOT_COLLAPSED_YET, present_at(place), format!("{present} of {PAGES}"));
    if let Some(khugepaged) = khugepaged {
        let pause = Duration::from_millis(khugepaged.scan_sleep_ms);
        let mut value =
            format!("{} base pages, then a pause of {}", khugepaged.pages_to_scan, seconds(pause));
        let anonymous = facts.process.rss_anonymous;
        if let Some(time) = pass(&khugepaged, anonymous) {
            value += &format!(": once through the {anonymous} of this process takes {}", seconds(time));
        }
        finding = finding.and("khugepaged's pace", value);
    }
    if let Some(limits) = facts.limits {
        finding =
            finding.and("times that khugepaged has been through all memory", limits.full_scans.to_string());
    }
    if let Some(count) = facts.machine.counters.get("thp_fault_fallback") {
        finding = finding.and("faults that got no huge page since boot", count.to_string());
    }
    finding
}

/// Returns how long khugepaged takes to scan `memory` once, if it scans nothing else; `None` if it
/// does not scan.
fn pass(khugepaged: &Khugepaged, memory: Bytes) -> Option<Duration> {
    let round = khugepaged.pages_to_scan.checked_mul(BASE_PAGE as u64).filter(|bytes| *bytes > 0)?;
    let pauses = memory.0.div_ceil(round);
    Some(Duration::from_millis(khugepaged.scan_sleep_ms.saturating_mul(pauses)))
}

/// Formats a time, such as `10 s`, `21 min` or `3 h`. The next unit begins at two.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..=119 => format!("{} s", time.as_secs_f64()),
        minutes @ 120..=7199 => format!("{} min", minutes / 60),
        hours => format!("{} h", hours / 3600),
    }
}
