//! The kernel's reports on one process, as text that the process can influence: names, arguments,
//! mappings.

use crate::tree::{PID, of_process, with_file};
use megapage_kernel::maps::read_maps;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process::{read_cgroup, read_cmdline, read_stat, read_status};
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::smaps::{self, read_smaps};
use megapage_kernel::{hugetlb_users, limits};
use megapage_launch::jvm::heap::java_heap;
use megapage_launch::kinds::{Clues, HeapRuntime, Kinds, kinds};
use megapage_launch::why::{Promoters, Setting};
use megapage_units::{BASE_PAGE, Bytes, VirtRange};

fn lines(data: &[u8]) -> usize {
    String::from_utf8_lossy(data).lines().count()
}

/// Reads `/proc/PID/maps`: each line is a mapping; written out again it is the same mapping, and
/// smaps reads the line as maps does.
pub fn maps(data: &[u8]) {
    let path = of_process("maps");
    with_file(&path, data, |root| {
        // Another reader of the same file finds out if a program uses hugetlb.
        let _ = hugetlb_users::may_map_hugetlb(root, PID, &[]);
    });
    let Ok(found) = with_file(&path, data, |root| read_maps(root, PID)) else { return };
    assert!(found.len() <= lines(data), "more mappings than lines");
    let mut text = String::new();
    for map in &found {
        assert!(map.range.start() <= map.range.end() && !map.name.contains('\n'));
        let bit = |set: bool, yes: char, no: char| if set { yes } else { no };
        text += &format!(
            "{} {}{}{}{} {:x} {:x}:{:x} {} {}\n",
            map.range,
            bit(map.read, 'r', '-'),
            bit(map.write, 'w', '-'),
            bit(map.execute, 'x', '-'),
            bit(map.shared, 's', 'p'),
            map.offset,
            map.device.0,
            map.device.1,
            map.inode,
            map.name
        );
    }
    // A carriage return at the end of a name counts to the end of the line.
    if found.iter().any(|map| map.name.ends_with('\r')) {
        return;
    }
    let again = with_file(&path, text.as_bytes(), |root| read_maps(root, PID)).expect("lines of mappings");
    assert_eq!(again, found, "what is written is read");
    let smaps = with_file(&of_process("smaps"), text.as_bytes(), |root| read_smaps(root, PID));
    let smaps = smaps.expect("lines of mappings without fields");
    let same = |(one, other): (&megapage_kernel::maps::Mapping, &smaps::Mapping)| {
        one.range == other.range && one.name == other.name && one.inode == other.inode
    };
    assert!(smaps.len() == found.len() && found.iter().zip(&smaps).all(same), "smaps and maps agree");
}

/// Reads `/proc/PID/smaps`, and the sums of it in reports.
pub fn smaps(data: &[u8]) {
    let Ok(found) = with_file(&of_process("smaps"), data, |root| read_smaps(root, PID)) else { return };
    assert!(found.len() <= lines(data), "more mappings than lines");
    let sum = smaps::backing(&found).total();
    let swapped: Bytes = found.iter().map(|mapping| mapping.swap).sum();
    for mapping in &found {
        assert!(mapping.range.start() <= mapping.range.end());
        assert!(mapping.hugetlb_shared <= mapping.hugetlb, "a part is not more than the whole");
        let backing = mapping.backing();
        assert!(backing.base <= mapping.rss && backing.total() <= sum);
        let _ = (mapping.is_heap_like(), mapping.is_extent(), mapping.has_flag("hg"));
    }
    // The place of a JVM's heap, for a heap that is none, small, usual, and as large as an option
    // can make it.
    for largest in [Bytes::ZERO, Bytes::mib(64), Bytes::gib(4), Bytes(u64::MAX)] {
        let java_heap = java_heap(&found, largest);
        assert!(java_heap.is_none_or(|heap| heap.memory(&found).total() <= sum + swapped));
        let heap = VirtRange::new(0, largest.0);
        for runtime in [None, Some(HeapRuntime::Jvm), Some(HeapRuntime::Go)] {
            let clues = Clues {
                heap: heap.as_ref().map(std::slice::from_ref),
                runtime,
                java_heap,
                ..Clues::default()
            };
            check_kinds(&found, &clues, sum + swapped);
        }
    }
}

/// Checks that kinds add up to all memory, and the reasons of each to the part that is not huge.
fn check_kinds(mappings: &[smaps::Mapping], clues: &Clues<'_>, all: Bytes) {
    let kinds = kinds(mappings, clues, &MemoryDevices::default());
    assert_eq!(kinds.len(), mappings.len());
    let setting = Setting {
        thp: Ok(None),
        disabled: false,
        promoters: Promoters::default(),
        preloaded_heap: clues.heap.is_some(),
    };
    let sums = Kinds::of(mappings, &kinds, &setting);
    assert_eq!(sums.total().total(), all);
    for (_, of) in sums.present() {
        let reasons: Bytes = of.base.reasons().into_iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(reasons, of.memory.not_huge() + of.memory.swapped);
    }
}

/// Reads `/proc/PID/pagemap` without PAGEMAP_SCAN: entries of eight bytes from address 0 on.
/// Regions come ascending and whole, with no more pages than they have.
pub fn pagemap(data: &[u8]) {
    const PAGE: u64 = BASE_PAGE as u64;
    // The first page, and the number of pages; the remainder is the entries.
    let Some((&[first, count, ref more @ ..], entries)) = data.split_at_checked(4) else { return };
    let start = u64::from(first) * PAGE;
    let pages = u64::from(count) + 8 * u64::from(more[0]);
    let Some(range) = VirtRange::new(start, start + pages * PAGE) else { return };
    with_file(&of_process("pagemap"), entries, |root| {
        let Ok(mut pagemap) = Pagemap::open(root, PID) else { return };
        let whole = entries.len() as u64 / 8 >= range.end() / PAGE;
        let found = pagemap.entries(range);
        assert_eq!(found.is_ok(), whole || pages == 0, "entries are read whole or not at all");
        let half = VirtRange::new(start, start + pages / 2 * PAGE);
        let behind = VirtRange::new(start + (pages / 2 + 1) * PAGE, range.end());
        let several: Vec<VirtRange> = [half, behind].into_iter().flatten().collect();
        for ranges in [&[range][..], &several] {
            let Ok(held) = pagemap.held(ranges) else { continue };
            check_regions(&held);
            let present: u64 = held.iter().map(|region| u64::from(region.present)).sum();
            let entries: u64 = ranges
                .iter()
                .filter_map(|range| pagemap.entries(*range).ok())
                .map(|entries| entries.iter().filter(|entry| entry.is_present()).count() as u64)
                .sum();
            assert_eq!(present, entries, "each present page is counted once");
        }
        if let Ok(regions) = pagemap.regions(range) {
            check_regions(&regions);
            assert!(
                regions
                    .iter()
                    .all(|region| region.page.range().intersection(range) == Some(region.page.range()))
            );
        }
    });
}

fn check_regions(regions: &[megapage_kernel::pagemap::Region]) {
    assert!(regions.windows(2).all(|pair| pair[0].page < pair[1].page), "{regions:?}");
    for region in regions {
        assert!(region.present <= 512 && region.swapped <= 512 && region.zero_page <= 512);
    }
}

/// Reads `/proc/PID/status`.
pub fn status(data: &[u8]) {
    let Ok(status) = with_file(&of_process("status"), data, |root| read_status(root, PID)) else { return };
    assert!(!status.name.contains('\n'));
    let _ = (status.is_zombie(), status.capabilities.sys_admin(), status.capabilities.bpf_tracing());
}

/// Reads `/proc/PID/stat`, whose name may hold parentheses, spaces and newlines.
pub fn stat(data: &[u8]) {
    let Ok(stat) = with_file(&of_process("stat"), data, |root| read_stat(root, PID)) else { return };
    let text = String::from_utf8_lossy(data);
    assert!(text.contains(&format!("({})", stat.name)), "the name is all between the parentheses");
}

/// Reads `/proc/PID/cgroup` and `/proc/PID/cmdline`.
pub fn cgroup(data: &[u8]) {
    let group = with_file(&of_process("cgroup"), data, |root| read_cgroup(root, PID)).expect("text");
    assert!(!group.contains('\n') && String::from_utf8_lossy(data).contains(&group));
    let arguments = with_file(&of_process("cmdline"), data, |root| read_cmdline(root, PID)).expect("text");
    assert!(arguments.iter().all(|argument| !argument.contains('\0')));
    assert!(arguments.len() <= data.len());
}

/// Reads `/proc/PID/limits`.
pub fn limits(data: &[u8]) {
    let read = |root: &megapage_kernel::KernelRoot| limits::Limits::read(root, Some(PID));
    let Ok(found) = with_file(&of_process("limits"), data, read) else { return };
    for limit in [found.locked, found.address_space, found.data] {
        assert!(limit.admits(Bytes::ZERO) && !limit.to_string().is_empty());
    }
}

/// Reads entries of `limits.conf`, for a user and for root.
pub fn limits_conf(data: &[u8]) {
    with_file("etc/security/limits.conf", data, |root| {
        for (name, uid) in [("db", 1000), ("root", 0)] {
            let found = limits::login_memlock(root, name, uid, 27, &["huge".to_string()]);
            assert!(found.is_none_or(|(file, _)| file == "/etc/security/limits.conf"));
        }
    });
}
