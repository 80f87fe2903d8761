//! The preferred tracker: a BPF program reads the page tables, and madvise(MADV_COLD) clears the
//! bits.

mod clear;

use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::KernelRoot;
use megapage_kernel::lru::LruDrain;
use megapage_kernel::page_tables::{AddressSpace, HeldBits, OpenError, PageTables, TableMapping, WalkError};
use megapage_snapshot::{Leaf, TrackerKind};
use megapage_units::{HugePage, HugeRange, Pid, VirtRange};
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of attempts to look a mapping up while its process changes its address space.
const MOST_LOOKUPS: usize = 3;

/// Tracker that reads by BPF and clears by MADV_COLD.
#[derive(Debug)]
pub struct BpfTracker {
    root: KernelRoot,
    tables: PageTables,
    drain: LruDrain,
    cleared: BTreeMap<Pid, Cleared>,
}

/// Regions that the clearings of a process reached. The bits of each region count from its last
/// clearing.
#[derive(Debug)]
struct Cleared {
    space: AddressSpace,
    /// Sorted, disjoint ranges of whole regions.
    ranges: Vec<VirtRange>,
}

impl Cleared {
    fn reached(&self, page: HugePage) -> bool {
        let index = self.ranges.partition_point(|range| range.end() <= page.start());
        self.ranges.get(index).is_some_and(|range| range.start() <= page.start())
    }
}

impl BpfTracker {
    /// Loads the program into the kernel.
    pub fn open(root: &KernelRoot) -> Result<BpfTracker, OpenError> {
        Ok(BpfTracker {
            root: root.clone(),
            tables: PageTables::open(root)?,
            drain: LruDrain::new()?,
            cleared: BTreeMap::new(),
        })
    }

    /// Walks the tables. Forgets the process if its address space differs from the cleared one.
    fn walk(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        each: impl FnMut(RegionBits),
    ) -> Result<AddressSpace, TrackError> {
        let is_other = |space| self.cleared.get(&pid).is_some_and(|cleared| cleared.space != space);
        let walked = match self.tables.walk(pid, ranges, each) {
            Ok(space) if is_other(space) => Err(WalkError::Gone),
            walked => walked,
        };
        if let Err(WalkError::Gone) = walked {
            self.cleared.remove(&pid);
        }
        walked.map_err(|error| walk_error(pid, error))
    }

    /// Returns true if hugetlb pages back `address`. `None` if that is unknown, because the mapping
    /// has gone or its process keeps changing it. `last` is the mapping found last.
    fn is_hugetlb(
        &mut self,
        pid: Pid,
        address: u64,
        last: &mut Option<TableMapping>,
    ) -> Result<Option<bool>, TrackError> {
        for _ in 0..MOST_LOOKUPS {
            if let Some(mapping) = last
                && (mapping.range.start()..mapping.range.end()).contains(&address)
            {
                return Ok(Some(mapping.hugetlb));
            }
            match self.tables.mapping(pid, address) {
                Ok(None) => return Ok(None),
                Ok(found) => *last = found,
                Err(WalkError::Gone) => return Err(TrackError::Gone(pid)),
                // The error is EBUSY.
                Err(WalkError::Io(_)) => {}
            }
        }
        Ok(None)
    }
}

impl Tracker for BpfTracker {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Bpf
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "Locked and hugetlb memory cannot be cleared: its accesses are unknown.",
            "Clearing splits large folios that are mapped in part only, or across a region's edge; none of those is \
             mapped huge.",
            "Clearing makes pages the first to be reclaimed until they are accessed again.",
            "Where others clear accessed bits, too (DAMON, the kernel's own reclaim), a few accesses are missed.",
        ]
    }

    fn leaves_shared(&self) -> bool {
        true
    }

    fn clears_parts(&self) -> bool {
        true
    }

    fn held(&mut self, pid: Pid, ranges: &[VirtRange], asked: &[VirtRange]) -> Option<HeldBits> {
        let (held, walked) = self.tables.held(pid, ranges, asked).ok()??;
        // Bits count only in the address space that was cleared. If the process has another one,
        // `read` returns the error.
        let cleared = self.cleared.get(&pid).filter(|_| !asked.is_empty()).map(|cleared| cleared.space);
        if cleared.is_some() && self.tables.address_space(pid).ok() != cleared {
            return None;
        }
        Some((held, self.told(pid, walked).ok()?))
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear_and_remember(pid, ranges, false)
    }

    fn clear_part(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear_and_remember(pid, ranges, true)
    }

    fn forget(&mut self, pid: Pid) {
        self.cleared.remove(&pid);
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut walked = Vec::new();
        self.walk(pid, ranges, |region| walked.push(region))?;
        self.told(pid, walked)
    }
}

impl BpfTracker {
    /// Returns the regions of a walk. Removes the accesses of regions that were not cleared, and
    /// corrects the leaf of hugetlb pages.
    fn told(&mut self, pid: Pid, walked: Vec<RegionBits>) -> Result<Vec<RegionBits>, TrackError> {
        let mut last = None;
        let mut read = Vec::with_capacity(walked.len());
        for mut region in walked {
            // A cleared region is no hugetlb page, because MADV_COLD refuses these.
            if !self.cleared.get(&pid).is_some_and(|cleared| cleared.reached(region.page)) {
                (region.accessed, region.bits) = (None, None);
                if region.leaf == Leaf::Huge2m {
                    match self.is_hugetlb(pid, region.page.start(), &mut last)? {
                        Some(true) => region.leaf = Leaf::Hugetlb2m,
                        Some(false) => {}
                        None => continue,
                    }
                }
            }
            read.push(region);
        }
        Ok(read)
    }

    fn clear_and_remember(&mut self, pid: Pid, ranges: &[VirtRange], part: bool) -> Result<(), TrackError> {
        // If this clearing fails, its reach is unknown: then earlier ones do not count either.
        let former = self.cleared.remove(&pid);
        let (space, mut pages) = self.clear_ranges(pid, ranges, part)?;
        if let Some(former) = former.filter(|former| former.space == space) {
            // Regions that were to be cleared again count by this clearing alone.
            let asked: BTreeSet<HugePage> = ranges.iter().copied().flat_map(regions).collect();
            pages.extend(former.ranges.into_iter().flat_map(regions).filter(|page| !asked.contains(page)));
        }
        let ranges = VirtRange::joined(pages.into_iter().map(HugePage::range));
        self.cleared.insert(pid, Cleared { space, ranges });
        Ok(())
    }
}

fn walk_error(pid: Pid, error: WalkError) -> TrackError {
    match error {
        WalkError::Gone => TrackError::Gone(pid),
        WalkError::Io(source) => {
            TrackError::Failed(format!("process {pid}: the page tables cannot be read: {source}"))
        }
    }
}

/// Returns the whole regions in `range`.
fn regions(range: VirtRange) -> impl Iterator<Item = HugePage> {
    HugeRange::within(range).into_iter().flat_map(HugeRange::pages)
}
