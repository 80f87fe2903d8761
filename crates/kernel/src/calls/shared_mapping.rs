//! Files mapped one behind the other into a reserved range of addresses, shared with all processes
//! that map them.
//!
//! File-level obligation: the reserved range belongs to this value from its making to its drop,
//! which unmaps it. The only references ever formed into it are `&[AtomicU64]` bound to a borrow of
//! the value. They lie below `ready`, where the file has its pages (populated, or found there;
//! before Linux 5.14: allocated by the file) and the pages stay mapped. Other processes may write
//! to them at any time: all accesses are atomic. If another process truncates a file, an access
//! raises SIGBUS, which ends the process and breaks no reference.

#![allow(unsafe_code)]

use libc::c_void;
use megapage_inside::{Borrowed, Reservation};
use megapage_units::BASE_PAGE;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const WORD: usize = 8;
/// Unit of `st_blocks`, the same on every file system.
const STAT_BLOCK: u64 = 512;

/// Entries of the page tables that mapping a file fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Populate {
    /// All entries, with pages allocated that the file lacks: no access faults. The time grows with
    /// the length.
    All,
    /// No entry, if the file has all its pages. The first access to each page takes a minor page
    /// fault, which finds the page. Mapping takes the same time at any length. A file that lacks
    /// pages is treated as with [`Populate::All`], because a fault that finds no page may raise
    /// SIGBUS.
    Missing,
}

/// Function that maps a file, from an offset on, into its place.
type Place<'a> = dyn FnMut(&File, u64) -> io::Result<()> + 'a;

/// Mapping that grows at its end while it is in use, and never shrinks.
#[derive(Debug)]
pub struct SharedMapping {
    range: Reservation,
    /// Bytes from the start that may be accessed.
    ready: AtomicUsize,
    growing: Mutex<()>,
}

impl SharedMapping {
    /// Reserves `len` bytes of addresses, none accessible yet, at a multiple of `alignment`. If
    /// both are 1 GiB, processes that map the same files share page-table pages.
    pub fn reserve(len: usize, alignment: usize) -> io::Result<SharedMapping> {
        Ok(SharedMapping::of(Reservation::new(len, alignment)?))
    }

    /// Reserves `len` bytes from `address` on. EEXIST if this process has anything mapped there
    /// (MAP_FIXED_NOREPLACE).
    pub fn reserve_at(address: usize, len: usize) -> io::Result<SharedMapping> {
        if address == 0 || !address.is_multiple_of(megapage_units::BASE_PAGE) || len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(SharedMapping::of(Borrowed::new(address, len).reserve()?))
    }

    fn of(range: Reservation) -> SharedMapping {
        SharedMapping { range, ready: AtomicUsize::new(0), growing: Mutex::new(()) }
    }

    /// Returns the first address.
    pub fn address(&self) -> usize {
        self.range.start()
    }

    /// Returns the bytes of addresses reserved.
    pub fn reserved(&self) -> usize {
        self.range.len()
    }

    /// Returns the bytes that may be accessed.
    #[inline]
    pub fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// Maps `len` bytes of `file` from `from` on, behind the part that is mapped: see
    /// [`SharedMapping::append_pieces`].
    pub fn append(
        &self,
        file: &File,
        from: u64,
        len: usize,
        node: Option<u32>,
        populate: Populate,
    ) -> io::Result<()> {
        self.append_with(1, len, node, populate, |_, place| place(file, from))
    }

    /// Maps `count` files of `len` bytes each, one behind the other, behind the part that is
    /// mapped. Places their pages on node `node`, if one is given (mbind(2)). Allocates all their
    /// pages (MADV_POPULATE_WRITE), so that no access raises SIGBUS for lack of pages. Closes each
    /// file when it is mapped. `len` is a multiple of the files' page size. An error, which may be
    /// that of `open`, changes nothing. ENOMEM is a short pool, EFAULT or ENOMEM a control group's
    /// limit on hugetlb pages, EINVAL of mbind a missing node.
    pub fn append_pieces(
        &self,
        count: usize,
        len: usize,
        node: Option<u32>,
        populate: Populate,
        mut open: impl FnMut(usize) -> io::Result<File>,
    ) -> io::Result<()> {
        self.append_with(count, len, node, populate, |number, place| place(&open(number)?, 0))
    }

    /// Fills the page tables for all that may be accessed, so that no access faults. Takes about
    /// 0.3 ms for each GiB of 2 MiB pages. Contents stay.
    pub fn populate(&self) -> io::Result<()> {
        let ready = self.ready();
        if ready == 0 {
            return Ok(());
        }
        match self.range.part(0, ready).populate() {
            // The kernel is older than Linux 5.14: an access fills an entry as well.
            Err(megapage_inside::Errno::EINVAL) => {
                for offset in (0..ready as u64).step_by(BASE_PAGE) {
                    self.words(offset, 1).map(|words| words[0].load(Ordering::Relaxed));
                }
                Ok(())
            }
            done => Ok(done?),
        }
    }

    fn append_with(
        &self,
        count: usize,
        len: usize,
        node: Option<u32>,
        populate: Populate,
        mut give: impl FnMut(usize, &mut Place<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let _one = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = self.ready();
        let total = len.checked_mul(count).filter(|total| *total > 0 && len.is_multiple_of(WORD));
        let end = total.and_then(|total| at.checked_add(total)).filter(|end| *end <= self.range.len());
        let Some(end) = end else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut mapped = 0;
        let done = (0..count).try_for_each(|number| {
            let part = self.range.part(at + number * len, len);
            give(number, &mut |file, from| {
                // No reference leads into the part, because it lies after all ready bytes.
                part.map_file(file.as_fd(), from)?;
                mapped += len;
                bind(*part, node)?;
                match populate {
                    Populate::Missing if has_all_pages(file, from, len as u64)? => Ok(()),
                    _ => take_pages(*part, file, from),
                }
            })
        });
        match done {
            Ok(()) => self.ready.store(end, Ordering::Release),
            // The addresses stay reserved. If even that fails, the files stay mapped there: no
            // process accesses them.
            Err(_) if mapped > 0 => drop(self.range.part(at, mapped).close()),
            Err(_) => {}
        }
        done
    }

    /// Returns `count` words from byte `offset` on; `None` unless they are aligned and all may be
    /// accessed.
    #[inline]
    pub fn words(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(count.checked_mul(WORD)?)?;
        if !offset.is_multiple_of(WORD) || end > self.ready() {
            return None;
        }
        let start: *const AtomicU64 = ptr::with_exposed_provenance(self.range.start() + offset);
        // SAFETY: the words are mapped and their pages exist (below `ready`). They stay so while
        // `self` is borrowed, for unmapping takes the value. The start is aligned, and any bit
        // pattern is a valid word.
        Some(unsafe { std::slice::from_raw_parts(start, count) })
    }

    /// Returns the NUMA node of the page at `offset` (get_mempolicy(2)).
    pub fn node_of(&self, offset: u64) -> io::Result<u32> {
        let Some(words) = self.words(offset & !7, 1) else { return Err(io::ErrorKind::InvalidInput.into()) };
        const MPOL_F_NODE: usize = 1;
        const MPOL_F_ADDR: usize = 2;
        let mut node: libc::c_int = -1;
        // SAFETY: the node is writable; no mask is asked for; the address is looked up, not written
        // to.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                ptr::null::<c_void>(),
                0usize,
                words.as_ptr(),
                MPOL_F_NODE | MPOL_F_ADDR,
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        u32::try_from(node).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// Returns true if the file has every page of `len` bytes from `from` on, so that a page fault
/// finds it. Checks both the blocks of the whole file and the first hole. hugetlbfs reports no
/// holes, and other file systems count their own blocks with the file's.
fn has_all_pages(file: &File, from: u64, len: u64) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let Some(end) = from.checked_add(len).filter(|end| *end <= metadata.len()) else { return Ok(false) };
    if metadata.blocks().saturating_mul(STAT_BLOCK) < metadata.len() {
        return Ok(false);
    }
    Ok(seek(file, SeekFrom::Hole(from)).is_ok_and(|hole| hole >= end))
}

/// Makes every page of the part present and writable. Before Linux 5.14, which has no
/// MADV_POPULATE_WRITE, the file allocates the pages (fallocate(2), by the mapping's memory
/// policy), and a page fault finds them.
fn take_pages(part: Borrowed, file: &File, from: u64) -> io::Result<()> {
    let Err(refused) = part.populate() else { return Ok(()) };
    if refused != megapage_inside::Errno::EINVAL {
        return Err(refused.into());
    }
    let len = part.len() as u64;
    // fallocate(2) would make the file longer.
    if from.checked_add(len).is_none_or(|end| file.metadata().is_ok_and(|file| file.len() < end)) {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    match fallocate(file, FallocateFlags::empty(), from, len) {
        // Populating answers the same to a short pool.
        Err(Errno::NOSPC) => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        other => Ok(other?),
    }
}

/// Binds the part's pages to `node` alone.
fn bind(part: Borrowed, node: Option<u32>) -> io::Result<()> {
    const MPOL_BIND: usize = 2;
    const MOST_NODES: usize = 1024;
    let Some(node) = node.map(|node| node as usize) else { return Ok(()) };
    if node >= MOST_NODES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0u64; MOST_NODES / 64];
    mask[node / 64] |= 1 << (node % 64);
    // The kernel uses one bit less than it is given.
    // SAFETY: the mask is as long as is passed; a policy changes no contents.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            part.start(),
            part.len(),
            MPOL_BIND,
            mask.as_ptr(),
            MOST_NODES + 1,
            0usize,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::memory_file;
    use megapage_testing::{Call, PoolGuard, in_child, refuse};
    use megapage_units::{HUGE_2M, PageSize};
    use std::sync::atomic::Ordering::Relaxed;

    const PART: usize = 1 << 20;

    fn file(parts: usize) -> File {
        let file = memory_file("shared-mapping", None).unwrap();
        file.set_len((parts * PART) as u64).unwrap();
        file
    }

    #[test]
    fn parts_follow_each_other_and_are_shared() {
        let file = file(3);
        let ours = SharedMapping::reserve(3 * PART, 1 << 21).unwrap();
        assert!(ours.words(0, 1).is_none(), "nothing is ready");
        ours.append(&file, PART as u64, PART, None, Populate::All).unwrap();
        ours.append(&file, 0, PART, Some(0), Populate::All).unwrap();
        assert_eq!(ours.ready(), 2 * PART);
        ours.words(PART as u64, 1).unwrap()[0].store(7, Relaxed);
        let theirs = SharedMapping::reserve(PART, 4096).unwrap();
        theirs.append(&file, 0, PART, None, Populate::All).unwrap();
        assert_eq!(theirs.words(0, 1).unwrap()[0].load(Relaxed), 7);
        assert_eq!(ours.node_of(PART as u64).unwrap(), 0);
    }

    #[test]
    fn words_outside_are_refused() {
        let mapping = SharedMapping::reserve(2 * PART, 4096).unwrap();
        mapping.append(&file(1), 0, PART, None, Populate::All).unwrap();
        assert_eq!(mapping.words(0, PART / 8).unwrap().len(), PART / 8);
        assert!(mapping.words(0, PART / 8 + 1).is_none());
        assert!(mapping.words(4, 1).is_none());
        assert!(mapping.words(PART as u64, 1).is_none());
        assert!(mapping.words(u64::MAX - 7, 1).is_none());
        assert!(mapping.words(8, usize::MAX).is_none());
        assert!(mapping.append(&file(1), 0, 2 * PART, None, Populate::All).is_err(), "more than is reserved");
    }

    #[test]
    fn a_failed_step_changes_nothing() {
        let file = file(1);
        let mapping = SharedMapping::reserve(4 * PART, 4096).unwrap();
        mapping.append(&file, 0, PART, None, Populate::All).unwrap();
        // The range ends beyond the file's end: the kernel answers with an error when it populates,
        // and no process dies.
        assert!(mapping.append(&file, 0, 2 * PART, None, Populate::All).is_err());
        assert!(mapping.append(&file, 0, PART, Some(1000), Populate::All).is_err(), "no such node");
        assert_eq!(mapping.ready(), PART);
        let pieces =
            |number: usize| if number < 2 { file.try_clone() } else { Err(io::ErrorKind::Other.into()) };
        assert!(mapping.append_pieces(3, PART, None, Populate::All, pieces).is_err());
        assert_eq!(mapping.ready(), PART);
        mapping.append_pieces(2, PART, None, Populate::All, pieces).unwrap();
        assert_eq!(mapping.ready(), 3 * PART);
    }

    /// Returns the bytes of the mapping that the page tables have entries for.
    fn resident(mapping: &SharedMapping) -> u64 {
        let all = crate::smaps::read_own_smaps(&crate::KernelRoot::live()).unwrap();
        let (from, to) = (mapping.address(), mapping.address() + mapping.ready());
        let ours = all.iter().filter(|one| one.range.start() >= from as u64 && one.range.end() <= to as u64);
        ours.map(|one| one.rss.0 + one.hugetlb.0).sum()
    }

    #[test]
    fn a_file_that_has_its_pages_is_mapped_without_a_fault() {
        let file = file(4);
        let first = SharedMapping::reserve(4 * PART, HUGE_2M).unwrap();
        first.append(&file, 0, 4 * PART, None, Populate::All).unwrap();
        assert_eq!(resident(&first), 4 * PART as u64);
        first.words(3 * PART as u64, 1).unwrap()[0].store(7, Relaxed);
        let second = SharedMapping::reserve(4 * PART, HUGE_2M).unwrap();
        second.append(&file, 0, 4 * PART, None, Populate::Missing).unwrap();
        assert_eq!(resident(&second), 0, "no entry is filled");
        assert_eq!(second.words(3 * PART as u64, 1).unwrap()[0].load(Relaxed), 7);
        assert!((1..4 * PART as u64).contains(&resident(&second)));
        second.populate().unwrap();
        assert_eq!(resident(&second), 4 * PART as u64);
        in_child("calls::shared_mapping::tests::a_file_that_has_its_pages_is_mapped_without_a_fault", || {
            refuse(Call::POPULATE, libc::EINVAL);
            let third = SharedMapping::reserve(4 * PART, HUGE_2M).unwrap();
            third.append(&file, 0, 4 * PART, None, Populate::Missing).unwrap();
            third.populate().unwrap();
            assert_eq!(resident(&third), 4 * PART as u64);
        });
    }

    #[test]
    fn what_a_file_lacks_is_taken_when_it_is_mapped() {
        let file = file(4);
        let mapping = SharedMapping::reserve(16 * PART, HUGE_2M).unwrap();
        assert!(!has_all_pages(&file, 0, 4 * PART as u64).unwrap(), "it is all hole");
        mapping.append(&file, 0, PART, None, Populate::Missing).unwrap();
        // The part that is there does not compensate for the one that is missing.
        mapping.append(&file, 0, 4 * PART, None, Populate::Missing).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * STAT_BLOCK, 4 * PART as u64);
        assert!(has_all_pages(&file, 0, 4 * PART as u64).unwrap());
        assert!(!has_all_pages(&file, 0, 4 * PART as u64 + 1).unwrap(), "beyond its end");
        // Beyond the end the file has no pages, whatever the caller chose.
        assert!(mapping.append(&file, 0, 5 * PART, None, Populate::Missing).is_err());
        // The file has as many blocks as bytes, and still a hole: some pages lie beyond its end.
        let sparse = memory_file("shared-mapping", None).unwrap();
        sparse.set_len(2 * PART as u64).unwrap();
        fallocate(&sparse, FallocateFlags::KEEP_SIZE, PART as u64, 2 * PART as u64).unwrap();
        assert_eq!(sparse.metadata().unwrap().blocks() * STAT_BLOCK, 2 * PART as u64);
        assert!(!has_all_pages(&sparse, 0, 2 * PART as u64).unwrap());
    }

    #[test]
    fn a_kernel_that_cannot_populate_has_the_file_take_its_pages() {
        in_child(
            "calls::shared_mapping::tests::a_kernel_that_cannot_populate_has_the_file_take_its_pages",
            || {
                refuse(Call::POPULATE, libc::EINVAL);
                let file = file(2);
                let mapping = SharedMapping::reserve(4 * PART, 4096).unwrap();
                mapping.append(&file, PART as u64, PART, Some(0), Populate::All).unwrap();
                assert_eq!(
                    file.metadata().unwrap().blocks() * 512,
                    PART as u64,
                    "the pages of that part are there"
                );
                mapping.words(0, 1).unwrap()[0].store(5, Relaxed);
                // The range goes beyond the file's end, which stays as it is.
                assert_eq!(
                    mapping
                        .append(&file, PART as u64, 2 * PART, None, Populate::All)
                        .unwrap_err()
                        .raw_os_error(),
                    Some(libc::EFAULT)
                );
                assert_eq!(file.metadata().unwrap().len(), 2 * PART as u64);
                assert_eq!(mapping.ready(), PART);
            },
        );
    }

    #[test]
    fn a_short_pool_is_reported_without_populating_too() {
        in_child("calls::shared_mapping::tests::a_short_pool_is_reported_without_populating_too", || {
            let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
            let free = pool.counts();
            refuse(Call::POPULATE, libc::EINVAL);
            let pages = |count: u64| {
                let file = memory_file("shared-mapping", Some(PageSize::HUGE_2M)).unwrap();
                file.set_len(count * HUGE_2M as u64).unwrap();
                file
            };
            let mapping = SharedMapping::reserve(64 << 30, HUGE_2M).unwrap();
            let one = pages(1);
            mapping.append(&one, 0, HUGE_2M, None, Populate::All).unwrap();
            assert_eq!(one.metadata().unwrap().blocks() * 512, HUGE_2M as u64, "taken");
            // More pages than the pool of any machine has that runs tests.
            let error = mapping.append(&pages(1 << 14), 0, HUGE_2M << 14, None, Populate::All).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
            drop((one, mapping));
            assert_eq!(pool.counts(), free);
        });
    }

    #[test]
    fn an_address_that_is_taken_is_refused() {
        let first = SharedMapping::reserve(PART, 4096).unwrap();
        let again = SharedMapping::reserve_at(first.address(), PART);
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(SharedMapping::reserve_at(0, PART).is_err());
        let address = first.address();
        drop(first);
        // Another thread may have taken it meanwhile.
        if let Ok(second) = SharedMapping::reserve_at(address, PART) {
            assert_eq!(second.address(), address);
        }
    }
}
