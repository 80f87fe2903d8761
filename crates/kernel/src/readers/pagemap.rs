//! Present pages of a process, and those that lie on huge pages: `/proc/PID/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst).
//!
//! File-level obligation: the argument of the ioctl is initialised, and of the size that it states.
//! It points to a vector that is as long as it states and outlives the call.

#![allow(unsafe_code)]

use crate::helper::{self, Place, Session, Wait};
use crate::{KernelError, KernelRoot};
pub use megapage_inside::pagemap_scan::Entry;
use megapage_inside::pagemap_scan::{
    IS_HUGE, IS_PRESENT, IS_SWAPPED, IS_ZERO_PAGE, PAGEMAP_SCAN, Run, ScanArgument,
};
use megapage_units::{BASE_PAGE, Bytes, HugePage, HugeRange, Pid, VirtRange};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Mapping of one aligned 2 MiB region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The addresses.
    pub page: HugePage,
    /// Base pages that are present, 0 to 512. The shared page of zeros counts only where the kernel
    /// (before 6.7) does not distinguish it.
    pub present: u16,
    /// Base pages that map the shared page of zeros; 0 where the kernel (before 6.7) does not
    /// distinguish it.
    pub zero_page: u16,
    /// Base pages that are swapped out or migrating. Pages that only carry a mark of the kernel's
    /// (a guard, a poisoned page) count, too: the page map shows them the same way.
    pub swapped: u16,
    /// True if one entry of 2 MiB (or 1 GiB) maps it: a transparent huge page or one of hugetlb.
    /// `None` where the kernel (before 6.7) does not say.
    pub huge: Option<bool>,
}

/// The page map of one process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    path: PathBuf,
    /// False on a captured tree, and once the ioctl turns out to be unknown.
    can_scan: bool,
    /// The process, if it is another one: waiting for it may take long.
    foreign: Option<Pid>,
}

/// Most runs of pages that one ioctl returns.
const MOST_RUNS: usize = 4096;
/// Maximum number of base pages that one ioctl reports (512 MiB). Bounds the time for which the
/// kernel holds the process's mmap lock.
const MOST_PAGES: u64 = 1 << 17;

impl Pagemap {
    /// Opens the page map of `pid`. Needs the right to trace the process.
    pub fn open(root: &KernelRoot, pid: Pid) -> Result<Pagemap, KernelError> {
        let path = root.path(format!("proc/{pid}/pagemap"));
        let foreign = helper::is_foreign(root, pid).then_some(pid);
        let opened = match foreign {
            None => File::open(&path),
            Some(pid) => Session::begin(pid, Wait::Killable)
                .and_then(|mut session| session.open(&path, libc::O_RDONLY).map(File::from)),
        };
        match opened {
            Ok(file) => Ok(Pagemap { file, path, can_scan: root.is_live(), foreign }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Returns true if [`Pagemap::regions`] shows huge entries and the shared page of zeros, as far
    /// as is known. Returns false once a call has found out that the kernel does not show them
    /// (before Linux 6.7).
    pub fn distinguishes_leaves(&self) -> bool {
        self.can_scan
    }

    /// Returns true if [`Pagemap::regions`] shows huge entries and the shared page of zeros. Unlike
    /// [`Pagemap::distinguishes_leaves`] it asks the kernel, so that the answer is certain.
    pub fn find_out_leaves(&mut self) -> Result<bool, KernelError> {
        // Any range does: the kernel looks at its argument first.
        self.regions(HugePage::nth(0).range())?;
        Ok(self.can_scan)
    }

    /// Returns the whole 2 MiB regions inside `range`, in order, also those without a present page.
    /// Takes about 2 ms for each GiB on base pages.
    pub fn regions(&mut self, range: VirtRange) -> Result<Vec<Region>, KernelError> {
        let Some(pages) = HugeRange::within(range) else { return Ok(Vec::new()) };
        let mut held = self.held(&[pages.range()])?.into_iter().peekable();
        let huge = self.can_scan.then_some(false);
        let mut region =
            |page| held.next_if(|region| region.page == page).unwrap_or(Region::empty(page, huge));
        Ok(pages.pages().map(&mut region).collect())
    }

    /// Returns the regions that hold anything in `ranges` (ascending, disjoint, whole base pages),
    /// ascending. Pages of a region outside of `ranges` are not counted. Takes about 2 ms for each
    /// GiB on base pages, some microseconds for each GiB on huge ones, and about 1 us for each
    /// range.
    pub fn held(&mut self, ranges: &[VirtRange]) -> Result<Vec<Region>, KernelError> {
        if self.can_scan {
            match self.scan_held(ranges) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    self.can_scan = false;
                }
                other => return other.map_err(|source| KernelError::Io { path: self.path.clone(), source }),
            }
        }
        self.held_by_entries(ranges).map_err(|source| KernelError::Io { path: self.path.clone(), source })
    }

    fn scan_held(&self, ranges: &[VirtRange]) -> io::Result<Vec<Region>> {
        let mut regions = Vec::new();
        let mut runs = vec![Run::default(); MOST_RUNS];
        for range in ranges {
            self.scan_runs(*range, &mut runs, MOST_PAGES, |run| append_run(run, Some(false), &mut regions))?;
        }
        Ok(regions)
    }

    fn held_by_entries(&self, ranges: &[VirtRange]) -> io::Result<Vec<Region>> {
        let mut regions = Vec::new();
        for range in ranges {
            // Piece by piece, so that the entries of a large mapping need no large buffer.
            for (_, piece) in range.by_huge_page() {
                let entries = self.read_range(piece)?;
                // A piece lies in one region: only the sums are wanted, not the places.
                let mut append = |categories, pages: usize| {
                    let start = piece.start();
                    let end = start + (pages * BASE_PAGE) as u64;
                    append_run(&Run { start, end, categories }, None, &mut regions);
                };
                append(IS_PRESENT, entries.iter().filter(|entry| entry.is_present()).count());
                append(IS_SWAPPED, entries.iter().filter(|entry| entry.is_swapped()).count());
            }
        }
        Ok(regions)
    }

    fn scan_runs(
        &self,
        range: VirtRange,
        runs: &mut [Run],
        most_pages: u64,
        mut note: impl FnMut(&Run),
    ) -> io::Result<()> {
        let mut start = range.start();
        while start < range.end() {
            let mut argument = ScanArgument {
                start,
                end: range.end(),
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT | IS_SWAPPED | IS_ZERO_PAGE | IS_HUGE,
                max_pages: most_pages,
                ..ScanArgument::default()
            };
            let count = match self.foreign {
                Some(pid) => self.scan_foreign(pid, &mut argument, runs)?,
                None => scan(&self.file, &mut argument, runs)?,
            };
            let found = &runs[..count];
            found.iter().for_each(&mut note);
            // With room left, the walk has come to its end. `walk_end` need not say so: it stays
            // where the kernel last emptied its internal buffer of 512 runs (do_pagemap_scan in
            // fs/proc/task_mmu.c, seen on Linux 6.18).
            let bytes: u64 = found.iter().map(|run| run.end - run.start).sum();
            if found.len() < runs.len() && bytes < most_pages * BASE_PAGE as u64 {
                return Ok(());
            }
            let next = found.last().map_or(0, |run| run.end).max(argument.walk_end);
            // The walk always advances; a kernel that did not would otherwise keep us here.
            if next <= start {
                return Err(io::Error::other("PAGEMAP_SCAN does not advance"));
            }
            start = next;
        }
        Ok(())
    }

    /// Makes one PAGEMAP_SCAN by a helper; returns the number of runs found.
    fn scan_foreign(&self, pid: Pid, argument: &mut ScanArgument, runs: &mut [Run]) -> io::Result<usize> {
        const WORD: usize = size_of::<u64>();
        const VECTOR: usize = size_of::<ScanArgument>();
        const RUN: usize = size_of::<Run>();
        let mut session = Session::begin(pid, Wait::Killable)?;
        let most = runs.len().min((helper::MOST_DATA - VECTOR) / RUN);
        argument.size = size_of::<ScanArgument>() as u64;
        argument.vec = session.data_address(VECTOR) as u64;
        argument.vec_len = most as u64;
        for (place, word) in session.data().chunks_exact_mut(WORD).zip(argument.words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let zero = Place::Value(0);
        let arguments = [Place::Value(PAGEMAP_SCAN as usize), Place::Data(0), zero, zero, zero];
        let count = session.call(libc::SYS_ioctl, self.file.as_fd(), arguments)?.min(most);
        let words = |bytes: &[u8], number: usize| {
            let word = bytes[number * WORD..].first_chunk().copied().unwrap_or_default();
            u64::from_ne_bytes(word)
        };
        let data = session.data();
        argument.walk_end = words(data, 4);
        for (run, bytes) in runs.iter_mut().zip(data[VECTOR..].chunks_exact(RUN)).take(count) {
            *run = Run { start: words(bytes, 0), end: words(bytes, 1), categories: words(bytes, 2) };
        }
        Ok(count)
    }

    /// Returns one entry for each base page of `range`, whose ends are multiples of 4 KiB. Takes
    /// about 15 ms for each GiB. Numbers of page frames need CAP_SYS_ADMIN.
    pub fn entries(&self, range: VirtRange) -> Result<Vec<Entry>, KernelError> {
        self.read_range(range).map_err(|source| KernelError::Io { path: self.path.clone(), source })
    }

    /// Returns the share of base pages in `range` that lie right behind the page before them in
    /// physical memory too, 0 to 1. Only present pages count whose page before is present as well.
    /// `None` where there are none, or without CAP_SYS_ADMIN, which the numbers of page frames
    /// need. Takes about 15 us for 2 MiB.
    pub fn contiguity(&self, range: VirtRange) -> Result<Option<f64>, KernelError> {
        let frames: Vec<Option<u64>> = self.entries(range)?.into_iter().map(Entry::frame).collect();
        let pairs = frames.windows(2).filter_map(|pair| pair[0].zip(pair[1]));
        let (count, beside) = pairs.fold((0u32, 0u32), |(count, beside), (one, next)| {
            (count + 1, beside + u32::from(next == one + 1))
        });
        Ok((count > 0).then(|| f64::from(beside) / f64::from(count)))
    }

    /// Reads as [`FileExt::read_exact_at`] does, by a helper.
    fn read_foreign(&self, pid: Pid, bytes: &mut [u8], place: u64) -> io::Result<()> {
        let mut session = Session::begin(pid, Wait::Killable)?;
        let mut done = 0;
        while done < bytes.len() {
            match session.read_at(self.file.as_fd(), &mut bytes[done..], place + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    fn read_range(&self, range: VirtRange) -> io::Result<Vec<Entry>> {
        const PAGE: u64 = BASE_PAGE as u64;
        let mut bytes = vec![0; (range.len().0 / PAGE) as usize * size_of::<u64>()];
        let place = range.start() / PAGE * size_of::<u64>() as u64;
        let read = match self.foreign {
            None => self.file.read_exact_at(&mut bytes, place),
            Some(pid) => self.read_foreign(pid, &mut bytes, place),
        };
        match read {
            // The file of a process that has ended is empty.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            other => other?,
        }
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("a chunk of eight bytes"));
        Ok(bytes.chunks_exact(8).map(|chunk| Entry(word(chunk))).collect())
    }
}

/// Makes one PAGEMAP_SCAN; returns the number of runs found. Fills in the argument's size, and the
/// place for the runs.
pub(crate) fn scan(file: &File, argument: &mut ScanArgument, runs: &mut [Run]) -> io::Result<usize> {
    argument.size = size_of::<ScanArgument>() as u64;
    argument.vec = runs.as_mut_ptr().expose_provenance() as u64;
    argument.vec_len = runs.len() as u64;
    // SAFETY: the argument states its own size, and a vector of as many runs as it states.
    let count = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, argument) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Adds one run of pages to the last region, and appends regions as it goes beyond. Runs come
/// ascending.
fn append_run(run: &Run, huge: Option<bool>, regions: &mut Vec<Region>) {
    let range = VirtRange::new(run.start, run.end);
    for (page, part) in range.into_iter().flat_map(VirtRange::by_huge_page) {
        if regions.last().is_none_or(|last| last.page != page) {
            regions.push(Region::empty(page, huge));
        }
        let Some(region) = regions.last_mut() else { return };
        region.add(part.len().0, run.categories);
    }
}

impl Region {
    /// Returns a region that holds nothing.
    pub fn empty(page: HugePage, huge: Option<bool>) -> Region {
        Region { page, present: 0, zero_page: 0, swapped: 0, huge }
    }

    /// Counts `bytes` more of these categories.
    fn add(&mut self, bytes: u64, categories: u64) {
        let pages = (bytes / BASE_PAGE as u64) as u16;
        if categories & IS_ZERO_PAGE != 0 {
            self.zero_page += pages;
        } else if categories & IS_SWAPPED != 0 {
            self.swapped += pages;
        } else {
            self.present += pages;
            if categories & IS_HUGE != 0 {
                self.huge = Some(true);
            }
        }
    }

    /// Returns the present bytes.
    pub fn present_bytes(&self) -> Bytes {
        Bytes(u64::from(self.present) * BASE_PAGE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::HUGE_2M;

    /// More runs than one call takes: present and absent pages alternate, then come whole regions.
    #[test]
    fn each_region_is_reported_once_however_many_runs_there_are() {
        const SCATTERED: usize = 24;
        const WHOLE: usize = 24;
        let memory = crate::Reservation::new((SCATTERED + WHOLE) * HUGE_2M, HUGE_2M).unwrap();
        memory.open().unwrap();
        for page in (0..SCATTERED * HUGE_2M / BASE_PAGE).step_by(2) {
            memory.part(page * BASE_PAGE, BASE_PAGE).populate().unwrap();
        }
        memory.part(SCATTERED * HUGE_2M, WHOLE * HUGE_2M).populate().unwrap();
        let start = memory.address().addr() as u64;
        let range = VirtRange::new(start, start + ((SCATTERED + WHOLE) * HUGE_2M) as u64).unwrap();
        let mut pagemap = Pagemap::open(&KernelRoot::live(), Pid(std::process::id().cast_signed())).unwrap();
        let held = pagemap.held(&[range]).unwrap();
        let listed = pagemap.regions(range).unwrap();
        memory.release().unwrap();
        assert_eq!(held.len(), SCATTERED + WHOLE);
        assert!(held.is_sorted_by(|one, next| one.page < next.page));
        for regions in [held, listed] {
            // A system that gives huge pages unasked fills the scattered ones, too.
            assert!(
                regions.iter().all(|region| region.present == 512 || region.present == 256),
                "{regions:?}"
            );
            assert!(regions[SCATTERED..].iter().all(|region| region.present == 512));
        }
    }

    #[test]
    fn runs_are_spread_over_regions() {
        let huge = HugePage::SIZE;
        let mut regions = Vec::new();
        let mut append = |start, end, categories| {
            append_run(&Run { start, end, categories }, Some(false), &mut regions);
        };
        append(huge + 0x1000, 2 * huge + 0x2000, IS_PRESENT);
        append(2 * huge + 0x2000, 2 * huge + 0x7000, IS_SWAPPED);
        append(2 * huge + 0x8000, 2 * huge + 0x9000, IS_PRESENT | IS_ZERO_PAGE);
        append(3 * huge, 4 * huge, IS_PRESENT | IS_HUGE);
        let regions: [Region; 3] = regions.try_into().unwrap();
        assert_eq!(regions.map(|r| r.present), [511, 2, 512]);
        assert_eq!(regions.map(|r| (r.zero_page, r.swapped)), [(0, 0), (1, 5), (0, 0)]);
        assert_eq!(regions.map(|r| r.huge), [Some(false), Some(false), Some(true)]);
    }

    /// Both ways of reading must agree on memory that we touch in a known pattern.
    #[test]
    fn the_scan_and_the_entries_agree() {
        let mut memory = vec![0u8; 4 * HUGE_2M];
        let start = memory.as_ptr().addr() as u64;
        let range = VirtRange::new(start, start + memory.len() as u64).unwrap();
        let inside = HugeRange::within(range).unwrap().range();
        for page in (0..8).map(|n| (inside.start() - start) as usize + n * 3 * BASE_PAGE) {
            memory[page] = 1;
        }
        let own = Pid(std::process::id() as i32);
        let mut pagemap = Pagemap::open(&KernelRoot::live(), own).unwrap();
        let mut entries = Pagemap { can_scan: false, ..Pagemap::open(&KernelRoot::live(), own).unwrap() };
        let counts = |regions: Vec<Region>| regions.iter().map(|r| r.present).collect::<Vec<u16>>();
        let scanned = counts(pagemap.regions(range).unwrap());
        assert_eq!(scanned, counts(entries.regions(range).unwrap()));
        // The same again, for two pieces of the first region and one of the second: only their
        // pages count.
        let piece = |from: usize, to: usize| {
            let at = |pages: usize| inside.start() + (pages * BASE_PAGE) as u64;
            VirtRange::new(at(from), at(to)).unwrap()
        };
        let pieces = [piece(0, 4), piece(6, 16), piece(512, 520)];
        let shown =
            |regions: Vec<Region>| regions.iter().map(|r| (r.page.start(), r.present)).collect::<Vec<_>>();
        let held = shown(pagemap.held(&pieces).unwrap());
        assert_eq!(held, shown(entries.held(&pieces).unwrap()));
        assert!(held[0] == (inside.start(), 2 + 4) || scanned[0] == 512, "{held:?}");
        // A system that gives huge pages unasked shows all 512.
        assert!(scanned[0] == 8 || scanned[0] == 512, "{scanned:?}");
        assert!(scanned.len() >= 3);
        // A scan in steps of three pages finds the same.
        let whole = |most: u64| {
            let (mut found, mut runs) = (Vec::new(), vec![Run::default(); MOST_RUNS]);
            let done = pagemap.scan_runs(inside, &mut runs, most, |run| append_run(run, None, &mut found));
            done.map(|()| found)
        };
        if pagemap.distinguishes_leaves() {
            let all = whole(MOST_PAGES).unwrap();
            assert_eq!(shown(whole(3).unwrap()), shown(all));
        }
    }

    /// Memory that was only read maps the shared page of zeros, and is not present memory.
    #[test]
    fn the_shared_page_of_zeros_is_distinguished() {
        // Fresh from the kernel: an allocator may give what was used before, and clear it.
        let memory = crate::Reservation::new(HUGE_2M, HUGE_2M).unwrap();
        memory.open().unwrap();
        let start = memory.address().addr() as u64;
        let range = HugePage::at(start).unwrap().range();
        let own = Pid(std::process::id().cast_signed());
        let reader = crate::remote_read::RemoteMemory::open(&KernelRoot::live(), own).unwrap();
        let mut byte = [1];
        for page in 0..9 {
            assert_eq!(reader.read(start + (page * BASE_PAGE) as u64, &mut byte).unwrap(), 1);
            assert_eq!(byte, [0]);
        }
        let mut pagemap = Pagemap::open(&KernelRoot::live(), Pid(std::process::id() as i32)).unwrap();
        let region = pagemap.regions(range).unwrap()[0];
        if region.huge.is_none() {
            return megapage_testing::skip("needs PAGEMAP_SCAN (Linux 6.7)");
        }
        // A system that gives huge pages unasked maps the huge page of zeros.
        assert!(matches!((region.present, region.zero_page), (0, 9 | 512)), "{region:?}");
        let page = VirtRange::new(start, start + BASE_PAGE as u64).unwrap();
        let entry = pagemap.entries(page).unwrap()[0];
        memory.release().unwrap();
        assert!(entry.is_present() && !entry.is_exclusive() && !entry.is_swapped());
        if megapage_testing::require_root() {
            assert!(entry.frame().is_some());
        }
    }

    #[test]
    fn the_bits_of_an_entry_are_distinguished() {
        let present = Entry(1 << 63 | 1 << 56 | 0x1234);
        assert_eq!((present.frame(), present.is_exclusive()), (Some(0x1234), true));
        let swapped = Entry(1 << 62 | 0x77);
        assert_eq!((swapped.frame(), swapped.is_swapped(), swapped.is_present()), (None, true, false));
        assert_eq!(Entry(1 << 63).frame(), None);
        assert!(Entry(1 << 63 | 1 << 61).is_file_or_shared());
    }
}
