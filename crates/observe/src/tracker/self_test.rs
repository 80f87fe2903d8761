//! Whether a tracker is accurate on this machine: tried on a child whose every access is known.

use super::{PageBits, RegionBits, Tracker};
use megapage_kernel::canary::Canary;
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process_madvise::collapse;
use megapage_kernel::spawn::open_pidfd;
use megapage_kernel::{KernelRoot, process_cpu_time};
use megapage_snapshot::{Leaf, PAGES, TrackerKind};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, VirtRange};
use serde::Serialize;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::Duration;

pub(super) const REGION_PAGES: usize = PAGES as usize;
/// The child's regions: one that is not touched, one that is touched in parts, one that is touched whole; then a
/// huge one that is not touched, and one that is. 10 MiB.
const BASE_REGIONS: usize = 3;
const HUGE_REGIONS: usize = 2;
/// Pauses before the tries until a tracker is given up, in milliseconds: others who clear accessed bits meanwhile (DAMON, reclaim)
/// can spoil one, and as long as they are at it the next.
const TRIES: [u64; 5] = [0, 1, 5, 25, 125];

/// Checks that `tracker` reads what a child did: nothing where nothing was touched, the touched pages where they
/// were, one bit for a huge page; that clearing has split no huge page; and that no byte was lost. What a tracker
/// leaves open (`None`) is not checked, except where telling it is what the tracker is for. About 10 ms and 10 MiB.
/// The error says what was wrong.
pub fn self_test(tracker: &mut dyn Tracker) -> Result<(), String> {
    let mut child = start_child(BASE_REGIONS, HUGE_REGIONS)?;
    let mut found = Ok(());
    for pause in TRIES {
        std::thread::sleep(Duration::from_millis(pause));
        found = attempt(tracker, &mut child);
        if found.is_ok() {
            break;
        }
    }
    found?;
    touch(&mut child, &(0..(BASE_REGIONS + HUGE_REGIONS) * REGION_PAGES).collect::<Vec<_>>())
}

/// What is expected of one region.
struct Expected {
    bits: PageBits,
    leaf: Leaf,
}

fn attempt(tracker: &mut dyn Tracker, child: &mut Canary) -> Result<(), String> {
    let ranges = [whole(child)];
    let before = read(tracker, child, &ranges)?;
    if before.len() != BASE_REGIONS + HUGE_REGIONS {
        return Err(format!("it saw {} of {} regions", before.len(), BASE_REGIONS + HUGE_REGIONS));
    }
    // A fragmented machine may have had no huge page to give.
    let leaves: Vec<Leaf> = before.iter().map(|region| region.leaf).collect();
    if let Some(region) = before.iter().find(|region| region.present != PAGES) {
        return Err(format!("it saw {} of 512 pages that are present", region.present));
    }

    clear(tracker, child, &ranges)?;
    let expected = |bits: PageBits, n: usize| Expected { bits, leaf: leaves[n] };
    let idle: Vec<Expected> = (0..leaves.len()).map(|n| expected([0; 8], n)).collect();
    compare(tracker.kind(), &read(tracker, child, &ranges)?, &idle, "before anything was touched")?;

    // Every seventh page: no multiple of what the kernel batches by.
    let sparse = |page: usize| page.is_multiple_of(7);
    let touched = (0..REGION_PAGES).filter(|&page| sparse(page)).map(|page| REGION_PAGES + page);
    let touched: Vec<usize> = touched
        .chain(2 * REGION_PAGES..3 * REGION_PAGES)
        .chain([(BASE_REGIONS + 1) * REGION_PAGES + 100])
        .collect();
    clear(tracker, child, &ranges)?;
    if matches!(tracker.kind(), TrackerKind::Smaps | TrackerKind::IdlePages) {
        // The kernel clears without a flush for them.
        child.flush_tlb().map_err(|error| error.to_string())?;
    }
    touch(child, &touched)?;
    let mut in_parts = [0; 8];
    (0..REGION_PAGES).filter(|&page| sparse(page)).for_each(|page| in_parts[page / 64] |= 1 << (page % 64));
    let of_last = match leaves[BASE_REGIONS + 1].is_huge() {
        true => [u64::MAX; 8],
        false => std::array::from_fn(|word| if word == 1 { 1 << 36 } else { 0 }),
    };
    let all = [u64::MAX; 8];
    let expected = [
        expected([0; 8], 0),
        expected(in_parts, 1),
        expected(all, 2),
        expected([0; 8], 3),
        expected(of_last, 4),
    ];
    compare(tracker.kind(), &read(tracker, child, &ranges)?, &expected, "after some pages were touched")
}

fn touch(child: &mut Canary, pages: &[usize]) -> Result<(), String> {
    let touched = child.touch(pages.iter().copied()).map_err(|error| error.to_string())?;
    match touched.wrong {
        0 => Ok(()),
        wrong => Err(format!("{wrong} pages lost their contents when they were cleared")),
    }
}

fn compare(kind: TrackerKind, read: &[RegionBits], expected: &[Expected], when: &str) -> Result<(), String> {
    if read.len() != expected.len() {
        return Err(format!("{when} it saw {} of {} regions", read.len(), expected.len()));
    }
    let must_report = !matches!(kind, TrackerKind::Pagemap | TrackerKind::Smaps);
    for (number, (region, expected)) in read.iter().zip(expected).enumerate() {
        if expected.leaf.is_huge() && !region.leaf.is_huge() {
            return Err("clearing has split a huge page".into());
        }
        let count = count(&expected.bits);
        match region.accessed {
            Some(accessed) if accessed != count => {
                return Err(format!(
                    "{when} it saw {accessed} accessed pages instead of {count} in region {number}"
                ));
            }
            None if must_report && (region.leaf == Leaf::Base || kind == TrackerKind::Bpf) => {
                return Err(format!("{when} it told nothing of region {number}"));
            }
            _ => {}
        }
        if region.bits.is_some_and(|bits| bits != expected.bits) {
            return Err(format!("{when} it saw other pages accessed than were touched in region {number}"));
        }
    }
    Ok(())
}

/// How exactly a tracker reads, and what that costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Exactness {
    /// Base pages whose bit was compared, over all rounds, half of them untouched or more.
    pub pages: u64,
    /// Those of them that were touched.
    pub touched: u64,
    /// Pages that were read as accessed and were not touched, or the other way round, less `disturbed`.
    pub wrong: u64,
    /// Pages that were touched and read as not accessed, and that the kernel marks as found idle by DAMON or the
    /// idle-page bitmap: another process cleared their bit in between.
    pub disturbed: u64,
    /// Huge regions that were compared, over all rounds: one bit each. Those that the machine had no huge page for are not.
    pub huge_regions: u64,
    /// Those of them that were read wrongly, or had been split, less `disturbed_huge`.
    pub wrong_huge: u64,
    /// As `disturbed`, of huge regions: DAMON is 512 times as likely to come by.
    pub disturbed_huge: u64,
    /// Pages that did not hold any more what had been written there.
    pub lost: u64,
    /// Processor time of one reading, in milliseconds for each GiB on base pages; the median of the rounds.
    #[serde(skip)]
    pub read_ms_per_gib: f64,
    /// Processor time of one clearing, in milliseconds for each GiB on base pages; the median of the rounds.
    #[serde(skip)]
    pub clear_ms_per_gib: f64,
}

/// Has a child touch another pseudo-random set of the base pages in `bytes` (rounded up to 2 MiB) in each of
/// `rounds`, and compares what the tracker reads page by page; and of a sixteenth of that on huge pages, region by
/// region. Takes that much memory. The error is for what prevented a comparison.
pub fn exactness(tracker: &mut dyn Tracker, bytes: Bytes, rounds: usize) -> Result<Exactness, String> {
    let base_regions = (bytes.0 as usize).div_ceil(HUGE_2M).max(1);
    let huge_regions = base_regions.div_ceil(16);
    let mut child = start_child(base_regions, huge_regions)?;
    let ranges = [whole(&child)];
    let gib = (base_regions * HUGE_2M) as f64 / (1u64 << 30) as f64;
    let others = Others::open(&child);
    // A fragmented machine, or one on which another process has just switched them off, may have had no huge page to give. The
    // tracker is not asked: it is what is tried here.
    let given = huge_regions_of(&child)?;
    let mut exactness = Exactness::default();
    let (mut reads, mut clears) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let cleared = process_cpu_time();
        clear(tracker, &child, &ranges)?;
        clears.push((process_cpu_time() - cleared).as_secs_f64() * 1e3 / gib);
        let is_touched = |page: usize| is_in_set(page, round);
        let touched = (0..(base_regions + huge_regions) * REGION_PAGES).filter(|&page| is_touched(page));
        exactness.lost += child.touch(touched).map_err(|error| error.to_string())?.wrong;
        let started = process_cpu_time();
        let read = read(tracker, &child, &ranges)?;
        reads.push((process_cpu_time() - started).as_secs_f64() * 1e3 / gib);
        let mut regions = read.iter().peekable();
        for number in 0..base_regions + huge_regions {
            let start = child.base().start() + (number * HUGE_2M) as u64;
            let region = regions.next_if(|region| region.start == start);
            if number >= base_regions && !given.contains(&start) {
                continue;
            }
            let expected: PageBits = std::array::from_fn(|word| {
                (0..64).fold(0, |bits, n| {
                    bits | u64::from(is_touched(number * REGION_PAGES + word * 64 + n)) << n
                })
            });
            if number >= base_regions {
                let any = if count(&expected) > 0 { PAGES } else { 0 };
                exactness.huge_regions += 1;
                match region {
                    Some(read) if read.leaf.is_huge() && read.accessed == Some(any) => {}
                    Some(read) if read.leaf.is_huge() && any > 0 && others.have_cleared(start) => {
                        exactness.disturbed_huge += 1;
                    }
                    _ => exactness.wrong_huge += 1,
                }
                continue;
            }
            let bits = region.and_then(|region| region.bits).unwrap_or(expected.map(|word| !word));
            exactness.pages += u64::from(PAGES);
            exactness.touched += u64::from(count(&expected));
            for page in differing(&bits, &expected) {
                let missed = expected[page / 64] >> (page % 64) & 1 == 1;
                if missed && others.have_cleared(start + (page * BASE_PAGE) as u64) {
                    exactness.disturbed += 1;
                } else {
                    exactness.wrong += 1;
                }
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    exactness.read_ms_per_gib = median(reads);
    exactness.clear_ms_per_gib = median(clears);
    Ok(exactness)
}

/// The regions that the child has on huge pages, by the kernel's word: its page map, and before Linux 6.7 all that were
/// asked for.
fn huge_regions_of(child: &Canary) -> Result<HashSet<u64>, String> {
    let looked =
        Pagemap::open(&KernelRoot::live(), child.pid()).and_then(|mut map| map.regions(child.huge()));
    let looked = looked.map_err(|error| error.to_string())?;
    let is_huge = looked.iter().filter(|region| region.huge.unwrap_or(true));
    Ok(is_huge.map(|region| region.range.start()).collect())
}

/// Whether the child touches a page in a round: in every round another set, scattered, of another density (a half
/// down to a 64th), and none at all of every eighth region.
fn is_in_set(page: usize, round: usize) -> bool {
    if (page / REGION_PAGES + round).is_multiple_of(8) {
        return false;
    }
    // The finaliser of splitmix64.
    let mut hash = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (round as u64) << 40;
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).is_multiple_of(2 << (round % 6))
}

/// Who else clears accessed bits.
struct Others {
    seen: Option<(Pagemap, FrameFlags)>,
}

impl Others {
    fn open(child: &Canary) -> Others {
        let root = KernelRoot::live();
        let pagemap = Pagemap::open(&root, child.pid());
        Others { seen: pagemap.ok().zip(FrameFlags::open(&root).ok()) }
    }

    /// Whether the kernel marks the page at `address` as one whose bit DAMON or the idle-page bitmap has cleared.
    fn have_cleared(&self, address: u64) -> bool {
        let seen = || {
            let (pagemap, flags) = self.seen.as_ref()?;
            let page = VirtRange::new(address, address + BASE_PAGE as u64)?;
            let frame = pagemap.entries(page).ok()?.first()?.frame()?;
            Some(flags.read(frame, 1).ok()?.first()?.is_idle())
        };
        seen().unwrap_or(false)
    }
}

fn differing(a: &PageBits, b: &PageBits) -> Vec<usize> {
    let differs = |page: &usize| (a[page / 64] ^ b[page / 64]) >> (page % 64) & 1 == 1;
    (0..REGION_PAGES).filter(differs).collect()
}

fn count(bits: &PageBits) -> u16 {
    bits.iter().map(|word| word.count_ones() as u16).sum()
}

pub(super) fn start_child(base_regions: usize, huge_regions: usize) -> Result<Canary, String> {
    let child = Canary::start(base_regions, huge_regions)
        .map_err(|error| format!("no child could be started to try it on: {error}"))?;
    // Where faults give no huge pages (transparent_hugepage/enabled is 'never') a collapse still does. Which are huge is
    // looked up by callers that need it: without the right to it, all are tried on base pages.
    if huge_regions_of(&child).is_ok_and(|huge| huge.len() < huge_regions) {
        let _ = open_pidfd(child.pid()).and_then(|pidfd| collapse(pidfd.as_fd(), &[child.huge()]));
    }
    Ok(child)
}

pub(super) fn whole(child: &Canary) -> VirtRange {
    VirtRange::new(child.base().start(), child.huge().end()).expect("one behind the other")
}

pub(super) fn clear(tracker: &mut dyn Tracker, child: &Canary, ranges: &[VirtRange]) -> Result<(), String> {
    tracker.clear(child.pid(), ranges).map_err(|error| error.to_string())
}

fn read(tracker: &mut dyn Tracker, child: &Canary, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, String> {
    tracker.read(child.pid(), ranges).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
