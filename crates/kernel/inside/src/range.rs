//! Address ranges that a heap owns, and their backing. Nothing here allocates.
//!
//! File-level obligation: a [`Reservation`] is made by [`Reservation::new`], from a new mapping at
//! an address of the kernel's choice. It may also be made by [`Reservation::of_allocator`], from
//! what the C allocator was given and hands back. It alone releases addresses or hands them over.
//! An [`OwnedRange`] names a part of one; every operation stays inside. This crate's users never
//! form a Rust reference into a range (`forbid(unsafe_code)` keeps them from it). The addresses go
//! to a C allocator, which hands them to a program. Discarding a part of a range is therefore what
//! `free` is to a pointer: the allocator's decision, made when no block in it is live.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::program_memory::{self, system_madvise, system_mmap, system_mprotect, system_munmap};
use crate::system::call_for_program;
use libc::{c_int, c_void};
use megapage_units::PageSize;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Aligned places that are tried one below the other, at the cost of a system call each.
const GAPS: usize = 4;
/// Lowest place found that way: those above it are likely taken.
static LOWEST: AtomicUsize = AtomicUsize::new(0);

fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// A reserved range of this process's addresses. Plain data: copying it copies no memory. It can
/// change what is behind the addresses. It can neither release them nor move their memory
/// elsewhere: only their owner can, the [`Reservation`].
///
/// ```compile_fail,E0599
/// let owner = megapage_inside::Reservation::new(4096, 4096).unwrap();
/// let view = *owner;
/// view.release();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl OwnedRange {
    /// Reserves `len` bytes at a multiple of `alignment`, where `room` bytes (a multiple of `len`)
    /// are free. Where the kernel's own choice is not aligned, the next free multiples below it are
    /// tried. Only after these are more than `len` bytes asked for: a limit on addresses
    /// (RLIMIT_AS) may leave no more.
    fn reserve(len: usize, room: usize, alignment: usize) -> Result<OwnedRange, Errno> {
        assert!(alignment.is_power_of_two() && 0 < len && len <= room);
        let range = OwnedRange::map_anywhere(len)?;
        if range.start.is_multiple_of(alignment) && len == room {
            return Ok(range);
        }
        let below = range.end().saturating_sub(room) & !(alignment - 1);
        range.unmap();
        let lowest = LOWEST.load(Relaxed);
        for first in [below, lowest & !(alignment - 1)] {
            let starts = (0..GAPS).map_while(|gap| first.checked_sub(gap * alignment)).filter(|&it| it > 0);
            let gap = starts.map(|start| OwnedRange { start, len }).find(|gap| gap.reserve_with(room));
            if let Some(gap) = gap {
                if gap.start < lowest || lowest == 0 {
                    LOWEST.store(gap.start, Relaxed);
                }
                return Ok(gap);
            }
        }
        if len < room {
            return Err(Errno::ENOMEM);
        }
        let padded = len.checked_add(alignment).ok_or(Errno::ENOMEM)?;
        let whole = OwnedRange::map_anywhere(padded)?;
        let start = whole.start.next_multiple_of(alignment);
        for end in [(whole.start, start), (start + len, whole.end())] {
            if end.0 < end.1 {
                OwnedRange { start: end.0, len: end.1 - end.0 }.unmap();
            }
        }
        Ok(OwnedRange { start, len })
    }

    /// Reserves the range if nothing is mapped there, nor behind it up to `room` bytes; returns
    /// true if so.
    fn reserve_with(self, room: usize) -> bool {
        let is_free = |start| {
            let part = OwnedRange { start, len: self.len };
            part.reserve_hole() && {
                part.unmap();
                true
            }
        };
        if !self.reserve_hole() {
            return false;
        }
        let has_room = (self.end()..self.start.saturating_add(room)).step_by(self.len).all(is_free);
        if !has_room {
            self.unmap();
        }
        has_room
    }

    /// Reserves `len` bytes at an address of the kernel's choice.
    fn map_anywhere(len: usize) -> Result<OwnedRange, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { system_mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(OwnedRange { start: address as usize, len })
    }

    /// Unmaps a range that was mapped just now, and of which nothing else knows.
    fn unmap(self) {
        program_memory::unmap(self.start, self.len);
    }

    /// Returns a part of a range that the allocator above got from this heap and names by address
    /// and length, as C does. The allocator's contract (mimalloc's prim.h) is to name only what it
    /// was given.
    ///
    /// # Safety
    /// The range lies within a [`Reservation`], or a mapping that the caller made and that no other
    /// code uses. No Rust reference leads into it as long as it is used. Neither it nor a copy or
    /// part is used after its owner was released.
    pub const unsafe fn of_allocator(start: usize, len: usize) -> OwnedRange {
        OwnedRange { start, len }
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
    pub fn part(self, offset: usize, len: usize) -> OwnedRange {
        assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the range");
        OwnedRange { start: self.start + offset, len }
    }

    /// Returns the first address as C takes it.
    pub fn address(self) -> *mut c_void {
        self.start as *mut c_void
    }

    /// Makes the range readable and writable (mprotect(2)).
    pub fn open(self) -> Result<(), Errno> {
        // SAFETY: the range is owned; giving access takes nothing away.
        check(unsafe { system_mprotect(self.address(), self.len, libc::PROT_READ | libc::PROT_WRITE) })
    }

    /// Gives the range this access (mprotect(2)).
    pub fn protect(self, protection: c_int) -> Result<(), Errno> {
        // SAFETY: the range is owned (see the header), and no reference leads into it.
        check(unsafe { system_mprotect(self.address(), self.len, protection) })
    }

    /// Discards the memory behind the range and makes it inaccessible again, in one step that
    /// leaves the addresses reserved. Works for every backing, including hugetlb pages that are
    /// covered whole.
    pub fn close(self) -> Result<(), Errno> {
        self.map_over(libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    /// Replaces the range by private hugetlb pages of `size`, reserved in the pool but not yet
    /// touched. Both ends must be multiples of `size`. Fails with ENOMEM if the pool has too few
    /// unreserved pages. On an error the range is as it was, or inaccessible.
    ///
    /// The pages are mapped elsewhere and then moved. mmap with MAP_FIXED unmaps before it looks at
    /// the pool, and another thread's mapping could come to lie in the hole.
    /// [`OwnedRange::try_hugetlb`] shows if the kernel moves such pages at all: if not, this must
    /// not be called.
    pub fn map_hugetlb(self, size: PageSize) -> Result<(), Errno> {
        let bytes = size.bytes().0 as usize;
        assert!(
            self.start.is_multiple_of(bytes) && self.len.is_multiple_of(bytes),
            "not a multiple of the page size"
        );
        // MAP_HUGE_2MB and its like: the logarithm of the page size in bits 26 to 31.
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_HUGETLB
            | ((bytes.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            system_mmap(ptr::null_mut(), self.len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: the mapping was just made, and nothing else knows of it.
        let pages = unsafe { Reservation::of_allocator(address as usize, self.len) };
        pages.move_over(self).map_err(|refused| refused.errno)
    }

    /// Replaces the range by a file of hugetlb pages, whole and from its beginning. It is mapped
    /// shared: a private mapping would copy each page that is written to. Children of fork(2) do
    /// not get it (MADV_DONTFORK): they would write into the memory of their parent. Nothing is
    /// touched yet. The range is inaccessible before, and after an error.
    pub fn map_extent(self, extent: BorrowedFd<'_>) -> Result<(), Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the range is owned (see the header), so that replacing what is mapped there
        // affects no other memory.
        let address =
            unsafe { system_mmap(self.address(), self.len, protection, flags, extent.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            let error = Errno::last();
            // Another thread may have mapped something in a hole by then.
            self.reserve_hole();
            return Err(error);
        }
        // SAFETY: advice on what children get changes no contents.
        check(unsafe { system_madvise(self.address(), self.len, libc::MADV_DONTFORK) }).inspect_err(|_| {
            let _ = self.close();
        })
    }

    /// Gives the pages behind a shared mapping of a file back, including those that other processes
    /// map (MADV_REMOVE). A touch would take new ones: the range is to be closed, or mapped over,
    /// next.
    pub fn remove(self) -> Result<(), Errno> {
        // SAFETY: the range is owned (see the header): as `discard`.
        check(unsafe { system_madvise(self.address(), self.len, libc::MADV_REMOVE) })
    }

    pub(crate) fn map_over(self, protection: c_int, flags: c_int) -> Result<(), Errno> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range is owned (see the header), so that replacing what is mapped there
        // affects no other memory.
        let address = unsafe { system_mmap(self.address(), self.len, protection, flags, -1, 0) };
        if address != libc::MAP_FAILED {
            return Ok(());
        }
        let error = Errno::last();
        // It may have unmapped the range before it failed.
        if self.reserve_hole() { self.protect(protection) } else { Err(error) }
    }

    /// Faults the whole range in for writing, and so zeroes new pages (MADV_POPULATE_WRITE, Linux
    /// 5.14). Failing to do so is an error and no signal: EFAULT is a fault that would have been
    /// SIGBUS. Contents stay.
    pub fn populate(self) -> Result<(), Errno> {
        loop {
            // SAFETY: populating changes no contents.
            match check(unsafe { system_madvise(self.address(), self.len, libc::MADV_POPULATE_WRITE) }) {
                // A signal interrupts it; each call advances, so that the loop ends.
                Err(Errno(libc::EINTR)) => continue,
                other => return other,
            }
        }
    }

    /// Advises transparent huge pages for the range (MADV_HUGEPAGE). Fails with EINVAL where the
    /// kernel has none.
    pub fn advise_thp(self) -> Result<(), Errno> {
        // SAFETY: advice changes no contents.
        check(unsafe { system_madvise(self.address(), self.len, libc::MADV_HUGEPAGE) })
    }

    /// Collapses the range into transparent huge pages now (MADV_COLLAPSE, Linux 6.1). Contents
    /// stay.
    pub fn collapse(self) -> Result<(), Errno> {
        // SAFETY: collapsing changes no contents.
        check(unsafe { system_madvise(self.address(), self.len, libc::MADV_COLLAPSE) })
    }

    /// Unlocks the range (munlock(2)), unless the program confines itself.
    pub fn unlock(self) {
        if !program_memory::is_confined() {
            // SAFETY: unlocked memory keeps its contents and its protection.
            let _ = unsafe { call_for_program(libc::SYS_munlock, [self.start, self.len]) };
        }
    }

    /// Discards the contents of the range, which stays accessible and reads as zero
    /// (MADV_DONTNEED). Not for hugetlb: there, less than a whole page would stay as it is, with
    /// success returned.
    pub fn discard(self) -> Result<(), Errno> {
        // SAFETY: the range is owned (see the header).
        check(unsafe { system_madvise(self.address(), self.len, libc::MADV_DONTNEED) })
    }

    /// Discards the contents of the range as [`OwnedRange::discard`] does. Gives the memory back at
    /// once, even where the range is only a part of a transparent huge page.
    pub fn discard_part(self) -> Result<(), Errno> {
        program_memory::split_at_ends(self.start, self.len);
        self.discard()
    }

    /// Closes the range as [`OwnedRange::close`] does. Gives the memory back at once, even where it
    /// is only a part of a transparent huge page.
    pub fn close_part(self) -> Result<(), Errno> {
        program_memory::split_at_ends(self.start, self.len);
        self.close()
    }

    /// Copies another range of the same length; both are accessible and do not overlap.
    pub fn copy_from(self, source: OwnedRange) {
        assert_eq!(self.len, source.len);
        assert!(self.end() <= source.start || source.end() <= self.start);
        // SAFETY: both are mapped (their callers opened them or the program uses them). They are
        // equally long and disjoint, as checked.
        unsafe { ptr::copy_nonoverlapping(source.start as *const u8, self.start as *mut u8, self.len) };
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
pub struct Reservation {
    range: OwnedRange,
}

impl Reservation {
    /// Reserves `len` bytes, inaccessible and without commit charge, at a multiple of `alignment`.
    /// `len` is a multiple of the base page, and `alignment` is a power of two of at least a base
    /// page.
    pub fn new(len: usize, alignment: usize) -> Result<Reservation, Errno> {
        OwnedRange::reserve(len, len, alignment).map(|range| Reservation { range })
    }

    /// Reserves the first `first` bytes of `len` as [`Reservation::new`] does, and names all `len`.
    /// Each part of the others must be reserved by [`OwnedRange::reserve_hole`] before its use.
    /// They are free, and so are twice `len` bytes above them, which the kernel gives to other
    /// mappings first.
    pub fn beginning(len: usize, first: usize, alignment: usize) -> Result<(Reservation, OwnedRange), Errno> {
        let room = if first < len { len.saturating_mul(3) } else { len };
        let range = OwnedRange::reserve(first, room, alignment)?;
        Ok((Reservation { range }, OwnedRange { start: range.start, len }))
    }

    /// Takes back what [`Reservation::keep`] gave to the allocator above, by address and length; or
    /// takes a mapping that the caller has just made.
    ///
    /// # Safety
    /// All of it is mapped and has no other owner: it is handed back once. No Rust reference leads
    /// into it.
    pub const unsafe fn of_allocator(start: usize, len: usize) -> Reservation {
        Reservation { range: OwnedRange { start, len } }
    }

    /// Returns the range, which stays reserved with no owner until [`Reservation::of_allocator`],
    /// or until the process ends.
    pub const fn keep(self) -> OwnedRange {
        let range = self.range;
        std::mem::forget(self);
        range
    }

    /// Gives the addresses and all memory behind them back (munmap(2)), as dropping does; returns
    /// the kernel's error.
    pub fn release(self) -> Result<(), Errno> {
        let range = self.keep();
        // SAFETY: the range is owned (see the header), and its owner is gone with this call.
        check(unsafe { system_munmap(range.address(), range.len) })
    }

    /// Keeps the first `offset` bytes, and returns an owner of the others. Panics where either
    /// would be empty.
    pub fn split_off(&mut self, offset: usize) -> Reservation {
        assert!(offset > 0, "an empty reservation");
        let behind = self.range.part(offset, self.range.len.saturating_sub(offset));
        self.range.len = offset;
        Reservation { range: behind }
    }
}

/// No copy of the range may be used after the reservation was dropped.
impl std::ops::Deref for Reservation {
    type Target = OwnedRange;

    fn deref(&self) -> &OwnedRange {
        &self.range
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is owned (see the header). An error would mean that nothing is mapped
        // there, or that the kernel is out of memory for mappings; then it stays.
        unsafe { system_munmap(self.range.address(), self.range.len) };
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
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &former, ptr::null_mut()) };
    result
}

/// Returns true if the kernel would grant a new private mapping of `len` bytes. Its overcommit
/// policy (vm.overcommit_memory) refuses absurd sizes.
pub fn is_plausible(len: usize) -> bool {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; it goes at once.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = system_mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        address != libc::MAP_FAILED && system_munmap(address, len) == 0
    }
}

/// Returns true if `len` bytes of addresses can be reserved now: a limit (RLIMIT_AS) leaves as
/// many.
pub fn has_addresses(len: usize) -> bool {
    OwnedRange::map_anywhere(len).map(OwnedRange::unmap).is_ok()
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
    Ok(unsafe { std::slice::from_raw_parts(range.start as *const _, count) })
}

/// Releases words that [`allocate_words`] made. The caller must hold the last copy of the slice.
pub fn release_words(words: &'static [std::sync::atomic::AtomicU64]) {
    let len = std::mem::size_of_val(words).next_multiple_of(megapage_units::BASE_PAGE);
    // SAFETY: `allocate_words` made it and kept it for the slice. The caller holds the last copy of
    // the slice.
    drop(unsafe { Reservation::of_allocator(words.as_ptr() as usize, len) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::{BASE_PAGE, HUGE_2M};

    fn poke(range: OwnedRange, offset: usize, byte: u8) {
        assert!(offset < range.len());
        // SAFETY: in these tests the range is open and the offset inside.
        unsafe { *((range.start() + offset) as *mut u8) = byte }
    }

    fn peek(range: OwnedRange, offset: usize) -> u8 {
        assert!(offset < range.len());
        // SAFETY: as above.
        unsafe { *((range.start() + offset) as *const u8) }
    }

    #[test]
    fn a_reserved_range_is_aligned_and_can_be_used_and_discarded() {
        let range = Reservation::new(3 * HUGE_2M, HUGE_2M).unwrap();
        assert_eq!(range.start() % HUGE_2M, 0);
        let chunk = range.part(HUGE_2M, HUGE_2M);
        chunk.open().unwrap();
        chunk.populate().unwrap();
        poke(chunk, 5, 7);
        chunk.discard().unwrap();
        assert_eq!(peek(chunk, 5), 0);
        poke(chunk, HUGE_2M - 1, 9);
        chunk.move_to_thp().unwrap();
        assert_eq!(peek(chunk, HUGE_2M - 1), 9);
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
        let ways = [OwnedRange::discard_part, OwnedRange::close_part];
        for ((kept, start, end), give_back) in parts.into_iter().flat_map(|part| ways.map(|way| (part, way)))
        {
            let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
            let _ = range.advise_thp();
            range.open().unwrap();
            poke(*range, kept, 7);
            if is_part(range.start() + kept) != Some(true) {
                return megapage_testing::skip("needs transparent huge pages and /proc/kpageflags");
            }
            give_back(range.part(start, end - start)).unwrap();
            assert_eq!((peek(*range, kept), is_part(range.start() + kept)), (7, Some(false)));
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
        poke(*extent, 3, 4);
        poke(*extent, HUGE_2M, 5);
        // One page goes to another place, one becomes private memory.
        let target = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
        let second = extent.split_off(HUGE_2M);
        assert!(extent.move_over(*target).is_ok());
        assert_eq!(peek(*target, 3), 4);
        second.move_extent_to_thp().unwrap();
        assert_eq!(peek(*second, 0), 5);
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
                let whole = *front;
                let mut back = front.split_off(HUGE_2M);
                assert_eq!(
                    (front.len(), back.start(), back.len()),
                    (HUGE_2M, whole.start() + HUGE_2M, 2 * HUGE_2M)
                );
                let last = back.split_off(HUGE_2M);
                assert_eq!((last.end(), back.end()), (whole.end(), last.start()));
                let part = |place: usize| is_mapped(whole.part(place * HUGE_2M, HUGE_2M));
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
