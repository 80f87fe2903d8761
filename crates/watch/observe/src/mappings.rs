//! The mappings of a process: the kind of each, and the flags that only smaps shows.
//!
//! `/proc/PID/maps` is read every time. smaps walks all page tables (about 6.5 ms for each GiB on
//! base pages). It is read when a process is first seen, when mappings have changed, and otherwise
//! now and then. Reading it takes at most a share of the time ([`SMAPS_SHARE`]). A process that has
//! not run since is read again only after ten minutes.

use megapage_kernel::maps::{self, MOST_MAPPINGS, read_maps_within};
use megapage_kernel::object::object_of;
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::smaps::{self, read_smaps};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::{BackingBytes, MappedObject, Mapping, MappingFlags, MappingKind, thp::ThpSettings};
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use std::time::Duration;

/// Least time between two readings of smaps, in multiples of the time of the last one. So reading
/// takes at most a fiftieth of the time, for each process.
const SMAPS_SHARE: u32 = 50;
/// Greatest age of flags where the mappings stay the same: madvise(2) on a whole mapping changes
/// only flags.
const OLDEST_FLAGS: Duration = Duration::from_secs(30);
/// Greatest age of flags where the process has taken no processor time since. Then only another
/// process that holds an open userfaultfd of it can have changed them.
const OLDEST_AT_REST: Duration = Duration::from_secs(600);
/// Values that smaps reported for one mapping.
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

/// Values that smaps reported for a process, and the time of the reading.
#[derive(Debug, Default)]
pub(crate) struct Details {
    list: Vec<Detail>,
    /// Last reading; `None` before the first one.
    read: Option<SmapsRead>,
    /// True if smaps is needed for its flags only, because the page map shows the huge pages.
    pub(crate) leaves_known: bool,
}

#[derive(Debug)]
struct SmapsRead {
    /// Time at which the reading ended.
    at: Duration,
    /// Time that the reading took.
    took: Duration,
    /// State on which the flags depend, as of before the reading.
    state: FlagState,
}

/// State that changes whenever the flags of a process's mappings may have changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlagState {
    /// Processor time that the process has taken; `None`: not known. Only the process itself calls
    /// madvise(2) and mprotect(2).
    pub(crate) cpu: Option<Duration>,
    /// Settings of the machine for transparent huge pages.
    pub(crate) thp: Option<ThpSettings>,
}

/// One mapping, with the values that a snapshot does not keep.
#[derive(Debug)]
pub(crate) struct Found {
    /// Mapping as in the snapshot.
    pub(crate) mapping: Mapping,
    /// Size of the pages that back it: hugetlb's, else 4 KiB.
    pub(crate) page_size: PageSize,
    /// Backing at the last reading of smaps; zero where smaps did not report the mapping.
    pub(crate) backing: BackingBytes,
}

/// Returns the mappings of `pid`, ascending. Fails with an error of kind FileTooLarge if there are
/// more than `most`. `now` is a clock of any origin, read before and after smaps. `state` is as of
/// before the call.
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

/// Removes overlaps. The kernel lists mappings in pieces, and the process may change them between
/// two pieces. A mapping that grew or was split is then listed again, with other ends. The first
/// listing counts; of a later one only the part behind it is kept.
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
            // Huge pages are known from smaps alone, so that they are as old as smaps.
            (false, false) => Duration::ZERO,
        };
        age >= read.took * SMAPS_SHARE && (age >= oldest || self.lacks_any(maps))
    }

    /// Returns true if smaps did not report, as it is now, a mapping that could hold a huge page.
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

    /// Returns true if this is `map`, or was a part or the whole of it before it grew or shrank.
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
            // A mapping with another range may be eligible even if this one was not.
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
    /// Returns true if a sample of the mapping can help a decision about huge pages, and its bits
    /// can be cleared. Such memory belongs to the program, and is at least one region long. The
    /// kernel may back it by huge pages. Stacks are small and always hot. The kernel refuses locked
    /// memory and hugetlb pages.
    pub(crate) fn is_candidate(&self) -> bool {
        let kind =
            matches!(self.mapping.kind, MappingKind::Heap | MappingKind::Anonymous | MappingKind::Shared);
        let flags = self.mapping.flags;
        kind && !flags.locked
            && !flags.device
            && self.mapping.range.aligned_interior(HUGE_2M as u64).is_some()
    }

    /// Returns the bytes that smaps found on transparent huge pages.
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
