//! The estimator against synthetic programs. Each is a function from a page and a moment to the
//! page's next touch, sampled as a tracker would.

use super::super::touches::{Reading, neighbours_among};
use super::*;
use megapage_snapshot::PAGES;

const REGION: usize = PAGES as usize;

/// SplitMix64 generator of numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Seconds of processor time from the clearing of a region to each reading.
const READ_AT: [f64; 9] = [1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2, 0.1, 0.2, 0.3];

/// Samples `regions` of the `count` regions of a program. Its pages are next touched
/// `next(page, random, moment)` seconds after they are cleared at `moment`.
fn sample(
    count: usize,
    regions: usize,
    huge: bool,
    mut next: impl FnMut(usize, &mut Random, f64) -> f64,
) -> Touches {
    let mut random = Random(3);
    let mut histories = Vec::new();
    for n in 0..regions {
        let region = n * count / regions;
        let cleared = random.unit() * 100.0;
        let first: Vec<f64> =
            (0..REGION).map(|page| next(region * REGION + page, &mut random, cleared)).collect();
        let mut former = [0u64; REGION / 64];
        let readings = READ_AT.map(|cpu| {
            let mut bits = [0u64; REGION / 64];
            for page in (0..REGION).filter(|page| first[*page] <= cpu) {
                bits[page / 64] |= 1 << (page % 64);
            }
            let touched = bits.iter().map(|word| word.count_ones()).sum::<u32>() as u16;
            let neighbours = neighbours_among(&bits, &former);
            former = bits;
            Reading {
                cpu,
                unsure: 0.0,
                touched: if huge && touched > 0 { PAGES } else { touched },
                neighbours: (!huge).then_some(neighbours),
            }
        });
        let page = HugePage::nth(region as u64);
        histories.push(History {
            page,
            huge,
            promotable: !huge,
            close: false,
            quiet: false,
            present: PAGES,
            readings: readings.to_vec(),
        });
    }
    Touches {
        histories,
        promotable_pages: if huge { 0 } else { (count * REGION) as u64 },
        quiet_pages: 0,
        other_pages: 0,
        huge_regions: if huge { count as u64 } else { 0 },
        parallel: 1.0,
        cpu_seconds: 8.0,
        seconds: 8.0,
        contiguity: Some(0.0),
    }
}

/// Visits each page at random moments, `rate(page)` times a second.
fn at_random(count: usize, rate: impl Fn(usize) -> f64) -> Touches {
    sample(count, count.min(100), false, |page, random, _| -random.unit().max(1e-300).ln() / rate(page))
}

/// Visits pages in order, `speed` of them a second, round and round.
fn in_order(count: usize, speed: f64) -> Touches {
    let pages = (count * REGION) as f64;
    sample(count, count.min(100), false, |page, _, moment| {
        (page as f64 - moment * speed).rem_euclid(pages) / speed
    })
}

/// Returns times as on a busy virtual machine with nested paging (Zen 5 under KVM), in nanoseconds.
fn costs() -> AccessTimes {
    let timed =
        |(base, huge): (f64, f64)| Timed { base, huge, ratio: [0.95 * base / huge, 1.05 * base / huge] };
    let step = |kib: u64, pairs: [(f64, f64); OVERLAPS + 1]| {
        let [one, two, four, eight, random, stream] = pairs.map(timed);
        Step { bytes: kib << 10, overlapping: [one, two, four, eight, random], stream }
    };
    let steps = vec![
        step(192, [(5.0, 5.0), (2.5, 2.5), (1.3, 1.3), (0.8, 0.8), (0.7, 0.7), (38.0, 38.0)]),
        step(4 << 10, [(100.0, 98.0), (50.0, 49.0), (25.0, 24.5), (12.0, 11.8), (5.0, 5.0), (60.0, 60.0)]),
        step(
            32 << 10,
            [(175.0, 155.0), (85.0, 77.0), (43.0, 39.0), (22.0, 20.5), (8.2, 7.8), (120.0, 120.0)],
        ),
        step(
            128 << 10,
            [(240.0, 170.0), (120.0, 88.0), (58.0, 43.0), (27.0, 22.0), (10.0, 8.2), (130.0, 126.0)],
        ),
        step(
            512 << 10,
            [(390.0, 255.0), (170.0, 120.0), (80.0, 58.0), (39.0, 28.0), (14.0, 9.6), (135.0, 130.0)],
        ),
    ];
    AccessTimes::from_table(steps).unwrap()
}

const GEOMETRY: Geometry = Geometry { second: 2048, ..Geometry::FALLBACK };

fn of(touches: &Touches) -> Estimate {
    estimate(touches, &GEOMETRY, &costs()).unwrap()
}

fn brief(found: &Estimate) -> String {
    format!("{:?}", Estimate { profiles: Vec::new(), ..found.clone() })
}

/// Regions in 1 GiB.
const GIB: usize = 512;

fn chase() -> Touches {
    at_random(GIB, |_| 2e6 / (GIB * REGION) as f64)
}

fn random() -> Touches {
    at_random(GIB, |_| 25e6 / (GIB * REGION) as f64)
}

/// Reads 10 GB a second in order.
fn scan() -> Touches {
    in_order(GIB, 2.5e6)
}

/// Visits 16 MiB at random in 1 GiB. Cold memory costs nothing to sample, so that all of it is
/// sampled.
fn hot() -> Touches {
    sample(GIB, GIB, false, |page, random, _| match page / REGION % 64 {
        0 => -random.unit().max(1e-300).ln() / (2e8 / 4096.0),
        _ => f64::INFINITY,
    })
}

/// Stays in the first-level caches.
fn compute() -> Touches {
    at_random(GIB / 16, |page| if page < 40 { 1e6 } else { 0.0 })
}

#[test]
fn walks_are_those_of_the_program() {
    let found = of(&random());
    assert!((20e6..30e6).contains(&found.walks), "{}", brief(&found));
    assert!((0.5e9..2e9).contains(&found.footprint), "{}", brief(&found));
    let found = of(&chase());
    assert!((1.6e6..2.5e6).contains(&found.walks), "{}", brief(&found));
    let found = of(&scan());
    assert!((2.2e6..3e6).contains(&found.walks), "{}", found.walks);
    assert!(of(&compute()).walks < 1e4);
}

#[test]
fn the_order_of_touches_separates_streaming_from_chasing_at_equal_coverage() {
    let (scan, chase) = (of(&scan()), of(&chase()));
    // Within 0.3 s all pages of both are touched: coverage is the same.
    assert!(scan.streaming > 0.85, "{}", brief(&scan));
    assert!(chase.streaming < 0.15, "{}", brief(&chase));
    assert_eq!((scan.class, chase.class), (AccessClass::Streaming, AccessClass::Dependent));
    assert!(chase.gain.likely > scan.gain.likely + 0.1, "{} {}", chase.gain.likely, scan.gain.likely);
    assert!(scan.gain.low < 1.03 && chase.gain.low > 1.03, "{} {}", scan.gain.low, chase.gain.low);
}

#[test]
fn a_stream_gains_where_its_pages_lie_apart_and_it_waits_for_memory() {
    // Uses a machine with prefetchers that stop at the end of a page frame: 195 ns a page on base
    // pages, 128 ns on huge ones.
    let mut times = AccessTimes::guessed();
    times = AccessTimes::from_table(times.steps().to_vec()).unwrap();
    let gain = |speed: f64, contiguity: Option<f64>| {
        let touches = Touches { contiguity, ..in_order(128, speed) };
        estimate(&touches, &GEOMETRY, &times).unwrap().gain
    };
    let full = 0.97 / 195e-9;
    let [apart, half, beside] = [0.0, 0.5, 1.0].map(|share| gain(full, Some(share)));
    assert!((1.25..1.6).contains(&apart.likely) && apart.low > 1.05, "{apart:?}");
    assert!(half.likely < apart.likely && half.high >= half.likely, "{half:?}");
    assert!(beside.high < 1.02, "{beside:?}");
    // A program that computes for as long again hides it.
    assert!(gain(full / 2.0, Some(0.0)).likely < 1.05);
    let unknown = gain(full, None);
    assert!(unknown.low < 1.001 && unknown.likely < apart.likely && unknown.high > 1.25, "{unknown:?}");
}

#[test]
fn slow_streams_and_blocks_are_recognised_too() {
    for speed in [2e4, 2e5, 1e6] {
        let found = of(&in_order(GIB, speed));
        assert!(found.streaming > 0.7, "{speed}: {}", brief(&found));
    }
    // Runs of 64 KiB come at random.
    let runs = sample(GIB, 100, false, |page, _, moment| {
        let mut random = Random((page / 16) as u64 ^ (moment * 1e6) as u64);
        -random.unit().max(1e-300).ln() / 4.0
    });
    let found = of(&runs);
    assert!(found.streaming > 0.7, "{}", brief(&found));
}

#[test]
fn walks_too_many_to_be_waited_for_overlap() {
    let (random, chase) = (of(&random()), of(&chase()));
    assert_eq!(random.class, AccessClass::Random);
    assert!(random.under_way > 2.0 && chase.under_way < 1.0, "{} {}", random.under_way, chase.under_way);
    assert!((0.1..0.5).contains(&random.cost.share), "{}", brief(&random));
    assert!((0.1..0.5).contains(&chase.cost.share), "{}", brief(&chase));
}

#[test]
fn small_hot_sets_and_computing_cost_little() {
    let found = of(&hot());
    assert!(found.cost.low < 0.03 && found.cost.share < 0.1, "{:?} {}", found.cost, found.walks);
    let found = of(&compute());
    assert!(found.cost.share < 0.001 && found.gain.high < 1.01, "{}", brief(&found));
}

#[test]
fn skewed_accesses_cost_less_than_even_ones() {
    // Zipf over scattered pages: equally many accesses a second, most of them to few pages.
    let pages = GIB * REGION;
    let sum: f64 = (1..=pages).map(|rank| (rank as f64).powf(-0.99)).sum();
    let scattered = |page: usize| (page.wrapping_mul(2_654_435_761) % pages + 1) as f64;
    let zipf = at_random(GIB, |page| 25e6 * scattered(page).powf(-0.99) / sum);
    let (zipf, even) = (of(&zipf), of(&random()));
    assert!(zipf.walks < 0.75 * even.walks, "{}", brief(&zipf));
    assert!(zipf.streaming < 0.2, "{}", brief(&zipf));
}

fn history(readings: &[(f64, f64, u16)]) -> History {
    let reading = |&(cpu, unsure, touched)| Reading { cpu, unsure, touched, neighbours: None };
    let readings = readings.iter().map(reading).collect();
    History {
        page: HugePage::nth(0),
        huge: false,
        promotable: true,
        close: false,
        quiet: false,
        present: PAGES,
        readings,
    }
}

/// Checks readings by a thread that loses the processor in between: all pages are new in one
/// reading, in any order.
#[test]
fn an_early_or_late_reading_shows_neither_order_nor_rate() {
    let late = history(&[(0.0, 0.0, 0), (8e-3, 0.0, 512), (3e-2, 0.0, 512)]);
    assert_eq!((late.order(), late.is_full_at_once()), (None, true));
    let unsure = history(&[(6e-3, 9e-3, 0), (1.1e-2, 9e-3, 512), (3e-2, 9e-3, 512)]);
    assert_eq!((unsure.order(), unsure.is_full_at_once()), (None, true));
    // Seen in time, the same touches are a stream, and not hot.
    let stream = history(&[(1e-3, 0.0, 0), (3.16e-3, 0.0, 0), (1e-2, 0.0, 512)]);
    assert!(stream.order().is_some_and(|(score, _)| score > 0.9), "{:?}", stream.order());
    assert!(!stream.is_full_at_once());
}

/// Checks memory that roughly fills the TLB, and is visited faster than can be determined.
#[test]
fn a_hot_set_of_the_size_of_the_tlb_gains_at_most_what_was_timed_of_so_much() {
    // 8 MiB is the reach of this TLB. All of it is touched within the first 0.1 ms.
    let hot = sample(GIB, GIB, false, |page, random, _| match page / REGION % 128 {
        0 => -random.unit().max(1e-300).ln() / 1e5,
        _ => f64::INFINITY,
    });
    let found = of(&hot);
    // The rate of visits is unknown, and timings for so little memory are uncertain. So no gain is
    // claimed. The high end still allows that the process does nothing else.
    assert!(found.gain.low == 1.0 && found.gain.likely < 1.02, "{}", brief(&found));
    assert!((1.03..2.0).contains(&found.gain.high) && found.streaming < 0.1, "{}", brief(&found));
}

#[test]
fn a_program_on_huge_pages_has_nothing_to_gain() {
    let touches = sample(GIB, 100, true, |_, random, _| -random.unit().max(1e-300).ln() / 100.0);
    let found = of(&touches);
    assert_eq!((found.gain.likely, found.gain.high), (1.0, 1.0));
    assert!(found.cost.share < 0.01, "{}", brief(&found));
}

#[test]
fn threads_have_a_tlb_each() {
    // Four threads share 24 MiB. One TLB does not hold it, and neither do four that each see all of
    // it.
    let mut touches = at_random(12, |_| 1e7 / (12 * REGION) as f64);
    let one = of(&touches);
    touches.parallel = 4.0;
    let four = of(&touches);
    assert!(one.walks > 1e6 && four.walks <= one.walks, "{} {}", one.walks, four.walks);
}

#[test]
fn trackers_that_only_count_still_show_streams() {
    let mut touches = scan();
    for reading in touches.histories.iter_mut().flat_map(|it| &mut it.readings) {
        reading.neighbours = None;
    }
    assert!(of(&touches).streaming > 0.7);
    let mut touches = chase();
    for reading in touches.histories.iter_mut().flat_map(|it| &mut it.readings) {
        reading.neighbours = None;
    }
    assert!(of(&touches).streaming < 0.2);
}

#[test]
fn what_was_not_seen_is_not_estimated() {
    let mut touches = chase();
    touches.cpu_seconds = 0.01;
    assert_eq!(estimate(&touches, &GEOMETRY, &costs()), Err(NoEstimate::Idle));
    touches = Touches { cpu_seconds: 1.0, parallel: 1.0, ..Touches::default() };
    assert_eq!(estimate(&touches, &GEOMETRY, &costs()), Err(NoEstimate::NoSample));
}

#[test]
fn intervals_hold_their_guess_and_few_regions_widen_them() {
    for touches in [chase(), random(), scan(), hot(), compute()] {
        let found = of(&touches);
        assert!(
            found.cost.low <= found.cost.share && found.cost.share <= found.cost.high,
            "{}",
            brief(&found)
        );
        assert!(
            found.gain.low <= found.gain.likely && found.gain.likely <= found.gain.high,
            "{}",
            brief(&found)
        );
        assert!(found.gain.low >= 1.0 && found.cost.high < 1.0, "{}", brief(&found));
        assert!(!found.profiles.is_empty() && found.profiles.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}

/// Checks that closer looks add to the first reading. A region that is full at it is hot, but only
/// a closer look shows how hot.
#[test]
fn closer_looks_show_how_hot_the_hot_is() {
    // All of 32 MiB is touched within the first 0.1 ms.
    let far = at_random(16, |_| 1e5);
    let mut near = far.clone();
    let look = sample(16, 4, false, |_, random, _| -random.unit().max(1e-300).ln() / 1e5);
    near.histories.extend(look.histories.into_iter().map(|mut look| {
        look.close = true;
        // These readings come sooner, by a factor of 10.
        for reading in &mut look.readings {
            let touched = 1.0 - (-1e5 * reading.cpu / 10.0).exp();
            *reading = Reading {
                cpu: reading.cpu / 10.0,
                unsure: 0.0,
                touched: (touched * f64::from(PAGES)) as u16,
                neighbours: None,
            };
        }
        look
    }));
    let (far, near) = (of(&far), of(&near));
    // The TLB holds a quarter of the pages: three of four visits walk.
    let truth = 0.75 * 1e5 * 8192.0;
    assert!((0.6..1.4).contains(&(near.walks / truth)), "{} {truth}", near.walks);
    assert!(far.walks < 0.5 * near.walks, "{} {}", far.walks, near.walks);
}

/// Checks a sample by strata: a sixteenth of 2 GiB is hot. Few of the other regions are sampled,
/// and each of these stands for more.
#[test]
fn a_few_regions_of_each_stratum_say_what_all_do() {
    let all = at_random(1024, |page| if page < 64 * REGION { 2000.0 } else { 0.01 });
    let hot = |page: HugePage| page < HugePage::nth(64);
    let mut few = all.clone();
    let mut seldom = 0;
    few.histories.retain(|history| {
        seldom += usize::from(!hot(history.page));
        hot(history.page) || seldom <= 3
    });
    let alike = of(&few).walks;
    let pages = (0..1024).map(HugePage::nth);
    few.stratify(&pages.filter(|page| !hot(*page)).map(|page| (page, PAGES)).collect());
    let (few, all) = (of(&few), of(&all));
    assert!((0.7..1.3).contains(&(few.walks / all.walks)), "{} {}", few.walks, all.walks);
    assert!((0.7..1.3).contains(&(few.cost.share / all.cost.share)), "{} {}", brief(&few), brief(&all));
    assert!(alike > 3.0 * all.walks, "{alike} {}", all.walks);
}

/// Checks a stream: memory visited in order was mostly not touched a moment ago, but will be.
#[test]
fn a_stream_is_one_though_most_of_it_is_quiet() {
    let all = in_order(128, 1e6);
    let mut few = all.clone();
    few.histories.retain(|history| history.page.number() < 16 || history.page.number().is_multiple_of(3));
    few.stratify(&(16..128).map(|region| (HugePage::nth(region), PAGES)).collect());
    let (few, all) = (of(&few), of(&all));
    assert!((0.6..1.6).contains(&(few.walks / all.walks)), "{} {}", few.walks, all.walks);
    assert!(few.streaming > 0.5, "{}", few.streaming);
}

#[test]
fn what_cannot_be_huge_gains_nothing() {
    let mut touches = random();
    touches.other_pages = touches.promotable_pages;
    touches.promotable_pages = 0;
    touches.histories.iter_mut().for_each(|history| history.promotable = false);
    let found = of(&touches);
    assert!(found.cost.share > 0.1, "{}", brief(&found));
    assert_eq!(found.gain, Factor { low: 1.0, likely: 1.0, high: 1.0 });
    assert_eq!(found.walks, found.walks_when_huge);
    // If a half can be huge, about half of the walks stay.
    let mut touches = random();
    let pages = touches.promotable_pages;
    (touches.promotable_pages, touches.other_pages) = (pages / 2, pages / 2);
    touches.histories.iter_mut().step_by(2).for_each(|history| history.promotable = false);
    let half = of(&touches);
    assert!((0.4..0.6).contains(&(half.walks_when_huge / half.walks)), "{}", brief(&half));
    let all = of(&random());
    assert!(
        half.gain.likely < 1.0 + 0.7 * (all.gain.likely - 1.0) && half.gain.likely > 1.02,
        "{}",
        brief(&half)
    );
}
