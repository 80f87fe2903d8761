//! Shared memory of a process: the part that could be promoted, and the reasons for the remainder.
//!
//! A collapse replaces the pages of the object itself (tmpfs file, memfd, SysV segment, shared
//! anonymous memory). Every process that maps it has the huge page from its next access on. So the
//! fill of the object decides, not the part that this one process has touched. Each block of an
//! object is promoted once, however often it is mapped.

use crate::remote::{RemoteError, refusal};
use megapage_kernel::object::ObjectId;
use megapage_kernel::shared_memory::{MemoryDevices, SharedObject};
use megapage_kernel::smaps::Mapping;
use megapage_kernel::thp::{is_switched_off, settings};
use megapage_kernel::{KernelRoot, process};
use megapage_observe::PageTables;
use megapage_snapshot::thp::ThpShmem;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, PageSize, Pid};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const HUGE: u64 = HUGE_2M as u64;
/// Most blocks that are distinguished: 2 TiB of objects.
const MOST_BLOCKS: usize = 1 << 20;
/// Most objects that one look at a process opens. For further ones, the pages that the process
/// itself has touched count.
const MOST_OBJECTS: usize = 256;
/// Most reasons that are stored.
const MOST_REASONS: usize = 8;

/// Block of 2 MiB of an object, by its offset in bytes.
type Block = (ObjectId, u64);

/// Shared memory that a process maps, in bytes. Each block of an object counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SharedMemory {
    /// Bytes in memory, touched by any process.
    pub resident_bytes: u64,
    /// Part of `resident_bytes` that this process maps by 2 MiB entries.
    pub huge_bytes: u64,
    /// Part of `resident_bytes` that could be promoted now.
    pub promotable_bytes: u64,
    /// Part of `resident_bytes` in blocks of which too little is in memory for a huge page.
    pub sparse_bytes: u64,
    /// Part of `resident_bytes` that no 2 MiB entry can map: address and offset of the mapping
    /// disagree modulo 2 MiB.
    pub misplaced_bytes: u64,
    /// Part of `resident_bytes` that the kernel's settings or the process's own rule out.
    pub refused_bytes: u64,
    /// Reasons that not all of it can be promoted, one sentence each.
    pub reasons: Vec<String>,
}

/// Regions of a process's shared memory that could be promoted, and its totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Regions that are dense enough and not huge.
    pub regions: Vec<HugePage>,
    pub memory: SharedMemory,
}

/// Returns true if the mapping holds shared memory that a collapse could act on.
pub(crate) fn is_shared(mapping: &Mapping, devices: &MemoryDevices) -> bool {
    mapping.permissions.ends_with('s')
        && mapping.kernel_page_size == PageSize::BASE
        && mapping.object().is_some()
        && devices.holds(mapping.device, &mapping.name)
}

/// Returns the reason that none of a process's shared memory can be promoted; `None` if none is
/// known.
fn ruled_out(root: &KernelRoot, pid: Pid) -> Option<String> {
    if process::read_status(root, pid).is_ok_and(|status| is_switched_off(root, &status)) {
        return Some(
            "the process runs with transparent huge pages switched off (prctl PR_SET_THP_DISABLE)".into(),
        );
    }
    let denied = settings(root).ok().flatten().is_some_and(|thp| thp.shmem == Some(ThpShmem::Deny));
    denied.then(|| {
        let file = megapage_kernel::thp::path("shmem_enabled");
        format!("{file} is 'deny', which rules out every huge page of shared memory: echo never > {file} lets them be promoted")
    })
}

/// Objects that one look has opened.
struct Objects<'a> {
    root: &'a KernelRoot,
    pid: Pid,
    devices: MemoryDevices,
    opened: BTreeMap<ObjectId, Option<SharedObject>>,
    /// Reason that one could not be opened.
    unseen: Option<String>,
}

impl SharedMemory {
    /// Returns the bytes in memory that are not on huge pages.
    pub fn base_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.huge_bytes)
    }
}

impl Objects<'_> {
    /// Returns one flag for each base page of the mapping's object from `offset` on: true if it is
    /// in memory. `None` if that cannot be seen.
    fn resident(&mut self, mapping: &Mapping, offset: u64, length: u64) -> Option<Vec<bool>> {
        let key = mapping.object()?;
        if !self.opened.contains_key(&key) {
            if self.opened.len() >= MOST_OBJECTS {
                return None;
            }
            let opened = SharedObject::open(self.root, self.pid, mapping, &self.devices);
            if let Err(error) = &opened
                && !error.is_gone()
            {
                self.unseen = Some(error.to_string());
            }
            self.opened.insert(key, opened.ok());
        }
        self.opened.get(&key)?.as_ref()?.resident(offset, length).ok()
    }
}

/// Returns at most `most` regions of `pid` in shared memory that are not huge, each block of an
/// object once. They have at least `least_present` (1 to 512) of their base pages in memory. Also
/// returns the totals of all its shared memory. If the caller may not look into an object, the
/// pages that the process itself has touched count.
pub(crate) fn find(
    root: &KernelRoot,
    pid: Pid,
    mappings: &[Mapping],
    tables: &mut PageTables,
    least_present: u16,
    most: usize,
) -> Result<Found, RemoteError> {
    let mut found = Found::default();
    let devices = MemoryDevices::seen_by(root, pid);
    let mut objects = Objects { root, pid, devices: devices.clone(), opened: BTreeMap::new(), unseen: None };
    let mut seen: BTreeSet<Block> = BTreeSet::new();
    let ruled_out = ruled_out(root, pid);
    let mut misplaced: Option<&Mapping> = None;
    let least = u64::from(least_present.max(1)) * BASE_PAGE as u64;
    for mapping in mappings.iter().filter(|mapping| is_shared(mapping, &devices)) {
        let Some(object) = mapping.object() else { continue };
        let bytes = |pages: &[bool]| pages.iter().filter(|page| **page).count() as u64 * BASE_PAGE as u64;
        let is_new = |offset: u64, seen: &mut BTreeSet<Block>| {
            let block = (object, offset - offset % HUGE);
            seen.len() < MOST_BLOCKS && seen.insert(block)
        };
        let memory = &mut found.memory;
        if !mapping.agrees() {
            if mapping.range.len() < Bytes(HUGE) || !is_new(mapping.offset, &mut seen) {
                continue;
            }
            let resident = objects.resident(mapping, mapping.offset, mapping.range.len().0);
            let resident = resident.map_or(mapping.rss.0, |pages| bytes(&pages));
            memory.resident_bytes += resident;
            memory.misplaced_bytes += resident;
            if resident > 0 && misplaced.is_none_or(|other| other.range.len() < mapping.range.len()) {
                misplaced = Some(mapping);
            }
            continue;
        }
        let Some(inside) = mapping.range.aligned_interior(HUGE) else { continue };
        let regions = tables.regions_in(mapping).map_err(|error| refusal(root, pid, error))?;
        let offset_of = |address: u64| mapping.offset + (address - mapping.range.start());
        let is_advised_against = mapping.has_flag("nh");
        // The object is looked into only if a region is not huge.
        let pages = match regions.iter().any(|region| region.huge != Some(true)) {
            true => objects.resident(mapping, offset_of(inside.start()), inside.len().0),
            false => None,
        };
        for (number, region) in regions.iter().enumerate() {
            if !is_new(offset_of(region.page.start()), &mut seen) {
                continue;
            }
            if region.huge == Some(true) {
                memory.resident_bytes += HUGE;
                memory.huge_bytes += HUGE;
                continue;
            }
            let first = number * (HUGE_2M / BASE_PAGE);
            let part = pages.as_ref().and_then(|pages| pages.get(first..first + HUGE_2M / BASE_PAGE));
            let resident = part.map_or(region.present_bytes().0, bytes);
            memory.resident_bytes += resident;
            if resident == 0 {
                continue;
            }
            if ruled_out.is_some() || is_advised_against {
                memory.refused_bytes += resident;
            } else if resident < least {
                memory.sparse_bytes += resident;
            } else {
                memory.promotable_bytes += resident;
                if found.regions.len() < most {
                    found.regions.push(region.page);
                }
            }
        }
    }
    let memory = &mut found.memory;
    let mut reasons = Vec::new();
    if let (Some(why), true) = (ruled_out, memory.refused_bytes > 0) {
        reasons.push(format!("{} of shared memory: {why}", Bytes(memory.refused_bytes)));
    } else if memory.refused_bytes > 0 {
        let what = "the program has advised against huge pages (MADV_NOHUGEPAGE)";
        reasons.push(format!("{} of shared memory: {what}", Bytes(memory.refused_bytes)));
    }
    reasons.extend(misplaced.map(|mapping| why_misplaced(mapping, memory.misplaced_bytes)));
    if let Some(why) = objects.unseen {
        reasons.push(format!(
            "of shared memory only what this process has touched could be seen: CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE \
             shows the rest ({why})"
        ));
    }
    reasons.truncate(MOST_REASONS);
    memory.reasons = reasons;
    Ok(found)
}

/// Returns the reason that misplaced memory cannot be huge, and the remedy.
fn why_misplaced(largest: &Mapping, bytes: u64) -> String {
    let beyond = |place: u64| Bytes(place % HUGE);
    let file = megapage_kernel::thp::path("shmem_enabled");
    format!(
        "{} of shared memory ({}) cannot be mapped by huge pages: its address is {} beyond a multiple of 2 MiB and its offset \
         {}, and it cannot be moved while the program runs; with {file} at 'advise' before the program starts, the kernel places it right (and \
         makes only memory huge for which a program asks)",
        Bytes(bytes),
        megapage_units::shown::one_line(&largest.name),
        beyond(largest.range.start()),
        beyond(largest.offset),
    )
}

#[cfg(test)]
mod tests;
