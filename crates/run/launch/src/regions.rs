//! Reasons for memory on base pages that only the page tables show.

use crate::kinds::{Kind, Kinds};
use crate::why::{Setting, Why};
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::Mapping;
use megapage_observe::PageTables;
use megapage_units::{Bytes, Pid};
use std::cmp::Reverse;

/// Largest number of bytes on base pages that are read page by page for one sample: some 20 ms.
const MOST_LOOKED: u64 = 4 << 30;
/// Largest number of mappings that are read, those with most base pages first: some 3 ms.
const MOST_MAPPINGS_LOOKED: usize = 128;
/// The longest mapping that is read, in bytes: the page table of a longer one may describe little
/// memory.
const LONGEST_LOOKED: u64 = 64 << 30;

/// Explains by the page tables what the mappings and the settings do not explain. Unreadable memory
/// stays unexplained.
pub(crate) fn look_at_regions(
    root: &KernelRoot,
    pid: Pid,
    mappings: &[Mapping],
    kinds: &[Kind],
    setting: &Setting,
    sums: &mut Kinds,
) {
    let is_open = |(mapping, kind): &(&Mapping, &Kind)| {
        mapping.backing().base > Bytes::ZERO
            && mapping.range.len().0 <= LONGEST_LOOKED
            && !matches!(kind, Kind::Files)
            && setting.why(mapping, **kind) == Why::Unexplained
    };
    let mut open: Vec<(&Mapping, &Kind)> = mappings.iter().zip(kinds).filter(is_open).collect();
    open.sort_by_key(|(mapping, _)| Reverse(mapping.backing().base));
    open.truncate(MOST_MAPPINGS_LOOKED);
    let mut left = MOST_LOOKED;
    let mut tables: Option<PageTables> = None;
    for (mapping, kind) in open {
        let base = mapping.backing().base;
        if base.0 > left {
            continue;
        }
        left -= base.0;
        if tables.is_none() {
            let Ok(opened) = PageTables::open(root, pid) else { return };
            tables = Some(opened);
        }
        let Some(Ok(regions)) = tables.as_mut().map(|tables| tables.regions_in(mapping)) else { return };
        let sum = &mut sums.get_mut(*kind).base;
        let mut edges = base;
        for region in regions.iter().filter(|region| region.huge != Some(true)) {
            let present = region.present_bytes().min(edges);
            edges = edges.saturating_sub(present);
            // If it is unknown that the region is huge, no reason is given.
            let why = region.huge.map_or(Why::Unexplained, |_| {
                setting.why_region(region.present, &mapping.permissions, *kind)
            });
            sum.explain(why, present);
        }
        sum.explain(Why::MappingEdge, edges);
    }
}
