//! Memory of this process with every page written, on pages of a chosen kind: the input of fork(2).
//!
//! File-level obligation: every address that is written lies in the mapping that the value owns. It
//! stays mapped until the value is dropped, and no reference to it is ever made.

#![allow(unsafe_code)]

use megapage_units::{BASE_PAGE, HUGE_2M, VirtRange};
use std::io;
use std::ptr;
use std::time::Instant;

/// Kind of pages of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapPages {
    /// Base pages (MADV_NOHUGEPAGE).
    Base,
    /// 2 MiB transparent huge pages (MADV_HUGEPAGE, MADV_COLLAPSE), as far as the kernel has them.
    Thp,
    /// 2 MiB pages of the pool, private: both processes have separate pages once one has written.
    HugetlbPrivate,
    /// 2 MiB pages of the pool, shared: each process sees the writes of the other.
    HugetlbShared,
    /// Base pages that a child does not get (MADV_DONTFORK): it must not touch them.
    BaseDontFork,
}

impl HeapPages {
    /// Returns true if the pages come from the pool of 2 MiB pages.
    pub const fn is_hugetlb(self) -> bool {
        matches!(self, HeapPages::HugetlbPrivate | HeapPages::HugetlbShared)
    }
}

/// A prime near 2^32 divided by the golden ratio: its multiples visit every page once, each far
/// from the last.
const SCATTER: usize = 2_654_435_761;

/// The memory.
#[derive(Debug)]
pub struct TouchedHeap {
    mapping: *mut u8,
    mapped: usize,
    start: *mut u8,
    bytes: usize,
}

impl TouchedHeap {
    /// Maps `bytes`, rounded up to 2 MiB, and writes to every base page. ENOMEM: the pool has too
    /// few pages left, or a control group's limit is in the way (then also EFAULT).
    pub fn map(bytes: usize, pages: HeapPages) -> io::Result<TouchedHeap> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_2M);
        // The kernel aligns hugetlb mappings itself, and a page more would have to be in the pool.
        let mapped = if pages.is_hugetlb() { bytes } else { bytes + HUGE_2M };
        let kind = match pages {
            HeapPages::HugetlbPrivate => libc::MAP_PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
            HeapPages::HugetlbShared => libc::MAP_SHARED | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
            _ => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                kind | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping: *mut u8 = mapping.cast();
        let start = mapping.map_addr(|address| address.next_multiple_of(HUGE_2M));
        let heap = TouchedHeap { mapping, mapped, start, bytes };
        match pages {
            // A kernel without transparent huge pages refuses either: then all is on base pages.
            HeapPages::Base => drop(heap.advise(libc::MADV_NOHUGEPAGE)),
            HeapPages::Thp => drop(heap.advise(libc::MADV_HUGEPAGE)),
            HeapPages::BaseDontFork => {
                let _ = heap.advise(libc::MADV_NOHUGEPAGE);
                heap.advise(libc::MADV_DONTFORK)?;
            }
            // A touch that cannot be served would be SIGBUS: so it is asked for first.
            HeapPages::HugetlbPrivate | HeapPages::HugetlbShared => heap.advise(libc::MADV_POPULATE_WRITE)?,
        }
        (0..bytes / BASE_PAGE).for_each(|page| heap.write_page(page, page as u64 + 1));
        if pages == HeapPages::Thp {
            // Huge parts stay huge; if it fails, the others stay on base pages.
            let _ = heap.advise(libc::MADV_COLLAPSE);
        }
        Ok(heap)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is our own mapping, and none of the advices used takes anything out of
        // it.
        match unsafe { libc::madvise(self.start.cast(), self.bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn write_page(&self, page: usize, word: u64) {
        assert!(page < self.bytes / BASE_PAGE);
        // SAFETY: the page lies in the mapping, which is writable and to which there is no
        // reference.
        unsafe { self.start.add(page * BASE_PAGE).cast::<u64>().write_volatile(word) };
    }

    /// Returns the addresses.
    pub fn range(&self) -> VirtRange {
        let start = self.start as u64;
        VirtRange::new(start, start + self.bytes as u64).expect("a mapping is a range")
    }

    /// Writes one word to each of `count` base pages within the first `within` bytes, in scattered
    /// order and to none twice. It writes at most to each page that there is. It times each write:
    /// nanoseconds on the wall.
    ///
    /// Private pages of the pool that a child shares need as many free pages again: without them
    /// the kernel takes them from the child.
    pub fn write(&self, within: usize, count: usize) -> Vec<u64> {
        let pages = within.clamp(BASE_PAGE, self.bytes) / BASE_PAGE;
        let mut times = vec![0; count.min(pages)];
        for (index, time) in times.iter_mut().enumerate() {
            // Before the clock is read: the prime divides no number of pages that fits into memory.
            let page = index.wrapping_mul(SCATTER) % pages;
            let start = Instant::now();
            self.write_page(page, index as u64);
            *time = start.elapsed().as_nanos() as u64;
        }
        times
    }
}

impl Drop for TouchedHeap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it exists.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::KernelRoot;
    use megapage_kernel::pagemap::Pagemap;
    use megapage_units::Pid;

    #[test]
    fn every_page_is_there_and_is_written_once() {
        for pages in [HeapPages::Base, HeapPages::Thp, HeapPages::BaseDontFork] {
            let heap = TouchedHeap::map(3 * HUGE_2M - 5, pages).unwrap();
            assert_eq!(heap.range().len().0, 3 * HUGE_2M as u64);
            assert_eq!(heap.range().start() % HUGE_2M as u64, 0);
            let own = Pid(std::process::id().cast_signed());
            let regions = Pagemap::open(&KernelRoot::live(), own).unwrap().regions(heap.range()).unwrap();
            assert_eq!(regions.iter().map(|region| u64::from(region.present)).sum::<u64>(), 3 * 512);
            assert_eq!(heap.write(usize::MAX, usize::MAX >> 8).len(), 3 * 512);
            assert_eq!(heap.write(0, 7).len(), 1);
            assert_eq!(heap.write(HUGE_2M, 100).len(), 100);
        }
    }

    #[test]
    fn scattered_pages_are_all_pages() {
        for pages in [1, 512, 1536, 32768, 1 << 21] {
            let mut seen = vec![false; pages];
            (0..pages).for_each(|index| seen[index.wrapping_mul(SCATTER) % pages] = true);
            assert!(seen.iter().all(|seen| *seen), "{pages}");
        }
    }
}
