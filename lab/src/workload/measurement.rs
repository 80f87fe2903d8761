//! Results of a workload: the time of its phases, its digest, and the backing of its memory while
//! it holds all of it.

use anyhow::{Context, Result};
use megapage_bench::statistics::{Spent, nanoseconds};
use megapage_kernel::smaps::{Mapping, backing, read_own_smaps};
use megapage_kernel::{KernelRoot, process_cpu_time};
use megapage_units::PageSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// The results of one run of a workload: the one line that a workload program prints, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The workload and its case, such as `access small`.
    pub workload: String,
    /// The time of each phase.
    pub phases: Phases,
    /// Further values that the workload measures; the unit is in the name.
    #[serde(rename = "figures")]
    pub values: BTreeMap<String, f64>,
    /// A digest of the results: equal arguments give equal digests with any allocator.
    pub checksum: u64,
    /// Backing of the heap while the workload held all of its memory.
    pub backing: HeapBacking,
}

/// Resident bytes of a process's heap, by the kind of page that backs them. The kinds do not
/// overlap. The heap is all private, writable, anonymous mappings except stacks, and private ones
/// of files on a hugetlbfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapBacking {
    /// Bytes on 1 GiB hugetlb pages.
    pub hugetlb_1g: u64,
    /// Bytes on 2 MiB hugetlb pages.
    pub hugetlb_2m: u64,
    /// Bytes on 2 MiB transparent huge pages.
    pub thp: u64,
    /// Bytes on base pages, and on transparent huge pages smaller than 2 MiB, which smaps does not
    /// distinguish.
    pub base: u64,
}

impl HeapBacking {
    /// Reads the present backing of the calling process from the kernel.
    pub fn of_this_process() -> Result<HeapBacking> {
        let mappings = read_own_smaps(&KernelRoot::live()).context("how this process's memory is backed")?;
        // An allocator may place its heap in a file on a hugetlbfs.
        let is_heap = |mapping: &&Mapping| {
            let on_hugetlb =
                mapping.kernel_page_size > PageSize::BASE && mapping.permissions.starts_with("rw");
            mapping.is_heap_like() || on_hugetlb && mapping.permissions.ends_with('p')
        };
        let bytes = backing(mappings.iter().filter(is_heap));
        Ok(HeapBacking {
            hugetlb_1g: bytes.hugetlb_1g.0,
            hugetlb_2m: bytes.hugetlb_2m.0,
            thp: bytes.thp.0,
            base: bytes.base.0,
        })
    }

    /// Returns all resident bytes of the heap.
    pub fn resident(&self) -> u64 {
        self.hugetlb_1g + self.hugetlb_2m + self.thp + self.base
    }

    /// Returns the share on pages of 2 MiB or more, 0 to 1; 0 for an empty heap.
    pub fn huge_share(&self) -> f64 {
        let huge = self.hugetlb_1g + self.hugetlb_2m + self.thp;
        if huge == 0 { 0.0 } else { huge as f64 / self.resident() as f64 }
    }

    /// Returns the share on 1 GiB pages, 0 to 1; 0 for an empty heap.
    pub fn gigantic_share(&self) -> f64 {
        if self.hugetlb_1g == 0 { 0.0 } else { self.hugetlb_1g as f64 / self.resident() as f64 }
    }
}

/// The phases of a workload by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Phases(pub BTreeMap<String, Spent>);

impl Phases {
    /// Does `work` and records its time under `name`.
    pub fn time<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        let (cpu, wall) = (process_cpu_time(), Instant::now());
        let result = work();
        let spent = Spent {
            wall_ns: nanoseconds(wall.elapsed()),
            cpu_ns: nanoseconds(process_cpu_time().saturating_sub(cpu)),
        };
        self.0.insert(name.into(), spent);
        result
    }
}

/// Returns `count` scaled by `scale`, at least `floor`. Tests use it to do the same work in little
/// memory.
pub fn scaled(count: usize, scale: f64, floor: usize) -> usize {
    ((count as f64 * scale) as usize).max(floor)
}
