//! The contents of regions, apart from accesses: from the page map, and from smaps for hugetlb
//! pages.

use super::{RegionBits, TrackError};
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::smaps::{self, Mapping};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::Leaf;
use megapage_units::{PageSize, Pid, VirtRange};
use std::io;

/// Converts an error of the kernel about process `pid` to one of a tracker.
pub(super) fn track_error(pid: Pid, error: KernelError) -> TrackError {
    let kind = match &error {
        KernelError::Io { source, .. } => source.kind(),
        KernelError::Parse { .. } => return error.into(),
    };
    match kind {
        _ if error.is_gone() => TrackError::Gone(pid),
        // The page map of a process without an address space is empty.
        io::ErrorKind::UnexpectedEof => TrackError::Gone(pid),
        io::ErrorKind::PermissionDenied => {
            TrackError::Denied { pid, what: format!("{error}; run as its user, or as root") }
        }
        _ => error.into(),
    }
}

/// Opens the page map of `pid`.
pub(super) fn open(root: &KernelRoot, pid: Pid) -> Result<Pagemap, TrackError> {
    Pagemap::open(root, pid).map_err(|error| track_error(pid, error))
}

/// Returns the non-empty regions of `ranges`, ascending, without accesses. A leaf of 2 MiB or more
/// is set if the kernel reports it (Linux 6.7). Before, every leaf is [`Leaf::Base`].
pub(super) fn usage(
    root: &KernelRoot,
    pid: Pid,
    pagemap: &mut Pagemap,
    ranges: &[VirtRange],
) -> Result<Vec<RegionBits>, TrackError> {
    let mut found = Vec::new();
    for range in ranges {
        for region in pagemap.regions(*range).map_err(|error| track_error(pid, error))? {
            if region.present + region.zero_page + region.swapped == 0 {
                continue;
            }
            found.push(RegionBits {
                page: region.page,
                leaf: if region.huge == Some(true) { Leaf::Huge2m } else { Leaf::Base },
                present: region.present,
                zero_page: region.zero_page,
                swapped: region.swapped,
                accessed: None,
                bits: None,
            });
        }
    }
    // The page map does not distinguish hugetlb pages from transparent ones.
    if found.iter().any(|region| region.leaf == Leaf::Huge2m) {
        let mappings = smaps::read_smaps(root, pid).map_err(|error| track_error(pid, error))?;
        for region in found.iter_mut().filter(|region| region.leaf == Leaf::Huge2m) {
            region.leaf = match mapping_at(&mappings, region.page.start()).map(|found| found.kernel_page_size)
            {
                Some(PageSize::HUGE_1G) => Leaf::Hugetlb1g,
                Some(PageSize::HUGE_2M) => Leaf::Hugetlb2m,
                _ => Leaf::Huge2m,
            };
        }
    }
    Ok(found)
}

/// Returns the mapping that holds `address`; `mappings` ascend.
pub(super) fn mapping_at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.range.end() <= address);
    mappings.get(after).filter(|mapping| mapping.range.start() <= address)
}
