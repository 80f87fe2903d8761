//! The heap under limits of the process (setrlimit(2)). Each test runs in a separate process, which
//! has the limit.

use megapage_inside::{Borrowed, Errno, Lock};
use megapage_memory::{Config, Heap, HugeHeap, SLICE};
use megapage_testing::in_child;
use megapage_units::HUGE_2M;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Returns the value of a line of /proc/self/status, in bytes.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Limits this process to its present value and `more` bytes.
fn leave(option: &str, line: &str, more: usize) {
    let (limit, pid) = (status(line) + more, std::process::id().to_string());
    let set = Command::new("prlimit").args(["--pid", &pid, &format!("--{option}={limit}:{limit}")]).status();
    assert!(set.expect("prlimit(1)").success());
}

fn heap() -> HugeHeap {
    let heap = HugeHeap::new();
    heap.configure(Config { heap: Heap::None, ..Config::DEFAULT });
    heap
}

#[test]
fn an_arena_takes_addresses_as_it_needs_them_where_they_are_few() {
    in_child("limits::an_arena_takes_addresses_as_it_needs_them_where_they_are_few", || {
        leave("as", "VmSize", 24 * MIB);
        let heap = heap();
        let reserved = heap.reserve(16 * HUGE_2M, 16 * HUGE_2M, false).unwrap();
        assert_eq!((reserved.range.len(), reserved.all.len()), (HUGE_2M, 16 * HUGE_2M));
        let arena = reserved.all;
        reserved.range.keep();
        let lock = Lock::new();
        let held = lock.hold();
        let part = |chunk: usize, slices: usize| arena.own(&held, chunk * HUGE_2M, slices * SLICE);
        let commit =
            |at, slices| heap.take_addresses(*part(at, slices)).and_then(|()| heap.commit(part(at, slices)));
        let before = status("VmSize");
        for chunk in [0, 3, 4] {
            commit(chunk, 1).unwrap();
            assert!(commit(chunk, 32).is_ok());
        }
        assert!(heap.commit(part(2, 1)).is_ok(), "also without taking addresses before");
        assert_eq!(status("VmSize"), before + 3 * HUGE_2M, "the first chunk was reserved at once");
        // The program maps something in between: the heap has no memory there, and the program's
        // mapping stays.
        assert_eq!(part(5, 1).reserve_hole(), Ok(()));
        assert_eq!(commit(5, 1), Err(Errno::EEXIST));
        assert!(heap.chunk_at(arena.start() + 5 * HUGE_2M).is_none(), "not the heap's");
        // The limit refuses more, until something is decommitted.
        (6..16).take_while(|&chunk| commit(chunk, 32).is_ok()).for_each(drop);
        assert_eq!(commit(15, 1), Err(Errno::ENOMEM));
        heap.decommit(part(4, 32)).unwrap();
        assert!(commit(4, 1).is_ok(), "it has kept its addresses");
    });
}

#[test]
fn unused_parts_of_chunks_do_not_count_towards_a_limit_on_data() {
    in_child("limits::unused_parts_of_chunks_do_not_count_towards_a_limit_on_data", || {
        const CHUNKS: usize = 64;
        let heap = heap();
        let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap().range.keep();
        let slice = |chunk: usize, index: usize| arena.part(chunk * HUGE_2M + index * SLICE, SLICE);
        // 16 MiB in use, of chunks of 128 MiB.
        leave("data", "VmData", 32 * MIB);
        for chunk in 0..CHUNKS {
            (0..4).for_each(|index| assert!(heap.commit(slice(chunk, index * 8)).is_ok(), "{chunk}"));
        }
        assert!(status("VmData") <= 40 * MIB + MIB);
        heap.decommit(slice(0, 8)).unwrap();
        let before = status("VmData");
        assert!(heap.commit(slice(0, 8)).unwrap(), "it reads as zero");
        assert_eq!(status("VmData"), before + SLICE);
    });
}

#[test]
fn what_is_accessible_and_not_in_use_is_a_small_part_of_a_limit_on_data() {
    in_child("limits::what_is_accessible_and_not_in_use_is_a_small_part_of_a_limit_on_data", || {
        let open = |heap: &HugeHeap, arena: &Borrowed, chunks: usize| {
            let chunk = |index: usize| heap.chunk_at(arena.start() + index * HUGE_2M).unwrap();
            (0..chunks).filter(|&index| chunk(index).is_open()).count()
        };
        let begin = || {
            let heap = HugeHeap::new();
            heap.configure(Config { heap: Heap::Thp, spares: true, ..Config::DEFAULT });
            let arena = heap.reserve(64 * HUGE_2M, 64 * HUGE_2M, false).unwrap().range.keep();
            heap.commit(arena.part(0, SLICE)).unwrap();
            (heap, arena)
        };
        let (heap, arena) = begin();
        assert_eq!(open(&heap, &arena, 64), 15, "a group, with one call");
        heap.commit(arena.part(HUGE_2M, SLICE)).unwrap();
        heap.decommit(arena.part(HUGE_2M, SLICE)).unwrap();
        assert_eq!(open(&heap, &arena, 64), 15, "what is unused stays open");
        assert!(heap.commit(arena.part(HUGE_2M, SLICE)).unwrap(), "and reads as zero");
        // The program locks its memory: no unused chunk is accessible.
        heap.prepare_for_locks();
        assert_eq!(open(&heap, &arena, 64), 0);
        // Half of a 64th of 1 GiB is for chunks: three, of which one is used.
        leave("data", "VmData", (1 << 30) - status("VmData"));
        let before = status("VmData");
        let (heap, arena) = begin();
        assert_eq!(open(&heap, &arena, 64), 2);
        for index in 16..40 {
            heap.commit(arena.part(index * HUGE_2M, SLICE)).unwrap();
            assert!(status("VmData") <= before + 16 * MIB + 25 * SLICE, "{index}");
        }
        assert!(status("VmData") <= before + MIB + 25 * SLICE, "by slices from then on");
        assert_eq!(open(&heap, &arena, 64), 0);
    });
}
