//! Which pages of a process are present, and which lie on huge pages: `/proc/PID/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst).
//!
//! File-level obligation: the argument of the ioctl is initialised, of the size that it states, and points to
//! a vector that is as long as it states and outlives the call.

#![allow(unsafe_code)]

use crate::{KernelError, KernelRoot};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid, VirtRange};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// How one aligned 2 MiB region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The addresses: 2 MiB, aligned.
    pub range: VirtRange,
    /// Base pages that are present, 0 to 512. The shared page of zeros does not count, except where the kernel
    /// (before 6.7) does not tell it apart.
    pub present: u16,
    /// Whether one 2 MiB entry maps it. `None` where the kernel (before 6.7) does not say.
    pub huge: Option<bool>,
}

/// The page map of one process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    path: PathBuf,
    /// Cleared when the ioctl turns out to be unknown.
    can_scan: bool,
}

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)`, since Linux 6.7.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_ZERO_PAGE: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;
/// Runs of pages that one ioctl returns at most.
const MOST_RUNS: usize = 4096;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

impl Pagemap {
    /// Opens the page map of `pid`. Needs the right to trace the process.
    pub fn open(root: &KernelRoot, pid: Pid) -> Result<Pagemap, KernelError> {
        let path = root.path(format!("proc/{pid}/pagemap"));
        match File::open(&path) {
            Ok(file) => Ok(Pagemap { file, path, can_scan: root.is_live() }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// The whole 2 MiB regions inside `range`, in order, those without a present page among them. About 2 ms
    /// for each GiB on base pages.
    pub fn regions(&mut self, range: VirtRange) -> Result<Vec<Region>, KernelError> {
        let Some(range) = range.aligned_interior(HUGE_2M as u64) else { return Ok(Vec::new()) };
        let mut regions: Vec<Region> = (range.start()..range.end())
            .step_by(HUGE_2M)
            .filter_map(|start| VirtRange::new(start, start + HUGE_2M as u64))
            .map(|range| Region { range, present: 0, huge: None })
            .collect();
        if self.can_scan {
            match self.scan(range, &mut regions) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    self.can_scan = false;
                }
                Err(source) => return Err(KernelError::Io { path: self.path.clone(), source }),
                Ok(()) => return Ok(regions),
            }
        }
        match self.read_entries(&mut regions) {
            Ok(()) => Ok(regions),
            Err(source) => Err(KernelError::Io { path: self.path.clone(), source }),
        }
    }

    fn scan(&self, range: VirtRange, regions: &mut [Region]) -> io::Result<()> {
        for region in regions.iter_mut() {
            region.huge = Some(false);
        }
        let mut runs = vec![Run::default(); MOST_RUNS];
        let mut start = range.start();
        while start < range.end() {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start,
                end: range.end(),
                vec: runs.as_mut_ptr().expose_provenance() as u64,
                vec_len: MOST_RUNS as u64,
                category_inverted: IS_ZERO_PAGE,
                category_mask: IS_PRESENT | IS_ZERO_PAGE,
                return_mask: IS_PRESENT | IS_HUGE,
                ..ScanArgument::default()
            };
            // SAFETY: the argument states its own size, and a vector of as many runs as it states.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &mut argument) };
            if count < 0 {
                return Err(io::Error::last_os_error());
            }
            for run in &runs[..count as usize] {
                note_run(run, range.start(), regions);
            }
            // The walk always advances; a kernel that did not would otherwise keep us here.
            if argument.walk_end <= start {
                return Err(io::Error::other("PAGEMAP_SCAN does not advance"));
            }
            start = argument.walk_end;
        }
        Ok(())
    }

    fn read_entries(&self, regions: &mut [Region]) -> io::Result<()> {
        const PAGES: usize = HUGE_2M / BASE_PAGE;
        let mut entries = vec![0u8; 8 * PAGES];
        for region in regions {
            self.file.read_exact_at(&mut entries, region.range.start() / BASE_PAGE as u64 * 8)?;
            // Bit 63: present. Entries are in the machine's byte order.
            let present = entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count();
            region.present = present as u16;
        }
        Ok(())
    }
}

/// Adds one run of present pages to the regions that it touches; the first region begins at `first`.
fn note_run(run: &Run, first: u64, regions: &mut [Region]) {
    let mut at = run.start;
    while at < run.end {
        let index = ((at - first) / HUGE_2M as u64) as usize;
        let Some(region) = regions.get_mut(index) else { return };
        let end = run.end.min(region.range.end());
        region.present += ((end - at) / BASE_PAGE as u64) as u16;
        if run.categories & IS_HUGE != 0 {
            region.huge = Some(true);
        }
        at = end;
    }
}

impl Region {
    /// Present bytes.
    pub fn present_bytes(&self) -> Bytes {
        Bytes(u64::from(self.present) * BASE_PAGE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_spread_over_regions() {
        let huge = HUGE_2M as u64;
        let region = |n: u64| Region {
            range: VirtRange::new(n * huge, (n + 1) * huge).unwrap(),
            present: 0,
            huge: Some(false),
        };
        let mut regions = [region(1), region(2), region(3)];
        let run = |start, end, categories| Run { start, end, categories };
        note_run(&run(huge + 0x1000, 2 * huge + 0x2000, IS_PRESENT), huge, &mut regions);
        note_run(&run(3 * huge, 4 * huge, IS_PRESENT | IS_HUGE), huge, &mut regions);
        assert_eq!(regions.map(|r| r.present), [511, 2, 512]);
        assert_eq!(regions.map(|r| r.huge), [Some(false), Some(false), Some(true)]);
    }

    /// Both ways of reading must agree on memory that we touch in a known pattern.
    #[test]
    fn the_scan_and_the_entries_agree() {
        let mut memory = vec![0u8; 4 * HUGE_2M];
        let start = memory.as_ptr().addr() as u64;
        let range = VirtRange::new(start, start + memory.len() as u64).unwrap();
        let inside = range.aligned_interior(HUGE_2M as u64).unwrap();
        for page in (0..8).map(|n| (inside.start() - start) as usize + n * 3 * BASE_PAGE) {
            memory[page] = 1;
        }
        let own = Pid(std::process::id() as i32);
        let mut pagemap = Pagemap::open(&KernelRoot::live(), own).unwrap();
        let mut entries = Pagemap { can_scan: false, ..Pagemap::open(&KernelRoot::live(), own).unwrap() };
        let counts = |regions: Vec<Region>| regions.iter().map(|r| r.present).collect::<Vec<u16>>();
        let scanned = counts(pagemap.regions(range).unwrap());
        assert_eq!(scanned, counts(entries.regions(range).unwrap()));
        // A system that gives huge pages unasked shows all 512.
        assert!(scanned[0] == 8 || scanned[0] == 512, "{scanned:?}");
        assert!(scanned.len() >= 3);
    }
}
