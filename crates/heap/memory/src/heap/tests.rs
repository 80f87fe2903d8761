//! Tests of the heap on a model of the kernel. Refusals and time need no separate process and no
//! machine in a certain state.

use super::*;
use crate::chunk::SLICE;
use crate::config::Heap;
use megapage_inside::room::{Limits, Room};
use megapage_inside::{FreeByNode, HugetlbRoom, NoHugetlb};
use megapage_units::{HugePage, PageSize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

const PAGE: usize = HUGE_2M;
const BYTES: u64 = HugePage::SIZE;
const CHUNKS: usize = 40;

/// Model of the kernel without memory. It keeps an account of calls and of the pool's pages.
#[derive(Debug)]
struct Model {
    now: Cell<Duration>,
    /// Pages of 2 MiB that are free in the pool.
    pool: Cell<usize>,
    /// Pages that are behind chunks, by address.
    taken: RefCell<BTreeSet<usize>>,
    /// Answer to each request to populate pages of the pool.
    populated: Cell<Result<(), Errno>>,
    /// Answer to advice of transparent huge pages.
    advised: Cell<Result<(), Errno>>,
    /// Pages of the pool that control groups leave for faults; `None` without a limit.
    group_leaves: Cell<Option<u64>>,
    /// Room that a control group leaves for memory.
    room: Cell<Option<Room>>,
    /// Bytes of free huge pages of the machine.
    free: Cell<u64>,
    /// Number of mapping or populating calls before one is refused with ENOMEM.
    until_refused: Cell<usize>,
    asked_for_pages: Cell<usize>,
}

impl Model {
    fn new() -> Model {
        Model {
            now: Cell::new(Duration::from_secs(5)),
            pool: Cell::new(0),
            taken: RefCell::new(BTreeSet::new()),
            populated: Cell::new(Ok(())),
            advised: Cell::new(Ok(())),
            group_leaves: Cell::new(None),
            room: Cell::new(None),
            free: Cell::new(1 << 40),
            until_refused: Cell::new(usize::MAX),
            asked_for_pages: Cell::new(0),
        }
    }

    fn passes(&self, ms: u64) {
        self.now.set(self.now.get() + Duration::from_millis(ms));
    }

    /// Counts one call down to the refusal. Refuses the call with ENOMEM if none was left.
    fn answer(&self) -> Result<(), Errno> {
        let left = self.until_refused.get();
        self.until_refused.set(left.wrapping_sub(1));
        if left == 0 { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    fn gives_back(&self, part: Borrowed) -> Result<(), Errno> {
        let mut taken = self.taken.borrow_mut();
        let before = taken.len();
        taken.retain(|page| !(part.start()..part.end()).contains(page));
        self.pool.set(self.pool.get() + before - taken.len());
        Ok(())
    }
}

impl Prim for Model {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn open(&self, _part: &Owned<'_>) -> Result<(), Errno> {
        self.answer()
    }

    fn close(&self, part: &Owned<'_>) -> Result<(), Errno> {
        self.gives_back(part.view())
    }

    fn close_part(&self, part: &Owned<'_>) -> Result<(), Errno> {
        self.gives_back(part.view())
    }

    fn discard(&self, _part: &Owned<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn discard_part(&self, _part: &Owned<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn map_hugetlb(&self, part: &Owned<'_>, _size: PageSize) -> Result<(), Errno> {
        self.answer()?;
        let pages = part.len() / PAGE;
        self.asked_for_pages.set(self.asked_for_pages.get() + 1);
        self.pool.set(self.pool.get().checked_sub(pages).ok_or(Errno::ENOMEM)?);
        self.taken.borrow_mut().extend((0..pages).map(|page| part.start() + page * PAGE));
        Ok(())
    }

    fn try_hugetlb(&self, _size: PageSize) -> Result<(), NoHugetlb> {
        Ok(())
    }

    fn populate(&self, part: Borrowed) -> Result<(), Errno> {
        self.answer()?;
        // The call takes a tenth of a millisecond.
        self.now.set(self.now.get() + Duration::from_micros(100));
        if self.taken.borrow().contains(&part.start()) { self.populated.get() } else { Ok(()) }
    }

    fn advise_thp(&self, _part: Borrowed) -> Result<(), Errno> {
        self.advised.get()
    }

    fn collapse(&self, _part: Borrowed) -> Result<(), Errno> {
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn rooms(&self, _limits: &Limits, visit: impl FnMut(Room)) {
        self.room.get().into_iter().for_each(visit);
    }

    fn machine_room(&self) -> Option<Room> {
        None
    }

    fn free_huge_pages(&self) -> Option<u64> {
        Some(self.free.get())
    }

    fn own_resident(&self) -> Option<u64> {
        None
    }

    fn is_confined(&self) -> bool {
        false
    }

    fn thp_only_on_advice(&self) -> bool {
        true
    }

    fn thp_is_possible(&self) -> bool {
        true
    }

    fn hugetlb_available(&self, size: PageSize) -> Option<u64> {
        Some(if size == PageSize::HUGE_2M { self.pool.get() as u64 } else { 0 })
    }

    fn hugetlb_room(&self, _size: PageSize) -> HugetlbRoom {
        HugetlbRoom { fault: self.group_leaves.get().map(|pages| pages * BYTES), reservation: None }
    }

    fn hugetlb_free_by_node(&self, _size: PageSize) -> Option<FreeByNode> {
        None
    }
}

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
    let mut failed = 0;
    for refused in 0..60 {
        let (heap, arena) = begin(Heap::Auto, Model { pool: Cell::new(12), ..Model::new() });
        heap.kernel.until_refused.set(refused);
        for at in (2 * HUGE_2M..CHUNKS * HUGE_2M).step_by(7 * SLICE) {
            let len = (7 * SLICE).min(CHUNKS * HUGE_2M - at);
            let held = heap.ledger().total_held();
            let done = heap.commit(arena.part(at, len));
            assert!(done.is_ok() || heap.ledger().total_held() == held, "call {refused}: {done:?}");
            failed += usize::from(done.is_err());
        }
        let on_pool = heap.ledger().held(Backing::Hugetlb2M) / BYTES;
        assert!(on_pool <= heap.kernel.taken.borrow().len() as u64, "call {refused}");
        heap.decommit(arena.part(0, CHUNKS * HUGE_2M)).unwrap();
        assert_eq!((heap.ledger().total_held(), heap.committed()), (0, 0), "call {refused}");
        assert_eq!((heap.kernel.pool.get(), heap.kernel.taken.borrow().len()), (12, 0), "call {refused}");
        heap.release(arena).unwrap();
    }
    assert!(failed < 60, "no refusal but one is passed on: {failed}");
}
