//! Interface between the heap and the kernel, as mimalloc's prim.h. It has the calls that reserve
//! addresses, map memory, ask a broker, and read the machine and the clock.
//!
//! [`Kernel`] makes the calls directly. A test's model can refuse them and advance the clock.
//! Dropping a `Reservation` unmaps it directly, not through this trait.

use crate::stock::{Granted, TakeError, take_noting};
use megapage_inside::room::{self, Limits, Room};
use megapage_inside::{
    Alone, Borrowed, Errno, FreeByNode, Guarded, HugetlbRoom, NoHugetlb, NotMoved, OwnRegion, Owned,
    Reservation, program_memory as program,
};
use megapage_units::PageSize;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

macro_rules! calls {
    ($($(#[$doc:meta])+ fn $name:ident($($part:ident: $kind:ty),*) $(-> $answer:ty)? = $call:expr;)+) => {
        /// Calls to the kernel. Each calls one function by default.
        pub trait Prim {
            $($(#[$doc])+ fn $name(&self, $($part: $kind),*) $(-> $answer)? { $call })+
        }
    };
}

calls! {
    /// Returns the time since some fixed point.
    fn now() -> Duration = megapage_inside::monotonic();
    /// Sleeps for `time`.
    fn sleep(time: Duration) = std::thread::sleep(time);
    /// Returns true if the program has forbidden itself system calls. A call made here could end
    /// it.
    fn is_confined() -> bool = program::is_confined();

    /// Reserves `len` bytes of addresses at a multiple of `alignment`.
    fn reserve(len: usize, alignment: usize) -> Result<Reservation, Errno> = Reservation::new(len, alignment);
    /// Reserves the first `first` bytes of a range of `len` bytes at a multiple of `alignment`.
    /// Returns them, and the whole range.
    fn reserve_beginning(len: usize, first: usize, alignment: usize) -> Result<(Reservation, Guarded), Errno> =
        Reservation::beginning(len, first, alignment);
    /// Reserves addresses if nothing is mapped there. Creates no owner of the range.
    fn reserve_hole(part: Borrowed) -> Result<(), Errno> = part.reserve_hole();
    /// Releases addresses and the memory behind them.
    fn release(range: Reservation) -> Result<(), Errno> = range.release();
    /// Unlocks memory (munlock(2)).
    fn unlock(part: Borrowed) = part.unlock();

    /// Makes memory accessible.
    fn open(part: &Owned<'_>) -> Result<(), Errno> = part.open();
    /// Discards memory and makes it inaccessible.
    fn close(part: &Owned<'_>) -> Result<(), Errno> = part.close();
    /// Closes memory that may be a part of a huge page.
    fn close_part(part: &Owned<'_>) -> Result<(), Errno> = part.close_part();
    /// Discards memory, which stays accessible.
    fn discard(part: &Owned<'_>) -> Result<(), Errno> = part.discard();
    /// Discards memory that may be a part of a huge page.
    fn discard_part(part: &Owned<'_>) -> Result<(), Errno> = part.discard_part();
    /// Replaces memory by reserved pages of a pool.
    fn map_hugetlb(part: &Owned<'_>, size: PageSize) -> Result<(), Errno> = part.map_hugetlb(size);
    /// Tries to move and populate such pages.
    fn try_hugetlb(size: PageSize) -> Result<(), NoHugetlb> = megapage_inside::try_hugetlb(size);
    /// Faults memory in.
    fn populate(part: Borrowed) -> Result<(), Errno> = part.populate();
    /// Advises transparent huge pages.
    fn advise_thp(part: Borrowed) -> Result<(), Errno> = part.advise_thp();
    /// Excludes memory from children of fork(2).
    fn keep_from_children(part: Borrowed) -> Result<(), Errno> = part.keep_from_children();
    /// Collapses memory into transparent huge pages.
    fn collapse(part: Borrowed) -> Result<(), Errno> = part.collapse();

    /// Asks the broker at `path` for pages. Sets `fresh` to false once the request is sent.
    fn take_extents(path: &Path, size: PageSize, pages: u64, fresh: &mut bool) -> Result<Granted, TakeError> =
        take_noting(path, size, pages, fresh);
    /// Gives all pages of the extents back to the broker, mapped or not.
    fn give_back(granted: &Granted, size: PageSize) = granted.give_back(size);
    /// Maps a file of hugetlb pages shared, in place of the memory.
    fn map_extent(part: &Owned<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> = part.map_extent(file);
    /// Frees the file's pages behind a shared mapping (MADV_REMOVE).
    fn remove(part: &Owned<'_>) -> Result<(), Errno> = part.remove();
    /// Moves pages to the addresses of `target`, and replaces its mapping (mremap(2)).
    fn move_over(pages: Reservation, target: &Owned<'_>) -> Result<(), NotMoved> = pages.move_over(target);

    /// Returns the number of threads of the process.
    fn thread_count() -> Option<u64> = megapage_inside::thread_count();
    /// Returns a proof if the process has exactly `threads` threads, or else `None`.
    fn alone(threads: u64) -> Option<Alone> = Alone::among(threads);
    /// Moves the contents of hugetlb pages onto transparent huge pages.
    fn move_to_thp(part: &Owned<'_>, alone: &Alone) -> Result<(), Errno> = part.move_to_thp(alone);
    /// Moves the contents of a broker's pages onto transparent huge pages.
    fn move_extent_to_thp(part: &Owned<'_>, alone: &Alone) -> Result<(), Errno> = part.move_extent_to_thp(alone);

    /// Maps new memory of `len` bytes at a multiple of 2 MiB, and returns its address.
    fn map_aligned(len: usize, reserve: bool) -> Result<usize, Errno> = program::map_aligned(len, reserve);
    /// Unmaps memory of `map_aligned` that was never handed out.
    fn unmap(start: usize, len: usize) = program::unmap(start, len);
    /// Returns the bytes that are present.
    fn resident(start: usize, len: usize) -> Option<usize> = program::resident(start, len);

    /// Finds the limits of the process.
    fn limits() -> Limits = Limits::find();
    /// Calls `visit` with the room that each limit leaves now.
    fn rooms(limits: &Limits, visit: impl FnMut(Room)) = limits.rooms(visit);
    /// Returns the room that the machine leaves.
    fn machine_room() -> Option<Room> = room::machine_room();
    /// Returns the bytes of the machine's free huge pages.
    fn free_huge_pages() -> Option<u64> = room::free_huge_pages();
    /// Returns the bytes of memory that are available, and of all memory.
    fn available_and_total() -> Option<(u64, u64)> = megapage_inside::memory_available_and_total();
    /// Returns the number of allocations of any process that have waited for compaction or reclaim.
    fn stalls() -> Option<u64> = room::stalls();
    /// Returns true if the kernel tells which base pages of the process are present (from Linux
    /// 6.7), so that its mappings become huge behind it.
    fn scans_pagemap() -> bool = program::OwnPagemap::open().is_some_and(|pagemap| pagemap.scans());
    /// Returns the resident bytes of the process.
    fn own_resident() -> Option<u64> = megapage_inside::own_resident();
    /// Returns true if the kernel would grant a mapping of `len` bytes.
    fn is_plausible(len: usize) -> bool = megapage_inside::is_plausible(len);
    /// Returns true if `len` bytes of addresses can be reserved.
    fn has_addresses(len: usize) -> bool = megapage_inside::has_addresses(len);
    /// Returns true if the kernel has transparent huge pages for this process.
    fn thp_is_possible() -> bool = megapage_inside::thp_is_possible();
    /// Returns true if the kernel gives them only on advice.
    fn thp_only_on_advice() -> bool = megapage_inside::thp_only_on_advice();
    /// Returns the mapping of the 2 MiB at `start`.
    fn region(start: usize) -> Option<OwnRegion> = OwnRegion::look(start);
    /// Returns the pages of a pool that are free and not reserved.
    fn hugetlb_available(size: PageSize) -> Option<u64> = megapage_inside::hugetlb_available(size);
    /// Returns the room that control groups leave in a pool.
    fn hugetlb_room(size: PageSize) -> HugetlbRoom = megapage_inside::hugetlb_room(size);
    /// Returns the free pages of a pool by node.
    fn hugetlb_free_by_node(size: PageSize) -> Option<FreeByNode> = megapage_inside::hugetlb_free_by_node(size);
}

/// The kernel that runs the process.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Prim for Kernel {}
