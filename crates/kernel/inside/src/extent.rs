//! Extents: memory files on hugetlb pages (memfd_create(2)). The kernel has zeroed their pages
//! before any process maps them. Nothing here allocates, except [`create`].

use crate::memory_file::{huge_page_size_of, memory_file};
use megapage_units::PageSize;
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat};
use std::fs::File;
use std::io;

/// Name that the kernel shows for an extent, after `/memfd:`.
pub const NAME: &str = "megapage-extent";

/// Makes a new memory file of `pages` pages of `size`, none present yet. Takes nothing from the
/// pool.
pub fn create(size: PageSize, pages: u64) -> io::Result<File> {
    let file = memory_file(NAME, Some(size))?;
    file.set_len(size.bytes().0.checked_mul(pages).ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok(file)
}

/// Takes page `page` of the file from the pool and has the kernel clear it (fallocate(2)). This
/// takes about 0.2 ms for 2 MiB. Fails with ENOSPC or ENOMEM if the pool has no page that is not
/// reserved for others. A page that is present stays as it is.
///
/// The kernel chooses how it clears, and no flag changes that: hugetlbfs_fallocate() clears each
/// new page by folio_zero_user(). On x86-64 that is `rep stosb` or `rep stosq`, which are ordinary
/// stores. Stores past the caches would have to come on top of that: no way of the pool's pages to
/// a process leaves them uncleared. Only the rate is our choice.
pub fn fill(file: &File, size: PageSize, page: u64) -> io::Result<()> {
    let bytes = size.bytes().0;
    Ok(fallocate(file, FallocateFlags::empty(), page * bytes, bytes)?)
}

/// Forbids changes of the file's length, and of its seals (F_SEAL_SEAL): a seal against writing
/// would keep its pages from being released.
pub fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?)
}

/// Gives the pages of `[from, from + len)`, whole ones, back to the pool, also those that others
/// have mapped.
pub fn empty(file: impl AsFd, from: u64, len: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len)?)
}

/// Returns the bytes of the file that are present now.
pub fn present(file: impl AsFd) -> io::Result<u64> {
    Ok(fstat(file)?.st_blocks as u64 * 512)
}

/// Returns the length in bytes of a file that was received as an extent. `None` if it is no extent
/// of pages of this size. `None` also if it could shrink beneath a process that maps it: a touch
/// would then raise SIGBUS.
pub fn length(file: impl AsFd, size: PageSize) -> io::Result<Option<u64>> {
    if huge_page_size_of(&file)? != Some(size) || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
        return Ok(None);
    }
    Ok(u64::try_from(fstat(file)?.st_size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::PoolGuard;
    use megapage_units::HUGE_2M;

    const SIZE: PageSize = PageSize::HUGE_2M;

    #[test]
    fn pages_come_and_go() {
        // More than are used: pages that others have just freed may still be counted.
        let Some(_pool) = PoolGuard::reserve(SIZE, 16) else { return };
        let file = create(SIZE, 3).unwrap();
        assert_eq!(present(&file).unwrap(), 0);
        (0..3).for_each(|page| fill(&file, SIZE, page).unwrap());
        seal(&file).unwrap();
        assert_eq!(present(&file).unwrap(), 3 * SIZE.bytes().0);
        assert_eq!(length(&file, SIZE).unwrap(), Some(3 * SIZE.bytes().0));
        assert_eq!(length(&file, PageSize::HUGE_1G).unwrap(), None);
        assert!(file.set_len(SIZE.bytes().0).is_err() && file.set_len(9 * SIZE.bytes().0).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "the pages cannot be held");
        let mapping = crate::Reservation::new(3 * HUGE_2M, HUGE_2M).unwrap();
        mapping.map_extent(AsFd::as_fd(&file)).unwrap();
        mapping.populate().unwrap();
        let shown = megapage_kernel::smaps::read_own_smaps(&megapage_kernel::KernelRoot::live()).unwrap();
        let shown: Vec<_> = shown.iter().filter(|mapping| mapping.is_extent()).collect();
        assert!(shown.iter().any(|shown| shown.range.start() == mapping.start() as u64), "{shown:?}");
        assert!(shown.iter().all(|mapping| !mapping.is_heap_like()));
        mapping.release().unwrap();
        empty(&file, SIZE.bytes().0, SIZE.bytes().0).unwrap();
        assert_eq!(present(&file).unwrap(), 2 * SIZE.bytes().0);
    }

    #[test]
    fn other_files_are_no_extents() {
        let file = memory_file("other", None).unwrap();
        assert_eq!(length(&file, SIZE).unwrap(), None);
        assert!(length(tempfile::tempfile().unwrap(), SIZE).is_ok_and(|found| found.is_none()));
    }
}
