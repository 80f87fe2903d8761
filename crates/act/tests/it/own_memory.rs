//! Promotion and demotion of this process's own memory. They are not among the unit tests: those
//! fork, and a forked child shares memory, which the kernel then skips.

use megapage_act::Bounds;
use megapage_act::demote::Demotion;
use megapage_act::promote::{Promotion, candidates, identify};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_snapshot::ProcessId;
use megapage_testing::{MachineLock, is_root, skip};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugeRange, Pid, VirtRange};

fn own() -> Pid {
    Pid(std::process::id().cast_signed())
}

fn process() -> ProcessId {
    identify(&KernelRoot::live(), own()).unwrap()
}

/// Our own memory: touched on base pages, then promoted, then proved by the page tables.
#[test]
fn dense_regions_become_huge_and_sparse_ones_do_not() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote memory");
    }
    // No swap comes, and no pool grows, while pages are counted.
    let _lock = MachineLock::take();
    let root = KernelRoot::live();
    let mut memory = vec![0u8; 32 << 20];
    let start = memory.as_ptr().addr();
    let half = memory.len() / 2;
    for at in (0..half).step_by(4096) {
        memory[at] = 1;
    }
    for at in (half..memory.len()).step_by(64 * 4096) {
        memory[at] = 1;
    }
    let inside = VirtRange::new(start as u64, (start + memory.len()) as u64).unwrap();
    let mut found = candidates(&root, own(), 256, 10_000).unwrap();
    found.regions.retain(|region| region.range().intersection(inside) == Some(region.range()));
    if found.regions.is_empty() {
        return skip("this system gives huge pages unasked: nothing is left to promote");
    }
    assert!((6..=8).contains(&found.regions.len()), "{:?}", found.regions);
    let promotion =
        Promotion { process: process(), regions: found.regions.clone(), bounds: Bounds::default() };
    assert_eq!(promotion.dry_run().len(), found.regions.len() + 1);
    let outcome = promotion.apply_patiently(&KernelRoot::live(), &mut Promotions::default()).unwrap();
    assert_eq!(outcome.asked_bytes, found.regions.len() as u64 * HUGE_2M as u64);
    // Another thread's test may split or pin one for a moment, but not all of them.
    assert!(outcome.obtained_bytes >= outcome.asked_bytes / 2, "{outcome:?}");
    assert_eq!((outcome.not_tried, outcome.gone), (0, false));
    assert!(memory.iter().step_by(4096).take(half / 4096).all(|&byte| byte == 1));
    let again = candidates(&root, own(), 256, 10_000).unwrap();
    let left = again.regions.iter().filter(|region| found.regions.contains(region)).count();
    assert!(left as u64 * HUGE_2M as u64 <= outcome.asked_bytes - outcome.obtained_bytes);
}

/// Our own memory: 300 of the 512 pages of each region written, promoted, demoted again.
#[test]
fn what_was_promoted_is_demoted_and_its_zeros_go_back() {
    const WRITTEN: usize = 300;
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote and demote memory");
    }
    // No swap comes, and no pool grows, while pages are counted.
    let _lock = MachineLock::take();
    let root = KernelRoot::live();
    let mut memory = vec![0u8; 16 << 20];
    let start = memory.as_ptr().addr();
    let inside = VirtRange::new(start as u64, (start + memory.len()) as u64)
        .and_then(|range| range.aligned_interior(HUGE_2M as u64))
        .unwrap();
    let offset = inside.start() as usize - start;
    let pages = || (0..inside.len().0 as usize / BASE_PAGE).filter(|page| page % 512 < WRITTEN);
    for page in pages() {
        memory[offset + page * BASE_PAGE] = 7;
    }
    let mut regions = candidates(&root, own(), 256, 10_000).unwrap().regions;
    regions.retain(|region| region.range().intersection(inside) == Some(region.range()));
    if regions.is_empty() {
        return skip("this system gives huge pages unasked: nothing is left to promote");
    }
    let bounds = Bounds::default();
    let mut promotions = Promotions::default();
    let promotion = Promotion { process: process(), regions: regions.clone(), bounds };
    let promoted = promotion.apply_patiently(&KernelRoot::live(), &mut promotions).unwrap();
    let demotion = Demotion { process: process(), regions: regions.clone(), bounds };
    assert_eq!(demotion.dry_run().len(), regions.len());
    assert_eq!(demotion.bytes(), Bytes(regions.len() as u64 * HUGE_2M as u64));
    let outcome = demotion.apply(&KernelRoot::live(), &mut promotions).unwrap();
    let huge = promoted.obtained_bytes / HUGE_2M as u64;
    assert!(huge > 0, "{promoted:?}");
    assert_eq!((outcome.asked, outcome.huge_before), (regions.len() as u64, huge), "{outcome:?}");
    // Pages that something else holds for a moment are skipped, but not all of them.
    assert!(outcome.demoted >= huge.div_ceil(2), "{outcome:?}");
    assert_eq!((outcome.not_splittable, outcome.unmapped, outcome.not_tried), (0, 0, 0), "{outcome:?}");
    assert!(pages().all(|page| memory[offset + page * BASE_PAGE] == 7), "a byte was lost");
    // Since Linux 6.12 a split gives zeros back; earlier it frees nothing.
    let most = outcome.demoted * ((512 - WRITTEN) * BASE_PAGE) as u64;
    assert!(outcome.freed_bytes == 0 || outcome.freed_bytes == most, "{outcome:?} of {most}");
    let again = demotion.apply(&KernelRoot::live(), &mut promotions).unwrap();
    assert_eq!(again.demoted + again.skipped(), huge - outcome.demoted, "{again:?}");
}

#[test]
fn regions_that_are_not_huge_are_left_alone() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to demote memory");
    }
    let memory = vec![1u8; 8 << 20];
    let start = memory.as_ptr().addr() as u64;
    let inside = VirtRange::new(start, start + memory.len() as u64).and_then(HugeRange::within).unwrap();
    let outcome =
        Demotion { process: process(), regions: inside.pages().collect(), bounds: Bounds::default() }
            .apply(&KernelRoot::live(), &mut Promotions::default())
            .unwrap();
    if outcome.huge_before > 0 {
        return skip("this system gives huge pages unasked");
    }
    assert_eq!((outcome.calls, outcome.demoted, outcome.gone), (0, 0, false));
}
