//! Timings that were disturbed, ended or given up, and the median of several.

use super::*;

#[test]
fn nothing_is_timed_while_tasks_wait_for_memory() {
    let tree = tempfile::tempdir().unwrap();
    let pressure = tree.path().join("proc/pressure");
    std::fs::create_dir_all(&pressure).unwrap();
    let memory = "MemTotal: 16000000 kB\nMemFree: 9000000 kB\nMemAvailable: 9000000 kB\n";
    std::fs::write(tree.path().join("proc/meminfo"), memory).unwrap();
    let line = |what: &str, share: &str| format!("{what} avg10={share} avg60=0.00 avg300=0.00 total=9\n");
    std::fs::write(pressure.join("memory"), line("some", "3.00") + &line("full", "0.00")).unwrap();
    let found = AccessTimes::measure(&KernelRoot::captured(tree.path()), &Geometry::FALLBACK, MOST_UNASKED);
    assert!(matches!(found, Err(NoTimes::Short)), "{found:?}");
}

#[test]
fn timings_that_were_made_absurdly_often_are_counted() {
    let often = AccessTimes { times: u32::MAX, ..synthetic(1.0) };
    assert_eq!(AccessTimes::median(&[often.clone(), often]).unwrap().times(), u32::MAX);
}

#[test]
fn times_lie_between_their_neighbours_and_rise_on() {
    let times = synthetic(1.0);
    let [.., former, last] = &times.steps[..] else { panic!("steps") };
    let chase = |bytes: f64| times.at(bytes).overlapping[0];
    assert_eq!(chase(former.bytes as f64), former.overlapping[0]);
    let between = chase((former.bytes * 2) as f64);
    assert!(between.base > former.overlapping[0].base && between.base < last.overlapping[0].base);
    let beyond = chase(2.0 * last.bytes as f64);
    assert!(beyond.saving() > last.overlapping[0].saving(), "{beyond:?}");
    assert_eq!(chase(1e13), chase(1e15), "not without end");
    assert_eq!(chase(1.0), times.steps[0].overlapping[0]);
}

#[test]
fn one_disturbed_timing_of_several_changes_nothing() {
    let all = [synthetic(1.0), synthetic(9.0), synthetic(1.0)];
    let found = AccessTimes::median(&all).unwrap();
    assert_eq!(found.times(), 3);
    for (step, other) in found.steps().iter().zip(synthetic(1.0).steps()) {
        assert!((step.overlapping[0].base - other.overlapping[0].base).abs() < 1e-9, "{step:?}");
    }
    let short = AccessTimes::from_table(synthetic(0.1).steps()[..2].to_vec()).unwrap();
    let found = AccessTimes::median(&[short, synthetic(1.0)]).unwrap();
    assert_eq!((found.times(), found.steps().len()), (1, synthetic(1.0).steps().len()), "another shape");
    assert!(AccessTimes::median(&[]).is_none());
}

/// Checks that several timings are more certain than one if they agree, and less certain than each
/// claims if they differ.
#[test]
fn timings_that_differ_are_as_unsure_as_they_differ() {
    let with = |ratio: f64| {
        let mut times = synthetic(1.0);
        let timed = Timed { base: 10.0 * ratio, huge: 10.0, ratio: [0.9 * ratio, 1.1 * ratio] };
        times.steps.iter_mut().for_each(|step| step.overlapping[0] = timed);
        times
    };
    let of = |ratios: &[f64]| {
        let all: Vec<AccessTimes> = ratios.iter().map(|ratio| with(*ratio)).collect();
        let found = AccessTimes::median(&all).unwrap().steps()[0].overlapping[0];
        assert!(
            found.ratio[0] < found.base / found.huge && found.base / found.huge < found.ratio[1],
            "{found:?}"
        );
        (found.base / found.huge, found.ratio)
    };
    let [low, high] = of(&[1.4]).1;
    assert!((low - 0.9 * 1.4).abs() < 1e-9 && (high - 1.1 * 1.4).abs() < 1e-9, "{low} {high}");
    let (middle, [low, high]) = of(&[1.4; 5]);
    assert!((middle - 1.4).abs() < 1e-9 && low > 1.3 && high < 1.5, "{low} {high}");
    let (middle, [low, high]) = of(&[1.0, 1.2, 1.4, 1.6, 1.8]);
    assert!((middle - 1.4).abs() < 1e-9 && low < 1.15 && high > 1.7, "{low} {high}");
    // Two different timings say little.
    assert!(of(&[1.3, 1.5]).1[0] < 1.0);
}

#[test]
fn tables_that_make_no_sense_are_refused() {
    let steps = || synthetic(1.0).steps().to_vec();
    assert!(AccessTimes::from_table(steps()).is_some());
    assert!(AccessTimes::from_table(Vec::new()).is_none());
    let mut falling = steps();
    falling.swap(0, 1);
    assert!(AccessTimes::from_table(falling).is_none());
    for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        let mut steps = steps();
        steps[1].overlapping[2].base = wrong;
        assert!(AccessTimes::from_table(steps).is_none(), "{wrong}");
    }
    assert!(AccessTimes::guessed().is_guess() && !synthetic(1.0).is_guess());
}

#[test]
fn pairs_are_summed_up_by_their_median() {
    let pairs: Vec<[f64; 2]> = (0..13).map(|n| [15.0 + f64::from(n % 3), 10.0]).collect();
    let found = summary(&pairs);
    assert_eq!((found.huge, found.base), (10.0, 16.0));
    assert!(found.ratio[0] <= 1.6 && 1.6 <= found.ratio[1], "{found:?}");
    // One disturbed burst changes nothing.
    let mut disturbed = pairs.clone();
    disturbed[4] = [500.0, 10.0];
    assert_eq!(summary(&disturbed).base, 16.0);
}

#[test]
fn sizes_ascend_within_what_is_allowed() {
    for second in [0, 512, 1536, 2048, 4096, 65536] {
        let geometry = Geometry { second, ..Geometry::FALLBACK };
        for most in [64u64 << 20, 100 << 20, 512 << 20] {
            let sizes = sizes(&geometry, most);
            assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{second} {sizes:?}");
            assert!(sizes.len() >= 3 && *sizes.last().unwrap() <= most, "{second} {sizes:?}");
        }
    }
}

#[test]
fn this_machine_is_timed_or_says_why_not() {
    let root = KernelRoot::live();
    let room = room(&Spare::read(&root).unwrap(), MOST_UNASKED);
    // Memory pressure by other programs is not part of this test.
    let measure = || match room < LEAST_MEMORY {
        true => Err(NoTimes::Memory("too little".into())),
        false => AccessTimes::measure_within(&root, &Geometry::FALLBACK, room, LONGEST, &|_| true),
    };
    // Fragmented memory, or a machine that was busy in most timings, is a passing state: try again.
    let found = (0..5).map(|_| measure()).find(Result::is_ok).unwrap_or_else(measure);
    match found {
        Ok(times) => assert!(times.is_sound() && !times.is_guess() && times.times() == 1),
        Err(why @ (NoTimes::Memory(_) | NoTimes::NoHugePages(_))) => {
            megapage_testing::skip(&format!("timing accesses: {why}"));
        }
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn a_timing_ends_where_others_need_the_memory() {
    let root = KernelRoot::live();
    let most = 2 * LEAST_MEMORY;
    for stop in [0, LEAST_MEMORY / 2, LEAST_MEMORY, most] {
        let holds = |taken: u64| taken < stop;
        let found = AccessTimes::measure_within(&root, &Geometry::FALLBACK, LEAST_MEMORY, LONGEST, &holds);
        assert!(matches!(found, Err(NoTimes::Short | NoTimes::NoHugePages(_))), "{stop}: {found:?}");
    }
}

#[test]
fn a_timing_that_takes_too_long_is_given_up() {
    let root = KernelRoot::live();
    let geometry = Geometry::FALLBACK;
    let found = AccessTimes::measure_within(&root, &geometry, LEAST_MEMORY, Duration::ZERO, &|_| true);
    // Before that, huge pages may turn out to be unavailable.
    assert!(matches!(found, Err(NoTimes::Slow(0) | NoTimes::NoHugePages(_))), "{found:?}");
}

#[test]
fn little_memory_is_left_alone() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir(tree.path().join("proc")).unwrap();
    std::fs::write(tree.path().join("proc/meminfo"), "MemTotal: 900000 kB\nMemAvailable: 800000 kB\n")
        .unwrap();
    let found = AccessTimes::measure(&KernelRoot::captured(tree.path()), &Geometry::FALLBACK, MOST_UNASKED);
    let why = found.unwrap_err().to_string();
    assert!(why.contains("takes 128 MiB") && why.contains("781 MiB is available"), "{why}");
    // Enough memory is available, but less of it is free: the page cache of others stays.
    let room = |free: u64, available: u64| {
        let text = format!("MemTotal: 1 kB\nMemFree: {free} kB\nMemAvailable: {available} kB\n");
        std::fs::write(tree.path().join("proc/meminfo"), text).unwrap();
        room(&Spare::read(&KernelRoot::captured(tree.path())).unwrap(), MOST_UNASKED) >> 20
    };
    assert_eq!([room(9 << 20, 16 << 20), room(400 << 10, 16 << 20)], [128, 100]);
    assert_eq!([room(90 << 10, 16 << 20), room(90 << 10, 1 << 20)], [64, 64]);
}
