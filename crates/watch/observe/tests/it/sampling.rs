//! Sampling on synthetic processes, with a synthetic tracker and clock: budgets, histories, and
//! processes that go away.

use crate::synthetic;

use megapage_observe::{CostSource, NEW_WEIGHT, ObserveError};
use megapage_observe::{Leaf, MissedWhy, Observer, Options, Snapshot, TrackerKind, TranslationCost};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid};
use std::time::Duration;
use synthetic::{BASE, EXCLUSIVE, Fault, PID, PRESENT, World};

const SECOND: Duration = Duration::from_secs(1);

/// Takes snapshots whenever one is due, for `time`. Returns all of them.
fn watch(world: &World, observer: &mut Observer, time: Duration) -> Vec<Snapshot> {
    let end = world.now() + time;
    let mut snapshots = Vec::new();
    while world.now() < end {
        snapshots.push(observer.snapshot(&[PID]));
        let due = observer.next_due().expect("there is something to sample");
        world.pass(due.max(Duration::from_millis(10)));
    }
    snapshots
}

fn coverages(snapshot: &Snapshot) -> Vec<Option<u16>> {
    let regions = &snapshot.process(PID).expect("observed").regions;
    regions.iter().map(|region| region.accessed.map(|accessed| accessed.coverage)).collect()
}

#[test]
fn a_target_that_touches_everything_stays_within_its_budget() {
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options::default());
    let snapshots = watch(&world, &mut observer, 200 * SECOND);
    let (lost, cpu) = (world.lost(), world.cpu());
    assert!(lost <= 0.0101 * cpu, "{lost:.3} s lost in {cpu} s");
    // The budget is not left unused either.
    assert!(lost >= 0.005 * cpu, "{lost:.3} s lost in {cpu} s");
    // No sample takes more at once than the budget of ten seconds, and the first no more than that
    // of one second.
    assert!(world.samples().iter().all(|sample| *sample <= 0.1), "{:?}", world.samples());
    assert!(world.samples()[0] <= 0.01);
    let last = snapshots.last().unwrap();
    assert!(coverages(last).iter().all(|coverage| *coverage == Some(512)), "{:?}", coverages(last));
    let sampling = last.process(PID).unwrap().sampling.clone().unwrap();
    assert!(sampling.slowdown > 0.005 && sampling.slowdown <= 0.01, "{sampling:?}");
    assert!(sampling.samples > 10 && sampling.period > Some(SECOND) && sampling.window >= SECOND);
}

#[test]
fn the_first_sample_lies_evenly_over_the_address_space() {
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options::default());
    observer.snapshot(&[PID]);
    let starts = world.cleared_regions();
    // 10 ms at 9.4 us a page pay for 1063 pages.
    assert_eq!(starts.len(), 2);
    assert!(starts[0].abs_diff(starts[1]) >= 32 * HUGE_2M as u64, "{starts:x?}");
}

/// Returns options for promotion.
fn promotes() -> Options {
    Options { promotes: true, ..Options::default() }
}

#[test]
fn the_first_sample_for_promotion_is_early_and_within_what_was_earned() {
    let world = World::new();
    world.map_base(128);
    world.set_touched_per_second(128 * 512);
    // It has worked for a minute before the observer started.
    world.pass(60 * SECOND);
    let mut observer = world.observer(promotes());
    observer.snapshot(&[PID]);
    // Ten seconds earn 100 ms, at 9.4 us a page: 10 times the advance of a window.
    assert_eq!(world.cleared_regions().len(), 20);
    assert_eq!(observer.next_due(), Some(SECOND / 16));
    let snapshots = watch(&world, &mut observer, 200 * SECOND);
    assert!(world.lost() <= 0.0101 * world.cpu(), "{} of {}", world.lost(), world.cpu());
    // The later windows are whole.
    let last = snapshots.last().unwrap().process(PID).unwrap().sampling.clone().unwrap();
    assert!(last.window >= SECOND, "{last:?}");
}

#[test]
fn a_sample_for_promotion_is_no_burst() {
    // All 16 regions would cost 62 ms, which ten seconds earn. It has worked for longer before the
    // observer started.
    let sampled = |options: Options| {
        let world = World::of_base(16, 16 * 512);
        world.set_clears_parts(true);
        let mut observer = world.observer(options);
        let snapshots = watch(&world, &mut observer, 60 * SECOND);
        assert!(world.lost() <= 0.0101 * world.cpu(), "{} of {}", world.lost(), world.cpu());
        let last = snapshots.last().unwrap();
        assert!(coverages(last).iter().all(|coverage| *coverage == Some(512)), "{:?}", coverages(last));
        assert_eq!(world.cleared_regions().len(), 16);
        let samples = world.samples();
        (samples.iter().filter(|sample| **sample > 0.0125).count(), samples.len())
    };
    let (bursts, samples) = sampled(promotes());
    // Whole samples come now and then, but never at first.
    assert!(bursts > 0 && bursts == samples / 16, "{bursts} of {samples}");
    // An observer of the pages in use samples all of them.
    let (bursts, samples) = sampled(Options::default());
    assert!(bursts + 1 >= samples, "{bursts} of {samples}");
}

#[test]
fn a_process_that_fills_its_memory_is_sampled_in_parts() {
    let world = World::of_base(4, 0);
    world.set_clears_parts(true);
    let mut observer = world.observer(promotes());
    // It fills more and more memory, and accesses no page again.
    for regions in 4..=13 {
        world.map_base(regions);
        watch(&world, &mut observer, SECOND);
    }
    assert_eq!((world.cleared_times(), world.cleared_regions().len()), (10, 13));
    // Now it accesses all of it. A whole sample would cost 50 ms.
    world.set_touched_per_second(13 * 512);
    watch(&world, &mut observer, 2 * SECOND);
    assert!(world.lost() < 0.0125, "{} s lost", world.lost());
}

/// Counts the readings of page tables in each pass. Some passes end a sample and start the next.
/// Readings that a tracker makes to clear do not count.
#[test]
fn the_observer_reads_page_tables_once_in_a_pass() {
    for parts in [false, true] {
        let world = World::of_base(16, 16 * 512);
        world.set_clears_parts(parts);
        world.set_reads_tables();
        let mut observer = world.observer(promotes());
        let (mut readings, mut samples) = (Vec::new(), 0);
        for _ in 0..60 {
            let snapshot = observer.snapshot(&[PID]);
            readings.push(world.take_readings());
            let sampling = snapshot.process(PID).unwrap().sampling.as_ref();
            samples = sampling.map_or(0, |sampling| sampling.samples);
            world.pass(observer.next_due().unwrap().max(SECOND));
        }
        assert_eq!((readings.iter().min(), readings.iter().max()), (Some(&1), Some(&1)), "{readings:?}");
        assert!(samples > 5 && world.cleared_times() > 5, "{samples}");
        let last = observer.snapshot(&[PID]);
        assert!(coverages(&last).iter().all(|coverage| *coverage == Some(512)), "{:?}", coverages(&last));
        assert_eq!(world.cleared_regions().len(), 16);
    }
    // Regions that have stayed clear are not cleared again, and are sampled all the same.
    let world = World::of_base(16, 0);
    world.set_reads_tables();
    let mut observer = world.observer(promotes());
    let last = watch(&world, &mut observer, 60 * SECOND).pop().unwrap();
    let samples = last.process(PID).unwrap().sampling.as_ref().unwrap().samples;
    assert!(samples > 2 && world.cleared_times() == 1, "{samples} {}", world.cleared_times());
    assert!(coverages(&last).iter().all(|coverage| *coverage == Some(0)), "{:?}", coverages(&last));
}

#[test]
fn a_window_that_ends_while_the_tables_are_read_is_read_again() {
    let world = World::of_base(16, 16 * 512);
    world.set_reads_tables();
    let mut observer = world.observer(Options::default());
    observer.snapshot(&[PID]);
    let due = observer.next_due().unwrap();
    world.set_tracker_takes(Duration::from_millis(20));
    world.pass(due - Duration::from_millis(10));
    world.take_readings();
    observer.snapshot(&[PID]);
    assert_eq!(world.take_readings(), 2);
}

#[test]
fn what_is_huge_already_is_sampled_once_a_minute_for_promotion() {
    let samples = |options: Options, base: bool| {
        let world = World::new();
        world.map_huge(4);
        if base {
            world.map_base(4);
        }
        world.set_touched_per_second(100_000);
        let mut observer = world.observer(options);
        let mut last = 0;
        for _ in 0..110 {
            let snapshot = observer.snapshot(&[PID]);
            last = snapshot.process(PID).unwrap().sampling.as_ref().map_or(0, |sampling| sampling.samples);
            world.pass(SECOND);
        }
        last
    };
    assert_eq!(samples(promotes(), false), 2);
    assert!(samples(promotes(), true) > 2);
    assert!(samples(Options::default(), false) > 20);
}

#[test]
fn a_target_that_touches_little_is_sampled_whole() {
    let world = World::of_base(128, 500);
    let mut observer = world.observer(Options::default());
    let snapshots = watch(&world, &mut observer, 60 * SECOND);
    assert!(world.lost() <= 0.0101 * world.cpu());
    let last = snapshots.last().unwrap();
    assert!(coverages(last).iter().all(Option::is_some));
    assert_eq!(last.process(PID).unwrap().sampling.as_ref().unwrap().bytes, Bytes::mib(256));
}

#[test]
fn an_idle_target_is_sampled_all_the_same() {
    let world = World::new();
    world.map_base(32);
    world.set_processors(0.0);
    let mut observer = world.observer(Options::default());
    let snapshots = watch(&world, &mut observer, 300 * SECOND);
    assert_eq!(coverages(snapshots.last().unwrap()), [Some(0); 32]);
    let region = &snapshots.last().unwrap().process(PID).unwrap().regions[0];
    assert_eq!(region.accessed.unwrap().last, None, "never accessed while observed");
    assert_eq!(world.lost(), 0.0);
}

#[test]
fn a_region_that_is_not_sampled_keeps_its_old_figures_with_their_time() {
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options::default());
    let snapshots = watch(&world, &mut observer, 60 * SECOND);
    let last = snapshots.last().unwrap();
    let regions = last.process(PID).unwrap().regions.iter();
    let mut times: Vec<Duration> = regions.filter_map(|region| Some(region.accessed?.sampled)).collect();
    assert!(times.iter().all(|sampled| *sampled <= last.taken));
    times.sort();
    times.dedup();
    assert!(times.len() >= 3, "{times:?}");
}

/// Returns a world of `regions` huge regions, all in use, and an observer with its first samples
/// due.
fn sampled_for_a_second(regions: usize) -> (World, Observer) {
    let world = World::of_huge(regions, 100_000);
    let mut observer = world.observer(Options::default());
    observer.snapshot(&[PID]);
    world.pass(SECOND);
    (world, observer)
}

#[test]
fn averages_and_recency_follow_the_samples() {
    let (world, mut observer) = sampled_for_a_second(4);
    let first = observer.snapshot(&[PID]);
    let accessed = first.process(PID).unwrap().regions[3].accessed.unwrap();
    assert_eq!(
        (accessed.coverage, accessed.average),
        (512, 512.0),
        "one bit for all: the first sample has all"
    );
    world.set_touched_per_second(0);
    let last = watch(&world, &mut observer, 3 * SECOND).pop().unwrap();
    let region = &last.process(PID).unwrap().regions[3];
    let after = region.accessed.unwrap();
    assert_eq!((region.leaf, after.coverage), (Leaf::Huge2m, 0));
    assert!(after.average <= 512.0 * (1.0 - NEW_WEIGHT) && after.last == Some(accessed.sampled));
}

#[test]
fn regions_that_come_and_go_bring_nothing_with_them() {
    let (world, mut observer) = sampled_for_a_second(4);
    assert_eq!(coverages(&observer.snapshot(&[PID])), [Some(512); 4]);
    world.map_base(0);
    assert!(coverages(&observer.snapshot(&[PID])).is_empty());
    world.map_huge(4);
    assert_eq!(coverages(&observer.snapshot(&[PID])), [None; 4]);
}

#[test]
fn a_process_that_executes_another_program_within_a_sample_is_missed_once() {
    let (world, mut observer) = sampled_for_a_second(2);
    let id = observer.snapshot(&[PID]).processes[0].id;
    let cost = TranslationCost { share: 0.2, low: 0.1, high: 0.3, source: CostSource::Measured };
    observer.note_translation(id, cost);
    world.pass(SECOND);
    let before = observer.snapshot(&[PID]);
    assert_eq!(before.processes[0].translation, Some(cost));
    assert!(observer.next_due().unwrap() <= SECOND, "a sample is under way");

    world.exec();
    let snapshot = observer.snapshot(&[PID]);
    assert!(snapshot.processes.is_empty());
    assert_eq!(snapshot.missed[0].why, MissedWhy::Replaced);
    assert!(snapshot.missed[0].what.contains("process 4711 has executed another program"));
    observer.note_translation(id, cost);

    let fresh = observer.snapshot(&[PID]);
    assert!(fresh.missed.is_empty() && fresh.processes[0].id != id);
    assert_eq!((coverages(&fresh), fresh.processes[0].translation), (vec![None; 2], None));
}

#[test]
fn a_process_that_is_about_to_end_has_executed_nothing_else() {
    let (world, mut observer) = sampled_for_a_second(2);
    assert!(!observer.snapshot(&[PID]).processes.is_empty());
    world.lose_memory();
    let snapshot = observer.snapshot(&[PID]);
    assert_eq!(snapshot.missed[0].why, MissedWhy::Gone, "{:?}", snapshot.missed);
    assert!(snapshot.missed[0].what.contains("has ended"));
}

#[test]
fn a_process_that_ends_within_a_sample_is_gone() {
    for zombie in [false, true] {
        let world = World::new();
        world.map_huge(2);
        let mut observer = world.observer(Options::default());
        observer.snapshot(&[PID]);
        world.end(zombie);
        world.pass(SECOND);
        let snapshot = observer.snapshot(&[PID]);
        assert!(snapshot.processes.is_empty());
        assert_eq!(
            (snapshot.missed[0].why, snapshot.missed[0].what.as_str()),
            (MissedWhy::Gone, "process 4711 has ended")
        );
        assert_eq!(observer.next_due(), None);
    }
}

#[test]
fn a_number_that_another_process_has_got_brings_nothing_with_it() {
    let world = World::of_huge(2, 100_000);
    let mut observer = world.observer(Options::default());
    observer.snapshot(&[PID]);
    world.restart();
    let snapshot = observer.snapshot(&[PID]);
    assert_eq!(snapshot.missed[0].what, "process 4711 has ended, and another has its number");
    assert_eq!(coverages(&observer.snapshot(&[PID])), [None; 2]);
}

#[test]
fn a_process_that_ends_while_the_tracker_works_is_gone() {
    use MissedWhy::{Gone, Replaced};
    for (fault, why) in
        [(Fault::GoneAtClear, Gone), (Fault::GoneAtRead, Gone), (Fault::ReplacedAtClear, Replaced)]
    {
        let world = World::new();
        world.map_huge(2);
        world.set_fault(Some(fault));
        let mut observer = world.observer(Options::default());
        let mut snapshot = observer.snapshot(&[PID]);
        world.pass(SECOND);
        if snapshot.missed.is_empty() {
            snapshot = observer.snapshot(&[PID]);
        }
        assert_eq!((snapshot.missed[0].why, snapshot.processes.len()), (why, 0));
    }
}

#[test]
fn a_process_that_may_not_be_sampled_is_still_observed() {
    let world = World::of_huge(2, 100_000);
    world.set_fault(Some(Fault::Denied));
    let mut observer = world.observer(Options::default());
    let snapshot = observer.snapshot(&[PID]);
    assert_eq!(snapshot.processes.len(), 1);
    assert_eq!(snapshot.missed[0].why, MissedWhy::Denied);
    assert_eq!(
        snapshot.missed[0].what,
        "process 4711 is not sampled: process 4711 is denied to us: needs CAP_SYS_NICE"
    );
    world.set_fault(None);
    world.pass(30 * SECOND);
    assert_eq!(observer.snapshot(&[PID]).missed.len(), 1, "not asked again so soon");
    world.pass(31 * SECOND);
    assert!(observer.snapshot(&[PID]).missed.is_empty());
    world.pass(SECOND);
    assert_eq!(coverages(&observer.snapshot(&[PID])), [Some(512); 2]);
}

/// Accesses long after the window cost as much, and so do those to regions of former samples.
#[test]
fn a_target_that_comes_round_slowly_stays_within_its_budget() {
    let world = World::of_base(128, 128 * 512 / 40);
    // The budget is so small that the regions are sampled in turns.
    let budget = 0.0025;
    let mut observer = world.observer(Options { budget, ..Options::default() });
    let snapshots = watch(&world, &mut observer, 160 * SECOND);
    let (lost, cpu) = (world.lost(), world.cpu());
    // Accesses since the last reading are not charged yet.
    assert!(lost <= 1.1 * budget * cpu && lost >= 0.4 * budget * cpu, "{lost:.3} s lost in {cpu} s");
    let sampling = snapshots.last().unwrap().process(PID).unwrap().sampling.clone().unwrap();
    let (shown, really) = (sampling.cost.as_secs_f64(), lost);
    // A quarter is added for large programs.
    assert!(shown >= 0.8 * really && shown <= 1.26 * really, "{shown:.3} s shown, {really:.3} s lost");
}

#[test]
fn what_a_sample_took_is_shown_even_above_the_budget() {
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options::default());
    observer.snapshot(&[PID]);
    // It was on a processor all the time before, but is no longer.
    world.set_processors(0.2);
    world.pass(SECOND);
    let sampling = observer.snapshot(&[PID]).processes[0].sampling.clone().unwrap();
    assert!(sampling.slowdown > 0.03, "{sampling:?}");
    assert!((sampling.cost.as_secs_f64() / 0.2 - sampling.slowdown).abs() < 0.002, "{sampling:?}");
    // Later it pays for that.
    let last = watch(&world, &mut observer, 100 * SECOND).pop().unwrap();
    let sampling = last.processes[0].sampling.clone().unwrap();
    assert!(sampling.slowdown <= 0.0101 && world.lost() <= 0.0101 * world.cpu(), "{sampling:?}");
}

#[test]
fn one_shot_stays_within_the_budget_and_says_what_it_took() {
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options::default());
    let start = world.now();
    let snapshot = observer.sample_once(&[PID]);
    assert_eq!((world.now() - start, world.cleared_times()), (2 * SECOND, 2));
    assert!(world.lost() <= 0.0101 * world.cpu(), "{}", world.lost());
    let sampled = coverages(&snapshot).iter().flatten().count();
    assert!((2..=5).contains(&sampled), "{sampled} regions");
    let sampling = snapshot.processes[0].sampling.clone().unwrap();
    assert_eq!((sampling.period, sampling.samples), (None, 2));
    assert!(sampling.cost > Duration::from_millis(10) && sampling.slowdown <= 0.0126, "{sampling:?}");

    // A longer window pays for more.
    let world = World::of_base(128, 128 * 512);
    let mut observer = world.observer(Options { window: 10 * SECOND, ..Options::default() });
    let sampled = coverages(&observer.sample_once(&[PID])).iter().flatten().count();
    assert!((35..=45).contains(&sampled), "{sampled} regions");
    assert!(world.lost() <= 0.0101 * world.cpu());

    // More regions of a process that accesses little are known after the second sample.
    let world = World::of_base(16, 500);
    let mut observer = world.observer(Options::default());
    let sampled = coverages(&observer.sample_once(&[PID])).iter().flatten().count();
    assert!(sampled >= 12, "{sampled} regions");

    // All huge pages are known after the first sample, and none is deferred.
    let world = World::of_huge(8, 100_000);
    let mut observer = world.observer(Options::default());
    assert_eq!(coverages(&observer.sample_once(&[PID])), [Some(512); 8]);
}

#[test]
fn one_shot_reports_a_process_that_was_lost_on_the_way() {
    let world = World::new();
    world.map_base(128);
    let mut observer = world.observer(Options::default());
    world.exec_after(Duration::from_millis(1500));
    let snapshot = observer.sample_once(&[PID, Pid(4712)]);
    let missed: Vec<_> = snapshot.missed.iter().map(|missed| (missed.pid, missed.why)).collect();
    assert_eq!(missed, [(PID, MissedWhy::Replaced), (Pid(4712), MissedWhy::Gone)]);
    assert!(snapshot.processes.is_empty());
}

#[test]
fn what_others_share_is_left_out_where_the_tracker_cannot_clear_it() {
    let world = World::of_base(3, 1_000_000);
    world.set_leaves_shared(true);
    world.fork();
    // Region 0 is shared except for 12 pages, region 1 is shared, and region 2 belongs to the
    // process alone.
    world.set_pages(0, 0..500, PRESENT);
    world.set_pages(0, 500..512, PRESENT | EXCLUSIVE);
    world.set_pages(1, 0..512, PRESENT);
    world.set_pages(2, 0..512, PRESENT | EXCLUSIVE);
    let mut observer = world.observer(Options { budget: 1.0, ..Options::default() });
    observer.snapshot(&[PID]);
    world.pass(SECOND);
    let snapshot = observer.snapshot(&[PID]);
    assert_eq!(coverages(&snapshot), [Some(12), None, Some(512)]);
    let process = snapshot.process(PID).unwrap();
    assert_eq!(process.sharing_children, Some(1));
    let shared = process.sampling.as_ref().unwrap().shared;
    assert_eq!(shared, Bytes((500 + 512) * BASE_PAGE as u64));
}

#[test]
fn our_own_work_is_bounded() {
    let world = World::new();
    world.map_base(64);
    // A region without an access is not cleared again.
    world.set_touched_per_second(64);
    world.set_tracker_takes(Duration::from_millis(40));
    let mut observer = world.observer(Options::default());
    watch(&world, &mut observer, 100 * SECOND);
    assert!(world.cleared_times() > 3);
    assert!(
        world.worked() <= Duration::from_secs(100) / 50 + Duration::from_millis(120),
        "{:?}",
        world.worked()
    );
}

#[test]
fn only_memory_that_may_become_huge_is_sampled() {
    let world = World::new();
    world.map(&[
        ("rw-p 00000000 00:00 0", "[heap]", "rd wr", 2),
        ("rw-p 00000000 00:00 0", "", "rd wr lo", 2),
        ("rw-p 00000000 00:00 0", "", "rd wr io pf", 2),
        ("rw-p 00000000 00:00 0", "[stack]", "rd wr gd", 2),
        ("r-xp 00000000 fe:01 77", "/usr/bin/program", "rd ex", 2),
        ("rw-s 00000000 00:01 12", "/memfd:x (deleted)", "rd wr sh", 2),
        ("rw-p 00000000 00:00 0", "[anon:arena]", "rd wr hg", 2),
    ]);
    let mut observer = world.observer(Options { budget: 1.0, ..Options::default() });
    let snapshot = observer.snapshot(&[PID]);
    let kinds: Vec<&str> = snapshot.processes[0].mappings.iter().map(|mapping| mapping.kind.name()).collect();
    assert_eq!(kinds, ["heap", "anonymous", "special", "stack", "file", "shared", "anonymous"]);
    assert!(snapshot.processes[0].mappings[6].flags.huge);
    let regions: Vec<u64> =
        world.cleared_regions().iter().map(|start| (start - BASE) / HUGE_2M as u64).collect();
    assert_eq!(regions, [0, 1, 10, 11, 12, 13]);
}

/// Checks overlapping mappings. The kernel lists maps in pieces: a mapping that grows between two
/// of them is listed twice, with other ends.
#[test]
fn mappings_that_change_while_they_are_listed_stay_apart() {
    let world = World::new();
    world.map_base(8);
    let line = |from: u64, to: u64| {
        let at = |region: u64| BASE + region * HUGE_2M as u64;
        format!("{:x}-{:x} rw-p 00000000 00:00 0 \n", at(from), at(to))
    };
    world.set_maps(&[line(0, 3), line(1, 4), line(2, 3), line(5, 6), line(4, 8)].concat());
    let snapshot = world.observer(Options::default()).snapshot(&[PID]);
    let process = snapshot.process(PID).unwrap();
    let ranges: Vec<(u64, u64)> = process
        .mappings
        .iter()
        .map(|mapping| (mapping.range.start(), mapping.range.end()))
        .map(|(start, end)| ((start - BASE) / HUGE_2M as u64, (end - BASE) / HUGE_2M as u64))
        .collect();
    assert_eq!(ranges, [(0, 3), (3, 4), (5, 6), (6, 8)]);
    let starts: Vec<u64> =
        process.regions.iter().map(|region| (region.start() - BASE) / HUGE_2M as u64).collect();
    assert_eq!(starts, [0, 1, 2, 3, 5, 6, 7]);
}

#[test]
fn without_a_tracker_nothing_is_sampled() {
    let world = World::new();
    world.map_base(4);
    let options = Options { sample: false, ..Options::default() };
    let mut observer = world.observer(options);
    let snapshot = observer.sample_once(&[PID]);
    assert_eq!((world.cleared_times(), observer.next_due()), (0, None));
    assert!(snapshot.sampling.is_none() && snapshot.processes[0].sampling.is_none());
}

#[test]
fn options_out_of_range_are_refused() {
    let world = World::new();
    for budget in [0.0, -1.0, 1.5, f64::NAN] {
        let error = world.try_observer(Options { budget, ..Options::default() }).unwrap_err();
        assert!(matches!(error, ObserveError::BadOption(_)) && error.to_string().contains("budget"));
    }
    let error = world.try_observer(Options { window: Duration::ZERO, ..Options::default() }).unwrap_err();
    assert!(error.to_string().contains("window"));
}

#[test]
fn a_tracker_that_tells_no_accesses_is_not_asked_for_samples_and_costs_nothing() {
    let world = World::of_base(8, 8 * 512);
    world.set_kind(TrackerKind::Pagemap);
    let mut observer = world.observer(Options::default());
    for _ in 0..5 {
        let snapshot = observer.snapshot(&[PID]);
        assert_eq!(coverages(&snapshot), [None; 8]);
        assert_eq!(snapshot.process(PID).unwrap().sampling, None, "nothing was cleared");
        assert_eq!(observer.next_due(), None);
        world.pass(SECOND);
    }
    let before = world.now();
    observer.sample_once(&[PID]);
    assert_eq!((world.now(), world.cleared_times()), (before, 0), "there is no window to wait for");
}
