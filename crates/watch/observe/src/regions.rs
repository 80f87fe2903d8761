//! The regions of a process: their present pages, and the kind of memory under these.

use crate::mappings::Found;
use crate::page_tables::{HugeEntries, PageTables, settle};
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap::{self, Entry, Pagemap};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::{BackingBytes, Leaf, MappingKind, PAGES, Region};
use megapage_units::{Bytes, HugePage, PageSize, Pid, VirtRange};

/// Number of orders that [`Region::folios`] distinguishes: 0 to 9.
const ORDERS: usize = 10;
/// Largest number of regions with a look-up of folios in one snapshot: 8 GiB.
const MOST_FOLIO_REGIONS: usize = 4096;

/// Present and swapped memory of a process.
pub(crate) struct Held {
    /// Non-empty regions, ascending.
    pub(crate) regions: Vec<Region>,
    /// Backing of all its present memory.
    pub(crate) backing: BackingBytes,
    /// True if the page tables show, without smaps, whether each region is huge.
    pub(crate) leaves_known: bool,
}

/// Returns the non-empty regions of `pid`, ascending, and the backing of all its present memory.
/// Leaves out special mappings (vdso, devices): their pages do not belong to the process. Asks
/// `tables`, a tracker that reads page tables, before the page map, which takes the process's locks
/// and ten times as long.
pub(crate) fn regions(
    root: &KernelRoot,
    pid: Pid,
    mappings: &[Found],
    tables: impl FnOnce(&[VirtRange]) -> Option<Vec<pagemap::Region>>,
) -> Result<Held, KernelError> {
    let ranges = occupied(mappings);
    let held = match tables(&ranges) {
        Some(held) => held,
        None => PageTables::open(root, pid)?.held(&ranges)?,
    };
    let mut held = held;
    let leaves_known = held.iter().all(|held| held.huge.is_some());
    // Before Linux 6.7 the counts of the last reading of smaps decide.
    if !leaves_known {
        let counts: Vec<HugeEntries> = mappings
            .iter()
            .map(|found| HugeEntries::new(found.mapping.range, found.page_size, found.huge_bytes()))
            .collect();
        settle(&mut held, &counts, |_| 0);
    }
    let mut backing = BackingBytes::default();
    let mut next = 0;
    let regions: Vec<Region> = held
        .iter()
        .map(|held| {
            // Mappings that end before this region hold no part of a later one.
            while mappings.get(next).is_some_and(|one| one.mapping.range.end() <= held.page.start()) {
                next += 1;
            }
            region(held, next, mappings)
        })
        .collect();
    for region in &regions {
        let kind = mappings.get(region.mapping as usize).map(|found| found.mapping.kind);
        add(&mut backing, region, kind);
    }
    Ok(Held { regions, backing, leaves_known })
}

/// Returns the mapped ranges without special mappings, neighbours joined.
fn occupied(mappings: &[Found]) -> Vec<VirtRange> {
    let real = mappings.iter().filter(|found| found.mapping.kind != MappingKind::Special);
    VirtRange::joined(real.map(|found| found.mapping.range))
}

/// Returns the region as a snapshot has it. `first` is the first mapping that ends beyond the
/// region's start.
fn region(held: &pagemap::Region, first: usize, mappings: &[Found]) -> Region {
    let overlap = |found: &Found| found.mapping.range.intersection(held.page.range()).map(|part| part.len());
    // The first one of equal shares is taken, so that the choice is stable.
    let (mapping, share) = mappings[first.min(mappings.len())..]
        .iter()
        .enumerate()
        .map_while(|(index, found)| Some((first + index, overlap(found)?)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .unwrap_or((first, Bytes::ZERO));
    let leaf = match (held.huge, mappings.get(mapping)) {
        (Some(true), Some(found)) if found.mapping.kind == MappingKind::Hugetlb => {
            if found.page_size >= PageSize::HUGE_1G { Leaf::Hugetlb1g } else { Leaf::Hugetlb2m }
        }
        (Some(true), _) => Leaf::Huge2m,
        _ => Leaf::Base,
    };
    Region {
        page: held.page,
        mapping: mapping as u32,
        whole: share == held.page.range().len(),
        present: held.present.min(PAGES),
        zero_page: held.zero_page.min(PAGES),
        swapped: held.swapped.min(PAGES),
        leaf,
        ..Region::default()
    }
}

fn add(backing: &mut BackingBytes, region: &Region, kind: Option<MappingKind>) {
    let field = match (region.leaf, kind) {
        (Leaf::Hugetlb1g, _) => &mut backing.hugetlb_1g,
        (Leaf::Hugetlb2m, _) => &mut backing.hugetlb_2m,
        (Leaf::Base, Some(MappingKind::Hugetlb)) => &mut backing.hugetlb_other,
        (Leaf::Base, _) => &mut backing.base,
        (Leaf::Huge2m, Some(MappingKind::Shared)) => &mut backing.shmem_pmd,
        (Leaf::Huge2m, Some(MappingKind::File)) => &mut backing.file_pmd,
        (Leaf::Huge2m, _) => &mut backing.thp,
    };
    *field += region.present_bytes();
}

/// Looks up the folios under the base pages of `regions`, for the first [`MOST_FOLIO_REGIONS`] that
/// are not huge. Fills nothing in if the kernel hides the numbers of page frames (CAP_SYS_ADMIN).
pub(crate) fn look_up_folios(
    root: &KernelRoot,
    pid: Pid,
    flags: &FrameFlags,
    regions: &mut [Region],
) -> Result<(), KernelError> {
    let pagemap = Pagemap::open(root, pid)?;
    let mut asked = 0;
    for region in regions {
        if region.leaf.is_huge() {
            let mut orders = [0; ORDERS];
            orders[ORDERS - 1] = region.present;
            region.folios = Some(orders);
        } else if asked < MOST_FOLIO_REGIONS {
            asked += 1;
            region.folios = folios(flags, &pagemap.entries(region.range())?)?;
        }
    }
    Ok(())
}

/// Returns, for each of these `pages` of `pid`, true if a folio of more than one base page
/// (mTHP) lies under any part of it. `None` if the kernel hides the numbers of page frames
/// (CAP_SYS_ADMIN). Takes about 30 ms for each GiB.
pub fn on_larger_folios(
    root: &KernelRoot,
    pid: Pid,
    pages: &[HugePage],
) -> Result<Option<Vec<bool>>, KernelError> {
    let Ok(flags) = FrameFlags::open(root) else { return Ok(None) };
    let pagemap = Pagemap::open(root, pid)?;
    pages
        .iter()
        .map(|page| {
            let orders = folios(&flags, &pagemap.entries(page.range())?)?;
            Ok(orders.map(|orders| orders[1..].iter().any(|pages| *pages > 0)))
        })
        .collect()
}

/// Returns the present pages by the order of their folio; `None` if the frame of a page is not
/// reported.
fn folios(flags: &FrameFlags, entries: &[Entry]) -> Result<Option<[u16; ORDERS]>, KernelError> {
    let mut orders = [0; ORDERS];
    let mut present = entries.iter().filter(|entry| entry.is_present()).peekable();
    while let Some(entry) = present.next() {
        let Some(first) = entry.frame() else { return Ok(None) };
        let mut count = 1;
        while present.next_if(|next| next.frame() == Some(first + count)).is_some() {
            count += 1;
        }
        count_run(flags, first, count as usize, &mut orders)?;
    }
    Ok(Some(orders))
}

/// Counts `count` frames that follow each other.
fn count_run(
    flags: &FrameFlags,
    first: u64,
    count: usize,
    orders: &mut [u16; ORDERS],
) -> Result<(), KernelError> {
    // One more flag shows if the last folio continues beyond the mapped pages.
    let run = flags.read(first, count + 1)?;
    let mut at = 0;
    while at < count {
        let tails = run[at + 1..].iter().take_while(|next| next.is_tail()).count();
        let frame = first + at as u64;
        let (order, pages) = match run[at] {
            page if page.is_zero_page() => {
                at += 1;
                continue;
            }
            page if page.is_head() && at + tails < count => ((1 + tails).ilog2(), 1 + tails),
            // Only a part of the folio is mapped.
            page if page.is_head() || page.is_tail() => {
                let (head, order) = flags.folio(frame)?;
                let rest = (head + (1 << order)).saturating_sub(frame).max(1);
                (order, count.min(at + rest as usize) - at)
            }
            _ => (0, 1),
        };
        orders[(order as usize).min(ORDERS - 1)] += pages as u16;
        at += pages;
    }
    Ok(())
}
