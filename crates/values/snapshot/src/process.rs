//! One process.

use crate::{BackingBytes, Leaf, ProcessSampling, Region, TranslationCost, wire};
use megapage_units::{Bytes, Pid, VirtRange};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// One process with one address space. After reuse of the pid, or after execve(2), it is a
/// different one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProcessId {
    /// Identifier of the process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Start time, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
    /// Start of its stack (field 28 of `/proc/PID/stat`). With address-space randomisation it
    /// differs after each execve(2). 0 if the kernel does not show it.
    pub start_stack: u64,
}

megapage_units::named! {
    /// Kind of a mapping.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MappingKind {
        /// The heap of brk(2).
        Heap = "heap",
        /// Private anonymous memory.
        Anonymous = "anonymous",
        /// A stack.
        Stack = "stack",
        /// Shared memory: tmpfs, memfd, System V, shared anonymous.
        Shared = "shared",
        /// Pages of a hugetlb pool, private or shared.
        Hugetlb = "hugetlb",
        /// A file's pages, private or shared: code, data, mapped files.
        File = "file",
        /// Memory of the kernel or of a device: vdso, vvar, vsyscall, device memory.
        Special = "special",
    }
}

/// Permissions of `/proc/PID/maps`, and those `VmFlags` of `/proc/PID/smaps` that matter to huge
/// pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappingFlags {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// MAP_SHARED (`sh`).
    pub shared: bool,
    /// madvise(MADV_HUGEPAGE) (`hg`).
    pub huge: bool,
    /// madvise(MADV_NOHUGEPAGE) (`nh`).
    pub no_huge: bool,
    /// mlock(2) (`lo`).
    pub locked: bool,
    /// userfaultfd(2) watches it, for missing pages (`um`), write protection (`uw`) or minor faults
    /// (`ui`).
    pub userfault: bool,
    /// Memory without ordinary pages: devices, raw page frames (`io`, `pf`, `mm`).
    pub device: bool,
    /// KSM may merge it (`mg`).
    pub mergeable: bool,
    /// Not copied by fork(2) (`dc`).
    pub dont_fork: bool,
}

/// One mapping (VMA).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mapping {
    /// The addresses.
    #[serde(serialize_with = "wire::range")]
    pub range: VirtRange,
    /// Its kind.
    pub kind: MappingKind,
    /// The file, `[heap]`, `[anon:NAME]`, or empty.
    pub name: String,
    /// Permissions and flags.
    pub flags: MappingFlags,
    /// True if the kernel would give a 2 MiB transparent huge page here under its present settings
    /// (`THPeligible`); `None` if it was not asked.
    pub thp_eligible: Option<bool>,
    /// File behind it; `None` for anonymous memory, or if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<MappedObject>,
}

/// File behind a mapping, and the place in it. For shared memory it identifies memory that several
/// processes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MappedObject {
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// The inode; for a SysV segment its identifier, with the highest bit set.
    pub inode: u64,
    /// Offset in the file at which the mapping starts, in bytes.
    #[serde(rename = "offset_bytes")]
    pub offset: u64,
}

impl Mapping {
    /// Returns anonymous memory that may be read and written, without a name or further flags.
    pub fn anonymous(range: VirtRange) -> Mapping {
        Mapping {
            range,
            kind: MappingKind::Anonymous,
            name: String::new(),
            flags: MappingFlags { read: true, write: true, ..MappingFlags::default() },
            thp_eligible: None,
            object: None,
        }
    }
}

/// A control group whose memory is limited. Processes with the same group share its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryLimit {
    /// The control group, as the kernel shows it.
    pub group: String,
    /// The limit.
    #[serde(serialize_with = "wire::bytes", rename = "limit_bytes")]
    pub limit: Bytes,
    /// Memory charged against the limit, without page cache that gives way to a charge.
    #[serde(serialize_with = "wire::bytes", rename = "usage_bytes")]
    pub usage: Bytes,
}

impl MemoryLimit {
    /// Returns the share in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        (self.usage.0 as f64 / self.limit.0.max(1) as f64).min(1.0)
    }
}

/// One process, as observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Process {
    /// Its identity.
    pub id: ProcessId,
    /// The parent.
    #[serde(serialize_with = "wire::pid")]
    pub parent: Pid,
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The real user.
    pub uid: u32,
    /// Control group of the memory controller, version 1 or 2; empty if there is none.
    pub cgroup: String,
    /// Fullest of the control groups that limit its memory; `None` if none does, or if it could not
    /// be seen.
    pub memory_limit: Option<MemoryLimit>,
    /// Number of threads.
    pub threads: u64,
    /// Processor time so far, user and system, of all threads.
    #[serde(serialize_with = "wire::seconds", rename = "cpu_seconds")]
    pub cpu: Duration,
    /// Resident memory without hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "rss_bytes")]
    pub rss: Bytes,
    /// Anonymous part of the resident memory.
    #[serde(serialize_with = "wire::bytes", rename = "rss_anonymous_bytes")]
    pub rss_anonymous: Bytes,
    /// Memory that is swapped out.
    #[serde(serialize_with = "wire::bytes", rename = "swap_bytes")]
    pub swap: Bytes,
    /// Memory of its page tables.
    #[serde(serialize_with = "wire::bytes", rename = "page_tables_bytes")]
    pub page_tables: Bytes,
    /// Backing of the present memory, hugetlb pages included.
    pub backing: BackingBytes,
    /// True if prctl(PR_SET_THP_DISABLE) switches transparent huge pages off for it.
    pub thp_disabled: bool,
    /// The mappings, ascending.
    pub mappings: Vec<Mapping>,
    /// The regions that hold something, ascending.
    pub regions: Vec<Region>,
    /// Children that it has forked and that have not executed a program yet. They share its memory
    /// copy-on-write, so the next write may copy a whole huge page. `None` if this was not looked
    /// up.
    pub sharing_children: Option<u32>,
    /// Cost of address translation, if it is known.
    pub translation: Option<TranslationCost>,
    /// Method of sampling its access bits; `None` if they were not sampled yet.
    pub sampling: Option<ProcessSampling>,
}

/// Values that all users may see of any process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outline {
    /// Identifier of the process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The real user.
    pub uid: u32,
    /// Login name of that user; `None` if there is none, or if it was not looked up.
    pub user: Option<String>,
    /// Control group, as [`Process::cgroup`]; empty if it was not looked up.
    pub cgroup: String,
    /// Namespace and name of the pod, `shop/cart-0`, if this node shows it.
    pub pod_name: Option<String>,
    /// Resident memory without hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "rss_bytes")]
    pub rss: Bytes,
    /// Mapped hugetlb pages of all sizes.
    #[serde(serialize_with = "wire::bytes", rename = "hugetlb_bytes")]
    pub hugetlb: Bytes,
    /// Memory that is swapped out.
    #[serde(serialize_with = "wire::bytes", rename = "swap_bytes")]
    pub swap: Bytes,
}

impl Outline {
    /// Returns the resident memory, hugetlb included.
    pub fn resident(&self) -> Bytes {
        self.rss + self.hugetlb
    }
}

impl Process {
    /// Returns a process without memory, with one thread that has not run yet. It belongs to root,
    /// its parent is init, and nothing else is known of it.
    pub fn without_memory(id: ProcessId, name: &str) -> Process {
        Process { id, parent: Pid(1), name: name.into(), threads: 1, ..Process::default() }
    }

    /// Returns the share, 0 to 1, of the present memory on pages of 2 MiB or more; 0 if nothing is
    /// present.
    pub fn huge_share(&self) -> f64 {
        match self.backing.total().0 {
            0 => 0.0,
            total => self.backing.huge().0 as f64 / total as f64,
        }
    }

    /// Returns the place in an object of shared memory that a region maps. `None` for other memory,
    /// and if the mapping does not hold the whole region.
    pub fn shared_block(&self, region: &Region) -> Option<MappedObject> {
        let mapping = self.mappings.get(region.mapping as usize)?;
        let object = mapping.object.filter(|_| mapping.kind == MappingKind::Shared && region.whole)?;
        let inside = region.start().checked_sub(mapping.range.start())?;
        Some(MappedObject { offset: object.offset.checked_add(inside)?, ..object })
    }

    /// Returns the zero-filled part of its transparent huge pages, as far as they were scanned.
    pub fn bloat(&self) -> Bytes {
        self.regions.iter().map(Region::bloat).sum()
    }

    /// Returns the mean coverage, 0 to 512, of the regions that were sampled; `None` if none was.
    pub fn mean_coverage(&self) -> Option<f64> {
        let sampled = || self.regions.iter().filter_map(|region| region.accessed);
        let count = sampled().count();
        (count > 0)
            .then(|| sampled().map(|accessed| f64::from(accessed.coverage)).sum::<f64>() / count as f64)
    }

    /// Returns the time of the oldest sample in the regions (the snapshot's clock); `None` if there
    /// is none. A large process is sampled part by part, so its samples can be far apart.
    pub fn oldest_sample(&self) -> Option<Duration> {
        self.regions.iter().filter_map(|region| region.accessed).map(|accessed| accessed.sampled).min()
    }

    /// Returns the share, 0 to 1, of the present memory in regions that were sampled; 0 if nothing
    /// is present.
    pub fn sampled_share(&self) -> f64 {
        share_of(&self.regions, |_| true, |region| region.accessed.is_some())
    }

    /// Returns the share, 0 to 1, of the private transparent huge pages that were scanned for
    /// zeros; 0 if there are none. Shared zeros cannot be released, so they are not scanned.
    pub fn scanned_share(&self) -> f64 {
        let is_private = |region: &Region| {
            let kind = self.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
            region.leaf == Leaf::Huge2m && matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous))
        };
        share_of(&self.regions, is_private, |region| region.zeros.is_some())
    }

    /// Returns the number of regions that one 2 MiB entry of a transparent huge page maps.
    pub fn huge_regions(&self) -> usize {
        self.regions.iter().filter(|region| region.leaf == Leaf::Huge2m).count()
    }
}

/// Counts the transparent huge pages of several processes, each block of shared memory once.
#[derive(Clone, Debug, Default)]
pub struct HugePages {
    seen: BTreeSet<MappedObject>,
}

impl HugePages {
    /// Counts the huge pages of `process` that no process counted before maps as well.
    pub fn add(&mut self, process: &Process) -> u64 {
        let huge = process.regions.iter().filter(|region| region.leaf == Leaf::Huge2m);
        let new = |region: &&Region| process.shared_block(region).is_none_or(|block| self.seen.insert(block));
        huge.filter(new).count() as u64
    }

    /// Counts the huge pages of all `processes`.
    pub fn of<'a>(processes: impl IntoIterator<Item = &'a Process>) -> u64 {
        let mut pages = HugePages::default();
        processes.into_iter().map(|process| pages.add(process)).sum()
    }
}

/// Returns the share of the present pages of the regions `of` that lie in those which are also
/// `part`.
fn share_of(regions: &[Region], of: impl Fn(&Region) -> bool, part: impl Fn(&Region) -> bool) -> f64 {
    let (mut all, mut some) = (0u64, 0u64);
    for region in regions.iter().filter(|region| of(region)) {
        all += u64::from(region.present);
        some += if part(region) { u64::from(region.present) } else { 0 };
    }
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}
