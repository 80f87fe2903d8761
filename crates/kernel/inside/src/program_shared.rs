//! Shared memory that a program asks for (shmget(2), shmat(2), shared mappings), made on its behalf
//! from inside the process. Nothing here allocates.
//!
//! As in [`crate::program_memory`], calls go to the kernel directly: the preloaded library provides
//! the C library's names.
//!
//! File-level obligation: addresses come from [`reserve`], which nothing else uses, and are given
//! up or mapped over whole. Only a segment that was made here and was never handed out is removed.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::program_memory;
use crate::range::{Borrowed, map_anywhere};
use crate::system::call;
use libc::c_int;
use megapage_units::{HUGE_2M, PageSize};
use std::mem::MaybeUninit;

/// `f_type` of a tmpfs, and of memory files.
const TMPFS: u64 = 0x0102_1994;
/// Lowest bit of the size of hugetlb pages, as a power of two, in flags of mmap(2), shmget(2) and
/// memfd_create(2).
const SIZE_SHIFT: u32 = 26;

/// Returns the page size that flags of mmap(2) or shmget(2) ask for with MAP_HUGETLB or
/// SHM_HUGETLB; `None` for the default one.
pub fn page_size_of(flags: c_int) -> Option<PageSize> {
    match flags as u32 >> SIZE_SHIFT {
        0 => None,
        power => PageSize::new(1u64.checked_shl(power)?),
    }
}

fn size_flags(page: PageSize) -> c_int {
    (page.bytes().0.trailing_zeros() << SIZE_SHIFT) as c_int
}

/// Calls shmget(2).
pub fn segment(key: i32, size: usize, flags: c_int) -> Result<c_int, Errno> {
    // SAFETY: shmget(2) takes no pointer.
    unsafe { call(libc::SYS_shmget, [key as usize, size, flags as usize]) }.map(|id| id as c_int)
}

/// Makes a segment on hugetlb pages of this size, every page reserved. Fails with EEXIST where
/// there is one of that key.
pub fn huge_segment(key: i32, size: usize, flags: c_int, page: PageSize) -> Result<c_int, Errno> {
    let exclusive = if key == libc::IPC_PRIVATE { 0 } else { libc::IPC_CREAT | libc::IPC_EXCL };
    let flags = (flags & !libc::SHM_NORESERVE) | exclusive | libc::SHM_HUGETLB | size_flags(page);
    segment(key, size, flags)
}

/// Removes a segment that [`huge_segment`] has made, and that was never handed out.
pub fn remove_segment(id: c_int) {
    // SAFETY: IPC_RMID follows no pointer.
    let _ = unsafe { call(libc::SYS_shmctl, [id as usize, libc::IPC_RMID as usize, 0]) };
}

/// Returns the size of a segment, as its maker has asked for it; `None` where there is none, or it
/// may not be read.
pub fn segment_size(id: c_int) -> Option<usize> {
    let mut state = MaybeUninit::<libc::shmid_ds>::uninit();
    let arguments = [id as usize, libc::IPC_STAT as usize, state.as_mut_ptr() as usize];
    // SAFETY: IPC_STAT fills the structure, which has the kernel's layout on 64-bit machines.
    unsafe { call(libc::SYS_shmctl, arguments) }.ok()?;
    // SAFETY: it was filled.
    Some(unsafe { state.assume_init() }.shm_segsz)
}

/// Attaches a segment at an address. Fails with EINVAL where something is mapped there.
pub fn attach_at(id: c_int, address: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: without SHM_REMAP the kernel maps over nothing.
    unsafe { call(libc::SYS_shmat, [id as usize, address, (flags & !libc::SHM_REMAP) as usize]) }
}

/// Detaches a segment that was attached at an address here, and was never handed out.
pub fn detach(address: usize) {
    // SAFETY: nothing uses it.
    let _ = unsafe { call(libc::SYS_shmdt, [address]) };
}

/// Attaches a segment for a moment and populates it: a shortage that a later fault would answer
/// with a signal is an error here.
pub fn populate_segment(id: c_int, size: usize) -> Result<(), Errno> {
    // SAFETY: at an address of the kernel's choice it overlaps nothing.
    let at = unsafe { call(libc::SYS_shmat, [id as usize, 0, 0]) }?;
    let done = populate(at, size);
    detach(at);
    done
}

/// Populates memory for writing (MADV_POPULATE_WRITE, Linux 5.14). Contents stay.
pub fn populate(start: usize, len: usize) -> Result<(), Errno> {
    Borrowed::new(start, len).populate()
}

/// Reserves `len` bytes (whole base pages) of addresses without access. The first is `past` bytes
/// beyond a multiple of `alignment` (a power of two; `past` is less, in whole base pages). Returns
/// the first address.
pub fn reserve(len: usize, alignment: usize, past: usize) -> Result<usize, Errno> {
    let all = len.checked_add(alignment).ok_or(Errno::ENOMEM)?;
    let found = map_anywhere(all, libc::PROT_NONE, libc::MAP_NORESERVE)?;
    Ok(found.trim(len, alignment, past).keep().start())
}

/// Gives up addresses of [`reserve`], on which nothing was mapped that was handed out.
pub fn give_up(start: usize, len: usize) {
    if len > 0 {
        program_memory::unmap(start, len);
    }
}

/// Maps over addresses of [`reserve`], as mmap(2) does with these arguments and MAP_FIXED. Where
/// that fails the addresses are given up. For want of memory (ENOMEM) they are not touched: the
/// kernel may have unmapped them by then, and others may have them.
pub fn map_over(
    start: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> Result<(), Errno> {
    let flags = flags | libc::MAP_FIXED;
    let arguments = [start, len, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the addresses are reserved, and nothing else uses them: see the header.
    let mapped = unsafe { call(libc::SYS_mmap, arguments) };
    mapped.map(drop).inspect_err(|errno| {
        if *errno != Errno::ENOMEM {
            give_up(start, len);
        }
    })
}

/// Maps `whole` bytes of shared anonymous memory on hugetlb pages of this size (a multiple of
/// `page`), every page reserved. Maps `behind` bytes (whole base pages) after them as usual.
/// Returns the first address.
pub fn map_huge(
    whole: usize,
    behind: usize,
    protection: c_int,
    flags: c_int,
    page: PageSize,
) -> Result<usize, Errno> {
    let huge = (flags & !libc::MAP_NORESERVE) | libc::MAP_HUGETLB | size_flags(page);
    let map = |at: usize, len: usize, flags: c_int| {
        // SAFETY: at an address of the kernel's choice, or where nothing is, it overlaps nothing.
        unsafe { call(libc::SYS_mmap, [at, len, protection as usize, flags as usize, usize::MAX, 0]) }
    };
    let start = map(0, whole, huge)?;
    if behind == 0 || map(start + whole, behind, flags | libc::MAP_FIXED_NOREPLACE) == Ok(start + whole) {
        return Ok(start);
    }
    // Something lies there: both are mapped where there is room for both.
    give_up(start, whole);
    let start = reserve(whole + behind, page.bytes().0 as usize, 0)?;
    map_over(start + whole, behind, protection, flags, -1, 0).inspect_err(|_| give_up(start, whole))?;
    let mapped = map_over(start, whole, protection, huge, -1, 0);
    mapped.inspect_err(|_| give_up(start + whole, behind))?;
    Ok(start)
}

/// Returns true if a descriptor is of a file that the kernel keeps in memory (tmpfs, memfd), on
/// base pages. Asks no file system: a server might never answer.
pub fn is_memory_file(fd: c_int) -> bool {
    // Only files in memory, those of hugetlbfs among them, have seals.
    // SAFETY: F_GET_SEALS takes no argument.
    if unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0]) }.is_err() {
        return false;
    }
    let mut state = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs(2) fills the structure.
    let done = unsafe { call(libc::SYS_fstatfs, [fd as usize, state.as_mut_ptr() as usize]) };
    // SAFETY: it was filled.
    done.is_ok() && unsafe { state.assume_init() }.f_type as u64 == TMPFS
}

/// The alignment of a huge page where the caller asks for no larger one.
pub const ALIGNMENT: usize = HUGE_2M;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedWords;
    use megapage_units::BASE_PAGE;
    use std::os::fd::AsRawFd;

    #[test]
    fn addresses_are_reserved_where_asked() {
        for (alignment, past) in
            [(HUGE_2M, 0), (HUGE_2M, BASE_PAGE), (HUGE_2M, HUGE_2M - BASE_PAGE), (1 << 30, 0)]
        {
            for len in [BASE_PAGE, 5 << 20] {
                let start = reserve(len, alignment, past).unwrap();
                assert_eq!(start % alignment, past);
                let rw = libc::PROT_READ | libc::PROT_WRITE;
                map_over(start, len, rw, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0).unwrap();
                assert!(populate(start, len).is_ok());
                give_up(start, len);
            }
        }
        assert_eq!(reserve(usize::MAX - BASE_PAGE, HUGE_2M, 0).unwrap_err(), Errno::ENOMEM);
    }

    #[test]
    fn a_mapping_on_pages_of_the_pool_keeps_its_length() {
        // Without a pool it is refused as a whole; with one both parts are side by side.
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        match map_huge(HUGE_2M, BASE_PAGE, rw, flags, PageSize::HUGE_2M) {
            Ok(start) => {
                assert!(start.is_multiple_of(HUGE_2M) && populate(start, HUGE_2M + BASE_PAGE).is_ok());
                give_up(start, HUGE_2M + BASE_PAGE);
            }
            Err(errno) => assert_eq!(errno, Errno::ENOMEM),
        }
    }

    #[test]
    fn segments_keep_the_size_that_was_asked_for() {
        let id = segment(libc::IPC_PRIVATE, 3 << 20 | 5, 0o600).unwrap();
        assert_eq!(segment_size(id), Some(3 << 20 | 5));
        let start = reserve(4 << 20, HUGE_2M, 0).unwrap();
        assert_eq!(attach_at(id, start, libc::SHM_REMAP).unwrap_err(), Errno::EINVAL, "something is there");
        give_up(start, 4 << 20);
        assert_eq!(attach_at(id, start, 0), Ok(start));
        detach(start);
        populate_segment(id, 3 << 20).unwrap();
        remove_segment(id);
        assert_eq!(segment_size(id), None);
    }

    #[test]
    fn files_in_memory_are_distinguished_from_others() {
        let (file, _) = SharedWords::create(c"test", 1).unwrap();
        assert!(is_memory_file(file.as_raw_fd()));
        assert!(!is_memory_file(std::fs::File::open("/proc/self/maps").unwrap().as_raw_fd()));
        assert!(!is_memory_file(-1));
    }

    #[test]
    fn page_sizes_are_read_from_flags() {
        assert_eq!(page_size_of(libc::MAP_HUGETLB), None);
        for page in [PageSize::HUGE_2M, PageSize::HUGE_1G] {
            assert_eq!(page_size_of(libc::MAP_HUGETLB | size_flags(page)), Some(page));
        }
        assert_eq!(size_flags(PageSize::HUGE_2M), libc::MAP_HUGE_2MB);
    }
}
