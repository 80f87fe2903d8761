//! The probe on a synthetic tracker. The test process itself is the target, for its clock.

use super::*;
use megapage_snapshot::{Mapping, MappingFlags, ProcessId, TrackerKind};
use megapage_units::{Bytes, HUGE_2M};

use crate::tracker::RegionBits;

const BASE: u64 = 0x7000_0000_0000;

/// Reports the first `touched` pages of each region as touched, and notes the cleared ranges.
struct Made {
    touched: u16,
    cleared: Vec<VirtRange>,
    fail: bool,
}

impl Tracker for Made {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Bpf
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        assert!(ranges.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "sorted and disjoint");
        self.cleared.extend(ranges);
        if self.fail { Err(TrackError::Gone(pid)) } else { Ok(()) }
    }

    fn read(&mut self, _: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        // A little work moves the target's clock.
        std::hint::black_box((0..20_000u64).sum::<u64>());
        let bits = |touched: u16| {
            let mut bits: PageBits = [0; PAGES as usize / 64];
            (0..usize::from(touched)).for_each(|page| bits[page / 64] |= 1 << (page % 64));
            bits
        };
        let of = |range: &VirtRange| RegionBits {
            page: HugePage::at(range.start()).unwrap(),
            leaf: Leaf::Base,
            present: PAGES,
            zero_page: 0,
            swapped: 0,
            accessed: Some(self.touched),
            bits: Some(bits(self.touched)),
        };
        Ok(ranges.iter().map(of).collect())
    }
}

fn process(regions: u64) -> Process {
    let huge = HUGE_2M as u64;
    let end = BASE + regions * huge;
    let mut all: Vec<Region> =
        (0..regions).map(|n| Region::of_base_pages(HugePage::containing(BASE).offset(n), PAGES)).collect();
    all.push(Region { mapping: 1, ..Region::of_base_pages(HugePage::containing(end), PAGES) });
    let mapping = |range, flags| Mapping { flags, ..Mapping::anonymous(range) };
    let id = ProcessId { pid: Pid(std::process::id() as i32), start_ticks: 0, start_stack: 0 };
    Process {
        rss: Bytes(regions * huge),
        rss_anonymous: Bytes(regions * huge),
        mappings: vec![
            mapping(VirtRange::new(BASE, end).unwrap(), MappingFlags::default()),
            mapping(
                VirtRange::new(end, end + huge).unwrap(),
                MappingFlags { locked: true, ..Default::default() },
            ),
        ],
        regions: all,
        ..Process::without_memory(id, "synthetic")
    }
}

/// Probes with waits that return at once: the rounds follow each other as fast as they can.
fn run(
    tracker: &mut Made,
    process: &Process,
    rounds: usize,
    first_access_ns: f64,
) -> Result<Touches, TrackError> {
    let options = ProbeOptions { time: Duration::from_secs(3600), budget: 0.01, first_access_ns, seed: 5 };
    // Waits of a cycle: those of the quick rounds, and of the slow one.
    let mut left = rounds * (QUICK_ROUNDS * QUICK.len() + SLOW.len());
    let mut wait = |time: Duration| {
        assert!(time <= SLOW[SLOW.len() - 1].mul_f64(LONGEST_STRETCH));
        left = left.saturating_sub(1);
        left > 0
    };
    probe(&KernelRoot::live(), tracker, process, &BTreeMap::new(), &options, &mut wait)
}

#[test]
fn readings_come_in_order_and_locked_memory_is_left_alone() {
    let mut tracker = Made { touched: 100, cleared: Vec::new(), fail: false };
    let process = process(40);
    let touches = run(&mut tracker, &process, 3, 500.0).unwrap();
    assert!(!touches.histories.is_empty());
    assert_eq!((touches.promotable_pages, touches.other_pages, touches.huge_regions), (40 * 512, 0, 0));
    for history in &touches.histories {
        assert!(history.promotable && !history.huge && history.present == PAGES);
        assert!(history.readings.windows(2).all(|pair| pair[0].cpu <= pair[1].cpu), "{history:?}");
        assert!(history.readings.iter().all(|it| it.touched == 100));
    }
    let locked = process.regions.last().unwrap().start();
    assert!(tracker.cleared.iter().all(|range| range.start() != locked));
    assert!(touches.seconds > 0.0 && touches.cpu_seconds > 0.0 && touches.parallel >= 1.0);
}

#[test]
fn what_is_cleared_is_paid_for_whether_or_not_it_is_touched_while_watched() {
    let process = process(4000);
    let mut tracker = Made { touched: PAGES, cleared: Vec::new(), fail: false };
    run(&mut tracker, &process, 4, 5e6).unwrap();
    // 36 s of slow-down, half of it in advance, pay for 3600 to 7200 pages at 5 ms a first touch.
    // There are fewer if this process does not get the processor. The first round is made in any
    // case.
    let pages = tracker.cleared.len() * usize::from(PAGES);
    assert!((512..7200 + QUICK_ROUNDS * QUICK_REGIONS * 512).contains(&pages), "{pages}");
}

#[test]
fn bits_that_are_clear_already_are_not_paid_for_again() {
    let process = process(40);
    let regions: Vec<&Region> = process.regions[..40].iter().collect();
    let ranges: Vec<VirtRange> = regions.iter().map(|region| region.range()).collect();
    let root = KernelRoot::live();
    let clock = ProcessClock::open(&root, process.id.pid).unwrap();
    for touched in [0, 3, PAGES] {
        let mut tracker = Made { touched, cleared: Vec::new(), fail: false };
        let mut run = Run {
            root: &root,
            tracker: &mut tracker,
            pid: process.id.pid,
            clock: &clock,
            start: Moment::now(&clock, process.id.pid).unwrap(),
            touches: Touches::default(),
            wait: &mut |_| true,
            spent: 0.0,
            cpu: 0.0,
            hot: VecDeque::new(),
            shared: false,
            first_access: 1e-7,
        };
        assert_eq!(run.charge(&regions, &ranges), 40.0 * f64::from(touched));
        // A region that the tracker does not find is charged whole.
        assert_eq!(run.charge(&regions, &ranges[..10]), f64::from(10 * touched + 30 * PAGES));
    }
}

#[test]
fn a_process_that_is_gone_from_the_start_is_an_error() {
    let mut tracker = Made { touched: 1, cleared: Vec::new(), fail: true };
    assert!(matches!(run(&mut tracker, &process(4), 1, 500.0), Err(TrackError::Gone(_))));
    let mut tracker = Made { touched: 1, cleared: Vec::new(), fail: false };
    let gone = Process { id: ProcessId { pid: Pid(1 << 28), start_ticks: 0, start_stack: 0 }, ..process(4) };
    assert!(matches!(run(&mut tracker, &gone, 1, 500.0), Err(TrackError::Gone(_))));
    assert!(tracker.cleared.is_empty());
}

#[test]
fn a_deck_deals_every_region_once_a_round() {
    let process = process(100);
    let mut deck = Deck::new(process.regions.iter().collect(), 9);
    let dealt: Vec<u64> =
        (0..101).step_by(20).flat_map(|_| deck.deal(20)).map(|it| it.start()).take(101).collect();
    let distinct: std::collections::BTreeSet<u64> = dealt.iter().copied().collect();
    assert_eq!(distinct.len(), 101);
    assert!(dealt.windows(2).any(|pair| pair[0] > pair[1]), "in random order");
    assert_eq!(Deck::new(Vec::new(), 1).deal(3).len(), 0);
}

#[test]
fn use_of_mostly_shared_memory_is_reported() {
    let mut shared = process(8);
    assert!(!uses_shared(&shared));
    shared.mappings[0].kind = MappingKind::Shared;
    assert!(uses_shared(&shared));
    // It has 64 private regions beside one shared region.
    let mut private = process(64);
    private.mappings[1].kind = MappingKind::Shared;
    private.mappings[1].flags.locked = false;
    assert!(!uses_shared(&private));
}

#[test]
fn one_region_in_four_is_quiet() {
    let process = process(40);
    let regions: Vec<&Region> = process.regions[..40].iter().collect();
    let quiet: BTreeMap<HugePage, u16> = regions[8..].iter().map(|region| (region.page, PAGES)).collect();
    let mut decks = Decks::new(regions.clone(), &quiet, 5);
    let mut count = |wanted| {
        let dealt = decks.deal(wanted);
        let seldom = dealt.iter().filter(|region| quiet.contains_key(&region.page)).count();
        (dealt.len(), seldom)
    };
    assert_eq!([2, 2, 1, 3].map(&mut count), [(2, 0), (2, 1), (1, 0), (3, 1)]);
    // More are dealt than there are other regions.
    assert_eq!([32, 100].map(&mut count), [(32, 24), (40, 32)]);
    let mut all = Decks::new(regions, &BTreeMap::new(), 5);
    assert_eq!([all.deal(9).len(), all.deal(41).len()], [9, 40]);
}
