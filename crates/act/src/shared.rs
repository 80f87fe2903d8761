//! Shared memory of a process: which of it could be promoted, and why the remainder could not.
//!
//! A collapse replaces the pages of the object itself (tmpfs file, memfd, SysV segment, shared anonymous memory), so that every
//! process that maps it has the huge page from its next access on. What counts is therefore how full the object is, not how much
//! of it this one process has touched; and each block of an object is promoted once, however often it is mapped.

use crate::remote::{RemoteError, refusal};
use megapage_kernel::object::ObjectId;
use megapage_kernel::shared_memory::{MemoryDevices, SharedObject};
use megapage_kernel::smaps::Mapping;
use megapage_kernel::thp::{is_switched_off, settings};
use megapage_kernel::{KernelRoot, process};
use megapage_observe::PageTables;
use megapage_snapshot::thp::ThpShmem;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const HUGE: u64 = HUGE_2M as u64;
/// Blocks that are distinguished, at most: 2 TiB of objects.
const MOST_BLOCKS: usize = 1 << 20;
/// Objects that are opened for one look at a process; of further ones counts what the process itself has touched.
const MOST_OBJECTS: usize = 256;
/// Reasons that are stored.
const MOST_REASONS: usize = 8;

/// A block of 2 MiB of an object, and its offset in bytes.
type Block = (ObjectId, u64);

/// The shared memory that a process maps, each block of an object once. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SharedMemory {
    /// What of it is in memory, touched by any process.
    pub resident_bytes: u64,
    /// Of that, what this process maps by 2 MiB entries.
    pub huge_bytes: u64,
    /// Of that, what could be promoted now.
    pub promotable_bytes: u64,
    /// Of that, what lies in blocks of which too little is in memory for a huge page.
    pub sparse_bytes: u64,
    /// Of that, what no 2 MiB entry can map: address and offset of the mapping disagree modulo 2 MiB.
    pub misplaced_bytes: u64,
    /// Of that, what the kernel's settings or the process's own rule out.
    pub refused_bytes: u64,
    /// Why not all of it can be promoted, one sentence each.
    pub reasons: Vec<String>,
}

/// What of a process's shared memory could be promoted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Regions that are not huge and dense enough.
    pub regions: Vec<VirtRange>,
    pub memory: SharedMemory,
}

/// Whether shared memory is mapped here that a collapse could be for.
pub(crate) fn is_shared(mapping: &Mapping, devices: &MemoryDevices) -> bool {
    mapping.permissions.ends_with('s')
        && mapping.kernel_page_size == PageSize::BASE
        && mapping.object().is_some()
        && devices.holds(mapping.device, &mapping.name)
}

/// Why none of a process's shared memory can be promoted; `None` where nothing is known to be in the way.
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

/// The objects that one look has opened.
struct Objects<'a> {
    root: &'a KernelRoot,
    pid: Pid,
    devices: MemoryDevices,
    opened: BTreeMap<ObjectId, Option<SharedObject>>,
    /// Why one could not be opened.
    unseen: Option<String>,
}

impl SharedMemory {
    /// What is in memory and not on huge pages.
    pub fn base_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.huge_bytes)
    }
}

impl Objects<'_> {
    /// How many base pages of the mapping's object are in memory, block by block from `offset`; `None` where that cannot be seen.
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

/// The regions of `pid` in shared memory that are not huge and have at least `least_present` (1 to 512) of their base pages in
/// memory, at most `most`, each block of an object once; and what of the remainder. Where the caller may not look into an object, what
/// the process itself has touched counts.
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
        // Only what is not huge is looked up in the object.
        let pages = match regions.iter().any(|region| region.huge != Some(true)) {
            true => objects.resident(mapping, offset_of(inside.start()), inside.len().0),
            false => None,
        };
        for (number, region) in regions.iter().enumerate() {
            if !is_new(offset_of(region.range.start()), &mut seen) {
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
                    found.regions.push(region.range);
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

/// Why what is misplaced cannot be huge, and what helps.
fn why_misplaced(largest: &Mapping, bytes: u64) -> String {
    let beyond = |place: u64| Bytes(place % HUGE);
    let file = megapage_kernel::thp::path("shmem_enabled");
    format!(
        "{} of shared memory ({}) cannot be mapped by huge pages: its address is {} beyond a multiple of 2 MiB and its offset \
         {}, and it cannot be moved while the program runs; with {file} at 'advise' before the program starts, the kernel places it right (and \
         makes nothing huge that nobody asks for)",
        Bytes(bytes),
        megapage_units::shown::one_line(&largest.name),
        beyond(largest.range.start()),
        beyond(largest.offset),
    )
}

#[cfg(test)]
mod tests;
