//! Model of the kernel, for tests of the heap and of the collapser.

use crate::prim::{Kernel, Prim};
use crate::stock::wire::{Answer, Verdict};
use crate::stock::{Granted, TakeError};
use megapage_inside::room::{Limits, Room};
use megapage_inside::{
    Alone, Borrowed, Errno, FreeByNode, Guarded, HugetlbRoom, NoHugetlb, NotMoved, OwnRegion, Owned,
    Reservation,
};
use megapage_units::{HUGE_2M, HugePage, PageSize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

/// Model of the kernel without memory. It keeps an account of calls and of the pool's pages.
#[derive(Debug)]
pub struct Model {
    pub now: Cell<Duration>,
    /// Pages of 2 MiB that are free in the pool.
    pub pool: Cell<usize>,
    /// Pages of 1 GiB that are free in their pool.
    pub gigantic: Cell<u64>,
    /// Pages that are behind chunks, by address.
    pub taken: RefCell<BTreeSet<usize>>,
    /// Answer to each request to populate pages of the pool.
    pub populated: Cell<Result<(), Errno>>,
    /// Answer to advice of transparent huge pages.
    pub advised: Cell<Result<(), Errno>>,
    /// Pages of the pool that control groups leave for faults; `None` without a limit.
    pub group_leaves: Cell<Option<u64>>,
    /// Room that a control group leaves for memory.
    pub room: Cell<Option<Room>>,
    /// Bytes of free huge pages of the machine.
    pub free: Cell<u64>,
    /// True if the program may have forbidden itself system calls.
    pub confined: Cell<bool>,
    /// Number of calls of [`Model::answer`] that succeed before one fails with ENOMEM.
    pub until_refused: Cell<usize>,
    /// Name of the call that always fails with ENOMEM.
    pub refused: Cell<&'static str>,
    pub asked_for_pages: Cell<usize>,
    /// Pages of 2 MiB that the broker has left.
    pub broker: Cell<usize>,
    pub asked_broker: Cell<usize>,
    /// Answer to each request to reserve addresses again that were given up.
    pub hole: Cell<Result<(), Errno>>,
    /// Bytes that were unlocked.
    pub unlocked: Cell<usize>,
    /// Time at which the second of two threads ends.
    pub two_threads_until: Cell<Duration>,
    /// Answer to each request to collapse memory.
    pub collapsed: Cell<Result<(), Errno>>,
    /// Time that each such request takes.
    pub collapse_takes: Cell<Duration>,
    /// Bytes of each request to collapse memory.
    pub collapses: RefCell<Vec<usize>>,
    /// Address of a region that is huge although the request to collapse it failed.
    pub huge_nevertheless: Cell<usize>,
}

impl Model {
    pub fn new() -> Model {
        Model {
            now: Cell::new(Duration::from_secs(5)),
            pool: Cell::new(0),
            gigantic: Cell::new(0),
            taken: RefCell::new(BTreeSet::new()),
            populated: Cell::new(Ok(())),
            advised: Cell::new(Ok(())),
            group_leaves: Cell::new(None),
            room: Cell::new(None),
            free: Cell::new(1 << 40),
            confined: Cell::new(false),
            until_refused: Cell::new(usize::MAX),
            refused: Cell::new(""),
            asked_for_pages: Cell::new(0),
            broker: Cell::new(0),
            asked_broker: Cell::new(0),
            hole: Cell::new(Ok(())),
            unlocked: Cell::new(0),
            two_threads_until: Cell::new(Duration::ZERO),
            collapsed: Cell::new(Ok(())),
            collapse_takes: Cell::new(Duration::ZERO),
            collapses: RefCell::new(Vec::new()),
            huge_nevertheless: Cell::new(0),
        }
    }

    pub fn passes(&self, ms: u64) {
        self.now.set(self.now.get() + Duration::from_millis(ms));
    }

    /// Counts `until_refused` down. Fails with ENOMEM if it was 0, and for the call named
    /// `refused`.
    fn answer(&self, call: &str) -> Result<(), Errno> {
        let left = self.until_refused.get();
        self.until_refused.set(left.wrapping_sub(1));
        if left == 0 { Err(Errno::ENOMEM) } else { self.answer_to(call) }
    }

    /// Fails with ENOMEM for the call named `refused`.
    fn answer_to(&self, call: &str) -> Result<(), Errno> {
        if self.refused.get() == call { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Gives the pages behind `part` back to the broker.
    fn broker_gets(&self, part: Borrowed) {
        self.broker.set(self.broker.get() + part.len() / HUGE_2M);
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

    fn sleep(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn reserve(&self, len: usize, alignment: usize) -> Result<Reservation, Errno> {
        self.answer("reserve")?;
        Kernel.reserve(len, alignment)
    }

    fn reserve_beginning(
        &self,
        len: usize,
        first: usize,
        alignment: usize,
    ) -> Result<(Reservation, Guarded), Errno> {
        self.answer("reserve_beginning")?;
        Kernel.reserve_beginning(len, first, alignment)
    }

    fn reserve_hole(&self, _part: Borrowed) -> Result<(), Errno> {
        self.hole.get()
    }

    /// Keeps the addresses reserved, so that no other test maps memory there.
    fn release(&self, range: Reservation) -> Result<(), Errno> {
        let part = range.keep();
        self.answer_to("release")?;
        self.gives_back(part.view())
    }

    fn unlock(&self, part: Borrowed) {
        self.unlocked.set(self.unlocked.get() + part.len());
    }

    fn open(&self, _part: &Owned<'_>) -> Result<(), Errno> {
        self.answer("open")
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
        self.answer("map_hugetlb")?;
        let pages = part.len() / HUGE_2M;
        self.asked_for_pages.set(self.asked_for_pages.get() + 1);
        self.pool.set(self.pool.get().checked_sub(pages).ok_or(Errno::ENOMEM)?);
        self.taken.borrow_mut().extend((0..pages).map(|page| part.start() + page * HUGE_2M));
        Ok(())
    }

    fn try_hugetlb(&self, _size: PageSize) -> Result<(), NoHugetlb> {
        Ok(())
    }

    fn populate(&self, part: Borrowed) -> Result<(), Errno> {
        self.answer("populate")?;
        // The call takes a tenth of a millisecond.
        self.now.set(self.now.get() + Duration::from_micros(100));
        if self.taken.borrow().contains(&part.start()) { self.populated.get() } else { Ok(()) }
    }

    fn advise_thp(&self, _part: Borrowed) -> Result<(), Errno> {
        self.advised.get()
    }

    fn region(&self, start: usize) -> Option<OwnRegion> {
        Some(if self.huge_nevertheless.get() == start { OwnRegion::Huge } else { OwnRegion::Empty })
    }

    fn collapse(&self, part: Borrowed) -> Result<(), Errno> {
        self.collapses.borrow_mut().push(part.len());
        self.sleep(self.collapse_takes.get());
        self.collapsed.get()
    }

    fn stalls(&self) -> Option<u64> {
        None
    }

    /// Grants all pages as one extent.
    fn take_extents(
        &self,
        _path: &Path,
        size: PageSize,
        pages: u64,
        fresh: &mut bool,
    ) -> Result<Granted, TakeError> {
        *fresh = false;
        self.asked_broker.set(self.asked_broker.get() + 1);
        self.answer("take_extents").map_err(|errno| TakeError::Io(errno.into()))?;
        let Some(left) = self.broker.get().checked_sub(pages as usize) else {
            let (verdict, page_bytes) = (Verdict::Empty, size.bytes().0);
            return Err(TakeError::Refused(Answer {
                verdict,
                page_bytes,
                extent_pages: 0,
                extents: 0,
                text: 0,
            }));
        };
        self.broker.set(left);
        let mut extents = [const { None }; _];
        extents[0] = Some(File::open("/dev/null")?.into());
        Ok(Granted { extents, count: 1, bytes: pages * size.bytes().0 })
    }

    fn give_back(&self, granted: &Granted, _size: PageSize) {
        self.broker.set(self.broker.get() + granted.bytes as usize / HUGE_2M);
    }

    fn map_extent(&self, _part: &Owned<'_>, _file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.answer("map_extent")
    }

    fn remove(&self, part: &Owned<'_>) -> Result<(), Errno> {
        self.answer_to("remove")?;
        self.broker_gets(part.view());
        Ok(())
    }

    fn move_over(&self, pages: Reservation, _target: &Owned<'_>) -> Result<(), NotMoved> {
        let answer = self.answer("move_over");
        answer.map_err(|errno| NotMoved { pages, errno, target_emptied: false })
    }

    fn thread_count(&self) -> Option<u64> {
        Some(1 + u64::from(self.now.get() < self.two_threads_until.get()))
    }

    fn alone(&self, threads: u64) -> Option<Alone> {
        let has_as_many = self.thread_count() == Some(threads);
        // The real kernel proves it for the tests' process, with its number of threads.
        let prove = || (0..1000).find_map(|_| Kernel.alone(Kernel.thread_count()?));
        has_as_many.then(|| prove().expect("the number of threads does not stay"))
    }

    fn move_to_thp(&self, part: &Owned<'_>, _alone: &Alone) -> Result<(), Errno> {
        self.answer("move_to_thp")?;
        self.gives_back(part.view())
    }

    fn move_extent_to_thp(&self, part: &Owned<'_>, _alone: &Alone) -> Result<(), Errno> {
        self.answer("move_extent_to_thp")?;
        self.broker_gets(part.view());
        Ok(())
    }

    fn available_and_total(&self) -> Option<(u64, u64)> {
        Some((1 << 40, 1 << 40))
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
        self.confined.get()
    }

    fn scans_pagemap(&self) -> bool {
        true
    }

    fn thp_only_on_advice(&self) -> bool {
        true
    }

    fn thp_is_possible(&self) -> bool {
        true
    }

    fn hugetlb_available(&self, size: PageSize) -> Option<u64> {
        Some(if size == PageSize::HUGE_2M { self.pool.get() as u64 } else { self.gigantic.get() })
    }

    fn hugetlb_room(&self, _size: PageSize) -> HugetlbRoom {
        HugetlbRoom { fault: self.group_leaves.get().map(|pages| pages * HugePage::SIZE), reservation: None }
    }

    fn hugetlb_free_by_node(&self, _size: PageSize) -> Option<FreeByNode> {
        None
    }
}
