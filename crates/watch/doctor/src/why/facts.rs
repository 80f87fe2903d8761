//! Facts about a running process, its mappings and the machine: plain data, from which the reasons
//! follow.

use megapage_kernel::cgroup::Charge;
use megapage_kernel::cgroup::Lineage;
use megapage_kernel::thp::CollapseLimits;
use megapage_observe::{Machine, Mapping, Process, Region};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, VirtRange};
use std::path::{Path, PathBuf};

/// Values of one mapping that a snapshot lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingExtra {
    /// Start of the mapping in its file, in bytes; `None` for anonymous memory.
    pub offset: Option<u64>,
    /// Memory of the mapping that KSM has merged.
    pub merged: Bytes,
}

/// A tmpfs and its option `huge=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Mount point.
    pub point: PathBuf,
    /// Value of the option; `never` if it is not given.
    pub huge: String,
}

/// Start of a process with libhugetlbfs' HUGETLB_MORECORE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Morecore {
    /// Value of the variable.
    pub value: String,
    /// C library that the process has mapped, if one is found.
    pub libc: Option<String>,
}

/// All facts that the reasons follow from.
#[derive(Clone, Debug, PartialEq)]
pub struct WhyFacts {
    /// The machine.
    pub machine: Machine,
    /// The process, with its mappings and regions.
    pub process: Process,
    /// Further values of the process's mappings, in their order.
    pub extras: Vec<MappingExtra>,
    /// Present base pages, for each of the process's regions in their order, that other processes
    /// map, too. `None` if they were not counted.
    pub shared: Vec<Option<u16>>,
    /// Memory that is pinned for the process.
    pub pinned: Bytes,
    /// Limits of khugepaged; `None` if the kernel does not show them.
    pub limits: Option<CollapseLimits>,
    /// Limits of the memory controller; `None` if there are none.
    pub memory_group: Option<Lineage<Charge>>,
    /// The tmpfs mounts.
    pub tmpfs: Vec<Tmpfs>,
    /// Presence of transparent huge pages in the kernel, even if their settings cannot be read.
    pub has_thp: bool,
    /// True if the kernel promotes memory of a running process on request.
    pub collapse: bool,
    /// HUGETLB_MORECORE in the environment that the process was started with; `None` also if the
    /// environment may not be read.
    pub morecore: Option<Morecore>,
}

/// One region, and the mapping for which it is examined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) mapping: &'a Mapping,
    pub(super) extra: &'a MappingExtra,
    /// `None` if it holds nothing.
    pub(super) region: Option<&'a Region>,
    pub(super) shared: Option<u16>,
    /// The first address of the region.
    pub(super) start: u64,
}

impl WhyFacts {
    /// Returns region number `index` of the process, for the mapping that holds most of it. Returns
    /// `None` if the mapping is unknown (it came or went while the process was read).
    pub(super) fn place(&self, index: usize) -> Option<Place<'_>> {
        let region = self.process.regions.get(index)?;
        let mapping = region.mapping as usize;
        Some(Place {
            mapping: self.process.mappings.get(mapping)?,
            extra: self.extras.get(mapping)?,
            region: Some(region),
            shared: self.shared.get(index).copied().flatten(),
            start: region.start(),
        })
    }

    /// Returns the region around `address`, for the mapping that holds the address; `None` if
    /// nothing is mapped there.
    pub(super) fn place_at(&self, address: u64) -> Option<Place<'_>> {
        let mapping = self
            .process
            .mappings
            .iter()
            .position(|mapping| mapping.range.start() <= address && address < mapping.range.end())?;
        let start = address - address % HUGE_2M as u64;
        let index = self.process.regions.binary_search_by_key(&start, |region| region.start()).ok();
        Some(Place {
            mapping: &self.process.mappings[mapping],
            extra: self.extras.get(mapping)?,
            region: index.map(|index| &self.process.regions[index]),
            shared: index.and_then(|index| self.shared.get(index).copied().flatten()),
            start,
        })
    }

    /// Returns the mapping that is nearest to an address without a mapping.
    pub(super) fn nearest(&self, address: u64) -> Option<VirtRange> {
        let ranges = self.process.mappings.iter().map(|mapping| mapping.range);
        ranges.min_by_key(|range| {
            if address < range.start() {
                range.start() - address
            } else {
                address.saturating_sub(range.end())
            }
        })
    }

    /// Returns the tmpfs that holds the file `name`: the one mounted deepest.
    pub(super) fn tmpfs_of(&self, name: &str) -> Option<&Tmpfs> {
        let path = Path::new(name.strip_suffix(" (deleted)").unwrap_or(name));
        let holding = self.tmpfs.iter().filter(|tmpfs| path.starts_with(&tmpfs.point));
        holding.max_by_key(|tmpfs| tmpfs.point.as_os_str().len())
    }
}

impl Place<'_> {
    /// Returns true if the mapping holds the whole region.
    pub(super) fn is_whole(&self) -> bool {
        let range = self.mapping.range;
        range.start() <= self.start && self.start + HUGE_2M as u64 <= range.end()
    }

    /// Returns the base pages of the region without data of the program: absent, or the shared page
    /// of zeros.
    pub(super) fn absent(&self) -> u16 {
        self.region.map_or(512, |region| 512u16.saturating_sub(region.present + region.swapped))
    }

    /// Returns the region, or the part of it that the mapping holds.
    pub(super) fn range(&self) -> VirtRange {
        let region = VirtRange::new(self.start, self.start + HUGE_2M as u64).expect("a process's address");
        region.intersection(self.mapping.range).unwrap_or(region)
    }

    /// Returns the present bytes of the region; never more than the mapping holds of it.
    pub(super) fn present(&self) -> Bytes {
        let present = self.region.map_or(0, |region| u64::from(region.present)) * BASE_PAGE as u64;
        Bytes(present).min(self.range().len())
    }
}
