//! The heap on kernels that refuse: each test in a separate process, to which the kernel refuses
//! something.

use megapage_inside::{Errno, Reservation, thread_count};
use megapage_kernel::own_memory;
use megapage_memory::{Backing, Config, FallBack, Heap, HugeHeap, Mapping, SLICE};
use megapage_testing::{Call, PoolGuard, in_child, refuse, require_root, with_data_limited};
use megapage_units::{HUGE_2M, PageSize};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ARENA: usize = 64 << 20;

fn heap(kind: Heap) -> HugeHeap {
    let heap = HugeHeap::new();
    heap.configure(Config { heap: kind, ..Config::DEFAULT });
    heap
}

/// Writes a distinct byte to each slice.
fn write(address: usize, len: usize) {
    let memory = own_memory().unwrap();
    for slice in 0..len / SLICE {
        memory.write_all_at(&[slice as u8 | 1], (address + slice * SLICE) as u64).unwrap();
    }
}

/// Checks that each slice holds the byte that [`write`] wrote.
fn check(address: usize, len: usize) {
    let memory = own_memory().unwrap();
    for slice in 0..len / SLICE {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, (address + slice * SLICE) as u64).unwrap();
        assert_eq!(byte[0], slice as u8 | 1, "slice {slice}");
    }
}

/// Returns the reasons with events, except the one that every heap has.
fn reasons(heap: &HugeHeap) -> Vec<FallBack> {
    let events = |reason: &FallBack| heap.ledger().fall_backs(*reason).0 > 0;
    FallBack::ALL.into_iter().filter(|it| *it != FallBack::TooSmall).filter(events).collect()
}

/// Fills an arena in small commits and in one large one, and gives some of it back in between.
fn use_heap(heap: &HugeHeap) -> Reservation {
    let arena = heap.reserve(ARENA, HUGE_2M, false).unwrap();
    for slice in 0..ARENA / 2 / SLICE {
        heap.commit(arena.range.part(slice * SLICE, SLICE)).unwrap();
    }
    heap.commit(arena.range.part(ARENA / 2, ARENA / 2)).unwrap();
    write(arena.range.start(), ARENA);
    heap.decommit(arena.range.part(ARENA / 2, ARENA / 4)).unwrap();
    heap.commit(arena.range.part(ARENA / 2, ARENA / 4)).unwrap();
    write(arena.range.start(), ARENA);
    check(arena.range.start(), ARENA);
    arena.range
}

/// EPERM: the answer of a filter of system calls.
const FORBIDDEN: Errno = Errno(1);

fn takes_no_hugetlb(call: Call, errno: Errno, expected: FallBack) {
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 40) else { return };
    let before = pool.counts();
    refuse(call, errno.0);
    for kind in [Heap::Auto, Heap::Hugetlb1G, Heap::Hugetlb2M] {
        let heap = heap(kind);
        let range = use_heap(&heap);
        assert_eq!(reasons(&heap), [expected], "{kind:?}");
        assert_eq!(heap.ledger().last_errno(), errno.0);
        assert_eq!(heap.ledger().held(Backing::Hugetlb2M), 0);
        assert_eq!(pool.counts(), before, "{kind:?}: nothing is taken from the pool, nor reserved");
        assert_eq!(heap.before_fork(1), Ok(()));
        heap.release(range).unwrap();
        assert_eq!(heap.ledger().total_held(), 0);
    }
}

#[test]
fn a_kernel_that_moves_no_hugetlb_pages_is_left_alone_and_named() {
    in_child("refused::a_kernel_that_moves_no_hugetlb_pages_is_left_alone_and_named", || {
        takes_no_hugetlb(Call::MOVE, Errno::EINVAL, FallBack::KernelTooOld);
    });
}

#[test]
fn a_kernel_that_cannot_populate_is_left_alone_and_named() {
    in_child("refused::a_kernel_that_cannot_populate_is_left_alone_and_named", || {
        takes_no_hugetlb(Call::POPULATE, Errno::EINVAL, FallBack::KernelTooOld);
    });
}

#[test]
fn a_filter_that_refuses_the_move_is_not_an_old_kernel() {
    in_child("refused::a_filter_that_refuses_the_move_is_not_an_old_kernel", || {
        takes_no_hugetlb(Call::MOVE, FORBIDDEN, FallBack::Other);
    });
}

#[test]
fn what_is_refused_later_loses_no_byte() {
    in_child("refused::what_is_refused_later_loses_no_byte", || {
        let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 40) else { return };
        for call in [Call::POPULATE, Call::ADVISE_THP, Call::COLLAPSE, Call::DISCARD, Call::MOVE] {
            // A program's sandbox comes after its start, and stays.
            let heap = heap(Heap::Hugetlb2M);
            let first = use_heap(&heap);
            refuse(call, FORBIDDEN.0);
            let second = use_heap(&heap);
            check(first.start(), ARENA);
            // With this count it takes the program to run in one thread: it moves its hugetlb
            // pages, or tries to.
            let _ = heap.before_fork(thread_count().unwrap());
            check(first.start(), ARENA);
            check(second.start(), ARENA);
            heap.release(second).unwrap();
            heap.release(first).unwrap();
        }
    });
}

#[test]
fn a_commit_that_fails_midway_keeps_nothing() {
    in_child("refused::a_commit_that_fails_midway_keeps_nothing", || {
        let heap = heap(Heap::Thp);
        let arena = heap.reserve(ARENA, HUGE_2M, false).unwrap();
        // In use before, and afterwards.
        heap.commit(arena.range.part(0, 2 * SLICE)).unwrap();
        heap.commit(arena.range.part(5 * HUGE_2M, SLICE)).unwrap();
        write(arena.range.start(), 2 * SLICE);
        write(arena.range.start() + 5 * HUGE_2M, SLICE);
        let held = heap.ledger().total_held();
        // Memory that is writable counts: the limit is reached in the middle.
        let failed =
            with_data_limited(ARENA as u64 / 4, || heap.commit(arena.range.part(SLICE, ARENA - SLICE)));
        let failed = failed.unwrap();
        assert_eq!(failed, Err(Errno::ENOMEM));
        assert_eq!(heap.ledger().total_held(), held, "what it got until then went back");
        for chunk in 0..ARENA / HUGE_2M {
            let at = heap.chunk_at(arena.range.start() + chunk * HUGE_2M).unwrap();
            let expected = match chunk {
                0 => 0b11,
                5 => 1,
                _ => 0,
            };
            assert_eq!(at.committed(), expected, "chunk {chunk}");
            assert_eq!(matches!(at.mapping(), Mapping::Mapped(_)), expected != 0, "chunk {chunk}");
        }
        check(arena.range.start(), 2 * SLICE);
        check(arena.range.start() + 5 * HUGE_2M, SLICE);
        // Without the limit, the commit succeeds.
        heap.commit(arena.range.part(SLICE, ARENA - SLICE)).unwrap();
        heap.release(arena.range).unwrap();
        assert_eq!(heap.ledger().total_held(), 0);
    });
}

#[test]
fn a_thread_that_was_just_joined_refuses_no_fork() {
    in_child("refused::a_thread_that_was_just_joined_refuses_no_fork", || {
        // Not enough for a second copy: the heap is moved, or the fork is refused.
        let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 40) else { return };
        let own = thread_count().unwrap();
        for round in 0..5 {
            let heap = heap(Heap::Hugetlb2M);
            let range = use_heap(&heap);
            assert!(heap.ledger().held(Backing::Hugetlb2M) > 0);
            // The kernel counts a thread for a moment after it was joined; this one for longer. On
            // a busy machine it may exist for longer than a fork waits.
            let forks = |_| {
                let _ending = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(4)));
                heap.before_fork(own) == Ok(())
            };
            assert!((0..20).any(forks), "round {round}");
            assert_eq!(heap.ledger().held(Backing::Hugetlb2M), 0);
            check(range.start(), ARENA);
            heap.release(range).unwrap();
        }
    });
}

/// A control group of this process, with a limit on hugetlb pages. At the end it is removed, and
/// the process is back where it was. It is of version 1 if that has the controller, as after a test
/// that has mounted it.
struct Group {
    root: PathBuf,
    path: PathBuf,
    former: String,
    enabled: bool,
    mounted: bool,
}

impl Group {
    fn enter(limit: Limit) -> Option<Group> {
        let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new).into_iter().find(|root| {
            fs::read_to_string(root.join("cgroup.controllers")).is_ok_and(|it| it.contains("hugetlb"))
        });
        let Some(root) = root else { return Group::enter_first_version(limit) };
        let control = root.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&control).unwrap().contains("hugetlb");
        if !enabled {
            fs::write(&control, "+hugetlb").unwrap();
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let former = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap().to_string();
        let path = root.join(format!("megapage-refused-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let group = Group { root: root.into(), path, former, enabled, mounted: false };
        group.limit_to(match limit {
            Limit::Faults => "hugetlb.2MB.max",
            Limit::Reservations => "hugetlb.2MB.rsvd.max",
        });
        Some(group)
    }

    fn enter_first_version(limit: Limit) -> Option<Group> {
        // The directory at which systemd mounts it.
        let root = PathBuf::from("/sys/fs/cgroup/hugetlb");
        let mounted = !root.exists();
        if mounted {
            fs::create_dir(&root).unwrap();
            let made = Command::new("mount")
                .args(["-t", "cgroup", "-o", "hugetlb", "none"])
                .arg(&root)
                .output()
                .unwrap();
            if !made.status.success() {
                fs::remove_dir(&root).unwrap();
                let why = String::from_utf8_lossy(&made.stderr);
                megapage_testing::skip(&format!("needs a group with the hugetlb controller: {}", why.trim()));
                return None;
            }
        }
        let path = root.join(format!("megapage-refused-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let group = Group { root, path, former: String::new(), enabled: true, mounted };
        group.limit_to(match limit {
            Limit::Faults => "hugetlb.2MB.limit_in_bytes",
            Limit::Reservations => "hugetlb.2MB.rsvd.limit_in_bytes",
        });
        Some(group)
    }

    fn limit_to(&self, file: &str) {
        fs::write(self.path.join(file), "8388608").unwrap();
        fs::write(self.path.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.root.join(&self.former).join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.path);
        if !self.enabled {
            let _ = fs::write(self.root.join("cgroup.subtree_control"), "-hugetlb");
        }
        if self.mounted {
            let _ = Command::new("umount").arg(&self.root).status();
            let _ = fs::remove_dir(&self.root);
        }
    }
}

/// Object of a control group's limit: pages in use, or pages that are reserved.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Faults,
    Reservations,
}

fn is_limited_by(limit: Limit) {
    if !require_root() {
        return;
    }
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 60) else { return };
    let Some(_group) = Group::enter(limit) else { return };
    for kind in [Heap::Auto, Heap::Hugetlb2M] {
        let heap = heap(kind);
        let range = use_heap(&heap);
        assert_eq!(reasons(&heap), [FallBack::CgroupLimit], "{limit:?}, {kind:?}");
        let held = heap.ledger().held(Backing::Hugetlb2M);
        assert!(held > 0 && held <= 8 << 20, "{limit:?}, {kind:?}: {held}");
        assert!(pool.counts().available().unwrap() > 20, "the pool was not short");
        heap.release(range).unwrap();
    }
}

#[test]
fn a_control_groups_limit_on_faults_is_named() {
    in_child("refused::a_control_groups_limit_on_faults_is_named", || is_limited_by(Limit::Faults));
}

#[test]
fn a_control_groups_limit_on_reservations_is_named() {
    in_child("refused::a_control_groups_limit_on_reservations_is_named", || {
        is_limited_by(Limit::Reservations)
    });
}
