//! Calls for memory that a program maps by mmap(2), made on its behalf from inside the process.
//! Nothing here allocates.
//!
//! These go to the kernel directly, never by the C library's names: the preloaded library provides
//! some of those.
//!
//! File-level obligation: memory is mapped at addresses of the kernel's choice, so that it overlaps
//! nothing. Only what was mapped here, and was not handed out yet, is unmapped here. Every other
//! call changes no contents and no protection, so that it may be made for any memory of the
//! process.

#![allow(unsafe_code)]

use crate::errno::{Errno, set_errno};
use crate::own_values::Descriptor;
use crate::pagemap_scan::{Entry, IS_HUGE, IS_PRESENT, IS_ZERO_PAGE, PAGEMAP_SCAN, Run, ScanArgument};
use crate::range::map_anywhere;
use crate::system::{call, call_for_program};
pub use crate::system::{is_confined, program_confines};
use libc::{c_int, c_ulong, c_void};
use megapage_units::{BASE_PAGE, HUGE_2M};

/// Returns the answer of a system call as the C library gives it: -1, and errno, where it failed.
pub fn as_c(answer: Result<usize, Errno>) -> isize {
    answer.map_or_else(
        |errno| {
            set_errno(errno.0);
            -1
        },
        |value| value as isize,
    )
}

/// Maps as mmap(2) does, but not by the name under which the C library exports it. Returns
/// `MAP_FAILED`, and sets errno, as there.
///
/// # Safety
/// As for mmap(2): with MAP_FIXED nothing may be in use at the addresses.
pub unsafe fn system_mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let arguments =
        [address as usize, len, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_mmap, arguments) }) as *mut c_void
}

/// Unmaps as munmap(2) does; returns 0, or -1 and errno.
///
/// # Safety
/// As for munmap(2): nothing may be in use at the addresses.
pub unsafe fn system_munmap(address: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_munmap, [address as usize, len]) }) as c_int
}

/// Moves as mremap(2) does, with all of its arguments. Returns `MAP_FAILED`, and sets errno, as
/// there.
///
/// # Safety
/// As for mremap(2): nothing may be in use where the memory was, nor where it goes.
pub unsafe fn system_mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    wanted: *mut c_void,
) -> *mut c_void {
    let arguments = [old as usize, old_len, new_len, flags as usize, wanted as usize];
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_mremap, arguments) }) as *mut c_void
}

/// Protects as mprotect(2) does; returns 0, or -1 and errno.
///
/// # Safety
/// As for mprotect(2): nothing may rely on an access that is taken away.
pub unsafe fn system_mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_mprotect, [address as usize, len, protection as usize]) }) as c_int
}

/// Calls prctl(2) for the program, with all of its arguments; returns -1 and errno where it fails.
///
/// # Safety
/// As for prctl(2).
pub unsafe fn system_prctl(option: c_int, arguments: [c_ulong; 4]) -> c_int {
    let [second, third, fourth, fifth] = arguments.map(|argument| argument as usize);
    let arguments = [option as usize, second, third, fourth, fifth];
    // SAFETY: the caller's promise.
    as_c(unsafe { call_for_program(libc::SYS_prctl, arguments) }) as c_int
}

/// Switches transparent huge pages off for this process, except for advised memory and what is
/// collapsed on request. Returns true if the kernel can (Linux 6.18, PR_SET_THP_DISABLE with
/// PR_THP_DISABLE_EXCEPT_ADVISED).
pub fn disable_thp_except_advised() -> bool {
    const EXCEPT_ADVISED: c_ulong = 1 << 1;
    // SAFETY: this prctl takes no pointer; an older kernel refuses the flag.
    unsafe { system_prctl(libc::PR_SET_THP_DISABLE, [1, EXCEPT_ADVISED, 0, 0]) == 0 }
}

/// Maps `len` bytes (a multiple of the base page) of private anonymous memory, readable and
/// writable, at a multiple of 2 MiB. With `reserve` the mapping is without MAP_NORESERVE. Returns
/// the first address.
pub fn map_aligned(len: usize, reserve: bool) -> Result<usize, Errno> {
    let flags = if reserve { 0 } else { libc::MAP_NORESERVE };
    let map = |len| map_anywhere(len, libc::PROT_READ | libc::PROT_WRITE, flags);
    let mut range = map(len)?;
    // Since Linux 6.7 the kernel aligns by itself; before, a neighbour's border often does.
    if !range.start().is_multiple_of(HUGE_2M) {
        drop(range);
        let padded = len.checked_add(HUGE_2M - BASE_PAGE).ok_or(Errno::ENOMEM)?;
        range = map(padded)?.trim(len, HUGE_2M, 0);
    }
    Ok(range.keep().start())
}

/// Unmaps memory of [`map_aligned`] that was never handed out. Where the kernel cannot (too many
/// mappings), addresses are lost.
pub fn unmap(start: usize, len: usize) {
    // SAFETY: mapped here, and not handed out: see the header.
    let _ = unsafe { call(libc::SYS_munmap, [start, len]) };
}

/// Splits the huge pages of which the range is only a part (MADV_COLD, Linux 5.4), before the range
/// is discarded or unmapped. The kernel keeps the memory of a partly mapped huge page until it is
/// short of memory.
pub fn split_at_ends(start: usize, len: usize) {
    let last = start + len - BASE_PAGE;
    // One page splits the huge page that both ends are in.
    let pages = if start / HUGE_2M == last / HUGE_2M { &[start][..] } else { &[start, last] };
    let is_whole = |huge| huge >= start && huge + HUGE_2M <= start + len;
    for page in pages.iter().filter(|page| !is_whole(**page / HUGE_2M * HUGE_2M)) {
        let _ = advise(*page, BASE_PAGE, libc::MADV_COLD);
    }
}

/// Gives advice that leaves contents and protection as they are (madvise(2)).
pub(crate) fn advise(start: usize, len: usize, advice: c_int) -> Result<(), Errno> {
    debug_assert!(![libc::MADV_DONTNEED, libc::MADV_REMOVE, libc::MADV_FREE].contains(&advice));
    // SAFETY: these advices leave contents and protection as they are; the kernel checks the range.
    unsafe { call(libc::SYS_madvise, [start, len, advice as usize]) }.map(drop)
}

/// Returns how many bytes of a range (of whole base pages) are present, by mincore(2). `None` where
/// some of it is not mapped.
pub fn resident(start: usize, len: usize) -> Option<usize> {
    const PAGES: usize = 1024;
    let mut states = [0u8; PAGES];
    let (mut at, end, mut present) = (start, start.checked_add(len)?, 0);
    while at < end {
        let pages = ((end - at) / BASE_PAGE).clamp(1, PAGES);
        let vector = states.as_mut_ptr() as usize;
        // SAFETY: the vector has a byte for each page asked for; the addresses themselves are only
        // looked up.
        unsafe { call(libc::SYS_mincore, [at, pages * BASE_PAGE, vector]) }.ok()?;
        present += states[..pages].iter().filter(|state| **state & 1 != 0).count() * BASE_PAGE;
        at += pages * BASE_PAGE;
    }
    Some(present)
}

/// A run of pages that are present and of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentRun {
    /// The first address.
    pub start: usize,
    /// The first address after it.
    pub end: usize,
    /// True if 2 MiB entries map it.
    pub huge: bool,
}

/// The calling process's page map, held open.
#[derive(Debug)]
pub struct OwnPagemap {
    file: Descriptor,
    scans: bool,
}

impl OwnPagemap {
    /// Opens the page map. `None` where it cannot be opened.
    pub fn open() -> Option<OwnPagemap> {
        let file = Descriptor::open(c"/proc/self/pagemap").ok()?;
        let pagemap = OwnPagemap { file, scans: true };
        let scans = pagemap.scan(0, HUGE_2M, |_| {}).is_ok();
        Some(OwnPagemap { scans, ..pagemap })
    }

    /// Returns true if [`OwnPagemap::scan`] works (from Linux 6.7).
    pub fn scans(&self) -> bool {
        self.scans
    }

    /// Calls `visit` with every run of present pages in a range, ascending. The shared page of
    /// zeros is left out.
    pub fn scan(&self, start: usize, end: usize, mut visit: impl FnMut(PresentRun)) -> Result<(), Errno> {
        const RUNS: usize = 256;
        let mut runs = [Run::default(); RUNS];
        let mut at = start as u64;
        while at < end as u64 {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start: at,
                end: end as u64,
                vec: runs.as_mut_ptr().expose_provenance() as u64,
                vec_len: RUNS as u64,
                category_mask: IS_PRESENT | IS_ZERO_PAGE,
                category_inverted: IS_ZERO_PAGE,
                return_mask: IS_PRESENT | IS_HUGE,
                ..ScanArgument::default()
            };
            // SAFETY: the argument states its own size, and a vector of as many runs as it states.
            let count = unsafe { self.file.control(PAGEMAP_SCAN, (&raw mut argument) as usize) }?;
            for run in &runs[..count.min(RUNS)] {
                let huge = run.categories & IS_HUGE != 0;
                visit(PresentRun { start: run.start as usize, end: run.end as usize, huge });
            }
            // Each call advances, or the walk is over.
            if argument.walk_end <= at {
                break;
            }
            at = argument.walk_end;
        }
        Ok(())
    }

    /// Returns the number of present base pages in the aligned 2 MiB from `start` on. Returns
    /// `None` if one is swapped out or shared: by a fork(2), by KSM, or as the shared page of
    /// zeros. Also returns `None` if the page map cannot be read.
    pub fn present_unshared(&self, start: usize) -> Option<usize> {
        let words = self.read(start)?;
        words.iter().map(|word| Entry(*word)).try_fold(0, |sum, entry| {
            (!entry.is_shared() && !entry.is_swapped()).then_some(sum + usize::from(entry.is_present()))
        })
    }

    /// Returns how many base pages of the aligned 2 MiB from `start` on are present, including the
    /// shared page of zeros. `None` where the kernel does not report it.
    pub fn present(&self, start: usize) -> Option<usize> {
        Some(self.read(start)?.iter().filter(|word| Entry(**word).is_present()).count())
    }

    fn read(&self, start: usize) -> Option<[u64; HUGE_2M / BASE_PAGE]> {
        let mut words = [0; HUGE_2M / BASE_PAGE];
        let read = self.file.read_words(&mut words, start / BASE_PAGE * size_of::<u64>());
        (read == Ok(words.len())).then_some(words)
    }
}

/// Moves the program's break up by `len` bytes (brk(2)), as the C library's first malloc does. Some
/// programs expect its memory below what they get from sbrk(2).
pub fn grow_break(len: usize) {
    let set = |end: usize| {
        // SAFETY: nothing lies above the break, and memory below it stays. glibc's malloc(3) makes
        // this call as well.
        unsafe { call_for_program(libc::SYS_brk, [end]) }
    };
    let _ = set(0).and_then(|end| set(end.next_multiple_of(BASE_PAGE) + len));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(start: usize, pages: std::ops::Range<usize>) {
        for page in pages {
            // SAFETY: the tests map what they touch, readable and writable.
            unsafe { *((start + page * BASE_PAGE) as *mut u8) = 1 };
        }
    }

    #[test]
    fn memory_is_aligned_and_its_presence_is_reported() {
        // In a process without other tests, which might map something where this one has unmapped
        // it.
        let name = "program_memory::tests::memory_is_aligned_and_its_presence_is_reported";
        megapage_testing::in_child(name, || {
            for len in [HUGE_2M, 3 * HUGE_2M / 2, 5 * HUGE_2M + BASE_PAGE] {
                for reserve in [false, true] {
                    let start = map_aligned(len, reserve).unwrap();
                    assert!(start.is_multiple_of(HUGE_2M));
                    assert_eq!(resident(start, len), Some(0));
                    touch(start, 3..5);
                    // With THP set to `always` more of it is present.
                    assert!(resident(start, len).unwrap() >= 2 * BASE_PAGE);
                    unmap(start, len);
                    assert_eq!(resident(start, len), None);
                }
            }
            assert!(map_aligned(usize::MAX - HUGE_2M, true).is_err());
        });
    }

    #[test]
    fn a_scan_distinguishes_base_pages_from_huge_ones() {
        let Some(pagemap) = OwnPagemap::open() else {
            return megapage_testing::skip("needs PAGEMAP_SCAN (Linux 6.7)");
        };
        let start = map_aligned(2 * HUGE_2M, true).unwrap();
        let range = crate::Borrowed::new(start, 2 * HUGE_2M);
        let _ = range.advise_no_thp();
        touch(start, 0..4);
        touch(start, 600..601);
        let mut runs = Vec::new();
        pagemap.scan(start, start + 2 * HUGE_2M, |run| runs.push(run)).unwrap();
        let run = |from, to| PresentRun {
            start: start + from * BASE_PAGE,
            end: start + to * BASE_PAGE,
            huge: false,
        };
        assert_eq!(runs, [run(0, 4), run(600, 601)]);
        assert_eq!(pagemap.present_unshared(start), Some(4));
        if range.advise_thp().is_ok() && range.part(0, HUGE_2M).collapse().is_ok() {
            runs.clear();
            pagemap.scan(start, start + HUGE_2M, |run| runs.push(run)).unwrap();
            assert_eq!(runs, [PresentRun { huge: true, ..run(0, 512) }]);
        }
        unmap(start, 2 * HUGE_2M);
    }
}
