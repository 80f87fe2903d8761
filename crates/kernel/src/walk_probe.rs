//! Memory on which page walks can be timed: many pages, little data.
//!
//! File-level obligation: every address that is read lies in the mapping that the value owns; each part of it maps
//! the same memory file, which is as long as a part and stays so.

#![allow(unsafe_code)]

use megapage_units::{BASE_PAGE, HUGE_2M};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

/// One memory file on base pages, mapped many times over, side by side. To the TLB and to the page walker that is as
/// much memory as it looks; the data themselves are one part, which, when small, stays in the processor's caches, so
/// that what a read takes on top of a read of the first part is the walk. It costs one part of memory, and page
/// tables (2 MiB for each GiB).
#[derive(Debug)]
pub struct WalkProbe {
    file: File,
    base: *mut u8,
    /// Bytes in a part.
    part: usize,
    /// Parts that can be mapped, and that are.
    room: usize,
    parts: usize,
}

/// The way in which [`WalkProbe::read`] goes through the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkOrder {
    /// Any page next, and the address depends on what was read last.
    Dependent,
    /// The same, and any line of the page: of a large part the caches of one core hold little.
    Far,
    /// Any page next, at addresses known long before.
    Random,
    /// One page after the other, four lines of each.
    Sequential,
}

const LINE: u64 = 64;
/// Lines that a sequential read takes of each page.
const LINES_READ: u64 = 4;

impl WalkProbe {
    /// Reserves addresses for `room` parts of `regions` times 2 MiB, of which none is mapped yet.
    pub fn reserve(regions: usize, room: usize) -> io::Result<WalkProbe> {
        let part = regions * HUGE_2M;
        // SAFETY: the name is a C string; the call has no other memory argument.
        let fd = unsafe { libc::memfd_create(c"megapage-walks".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(part as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                room * part,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(WalkProbe { file, base: base.cast(), part, room, parts: 0 })
    }

    /// Maps parts until there are `parts` of them, at most as many as there is room for. About 0.1 ms for each 2 MiB.
    pub fn grow(&mut self, parts: usize) -> io::Result<()> {
        while self.parts < parts.min(self.room) {
            // SAFETY: the range lies in our own mapping, of which no reference exists.
            let mapped = unsafe {
                libc::mmap(
                    self.base.add(self.parts * self.part).cast(),
                    self.part,
                    libc::PROT_READ,
                    libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE,
                    self.file.as_raw_fd(),
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            self.parts += 1;
        }
        Ok(())
    }

    /// The bytes that are mapped.
    pub fn mapped(&self) -> u64 {
        (self.parts * self.part) as u64
    }

    /// Reads `count` pages among those mapped, in `order`, starting anywhere that `seed` says. Nothing where
    /// nothing is mapped.
    pub fn read(&self, order: WalkOrder, count: u64, seed: u64) {
        self.read_within(u64::MAX, order, count, seed);
    }

    /// The same among the first `most` pages.
    pub fn read_within(&self, most: u64, order: WalkOrder, count: u64, seed: u64) {
        let pages = (self.mapped() / BASE_PAGE as u64).min(most);
        if pages == 0 {
            return;
        }
        // Seeds that lie close together begin far apart.
        let (mut state, mut value) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, 0u64);
        for step in 0..count {
            // A multiplicative generator (Knuth): its upper bits choose page and line.
            let carried = if matches!(order, WalkOrder::Dependent | WalkOrder::Far) { value } else { 0 };
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407 + carried);
            let (page, lines) = match order {
                WalkOrder::Sequential => (seed.wrapping_add(step) % pages, LINES_READ),
                _ => (((state >> 32) * pages) >> 32, 1),
            };
            // One line of each page, so that the data of a small part stay in the nearest caches.
            let chosen = if order == WalkOrder::Far { state >> 20 } else { page };
            let line = chosen % (BASE_PAGE as u64 / LINE - LINES_READ);
            for next in 0..lines {
                let offset = page * BASE_PAGE as u64 + (line + next) * LINE;
                // SAFETY: page < pages, so that the word lies in a mapped part, which nobody writes; the file is all
                // zeros, so that `value` stays zero, which the compiler cannot know.
                value |= unsafe { ptr::read_volatile(self.base.add(offset as usize).cast::<u64>()) };
            }
        }
        std::hint::black_box(value);
    }
}

impl Drop for WalkProbe {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it exists.
        unsafe { libc::munmap(self.base.cast(), self.room * self.part) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_reads_within_what_is_mapped() {
        let mut probe = WalkProbe::reserve(1, 4).unwrap();
        probe.read(WalkOrder::Random, 10, 1);
        for parts in [1, 3, 9] {
            probe.grow(parts).unwrap();
            assert_eq!(probe.mapped(), (parts.min(4) * HUGE_2M) as u64);
            for order in [WalkOrder::Dependent, WalkOrder::Far, WalkOrder::Random, WalkOrder::Sequential] {
                probe.read(order, 5000, u64::MAX / 2);
                probe.read_within(7, order, 5000, 3);
            }
        }
        let mut large = WalkProbe::reserve(4, 1).unwrap();
        large.grow(1).unwrap();
        assert_eq!(large.mapped(), 4 * HUGE_2M as u64);
        large.read(WalkOrder::Dependent, 5000, 1);
    }
}
