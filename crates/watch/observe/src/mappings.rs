//! The mappings of a process: what each is, and the flags that only smaps shows.
//!
//! `/proc/PID/maps` is read every time. smaps walks all page tables (about 6.5 ms for each GiB on base pages), so that
//! it is read when a process is first seen, when mappings have changed, and otherwise now and then; always so rarely
//! that it takes no more than [`SMAPS_SHARE`] of the time. Of a process that has not run since, hardly ever.

use megapage_kernel::maps::{self, MOST_MAPPINGS, read_maps_within};
use megapage_kernel::object::object_of;
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::smaps::{self, read_smaps};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::{BackingBytes, MappedObject, Mapping, MappingFlags, MappingKind, thp::ThpSettings};
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use std::time::Duration;

/// The largest share of the time that reading smaps may take, for each process.
const SMAPS_SHARE: u32 = 50;
/// How old flags may become where the mappings stay the same: madvise(2) on a whole mapping changes only flags.
const OLDEST_FLAGS: Duration = Duration::from_secs(30);
/// The same where the process has taken no processor time since: then only another process to which it has handed an open
/// userfaultfd can have changed them.
const OLDEST_AT_REST: Duration = Duration::from_secs(600);
/// What smaps reported for one mapping.
#[derive(Clone, Debug)]
struct Detail {
    range: VirtRange,
    name: String,
    permissions: String,
    page_size: PageSize,
    flags: MappingFlags,
    thp_eligible: bool,
    backing: BackingBytes,
}

/// What smaps reported for a process, and when.
#[derive(Debug, Default)]
pub(crate) struct Details {
    list: Vec<Detail>,
    /// `None` before the first time.
    read: Option<SmapsRead>,
    /// Whether nothing but the flags of smaps is gone by: the page map shows what is huge.
    pub(crate) leaves_known: bool,
}

#[derive(Debug)]
struct SmapsRead {
    /// When it was done,
    at: Duration,
    /// and how long it took.
    took: Duration,
    /// What it depended on, as of before.
    state: FlagState,
}

/// What changes when the flags of a process's mappings may have changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlagState {
    /// The processor time that the process has taken: only itself calls madvise(2) and mprotect(2). `None`: not known.
    pub(crate) cpu: Option<Duration>,
    /// The machine's settings.
    pub(crate) thp: Option<ThpSettings>,
}

/// One mapping with what a snapshot does not keep of it.
#[derive(Debug)]
pub(crate) struct Found {
    /// As the snapshot has it.
    pub(crate) mapping: Mapping,
    /// The size of the pages that back it: hugetlb's, else 4 KiB.
    pub(crate) page_size: PageSize,
    /// What it was backed by when smaps was read; zero where smaps does not know it yet.
    pub(crate) backing: BackingBytes,
}

/// The mappings of `pid`, ascending; more than `most` are an error of kind FileTooLarge. `now` is a clock of any origin: it is read before and after smaps. `state` is of before
/// the call.
pub(crate) fn mappings(
    root: &KernelRoot,
    pid: Pid,
    devices: &MemoryDevices,
    details: &mut Details,
    now: &dyn Fn() -> Duration,
    state: &FlagState,
    most: Option<usize>,
) -> Result<Vec<Found>, KernelError> {
    let maps = disjoint(read_maps_within(root, pid, most.unwrap_or(MOST_MAPPINGS))?);
    let start = now();
    if details.is_due(start, &maps, state) {
        details.list = read_smaps(root, pid)?.into_iter().map(Detail::from).collect();
        let at = now();
        details.read = Some(SmapsRead { at, took: at.saturating_sub(start), state: state.clone() });
    }
    let mut known = details.list.iter().peekable();
    Ok(maps
        .into_iter()
        .map(|map| {
            while known.next_if(|detail| detail.range.end() <= map.range.start()).is_some() {}
            let detail = known.peek().filter(|detail| detail.is_of(&map));
            found(map, detail.copied(), devices)
        })
        .collect())
}

/// The kernel lists mappings in pieces, between which the process may change them: one that grew or was split is
/// listed again, with other ends. What was listed before counts; of a later one what lies behind it.
fn disjoint(maps: Vec<maps::Mapping>) -> Vec<maps::Mapping> {
    let mut end = 0;
    let behind = |mut map: maps::Mapping| {
        let rest = VirtRange::new(map.range.start().max(end), map.range.end());
        map.range = rest.filter(|rest| !rest.is_empty())?;
        end = map.range.end();
        Some(map)
    };
    maps.into_iter().filter_map(behind).collect()
}

impl Details {
    fn is_due(&self, now: Duration, maps: &[maps::Mapping], state: &FlagState) -> bool {
        let Some(read) = &self.read else { return true };
        let age = now.saturating_sub(read.at);
        let idle = self.leaves_known && state.cpu.is_some() && *state == read.state;
        let oldest = match (idle, self.leaves_known) {
            (true, _) => OLDEST_AT_REST,
            (false, true) => OLDEST_FLAGS,
            // What is huge is as old as smaps.
            (false, false) => Duration::ZERO,
        };
        age >= read.took * SMAPS_SHARE && (age >= oldest || self.lacks_any(maps))
    }

    /// Whether a mapping that could hold a huge page is not known as it is now.
    fn lacks_any(&self, maps: &[maps::Mapping]) -> bool {
        let mut known = self.list.iter().peekable();
        maps.iter().filter(|map| map.range.aligned_interior(HUGE_2M as u64).is_some()).any(|map| {
            while known.next_if(|detail| detail.range.start() < map.range.start()).is_some() {}
            !known.peek().is_some_and(|detail| detail.range == map.range && detail.is_of(map))
        })
    }
}

impl Detail {
    fn from(mapping: smaps::Mapping) -> Detail {
        Detail {
            flags: mapping.flags(),
            backing: mapping.backing(),
            range: mapping.range,
            name: mapping.name,
            permissions: mapping.permissions,
            page_size: mapping.kernel_page_size,
            thp_eligible: mapping.thp_eligible,
        }
    }

    /// Whether this is `map`, or was a part or the whole of it before it grew or shrank.
    fn is_of(&self, map: &maps::Mapping) -> bool {
        self.range.intersection(map.range).is_some()
            && self.name == map.name
            && self.permissions.as_bytes() == permissions(map)
    }
}

fn permissions(map: &maps::Mapping) -> [u8; 4] {
    let either = |set: bool, yes: u8, no: u8| if set { yes } else { no };
    [
        either(map.read, b'r', b'-'),
        either(map.write, b'w', b'-'),
        either(map.execute, b'x', b'-'),
        either(map.shared, b's', b'p'),
    ]
}

fn found(map: maps::Mapping, detail: Option<&Detail>, devices: &MemoryDevices) -> Found {
    let former = detail.map(|detail| detail.flags).unwrap_or_default();
    let flags =
        MappingFlags { read: map.read, write: map.write, execute: map.execute, shared: map.shared, ..former };
    let page_size = detail.map_or(PageSize::BASE, |detail| detail.page_size);
    Found {
        page_size,
        backing: detail.map(|detail| detail.backing).unwrap_or_default(),
        mapping: Mapping {
            kind: kind(&map, page_size, flags, devices),
            range: map.range,
            flags,
            // Another range may be eligible where this one was not.
            thp_eligible: detail.filter(|detail| detail.range == map.range).map(|detail| detail.thp_eligible),
            object: object_of(map.device, map.inode, &map.name).map(|(device, inode)| MappedObject {
                device,
                inode,
                offset: map.offset,
            }),
            name: map.name,
        },
    }
}

fn kind(
    map: &maps::Mapping,
    page_size: PageSize,
    flags: MappingFlags,
    devices: &MemoryDevices,
) -> MappingKind {
    let name = map.name.as_str();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name {
        _ if page_size > PageSize::BASE || starts(&["/anon_hugepage"]) => MappingKind::Hugetlb,
        _ if flags.device => MappingKind::Special,
        "[heap]" => MappingKind::Heap,
        _ if starts(&["[stack"]) => MappingKind::Stack,
        _ if starts(&["[anon_shmem:"]) => MappingKind::Shared,
        "" => MappingKind::Anonymous,
        _ if starts(&["[anon:"]) => MappingKind::Anonymous,
        _ if starts(&["[", "anon_inode:"]) => MappingKind::Special,
        _ if devices.holds(map.device, name) => MappingKind::Shared,
        _ => MappingKind::File,
    }
}

impl Found {
    /// Whether sampling it can show something that a decision about huge pages needs, and clearing its bits is
    /// possible: memory of the program's own, at least one region long, that the kernel may back by huge pages.
    /// Stacks are small and always hot; locked memory and hugetlb pages are refused by the kernel.
    pub(crate) fn is_candidate(&self) -> bool {
        let kind =
            matches!(self.mapping.kind, MappingKind::Heap | MappingKind::Anonymous | MappingKind::Shared);
        let flags = self.mapping.flags;
        kind && !flags.locked
            && !flags.device
            && self.mapping.range.aligned_interior(HUGE_2M as u64).is_some()
    }

    /// Bytes that smaps found on transparent huge pages.
    pub(crate) fn huge_bytes(&self) -> Bytes {
        self.backing.thp + self.backing.shmem_pmd + self.backing.file_pmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_an_idle_process_are_read_again_after_ten_minutes() {
        let seconds = Duration::from_secs;
        let state = |cpu: Option<u64>| FlagState { cpu: cpu.map(seconds), thp: None };
        let mut details = Details::default();
        assert!(details.is_due(seconds(0), &[], &state(Some(7))), "never read");
        details.read = Some(SmapsRead { at: seconds(100), took: seconds(1), state: state(Some(7)) });
        let due = |details: &Details, at: u64, cpu| details.is_due(seconds(at), &[], &state(cpu));
        assert!(due(&details, 150, Some(7)), "smaps shows what is huge");
        details.leaves_known = true;
        assert!(!due(&details, 149, Some(8)), "a fiftieth of the time");
        assert!(due(&details, 150, Some(8)), "it has run");
        assert!(due(&details, 150, None), "it is unknown whether it has run");
        assert!(!due(&details, 699, Some(7)));
        assert!(due(&details, 700, Some(7)));
        details.read = Some(SmapsRead { at: seconds(100), took: seconds(0), state: state(None) });
        assert!(due(&details, 130, None), "unknown");
    }
}
