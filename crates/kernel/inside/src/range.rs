//! Address ranges that a heap owns, and their backing. Nothing here allocates.
//!
//! File-level obligation: memory has one owner, a [`Reservation`]. It is made from a new mapping at
//! an address of the kernel's choice, or from a range that the C allocator hands back. It alone
//! releases addresses or hands them over. An [`Owned`] is a part of one that nothing else uses
//! meanwhile. It borrows the reservation or the lock that guards the part ([`Guarded`]), or the C
//! allocator has named it. Only an `Owned` discards, replaces or closes memory. [`Borrowed`] is
//! addresses alone. Its calls change neither contents nor access, so that they may be made for any
//! memory of the process. This crate's users never form a Rust reference into a range
//! (`forbid(unsafe_code)` keeps them from it).
//!
//! Types do not express three rules. No [`Guarded`] is used after its reservation was released.
//! Each part of one has one lock: [`Guarded::own`] takes any. Parts of an [`Owned`] that are used
//! at once do not overlap.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::lock::Held;
use crate::program_memory::{self, advise};
use crate::system::{call, call_for_program};
use libc::{c_int, c_void};
use megapage_units::PageSize;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Aligned places that are tried one below the other, at the cost of a system call each.
const GAPS: usize = 4;
/// Lowest place found that way: those above it are likely taken.
static LOWEST: AtomicUsize = AtomicUsize::new(0);

/// Flags of private memory without a file.
pub(crate) const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Addresses of this process, with or without an owner. Its calls change neither contents nor
/// access.
///
/// ```compile_fail,E0599
/// let owner = megapage_inside::Reservation::new(4096, 4096).unwrap();
/// let addresses = owner.view();
/// addresses.discard();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrowed {
    start: usize,
    len: usize,
}

impl Borrowed {
    /// Makes a value for `len` bytes from `start` on.
    pub const fn new(start: usize, len: usize) -> Borrowed {
        Borrowed { start, len }
    }

    /// Returns the first address.
    pub const fn start(self) -> usize {
        self.start
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if the range is empty; a reserved one never is.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the first address after the range.
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Returns `len` bytes at `offset` as a separate range. Panics where that is not inside this
    /// range.
    pub fn part(self, offset: usize, len: usize) -> Borrowed {
        assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the range");
        Borrowed { start: self.start + offset, len }
    }

    /// Returns the first address as C takes it.
    pub fn address(self) -> *mut c_void {
        self.start as *mut c_void
    }

    /// Faults the whole range in for writing, and so zeroes new pages (MADV_POPULATE_WRITE, Linux
    /// 5.14). Failing to do so is an error and no signal: EFAULT is a fault that would have been
    /// SIGBUS. Contents stay.
    pub fn populate(self) -> Result<(), Errno> {
        self.fault_in(libc::MADV_POPULATE_WRITE)
    }

    /// Faults the whole range in for reading as [`Borrowed::populate`] does (MADV_POPULATE_READ).
    pub fn read_in(self) -> Result<(), Errno> {
        self.fault_in(libc::MADV_POPULATE_READ)
    }

    fn fault_in(self, advice: c_int) -> Result<(), Errno> {
        loop {
            match advise(self.start, self.len, advice) {
                // A signal interrupts it; each call advances, so that the loop ends.
                Err(Errno(libc::EINTR)) => continue,
                other => return other,
            }
        }
    }

    /// Advises transparent huge pages for the range (MADV_HUGEPAGE). Fails with EINVAL where the
    /// kernel has none, or the mapping can have none. Fails with ENOMEM where some of it is not
    /// mapped.
    pub fn advise_thp(self) -> Result<(), Errno> {
        advise(self.start, self.len, libc::MADV_HUGEPAGE)
    }

    /// Advises base pages for the range (MADV_NOHUGEPAGE). Huge pages that are mapped already stay.
    /// Fails as [`Borrowed::advise_thp`] does.
    pub fn advise_no_thp(self) -> Result<(), Errno> {
        advise(self.start, self.len, libc::MADV_NOHUGEPAGE)
    }

    /// Excludes the range from children of fork(2) (MADV_DONTFORK). Fails with EINVAL or ENOMEM, as
    /// madvise(2) does.
    pub fn keep_from_children(self) -> Result<(), Errno> {
        advise(self.start, self.len, libc::MADV_DONTFORK)
    }

    /// Collapses the range into transparent huge pages now (MADV_COLLAPSE, Linux 6.1). Contents
    /// stay.
    pub fn collapse(self) -> Result<(), Errno> {
        advise(self.start, self.len, libc::MADV_COLLAPSE)
    }

    /// Unlocks the range (munlock(2)), unless the program confines itself.
    pub fn unlock(self) {
        if !program_memory::is_confined() {
            // SAFETY: unlocked memory keeps its contents and its protection.
            let _ = unsafe { call_for_program(libc::SYS_munlock, [self.start, self.len]) };
        }
    }

    /// Reserves the range as [`Borrowed::reserve`] does. The reserved range has no owner.
    pub fn reserve_hole(self) -> Result<(), Errno> {
        self.reserve().map(|range| {
            range.keep();
        })
    }

    /// Reserves the range, inaccessible, if nothing is mapped in it. Serves for addresses that may
    /// be free, such as those of a failed call that may have unmapped the whole range. Fails with
    /// EEXIST if something is mapped there.
    pub fn reserve(self) -> Result<Reservation, Errno> {
        let got = map_new(self, libc::PROT_NONE, libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE)?;
        // A kernel older than the flag (Linux 4.17) takes the address as a hint.
        if got.start == self.start { Ok(got) } else { Err(Errno::EEXIST) }
    }

    /// Reserves the range if nothing is mapped there, nor behind it up to `room` bytes.
    fn reserve_with(self, room: usize) -> Option<Reservation> {
        let range = self.reserve().ok()?;
        let mut behind = (self.end()..self.start.saturating_add(room)).step_by(self.len);
        behind.all(|start| Borrowed { start, ..self }.reserve().is_ok()).then_some(range)
    }
}

/// Maps private memory without a file (mmap(2)), at an address of the kernel's choice, or at
/// `wanted` if `flags` say so without replacing anything.
fn map_new(wanted: Borrowed, protection: c_int, flags: c_int) -> Result<Reservation, Errno> {
    assert_eq!(flags & libc::MAP_FIXED, 0);
    let flags = flags | ANONYMOUS;
    let arguments = [wanted.start, wanted.len, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: mmap(2): without MAP_FIXED a new mapping replaces nothing.
    let start = unsafe { call(libc::SYS_mmap, arguments) }?;
    Ok(Reservation::of_new(Borrowed { start, ..wanted }))
}

/// Maps `len` bytes of private memory without a file, at an address of the kernel's choice.
pub(crate) fn map_anywhere(len: usize, protection: c_int, flags: c_int) -> Result<Reservation, Errno> {
    map_new(Borrowed { start: 0, len }, protection, flags)
}

/// Returns the flags of mmap(2) for hugetlb pages of `size`.
pub(crate) fn hugetlb_flags(size: PageSize) -> c_int {
    // MAP_HUGE_2MB and its like: the logarithm of the page size in bits 26 to 31.
    libc::MAP_HUGETLB | ((size.bytes().0.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT)
}

/// Memory that nothing else uses during `'a`. The holder may discard its contents, replace it or
/// make it inaccessible. The value cannot be copied.
///
/// ```compile_fail,E0505
/// let owner = megapage_inside::Reservation::new(8192, 4096).unwrap();
/// let part = owner.part(0, 4096);
/// owner.release().unwrap();
/// part.close().unwrap();
/// ```
#[derive(Debug)]
pub struct Owned<'a> {
    range: Borrowed,
    while_owned: PhantomData<&'a ()>,
}

impl Owned<'_> {
    const fn of(range: Borrowed) -> Self {
        Owned { range, while_owned: PhantomData }
    }

    /// Returns a part of a range that the allocator above got from this heap and names by address
    /// and length, as C does. The allocator's contract (mimalloc's prim.h) is to name only what it
    /// was given.
    ///
    /// # Safety
    /// The range is mapped. Nothing else uses it, and no Rust reference leads into it, while the
    /// returned value lives (mimalloc's prim.h, from `_mi_prim_commit` on).
    pub const unsafe fn of_allocator(start: usize, len: usize) -> Self {
        Owned::of(Borrowed { start, len })
    }

    /// Returns the addresses.
    pub const fn view(&self) -> Borrowed {
        self.range
    }

    /// Returns `len` bytes at `offset` as a separate range. Panics where that is not inside this
    /// range.
    pub fn part(&self, offset: usize, len: usize) -> Owned<'_> {
        Owned::of(self.range.part(offset, len))
    }

    /// Makes the range readable and writable (mprotect(2)).
    pub fn open(&self) -> Result<(), Errno> {
        self.protect(READ_WRITE)
    }

    /// Gives the range this access (mprotect(2)).
    pub fn protect(&self, protection: c_int) -> Result<(), Errno> {
        // SAFETY: mprotect(2): the range is owned, and no reference leads into it.
        unsafe { call(libc::SYS_mprotect, [self.start, self.len, protection as usize]) }.map(drop)
    }

    /// Discards the memory behind the range and makes it inaccessible again, in one step that
    /// leaves the addresses reserved. Works for every backing, including hugetlb pages that are
    /// covered whole.
    pub fn close(&self) -> Result<(), Errno> {
        self.map_over(libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    /// Replaces the range by private hugetlb pages of `size`, reserved in the pool but not yet
    /// touched. Both ends must be multiples of `size`. Fails with ENOMEM if the pool has too few
    /// unreserved pages. On an error the range is as it was, or inaccessible.
    ///
    /// The pages are mapped elsewhere and then moved. mmap with MAP_FIXED unmaps before it looks at
    /// the pool, and another thread's mapping could come to lie in the hole. Callers must first
    /// check with [`try_hugetlb`] that the kernel moves such pages.
    ///
    /// [`try_hugetlb`]: crate::try_hugetlb
    pub fn map_hugetlb(&self, size: PageSize) -> Result<(), Errno> {
        let bytes = size.bytes().0 as usize;
        assert!(
            self.start.is_multiple_of(bytes) && self.len.is_multiple_of(bytes),
            "not a multiple of the page size"
        );
        let pages = map_anywhere(self.len, READ_WRITE, hugetlb_flags(size))?;
        pages.move_over(self).map_err(|refused| refused.errno)
    }

    /// Replaces the range by a file of hugetlb pages, whole and from its beginning. It is mapped
    /// shared: a private mapping would copy each page that is written to. Children of fork(2) do
    /// not get it (MADV_DONTFORK): they would write into the memory of their parent. Nothing is
    /// touched yet. The range is inaccessible before, and after an error.
    pub fn map_extent(&self, extent: BorrowedFd<'_>) -> Result<(), Errno> {
        self.map_file(extent, 0)?;
        self.advise(libc::MADV_DONTFORK).inspect_err(|_| {
            let _ = self.close();
        })
    }

    /// Replaces the range by `file` from `offset` on, mapped shared. On an error it is as it was,
    /// or inaccessible. If the pool is short, a kernel may have unmapped it first, and another
    /// thread's mapping may lie there already.
    pub fn map_file(&self, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        self.map_fixed(READ_WRITE, libc::MAP_SHARED, file.as_raw_fd() as usize, offset).inspect_err(|_| {
            let _ = self.reserve_hole();
        })
    }

    /// Gives the pages behind a shared mapping of a file back, including those that other processes
    /// map (MADV_REMOVE). A touch would take new ones: the range is to be closed, or mapped over,
    /// next.
    pub fn remove(&self) -> Result<(), Errno> {
        self.advise(libc::MADV_REMOVE)
    }

    /// Discards the contents of the range, which stays accessible and reads as zero
    /// (MADV_DONTNEED). Not for hugetlb: there, less than a whole page would stay as it is, with
    /// success returned.
    pub fn discard(&self) -> Result<(), Errno> {
        self.advise(libc::MADV_DONTNEED)
    }

    /// Discards the contents of the range as [`Owned::discard`] does. Gives the memory back at
    /// once, even where the range is only a part of a transparent huge page.
    pub fn discard_part(&self) -> Result<(), Errno> {
        program_memory::split_at_ends(self.start, self.len);
        self.discard()
    }

    /// Closes the range as [`Owned::close`] does. Gives the memory back at once, even where it is
    /// only a part of a transparent huge page.
    pub fn close_part(&self) -> Result<(), Errno> {
        program_memory::split_at_ends(self.start, self.len);
        self.close()
    }

    /// Copies another range of the same length into this one.
    ///
    /// # Safety
    /// This range is writable and `source` is readable. No other thread writes to either meanwhile:
    /// [`std::ptr::copy_nonoverlapping`].
    pub unsafe fn copy_from(&self, source: Borrowed) {
        assert_eq!(self.len, source.len);
        assert!(self.end() <= source.start || source.end() <= self.start);
        // SAFETY: the caller's promise. They are equally long and disjoint, as checked.
        unsafe { std::ptr::copy_nonoverlapping(source.start as *const u8, self.start as *mut u8, self.len) };
    }

    pub(crate) fn map_over(&self, protection: c_int, flags: c_int) -> Result<(), Errno> {
        self.map_fixed(protection, flags | ANONYMOUS, usize::MAX, 0).or_else(|errno| {
            // It may have unmapped the range before it failed.
            self.reserve_hole().map_err(|_| errno).and_then(|()| self.protect(protection))
        })
    }

    fn map_fixed(&self, protection: c_int, flags: c_int, fd: usize, offset: u64) -> Result<(), Errno> {
        let (protection, flags) = (protection as usize, (flags | libc::MAP_FIXED) as usize);
        let arguments = [self.start, self.len, protection, flags, fd, offset as usize];
        // SAFETY: mmap(2), MAP_FIXED: what it replaces is owned.
        unsafe { call(libc::SYS_mmap, arguments) }.map(drop)
    }

    fn advise(&self, advice: c_int) -> Result<(), Errno> {
        // SAFETY: madvise(2): what it discards is owned.
        unsafe { call(libc::SYS_madvise, [self.start, self.len, advice as usize]) }.map(drop)
    }
}

impl Deref for Owned<'_> {
    type Target = Borrowed;

    fn deref(&self) -> &Borrowed {
        &self.range
    }
}

/// Memory of a [`Reservation`] that threads share. The holder of the lock that guards a part owns
/// that part. The user decides which lock guards it.
#[derive(Clone, Copy, Debug)]
pub struct Guarded(Borrowed);

impl Guarded {
    /// Returns `len` bytes at `offset` while their lock is held. Panics where that is not inside
    /// this range.
    pub fn own<'a>(&self, _lock: &'a Held<'_>, offset: usize, len: usize) -> Owned<'a> {
        Owned::of(self.0.part(offset, len))
    }
}

impl Deref for Guarded {
    type Target = Borrowed;

    fn deref(&self) -> &Borrowed {
        &self.0
    }
}

/// Owner, the only one, of addresses that this process has reserved: they are released once, when
/// it is dropped.
///
/// ```
/// let mut owner = megapage_inside::Reservation::new(8192, 4096).unwrap();
/// let behind = owner.split_off(4096);
/// assert_eq!(owner.end(), behind.start());
/// owner.release().unwrap();
/// ```
///
/// ```compile_fail,E0382
/// let owner = megapage_inside::Reservation::new(4096, 4096).unwrap();
/// let other = owner;
/// owner.release().unwrap();
/// ```
#[derive(Debug)]
pub struct Reservation(Owned<'static>);

impl Reservation {
    /// Reserves `len` bytes, inaccessible and without commit charge, at a multiple of `alignment`.
    /// `len` is a multiple of the base page, and `alignment` is a power of two of at least a base
    /// page.
    pub fn new(len: usize, alignment: usize) -> Result<Reservation, Errno> {
        Reservation::reserve(len, len, alignment)
    }

    /// Reserves the first `first` bytes of `len` as [`Reservation::new`] does, and names all `len`,
    /// for threads that share them. Each part of the remainder must be reserved by
    /// [`Borrowed::reserve_hole`] before its use. The remainder is free. So are twice `len` bytes
    /// above it, which the kernel gives to other mappings first.
    pub fn beginning(len: usize, first: usize, alignment: usize) -> Result<(Reservation, Guarded), Errno> {
        let room = if first < len { len.saturating_mul(3) } else { len };
        let range = Reservation::reserve(first, room, alignment)?;
        let all = Guarded(Borrowed { start: range.start, len });
        Ok((range, all))
    }

    /// Reserves `len` bytes at a multiple of `alignment`, where `room` bytes (a multiple of `len`)
    /// are free. Where the kernel's own choice is not aligned, the next free multiples below it are
    /// tried. Only after these are more than `len` bytes asked for: a limit on addresses
    /// (RLIMIT_AS) may leave no more.
    fn reserve(len: usize, room: usize, alignment: usize) -> Result<Reservation, Errno> {
        assert!(alignment.is_power_of_two() && 0 < len && len <= room);
        let reserve = |len| map_anywhere(len, libc::PROT_NONE, libc::MAP_NORESERVE);
        let range = reserve(len)?;
        if range.start.is_multiple_of(alignment) && len == room {
            return Ok(range);
        }
        let below = range.end().saturating_sub(room) & !(alignment - 1);
        drop(range);
        let lowest = LOWEST.load(Relaxed);
        for first in [below, lowest & !(alignment - 1)] {
            let starts = (0..GAPS).map_while(|gap| first.checked_sub(gap * alignment)).filter(|&it| it > 0);
            let mut gaps = starts.map(|start| Borrowed { start, len });
            if let Some(range) = gaps.find_map(|gap| gap.reserve_with(room)) {
                if range.start < lowest || lowest == 0 {
                    LOWEST.store(range.start, Relaxed);
                }
                return Ok(range);
            }
        }
        if len < room {
            return Err(Errno::ENOMEM);
        }
        Ok(reserve(len.checked_add(alignment).ok_or(Errno::ENOMEM)?)?.trim(len, alignment, 0))
    }

    /// Keeps `len` bytes from the first address that is `past` bytes beyond a multiple of
    /// `alignment`, a power of two. Releases the other bytes.
    pub(crate) fn trim(mut self, len: usize, alignment: usize, past: usize) -> Reservation {
        let before = past.wrapping_sub(self.start) & (alignment - 1);
        let mut kept = if before > 0 { self.split_off(before) } else { self };
        if len < kept.len {
            drop(kept.split_off(len));
        }
        kept
    }

    const fn of_new(range: Borrowed) -> Reservation {
        Reservation(Owned::of(range))
    }

    /// Takes back what [`Reservation::keep`] gave to the allocator above, by address and length; or
    /// takes a mapping that the caller has just made.
    ///
    /// # Safety
    /// All of it is mapped and has no other owner: it is handed back once (munmap(2)). No Rust
    /// reference leads into it.
    pub const unsafe fn of_allocator(start: usize, len: usize) -> Reservation {
        Reservation::of_new(Borrowed { start, len })
    }

    /// Returns the range, which stays reserved until [`Reservation::of_allocator`], or until the
    /// process ends.
    pub const fn keep(self) -> Owned<'static> {
        let range = self.0.range;
        std::mem::forget(self);
        Owned::of(range)
    }

    /// Gives the addresses and all memory behind them back (munmap(2)), as dropping does; returns
    /// the kernel's error.
    pub fn release(self) -> Result<(), Errno> {
        let range = self.keep();
        // SAFETY: munmap(2): the range is owned, and its owner is gone with this call.
        unsafe { call(libc::SYS_munmap, [range.start, range.len]) }.map(drop)
    }

    /// Keeps the first `offset` bytes, and returns an owner of the others. Panics where either
    /// would be empty.
    pub fn split_off(&mut self, offset: usize) -> Reservation {
        assert!(offset > 0, "an empty reservation");
        let behind = self.view().part(offset, self.len.saturating_sub(offset));
        self.0.range.len = offset;
        Reservation::of_new(behind)
    }
}

impl Deref for Reservation {
    type Target = Owned<'static>;

    fn deref(&self) -> &Owned<'static> {
        &self.0
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // An error would mean that nothing is mapped there, or that the kernel is out of memory for
        // mappings; then it stays.
        let _ = Reservation::of_new(self.0.range).release();
    }
}

/// Runs `work` with every signal of the calling thread blocked.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: all-zero bytes are a valid signal set, and each call gets pointers to live ones.
    let former = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut former: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut former);
        former
    };
    let result = work();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &former, std::ptr::null_mut()) };
    result
}

/// Returns true if the kernel would grant a new private mapping of `len` bytes. Its overcommit
/// policy (vm.overcommit_memory) refuses absurd sizes.
pub fn is_plausible(len: usize) -> bool {
    map_anywhere(len, READ_WRITE, 0).is_ok()
}

/// Returns true if `len` bytes of addresses can be reserved now: a limit (RLIMIT_AS) leaves as
/// many.
pub fn has_addresses(len: usize) -> bool {
    map_anywhere(len, libc::PROT_NONE, libc::MAP_NORESERVE).is_ok()
}

/// Locks the memory of the process (mlockall(2)), what it maps from now on included, as `flags`
/// say.
pub fn lock_all_memory(flags: c_int) -> Result<(), Errno> {
    // SAFETY: the call takes a number; locked memory keeps its contents and its protection.
    unsafe { call_for_program(libc::SYS_mlockall, [flags as usize]) }.map(|_| ())
}

/// Allocates `count` zeroed words that live until the process ends or [`release_words`] is called
/// on them.
pub fn allocate_words(count: usize) -> Result<&'static [std::sync::atomic::AtomicU64], Errno> {
    let len = (8 * count).next_multiple_of(megapage_units::BASE_PAGE);
    let reservation = Reservation::new(len, megapage_units::BASE_PAGE)?;
    reservation.open()?;
    let range = reservation.keep();
    // SAFETY: the mapping is new, page-aligned, readable, writable, zero and at least `count` words
    // long; atomics allow shared mutation.
    Ok(unsafe { std::slice::from_raw_parts(range.start() as *const _, count) })
}

/// Releases words that [`allocate_words`] made. The caller must hold the last copy of the slice.
pub fn release_words(words: &'static [std::sync::atomic::AtomicU64]) {
    let len = std::mem::size_of_val(words).next_multiple_of(megapage_units::BASE_PAGE);
    // SAFETY: `allocate_words` made it and kept it for the slice. The caller holds the last copy of
    // the slice.
    drop(unsafe { Reservation::of_allocator(words.as_ptr() as usize, len) });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::moving::Alone;
    use megapage_units::{BASE_PAGE, HUGE_2M};

    pub(crate) fn poke(range: &Borrowed, offset: usize, byte: u8) {
        assert!(offset < range.len());
        // SAFETY: in these tests the range is open and the offset inside.
        unsafe { ((range.start() + offset) as *mut u8).write_volatile(byte) }
    }

    pub(crate) fn peek(range: &Borrowed, offset: usize) -> u8 {
        assert!(offset < range.len());
        // SAFETY: as above.
        unsafe { ((range.start() + offset) as *const u8).read_volatile() }
    }

    /// Returns the proof for ranges that no other thread of the tests knows.
    fn alone() -> Alone {
        (0..1000).find_map(|_| Alone::among(crate::thread_count().unwrap())).unwrap()
    }

    #[test]
    fn a_reserved_range_is_aligned_and_can_be_used_and_discarded() {
        let range = Reservation::new(3 * HUGE_2M, HUGE_2M).unwrap();
        assert_eq!(range.start() % HUGE_2M, 0);
        let chunk = range.part(HUGE_2M, HUGE_2M);
        chunk.open().unwrap();
        chunk.populate().unwrap();
        poke(&chunk, 5, 7);
        chunk.discard().unwrap();
        assert_eq!(peek(&chunk, 5), 0);
        poke(&chunk, HUGE_2M - 1, 9);
        chunk.move_to_thp(&alone()).unwrap();
        assert_eq!(peek(&chunk, HUGE_2M - 1), 9);
        chunk.close().unwrap();
        assert!(chunk.populate().is_err(), "inaccessible again");
        range.release().unwrap();
    }

    #[test]
    fn a_part_of_a_huge_page_goes_back_at_once() {
        use std::{fs::File, os::unix::fs::FileExt};
        let word = |path: &str, index: usize| {
            let mut bytes = [0; 8];
            File::open(path)?.read_exact_at(&mut bytes, index as u64 * 8)?;
            std::io::Result::Ok(u64::from_ne_bytes(bytes))
        };
        // Returns true if the page is a part of a larger one (compound, in /proc/kpageflags).
        let is_part = |address: usize| {
            let frame = word("/proc/self/pagemap", address / BASE_PAGE).unwrap() & ((1 << 55) - 1);
            word("/proc/kpageflags", frame as usize)
                .ok()
                .filter(|_| frame != 0)
                .map(|flags| flags & 3 << 15 != 0)
        };
        let last = HUGE_2M - BASE_PAGE;
        let parts = [(0, 0x10000, HUGE_2M), (last, 0, last), (0, 0x10000, 0x20000)];
        for ((kept, start, end), closes) in parts.into_iter().flat_map(|part| [(part, false), (part, true)]) {
            let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
            let _ = range.advise_thp();
            range.open().unwrap();
            poke(&range, kept, 7);
            if is_part(range.start() + kept) != Some(true) {
                return megapage_testing::skip("needs transparent huge pages and /proc/kpageflags");
            }
            let part = range.part(start, end - start);
            if closes { part.close_part() } else { part.discard_part() }.unwrap();
            assert_eq!((peek(&range, kept), is_part(range.start() + kept)), (7, Some(false)));
        }
    }

    // The limit is the whole process's.
    #[test]
    fn an_aligned_range_takes_no_more_addresses_than_it_is_long() {
        let name = "range::tests::an_aligned_range_takes_no_more_addresses_than_it_is_long";
        megapage_testing::in_child(name, || {
            const ALIGNMENT: usize = 256 << 20;
            const MORE: usize = 64 << 20;
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: usize = text.split(' ').next().unwrap().parse().unwrap();
            let limit = (pages * megapage_units::BASE_PAGE + MORE) as u64;
            // SAFETY: the structure is valid, and read only.
            let set = unsafe {
                libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: limit, rlim_max: limit })
            };
            assert_eq!(set, 0);
            assert!(has_addresses(MORE / 2) && !has_addresses(2 * MORE));
            // More ranges than places that are tried below the kernel's own choice.
            let ranges: Vec<_> =
                (0..3 * GAPS).map(|_| Reservation::new(2 * HUGE_2M, ALIGNMENT).unwrap()).collect();
            assert!(ranges.iter().all(|range| range.start().is_multiple_of(ALIGNMENT)));
            assert!(Reservation::new(MORE, ALIGNMENT).is_err(), "the limit stands");
        });
    }

    #[test]
    fn an_extent_is_mapped_moved_and_given_back() {
        let Some(_pool) = megapage_testing::PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
        let file = crate::extent::create(PageSize::HUGE_2M, 2).unwrap();
        (0..2).for_each(|page| crate::extent::fill(&file, PageSize::HUGE_2M, page).unwrap());
        crate::extent::seal(&file).unwrap();
        let mut extent = Reservation::new(2 * HUGE_2M, HUGE_2M).unwrap();
        extent.map_extent(rustix::fd::AsFd::as_fd(&file)).unwrap();
        extent.populate().unwrap();
        poke(&extent, 3, 4);
        poke(&extent, HUGE_2M, 5);
        // One page goes to another place, one becomes private memory.
        let target = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
        let second = extent.split_off(HUGE_2M);
        assert!(extent.move_over(&target).is_ok());
        assert_eq!(peek(&target, 3), 4);
        second.move_extent_to_thp(&alone()).unwrap();
        assert_eq!(peek(&second, 0), 5);
        assert_eq!(crate::extent::present(&file).unwrap(), HUGE_2M as u64, "its page went back");
        target.remove().unwrap();
        assert_eq!(crate::extent::present(&file).unwrap(), 0);
        target.release().unwrap();
        second.release().unwrap();
        let closed = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
        // A file that is open for reading alone cannot be mapped so.
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(closed.map_extent(rustix::fd::AsFd::as_fd(&read_only)).is_err());
        assert!(closed.populate().is_err(), "inaccessible");
        closed.release().unwrap();
    }

    #[test]
    #[should_panic(expected = "outside the range")]
    fn a_part_must_lie_inside() {
        Reservation::new(HUGE_2M, HUGE_2M).unwrap().part(HUGE_2M, 1);
    }

    // In a separate process: another test's mapping may come to lie in a hole at any time.
    #[test]
    fn each_part_of_a_reservation_is_given_back_once_by_its_owner() {
        megapage_testing::in_child(
            "range::tests::each_part_of_a_reservation_is_given_back_once_by_its_owner",
            || {
                use crate::moving::is_mapped;
                let mut front = Reservation::new(3 * HUGE_2M, HUGE_2M).unwrap();
                let whole = front.view();
                let mut back = front.split_off(HUGE_2M);
                assert_eq!(
                    (front.len(), back.start(), back.len()),
                    (HUGE_2M, whole.start() + HUGE_2M, 2 * HUGE_2M)
                );
                let last = back.split_off(HUGE_2M);
                assert_eq!((last.end(), back.end()), (whole.end(), last.start()));
                let part = |place: usize| is_mapped(&whole.part(place * HUGE_2M, HUGE_2M));
                drop(back);
                assert_eq!([part(0), part(1), part(2)], [true, false, true]);
                last.release().unwrap();
                let kept = front.keep();
                assert_eq!([part(0), part(1), part(2)], [true, false, false], "no owner keeps them");
                // SAFETY: it was kept just now, and has no other owner.
                let again = unsafe { Reservation::of_allocator(kept.start(), kept.len()) };
                drop(again);
                assert!(!part(0));
            },
        );
    }

    #[test]
    #[should_panic(expected = "outside the range")]
    fn nothing_is_split_off_behind_the_end() {
        Reservation::new(HUGE_2M, HUGE_2M).unwrap().split_off(HUGE_2M);
    }
}
