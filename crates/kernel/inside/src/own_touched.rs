//! Samples how much of the calling process's own memory was ever written. Nothing here allocates.
//!
//! File-level obligation: the kernel writes to the buffers of a [`Sampler`] alone. The memory that is looked at is read by
//! process_vm_readv(2), which answers EFAULT where it cannot be read, so that no address has to be valid.

#![allow(unsafe_code)]

use crate::system::{call, is_filtered, own_pid};
use libc::iovec;
use megapage_units::{BASE_PAGE, HUGE_2M};

const PAGES: usize = HUGE_2M / BASE_PAGE;
/// One base page in this many is sampled.
const STEP: usize = 16;
/// Pages that one call reads.
const BATCH: usize = 4;

const ZEROS: [u8; BASE_PAGE] = [0; BASE_PAGE];

/// Pages of one region that were looked at, and how many of them hold more than zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Pages that were looked at; 0 where nothing of the region is present.
    pub sampled: usize,
    /// Those that are present and not all zero.
    pub touched: usize,
}

/// The buffers of a look, which are too large for the stack of a program's thread.
#[derive(Debug)]
pub struct Sampler {
    states: [u8; PAGES],
    bytes: [[u8; BASE_PAGE]; BATCH],
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler::new()
    }
}

impl Sampler {
    /// Empty buffers.
    pub const fn new() -> Sampler {
        Sampler { states: [0; PAGES], bytes: [[0; BASE_PAGE]; BATCH] }
    }

    /// Looks at some pages of the aligned 2 MiB at `start`. A page that is not present (mincore(2)) counts as untouched, and
    /// is not faulted in. `None` where the memory cannot be read, or the process makes its system calls through a filter,
    /// which may end it for one that it does not expect.
    pub fn look(&mut self, start: usize) -> Option<Touched> {
        if is_filtered() {
            return None;
        }
        let vector = self.states.as_mut_ptr() as usize;
        // SAFETY: the vector has a byte for each page asked for; the addresses themselves are only looked up.
        unsafe { call(libc::SYS_mincore, [start, HUGE_2M, vector]) }.ok()?;
        if self.states.iter().all(|state| state & 1 == 0) {
            return Some(Touched::default());
        }
        let mut found = Touched { sampled: PAGES / STEP, touched: 0 };
        let (mut batch, mut count) = ([0; BATCH], 0);
        for group in 0..PAGES / STEP {
            // Not the same page of each group: programs like powers of two.
            let page = group * STEP + group * 7 % STEP;
            if self.states[page] & 1 != 0 {
                batch[count] = start + page * BASE_PAGE;
                count += 1;
            }
            if count == BATCH {
                found.touched += self.count_written(&batch)?;
                count = 0;
            }
        }
        found.touched += self.count_written(&batch[..count])?;
        Some(found)
    }

    /// Counts those of these pages, at most [`BATCH`], that are not all zero.
    fn count_written(&mut self, pages: &[usize]) -> Option<usize> {
        let count = pages.len();
        if count == 0 {
            return Some(0);
        }
        let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut remote = [empty; BATCH];
        for (remote, page) in remote.iter_mut().zip(pages) {
            *remote = iovec { iov_base: *page as *mut libc::c_void, iov_len: BASE_PAGE };
        }
        let local = iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: count * BASE_PAGE };
        // SAFETY: the one local buffer is writable and of the given length; the kernel checks the remote addresses.
        let read = unsafe {
            let (local, remote) = ((&raw const local) as usize, remote.as_ptr() as usize);
            call(libc::SYS_process_vm_readv, [own_pid() as usize, local, 1, remote, count, 0])
        };
        if read != Ok(count * BASE_PAGE) {
            return None;
        }
        Some(self.bytes[..count].iter().filter(|bytes| **bytes != ZEROS).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program_memory::{advise_huge, map_aligned, unmap};

    fn write(address: usize) {
        // SAFETY: the test maps what it writes to.
        unsafe { *(address as *mut u8) = 1 };
    }

    #[test]
    fn written_pages_are_distinguished_from_those_of_zeros() {
        let start = map_aligned(HUGE_2M, true).unwrap();
        let mut sampler = Sampler::new();
        if is_filtered() {
            return megapage_testing::skip("needs no filter of system calls");
        }
        assert_eq!(sampler.look(start), Some(Touched::default()), "nothing is present");
        let _ = advise_huge(start, HUGE_2M);
        for page in (0..PAGES).step_by(4) {
            write(start + page * BASE_PAGE);
        }
        let found = sampler.look(start).unwrap();
        assert_eq!((found.sampled, found.touched), (PAGES / STEP, PAGES / STEP / 4));
        (0..PAGES).for_each(|page| write(start + page * BASE_PAGE + 77));
        let found = sampler.look(start).unwrap();
        assert_eq!(found.touched, found.sampled);
        // SAFETY: nothing else uses the mapping.
        unsafe { libc::mprotect(start as *mut libc::c_void, HUGE_2M, libc::PROT_NONE) };
        assert_eq!(sampler.look(start), None, "it cannot be read");
        unmap(start, HUGE_2M);
        assert_eq!(sampler.look(start), None, "it is gone");
    }
}
