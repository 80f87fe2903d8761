//! Tests of the heap on a model of the kernel. Refusals and time need no separate process and no
//! machine in a certain state.

pub(crate) mod model;

use super::*;
use crate::chunk::SLICE;
use crate::config::Heap;
use megapage_inside::room::Room;
use model::Model;
use std::cell::Cell;
use std::time::Duration;

const BYTES: u64 = HugePage::SIZE;
const CHUNKS: usize = 40;

/// Makes a heap with an arena whose first two chunks are committed on base pages.
fn begin(heap: Heap, model: Model) -> (HugeHeap<Model>, Reservation) {
    let begun = HugeHeap::on(model);
    begun.configure(Config { heap, ..Config::DEFAULT });
    let arena = begun.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
    begun.commit(arena.range.part(0, 2 * HUGE_2M)).unwrap();
    assert_eq!(begun.ledger().held(Backing::Base), 2 * BYTES, "small programs stay small");
    (begun, arena.range)
}

fn commit(heap: &HugeHeap<Model>, arena: &Reservation, chunk: usize) -> Mapping {
    heap.commit(arena.part(chunk * HUGE_2M, HUGE_2M)).unwrap();
    heap.chunk_at(arena.start() + chunk * HUGE_2M).unwrap().mapping()
}

/// Makes a heap that takes pages of 2 MiB from a broker.
fn begin_with_broker(model: Model) -> (HugeHeap<Model>, Reservation) {
    let (heap, arena) = begin(Heap::Hugetlb2M, model);
    heap.use_broker(b"/run/a-broker", std::process::id());
    (heap, arena)
}

const BROKER: Mapping = Mapping::Mapped(Backing::Broker);
const POOL: Mapping = Mapping::Mapped(Backing::Hugetlb2M);
const THP: Mapping = Mapping::Mapped(Backing::Thp);

#[test]
fn a_page_that_cannot_be_populated_goes_back_and_its_reason_is_counted() {
    let model = Model { pool: Cell::new(8), ..Model::new() };
    model.populated.set(Err(Errno::ENOMEM));
    model.group_leaves.set(Some(0));
    model.free.set(0);
    let (heap, arena) = begin(Heap::Hugetlb2M, model);
    assert_eq!(commit(&heap, &arena, 4), BASE, "the machine has no free huge page either");
    let ledger = heap.ledger();
    assert_eq!(ledger.fall_backs(FallBack::CgroupLimit), (1, BYTES));
    assert_eq!(ledger.fall_backs(FallBack::Fragmented), (1, BYTES));
    assert_eq!(ledger.held(Backing::Hugetlb2M), 0);
    assert_eq!((heap.kernel.pool.get(), heap.kernel.taken.borrow().len()), (8, 0), "the page went back");
    // The reason is unknown without a limit of a control group.
    heap.kernel.group_leaves.set(None);
    heap.kernel.passes(1000);
    assert_eq!(commit(&heap, &arena, 5), BASE);
    assert_eq!(ledger.fall_backs(FallBack::Unexplained), (1, BYTES));
    heap.release(arena).unwrap();
    assert_eq!(ledger.total_held(), 0);
}

#[test]
fn a_dry_pool_is_asked_again_after_its_pause_and_not_before() {
    let (heap, arena) = begin(Heap::Hugetlb2M, Model::new());
    assert_eq!(commit(&heap, &arena, 4), THP);
    let ledger = heap.ledger();
    assert_eq!((heap.kernel.asked_for_pages.get(), ledger.last_errno()), (1, Errno::ENOMEM.0));
    heap.kernel.pool.set(4);
    heap.kernel.passes(998);
    assert_eq!(commit(&heap, &arena, 5), THP);
    assert_eq!(ledger.fall_backs(FallBack::PoolShort2M), (2, 2 * BYTES));
    assert_eq!(heap.kernel.asked_for_pages.get(), 1, "it is not asked during its pause");
    heap.kernel.passes(2);
    let taken = [6, 7, 8, 9, 10].map(|chunk| commit(&heap, &arena, chunk));
    assert_eq!(taken, [POOL, POOL, POOL, POOL, THP], "as long as it lasts");
    assert_eq!(ledger.fall_backs(FallBack::PoolShort2M), (3, 3 * BYTES));
    assert_eq!(ledger.populate(), (4 * BYTES, 400_000), "by the kernel's clock");
    heap.decommit(arena.part(6 * HUGE_2M, HUGE_2M)).unwrap();
    assert_eq!(heap.kernel.pool.get(), 1);
    heap.release(arena).unwrap();
}

#[test]
fn a_kernel_without_transparent_huge_pages_gives_base_pages() {
    let (heap, arena) = begin(Heap::Thp, Model::new());
    heap.kernel.advised.set(Err(Errno::EINVAL));
    assert_eq!(commit(&heap, &arena, 4), BASE);
    assert_eq!(heap.ledger().fall_backs(FallBack::ThpOff), (1, BYTES));
    assert_eq!(heap.ledger().last_errno(), Errno::EINVAL.0);
    assert_eq!(heap.kernel.asked_for_pages.get(), 0);
    heap.release(arena).unwrap();
}

#[test]
fn in_a_full_control_group_fresh_chunks_are_on_base_pages_until_it_has_room() {
    let (heap, arena) = begin(Heap::Thp, Model::new());
    let room = |left| Some(Room { limit: 1 << 30, left, of_touched: true });
    heap.kernel.room.set(room(0));
    heap.measure();
    assert!(heap.is_near_limit() && heap.is_short());
    assert_eq!(commit(&heap, &arena, 4), BASE);
    assert_eq!(heap.ledger().fall_backs(FallBack::Room), (1, BYTES));
    heap.kernel.room.set(room(1 << 30));
    heap.measure();
    assert_eq!(commit(&heap, &arena, 5), THP);
    heap.release(arena).unwrap();
}

#[test]
fn whichever_call_is_refused_the_account_closes() {
    for broker in [0, 15] {
        let mut failed = 0;
        for refused in 0..120 {
            let about = format!("call {refused}, {broker} pages of a broker");
            let model = Model { pool: Cell::new(12), broker: Cell::new(broker), ..Model::new() };
            let (heap, arena) = if broker > 0 { begin_with_broker(model) } else { begin(Heap::Auto, model) };
            heap.kernel.until_refused.set(refused);
            for at in (2 * HUGE_2M..CHUNKS * HUGE_2M).step_by(7 * SLICE) {
                let len = (7 * SLICE).min(CHUNKS * HUGE_2M - at);
                let held = heap.ledger().total_held();
                let done = heap.commit(arena.part(at, len));
                assert!(done.is_ok() || heap.ledger().total_held() == held, "{about}: {done:?}");
                failed += usize::from(done.is_err());
            }
            let on_pool = heap.ledger().held(Backing::Hugetlb2M) / BYTES;
            assert!(on_pool <= heap.kernel.taken.borrow().len() as u64, "{about}");
            let of_broker = heap.ledger().held(Backing::Broker) / BYTES;
            assert_eq!(of_broker, (broker - heap.kernel.broker.get()) as u64, "{about}");
            heap.decommit(arena.part(0, CHUNKS * HUGE_2M)).unwrap();
            assert_eq!((heap.ledger().total_held(), heap.committed()), (0, 0), "{about}");
            assert_eq!((heap.kernel.pool.get(), heap.kernel.taken.borrow().len()), (12, 0), "{about}");
            assert_eq!(heap.kernel.broker.get(), broker, "{about}");
            heap.release(arena).unwrap();
        }
        assert!(failed < 60, "no refusal but one is passed on: {failed}");
    }
}

#[test]
fn the_chain_has_pages_of_1_gib_for_large_memory_and_on_request() {
    let (arena, ready) = (Fresh::Arena { commit: false }, Fresh::Arena { commit: true });
    let chosen = |heap: &HugeHeap<Model>| {
        let is_gigantic = |of| matches!(heap.chain(of), Some(Chain::Gigantic));
        [arena, ready, Fresh::Commit, Fresh::Chunk(Commit { len: HUGE_1G, end: 512 }, u32::MAX)]
            .map(is_gigantic)
    };
    let begin = |kind, pages| begin(kind, Model { gigantic: Cell::new(pages), ..Model::new() }).0;
    assert_eq!(chosen(&begin(Heap::Hugetlb1G, 0)), [true, true, true, false], "a short pool is a fall-back");
    for kind in [Heap::Hugetlb2M, Heap::Thp] {
        assert_eq!(chosen(&begin(kind, 4)), [false; 4], "{kind:?}");
    }
    assert_eq!(chosen(&begin(Heap::Auto, 0)), [false; 4]);
    let heap = begin(Heap::Auto, 4);
    assert_eq!(chosen(&heap), [false, false, true, false], "the heap is small");
    heap.ledger().obtained(Backing::Thp, 2 << 30);
    assert_eq!(chosen(&heap), [true, false, true, false]);
    heap.use_broker(b"/run/a-broker", 1);
    assert_eq!(chosen(&heap), [false; 4], "the broker's pages come first");
    let forked = begin(Heap::Hugetlb1G, 4);
    forked.forked.store(true, Relaxed);
    assert_eq!(chosen(&forked), [false; 4]);
}

#[test]
fn large_objects_of_zeros_lie_apart_unless_huge_pages_are_asked_for_or_a_pool_has_some() {
    let with = |heap, spares, pool, gigantic| {
        let model = Model { pool: Cell::new(pool), gigantic: Cell::new(gigantic), ..Model::new() };
        let with = HugeHeap::on(model);
        with.configure(Config { heap, spares, ..Config::DEFAULT });
        with
    };
    let apart = |heap, spares, pool, gigantic| with(heap, spares, pool, gigantic).puts_zeros_apart();
    assert!(apart(Heap::Auto, false, 0, 0) && apart(Heap::Thp, true, 5, 5));
    assert!(!apart(Heap::Auto, false, 5, 0) && !apart(Heap::Auto, false, 0, 5));
    assert!(!apart(Heap::Thp, false, 0, 0) && !apart(Heap::None, false, 0, 0));
    let of_broker = with(Heap::Thp, true, 0, 0);
    of_broker.use_broker(b"/run/a-broker", 1);
    let confined = with(Heap::Thp, true, 0, 0);
    confined.kernel.confined.set(true);
    let repaired = with(Heap::Thp, true, 0, 0);
    repaired.configure(Config { fork: Fork::Snapshot, ..repaired.config() });
    assert!([of_broker, confined, repaired].iter().all(|heap| !heap.puts_zeros_apart()));
    let heap = HugeHeap::on(Model::new());
    let object = heap.reserve_apart(5 * SLICE, SLICE, false).unwrap().range;
    assert!(object.start().is_multiple_of(HUGE_2M) && heap.chunk_at(object.start()).is_none());
    heap.commit(object.part(SLICE, 4 * SLICE)).unwrap();
    assert_eq!((heap.release(object), heap.ledger().total_held()), (Ok(()), 0));
}

#[test]
fn free_huge_pages_that_are_returned_may_be_taken_again() {
    let heap = HugeHeap::on(Model { free: Cell::new(2 * BYTES), ..Model::new() });
    heap.configure(Config::DEFAULT);
    assert_eq!(heap.take_free(HUGE_2M), Ok(()), "a half of them");
    assert_eq!(heap.take_free(HUGE_2M), Err(FallBack::Fragmented));
    heap.return_free(HUGE_2M);
    assert_eq!(heap.take_free(HUGE_2M), Ok(()));
}

#[test]
fn without_addresses_there_is_no_arena_and_a_second_place_is_tried_first() {
    let heap = HugeHeap::on(Model::new());
    heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
    heap.kernel.refused.set("reserve_beginning");
    for (len, commit) in [(CHUNKS * HUGE_2M, false), (CHUNKS * HUGE_2M, true), (SLICE, false)] {
        assert_eq!(heap.reserve(len, HUGE_2M, commit).unwrap_err(), Errno::ENOMEM);
    }
    assert_eq!((heap.ledger().ranges().count(), heap.ledger().total_held()), (0, 0));
    heap.kernel.refused.set("");
    heap.kernel.until_refused.set(0);
    let arena = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
    assert_eq!(heap.ledger().ranges().count(), 1);
    heap.kernel.refused.set("release");
    assert_eq!(heap.release(arena.range), Err(Errno::ENOMEM));
    assert_eq!(heap.ledger().ranges().count(), 0, "the heap drops the range even if the kernel refuses");
}

#[test]
fn addresses_are_given_up_and_taken_again_as_the_kernel_lets_it() {
    let heap = HugeHeap::on(Model::new());
    heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
    let Reserved { range: mut arena, all, .. } = heap.reserve(CHUNKS * HUGE_2M, HUGE_2M, false).unwrap();
    let lock = Lock::new();
    let held = lock.hold();
    let [refused, last] = [CHUNKS - 2, CHUNKS - 1].map(|chunk| chunk * HUGE_2M);
    let mapping = |at: usize| heap.chunk_at(all.start() + at).map(|chunk| chunk.mapping());
    assert!(heap.give_up(arena.split_off(last)));
    assert_eq!(mapping(last), None, "the heap has no chunk there");
    heap.kernel.refused.set("release");
    assert!(!heap.give_up(arena.split_off(refused)));
    assert_eq!(mapping(refused), Some(Mapping::None), "the heap keeps the chunk");
    for errno in [Errno::EEXIST, Errno::ENOMEM, Errno::EPERM] {
        heap.kernel.hole.set(Err(errno));
        let answer = if errno == Errno::EEXIST { errno } else { Errno::ENOMEM };
        assert_eq!(heap.take_addresses(all.part(last, HUGE_2M)), Err(answer));
        assert_eq!(heap.commit(all.own(&held, last, SLICE)), Err(Errno::ENOMEM));
        assert_eq!((mapping(last), heap.committed()), (None, 0));
    }
    heap.kernel.hole.set(Ok(()));
    assert_eq!(heap.commit(all.own(&held, last, SLICE)), Ok(true));
    assert_eq!(mapping(last), Some(BASE));
}

#[test]
fn addresses_that_hold_nothing_are_unlocked_as_they_are_taken() {
    let heap = HugeHeap::on(Model::new());
    heap.configure(Config { heap: Heap::Thp, ..Config::DEFAULT });
    heap.prepare_for_locks();
    let arena = heap.reserve(4 * HUGE_2M, HUGE_2M, false).unwrap();
    let unlocked = |heap: &HugeHeap<Model>| heap.kernel.unlocked.take();
    assert_eq!((arena.range.len(), unlocked(&heap)), (HUGE_2M, 4 * HUGE_2M));
    let lock = Lock::new();
    let held = lock.hold();
    let slice = || arena.all.own(&held, 2 * HUGE_2M, SLICE);
    heap.kernel.hole.set(Err(Errno::ENOMEM));
    assert!(heap.commit(slice()).is_err());
    assert_eq!(unlocked(&heap), 0, "a failed commit takes no addresses");
    heap.kernel.hole.set(Ok(()));
    heap.commit(slice()).unwrap();
    assert_eq!(unlocked(&heap), HUGE_2M);
    heap.unlock_unused();
    assert_eq!(unlocked(&heap), 2 * HUGE_2M - SLICE, "the first chunk, and the unused slices of the other");
    heap.commit(arena.all.own(&held, 2 * HUGE_2M + SLICE, SLICE)).unwrap();
    heap.decommit(slice()).unwrap();
    assert_eq!(unlocked(&heap), SLICE);
}

#[test]
fn a_broker_that_does_not_answer_is_asked_again_after_a_pause_that_doubles() {
    let (heap, arena) = begin_with_broker(Model { broker: Cell::new(8), ..Model::new() });
    heap.kernel.refused.set("take_extents");
    for (chunk, (passes, asked)) in (4..).zip([(0, 1), (999, 1), (1, 2), (1999, 2), (1, 3)]) {
        heap.kernel.passes(passes);
        assert_eq!(commit(&heap, &arena, chunk), THP);
        assert_eq!(heap.kernel.asked_broker.get(), asked, "chunk {chunk}");
    }
    assert_eq!(heap.ledger().fall_backs(FallBack::BrokerGone), (5, 5 * BYTES));
    heap.kernel.refused.set("");
    heap.kernel.passes(4000);
    assert_eq!((commit(&heap, &arena, 9), heap.kernel.broker.get()), (BROKER, 7));
    heap.decommit(arena.part(9 * HUGE_2M, HUGE_2M)).unwrap();
    assert_eq!(heap.kernel.broker.get(), 8);
    heap.release(arena).unwrap();
}

#[test]
fn a_page_of_a_broker_that_cannot_be_used_goes_back_and_no_further_one_is_asked_for() {
    for refused in ["reserve", "map_extent", "populate", "move_over"] {
        let (heap, arena) = begin_with_broker(Model { broker: Cell::new(8), ..Model::new() });
        heap.kernel.refused.set(refused);
        assert_eq!(commit(&heap, &arena, 4), THP, "{refused}");
        assert_eq!(heap.kernel.broker.get(), 8, "{refused}");
        assert_eq!(heap.ledger().fall_backs(FallBack::Other), (1, BYTES), "{refused}");
        heap.kernel.refused.set("");
        heap.kernel.passes(1 << 40);
        assert_eq!(commit(&heap, &arena, 5), THP, "{refused}");
        assert_eq!(heap.kernel.asked_broker.get(), 1, "{refused}");
        heap.release(arena).unwrap();
    }
    // A page that the kernel does not remove stays until the process ends. The ledger drops it.
    let (heap, arena) = begin_with_broker(Model { broker: Cell::new(8), ..Model::new() });
    assert_eq!(commit(&heap, &arena, 4), BROKER);
    heap.kernel.refused.set("remove");
    heap.decommit(arena.part(4 * HUGE_2M, HUGE_2M)).unwrap();
    assert_eq!((heap.kernel.broker.get(), heap.ledger().held(Backing::Broker)), (7, 0));
    heap.release(arena).unwrap();
}

/// Makes a heap with four pages of a pool that has `left` more.
fn begin_with_pages(left: usize) -> (HugeHeap<Model>, Reservation) {
    let (heap, arena) = begin(Heap::Hugetlb2M, Model { pool: Cell::new(4 + left), ..Model::new() });
    assert_eq!([4, 5, 6, 7].map(|chunk| commit(&heap, &arena, chunk)), [POOL; 4]);
    (heap, arena)
}

#[test]
fn before_a_fork_a_thread_that_is_about_to_end_is_waited_for_and_no_other() {
    for (ends, waited, moves) in [(0, 0, true), (10, 10, true), (1000, 50, false)] {
        let (heap, arena) = begin_with_pages(0);
        let start = heap.kernel.now();
        heap.kernel.two_threads_until.set(start + Duration::from_millis(ends));
        assert_eq!(heap.before_fork(1), if moves { Ok(()) } else { Err(Errno::ENOMEM) });
        assert_eq!((heap.kernel.now() - start).as_millis(), waited, "{ends} ms");
        let ledger = heap.ledger();
        let held = [Backing::Thp, Backing::Hugetlb2M].map(|backing| ledger.held(backing) / BYTES);
        assert_eq!((held, heap.kernel.pool.get()), if moves { ([4, 0], 4) } else { ([0, 4], 0) });
        assert_eq!(ledger.fall_backs(FallBack::Fork).0, if moves { 4 } else { 0 });
        assert_eq!(ledger.forks(), (u64::from(moves), u64::from(!moves)));
        heap.release(arena).unwrap();
    }
}

#[test]
fn a_fork_whose_pages_the_kernel_does_not_move_needs_a_pool_that_carries_them() {
    // The kernel refuses one move. Each move before it has freed a page of the pool. If the pool
    // has a free page for each page left, those stay. Otherwise a second attempt moves them.
    for (moved, left) in [(0, 0), (1, 0), (2, 2), (3, 1)] {
        let (heap, arena) = begin_with_pages(0);
        heap.kernel.until_refused.set(moved);
        assert_eq!(heap.before_fork(1), Ok(()), "{moved}");
        assert_eq!(heap.ledger().held(Backing::Hugetlb2M), left * BYTES, "{moved}");
        assert_eq!(heap.kernel.pool.get() as u64, 4 - left, "{moved}");
        heap.release(arena).unwrap();
    }
    // With two threads no page can move, so the heap tries the pool. A failed trial fails the fork.
    for refused in ["", "reserve", "map_hugetlb", "populate"] {
        let (heap, arena) = begin_with_pages(4);
        heap.kernel.two_threads_until.set(Duration::MAX);
        heap.kernel.refused.set(refused);
        assert_eq!(heap.before_fork(1).is_ok(), refused.is_empty(), "{refused}");
        assert_eq!((heap.kernel.pool.get(), heap.kernel.taken.borrow().len()), (4, 4), "{refused}");
        heap.release(arena).unwrap();
    }
}

#[test]
fn a_fork_that_a_brokers_pages_forbid_is_refused_and_they_stay() {
    let (heap, arena) = begin_with_broker(Model { broker: Cell::new(8), ..Model::new() });
    assert_eq!([4, 5].map(|chunk| commit(&heap, &arena, chunk)), [BROKER; 2]);
    heap.kernel.refused.set("move_extent_to_thp");
    assert_eq!(heap.before_fork(1), Err(Errno::ENOMEM));
    assert_eq!((heap.ledger().held(Backing::Broker), heap.kernel.broker.get()), (2 * BYTES, 6));
    heap.kernel.refused.set("");
    heap.kernel.two_threads_until.set(heap.kernel.now() + Duration::from_millis(50));
    assert_eq!(heap.before_fork(1), Ok(()), "the second thread ends in time");
    assert_eq!((heap.ledger().held(Backing::Broker), heap.kernel.broker.get()), (0, 8));
    assert_eq!(heap.ledger().held(Backing::Thp), 2 * BYTES);
    heap.release(arena).unwrap();
}

#[test]
fn chunks_are_collapsed_together_but_for_those_that_are_not_on_base_pages() {
    let (heap, arena) = begin(Heap::None, Model::new());
    heap.commit(arena.part(0, 5 * HUGE_2M)).unwrap();
    heap.decommit(arena.part(2 * HUGE_2M, HUGE_2M)).unwrap();
    let collapse = || {
        heap.kernel.collapses.take();
        let done = heap.collapse_at(arena.start(), 5 * HUGE_2M);
        (done, heap.kernel.collapses.take())
    };
    let both = vec![2 * HUGE_2M; 2];
    heap.kernel.collapsed.set(Err(Errno::EBUSY));
    assert_eq!(collapse(), (Err(Errno::EBUSY), both.clone()));
    // After a chunk that it cannot collapse, the kernel goes on with the next one.
    heap.kernel.huge_nevertheless.set(arena.start() + 4 * HUGE_2M);
    assert_eq!(collapse(), (Ok(HUGE_2M), both));
    let mapping = |index: usize| heap.chunk_at(arena.start() + index * HUGE_2M).unwrap().mapping();
    assert_eq!([0, 1, 3, 4].map(mapping), [BASE, BASE, BASE, THP]);
    heap.kernel.collapsed.set(Ok(()));
    assert_eq!(collapse(), (Ok(3 * HUGE_2M), vec![2 * HUGE_2M, HUGE_2M]));
    assert_eq!(collapse(), (Err(Errno::EINVAL), vec![]));
    assert_eq!(heap.ledger().held(Backing::Thp), 4 * HUGE_2M as u64);
    heap.release(arena).unwrap();
}

#[test]
fn few_chunks_of_a_small_heap_are_collapsed_at_once() {
    let heap = HugeHeap::on(Model::new());
    heap.configure(Config { heap: Heap::None, ..Config::DEFAULT });
    let mut arenas = Vec::new();
    for (gib, most) in [(0, 1), (1, 2), (2, 4), (3, 4)] {
        while arenas.len() < 8 * gib {
            let arena = heap.reserve(64 * HUGE_2M, HUGE_2M, false).unwrap().range;
            heap.commit(arena.part(0, 64 * HUGE_2M)).unwrap();
            arenas.push(arena);
        }
        assert_eq!(heap.most_at_once(), most, "{gib}");
    }
    arenas.into_iter().for_each(|arena| heap.release(arena).unwrap());
}

#[test]
fn a_chunk_for_which_no_huge_page_can_be_made_ready_stays_on_base_pages() {
    let (heap, arena) = begin(Heap::Thp, Model::new());
    let mapping = || heap.chunk_at(arena.start()).unwrap().mapping();
    for refused in ["reserve", "open", "populate"] {
        heap.kernel.refused.set(refused);
        assert_eq!(heap.make_ready(HUGE_2M), Err(Errno::ENOMEM), "{refused}");
    }
    heap.kernel.refused.set("");
    for (errno, ready) in
        [(Errno::ENOMEM, Err(Errno::ENOMEM)), (Errno::EBUSY, Err(Errno::EBUSY)), (Errno::EINVAL, Ok(()))]
    {
        heap.kernel.collapsed.set(Err(errno));
        assert_eq!(heap.make_ready(HUGE_2M), ready);
        assert_eq!((heap.collapse_at(arena.start(), HUGE_2M), mapping()), (Err(errno), BASE));
    }
    heap.kernel.collapsed.set(Ok(()));
    assert_eq!((heap.collapse_at(arena.start(), HUGE_2M), mapping()), (Ok(HUGE_2M), THP));
    heap.release(arena).unwrap();
}
