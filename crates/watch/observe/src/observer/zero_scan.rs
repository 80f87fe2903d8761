//! Counts of the zero-filled base pages of huge pages: bloat that a demotion would release.
//!
//! Reading marks pages as accessed. So it is never done between clearing and reading access bits,
//! except for an urgent caller.

use super::history::History;
use megapage_kernel::KernelRoot;
use megapage_kernel::remote_read::{self, MOST_PARTS, RemoteMemory};
use megapage_snapshot::{Leaf, MappingKind, Process, Region};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, Pid};

/// Largest number of bytes that one snapshot reads, of all processes together: about 20 ms of our
/// time.
pub(super) const MOST_BYTES: Bytes = Bytes::mib(128);

/// Bytes read at once: the size of one request for another process's memory, small enough for the
/// second-level cache.
const AT_ONCE: usize = remote_read::MOST_BYTES;
/// Pieces of a huge page, of which a partial scan reads an eighth each: all samples of a huge page
/// fit one request. Runs of freed memory are usually longer.
const PIECE: usize = HUGE_2M / MOST_PARTS;
const SAMPLE: usize = PIECE / PLACES;
const PLACES: usize = 8;
const _: () = assert!(SAMPLE * MOST_PARTS == AT_ONCE && SAMPLE.is_multiple_of(BASE_PAGE));

/// Scans huge pages of `process`, beginning after `cursor` and continuing at the start, within
/// `rest`, which it lowers.
pub(super) fn scan(
    root: &KernelRoot,
    process: &Process,
    history: &mut History,
    cursor: &mut HugePage,
    rest: &mut Bytes,
) {
    let huge = |region: &&Region| {
        let kind = process.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
        // Only a private page can be split into zero pages that are freed.
        region.leaf == Leaf::Huge2m && matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous))
    };
    let pages: Vec<HugePage> = process.regions.iter().filter(huge).map(|region| region.page).collect();
    let first = pages.partition_point(|page| page <= cursor);
    if pages.is_empty() {
        return;
    }
    // A process that has ended or denies access is not scanned; the caller finds out.
    let Ok(memory) = RemoteMemory::open(root, process.id.pid) else { return };
    let mut buffer = vec![0u8; AT_ONCE];
    for page in pages[first..].iter().chain(&pages[..first]) {
        let Some(left) = rest.0.checked_sub(HugePage::SIZE) else { return };
        *rest = Bytes(left);
        *cursor = *page;
        // A page that cannot be read gets no count.
        if let Some(zeros) = zero_pages(&memory, *page, &mut buffer) {
            history.of(*page).zeros = Some(zeros);
        }
    }
}

/// Thoroughness of a zero scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// Reads every byte.
    All,
    /// Reads an eighth of the base pages, which stands for the others: eight times as fast. For a
    /// caller in a hurry that lets the kernel check all pages when it splits the huge page.
    Part,
}

/// Counts the zero-filled base pages of each of these huge pages of `pid`. Returns those that could
/// be read, in their order. Reading marks pages as accessed.
pub fn count_zeros(
    root: &KernelRoot,
    pid: Pid,
    pages: &[HugePage],
    thoroughness: Thoroughness,
) -> Vec<(HugePage, u16)> {
    scan_these(root, pid, pages, thoroughness, &mut Bytes(u64::MAX))
}

/// Scans these regions of `pid`, in their order, within `rest`, which it lowers. Returns those that
/// could be read, each with its number of zero pages.
pub(super) fn scan_these(
    root: &KernelRoot,
    pid: Pid,
    pages: &[HugePage],
    thoroughness: Thoroughness,
    rest: &mut Bytes,
) -> Vec<(HugePage, u16)> {
    let mut found = Vec::new();
    if pages.is_empty() {
        return found;
    }
    let Ok(memory) = RemoteMemory::open(root, pid) else { return found };
    let mut buffer = vec![0u8; AT_ONCE];
    for page in pages {
        let Some(left) = rest.0.checked_sub(HugePage::SIZE) else { return found };
        *rest = Bytes(left);
        let zeros = match thoroughness {
            Thoroughness::All => zero_pages(&memory, *page, &mut buffer),
            Thoroughness::Part => zero_pages_by_part(&memory, *page, &mut buffer),
        };
        found.extend(zeros.map(|zeros| (*page, zeros)));
    }
    found
}

/// Returns the number of zero-filled base pages of a huge page; `None` if not all of
/// it could be read.
fn zero_pages(memory: &RemoteMemory, page: HugePage, buffer: &mut [u8]) -> Option<u16> {
    let mut zeros = 0;
    for piece in (page.start()..page.end()).step_by(AT_ONCE) {
        if memory.read(piece, buffer).ok()? < buffer.len() {
            return None;
        }
        zeros += buffer.chunks_exact(BASE_PAGE).filter(|page| is_zero(page)).count();
    }
    Some(zeros as u16)
}

/// Returns the same, by an eighth of the pages. Their places differ from piece to piece and from
/// region to region, so that memory in use at equal distances is not over- or undercounted.
fn zero_pages_by_part(memory: &RemoteMemory, page: HugePage, buffer: &mut [u8]) -> Option<u16> {
    let from = page.number() as usize;
    // 5 and the number of places have no common divisor: all places are used.
    let place =
        |number: usize| page.start() + (number * PIECE + (from + 5 * number) % PLACES * SAMPLE) as u64;
    let places: [u64; MOST_PARTS] = std::array::from_fn(place);
    if !memory.read_parts(&places, buffer).ok()? {
        return None;
    }
    let zeros = buffer.chunks_exact(BASE_PAGE).filter(|page| is_zero(page)).count();
    Some((zeros * PLACES) as u16)
}

/// Returns true for a page of zeros. Ends soon after the first other byte: in a page in use that is
/// the 9th on average (HawkEye, section 3.2).
fn is_zero(page: &[u8]) -> bool {
    const ZERO: [u8; BASE_PAGE] = [0; BASE_PAGE];
    // A comparison of two slices of bytes is memcmp(3), as fast as any.
    page == ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_pages_of_our_own_memory_are_counted() {
        let mut memory = vec![0u8; 2 * HUGE_2M];
        let address = memory.as_ptr().addr();
        let offset = address.next_multiple_of(HUGE_2M) - address;
        // All pages are present. Three are not zero: at the first byte, at the last, and in the
        // middle.
        memory.iter_mut().step_by(BASE_PAGE).for_each(|byte| *byte = std::hint::black_box(0));
        for (page, byte) in [(0, 0), (31, BASE_PAGE - 1), (511, 2000)] {
            memory[offset + page * BASE_PAGE + byte] = 1;
        }
        let own = Pid(std::process::id().cast_signed());
        let reader = RemoteMemory::open(&KernelRoot::live(), own).unwrap();
        let mut buffer = vec![0u8; AT_ONCE];
        let start = (address + offset) as u64;
        assert_eq!(zero_pages(&reader, HugePage::at(start).unwrap(), &mut buffer), Some(512 - 3));
        assert_eq!(zero_pages(&reader, HugePage::nth(0), &mut buffer), None, "nothing is mapped there");
    }

    #[test]
    fn a_part_stands_for_all() {
        let mut memory = vec![0u8; 3 * HUGE_2M];
        let address = memory.as_ptr().addr();
        let offset = address.next_multiple_of(HUGE_2M) - address;
        memory.iter_mut().step_by(BASE_PAGE).for_each(|byte| *byte = std::hint::black_box(0));
        let own = Pid(std::process::id().cast_signed());
        let start = (address + offset) as u64;
        let starts = [0, 1].map(|n| HugePage::containing(start).offset(n));
        let count = |thoroughness| count_zeros(&KernelRoot::live(), own, &starts, thoroughness);
        assert_eq!(count(Thoroughness::Part), starts.map(|start| (start, 512)));
        // Each sixteenth page is in use, then the upper half of the second region.
        memory[offset..][..2 * HUGE_2M].iter_mut().step_by(16 * BASE_PAGE).for_each(|byte| *byte = 1);
        assert_eq!(count(Thoroughness::All), starts.map(|start| (start, 480)));
        assert_eq!(count(Thoroughness::Part), starts.map(|start| (start, 480)));
        memory[offset + HUGE_2M + HUGE_2M / 2..][..HUGE_2M / 2].fill(1);
        assert_eq!(count(Thoroughness::All)[1].1, 240);
        assert_eq!(count(Thoroughness::Part)[1].1, 240);
        assert!(count_zeros(&KernelRoot::live(), own, &[HugePage::nth(0)], Thoroughness::Part).is_empty());
    }
}
