//! The page tables of one process on every kernel: the contents of each 2 MiB region, and whether
//! one entry maps it.
//!
//! Since Linux 6.7 PAGEMAP_SCAN reports huge entries. Before, they follow from two readings. The
//! page map shows 512 present pages on the frames of one folio, in order. One entry or 512 may map
//! these. smaps counts the huge entries of a mapping:
//!
//! - If it counts at least as many as there are regions that could be huge, all of these are huge.
//! - If it counts none, none of these is huge.
//! - Otherwise the answer is unknown, and nothing is claimed.
//!
//! To read frames takes root. Without them every full region could be huge, so that smaps decides
//! less often.

use megapage_kernel::ability::PAGEMAP_SCAN;
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap::{Entry, Pagemap, Region};
use megapage_kernel::remote_read::RemoteMemory;
use megapage_kernel::smaps::{self, read_smaps};
use megapage_kernel::{KernelError, KernelRoot, Reservation};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, HugeRange, PageSize, Pid, VirtRange};
use std::collections::BTreeSet;

const SIZE: u64 = HUGE_2M as u64;
const PAGES: u16 = (HUGE_2M / BASE_PAGE) as u16;

/// Page tables of one process.
#[derive(Debug)]
pub struct PageTables {
    root: KernelRoot,
    pid: Pid,
    pagemap: Pagemap,
    /// Page frames; `None` if the kernel itself reports huge entries.
    frames: Option<Frames>,
    /// See [`PageTables::reads`].
    reads: u64,
}

/// Properties of page frames, as far as the caller may read them.
#[derive(Debug)]
struct Frames {
    flags: Option<FrameFlags>,
    /// Frame of the shared page of zeros.
    zero: Option<u64>,
}

/// Huge entries that smaps counts in one mapping.
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
        Ok(PageTables { root: root.clone(), pid, pagemap, frames, reads: 0 })
    }

    /// Returns true if [`PageTables::regions`] can report which regions are huge. That is so on
    /// every kernel if the caller may see page frames, else from Linux 6.7 on.
    pub fn distinguishes_leaves(&mut self) -> Result<bool, KernelError> {
        match &self.frames {
            Some(frames) => Ok(frames.flags.is_some() && frames.zero.is_some()),
            None => self.pagemap.find_out_leaves(),
        }
    }

    /// Returns the page map itself, for single pages.
    pub fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Returns the whole 2 MiB regions in `ranges`, range by range, including those without a
    /// present page. Takes about 2 ms for each GiB on base pages. Before Linux 6.7 it takes 20 ms,
    /// and smaps of the process if a region could be huge.
    pub fn regions(&mut self, ranges: &[VirtRange]) -> Result<Vec<Region>, KernelError> {
        self.regions_by(ranges, |tables| {
            Ok(read_smaps(&tables.root, tables.pid)?.iter().map(HugeEntries::of).collect())
        })
    }

    /// Returns the whole regions in a mapping that smaps has just reported.
    pub fn regions_in(&mut self, mapping: &smaps::Mapping) -> Result<Vec<Region>, KernelError> {
        self.regions_by(&[mapping.range], |_| Ok(vec![HugeEntries::of(mapping)]))
    }

    fn regions_by(
        &mut self,
        ranges: &[VirtRange],
        smaps: impl FnOnce(&PageTables) -> Result<Vec<HugeEntries>, KernelError>,
    ) -> Result<Vec<Region>, KernelError> {
        let mut regions = Vec::new();
        for range in ranges.iter().copied().filter_map(HugeRange::within) {
            self.reads += range.pages().count() as u64;
            match &self.frames {
                None => regions.extend(self.pagemap.regions(range.range())?),
                Some(frames) => {
                    for page in range.pages() {
                        regions.push(frames.region(page.range(), &self.pagemap.entries(page.range())?)?);
                    }
                }
            }
        }
        let Some(frames) = &self.frames else { return Ok(regions) };
        if regions.iter().any(|region| region.huge.is_none()) {
            let counts = smaps(self)?;
            let asked: BTreeSet<HugePage> = regions.iter().map(|region| region.page).collect();
            settle(&mut regions, &counts, |mapping| {
                let others = HugeRange::within(mapping.range).into_iter().flat_map(HugeRange::pages);
                let others = others.filter(|page| !asked.contains(page));
                // More than the number of huge entries need not be counted: the answer stays
                // unknown.
                others
                    .filter(|page| frames.could_be_huge(&self.pagemap, page.range()).unwrap_or(true))
                    .take(mapping.count as usize + 1)
                    .count() as u64
            });
        }
        Ok(regions)
    }

    /// Returns the non-empty regions in `ranges` (ascending, disjoint, whole base pages),
    /// ascending. Does not count the part of a region outside of `ranges`. Before Linux 6.7 `huge`
    /// is `None` if only smaps could decide it.
    pub(crate) fn held(&mut self, ranges: &[VirtRange]) -> Result<Vec<Region>, KernelError> {
        let Some(frames) = &self.frames else { return self.pagemap.held(ranges) };
        let mut regions: Vec<Region> = Vec::new();
        for (_, piece) in ranges.iter().copied().flat_map(VirtRange::by_huge_page) {
            let entries = self.pagemap.entries(piece)?;
            let found = frames.region(piece, &entries)?;
            if found.present + found.zero_page + found.swapped == 0 {
                continue;
            }
            match regions.last_mut() {
                Some(last) if last.page == found.page => {
                    last.present += found.present;
                    last.zero_page += found.zero_page;
                    last.swapped += found.swapped;
                }
                _ => regions.push(found),
            }
        }
        Ok(regions)
    }

    /// Reads the entries of a region, one for each base page: see [`Pagemap::entries`].
    pub fn entries(&mut self, region: HugePage) -> Result<Vec<Entry>, KernelError> {
        self.reads += 1;
        self.pagemap.entries(region.range())
    }

    /// Returns a region whose `entries` have just been read. From Linux 6.7 on this reads it once
    /// more. Before, `huge` is `None` if only smaps could decide it.
    pub fn seen(&mut self, page: HugePage, entries: &[Entry]) -> Result<Region, KernelError> {
        if let Some(frames) = &self.frames {
            return frames.region(page.range(), entries);
        }
        self.reads += 1;
        Ok(self.pagemap.regions(page.range())?.pop().unwrap_or(Region::empty(page, None)))
    }

    /// Returns true if the shared page of zeros, which belongs to no process, can be distinguished.
    /// Root can on every kernel, others from Linux 6.7 on.
    pub fn distinguishes_zeros(&self) -> bool {
        self.frames.as_ref().map_or(self.pagemap.distinguishes_leaves(), |frames| frames.zero.is_some())
    }

    /// Returns the number of `entries` of a region with an anonymous base page that another process
    /// maps as well. That is a forked child that has not executed a program, or a process with
    /// which KSM has merged it. `seen` is the same region: see [`PageTables::seen`]. `None` if
    /// pages of zeros cannot be distinguished.
    pub fn shared_pages(&self, entries: &[Entry], seen: &Region) -> Option<u16> {
        let shared = entries.iter().filter(|entry| entry.is_shared());
        let Some(frames) = &self.frames else {
            let pages = (shared.count() as u16).saturating_sub(seen.zero_page);
            return self.pagemap.distinguishes_leaves().then_some(pages);
        };
        let zero = frames.zero?;
        // Pages of the huge page of zeros belong to no process either.
        let is_zeros = seen.zero_page == PAGES;
        Some(if is_zeros { 0 } else { shared.filter(|entry| entry.frame() != Some(zero)).count() as u16 })
    }

    /// Returns the number of readings since [`PageTables::open`]. A region that was read twice
    /// counts twice. [`PageTables::pagemap`] and the frames of other regions do not count.
    pub fn reads(&self) -> u64 {
        self.reads
    }
}

impl Frames {
    fn open(root: &KernelRoot) -> Frames {
        let flags = FrameFlags::open(root).ok();
        let zero = flags.as_ref().and_then(|flags| zero_frame(root, flags));
        Frames { flags, zero }
    }

    /// Returns the region of `piece`, which lies within one region, as its entries show it.
    fn region(&self, piece: VirtRange, entries: &[Entry]) -> Result<Region, KernelError> {
        let is_zero = |entry: &&Entry| self.zero.is_some() && entry.frame() == self.zero;
        let count = |is: &dyn Fn(&&Entry) -> bool| entries.iter().filter(is).count() as u16;
        let zero_page = count(&is_zero);
        let present = count(&|entry| entry.is_present()) - zero_page;
        let swapped = count(&|entry| entry.is_swapped());
        let page = HugePage::containing(piece.start());
        let mut region = Region { page, present, zero_page, swapped, huge: Some(false) };
        // A huge entry maps a whole region: only a full one can be huge.
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

    /// Returns the kind of the frames of 512 present pages.
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

    /// Returns true if one entry may map a region. Reads one page entry and one frame, so that the
    /// answer is sometimes true without a huge entry.
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

/// Kind of memory under 512 present pages.
enum Folio {
    /// Unknown: the caller may not read it.
    Unknown,
    /// Anything but one folio of 2 MiB.
    Small,
    /// One folio of 2 MiB, mapped by one entry or by 512.
    Thp,
    /// Page of a hugetlb pool.
    Hugetlb,
    /// Huge page of zeros, which one entry always maps.
    Zeros,
}

impl HugeEntries {
    fn of(mapping: &smaps::Mapping) -> HugeEntries {
        let huge = mapping.anon_huge + mapping.shmem_pmd + mapping.file_pmd;
        HugeEntries::new(mapping.range, mapping.kernel_page_size, huge)
    }

    /// Counts the huge entries of a mapping. `huge` is the memory that smaps counts on transparent
    /// huge pages. A mapping of hugetlb pages has huge entries only.
    pub(crate) fn new(range: VirtRange, page_size: PageSize, huge: Bytes) -> HugeEntries {
        let huge = if page_size > PageSize::BASE { range.len() } else { huge };
        HugeEntries { range, count: huge.0 / SIZE }
    }
}

/// Decides the regions with `huge` unknown, mapping by mapping. `mappings` are disjoint and
/// ascending. `others` returns the number of regions of a mapping outside of `regions` that could
/// be huge.
pub(crate) fn settle(regions: &mut [Region], mappings: &[HugeEntries], others: impl Fn(&HugeEntries) -> u64) {
    for mapping in mappings {
        let is_open = |region: &Region| {
            region.huge.is_none()
                && mapping.range.intersection(region.page.range()) == Some(region.page.range())
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

/// Returns the frame of the shared page of zeros, to which a page of ours maps that was only read.
/// `None` without root, and where the kernel answers a read with its huge page of zeros.
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
        Region { present: PAGES, ..Region::empty(HugePage::nth(at), huge) }
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

    /// Checks the method for old kernels on this one: it must agree with PAGEMAP_SCAN.
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
        let entries = by_frames.entries(found[0].page).unwrap();
        assert_eq!(by_frames.shared_pages(&entries, &found[0]), Some(0));
        // The entries alone do not show a huge entry, and nothing else is read.
        let reads = by_frames.reads();
        let seen = by_frames.seen(found[0].page, &entries).unwrap();
        let huge = if scanned[0].huge == Some(true) { None } else { seen.huge };
        assert_eq!((seen, by_frames.reads()), (Region { huge, ..scanned[0] }, reads));
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
        assert_eq!(found.page, HugePage::nth(1));
    }
}
