//! Clearing of accessed bits with MADV_COLD.
//!
//! The call makes every page of its ranges one of the first to be reclaimed, even if the bit of the
//! page is clear. That takes about 60 ns a page, and 20 ns more for a set bit. So the page tables
//! are read before, at 3 ns a page, and regions without a set bit are left out.

use super::{BpfTracker, regions, walk_error};
use crate::tracker::{RegionBits, TrackError, part};
use megapage_kernel::page_tables::AddressSpace;
use megapage_kernel::{KernelError, maps, process_madvise, spawn};
use megapage_snapshot::PAGES;
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage, Pid, VirtRange};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// Memory in one call, in bytes. The kernel holds the target's mmap lock (for reading) during a
/// call: 1 ms for this much on base pages. It flushes the TLB at the end.
const CALL_BYTES: u64 = 64 << 20;
/// Parts of regions in one call: the TLB is flushed after each.
const CALL_PARTS: usize = 128;

impl BpfTracker {
    /// Clears all that can be cleared of `ranges`; only a part of each region on base pages if
    /// `in_part`. Returns the regions that are clear now, and their address space.
    pub(super) fn clear_ranges(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        in_part: bool,
    ) -> Result<(AddressSpace, BTreeSet<HugePage>), TrackError> {
        // The descriptor is opened first. From then on it is this process or none, even if its pid
        // is reused.
        let pidfd = spawn::open_pidfd(pid).map_err(|source| call_error(pid, source))?;
        let space = self.tables.address_space(pid).map_err(|error| walk_error(pid, error))?;
        let mappings = maps::read_maps(&self.root, pid).map_err(|source| maps_error(pid, source))?;
        let whole = clip(ranges, mappings.iter().map(|mapping| mapping.range));
        // Pages still on their way to the LRU lists would keep their bits: up to some dozens for
        // each processor. If the kernel cannot drain them, that many are overcounted.
        let _ = self.drain.drain();
        let mut refused = Vec::new();
        let used = self.in_use(pid, &whole, in_part)?;
        let calls = match in_part {
            true => used.chunks(CALL_PARTS).map(<[VirtRange]>::to_vec).collect(),
            // Ranges stay apart where mappings meet: if a call fails for one, the kernel refuses
            // only that one.
            false => batches(&clip(&VirtRange::joined(used), whole.iter().copied())),
        };
        for batch in calls {
            cold(pidfd.as_fd(), &batch, &mut refused).map_err(|source| call_error(pid, source))?;
        }
        Ok((space, reached(&whole, &refused)))
    }

    /// Returns the pages to clear, region by region: the part of a region if `in_part`, else all.
    /// Leaves out regions without a set bit among these. Returns all of a region that a huge entry
    /// maps now. A part would split it, and the call shows if it is a hugetlb page. A region that
    /// becomes huge between this look and the call is split, but loses nothing.
    fn in_use(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        in_part: bool,
    ) -> Result<Vec<VirtRange>, TrackError> {
        let mut used = Vec::new();
        self.walk(pid, ranges, |region| {
            let is_huge = region.leaf.is_huge();
            let pages = if in_part && !is_huge { part(region.page) } else { 0..PAGES };
            let at = |page: u16| region.page.start() + u64::from(page) * BASE_PAGE as u64;
            if is_huge || !is_clear(&region, pages.clone()) {
                used.extend(VirtRange::new(at(pages.start), at(pages.end)));
            }
        })?;
        Ok(used)
    }
}

/// Returns true if none of `pages` of a region that was walked has its bit set.
fn is_clear(region: &RegionBits, mut pages: Range<u16>) -> bool {
    region.bits.is_some_and(|bits| pages.all(|page| bits[usize::from(page / 64)] >> (page % 64) & 1 == 0))
}

/// Returns the regions of `ranges` that lie whole in one of `mappings`. Others may hold a large
/// folio in two mappings, which MADV_COLD would split. `ranges` is sorted and disjoint, and so is
/// the result, which keeps a boundary where mappings meet. `mappings` ascends, and may overlap if
/// it changed during the reading.
fn clip(ranges: &[VirtRange], mappings: impl Iterator<Item = VirtRange>) -> Vec<VirtRange> {
    let mut clipped = Vec::new();
    let (mut rest, mut from) = (ranges, 0);
    for mapping in mappings {
        let new = VirtRange::new(mapping.start().max(from), mapping.end());
        let Some(inside) = new.and_then(|range| range.aligned_interior(HUGE_2M as u64)) else { continue };
        from = inside.end();
        let passed = rest.partition_point(|range| range.end() <= inside.start());
        rest = &rest[passed..];
        for range in rest.iter().take_while(|range| range.start() < inside.end()) {
            clipped.extend(range.intersection(inside));
        }
    }
    clipped
}

/// Cuts `ranges` into calls of at most [`CALL_BYTES`], and at most as many ranges as the kernel
/// takes.
fn batches(ranges: &[VirtRange]) -> Vec<Vec<VirtRange>> {
    let mut batches = vec![Vec::new()];
    let mut left = CALL_BYTES;
    for &range in ranges {
        let mut start = range.start();
        while start < range.end() {
            let batch = batches.last_mut().expect("never empty");
            if left == 0 || batch.len() == process_madvise::MOST_RANGES {
                batches.push(Vec::new());
                left = CALL_BYTES;
                continue;
            }
            let end = range.end().min(start + left);
            batch.extend(VirtRange::new(start, end));
            left -= end - start;
            start = end;
        }
    }
    batches
}

/// Advises every range of `batch`. Adds those that the kernel does not take to `refused`. Fails
/// only for an error about the process, not about a range. Makes at most one call for each range.
fn cold(pidfd: BorrowedFd<'_>, batch: &[VirtRange], refused: &mut Vec<VirtRange>) -> io::Result<()> {
    let mut rest = batch;
    while !rest.is_empty() {
        let advised = match process_madvise::cold(pidfd, rest) {
            Ok(bytes) => bytes,
            Err(error) => match error.raw_os_error() {
                // EINVAL: locked, hugetlb or device memory. ENOMEM: unmapped since.
                Some(EINVAL | ENOMEM) => 0,
                _ => return Err(error),
            },
        };
        let mut end = 0;
        let done = rest.iter().take_while(|range| {
            end += range.len().0;
            end <= advised
        });
        let done = done.count();
        refused.extend(rest.get(done));
        rest = rest.get(done + 1..).unwrap_or_default();
    }
    Ok(())
}

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;

/// Returns the regions of `ranges` without those of `refused`, of which a part stands for all.
fn reached(ranges: &[VirtRange], refused: &[VirtRange]) -> BTreeSet<HugePage> {
    let pages = refused.iter().flat_map(|range| range.by_huge_page());
    let refused: BTreeSet<HugePage> = pages.map(|(page, _)| page).collect();
    ranges.iter().copied().flat_map(regions).filter(|page| !refused.contains(page)).collect()
}

fn call_error(pid: Pid, source: io::Error) -> TrackError {
    match source.raw_os_error() {
        Some(ESRCH) => TrackError::Gone(pid),
        Some(EPERM | EACCES) => TrackError::Denied {
            pid,
            what: "clearing accessed bits needs CAP_SYS_NICE, and CAP_SYS_PTRACE for other users' processes: run as \
                   root, or setcap cap_sys_nice,cap_sys_ptrace=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps"
                .into(),
        },
        _ => TrackError::Failed(format!("process {pid}: process_madvise with MADV_COLD: {source}")),
    }
}

fn maps_error(pid: Pid, source: KernelError) -> TrackError {
    match source.raw_os_error() {
        Some(EPERM | EACCES) => TrackError::Denied {
            pid,
            what: "its mappings cannot be read: CAP_SYS_PTRACE lacks, or a security module forbids it".into(),
        },
        _ if source.is_gone() => TrackError::Gone(pid),
        _ => TrackError::Kernel(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::PageBits;
    use megapage_snapshot::Leaf;

    const HUGE: u64 = HUGE_2M as u64;

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange::new(start, end).unwrap()
    }

    #[test]
    fn only_regions_whole_in_one_mapping_are_cleared() {
        let ranges = [range(0, 4 * HUGE), range(6 * HUGE, 8 * HUGE), range(9 * HUGE, 10 * HUGE)];
        let mappings = [
            range(0x1000, 2 * HUGE + 0x1000),
            range(2 * HUGE + 0x1000, 3 * HUGE),
            range(3 * HUGE, 7 * HUGE),
            range(7 * HUGE, 9 * HUGE - 0x1000),
        ];
        let expected = [
            range(HUGE, 2 * HUGE),
            range(3 * HUGE, 4 * HUGE),
            range(6 * HUGE, 7 * HUGE),
            range(7 * HUGE, 8 * HUGE),
        ];
        assert_eq!(clip(&ranges, mappings.into_iter()), expected);
        assert_eq!(clip(&ranges, [].into_iter()), []);
        let overlapping = [range(0, 2 * HUGE), range(HUGE, 3 * HUGE), range(0, HUGE)];
        assert_eq!(clip(&ranges, overlapping.into_iter()), [range(0, 2 * HUGE), range(2 * HUGE, 3 * HUGE)]);
    }

    #[test]
    fn a_bit_that_is_set_is_found_within_the_pages_that_are_asked_for() {
        let with = |bits: PageBits| RegionBits {
            page: HugePage::nth(1),
            leaf: Leaf::Base,
            present: PAGES,
            zero_page: 0,
            swapped: 0,
            accessed: None,
            bits: Some(bits),
        };
        assert!(is_clear(&with([0; 8]), 0..PAGES));
        let one = with(std::array::from_fn(|word| if word == 2 { 1 << 5 } else { 0 }));
        assert!(!is_clear(&one, 0..PAGES) && !is_clear(&one, 133..134));
        assert!(is_clear(&one, 0..133) && is_clear(&one, 134..PAGES));
    }

    #[test]
    fn calls_are_bounded_in_bytes_and_ranges() {
        let long = batches(&[range(0, 40 * HUGE), range(50 * HUGE, 51 * HUGE)]);
        assert_eq!(long.len(), 2);
        assert_eq!(long[0], [range(0, 32 * HUGE)]);
        assert_eq!(long[1], [range(32 * HUGE, 40 * HUGE), range(50 * HUGE, 51 * HUGE)]);
        assert_eq!(batches(&[]), [Vec::new()]);
    }

    #[test]
    fn refused_regions_do_not_count_as_cleared() {
        let ranges = [range(0, 3 * HUGE), range(5 * HUGE, 6 * HUGE)];
        let reached = reached(&ranges, &[range(HUGE, 2 * HUGE)]);
        assert_eq!(reached, [0, 2, 5].map(HugePage::nth).into());
    }
}
