//! The preferred tracker: a BPF program reads the page tables, and madvise(MADV_COLD) clears the
//! bits.

mod clear;

use super::{PageBits, RegionBits, TrackError, Tracker};
use megapage_kernel::KernelRoot;
use megapage_kernel::lru::LruDrain;
use megapage_kernel::page_tables::{
    AddressSpace, EntrySize, OpenError, PageTables, TableMapping, TableRegion, WalkError,
};
use megapage_kernel::pagemap::Region as Held;
use megapage_snapshot::{Leaf, TrackerKind};
use megapage_units::{HUGE_2M, HugePage, Pid, VirtRange};
use std::collections::BTreeMap;

/// Most processes with a stored clearing. Beyond that, the one with the lowest pid is forgotten.
/// Its next reading then shows no accesses.
const MOST_PROCESSES: usize = 4096;
/// Most attempts to look a mapping up while its process changes its address space.
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
    /// Ranges that are sorted, disjoint, and consist of whole regions.
    ranges: Vec<VirtRange>,
}

impl Cleared {
    /// Adds the regions that `former` reached, except those that were to be cleared again (`asked`,
    /// sorted and disjoint).
    fn add(&mut self, former: &Cleared, asked: &[VirtRange]) {
        let is_asked = |start: u64| {
            let index = asked.partition_point(|range| range.end() <= start);
            asked.get(index).is_some_and(|range| range.start() <= start)
        };
        let kept = former.ranges.iter().copied().flat_map(regions).filter(|start| !is_asked(*start));
        let mut starts: Vec<u64> = self.ranges.iter().copied().flat_map(regions).chain(kept).collect();
        starts.sort_unstable();
        starts.dedup();
        self.ranges = VirtRange::joined(starts.into_iter().map(|start| HugePage::containing(start).range()));
    }

    fn reached(&self, start: u64) -> bool {
        let index = self.ranges.partition_point(|range| range.end() <= start);
        self.ranges.get(index).is_some_and(|range| range.start() <= start)
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
        each: impl FnMut(TableRegion),
    ) -> Result<AddressSpace, TrackError> {
        let walked = self.tables.walk(pid, ranges, each).map_err(|error| walk_error(pid, error));
        let known = self.cleared.get(&pid).map(|cleared| cleared.space);
        match (walked, known) {
            (Ok(space), Some(known)) if space != known => {
                self.cleared.remove(&pid);
                Err(TrackError::Gone(pid))
            }
            (Err(error @ TrackError::Gone(_)), _) => {
                self.cleared.remove(&pid);
                Err(error)
            }
            (walked, _) => walked,
        }
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

    fn held(&mut self, pid: Pid, ranges: &[VirtRange]) -> Option<Vec<Held>> {
        self.tables.held(pid, ranges).ok().flatten()
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear_and_remember(pid, ranges, false)
    }

    fn clear_part(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear_and_remember(pid, ranges, true)
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut walked = Vec::new();
        self.walk(pid, ranges, |region| walked.push(region))?;
        let mut last = None;
        let mut read = Vec::with_capacity(walked.len());
        for region in walked {
            let reached = self.cleared.get(&pid).is_some_and(|cleared| cleared.reached(region.start));
            let leaf = match region.size {
                EntrySize::Base => Leaf::Base,
                EntrySize::Huge1g => Leaf::Hugetlb1g,
                // A cleared region is no hugetlb page, because MADV_COLD refuses these.
                EntrySize::Huge2m if reached => Leaf::Huge2m,
                EntrySize::Huge2m => match self.is_hugetlb(pid, region.start, &mut last)? {
                    Some(true) => Leaf::Hugetlb2m,
                    Some(false) => Leaf::Huge2m,
                    None => continue,
                },
            };
            let contents = region.contents;
            let accessed: PageBits = contents.accessed;
            read.push(RegionBits {
                start: region.start,
                leaf,
                present: contents.present,
                zero_page: contents.zero_page,
                swapped: contents.swapped,
                accessed: reached.then(|| accessed.iter().map(|word| word.count_ones() as u16).sum()),
                bits: reached.then_some(accessed),
            });
        }
        Ok(read)
    }
}

impl BpfTracker {
    fn clear_and_remember(&mut self, pid: Pid, ranges: &[VirtRange], part: bool) -> Result<(), TrackError> {
        // If this clearing fails, its reach is unknown: then earlier ones do not count either.
        let former = self.cleared.remove(&pid);
        let mut cleared = self.clear_ranges(pid, ranges, part)?;
        if let Some(former) = former.filter(|former| former.space == cleared.space) {
            cleared.add(&former, ranges);
        }
        if self.cleared.len() >= MOST_PROCESSES {
            self.cleared.pop_first();
        }
        self.cleared.insert(pid, cleared);
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

/// Returns the starts of the whole regions in `range`.
fn regions(range: VirtRange) -> impl Iterator<Item = u64> {
    (range.start()..range.end()).step_by(HUGE_2M)
}
