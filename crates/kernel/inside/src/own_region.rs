//! Mapping of one region of the calling process, read without allocating: for code that runs inside
//! malloc, or holds an allocator's locks.
//!
//! File-level obligation: the argument of the ioctl is initialised, and of the size that it states.
//! It points to a vector as long as it states that outlives the call. A function that closes
//! descriptors closes none of the program's: see there.

#![allow(unsafe_code)]

use crate::own_values::Descriptor;
use crate::pagemap_scan::{
    Entry, IS_HUGE, IS_PRESENT, IS_SWAPPED, IS_ZERO_PAGE, PAGEMAP_SCAN, Run, ScanArgument,
};
use crate::system::{call, own_pid, own_thread};
use megapage_units::{BASE_PAGE, HUGE_2M};

const PAGES: usize = HUGE_2M / BASE_PAGE;

/// Mapping of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRegion {
    /// Mapped by one entry of 2 MiB.
    Huge,
    /// Mapped by base pages.
    Base {
        /// Pages that are present, without the shared page of zeros.
        present: usize,
        /// Present pages that another process maps as well: since a fork(2), or because KSM has
        /// merged them.
        shared: usize,
    },
    /// Nothing is present or swapped out.
    Empty,
}

impl OwnRegion {
    /// Returns how the aligned 2 MiB from `start` on are mapped. `None` where the kernel does not
    /// report it (before Linux 6.7, or without /proc). Allocates nothing, and leaves errno as the
    /// calls do. Takes some 15 us on base pages.
    pub fn look(start: usize) -> Option<OwnRegion> {
        look_by(&Descriptor::open(c"/proc/self/pagemap").ok()?, start)
    }
}

/// Gives the calling thread a separate, empty table of descriptors. Descriptors that it opens and
/// closes from then on do not meet the numbers that the remainder of the process uses. The table
/// keeps none of the process's files open. Returns `false`, and changes nothing, where the kernel
/// refuses (before Linux 5.9, or by a filter of system calls). Does not allocate.
///
/// For a thread that keeps no descriptor; returns `false` for the main thread. The process's table,
/// its file locks, /proc/PID/fd and the descriptors that a child inherits stay as they are.
pub fn leave_descriptors() -> bool {
    // SAFETY: no memory is passed. The kernel copies the table where another thread uses it as
    // well, without the descriptors of the range. What is left of them in the copy it closes. The
    // main thread uses the table beside this one. Where all others have ended, no process is left
    // to use the descriptors.
    own_thread() as u32 != own_pid()
        && unsafe {
            call(libc::SYS_close_range, [0, libc::c_uint::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize])
        }
        .is_ok()
}

fn look_by(pagemap: &Descriptor, start: usize) -> Option<OwnRegion> {
    let mut runs = [Run::default(); PAGES];
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        start: start as u64,
        end: (start + HUGE_2M) as u64,
        vec: runs.as_mut_ptr().expose_provenance() as u64,
        vec_len: PAGES as u64,
        category_anyof_mask: IS_PRESENT | IS_SWAPPED,
        return_mask: IS_PRESENT | IS_SWAPPED | IS_ZERO_PAGE | IS_HUGE,
        ..ScanArgument::default()
    };
    // SAFETY: the argument states its own size, and a vector of as many runs as it states.
    let count = unsafe { pagemap.control(PAGEMAP_SCAN, (&raw mut argument) as usize) }.ok()?;
    let runs = &runs[..count.min(PAGES)];
    if runs.is_empty() {
        return Some(OwnRegion::Empty);
    }
    if runs.iter().any(|run| run.categories & IS_HUGE != 0) {
        return Some(OwnRegion::Huge);
    }
    let zero = |run: &&Run| run.categories & IS_ZERO_PAGE != 0;
    let zeros: usize = runs.iter().filter(zero).map(|run| (run.end - run.start) as usize / BASE_PAGE).sum();
    let mut words = [0u64; PAGES];
    if pagemap.read_words(&mut words, start / BASE_PAGE * size_of::<u64>()) != Ok(PAGES) {
        return None;
    }
    let count = |holds: fn(Entry) -> bool| words.iter().filter(|word| holds(Entry(**word))).count();
    let (present, shared) = (count(Entry::is_present), count(Entry::is_shared));
    Some(OwnRegion::Base { present: present.saturating_sub(zeros), shared: shared.saturating_sub(zeros) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reservation;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_thread_that_leaves_the_descriptors_takes_none_with_it_and_keeps_none_open() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let (tell, received) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let left = leave_descriptors();
            // SAFETY: no memory is passed.
            let open = (0..64).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count();
            let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
            let seen = OwnRegion::look(range.start()).is_some();
            range.release().unwrap();
            tell.send((left, open, seen)).unwrap();
            waits.recv().unwrap();
        });
        let (left, open, seen) = received.recv().unwrap();
        let seen_here = OwnRegion::look(0).is_some();
        if left {
            assert_eq!((open, seen), (0, seen_here));
        } else {
            megapage_testing::skip("needs CLOSE_RANGE_UNSHARE (Linux 5.9)");
        }
        // The process's own descriptors are still open.
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        // A closed descriptor is closed, while the thread lives.
        drop(near);
        assert_eq!(far.read(&mut byte).unwrap(), 0);
        go.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_region_shows_what_maps_it() {
        let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
        range.open().unwrap();
        assert_eq!(OwnRegion::look(range.start()), Some(OwnRegion::Empty));
        let page = range.part(0, BASE_PAGE);
        page.populate().unwrap();
        // With THP set to `always` it is huge at once.
        let found = OwnRegion::look(range.start()).unwrap();
        assert!(matches!(found, OwnRegion::Base { present: 1, shared: _ } | OwnRegion::Huge), "{found:?}");
        if range.advise_thp().is_ok() && range.collapse().is_ok() {
            assert_eq!(OwnRegion::look(range.start()), Some(OwnRegion::Huge));
        }
        range.release().unwrap();
    }
}
