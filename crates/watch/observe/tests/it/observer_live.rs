//! The observer with a real tracker, on children with known accesses. These tests run one at a
//! time: each child is forked from this process, and shares its memory.

use megapage_kernel::KernelRoot;
use megapage_kernel::canary::Canary;
use megapage_observe::tracker::{BpfTracker, Selected};
use megapage_observe::{BootClock, Leaf, Observer, Options, Region, Snapshot};
use megapage_testing::skip;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lock so that one test at a time forks.
static FORKING: Mutex<()> = Mutex::new(());

fn own_pid() -> Pid {
    Pid(std::process::id().cast_signed())
}

/// Returns an observer with the BPF tracker. Returns `None`, after a loud skip, if that cannot be
/// used.
fn sampling_observer(window: Duration) -> Option<Observer> {
    sampling_at(window, 470.0)
}

/// Returns the same, with this number of nanoseconds for a first access.
fn sampling_at(window: Duration, first_access_ns: f64) -> Option<Observer> {
    let root = KernelRoot::live();
    let tracker = match BpfTracker::open(&root) {
        Ok(tracker) => Box::new(tracker),
        Err(error) => {
            skip(&format!("needs the BPF tracker: {error}"));
            return None;
        }
    };
    let selected = Selected { tracker, skipped: Vec::new(), first_access_ns };
    // The budget allows all of a small process at once.
    let options = Options { window, budget: 1.0, ..Options::default() };
    Some(Observer::with_parts(&root, options, Some(selected), Box::new(BootClock)).unwrap())
}

/// Returns the kind of entries and the coverage of each region of the child.
fn sampled(snapshot: &Snapshot, child: &Canary) -> Vec<(Leaf, Option<u16>)> {
    let regions = &snapshot.process(child.pid()).expect("observed").regions;
    let inside =
        |region: &&Region| child.base().start() <= region.start() && region.start() < child.huge().end();
    let numbers = |region: &Region| (region.leaf, region.accessed.map(|accessed| accessed.coverage));
    regions.iter().filter(inside).map(numbers).collect()
}

#[test]
fn what_a_child_accesses_between_two_snapshots_is_seen() {
    let window = Duration::from_millis(20);
    let _alone = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut observer) = sampling_observer(window) else { return };
    let mut child = Canary::start(3, 2, true).unwrap();
    let pages = || (0..100).chain(2 * 512 + 5..2 * 512 + 12).chain([4 * 512 + 77]);
    let expected =
        [(Leaf::Base, 100), (Leaf::Base, 0), (Leaf::Base, 7), (Leaf::Huge2m, 0), (Leaf::Huge2m, 512)];
    let expected = expected.map(|(leaf, coverage)| (leaf, Some(coverage)));
    observer.snapshot(&[child.pid()]);
    child.touch(pages()).unwrap();
    std::thread::sleep(window);
    let snapshot = observer.snapshot(&[child.pid()]);
    let found = sampled(&snapshot, &child);
    if found.last().is_some_and(|(leaf, _)| !leaf.is_huge()) {
        return skip("needs two free huge pages");
    }
    let sampling = snapshot.process(child.pid()).unwrap().sampling.clone().expect("sampled");
    assert!(sampling.window >= window && sampling.bytes >= Bytes::mib(10) && sampling.slowdown <= 1.0);
    assert_eq!(found, expected);
}

#[test]
fn memory_that_a_fork_shares_is_not_shown_as_hot() {
    let window = Duration::from_millis(20);
    let _alone = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    // A vector is used: writes through a file would leave no accessed bits.
    let mut memory = vec![0u8; 3 * HUGE_2M];
    let address = memory.as_ptr().addr();
    let first = address.next_multiple_of(HUGE_2M);
    let mut write = |pages: Range<usize>, value: u8| {
        pages.for_each(|page| memory[first - address + page * BASE_PAGE] = std::hint::black_box(value));
    };
    write(0..1024, 1);
    // The child has this process's memory as it was, copy-on-write.
    let child = Canary::start(1, 0, true).unwrap();
    // A part of the second region is copied again and belongs to this process alone.
    write(512..562, 2);
    let Some(mut observer) = sampling_observer(window) else { return };
    observer.snapshot(&[own_pid()]);
    write(512..542, 3);
    std::thread::sleep(window);
    let snapshot = observer.snapshot(&[own_pid()]);
    let process = snapshot.process(own_pid()).unwrap();
    let region = |number: usize| {
        let start = (first + number * HUGE_2M) as u64;
        process.regions.iter().find(|region| region.start() == start).unwrap()
    };
    if region(0).leaf.is_huge() {
        return skip("needs THP that are not given unasked");
    }
    assert!(process.sharing_children >= Some(1));
    assert_eq!(region(0).accessed, None, "no tracker can tell");
    let coverage = region(1).accessed.expect("a part of it is its own").coverage;
    assert!((20..=30).contains(&coverage), "{coverage}");
    let shared = process.sampling.as_ref().unwrap().shared;
    assert!(shared >= Bytes(((512 + 462) * BASE_PAGE) as u64), "{shared}");
    drop(child);
}

#[test]
fn where_all_would_cost_too_much_a_part_of_each_region_tells_which_are_hot() {
    const REGIONS: usize = 40;
    const COLD: usize = 30;
    let window = Duration::from_secs(1);
    let _alone = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = Canary::start(REGIONS, 1, true).unwrap();
    // The first sample may take 0.1 to 1 s; all pages would take 2.6 s, the parts 0.08 s.
    let Some(mut observer) = sampling_at(window, 100_000.0) else { return };
    observer.snapshot(&[child.pid()]);
    child.touch(COLD * 512..REGIONS * 512).unwrap();
    std::thread::sleep(window);
    let told = sampled(&observer.snapshot(&[child.pid()]), &child);
    let is_hot = |at: usize| (COLD..REGIONS).contains(&at);
    let right = told.iter().enumerate().all(|(at, (_, coverage))| {
        coverage.is_some_and(|coverage| if is_hot(at) { coverage >= 448 } else { coverage == 0 })
    });
    assert!(right && told.len() == REGIONS + 1 && told[REGIONS].0 == Leaf::Huge2m, "{told:?}");
}
