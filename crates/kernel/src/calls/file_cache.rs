//! A file's pages in memory (the page cache): drops them, reads them in as huge folios, and
//! inspects them through a mapping. Uses posix_fadvise(2), mmap(2), madvise(2), mincore(2).
//!
//! File-level obligation: a [`FileView`] maps a part of a file for reading, at addresses that the
//! kernel chose for it, and unmaps just that when dropped. No reference into it is formed and
//! nothing is read through it. So a file that is cut short meanwhile cannot raise SIGBUS: the calls
//! here answer EFAULT instead.

#![allow(unsafe_code)]

use crate::mapped::Mapped;
use crate::own_advice::{self, Advice};
use crate::{KernelError, KernelRoot, smaps};
use megapage_inside::Reservation;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, VirtRange};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

const HUGE: u64 = HUGE_2M as u64;

/// Writes the changes of `file` that are not yet on the disk (fsync(2)): the page cache keeps
/// changed pages.
pub fn write_back(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Drops the cached pages of `length` bytes of `file` from `offset` (POSIX_FADV_DONTNEED), both
/// multiples of the base page. Dirty pages, and pages that any process has mapped, stay without an
/// error.
pub fn drop_cached(file: &File, offset: u64, length: u64) -> io::Result<()> {
    // For the kernel a length of zero means up to the end of the file.
    let Some(length) = NonZeroU64::new(length) else { return Ok(()) };
    Ok(rustix::fs::fadvise(file, offset, Some(length), rustix::fs::Advice::DontNeed)?)
}

/// Returns the parts of `file` from `start` to `end` that hold data, in order: lseek(2) with
/// SEEK_DATA and SEEK_HOLE. A hole takes no storage. A file system that does not support holes
/// reports everything as data.
pub fn data_in(file: &File, start: u64, end: u64) -> impl Iterator<Item = io::Result<Range<u64>>> + '_ {
    let mut at = start;
    let mut failed = false;
    std::iter::from_fn(move || {
        if at >= end || failed {
            return None;
        }
        let found = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < end => {
                rustix::fs::seek(file, SeekFrom::Hole(data)).map(|hole| data..hole.min(end))
            }
            // No data is left before `end`.
            Ok(_) | Err(Errno::NXIO) => return None,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at..end),
            Err(error) => Err(error),
        };
        failed = found.is_err();
        found.iter().for_each(|data| at = data.end.max(at + 1));
        Some(found.map_err(io::Error::from))
    })
}

/// Fate of a hole in a file that is read through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Pages of zeros, which the kernel drops when memory is short.
    Cached,
    /// Permanent memory, which the file holds from then on (tmpfs; or overlayfs, which can lie on
    /// one).
    Filled,
    /// As `Filled`, and the file system reports holes as data (hugetlbfs, ramfs). It has no pages
    /// for huge folios either.
    Hidden,
}

/// Returns the fate of the holes of `file`, by the type of its file system (statfs(2)).
pub fn holes_of(file: &File) -> io::Result<Holes> {
    const TMPFS: u64 = 0x0102_1994;
    const OVERLAY: u64 = 0x794c_7630;
    const HUGETLBFS: u64 = 0x9584_58f6;
    const RAMFS: u64 = 0x8584_58f6;
    // The kernel's numbers have 32 bits; the field is signed, and wider on some machines.
    Ok(match rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff {
        TMPFS | OVERLAY => Holes::Filled,
        HUGETLBFS | RAMFS => Holes::Hidden,
        _ => Holes::Cached,
    })
}

/// Part of a file, mapped privately for reading. Its address is congruent to the offset modulo 2
/// MiB, as that of a program's segment can be.
#[derive(Debug)]
pub struct FileView {
    /// Reserved addresses: up to 2 MiB more than the view on either side.
    _reserved: Reservation,
    range: VirtRange,
}

impl FileView {
    /// Maps `length` bytes of `file` from `offset`, a multiple of the base page. Reads nothing.
    /// ENODEV: the file system cannot be mapped.
    pub fn map(file: &File, offset: u64, length: u64) -> io::Result<FileView> {
        assert!(offset.is_multiple_of(BASE_PAGE as u64) && length > 0);
        let size = length.checked_add(2 * HUGE).ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        let reserved = Reservation::new(size as usize, BASE_PAGE)?;
        let start = reserved.start() as u64;
        // Leaves at least one inaccessible page before the view, so that no two views become one
        // mapping.
        let address = (start + BASE_PAGE as u64).next_multiple_of(HUGE) + offset % HUGE;
        let range = VirtRange::new(address, address + length).expect("inside what was reserved");
        let view = FileView { _reserved: reserved, range };
        // SAFETY: address + length < start + size: start + 4 KiB rounded up is at most start + 2
        // MiB, and the offset adds less than 2 MiB. Only the range reserved above is replaced.
        let mapped = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(address as usize),
                length as usize,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            // Dropping the view releases the reservation.
            return Err(io::Error::last_os_error());
        }
        Ok(view)
    }

    /// Returns the addresses of the view.
    pub fn range(&self) -> VirtRange {
        self.range
    }

    /// Asks the kernel to use folios of 2 MiB for pages that it still has to read (MADV_HUGEPAGE).
    /// EINVAL: the kernel was built without transparent huge pages.
    pub fn want_huge(&self) -> io::Result<()> {
        self.advise(0, self.range.len().0, Advice::Huge)
    }

    /// Reads `length` bytes from `offset` within the view into memory, unless they are there, and
    /// maps them (MADV_POPULATE_READ, Linux 5.14). EFAULT: the file has become shorter. EIO: it
    /// could not be read.
    pub fn populate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.advise(offset, length, Advice::PopulateRead)
    }

    /// Asks the kernel to collapse `length` bytes from `offset` within the view into folios of 2
    /// MiB (MADV_COLLAPSE); both are multiples of 2 MiB. Only pages in memory count. Other
    /// processes that map them get the folios with their next access. EINVAL: not possible with
    /// this file system, or this kernel. EAGAIN: pages are in use for now, or changed.
    pub fn collapse(&self, offset: u64, length: u64) -> io::Result<()> {
        self.advise(offset, length, Advice::Collapse)
    }

    fn advise(&self, offset: u64, length: u64, advice: Advice) -> io::Result<()> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.range.len().0));
        let start = self.range.start() + offset;
        own_advice::give(VirtRange::new(start, start + length).ok_or(io::ErrorKind::InvalidInput)?, advice)
    }

    /// Returns for each base page if it is in memory (mincore(2)). The kernel answers only a caller
    /// that owns the file or may write to it. To others it reports every page as in memory.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.range.len().0.div_ceil(BASE_PAGE as u64) as usize];
        // SAFETY: the range is this view; the vector has a byte for each of its pages.
        let answer = unsafe {
            libc::mincore(
                ptr::without_provenance_mut(self.range.start() as usize),
                self.range.len().0 as usize,
                pages.as_mut_ptr(),
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
    }
}

/// Returns for each view the bytes that 2 MiB entries of this process's page table map, by smaps.
pub fn mapped_huge(root: &KernelRoot, views: &[FileView]) -> Result<Vec<Bytes>, KernelError> {
    let mappings = smaps::read_own_smaps(root)?;
    Ok(views
        .iter()
        .map(|view| {
            let inside = mappings.iter().filter(|m| view.range.intersection(m.range) == Some(m.range));
            inside.fold(Bytes::ZERO, |sum, mapping| sum + mapping.file_pmd + mapping.shmem_pmd)
        })
        .collect())
}

/// Returns the address that the kernel chooses for a mapping of `length` bytes from the start of
/// `file`. The dynamic loader asks for a library in the same way. Nothing stays mapped.
pub fn chosen_address(file: &File, length: u64) -> io::Result<u64> {
    let view = Mapped::file(file.as_fd(), length as usize, libc::PROT_READ, libc::MAP_PRIVATE)?;
    Ok(view.range().start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    fn file_of(bytes: usize) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        file
    }

    #[test]
    fn a_view_is_congruent_to_its_offset() {
        let file = file_of(3 << 20);
        for offset in [0, 0x1000, 0x1f_f000, 0x20_0000, 0x20_1000] {
            let view = FileView::map(file.as_file(), offset, 0x10_0000 - 0x1000).unwrap();
            assert_eq!(view.range().start() % HUGE, offset % HUGE, "offset {offset:#x}");
            assert_eq!(view.range().len(), Bytes(0x10_0000 - 0x1000));
            view.populate(0, 0x1000).unwrap();
        }
    }

    #[test]
    fn pages_are_seen_to_come_and_views_beyond_the_end_are_an_error() {
        let file = file_of(64 << 10);
        let view = FileView::map(file.as_file(), 0, 128 << 10).unwrap();
        // The kernel may release a page at any time, though hardly each time.
        let there = (0..20).any(|_| {
            view.populate(0, 64 << 10).unwrap();
            let resident = view.resident().unwrap();
            assert_eq!(resident.len(), 32);
            assert!(!resident[16..].iter().any(|&page| page), "beyond the end: {resident:?}");
            resident[..16].iter().all(|&page| page)
        });
        assert!(there);
        assert_eq!(view.populate(64 << 10, 0x1000).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn holes_are_no_data() {
        let parts =
            |file: &File, start, end| data_in(file, start, end).collect::<io::Result<Vec<_>>>().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 40).unwrap();
        assert_eq!(parts(&file, 0, 8 << 40), []);
        for at in [1 << 20, 5 << 40] {
            file.write_all_at(&[7; 1 << 16], at).unwrap();
        }
        let first = (1 << 20)..(1 << 20) + (1 << 16);
        assert_eq!(parts(&file, 0, 8 << 40), [first.clone(), (5 << 40)..(5 << 40) + (1 << 16)]);
        let inner = first.start + 4096..first.end - 4096;
        assert_eq!(parts(&file, inner.start, inner.end), std::slice::from_ref(&inner));
        assert_eq!(parts(&file, 8 << 40, 9 << 40), [], "behind its end");
    }

    #[test]
    fn holes_cost_memory_in_memory_file_systems() {
        let memory = crate::directory::memory_file("holes", None).unwrap();
        assert_eq!(holes_of(&memory).unwrap(), Holes::Filled);
        if let Ok(huge) = crate::directory::memory_file("holes", Some(megapage_units::PageSize::HUGE_2M)) {
            assert_eq!(holes_of(&huge).unwrap(), Holes::Hidden);
        }
    }

    #[test]
    fn a_dropped_view_is_unmapped() {
        let file = file_of(8 << 10);
        let view = FileView::map(file.as_file(), 0, 8 << 10).unwrap();
        let range = view.range();
        let root = KernelRoot::live();
        let name = file.path().to_str().unwrap().to_string();
        let holds = |range: VirtRange| {
            smaps::read_own_smaps(&root).unwrap().iter().any(|m| m.range == range && m.name == name)
        };
        assert!(holds(range));
        drop(view);
        assert!(!holds(range));
    }

    #[test]
    fn the_kernel_chooses_an_address_and_nothing_stays() {
        let file = file_of(8 << 10);
        let address = chosen_address(file.as_file(), 8 << 10).unwrap();
        assert!(address > 0 && address.is_multiple_of(BASE_PAGE as u64));
        let name = file.path().to_str().unwrap().to_string();
        assert!(smaps::read_own_smaps(&KernelRoot::live()).unwrap().iter().all(|m| m.name != name));
    }
}
