//! The kernel's reports on the machine, file by file and as whole trees.

use crate::tree::{PID, Tree, with_file, with_tree};
use megapage_doctor as doctor;
use megapage_kernel::buddyinfo::buddyinfo;
use megapage_kernel::cgroup::{Cgroups, MemoryLimits};
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::mounts::{hugetlbfs_mounts, mounts};
use megapage_kernel::page_reporting::reporting_balloon;
use megapage_kernel::page_tables::{Contents, Layout, contents, physical};
use megapage_kernel::pageblocks::page_blocks;
use megapage_kernel::pressure::memory_pressure;
use megapage_kernel::{
    KernelRoot, file_locks, hugetlb_users, identity, meminfo as read_meminfo, node_meminfo, processor, thp,
    vmstat as read_vmstat,
};
use megapage_observe::{machine as observe_machine, outline, pools, process_id, select_processes, unmovable};
use megapage_report::json;
use megapage_testing::thp_change;
use megapage_tlb::{Cpuid, Geometry};
use megapage_units::{Bytes, PageSize};

/// Reads `/proc/meminfo`, and a node's.
pub fn meminfo(data: &[u8]) {
    let machine = with_file("proc/meminfo", data, read_meminfo);
    let node = with_file("sys/devices/system/node/node3/meminfo", data, |root| node_meminfo(root, 3));
    assert_eq!(machine.ok(), node.ok(), "both files are of one form");
}

/// Reads `/proc/vmstat`.
pub fn vmstat(data: &[u8]) {
    let Ok(all) = with_file("proc/vmstat", data, |root| read_vmstat::vmstat(root, |_| true)) else { return };
    let thp =
        with_file("proc/vmstat", data, |root| read_vmstat::vmstat(root, |name| name.starts_with("thp_")));
    let expected = all.into_iter().filter(|(name, _)| name.starts_with("thp_")).collect();
    assert_eq!(thp.ok(), Some(expected), "what is wanted changes no counter");
}

/// Reads `/proc/buddyinfo`: larger blocks hold no more than all blocks.
pub fn buddy(data: &[u8]) {
    let Ok(zones) = with_file("proc/buddyinfo", data, buddyinfo) else { return };
    for zone in zones {
        let free: Vec<Bytes> = (0..40).map(|order| zone.free_from(order)).collect();
        assert!(free.is_sorted_by(|more, less| more >= less), "{free:?}");
        for size in [PageSize::BASE, PageSize::HUGE_2M, PageSize::HUGE_1G] {
            assert!(zone.available(size) <= zone.free().0 / size.bytes().0);
        }
    }
}

/// Reads `/proc/pagetypeinfo`: kinds of blocks are no more than all blocks.
pub fn pagetype(data: &[u8]) {
    let Ok(zones) = with_file("proc/pagetypeinfo", data, page_blocks) else { return };
    for zone in zones {
        assert!(zone.unmovable <= zone.total && zone.reclaimable <= zone.total, "{zone:?}");
    }
}

/// Reads `/proc/zoneinfo` and `/proc/cpuinfo`, like the walk of page tables.
pub fn zoneinfo(data: &[u8]) {
    if let Ok(end) = with_file("proc/zoneinfo", data, physical::end) {
        assert!(end > 0 && end < 1 << 52, "{end:x}");
    }
    if let Ok(mask) = with_file("proc/cpuinfo", data, physical::frame_mask) {
        assert!(mask & 0xfff == 0 && mask < 1 << 52 && mask > 0, "{mask:x}");
    }
    let _ = with_file("proc/cpuinfo", data, processor);
}

/// Reads `/proc/pressure/memory`.
pub fn pressure(data: &[u8]) {
    let _ = with_file("proc/pressure/memory", data, memory_pressure);
}

/// Reads `/proc/self/mountinfo`, whose paths are escaped.
pub fn mountinfo(data: &[u8]) {
    let Ok(all) = with_file("proc/self/mountinfo", data, mounts) else { return };
    let huge = with_file("proc/self/mountinfo", data, hugetlbfs_mounts).expect("read before");
    assert!(huge.len() <= all.len());
    for mount in huge {
        assert!(all.contains(&mount.mount) && mount.mount.fs_type == "hugetlbfs");
        let _ = (mount.mount.is_read_only(), mount.mount.super_option("pagesize"));
    }
}

/// Reads `/proc/sysvipc/shm` and `/proc/locks`.
pub fn tables(data: &[u8]) {
    let lines = String::from_utf8_lossy(data).lines().count();
    if let Ok(segments) = with_file("proc/sysvipc/shm", data, hugetlb_users::sysv_segments) {
        assert!(segments.len() < lines.max(1));
    }
    let holders = with_file("proc/locks", data, |root| file_locks::flock_holders(root, 0x2a, 31415));
    assert!(holders.expect("text").iter().all(|pid| pid.0 > 0));
}

/// Reads a page table of 512 entries, of either architecture's form, a frame mask, and the frame of
/// the shared page of zeros.
pub fn page_table(data: &[u8]) {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        let from = data.get(at * 8..).unwrap_or_default();
        let length = from.len().min(8);
        bytes[..length].copy_from_slice(&from[..length]);
        u64::from_le_bytes(bytes)
    };
    let table: [u64; 512] = std::array::from_fn(|at| word(at + 2));
    for layout in [Layout::X86_64, Layout::ARM64, Layout::ARM64_BEFORE_6_11] {
        let Contents { present, zero_page, swapped, accessed } = contents(layout, &table, word(0), word(1));
        assert!(present + zero_page + swapped <= 512);
        let accessed: u32 = accessed.iter().map(|word| word.count_ones()).sum();
        assert!(accessed <= u32::from(present), "what is not present was not accessed");
    }
}

/// Decodes the words of CPUID that describe a TLB.
pub fn cpuid(data: &[u8]) {
    let words = |at: usize| -> [u32; 4] {
        std::array::from_fn(|word| {
            let from = data.get((at * 4 + word) * 4..).unwrap_or_default();
            from.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        })
    };
    let geometry = Geometry::decode(&Cpuid {
        vendor: words(0),
        signature: words(1),
        descriptors: words(2),
        features: words(3),
        amd_first: words(4),
        amd_second: words(5),
        amd_1g: words(6),
        amd_features: words(7),
        translation: (8..16).map(words).take(data.len() / 64).collect(),
    });
    assert!(geometry.first_base > 0 && geometry.second > 0, "a model divides by them: {geometry:?}");
}

/// Reads a tree with the control groups of a process.
pub fn cgroup_tree(data: &[u8]) {
    with_tree(data, cgroup_tree_holds);
}

fn cgroup_tree_holds(root: &KernelRoot) {
    for pid in [None, Some(PID)] {
        let Ok(groups) = Cgroups::read(root, pid) else { continue };
        for size in [PageSize::HUGE_2M, PageSize::HUGE_1G] {
            let _ = (groups.hugetlb_fault_room(size), groups.hugetlb_reservation_room(size));
        }
        let _ = groups.hugetlb_fault_may_be_refused();
        if let Some((room, memory)) = groups.memory_room().zip(groups.memory.as_ref()) {
            assert!(memory.levels.iter().filter_map(|level| level.charged.limit).any(|limit| room <= limit));
        }
    }
    if let Ok(mut limits) = MemoryLimits::new(root) {
        let _ = limits.of(PID);
    }
    let _ = (identity::in_user_namespace(root), identity::container(root), identity::selinux_enforcing(root));
    let _ = reporting_balloon(root);
}

/// Reads a tree with the settings of transparent huge pages and the pools of hugetlb pages.
pub fn settings_tree(data: &[u8]) {
    with_tree(data, settings_tree_holds);
}

fn settings_tree_holds(root: &KernelRoot) {
    if let Ok(Some(settings)) = thp::settings(root) {
        assert!(settings.sizes.is_sorted_by(|one, next| one.page_size < next.page_size), "each size once");
    }
    let _ = thp::collapse_limits(root);
    let sizes = hugetlb::page_sizes(root).unwrap_or_default();
    assert!(sizes.is_sorted_by(|one, next| one < next), "each size once: {sizes:?}");
    let nodes = hugetlb::nodes(root).unwrap_or_default();
    assert!(nodes.is_sorted_by(|one, next| one < next), "each node once: {nodes:?}");
    for size in sizes {
        let scopes = nodes.iter().map(|node| PoolScope::Node(*node)).chain([PoolScope::Machine]);
        for scope in scopes {
            let Ok(counts) = hugetlb::counts(root, size, scope) else { continue };
            assert!(counts.available().is_none_or(|available| available <= counts.free));
            assert!(counts.in_use() <= counts.total && counts.persistent() <= counts.total);
        }
    }
}

/// Reads a tree of a whole machine, like each pass of the daemon and each report.
pub fn machine_tree(data: &[u8]) {
    with_tree(data, machine_tree_holds);
}

fn machine_tree_holds(root: &KernelRoot) {
    if let Ok(machine) = observe_machine(root) {
        for node in &machine.nodes {
            assert!(node.fragmentation.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
        assert!(machine.pools.is_sorted_by(|one, next| one.page_size < next.page_size));
    }
    if let Ok(pools) = pools::pools(root) {
        assert!(json("megapage.pool/1", &pools).starts_with('{'));
    }
    let _ = unmovable::unmovable(root, 100);
    for outline in outline::outlines(root, Bytes::ZERO).unwrap_or_default() {
        let _ = process_id(root, outline.pid);
    }
    for pattern in ["9", "name", "/"] {
        let _ = select_processes(root, &[pattern.to_string()]);
    }
}

/// Reads a tree like `megapage doctor`: for any tree, there is a diagnosis, each finding with
/// evidence.
pub fn doctor_tree(data: &[u8]) {
    with_tree(data, |root| {
        let request = doctor::Request { only_read: true, ..doctor::Request::default() };
        let Ok(diagnosis) = doctor::diagnosis(root, &request) else { return };
        let again = doctor::diagnosis(root, &request).ok();
        assert_eq!(Some(&diagnosis), again.as_ref(), "the same files, the same diagnosis");
        for finding in &diagnosis.findings {
            assert!(!finding.evidence.is_empty(), "{finding:?}");
        }
        assert!(json(doctor::SCHEMA, &diagnosis).starts_with('{'));
    });
}

/// Reads `/run/megapage/thp-change`, like the next change of settings: it restores only the four
/// settings, and there is nothing left to restore.
pub fn thp_record(data: &[u8]) {
    let tree = Tree::new();
    for (file, text) in [
        ("enabled", "always [madvise] never\n"),
        ("khugepaged/pages_to_scan", "4096\n"),
        ("khugepaged/scan_sleep_millisecs", "10000\n"),
        ("khugepaged/alloc_sleep_millisecs", "60000\n"),
    ] {
        tree.write(format!("sys/kernel/mm/transparent_hugepage/{file}"), text.as_bytes());
    }
    tree.write("proc/sys/kernel/random/boot_id", b"00000000-0000-0000-0000-000000000001\n");
    tree.write("run/megapage/thp-change", data);
    let recovered = thp_change::recover(&tree.root());
    assert!(recovered.len() <= 4 * String::from_utf8_lossy(data).lines().count());
    for change in recovered {
        assert!(change.path.starts_with("/sys/kernel/mm/transparent_hugepage/"), "{change}");
        assert_ne!(change.left, change.former);
    }
    assert!(thp_change::recover(&tree.root()).is_empty(), "the record is gone");
}
