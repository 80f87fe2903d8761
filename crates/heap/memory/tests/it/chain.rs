//! The heap against a model, on this kernel. Clean memory is zero, committed memory keeps its
//! bytes, and other backings replace the pages that the pool does not have.

use megapage_inside::{Reservation, hugetlb_available};
use megapage_kernel::own_memory;
use megapage_memory::{Backing, Config, FallBack, Heap, HugeHeap, Mapping, SLICE};
use megapage_testing::PoolGuard;
use megapage_units::{HUGE_2M, HugePage, PageSize};
use proptest::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// 64 MiB in bytes: two groups of chunks.
const ARENA: usize = 64 << 20;

fn heap(kind: Heap) -> HugeHeap {
    let heap = HugeHeap::new();
    heap.configure(Config { heap: kind, ..Config::DEFAULT });
    heap
}

/// A range of a heap, given back at the end of its test: pages kept longer would be another test's
/// surplus.
struct Range<'a> {
    heap: &'a HugeHeap,
    /// Present until it is dropped.
    owner: Option<Reservation>,
}

impl<'a> Range<'a> {
    fn reserve(heap: &'a HugeHeap, len: usize, commit: bool) -> Range<'a> {
        let reserved = heap.reserve(len, HUGE_2M, commit).unwrap();
        Range { heap, owner: Some(reserved.range) }
    }
}

impl std::ops::Deref for Range<'_> {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        self.owner.as_ref().unwrap()
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        self.heap.release(self.owner.take().unwrap()).unwrap();
    }
}

/// Grows a heap beyond the base pages that every heap starts with.
fn grow_past_small(heap: &HugeHeap) -> Range<'_> {
    let arena = Range::reserve(heap, ARENA, false);
    heap.commit(arena.part(0, 4 * HUGE_2M)).unwrap();
    arena
}

/// Makes a pool with exactly `pages` free pages, for a test that must see it run dry.
fn exact_pool(pages: u64) -> Option<PoolGuard> {
    let pool = PoolGuard::reserve(PageSize::HUGE_2M, pages)?;
    if hugetlb_available(PageSize::HUGE_2M) == Some(pages) {
        return Some(pool);
    }
    megapage_testing::skip("the 2 MiB pool holds other free pages, so that it would not run dry");
    None
}

fn byte_at(memory: &File, address: usize) -> u8 {
    let mut byte = [0];
    memory.read_exact_at(&mut byte, address as u64).unwrap();
    byte[0]
}

fn mapping(heap: &HugeHeap, address: usize) -> Mapping {
    heap.chunk_at(address).unwrap().mapping()
}

#[derive(Clone, Debug)]
enum Step {
    Commit {
        first: usize,
        count: usize,
    },
    Decommit {
        first: usize,
        count: usize,
    },
    /// Forgets committed slices, from `first` on.
    Forget {
        first: usize,
        count: usize,
    },
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slices = ARENA / SLICE;
    let range = move || (0..slices, prop_oneof![8 => 1usize..40, 1 => 40usize..slices]);
    let step = prop_oneof![
        5 => range().prop_map(|(first, count)| Step::Commit { first, count }),
        4 => range().prop_map(|(first, count)| Step::Decommit { first, count }),
        2 => range().prop_map(|(first, count)| Step::Forget { first, count }),
        1 => Just(Step::Sweep),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Runs `steps` and checks every promise after each.
fn check_against_model(heap: &HugeHeap, steps: &[Step]) {
    let memory = own_memory().unwrap();
    let slices = ARENA / SLICE;
    let arena = heap.reserve(ARENA, HUGE_2M, false).unwrap();
    // Byte that each committed slice must hold.
    let mut model: Vec<Option<u8>> = vec![None; slices];
    let mut stamp = 0u8;
    for step in steps {
        match *step {
            Step::Commit { first, count } => {
                let end = (first + count).min(slices);
                let clean = heap.commit(arena.range.part(first * SLICE, (end - first) * SLICE)).unwrap();
                for (slice, byte) in model.iter_mut().enumerate().take(end).skip(first) {
                    let address = arena.range.start() + slice * SLICE + 17;
                    if let Some(expected) = *byte {
                        assert!(!clean, "a slice in use was called clean");
                        assert_eq!(byte_at(&memory, address), expected, "a commit changed a slice in use");
                        continue;
                    }
                    if clean {
                        assert_eq!(byte_at(&memory, address), 0, "a clean slice holds old bytes");
                    }
                    stamp = stamp.wrapping_add(1).max(1);
                    memory.write_all_at(&[stamp], address as u64).unwrap();
                    *byte = Some(stamp);
                }
            }
            Step::Decommit { first, count } => {
                let end = (first + count).min(slices);
                assert!(heap.decommit(arena.range.part(first * SLICE, (end - first) * SLICE)).unwrap());
                model[first..end].fill(None);
            }
            Step::Forget { first, count } => {
                let count = model[first..].iter().take(count).take_while(|byte| byte.is_some()).count();
                if count == 0 {
                    continue;
                }
                heap.forget(arena.range.part(first * SLICE, count * SLICE));
                for (slice, byte) in model.iter_mut().enumerate().skip(first).take(count) {
                    let now = byte_at(&memory, arena.range.start() + slice * SLICE + 17);
                    assert!(now == 0 || Some(now) == *byte, "slice {slice} holds a foreign byte");
                    *byte = Some(now);
                }
            }
            Step::Sweep => heap.sweep(),
        }
        for (slice, byte) in model.iter().enumerate() {
            if let Some(expected) = byte {
                let address = arena.range.start() + slice * SLICE + 17;
                assert_eq!(byte_at(&memory, address), *expected, "slice {slice} lost its byte at {step:?}");
            }
        }
        for chunk in 0..ARENA / HUGE_2M {
            let in_use = model[chunk * 32..(chunk + 1) * 32].iter().any(Option::is_some);
            let mapped = matches!(mapping(heap, arena.range.start() + chunk * HUGE_2M), Mapping::Mapped(_));
            assert!(mapped || !in_use, "chunk {chunk} is in use and not mapped");
        }
    }
    heap.release(arena.range).unwrap();
    assert_eq!(heap.ledger().total_held(), 0, "the account does not close");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn thp_keeps_every_promise(steps in steps()) {
        check_against_model(&heap(Heap::Thp), &steps);
    }

    #[test]
    fn thp_keeps_every_promise_while_memory_is_short(steps in steps()) {
        let heap = HugeHeap::new();
        heap.configure(Config { heap: Heap::Thp, short_below: u64::MAX, ..Config::DEFAULT });
        check_against_model(&heap, &steps);
    }
}

#[test]
fn hugetlb_keeps_every_promise_with_a_pool_that_is_too_small() {
    // A third of the arena: every run crosses the edge of the pool.
    let Some(_pool) = exact_pool(11) else { return };
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 25, ..Default::default() });
    runner
        .run(&steps(), |steps| {
            let heap = heap(Heap::Hugetlb2M);
            check_against_model(&heap, &steps);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_small_heap_stays_on_base_pages_and_a_grown_one_does_not() {
    // The kernel may refuse to collapse (a page that something else holds for a moment, no free
    // huge page), but not always.
    assert!((0..20).any(|_| first_chunks_follow()));
}

/// Returns true if the first chunk of a heap that has grown becomes huge when a thread of the
/// library asks for it.
fn first_chunks_follow() -> bool {
    let heap = heap(Heap::Thp);
    let arena = Range::reserve(&heap, ARENA, false);
    heap.commit(arena.part(0, SLICE)).unwrap();
    assert_eq!(mapping(&heap, arena.start()), Mapping::Mapped(Backing::Base));
    assert_eq!(heap.ledger().fall_backs(FallBack::TooSmall).0, 1);
    // Something to collapse: the kernel refuses an empty range.
    own_memory().unwrap().write_all_at(&[1], arena.start() as u64).unwrap();
    heap.commit(arena.part(0, ARENA / 4)).unwrap();
    assert_eq!(mapping(&heap, arena.start()), Mapping::Mapped(Backing::Base));
    assert_eq!(mapping(&heap, arena.start() + 4 * HUGE_2M), Mapping::Mapped(Backing::Thp));
    assert_eq!(mapping(&heap, arena.start() + ARENA / 2), Mapping::None);
    // A thread of the program leaves the chunk as it is, however large the heap becomes.
    heap.commit(arena.part(0, ARENA)).unwrap();
    assert_eq!(mapping(&heap, arena.start()), Mapping::Mapped(Backing::Base));
    let collapsed = heap.collapse_at(arena.start(), HUGE_2M);
    assert_eq!(byte_at(&own_memory().unwrap(), arena.start()), 1);
    let is_huge = mapping(&heap, arena.start()) == Mapping::Mapped(Backing::Thp);
    assert_eq!(collapsed.is_ok(), is_huge);
    is_huge
}

#[test]
fn a_dry_pool_is_counted_and_thp_takes_over() {
    let Some(_pool) = exact_pool(4) else { return };
    let heap = heap(Heap::Auto);
    let _grown = grow_past_small(&heap);
    let ledger = heap.ledger();
    let before = ledger.held(Backing::Hugetlb2M);
    let object = Range::reserve(&heap, ARENA, true);
    assert_eq!(ledger.held(Backing::Hugetlb2M), 4 * HugePage::SIZE, "the pool was used up");
    assert_eq!(ledger.held(Backing::Thp), ARENA as u64 - (4 * HugePage::SIZE - before));
    let (times, bytes) = ledger.fall_backs(FallBack::PoolShort2M);
    assert!(times > 0 && bytes > 0);
    assert_eq!(ledger.last_errno(), 12, "ENOMEM");
    drop(object);
    assert_eq!(ledger.held(Backing::Hugetlb2M), before);
}

#[test]
fn a_pool_that_is_filled_again_is_used_again() {
    let heap = heap(Heap::Auto);
    {
        let Some(_pool) = exact_pool(4) else { return };
        let _grown = grow_past_small(&heap);
        let _object = Range::reserve(&heap, ARENA, true);
    }
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let _grown = grow_past_small(&heap);
    let before = heap.ledger().held(Backing::Hugetlb2M);
    // A pool that was short is asked again after a second.
    megapage_testing::wait_for("pages of the pool", || {
        let _object = Range::reserve(&heap, ARENA, true);
        heap.ledger().held(Backing::Hugetlb2M) > before
    });
}

#[test]
fn a_fork_that_the_pool_cannot_carry_is_refused_where_threads_run() {
    let Some(_pool) = exact_pool(8) else { return };
    let heap = heap(Heap::Hugetlb2M);
    assert_eq!(heap.before_fork(1), Ok(()), "nothing on hugetlb yet");
    let _grown = grow_past_small(&heap);
    let _object = Range::reserve(&heap, 32 << 20, true);
    assert!(heap.ledger().held(Backing::Hugetlb2M) > 4 * HugePage::SIZE);
    // The test harness has other threads, so that "one thread" is false.
    assert_eq!(heap.before_fork(1), Err(megapage_inside::Errno::ENOMEM));
    assert_eq!(heap.ledger().forks(), (1, 1));
    // If every thread counts as an idle one of the library, the heap is moved instead. Other tests'
    // threads come and go between the count and its use, so that it may take a few attempts.
    let moves = || heap.before_fork(megapage_inside::thread_count().unwrap()) == Ok(());
    assert!((0..1000).any(|_| moves()));
    assert_eq!(heap.ledger().held(Backing::Hugetlb2M), 0);
    assert!(heap.ledger().fall_backs(FallBack::Fork).1 > 0);
}

#[test]
fn threads_commit_neighbouring_slices_without_loss() {
    let heap = heap(Heap::Thp);
    let _grown = grow_past_small(&heap);
    let arena = Range::reserve(&heap, ARENA, false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (heap, arena) = (&heap, &arena);
            scope.spawn(move || {
                let memory = own_memory().unwrap();
                for slice in (thread..ARENA / SLICE).step_by(4) {
                    let address = arena.start() + slice * SLICE;
                    assert!(heap.commit(arena.part(slice * SLICE, SLICE)).unwrap(), "a fresh slice is clean");
                    assert_eq!(byte_at(&memory, address), 0);
                    memory.write_all_at(&[thread as u8 + 1], address as u64).unwrap();
                }
            });
        }
    });
    let memory = own_memory().unwrap();
    for slice in 0..ARENA / SLICE {
        assert_eq!(byte_at(&memory, arena.start() + slice * SLICE), (slice % 4) as u8 + 1);
    }
}
