//! The snapshot of the pools, on captured trees and on this machine.

use megapage_kernel::KernelRoot;
use megapage_observe::pools::{MappingKind, Pools, pools};
use megapage_observe::unmovable::unmovable;
use megapage_testing::PoolGuard;
use megapage_units::{Bytes, PageSize};
use std::path::Path;

fn captured(name: &str) -> KernelRoot {
    KernelRoot::captured(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(name))
}

#[test]
fn every_way_to_hold_a_page_is_told_apart() {
    let snapshot = pools(&captured("linux-6.18-one-node")).unwrap();
    let kinds: Vec<_> = snapshot
        .processes
        .iter()
        .map(|one| (one.kind, one.page_size, one.mapped, one.present, one.name.as_str()))
        .collect();
    let (two, four, six) = (Bytes::mib(2), Bytes::mib(4), Bytes::mib(6));
    assert_eq!(
        kinds,
        [
            (MappingKind::Private, PageSize::HUGE_2M, four, two, ""),
            (MappingKind::Shared, PageSize::HUGE_2M, four, two, ""),
            (MappingKind::MemoryFile, PageSize::HUGE_2M, four, two, "big"),
            (MappingKind::Segment, PageSize::HUGE_2M, four, two, "shmid 26"),
            (MappingKind::File, PageSize::HUGE_2M, six, two, "/dev/hugepages/file"),
            (MappingKind::Private, PageSize::HUGE_1G, Bytes::gib(1), Bytes::gib(1), ""),
        ]
    );
    // The pool has reserved the pages that the processes have mapped and not touched.
    let reserved: u64 = snapshot
        .processes
        .iter()
        .filter(|one| one.page_size == PageSize::HUGE_2M)
        .map(|one| (one.mapped - one.present).0 / Bytes::mib(2).0)
        .sum();
    assert_eq!(snapshot.pools[0].machine.reserved, Some(reserved));
    assert_eq!(snapshot.segments[0].page_size.as_deref(), Some("2m"));
}

#[test]
fn two_nodes_limits_and_users() {
    let snapshot = pools(&captured("two-nodes-by-hand")).unwrap();
    let two = &snapshot.pools[0];
    assert_eq!((two.machine.available, two.machine.in_use, two.machine.persistent), (Some(600), 328, 1024));
    assert_eq!(two.nodes.iter().map(|node| node.counts.free).collect::<Vec<_>>(), [400, 300]);
    assert_eq!(two.nodes[1].counts.available, None, "reservations of a node are not known");
    assert_eq!(snapshot.pools[1].machine.available, Some(0), "one is free, and promised");

    let pids: Vec<_> = snapshot.processes.iter().map(|one| one.pid.0).collect();
    assert_eq!(pids, [300, 301, 400, 500, 600], "also 600, which has only reserved");
    let segments: Vec<_> = snapshot.segments.iter().map(|one| (one.id, one.page_size.as_deref())).collect();
    assert_eq!(segments, [(98, Some("2m")), (100, None)], "99 is attached on base pages");
    assert_eq!(snapshot.mounts[1].size, Some(Bytes::gib(2)));
    assert_eq!(snapshot.files[0].path, Path::new("/dev/hugepages/rte/map_0"));

    let limits: Vec<_> =
        snapshot.limits.iter().map(|one| (one.touched_limit_bytes, one.mapped_limit_bytes)).collect();
    assert_eq!(limits, [(None, Some(Bytes::mib(512))), (Some(Bytes::gib(1)), None)]);
    assert!(!snapshot.limits_hidden);
    assert_eq!(snapshot.unreadable_processes, 0);
}

#[test]
fn a_process_that_ends_meanwhile_is_left_out() {
    let tree = tempfile::tempdir().unwrap();
    let path = |relative: &str| tree.path().join(relative);
    std::fs::create_dir_all(path("proc/self")).unwrap();
    std::fs::create_dir_all(path("proc/5")).unwrap();
    std::fs::write(path("proc/meminfo"), "MemTotal: 1 kB\n").unwrap();
    std::fs::write(path("proc/self/mountinfo"), "").unwrap();
    // Its status was there a moment ago; its maps no longer are.
    std::fs::write(path("proc/5/status"), "Name:\tx\nTgid:\t5\nPPid:\t1\nVmPTE:\t4 kB\n").unwrap();
    let snapshot = pools(&KernelRoot::captured(tree.path())).unwrap();
    assert!(snapshot.processes.is_empty() && snapshot.pools.is_empty());
    assert_eq!(snapshot.unreadable_processes, 0);
}

#[test]
fn the_largest_holders_of_unmovable_memory_come_first() {
    let report = unmovable(&captured("two-nodes-by-hand"), 3).unwrap();
    let holders: Vec<_> = report.holders.iter().map(|one| (one.pid.0, one.sum)).collect();
    let kib = |n| Bytes::kib(n);
    assert_eq!(
        holders,
        [(500, kib(3145728 + 8000 + 12 * 16)), (400, kib(5000 + 60 * 16)), (300, kib(900 + 16))]
    );
    assert_eq!(report.slab_unreclaimable, Some(kib(900_000)));
}

#[test]
fn the_live_pool_shows_what_was_reserved() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 4) else { return };
    let snapshot: Pools = pools(&KernelRoot::live()).unwrap();
    let pool = snapshot.pools.iter().find(|pool| pool.page_size == PageSize::HUGE_2M).unwrap();
    assert_eq!(pool.machine.persistent, guard.former().persistent() + 4);
    let nodes: u64 = pool.nodes.iter().map(|node| node.counts.total).sum();
    assert!(pool.nodes.is_empty() || nodes == pool.machine.total);
}
