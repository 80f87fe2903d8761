//! The idle-page bitmap: one bit for each page frame, cleared and read by the frames of the
//! process's pages.

use super::usage::{open, track_error, usage};
use super::{PageBits, RegionBits, TrackError, Tracker};
use megapage_kernel::kpageflags::{FrameFlags, PageFlags};
use megapage_kernel::page_idle::{self, IdleBitmap};
use megapage_kernel::pagemap::Entry;
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::{Leaf, PAGES, TrackerKind};
use megapage_units::{HUGE_2M, Pid, VirtRange};
use std::collections::HashMap;
use std::io;

/// Regions with frames that are looked up at once: 128 MiB.
const REGIONS_AT_ONCE: usize = 64;

/// Tracker by page frames. Needs root, and CAP_SYS_ADMIN for the frames.
#[derive(Debug)]
pub struct IdlePages {
    root: KernelRoot,
    bitmap: IdleBitmap,
    flags: FrameFlags,
}

impl IdlePages {
    /// Opens the bitmap and the page flags. The error names what is missing.
    pub fn new(root: &KernelRoot) -> Result<IdlePages, TrackError> {
        let bitmap = IdleBitmap::open(root).map_err(|error| match error {
            error if error.is_gone() => TrackError::Failed(format!(
                "this kernel has no bitmap of idle pages ({}; CONFIG_IDLE_PAGE_TRACKING)",
                page_idle::path()
            )),
            error => needs_root(error),
        })?;
        Ok(IdlePages { root: root.clone(), bitmap, flags: FrameFlags::open(root).map_err(needs_root)? })
    }

    /// Fills in the accesses of `regions`, with the entries `pages`. Fills in the kind of entries,
    /// too, unless `leaves_are_known`.
    fn judge(
        &self,
        pid: Pid,
        pages: &[Vec<Entry>],
        regions: &mut [RegionBits],
        leaves_are_known: bool,
    ) -> Result<(), TrackError> {
        let lift = |error| track_error(pid, error);
        let frames = ascending(pages.iter().flatten().filter_map(|entry| entry.frame()));
        if frames.is_empty() && pages.iter().flatten().any(|entry| entry.is_present()) {
            return Err(no_frames(pid));
        }
        let idle = self.bitmap.are_idle(&frames).map_err(lift)?;
        let is_idle = |frame: u64| frames.binary_search(&frame).is_ok_and(|at| idle[at]);
        // The flags show why a frame is not marked idle: it was accessed, or it cannot be marked.
        let mut flags = Flags { file: &self.flags, known: HashMap::new() };
        let asked: Vec<u64> =
            frames.iter().zip(&idle).filter(|(_, idle)| !**idle).map(|(frame, _)| *frame).collect();
        flags.load(&asked).map_err(lift)?;
        let mut head_of = HashMap::new();
        for frame in asked {
            if let Some(head) = flags.head(frame).map_err(lift)? {
                head_of.insert(frame, head);
            }
        }
        let heads = ascending(head_of.values().copied());
        let heads_idle = self.bitmap.are_idle(&heads).map_err(lift)?;
        let is_accessed = |frame: u64| match head_of.get(&frame) {
            _ if is_idle(frame) => false,
            Some(head) => !heads.binary_search(head).is_ok_and(|at| heads_idle[at]),
            None => !flags.known.get(&frame).is_some_and(|flags| flags.is_zero_page()),
        };
        for (region, pages) in regions.iter_mut().zip(pages) {
            if !leaves_are_known {
                region.leaf = self.leaf(pages).map_err(lift)?;
            }
            match region.leaf {
                // These pages are not user memory in the sense of the bitmap.
                Leaf::Hugetlb2m | Leaf::Hugetlb1g => {}
                Leaf::Huge2m => {
                    let accessed = pages[0].frame().is_some_and(is_accessed);
                    region.accessed = Some(if accessed { PAGES } else { 0 });
                    region.bits = Some([if accessed { u64::MAX } else { 0 }; _]);
                }
                Leaf::Base => {
                    let mut bits = PageBits::default();
                    for (index, entry) in pages.iter().enumerate() {
                        if entry.frame().is_some_and(is_accessed) {
                            bits[index / 64] |= 1 << (index % 64);
                        }
                    }
                    region.accessed = Some(bits.iter().map(|word| word.count_ones() as u16).sum());
                    region.bits = Some(bits);
                }
            }
        }
        Ok(())
    }

    /// Returns the kind of entries of a region if the page map does not report it (before Linux
    /// 6.7). One entry is taken to map a huge page with 512 frames in order.
    fn leaf(&self, pages: &[Entry]) -> Result<Leaf, KernelError> {
        let Some(frame) = pages.first().and_then(|entry| entry.frame()) else { return Ok(Leaf::Base) };
        if frame % u64::from(PAGES) != 0
            || !(0..).zip(pages).all(|(index, entry)| entry.frame() == Some(frame + index))
        {
            return Ok(Leaf::Base);
        }
        let block = self.flags.read(frame, usize::from(PAGES))?;
        let is_one = block[0].is_head() && block[1..].iter().all(|flags| flags.is_tail());
        Ok(match block[0] {
            first if is_one && first.is_hugetlb() => Leaf::Hugetlb2m,
            first if is_one && first.is_thp() => Leaf::Huge2m,
            _ => Leaf::Base,
        })
    }
}

impl Tracker for IdlePages {
    fn kind(&self) -> TrackerKind {
        TrackerKind::IdlePages
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "A page that several processes map has one bit: an access by any of them counts.",
            "A folio of several base pages (mTHP) has one bit: an access to any of its pages counts for all.",
            "Pages that are not yet on the kernel's lists, just after their first touch, count as accessed.",
            "hugetlb pages are unknown.",
        ]
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        let pagemap = open(&self.root, pid)?;
        for piece in ranges.iter().flat_map(|range| pieces(*range)) {
            let lift = |error| track_error(pid, error);
            let entries = pagemap.entries(piece).map_err(lift)?;
            let frames = ascending(entries.iter().filter_map(|entry| entry.frame()));
            if frames.is_empty() && entries.iter().any(|entry| entry.is_present()) {
                return Err(no_frames(pid));
            }
            self.bitmap.mark(&frames).map_err(lift)?;
        }
        Ok(())
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut pagemap = open(&self.root, pid)?;
        let mut regions = usage(&self.root, pid, &mut pagemap, ranges)?;
        for regions in regions.chunks_mut(REGIONS_AT_ONCE) {
            let pages: Result<Vec<Vec<Entry>>, KernelError> =
                regions.iter().map(|region| pagemap.entries(region.page.range())).collect();
            let pages = pages.map_err(|error| track_error(pid, error))?;
            self.judge(pid, &pages, regions, pagemap.distinguishes_leaves())?;
        }
        Ok(regions)
    }
}

/// Page flags of the frames in question.
struct Flags<'a> {
    file: &'a FrameFlags,
    known: HashMap<u64, PageFlags>,
}

impl Flags<'_> {
    /// Reads the flags of `frames` (ascending), adjacent ones at once.
    fn load(&mut self, frames: &[u64]) -> Result<(), KernelError> {
        for run in frames.chunk_by(|one, next| one + 1 == *next) {
            self.known.extend(run.iter().copied().zip(self.file.read(run[0], run.len())?));
        }
        Ok(())
    }

    fn get(&mut self, frame: u64) -> Result<PageFlags, KernelError> {
        if !self.known.contains_key(&frame) {
            self.load(&[frame])?;
        }
        Ok(self.known[&frame])
    }

    /// Returns the first frame of the folio if `frame` is a later one. A folio lies at a multiple
    /// of its length.
    fn head(&mut self, frame: u64) -> Result<Option<u64>, KernelError> {
        if !self.get(frame)?.is_tail() {
            return Ok(None);
        }
        for order in 1..=PAGES.ilog2() {
            let first = frame >> order << order;
            if self.get(first)?.is_head() {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }
}

fn ascending(frames: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut frames: Vec<u64> = frames.collect();
    frames.sort_unstable();
    frames.dedup();
    frames
}

/// Cuts `range` into pieces of at most [`REGIONS_AT_ONCE`] regions.
fn pieces(range: VirtRange) -> impl Iterator<Item = VirtRange> {
    let step = (REGIONS_AT_ONCE * HUGE_2M) as u64;
    (range.start()..range.end())
        .step_by(step as usize)
        .filter_map(move |start| VirtRange::new(start, range.end().min(start + step)))
}

fn needs_root(error: KernelError) -> TrackError {
    match &error {
        KernelError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            TrackError::Failed(format!("{error}: needs root"))
        }
        _ => error.into(),
    }
}

fn no_frames(pid: Pid) -> TrackError {
    TrackError::Denied { pid, what: "numbers of page frames are hidden; needs CAP_SYS_ADMIN".into() }
}
