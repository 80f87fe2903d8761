//! Counting the zero-filled base pages of huge pages: bloat that a demotion would give back.
//!
//! Reading marks pages as accessed, so that it is never done between clearing and reading access bits.

use super::history::History;
use megapage_kernel::KernelRoot;
use megapage_kernel::remote_read::RemoteMemory;
use megapage_snapshot::{Leaf, MappingKind, Process, Region};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid};

/// What one snapshot reads at most, of all processes together: about 20 ms of our time.
pub(super) const MOST_BYTES: Bytes = Bytes::mib(128);

/// Read at once: small enough for the second-level cache.
const PIECE: usize = 128 << 10;

/// Scans huge pages of `process`, from the one after `cursor` on and round again, within `rest`, which it lowers.
pub(super) fn scan(
    root: &KernelRoot,
    process: &Process,
    history: &mut History,
    cursor: &mut u64,
    rest: &mut Bytes,
) {
    let huge = |region: &&Region| {
        let kind = process.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
        // Only a private page can be split into zero pages that are freed.
        region.leaf == Leaf::Huge2m && matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous))
    };
    let starts: Vec<u64> = process.regions.iter().filter(huge).map(|region| region.start).collect();
    let first = starts.partition_point(|start| start <= cursor);
    if starts.is_empty() {
        return;
    }
    // A process that has gone, or is denied to us, has no figure; the caller finds out.
    let Ok(memory) = RemoteMemory::open(root, process.id.pid) else { return };
    let mut buffer = vec![0u8; PIECE];
    for start in starts[first..].iter().chain(&starts[..first]) {
        let Some(left) = rest.0.checked_sub(HUGE_2M as u64) else { return };
        *rest = Bytes(left);
        *cursor = *start;
        // So has a page that has gone.
        if let Some(zeros) = zero_pages(&memory, *start, &mut buffer) {
            history.note_zeros(*start, zeros);
        }
    }
}

/// Scans these regions of `pid`, in their order, within `rest`, which it lowers. Answers those that could be read whole,
/// each with its number of zero pages.
pub(super) fn scan_these(root: &KernelRoot, pid: Pid, starts: &[u64], rest: &mut Bytes) -> Vec<(u64, u16)> {
    let mut found = Vec::new();
    if starts.is_empty() {
        return found;
    }
    let Ok(memory) = RemoteMemory::open(root, pid) else { return found };
    let mut buffer = vec![0u8; PIECE];
    for start in starts {
        let Some(left) = rest.0.checked_sub(HUGE_2M as u64) else { return found };
        *rest = Bytes(left);
        found.extend(zero_pages(&memory, *start, &mut buffer).map(|zeros| (*start, zeros)));
    }
    found
}

/// Base pages that hold only zeros in the 2 MiB from `start` on; `None` where not all of it could be read.
fn zero_pages(memory: &RemoteMemory, start: u64, buffer: &mut [u8]) -> Option<u16> {
    let mut zeros = 0;
    for piece in (start..start + HUGE_2M as u64).step_by(PIECE) {
        if memory.read(piece, buffer).ok()? < buffer.len() {
            return None;
        }
        zeros += buffer.chunks_exact(BASE_PAGE).filter(|page| is_zero(page)).count();
    }
    Some(zeros as u16)
}

/// Ends soon after the first byte that is not zero: in a page in use that is the 9th on average (HawkEye, section 3.2).
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
        // Present everywhere, and not zero at the first byte, at the last, and in the middle of three pages.
        memory.iter_mut().step_by(BASE_PAGE).for_each(|byte| *byte = std::hint::black_box(0));
        for (page, byte) in [(0, 0), (31, BASE_PAGE - 1), (511, 2000)] {
            memory[offset + page * BASE_PAGE + byte] = 1;
        }
        let own = Pid(std::process::id().cast_signed());
        let reader = RemoteMemory::open(&KernelRoot::live(), own).unwrap();
        let mut buffer = vec![0u8; PIECE];
        let start = (address + offset) as u64;
        assert_eq!(zero_pages(&reader, start, &mut buffer), Some(512 - 3));
        assert_eq!(zero_pages(&reader, 0, &mut buffer), None, "nothing is mapped there");
    }
}
