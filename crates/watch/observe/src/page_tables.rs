//! The page tables of one process on every kernel: what each 2 MiB region holds, and whether one entry maps it.
//!
//! Since Linux 6.7 PAGEMAP_SCAN says so. Before, it follows from two readings. 512 present pages that are the frames of
//! one folio, in order, can be mapped by one entry or by 512: the page map shows the same. smaps counts the huge
//! entries of a mapping. Where a mapping has at least as many of them as regions that could be huge, all of these are;
//! where it has none, none is; else that is unknown, and nothing is claimed. Frames take root; without them every full
//! region could be huge, which is decided less often.

use megapage_kernel::ability::PAGEMAP_SCAN;
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap::{Entry, Pagemap, Region};
use megapage_kernel::remote_read::RemoteMemory;
use megapage_kernel::smaps::{self, read_smaps};
use megapage_kernel::{KernelError, KernelRoot, Reservation};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use std::collections::BTreeSet;

const SIZE: u64 = HUGE_2M as u64;
const PAGES: u16 = (HUGE_2M / BASE_PAGE) as u16;

/// The page tables of one process.
#[derive(Debug)]
pub struct PageTables {
    root: KernelRoot,
    pid: Pid,
    pagemap: Pagemap,
    /// `None` where the kernel itself says which entries are huge.
    frames: Option<Frames>,
}

/// What page frames are, as far as the caller may know.
#[derive(Debug)]
struct Frames {
    flags: Option<FrameFlags>,
    /// The shared page of zeros.
    zero: Option<u64>,
}

/// The huge entries that smaps counts in one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HugeEntries {
    pub(crate) range: VirtRange,
    pub(crate) count: u64,
}

impl PageTables {
    /// Opens the page tables of `pid`. Needs the right to trace the process.
    pub fn open(root: &KernelRoot, pid: Pid) -> Result<PageTables, KernelError> {
        let pagemap = Pagemap::open(root, pid)?;
        let frames = (!PAGEMAP_SCAN.is_there(root)).then(|| Frames::open(root));
        Ok(PageTables { root: root.clone(), pid, pagemap, frames })
    }

    /// Whether [`PageTables::regions`] can say which regions are huge: on every kernel where the caller may see page
    /// frames, else from Linux 6.7 on.
    pub fn distinguishes_leaves(&mut self) -> Result<bool, KernelError> {
        match &self.frames {
            Some(frames) => Ok(frames.flags.is_some() && frames.zero.is_some()),
            None => self.pagemap.find_out_leaves(),
        }
    }

    /// The page map itself, for single pages.
    pub fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// The whole 2 MiB regions in `ranges`, those without a present page among them, range by range. About 2 ms for
    /// each GiB on base pages; before Linux 6.7 20 ms, and where a region could be huge also smaps of the process.
    pub fn regions(&mut self, ranges: &[VirtRange]) -> Result<Vec<Region>, KernelError> {
        if self.frames.is_some() {
            return self.regions_by_frames(ranges, || {
                Ok(read_smaps(&self.root, self.pid)?.iter().map(HugeEntries::of).collect())
            });
        }
        let mut regions = Vec::new();
        for range in ranges {
            regions.extend(self.pagemap.regions(*range)?);
        }
        Ok(regions)
    }

    /// The whole regions in a mapping that smaps has just reported.
    pub fn regions_in(&mut self, mapping: &smaps::Mapping) -> Result<Vec<Region>, KernelError> {
        match self.frames {
            Some(_) => self.regions_by_frames(&[mapping.range], || Ok(vec![HugeEntries::of(mapping)])),
            None => self.pagemap.regions(mapping.range),
        }
    }

    fn regions_by_frames(
        &self,
        ranges: &[VirtRange],
        smaps: impl FnOnce() -> Result<Vec<HugeEntries>, KernelError>,
    ) -> Result<Vec<Region>, KernelError> {
        let Some(frames) = &self.frames else { return Ok(Vec::new()) };
        let mut regions = Vec::new();
        for range in ranges.iter().filter_map(|range| range.aligned_interior(SIZE)) {
            for region in pieces(range) {
                regions.push(frames.region(region, &self.pagemap.entries(region)?)?);
            }
        }
        if regions.iter().any(|region| region.huge.is_none()) {
            let counts = smaps()?;
            let asked: BTreeSet<u64> = regions.iter().map(|region| region.range.start()).collect();
            settle(&mut regions, &counts, |mapping| {
                let others = mapping.range.aligned_interior(SIZE).into_iter().flat_map(pieces);
                let others = others.filter(|region| !asked.contains(&region.start()));
                // More than there are huge entries is as good as all of them.
                others
                    .filter(|region| frames.could_be_huge(&self.pagemap, *region).unwrap_or(true))
                    .take(mapping.count as usize + 1)
                    .count() as u64
            });
        }
        Ok(regions)
    }

    /// The regions that hold anything in `ranges` (ascending, disjoint, whole base pages), ascending; what lies in a
    /// region outside of `ranges` is not counted. Before Linux 6.7 `huge` is `None` where that takes smaps to say.
    pub(crate) fn held(&mut self, ranges: &[VirtRange]) -> Result<Vec<Region>, KernelError> {
        let Some(frames) = &self.frames else { return self.pagemap.held(ranges) };
        let mut regions: Vec<Region> = Vec::new();
        for piece in ranges.iter().copied().flat_map(pieces) {
            let entries = self.pagemap.entries(piece)?;
            let found = frames.region(piece, &entries)?;
            if found.present + found.zero_page + found.swapped == 0 {
                continue;
            }
            match regions.last_mut() {
                Some(last) if last.range == found.range => {
                    last.present += found.present;
                    last.zero_page += found.zero_page;
                    last.swapped += found.swapped;
                }
                _ => regions.push(found),
            }
        }
        Ok(regions)
    }

    /// How many anonymous base pages of a region another process maps as well: a forked child that has not executed a
    /// program, or one with which KSM has merged them. `None` where the shared page of zeros, which belongs to no process,
    /// cannot be distinguished: before Linux 6.7 without root.
    pub fn shared_pages(&mut self, region: VirtRange) -> Result<Option<u16>, KernelError> {
        let Some(frames) = &self.frames else { return self.pagemap.shared_pages(region) };
        let Some(zero) = frames.zero else { return Ok(None) };
        let entries = self.pagemap.entries(region)?;
        let shared = entries.iter().filter(|entry| entry.is_shared() && entry.frame() != Some(zero)).count();
        // Pages of the huge page of zeros belong to no process, either.
        let zeros = frames.region(region, &entries)?.zero_page == PAGES;
        Ok(Some(if zeros { 0 } else { shared as u16 }))
    }
}

impl Frames {
    fn open(root: &KernelRoot) -> Frames {
        let flags = FrameFlags::open(root).ok();
        let zero = flags.as_ref().and_then(|flags| zero_frame(root, flags));
        Frames { flags, zero }
    }

    /// What the entries of `piece`, which lies within one region, say of it.
    fn region(&self, piece: VirtRange, entries: &[Entry]) -> Result<Region, KernelError> {
        let start = piece.start() - piece.start() % SIZE;
        let range = VirtRange::new(start, start.saturating_add(SIZE)).unwrap_or(piece);
        let is_zero = |entry: &&Entry| self.zero.is_some() && entry.frame() == self.zero;
        let count = |is: &dyn Fn(&&Entry) -> bool| entries.iter().filter(is).count() as u16;
        let zero_page = count(&is_zero);
        let present = count(&|entry| entry.is_present()) - zero_page;
        let swapped = count(&|entry| entry.is_swapped());
        let mut region = Region { range, present, zero_page, swapped, huge: Some(false) };
        // One entry maps all of a region or nothing of it.
        if present == PAGES {
            let folio = self.folio(entries)?;
            region.huge = match folio {
                Folio::Unknown | Folio::Thp => None,
                Folio::Small => Some(false),
                Folio::Hugetlb => Some(true),
                Folio::Zeros => {
                    (region.present, region.zero_page) = (0, PAGES);
                    Some(true)
                }
            };
        }
        Ok(region)
    }

    /// What the frames of 512 present pages are.
    fn folio(&self, entries: &[Entry]) -> Result<Folio, KernelError> {
        let Some(flags) = &self.flags else { return Ok(Folio::Unknown) };
        let Some(first) = entries[0].frame() else { return Ok(Folio::Unknown) };
        let in_order = entries.iter().zip(first..).all(|(entry, frame)| entry.frame() == Some(frame));
        if !in_order || !first.is_multiple_of(u64::from(PAGES)) {
            return Ok(Folio::Small);
        }
        let flags = flags.read(first, usize::from(PAGES))?;
        Ok(match flags.split_first() {
            Some((head, _)) if head.is_hugetlb() => Folio::Hugetlb,
            Some((head, _)) if head.is_zero_page() => Folio::Zeros,
            Some((head, rest)) if head.is_head() && rest.iter().all(|page| page.is_tail()) => Folio::Thp,
            _ => Folio::Small,
        })
    }

    /// Whether a region may be mapped by one entry, by as few looks as that takes: true rather too often.
    fn could_be_huge(&self, pagemap: &Pagemap, region: VirtRange) -> Result<bool, KernelError> {
        let Some(page) = VirtRange::new(region.start(), region.start() + BASE_PAGE as u64) else {
            return Ok(true);
        };
        let first = pagemap.entries(page)?.first().copied().unwrap_or_default();
        let (Some(flags), Some(frame)) = (&self.flags, first.frame()) else { return Ok(first.is_present()) };
        let is_first = frame.is_multiple_of(u64::from(PAGES));
        Ok(is_first && flags.read(frame, 1)?.first().is_some_and(|head| head.is_head()))
    }
}

/// What 512 present pages lie on.
enum Folio {
    /// The caller may not know.
    Unknown,
    /// Not one folio of 2 MiB.
    Small,
    /// One folio of 2 MiB, however it is mapped.
    Thp,
    /// A page of a pool.
    Hugetlb,
    /// The huge page of zeros, which is always mapped by one entry.
    Zeros,
}

impl HugeEntries {
    fn of(mapping: &smaps::Mapping) -> HugeEntries {
        let huge = mapping.anon_huge + mapping.shmem_pmd + mapping.file_pmd;
        HugeEntries::new(mapping.range, mapping.kernel_page_size, huge)
    }

    /// `huge`: what smaps has counted on transparent huge pages. A mapping of hugetlb pages has nothing else.
    pub(crate) fn new(range: VirtRange, page_size: PageSize, huge: Bytes) -> HugeEntries {
        let huge = if page_size > PageSize::BASE { range.len() } else { huge };
        HugeEntries { range, count: huge.0 / SIZE }
    }
}

/// Decides, mapping by mapping, the regions of which `huge` is open. `mappings` are disjoint and ascending; `others` says how
/// many regions of a mapping that are not among `regions` could be huge.
pub(crate) fn settle(regions: &mut [Region], mappings: &[HugeEntries], others: impl Fn(&HugeEntries) -> u64) {
    for mapping in mappings {
        let is_open = |region: &Region| {
            region.huge.is_none() && mapping.range.intersection(region.range) == Some(region.range)
        };
        let open = regions.iter().filter(|region| is_open(region)).count() as u64;
        if open == 0 {
            continue;
        }
        let answer = match mapping.count {
            0 => Some(false),
            count => (open <= count && open + others(mapping) <= count).then_some(true),
        };
        regions.iter_mut().filter(|region| is_open(region)).for_each(|region| region.huge = answer);
    }
}

/// `range` cut where regions begin.
fn pieces(range: VirtRange) -> impl Iterator<Item = VirtRange> {
    let mut start = range.start();
    std::iter::from_fn(move || {
        let end = range.end().min((start - start % SIZE).saturating_add(SIZE));
        let piece = (start < range.end()).then(|| VirtRange::new(start, end)).flatten();
        start = end;
        piece
    })
}

/// The frame of the shared page of zeros: what a page of ours maps that was only read. `None` without root, and where
/// the kernel answers a read with its huge page of zeros.
fn zero_frame(root: &KernelRoot, flags: &FrameFlags) -> Option<u64> {
    let own = Pid(std::process::id().cast_signed());
    let memory = Reservation::new(BASE_PAGE, BASE_PAGE).ok()?;
    let frame = memory.open().ok().and_then(|()| {
        let start = memory.start() as u64;
        RemoteMemory::open(root, own).ok()?.read(start, &mut [0]).ok()?;
        let page = VirtRange::new(start, start + BASE_PAGE as u64)?;
        Pagemap::open(root, own).ok()?.entries(page).ok()?.first()?.frame()
    });
    let found = *flags.read(frame?, 1).ok()?.first()?;
    frame.filter(|_| found.is_zero_page() && !found.is_thp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::canary::Canary;
    use megapage_testing::require_root;

    fn range(first: u64, last: u64) -> VirtRange {
        VirtRange::new(first * SIZE, last * SIZE).unwrap()
    }

    fn region(at: u64, huge: Option<bool>) -> Region {
        Region { range: range(at, at + 1), present: PAGES, zero_page: 0, swapped: 0, huge }
    }

    fn settled(open: &[u64], mapping: HugeEntries, others: u64) -> Vec<Option<bool>> {
        let mut regions: Vec<Region> = open.iter().map(|at| region(*at, None)).collect();
        settle(&mut regions, &[mapping], |_| others);
        regions.iter().map(|region| region.huge).collect()
    }

    #[test]
    fn huge_entries_are_claimed_only_where_they_are_enough_for_all() {
        let mapping = |count| HugeEntries { range: range(0, 8), count };
        assert_eq!(settled(&[1, 2], mapping(2), 0), [Some(true); 2]);
        assert_eq!(settled(&[1, 2], mapping(0), 0), [Some(false); 2]);
        assert_eq!(settled(&[1, 2], mapping(1), 0), [None; 2], "one of the two, and it is unknown which");
        assert_eq!(settled(&[1], mapping(1), 1), [None], "it may be the other one");
        assert_eq!(settled(&[1], mapping(2), 1), [Some(true)]);
        assert_eq!(settled(&[9], mapping(2), 0), [None], "of another mapping");
    }

    #[test]
    fn pieces_end_where_regions_do() {
        let whole = VirtRange::new(SIZE - 0x1000, 2 * SIZE + 0x3000).unwrap();
        let cut: Vec<(u64, u64)> = pieces(whole).map(|piece| (piece.start(), piece.end())).collect();
        assert_eq!(cut, [(SIZE - 0x1000, SIZE), (SIZE, 2 * SIZE), (2 * SIZE, 2 * SIZE + 0x3000)]);
    }

    /// The way of old kernels, on this one: it must agree with PAGEMAP_SCAN where it claims anything.
    #[test]
    fn frames_and_smaps_agree_with_the_page_tables() {
        if !require_root() {
            return;
        }
        let root = KernelRoot::live();
        let child = Canary::start(0, 1, true).unwrap();
        let mut by_frames = PageTables::open(&root, child.pid()).unwrap();
        by_frames.frames = Some(Frames::open(&root));
        let asked = [child.huge()];
        let found = by_frames.regions(&asked).unwrap();
        let mut pagemap = Pagemap::open(&root, child.pid()).unwrap();
        let scanned = pagemap.regions(child.huge()).unwrap();
        if !pagemap.distinguishes_leaves() {
            return megapage_testing::skip("needs PAGEMAP_SCAN (Linux 6.7)");
        }
        assert_eq!(found, scanned);
        let mapped = by_frames.held(&asked).unwrap();
        assert_eq!(mapped.len(), 1);
        assert_eq!((mapped[0].present, mapped[0].zero_page), (scanned[0].present, scanned[0].zero_page));
        assert_eq!(by_frames.shared_pages(child.huge()).unwrap(), Some(0));
        assert!(by_frames.distinguishes_leaves().unwrap());
    }

    #[test]
    fn the_page_of_zeros_is_distinguished_by_its_frame() {
        if !require_root() {
            return;
        }
        let root = KernelRoot::live();
        let frames = Frames::open(&root);
        let Some(zero) = frames.zero else {
            return megapage_testing::skip("the kernel answers reads with its huge page of zeros");
        };
        let mut entries = vec![Entry(1 << 63 | zero); 3];
        entries.push(Entry(1 << 63 | (zero + 1)));
        entries.push(Entry(1 << 62));
        let found = frames.region(VirtRange::new(SIZE, SIZE + 5 * 0x1000).unwrap(), &entries).unwrap();
        assert_eq!((found.present, found.zero_page, found.swapped, found.huge), (1, 3, 1, Some(false)));
        assert_eq!(found.range, range(1, 2));
    }
}
