//! The regions that may be sampled, and those of them that other processes may share.

use super::budget::Candidate;
use crate::tracker::{RegionBits, TrackError};
use megapage_kernel::KernelRoot;
use megapage_kernel::pagemap::Pagemap;
use megapage_snapshot::{Leaf, MappingKind, Process, ProcessId, Region};
use megapage_units::{BASE_PAGE, Bytes, HugePage, VirtRange};

pub(super) fn is_candidate(region: &Region, candidates: &[bool]) -> bool {
    region.whole
        && region.present > 0
        && matches!(region.leaf, Leaf::Base | Leaf::Huge2m)
        && candidates.get(region.mapping as usize) == Some(&true)
}

pub(super) fn candidate(region: &Region) -> Candidate {
    let accessed = region.accessed.map(|accessed| {
        let pages = accessed.average.max(f32::from(accessed.coverage));
        (if region.leaf.is_huge() { pages.min(1.0) } else { pages }, accessed.sampled)
    });
    let entries = if region.leaf.is_huge() { 1 } else { region.present };
    Candidate { page: region.page, entries, last: accessed }
}

/// Returns true if a region's mapping may share pages with others without a fork.
pub(super) fn maps_shared(process: &Process, region: &Region) -> bool {
    let mapping = process.mappings.get(region.mapping as usize);
    mapping.is_none_or(|mapping| mapping.kind == MappingKind::Shared || mapping.flags.mergeable)
}

/// Returns ascending regions as ranges.
pub(super) fn merge(pages: &[HugePage]) -> Vec<VirtRange> {
    VirtRange::joined(pages.iter().map(|page| page.range()))
}

/// Removes pages that other processes map, too, from the results for the regions in `shared`
/// (ascending). Returns the present memory that this removes. A region without remaining pages
/// counts as not sampled.
pub(super) fn leave_out_shared(
    root: &KernelRoot,
    id: ProcessId,
    found: &mut [RegionBits],
    shared: &[HugePage],
) -> Result<Bytes, TrackError> {
    let mut left_out = 0;
    if shared.is_empty() {
        return Ok(Bytes::ZERO);
    }
    let pagemap = Pagemap::open(root, id.pid)?;
    for region in found.iter_mut().filter(|region| shared.binary_search(&region.page).is_ok()) {
        let list = pagemap.entries(region.page.range())?;
        let (mut exclusive, mut accessed, mut others) = (0u16, 0u16, 0u64);
        for (page, entry) in list.iter().enumerate().filter(|(_, entry)| entry.is_present()) {
            let set = region.bits.is_some_and(|bits| bits[page / 64] >> (page % 64) & 1 != 0);
            if entry.is_exclusive() {
                exclusive += 1;
                accessed += u16::from(set);
            } else {
                others += 1;
            }
        }
        // Pages of zeros belong to no process, and are not sampled anyway.
        let others = others.saturating_sub(u64::from(region.zero_page));
        if others > 0 {
            left_out += others;
            let known = exclusive > 0 && region.bits.is_some();
            region.accessed = region.accessed.filter(|_| known).map(|_| accessed);
        }
    }
    Ok(Bytes(left_out * BASE_PAGE as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_joined_to_ranges() {
        let huge = HugePage::SIZE;
        let range = |from: u64, to: u64| VirtRange::new(from * huge, to * huge).unwrap();
        assert_eq!(merge(&[0, 1, 2, 5].map(HugePage::nth)), [range(0, 3), range(5, 6)]);
        assert!(merge(&[]).is_empty());
    }
}
