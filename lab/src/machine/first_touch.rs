//! Memory of this process that is touched or cleared page by page; each page is timed.
//!
//! File-level obligation: every written address lies in the range that the value owns from its
//! creation to its drop. The range is mapped readable and writable, and no reference into it is
//! ever formed. Mapped files cannot shrink (they are extents).

#![allow(unsafe_code)]

use megapage_kernel::Reservation;
use megapage_units::{HUGE_1G, HUGE_2M, PageSize, VirtRange};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::Instant;

/// Way to clear a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Ordinary stores, as by memset(3).
    Plain,
    /// Stores that bypass the caches; the same as `Plain` on processors for which none are known
    /// here.
    NonTemporal,
}

/// Memory in pages of one size, none touched yet unless its files have them.
#[derive(Debug)]
pub struct FirstTouch {
    range: Reservation,
    page: usize,
}

impl FirstTouch {
    /// Maps anonymous memory that asks for transparent huge pages; `bytes` is a multiple of 2 MiB.
    pub fn transparent(bytes: usize) -> io::Result<FirstTouch> {
        let memory = FirstTouch::reserve(bytes, HUGE_2M)?;
        memory.range.open().and_then(|()| memory.range.advise_thp())?;
        Ok(memory)
    }

    /// Maps private hugetlb pages of `size`.
    pub fn hugetlb(bytes: usize, size: PageSize) -> io::Result<FirstTouch> {
        let memory = FirstTouch::reserve(bytes, size.bytes().0 as usize)?;
        memory.range.map_hugetlb(size)?;
        Ok(memory)
    }

    /// Maps extents of `each` bytes on pages of `size` shared, one behind the other, at a multiple
    /// of 1 GiB.
    pub fn extents(files: &[BorrowedFd<'_>], each: usize, size: PageSize) -> io::Result<FirstTouch> {
        let memory = FirstTouch::reserve_at(each * files.len(), size.bytes().0 as usize, HUGE_1G)?;
        for (number, file) in files.iter().enumerate() {
            let part = memory.range.part(number * each, each);
            part.map_extent(*file)?;
        }
        Ok(memory)
    }

    fn reserve(bytes: usize, page: usize) -> io::Result<FirstTouch> {
        FirstTouch::reserve_at(bytes, page, page)
    }

    fn reserve_at(bytes: usize, page: usize, alignment: usize) -> io::Result<FirstTouch> {
        if bytes == 0 || !bytes.is_multiple_of(page) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(FirstTouch { range: Reservation::new(bytes, alignment)?, page })
    }

    /// Returns the addresses.
    pub fn range(&self) -> VirtRange {
        let (start, end) = (self.range.start() as u64, self.range.end() as u64);
        VirtRange::new(start, end).expect("a mapping is a range")
    }

    /// Writes a word to each page, in order. Returns the nanoseconds that each took, including
    /// those of reading the clock (about 50). A page that is not available raises SIGBUS.
    pub fn touch(&self) -> Vec<u64> {
        self.each_page(|address| {
            // SAFETY: the first word of a page of ours, which is aligned.
            unsafe { ptr::write_volatile(address.cast::<u64>(), 1) };
        })
    }

    /// Clears each page, in order. Returns the nanoseconds that each took.
    pub fn clear(&self, how: Clearing) -> Vec<u64> {
        self.each_page(|address| self.clear_at(address, how))
    }

    /// Clears page `page`, counted modulo the number of pages.
    pub fn clear_page(&self, page: usize, how: Clearing) {
        let pages = (self.range.end() - self.range.start()) / self.page;
        let address = self.range.start() + page % pages * self.page;
        self.clear_at(ptr::with_exposed_provenance_mut(address), how);
    }

    fn clear_at(&self, address: *mut u8, how: Clearing) {
        match how {
            // SAFETY: a page of ours, of this length.
            Clearing::Plain => unsafe { ptr::write_bytes(address, 0, self.page) },
            // SAFETY: a page of ours, of this length, which is a multiple of 64.
            Clearing::NonTemporal => unsafe { clear_past_caches(address, self.page) },
        }
    }

    fn each_page(&self, work: impl Fn(*mut u8)) -> Vec<u64> {
        (self.range.start()..self.range.end())
            .step_by(self.page)
            .map(|address| {
                let start = Instant::now();
                work(ptr::with_exposed_provenance_mut(address));
                start.elapsed().as_nanos() as u64
            })
            .collect()
    }
}

/// # Safety
/// `bytes` from `address` on are writable; both are multiples of 64.
#[cfg(target_arch = "x86_64")]
unsafe fn clear_past_caches(address: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: SSE2 is part of x86-64; each store is aligned and lies within the bytes that the
    // caller promises.
    unsafe {
        let zero = _mm_setzero_si128();
        for at in (0..bytes).step_by(size_of::<__m128i>()) {
            _mm_stream_si128(address.add(at).cast(), zero);
        }
        _mm_sfence();
    }
}

/// # Safety
/// `bytes` from `address` on are writable.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn clear_past_caches(address: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::write_bytes(address, 0, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::extent;
    use megapage_testing::PoolGuard;
    use std::os::fd::AsFd;

    #[test]
    fn each_page_is_touched_once_and_cleared() {
        let memory = FirstTouch::transparent(3 * HUGE_2M).unwrap();
        assert_eq!(memory.touch().len(), 3);
        assert!(FirstTouch::transparent(5).is_err() && FirstTouch::transparent(0).is_err());
        let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
        assert_eq!(FirstTouch::hugetlb(2 * HUGE_2M, PageSize::HUGE_2M).unwrap().touch().len(), 2);
        let files = [(), ()].map(|()| extent::create(PageSize::HUGE_2M, 2).unwrap());
        // A missing page that is not available would end the whole program.
        for file in &files {
            (0..2).for_each(|page| extent::fill(file, PageSize::HUGE_2M, page).unwrap());
            extent::seal(file).unwrap();
        }
        for how in [Clearing::Plain, Clearing::NonTemporal] {
            let fds = [files[0].as_fd(), files[1].as_fd()];
            let memory = FirstTouch::extents(&fds, 2 * HUGE_2M, PageSize::HUGE_2M).unwrap();
            assert_eq!(memory.range().len().0, 4 * HUGE_2M as u64);
            assert_eq!(memory.touch().len(), 4);
            let at = |page: usize| memory.range.start() + page * HUGE_2M;
            let word = |page| {
                // SAFETY: the first word of a page of the mapping above.
                unsafe { ptr::read_volatile(ptr::with_exposed_provenance::<u64>(at(page))) }
            };
            assert!((0..4).all(|page| word(page) == 1));
            memory.clear(how);
            assert!((0..4).all(|page| word(page) == 0));
            memory.touch();
            memory.clear_page(6, how);
            assert_eq!([0, 1, 2, 3].map(word), [1, 1, 0, 1]);
        }
    }
}
