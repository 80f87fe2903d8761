//! The hugetlb pools: their sizes, their free pages, their users, and the limits that apply.

use megapage_kernel::cgroup::{Cgroups, HugetlbCharge, Level};
use megapage_kernel::hugetlb::{self, PoolCounts, PoolScope};
use megapage_kernel::hugetlb_users::{self, HugetlbFile, SysvSegment};
use megapage_kernel::mounts::{self, HugetlbfsMount};
use megapage_kernel::smaps::{self, Mapping};
use megapage_kernel::{KernelError, KernelRoot, meminfo, process};
use megapage_snapshot::wire;
use megapage_units::{Bytes, PageSize, Pid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Largest number of files that are listed for each hugetlbfs mount.
const MOST_FILES: usize = 10_000;

/// All pools at one moment. The kernel's files are read one after the other, so that values may be
/// a moment apart on a busy machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pools {
    /// `MemTotal`.
    #[serde(serialize_with = "wire::some_bytes", rename = "memory_total_bytes")]
    pub memory_total: Option<Bytes>,
    /// `MemAvailable`: memory for new programs. Free hugetlb pages are not part of it.
    #[serde(serialize_with = "wire::some_bytes", rename = "memory_available_bytes")]
    pub memory_available: Option<Bytes>,
    /// Page size of mmap(MAP_HUGETLB) when none is named.
    pub default_page_size: Option<String>,
    /// One pool for each page size, ascending.
    pub pools: Vec<Pool>,
    /// Processes that map hugetlb pages, or have reserved them by a mapping.
    pub processes: Vec<ProcessUse>,
    /// Files on the hugetlbfs mounts, mapped or not.
    pub files: Vec<FileUse>,
    /// Memory files (memfd_create) on hugetlb pages that processes have open.
    pub memory_files: Vec<MemoryFileUse>,
    /// System V segments: those on hugetlb pages that a process has attached, and unattached ones.
    /// The kernel does not show the page size of unattached segments.
    pub segments: Vec<SegmentUse>,
    /// The hugetlbfs mounts.
    pub mounts: Vec<MountUse>,
    /// Limits of the control groups of this process. A group without a limit for a size is left
    /// out.
    pub limits: Vec<LimitUse>,
    /// True if groups further up may limit this process without being visible, as in a container.
    pub limits_hidden: bool,
    /// Processes without read access to their mappings for us. Their hugetlb pages are not listed.
    pub unreadable_processes: u64,
    /// True if more than 10,000 files, or directories deeper than the search goes, were left out.
    pub files_left_out: bool,
}

/// Pool of one page size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Sum over all nodes.
    pub machine: PoolReport,
    /// Part of each node; empty where the kernel knows no nodes.
    pub nodes: Vec<NodeCounts>,
}

/// Values of one pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolReport {
    /// All pages, surplus included.
    pub total: u64,
    /// Pages that no mapping and no file holds.
    pub free: u64,
    /// Free pages reserved for mappings. `None` for a node: the kernel counts reservations for the
    /// machine only.
    pub reserved: Option<u64>,
    /// Free pages that are not reserved: pages for new mappings. `None` for a node.
    pub available: Option<u64>,
    /// Pages beyond the persistent ones. They return to the kernel when they are freed.
    pub surplus: u64,
    /// Pages that stay in the pool when they are freed.
    pub persistent: u64,
    /// Largest number of surplus pages that may be taken on demand. `None` for a node.
    pub overcommit: Option<u64>,
    /// Pages that a mapping or a file holds.
    pub in_use: u64,
}

impl From<PoolCounts> for PoolReport {
    fn from(counts: PoolCounts) -> PoolReport {
        PoolReport {
            total: counts.total,
            free: counts.free,
            reserved: counts.reserved,
            available: counts.available(),
            surplus: counts.surplus,
            persistent: counts.persistent(),
            overcommit: counts.overcommit,
            in_use: counts.in_use(),
        }
    }
}

/// Part of a pool on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCounts {
    /// Node number.
    pub node: u32,
    /// Values of the node.
    #[serde(flatten)]
    pub counts: PoolReport,
}

megapage_units::named! {
    /// Kind of a mapping of hugetlb pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MappingKind {
        /// mmap(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB): a heap.
        Private = "private",
        /// mmap(MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB).
        Shared = "shared",
        /// Memory file.
        MemoryFile = "memory file",
        /// System V segment.
        Segment = "segment",
        /// File on hugetlbfs.
        File = "file",
    }
}

/// Hugetlb pages of one size that one process maps in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessUse {
    /// Process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Command name.
    pub command: String,
    /// Real user.
    pub uid: u32,
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Kind of the mappings.
    pub kind: MappingKind,
    /// File, memory file or segment; empty for anonymous memory.
    pub name: String,
    /// Mapped addresses, in bytes. Mapped pages that are not present are reserved, unless they were
    /// mapped with MAP_NORESERVE.
    #[serde(serialize_with = "wire::bytes", rename = "mapped_bytes")]
    pub mapped: Bytes,
    /// Pages present in the process's page tables, in bytes. A page that several processes share
    /// counts in each.
    #[serde(serialize_with = "wire::bytes", rename = "present_bytes")]
    pub present: Bytes,
}

/// File on hugetlbfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileUse {
    /// Path of the file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Length of the file.
    #[serde(serialize_with = "wire::bytes", rename = "length_bytes")]
    pub length: Bytes,
    /// Pages that the file holds until it is removed.
    #[serde(serialize_with = "wire::bytes", rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// Owner of the file.
    pub uid: u32,
}

/// Memory file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFileUse {
    /// Name passed to memfd_create.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub name: PathBuf,
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Length of the file.
    #[serde(serialize_with = "wire::bytes", rename = "length_bytes")]
    pub length: Bytes,
    /// Pages that the file holds until the last descriptor and mapping are gone.
    #[serde(serialize_with = "wire::bytes", rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// Processes that have the file open.
    pub open_in: Vec<i32>,
}

/// System V segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentUse {
    /// Identifier, for ipcrm -m.
    pub id: u64,
    /// Key of the segment.
    pub key: i32,
    /// Page size, if a process has it attached.
    pub page_size: Option<String>,
    /// Length of the segment.
    #[serde(serialize_with = "wire::bytes", rename = "length_bytes")]
    pub length: Bytes,
    /// Number of attachments.
    pub attached: u64,
    /// Owner of the segment.
    pub uid: u32,
}

/// Mount of hugetlbfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountUse {
    /// Mount point.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub point: PathBuf,
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Largest number of bytes that its files may hold; `None`: all of the pool.
    #[serde(serialize_with = "wire::some_bytes", rename = "size_bytes")]
    pub size: Option<Bytes>,
    /// Permission bits of its root directory when it was mounted, in octal.
    pub mode: String,
    /// Owner of its root directory when it was mounted.
    pub uid: u32,
    /// Group of its root directory when it was mounted.
    pub gid: u32,
}

/// Limits of a control group for one page size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitUse {
    /// Directory of the group.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub group: PathBuf,
    /// Page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Largest number of bytes that may be touched; a touch beyond it raises SIGBUS. `None`: no
    /// limit.
    #[serde(serialize_with = "wire::some_bytes")]
    pub touched_limit_bytes: Option<Bytes>,
    /// Touched bytes.
    #[serde(serialize_with = "wire::bytes")]
    pub touched_bytes: Bytes,
    /// Largest number of bytes that may be mapped; mmap answers ENOMEM beyond it. `None`: no limit.
    #[serde(serialize_with = "wire::some_bytes")]
    pub mapped_limit_bytes: Option<Bytes>,
    /// Mapped bytes.
    #[serde(serialize_with = "wire::bytes")]
    pub mapped_bytes: Bytes,
}

/// Reads all pools and their users. Leaves out processes that end meanwhile, and counts those that
/// may not be read.
pub fn pools(root: &KernelRoot) -> Result<Pools, KernelError> {
    let info = meminfo(root)?;
    let nodes = hugetlb::nodes(root)?;
    let mut pools = Vec::new();
    for page_size in hugetlb::page_sizes(root)? {
        let machine = hugetlb::counts(root, page_size, PoolScope::Machine)?.into();
        let mut parts = Vec::new();
        for &node in &nodes {
            match hugetlb::counts(root, page_size, PoolScope::Node(node)) {
                Ok(counts) => parts.push(NodeCounts { node, counts: counts.into() }),
                // A node without memory has no pools.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        pools.push(Pool { page_size, machine, nodes: parts });
    }
    let mounts = mounts::hugetlbfs_mounts(root)?;
    let mut users = Users::default();
    for pid in process::list_processes(root)? {
        match users.add(root, pid, &mounts) {
            Err(error) if !error.is_gone() => users.unreadable += 1,
            _ => {}
        }
    }
    let (files, files_left_out) = files(root, &mounts);
    let groups = Cgroups::read(root, None)?.hugetlb;
    Ok(Pools {
        memory_total: info.total,
        memory_available: info.available,
        default_page_size: info.default_huge_size.map(|size| size.to_string()),
        pools,
        segments: segments(hugetlb_users::sysv_segments(root)?, &users.processes),
        processes: users.processes.into_iter().map(|(_, one)| one).collect(),
        files,
        memory_files: users.memory_files.into_values().collect(),
        mounts: mounts.into_iter().map(mount).collect(),
        limits_hidden: groups.as_ref().is_some_and(|lineage| !lineage.complete),
        limits: groups.iter().flat_map(|lineage| &lineage.levels).flat_map(limits).collect(),
        unreadable_processes: users.unreadable,
        files_left_out,
    })
}

/// Inode number of a mapping.
type Inode = u64;

#[derive(Default)]
struct Users {
    processes: Vec<(Inode, ProcessUse)>,
    memory_files: BTreeMap<(u64, u64), MemoryFileUse>,
    unreadable: u64,
}

impl Users {
    fn add(&mut self, root: &KernelRoot, pid: Pid, mounts: &[HugetlbfsMount]) -> Result<(), KernelError> {
        let status = process::read_status(root, pid)?;
        // Kernel threads and zombies have no page tables. `HugetlbPages`, which not every kernel
        // reports, counts present pages but not reserved ones.
        if status.page_tables == Bytes::ZERO {
            return Ok(());
        }
        if status.hugetlb > Bytes::ZERO || hugetlb_users::may_map_hugetlb(root, pid, mounts)? {
            let mut uses: BTreeMap<_, (Inode, ProcessUse)> = BTreeMap::new();
            for mapping in smaps::read_smaps(root, pid)?.iter().filter(|mapping| is_hugetlb(mapping)) {
                let (kind, name) = kind(mapping);
                let entry = uses.entry((mapping.kernel_page_size, kind, name.clone()));
                let (_, sum) = entry.or_insert_with(|| {
                    let one = ProcessUse {
                        pid,
                        command: status.name.clone(),
                        uid: status.uids[0],
                        page_size: mapping.kernel_page_size,
                        kind,
                        name,
                        mapped: Bytes::ZERO,
                        present: Bytes::ZERO,
                    };
                    (mapping.inode, one)
                });
                sum.mapped += mapping.range.len();
                sum.present += mapping.hugetlb;
            }
            self.processes.extend(uses.into_values());
        }
        for file in hugetlb_users::memfds(root, pid).or_else(none_if_captured(root))? {
            let entry = self.memory_files.entry(file.identity);
            entry.or_insert_with(|| memory_file(file)).open_in.push(pid.0);
        }
        Ok(())
    }
}

/// Returns no file for a captured tree, which holds no descriptors.
fn none_if_captured(
    root: &KernelRoot,
) -> impl FnOnce(KernelError) -> Result<Vec<HugetlbFile>, KernelError> + use<> {
    let live = root.is_live();
    move |error| if live { Err(error) } else { Ok(Vec::new()) }
}

/// Returns true if a mapping is of a pool. Device-DAX mappings have large pages too, but no pool.
fn is_hugetlb(mapping: &Mapping) -> bool {
    mapping.kernel_page_size > PageSize::BASE && !mapping.name.starts_with("/dev/dax")
}

/// Returns the kind and name of a mapping, from the name that the kernel gives its file.
fn kind(mapping: &Mapping) -> (MappingKind, String) {
    let name = mapping.name.strip_suffix(" (deleted)").unwrap_or(&mapping.name);
    if name.starts_with("/anon_hugepage") {
        let shared = mapping.permissions.ends_with('s');
        (if shared { MappingKind::Shared } else { MappingKind::Private }, String::new())
    } else if let Some(name) = name.strip_prefix("/memfd:") {
        (MappingKind::MemoryFile, name.to_string())
    } else if name.starts_with("/SYSV") {
        (MappingKind::Segment, format!("shmid {}", mapping.inode))
    } else {
        (MappingKind::File, mapping.name.clone())
    }
}

fn files(root: &KernelRoot, mounts: &[HugetlbfsMount]) -> (Vec<FileUse>, bool) {
    let mut all: BTreeMap<(u64, u64), FileUse> = BTreeMap::new();
    let mut left_out = false;
    for mount in mounts {
        let (files, more) = hugetlb_users::files(root, mount, MOST_FILES);
        left_out |= more;
        // A bind mount shows the same files again.
        for file in files {
            all.entry(file.identity).or_insert(FileUse {
                path: file.name,
                page_size: file.page_size,
                length: file.length,
                allocated: file.allocated,
                uid: file.uid,
            });
        }
    }
    let mut files: Vec<FileUse> = all.into_values().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    (files, left_out)
}

fn memory_file(file: HugetlbFile) -> MemoryFileUse {
    MemoryFileUse {
        name: file.name,
        page_size: file.page_size,
        length: file.length,
        allocated: file.allocated,
        open_in: Vec::new(),
    }
}

fn segments(segments: Vec<SysvSegment>, processes: &[(Inode, ProcessUse)]) -> Vec<SegmentUse> {
    segments
        .into_iter()
        .filter_map(|segment| {
            let page_size = processes
                .iter()
                .find(|(inode, one)| one.kind == MappingKind::Segment && *inode == segment.id)
                .map(|(_, one)| one.page_size.to_string());
            // An attached segment without known hugetlb pages is an ordinary one, or attached in a
            // process that we may not read.
            if page_size.is_none() && segment.attached > 0 {
                return None;
            }
            Some(SegmentUse {
                id: segment.id,
                key: segment.key,
                page_size,
                length: segment.length,
                attached: segment.attached,
                uid: segment.uid,
            })
        })
        .collect()
}

fn limits(level: &Level<Vec<HugetlbCharge>>) -> impl Iterator<Item = LimitUse> {
    let limited = |size: &&HugetlbCharge| size.fault.limit.is_some() || size.reservation.limit.is_some();
    level.charged.iter().filter(limited).map(|size| LimitUse {
        group: level.directory.clone(),
        page_size: size.page_size,
        touched_limit_bytes: size.fault.limit,
        touched_bytes: size.fault.usage,
        mapped_limit_bytes: size.reservation.limit,
        mapped_bytes: size.reservation.usage,
    })
}

fn mount(mount: HugetlbfsMount) -> MountUse {
    MountUse {
        point: mount.mount.point,
        page_size: mount.page_size,
        size: mount.size,
        mode: format!("{:o}", mount.mode),
        uid: mount.uid,
        gid: mount.gid,
    }
}
