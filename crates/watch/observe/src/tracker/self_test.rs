//! The self-test of a tracker on this machine: a try on a child with known accesses.

use super::{PageBits, RegionBits, Tracker};
use megapage_kernel::KernelRoot;
use megapage_kernel::canary::Canary;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process_madvise::collapse;
use megapage_kernel::spawn::open_pidfd;
use megapage_snapshot::{Leaf, PAGES, TrackerKind};
use megapage_units::{Bytes, HUGE_2M, HugePage, VirtRange};
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::Duration;

/// Base pages of a region.
pub const REGION_PAGES: usize = PAGES as usize;
/// Regions of the child, 10 MiB: one untouched, one touched in parts, one touched whole. Below, two
/// huge ones: one untouched, one touched.
const BASE_REGIONS: usize = 3;
const HUGE_REGIONS: usize = 2;
/// Memory that the child takes.
pub const TAKES: Bytes = Bytes(((BASE_REGIONS + HUGE_REGIONS) * HUGE_2M) as u64);
/// Pauses before the tries until a tracker is given up, in milliseconds. Other users that clear
/// accessed bits meanwhile (DAMON, reclaim) can spoil a try, and the next while they continue.
const TRIES: [u64; 5] = [0, 1, 5, 25, 125];

/// Checks the readings of `tracker` against the accesses of a child. They must show no access to
/// untouched memory, exactly the touched pages, and one bit for a huge page. Clearing must not
/// split a huge page, and no byte may be lost. A result of `None` is not checked, unless the
/// tracker exists to report it. Takes about 10 ms and 10 MiB. The error describes the fault.
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

/// Expected result for one region.
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
    // A fragmented machine may have had no free huge page.
    let leaves: Vec<Leaf> = before.iter().map(|region| region.leaf).collect();
    if let Some(region) = before.iter().find(|region| region.present != PAGES) {
        return Err(format!("it saw {} of 512 pages that are present", region.present));
    }

    clear(tracker, child, &ranges)?;
    let expected = |bits: PageBits, n: usize| Expected { bits, leaf: leaves[n] };
    let idle: Vec<Expected> = (0..leaves.len()).map(|n| expected([0; 8], n)).collect();
    compare(tracker.kind(), &read(tracker, child, &ranges)?, &idle, "before anything was touched")?;

    // Every seventh page is no multiple of the batch sizes of the kernel.
    let sparse = |page: usize| page.is_multiple_of(7);
    let touched = (0..REGION_PAGES).filter(|&page| sparse(page)).map(|page| REGION_PAGES + page);
    let touched: Vec<usize> = touched
        .chain(2 * REGION_PAGES..3 * REGION_PAGES)
        .chain([(BASE_REGIONS + 1) * REGION_PAGES + 100])
        .collect();
    clear(tracker, child, &ranges)?;
    if tracker.kind() == TrackerKind::IdlePages {
        // The kernel clears without a flush for this tracker.
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
    let must_report = kind != TrackerKind::Pagemap;
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

/// Returns the regions of the child on huge pages, as its page map shows them. Before Linux 6.7
/// these are all regions that were to be huge.
pub fn huge_regions_of(child: &Canary) -> Result<HashSet<HugePage>, String> {
    let looked =
        Pagemap::open(&KernelRoot::live(), child.pid()).and_then(|mut map| map.regions(child.huge()));
    let looked = looked.map_err(|error| error.to_string())?;
    let is_huge = looked.iter().filter(|region| region.huge.unwrap_or(true));
    Ok(is_huge.map(|region| region.page).collect())
}

/// Returns the number of pages in `bits`.
pub fn count(bits: &PageBits) -> u16 {
    bits.iter().map(|word| word.count_ones() as u16).sum()
}

/// Starts a child with regions on base pages, and behind them regions on huge pages, as far as
/// there are any.
pub fn start_child(base_regions: usize, huge_regions: usize) -> Result<Canary, String> {
    let child = Canary::start(base_regions, huge_regions, true)
        .map_err(|error| format!("it cannot be tried on a child: {error}"))?;
    // If page faults give no huge pages (transparent_hugepage/enabled is 'never'), a collapse still
    // does. Callers that need it look up which regions are huge. Without the right to that, all
    // tests run on base pages.
    if huge_regions_of(&child).is_ok_and(|huge| huge.len() < huge_regions) {
        let _ = open_pidfd(child.pid()).and_then(|pidfd| collapse(pidfd.as_fd(), &[child.huge()]));
    }
    Ok(child)
}

/// Returns all memory of the child.
pub fn whole(child: &Canary) -> VirtRange {
    VirtRange::new(child.base().start(), child.huge().end()).expect("one behind the other")
}

/// Clears accessed bits of the child, with the error as text.
pub fn clear(tracker: &mut dyn Tracker, child: &Canary, ranges: &[VirtRange]) -> Result<(), String> {
    tracker.clear(child.pid(), ranges).map_err(|error| error.to_string())
}

/// Reads accessed bits of the child, with the error as text.
pub fn read(
    tracker: &mut dyn Tracker,
    child: &Canary,
    ranges: &[VirtRange],
) -> Result<Vec<RegionBits>, String> {
    tracker.read(child.pid(), ranges).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
