//! One process.

use crate::{BackingBytes, Leaf, ProcessSampling, Region, TranslationCost, wire};
use megapage_units::{Bytes, Pid, VirtRange};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// One process with one address space. A pid that is used again, or a process that execs another program, is a
/// different one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProcessId {
    /// The process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
    /// Where its stack starts (field 28 of `/proc/PID/stat`): with address-space randomisation another one after
    /// each execve(2). 0 where the kernel does not show it.
    pub start_stack: u64,
}

megapage_units::named! {
    /// What a mapping is.
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
        /// What the kernel put there: vdso, vvar, vsyscall, device memory.
        Special = "special",
    }
}

/// What a mapping allows and asks for: the permissions of `/proc/PID/maps` and those `VmFlags` of
/// `/proc/PID/smaps` that matter to huge pages.
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
    /// userfaultfd(2) watches it, for missing pages (`um`), write protection (`uw`) or minor faults (`ui`).
    pub userfault: bool,
    /// Memory that is no ordinary page: devices, raw page frames (`io`, `pf`, `mm`).
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
    /// What it is.
    pub kind: MappingKind,
    /// The file, `[heap]`, `[anon:NAME]`, or empty.
    pub name: String,
    /// Permissions and flags.
    pub flags: MappingFlags,
    /// Whether the kernel would give a 2 MiB transparent huge page here under its present settings
    /// (`THPeligible`); `None` where it was not asked.
    pub thp_eligible: Option<bool>,
    /// The file behind it; `None` of anonymous memory, or where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<MappedObject>,
}

/// The file behind a mapping, and the place in it: of shared memory, what several processes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MappedObject {
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// The inode; of a SysV segment its identifier, with the highest bit set.
    pub inode: u64,
    /// Where in the file the mapping starts, in bytes.
    #[serde(rename = "offset_bytes")]
    pub offset: u64,
}

impl Mapping {
    /// Anonymous memory that may be read and written, without a name or further flags.
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
    /// Which: where the kernel shows it.
    pub group: String,
    /// The limit.
    #[serde(serialize_with = "wire::bytes", rename = "limit_bytes")]
    pub limit: Bytes,
    /// What is charged against it, without page cache that gives way to a charge.
    #[serde(serialize_with = "wire::bytes", rename = "usage_bytes")]
    pub usage: Bytes,
}

impl MemoryLimit {
    /// The share in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        (self.usage.0 as f64 / self.limit.0.max(1) as f64).min(1.0)
    }
}

/// One process, as observed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Which.
    pub id: ProcessId,
    /// The parent.
    #[serde(serialize_with = "wire::pid")]
    pub parent: Pid,
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The real user.
    pub uid: u32,
    /// The control group of the memory controller, of version 1 or 2; empty where there is none.
    pub cgroup: String,
    /// Of the control groups that limit its memory, the fullest; `None` where none does, or it could not be seen.
    pub memory_limit: Option<MemoryLimit>,
    /// Threads.
    pub threads: u64,
    /// Processor time so far, user and system, of all threads.
    #[serde(serialize_with = "wire::seconds", rename = "cpu_seconds")]
    pub cpu: Duration,
    /// Resident memory without hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "rss_bytes")]
    pub rss: Bytes,
    /// The anonymous part of it.
    #[serde(serialize_with = "wire::bytes", rename = "rss_anonymous_bytes")]
    pub rss_anonymous: Bytes,
    /// Swapped out.
    #[serde(serialize_with = "wire::bytes", rename = "swap_bytes")]
    pub swap: Bytes,
    /// Page tables.
    #[serde(serialize_with = "wire::bytes", rename = "page_tables_bytes")]
    pub page_tables: Bytes,
    /// What the present memory is backed by, hugetlb pages included.
    pub backing: BackingBytes,
    /// Whether transparent huge pages are switched off for it by prctl(PR_SET_THP_DISABLE).
    pub thp_disabled: bool,
    /// The mappings, ascending.
    pub mappings: Vec<Mapping>,
    /// The regions that hold something, ascending.
    pub regions: Vec<Region>,
    /// Children that it has forked and that have not executed a program yet: they share its memory copy-on-write,
    /// so that a huge page may be copied whole at the next write. `None` where that was not looked up.
    pub sharing_children: Option<u32>,
    /// What address translation costs it, where that is known.
    pub translation: Option<TranslationCost>,
    /// How its access bits were sampled; `None` where they were not yet.
    pub sampling: Option<ProcessSampling>,
}

/// What all users may see of a process, also of another user's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outline {
    /// Which.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The real user.
    pub uid: u32,
    /// Its login name; `None` where it has none, or nobody has looked.
    pub user: Option<String>,
    /// The control group, as [`Process::cgroup`]; empty where nobody has looked.
    pub cgroup: String,
    /// The namespace and name of the pod, `shop/cart-0`, where this node tells it.
    pub pod_name: Option<String>,
    /// Resident memory without hugetlb pages.
    #[serde(serialize_with = "wire::bytes", rename = "rss_bytes")]
    pub rss: Bytes,
    /// Mapped hugetlb pages of all sizes.
    #[serde(serialize_with = "wire::bytes", rename = "hugetlb_bytes")]
    pub hugetlb: Bytes,
    /// Swapped out.
    #[serde(serialize_with = "wire::bytes", rename = "swap_bytes")]
    pub swap: Bytes,
}

impl Outline {
    /// Everything that is resident, hugetlb included.
    pub fn resident(&self) -> Bytes {
        self.rss + self.hugetlb
    }
}

impl Process {
    /// A process without memory, with one thread that has not run yet, of root and of init, of which nothing else is
    /// known.
    pub fn without_memory(id: ProcessId, name: &str) -> Process {
        Process {
            id,
            parent: Pid(1),
            name: name.into(),
            uid: 0,
            cgroup: String::new(),
            memory_limit: None,
            threads: 1,
            cpu: Duration::ZERO,
            rss: Bytes::ZERO,
            rss_anonymous: Bytes::ZERO,
            swap: Bytes::ZERO,
            page_tables: Bytes::ZERO,
            backing: BackingBytes::default(),
            thp_disabled: false,
            mappings: Vec::new(),
            regions: Vec::new(),
            sharing_children: None,
            translation: None,
            sampling: None,
        }
    }

    /// The share, 0 to 1, of the present memory that lies on pages of 2 MiB or more; 0 where nothing is present.
    pub fn huge_share(&self) -> f64 {
        match self.backing.total().0 {
            0 => 0.0,
            total => self.backing.huge().0 as f64 / total as f64,
        }
    }

    /// The place in an object of shared memory that a region maps; `None` of other memory, and where the mapping does not hold
    /// the region whole.
    pub fn shared_block(&self, region: &Region) -> Option<MappedObject> {
        let mapping = self.mappings.get(region.mapping as usize)?;
        let object = mapping.object.filter(|_| mapping.kind == MappingKind::Shared && region.whole)?;
        let inside = region.start.checked_sub(mapping.range.start())?;
        Some(MappedObject { offset: object.offset.checked_add(inside)?, ..object })
    }

    /// The zero-filled part of its transparent huge pages, as far as they were scanned.
    pub fn bloat(&self) -> Bytes {
        self.regions.iter().map(Region::bloat).sum()
    }

    /// The mean coverage, 0 to 512, of the regions that were sampled; `None` where none was.
    pub fn mean_coverage(&self) -> Option<f64> {
        let sampled = || self.regions.iter().filter_map(|region| region.accessed);
        let count = sampled().count();
        (count > 0)
            .then(|| sampled().map(|accessed| f64::from(accessed.coverage)).sum::<f64>() / count as f64)
    }

    /// When the oldest of the samples was read that the regions show (the snapshot's clock); `None` where there is none.
    /// A large process is sampled in turns: they can be far apart.
    pub fn oldest_sample(&self) -> Option<Duration> {
        self.regions.iter().filter_map(|region| region.accessed).map(|accessed| accessed.sampled).min()
    }

    /// The share, 0 to 1, of the present memory that lies in regions that were sampled; 0 where nothing is present.
    pub fn sampled_share(&self) -> f64 {
        share_of(&self.regions, |_| true, |region| region.accessed.is_some())
    }

    /// The share, 0 to 1, of the private transparent huge pages that were scanned for zeros; 0 where there are none.
    /// Zeros that are shared cannot be released, and are not looked for.
    pub fn scanned_share(&self) -> f64 {
        let is_private = |region: &Region| {
            let kind = self.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
            region.leaf == Leaf::Huge2m && matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous))
        };
        share_of(&self.regions, is_private, |region| region.zeros.is_some())
    }

    /// Regions that one 2 MiB entry of a transparent huge page maps.
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
    /// Those of `process` that no process counted before maps as well.
    pub fn add(&mut self, process: &Process) -> u64 {
        let huge = process.regions.iter().filter(|region| region.leaf == Leaf::Huge2m);
        let new = |region: &&Region| process.shared_block(region).is_none_or(|block| self.seen.insert(block));
        huge.filter(new).count() as u64
    }

    /// Those of all `processes`.
    pub fn of<'a>(processes: impl IntoIterator<Item = &'a Process>) -> u64 {
        let mut pages = HugePages::default();
        processes.into_iter().map(|process| pages.add(process)).sum()
    }
}

/// The share of the present pages of the regions `of` that lie in those of them that are `part`.
fn share_of(regions: &[Region], of: impl Fn(&Region) -> bool, part: impl Fn(&Region) -> bool) -> f64 {
    let (mut all, mut some) = (0u64, 0u64);
    for region in regions.iter().filter(|region| of(region)) {
        all += u64::from(region.present);
        some += if part(region) { u64::from(region.present) } else { 0 };
    }
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}
