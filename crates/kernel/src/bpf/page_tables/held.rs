//! Memory that a process holds, read from its page tables and counted as its page map counts it
//! ([`Pagemap::held`]).
//!
//! [`Pagemap::held`]: crate::pagemap::Pagemap::held

use super::entry::{State, Tally, tally};
use super::program::{Found, MOST_RANGES};
use super::{AddressSpace, EntrySize, Frames, GIB, PageTables, RegionBits, WalkError, learn};
use crate::kpageflags::FrameFlags;
use crate::pagemap::Region;
use crate::{KernelError, KernelRoot};
use megapage_snapshot::PAGES;
use megapage_units::{BASE_PAGE, HugePage, Pid, VirtRange};

const HUGE: u64 = HugePage::SIZE;
const PAGE: u64 = BASE_PAGE as u64;

/// Regions that hold anything, and those of which more was asked.
pub type HeldBits = (Vec<Region>, Vec<RegionBits>);

impl PageTables {
    /// Returns the regions that hold anything in `ranges`, in ascending order. `ranges` must be
    /// ascending, disjoint, and consist of whole base pages. Reports all that
    /// [`Pagemap::held`](crate::pagemap::Pagemap::held) reports on a kernel since 6.7, without a
    /// lock of the process. Counts only the pages of a region that lie in `ranges`.
    ///
    /// The same reading gives the regions in `asked` (sorted, disjoint, whole regions) as
    /// [`PageTables::walk`] does. Those that `ranges` does not touch are left out.
    ///
    /// Returns `None` if a region changed under each of several tries. Returns `None` also if a
    /// region may map the 2 MiB page of zeros and nothing shows which page that is. A page fault of
    /// this process shows it, but none gives that page while transparent_hugepage/enabled is
    /// `never`. `/proc/kpageflags` shows it too, but only root may open that.
    ///
    /// Takes about 0.6 ms for each GiB on base pages. Without a page fault that gives the page of
    /// zeros, it takes as much again for each GiB of huge pages without write access.
    ///
    /// Pages that the kernel does not manage (device memory in a mapping of raw page frames) do not
    /// count.
    pub fn held(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        asked: &[VirtRange],
    ) -> Result<Option<HeldBits>, WalkError> {
        let first = self.count_held(pid, ranges, asked, self.frames)?;
        let Some(space) = first.space.filter(|_| !first.suspects.is_empty()) else {
            return Ok(first.complete.then_some(first.found));
        };
        let mut suspects = first.suspects;
        suspects.sort_unstable();
        suspects.dedup();
        // The kernel gave none when it was asked before: transparent huge pages may have been off.
        let _ = learn::zero_pages(self);
        let zeros = match self.frames.huge_zero {
            Some(zeros) => Some(zeros),
            None => match zeros_among(&suspects) {
                Ok(zeros) => zeros,
                Err(_) => return Ok(None),
            },
        };
        // An address space that has once mapped the page of zeros keeps it in its place until it
        // ends. While this one lives, the frame learnt just now is also right for the walk before.
        if self.address_space(pid)? != space {
            return Err(WalkError::Gone);
        }
        let Some(zeros) = zeros.filter(|zeros| suspects.binary_search(zeros).is_ok()) else {
            return Ok(first.complete.then_some(first.found));
        };
        // The frame is known for this process only: nothing shows that the page stays when it ends.
        let frames = Frames { huge_zero: Some(zeros), ..self.frames };
        let again = self.count_held(pid, ranges, asked, frames)?;
        if again.space != Some(space) {
            return Err(WalkError::Gone);
        }
        Ok(again.complete.then_some(again.found))
    }

    /// Walks once. A possible page of zeros counts as memory if `frames` does not know its frame.
    fn count_held(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        asked: &[VirtRange],
        frames: Frames,
    ) -> Result<Counted, WalkError> {
        let whole = outward(ranges);
        let (found, suspects) = Default::default();
        let mut counted = Counted { space: None, complete: true, found, suspects };
        let mut rest = ranges;
        for chunk in whole.chunks(MOST_RANGES) {
            self.raw_walk(pid, chunk, |seen| {
                if *counted.space.get_or_insert(seen.space) != seen.space {
                    return Err(WalkError::Gone);
                }
                counted.complete &= seen.given_up == 0;
                if frames.huge_zero.is_none() {
                    let suspects = seen.found.iter().filter(|found| frames.may_be_zeros(found));
                    counted.suspects.extend(suspects.map(|found| frames.huge_frame(found.entry)));
                }
                for found in seen.found {
                    let passed = rest.partition_point(|range| range.end() <= found.start);
                    rest = &rest[passed..];
                    frames.count(found, seen.tables, rest, &mut counted.found.0);
                }
                let mut each = |region| counted.found.1.push(region);
                let found = frames.with_contiguous(seen.found);
                found.iter().for_each(|found| frames.regions(found, seen.tables, asked, &mut each));
                Ok(())
            })?;
        }
        Ok(counted)
    }
}

/// Counts of one walk.
struct Counted {
    /// Address space that was walked; `None` if no range was asked for.
    space: Option<AddressSpace>,
    /// True if no region was left out.
    complete: bool,
    found: HeldBits,
    /// Addresses of the frames that may be the 2 MiB page of zeros. Empty if that page is known.
    suspects: Vec<u64>,
}

/// Returns the one of these huge frames that is the page of zeros, by the kernel's flags of frames.
/// There is at most one. Returns an error if the flags cannot be read.
fn zeros_among(frames: &[u64]) -> Result<Option<u64>, KernelError> {
    let flags = FrameFlags::open(&KernelRoot::live())?;
    for &frame in frames {
        if flags.read(frame / PAGE, 1)?.first().is_some_and(|flags| flags.is_zero_page()) {
            return Ok(Some(frame));
        }
    }
    Ok(None)
}

impl Frames {
    /// Returns true if an entry may map the 2 MiB page of zeros, which no process may write.
    fn may_be_zeros(&self, found: &Found) -> bool {
        let is_present = self.layout.huge_state(found.entry) == State::Present;
        found.size() == EntrySize::Huge2m && is_present && !self.layout.is_writable(found.entry)
    }

    /// Adds to `held` the pages of `ranges` that the entry maps. The first range ends after the
    /// entry's start.
    fn count(
        &self,
        found: &Found,
        tables: &[[u64; PAGES as usize]],
        ranges: &[VirtRange],
        held: &mut Vec<Region>,
    ) {
        let end = match found.size() {
            EntrySize::Huge1g => (found.start | (GIB - 1)) + 1,
            EntrySize::Base | EntrySize::Huge2m => found.start + HUGE,
        };
        let Some(all) = VirtRange::new(found.start, end) else { return };
        for range in ranges.iter().map_while(|range| range.intersection(all)) {
            match tables.get(found.table as usize) {
                Some(table) => {
                    let page = |address: u64| ((address - found.start) / PAGE) as usize;
                    let entries = &table[page(range.start())..page(range.end())];
                    add(
                        held,
                        HugePage::containing(found.start),
                        tally(self.layout, entries, self.mask, self.zero),
                        false,
                    );
                }
                None => self.count_huge(found.entry, range, held),
            }
        }
    }

    /// Adds to `held` a part of the memory that a huge entry maps, region by region.
    fn count_huge(&self, entry: u64, range: VirtRange, held: &mut Vec<Region>) {
        let zeros = self.is_huge_zero(entry);
        for (page, part) in range.by_huge_page() {
            let pages = (part.len().0 / PAGE) as u16;
            add(held, page, self.layout.huge_tally(entry, pages, zeros), true);
        }
    }
}

/// Adds `tally` to the last region, or begins a new one. Does nothing if `tally` is empty.
fn add(held: &mut Vec<Region>, page: HugePage, tally: Tally, by_huge_entry: bool) {
    if tally == Tally::default() {
        return;
    }
    if held.last().is_none_or(|last| last.page != page) {
        held.push(Region::empty(page, Some(false)));
    }
    let Some(region) = held.last_mut() else { return };
    region.present += tally.present;
    region.zero_page += tally.zero_page;
    region.swapped += tally.swapped;
    if by_huge_entry && tally.present > 0 {
        region.huge = Some(true);
    }
}

/// Returns the regions that `ranges` touch, as ranges. They are ascending and disjoint, as `ranges`
/// are.
fn outward(ranges: &[VirtRange]) -> Vec<VirtRange> {
    let mut whole: Vec<VirtRange> = Vec::new();
    for range in ranges {
        let Some(end) = range.end().checked_next_multiple_of(HUGE) else { continue };
        let first = HugePage::containing(range.start()).start();
        let start = whole.pop_if(|last| last.end() >= first).map_or(first, |last| last.start());
        whole.extend(VirtRange::new(start, end));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_tables::Layout;

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange::new(start, end).unwrap()
    }

    #[test]
    fn regions_are_walked_once_however_many_ranges_lie_in_them() {
        let pieces = [range(PAGE, 2 * PAGE), range(4 * PAGE, HUGE), range(HUGE + PAGE, 2 * HUGE + PAGE)];
        assert_eq!(outward(&pieces), [range(0, 3 * HUGE)]);
        let apart =
            [range(0, PAGE), range(5 * HUGE, 6 * HUGE), range(u64::MAX - 2 * PAGE + 1, u64::MAX - PAGE + 1)];
        assert_eq!(outward(&apart), [range(0, HUGE), range(5 * HUGE, 6 * HUGE)], "the last has no end");
        assert!(outward(&[]).is_empty());
    }

    #[test]
    fn of_a_huge_entry_only_what_lies_in_the_ranges_counts() {
        const LEAF: u64 = 1 << 7;
        let mask = ((1 << 46) - 1) & !0xfff;
        let layout = Layout::X86_64;
        let frames = Frames { layout, mask, zero: 0x5000, huge_zero: Some(0x4000_0000) };
        let count = |entry: u64, level: u32, ranges: &[VirtRange]| {
            let mut held = Vec::new();
            let found = Found { start: 512 * HUGE, entry, level, table: u32::MAX };
            frames.count(&found, &[], ranges, &mut held);
            held.iter()
                .map(|one| (one.page.number(), one.present, one.zero_page, one.swapped, one.huge))
                .collect::<Vec<_>>()
        };
        let at = |regions: u64, pages: u64| (512 + regions) * HUGE + pages * PAGE;
        let two = [range(at(0, 10), at(0, 20)), range(at(1, 0), at(2, 1)), range(at(600, 0), at(601, 0))];
        let huge = 0x8000_0000 | 1 | LEAF;
        let true_ = Some(true);
        assert_eq!(
            count(huge, 3, &two),
            [(512, 10, 0, 0, true_), (513, 512, 0, 0, true_), (514, 1, 0, 0, true_)]
        );
        assert_eq!(count(huge, 2, &two), [(512, 10, 0, 0, true_)]);
        assert_eq!(count(0x4000_0000 | 1 | LEAF, 2, &two), [(512, 0, 10, 0, Some(false))], "zeros");
        let none = 1 << 8 | LEAF | (!0x4000_0000 & frames.mask & !(HUGE - 1));
        assert_eq!(count(none, 2, &two), [(512, 0, 10, 0, Some(false))], "zeros not to be accessed");
        assert_eq!(count(31 << 59, 2, &two), [(512, 0, 0, 10, Some(false))], "a mark");
    }
}
