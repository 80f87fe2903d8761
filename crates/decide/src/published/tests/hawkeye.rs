//! HawkEye's order, recovery, and differences between paper and code.

use crate::published::hawkeye::HawkEye;
use crate::published::hawkeye::Parameters;
use crate::tests::made::*;
use crate::{
    Action, Asked, Fault, FaultSize, Headroom, Limits, ModelAction, Obtained, Pace, Policy, Reason, State,
    step, step_on_model,
};
use megapage_snapshot::{CostSource, Process, Region, TranslationCost};
use megapage_units::{Bytes, HugePage, VirtRange};

/// Returns the parameters with a pace that does everything in one step.
fn fast(parameters: Parameters) -> Parameters {
    Parameters { promote: Pace { work: 1000, every: SECOND * 10 }, ..parameters }
}

fn covered(coverages: &[u16]) -> Vec<Region> {
    (0..).zip(coverages).map(|(n, coverage)| accessed(base(n, 512), *coverage, SECOND)).collect()
}

fn with_cost(mut process: Process, share: f64) -> Process {
    process.translation =
        Some(TranslationCost { share, low: share, high: share, source: CostSource::Measured });
    process
}

fn order(parameters: Parameters, processes: Vec<Process>) -> Vec<(i32, u64)> {
    let seen = snapshot(SECOND, 0.5, processes);
    promoted(&run(SECOND, &seen, &mut state(HawkEye::by_coverage(fast(parameters)))))
}

/// The value of the summary names the regions and their order, but not their coverages. HawkEye's
/// rule is the highest bucket of all processes first; equals take turns. By it, the order leaves
/// one choice of buckets, up to their levels. These are A1 B1 C1 C2, then B2 C3 C4, then B3 B4,
/// then A2 C5 A3.
#[test]
fn the_golden_order_of_the_three_processes() {
    let a = process(1, covered(&[480, 20, 30]));
    let b = process(2, covered(&[470, 410, 360, 370]));
    let c = process(3, covered(&[455, 512, 430, 449, 10]));
    let names: Vec<String> = order(Parameters::paper(), vec![a, b, c])
        .into_iter()
        .map(|(pid, region)| format!("{}{}", [' ', 'A', 'B', 'C'][pid as usize], region + 1))
        .collect();
    assert_eq!(names.join(","), "A1,B1,C1,C2,B2,C3,C4,B3,B4,A2,C5,A3");
}

#[test]
fn the_code_never_promotes_the_lowest_bucket_and_takes_the_last_sampled_first() {
    let coverages = [500, 0, 500, 3];
    assert_eq!(order(Parameters::paper(), vec![process(1, covered(&coverages))]).len(), 4);
    let by_code = order(Parameters::code(), vec![process(1, covered(&coverages))]);
    // 3 pages, averaged from zero, give one: the lowest bucket.
    assert_eq!(by_code, [(1, 2), (1, 0)]);
}

#[test]
fn the_pmu_variant_follows_cost_and_stops_where_there_is_none() {
    let run_pmu = |parameters, processes| {
        let seen = snapshot(SECOND, 0.5, processes);
        promoted(&run(SECOND, &seen, &mut state(HawkEye::by_cost(fast(parameters)))))
    };
    let low = with_cost(process(1, covered(&[512, 512])), 0.015);
    let high = with_cost(process(2, covered(&[100, 200])), 0.39);
    let equal = with_cost(process(3, covered(&[512])), 0.385);
    let unknown = process(4, covered(&[512]));
    let all = || vec![low.clone(), high.clone(), equal.clone(), unknown.clone()];
    assert_eq!(run_pmu(Parameters::paper(), all()), [(2, 1), (3, 0), (2, 0)]);
    // The code requires eight candidates in buckets of two and more accessed pages.
    assert_eq!(run_pmu(Parameters::code(), all()), []);
    let many = with_cost(process(5, covered(&[300; 8])), 0.01);
    assert_eq!(run_pmu(Parameters::code(), vec![many]).len(), 1);
}

#[test]
fn samples_are_asked_for_each_thirty_seconds_of_base_pages_only() {
    let mut state = state(HawkEye::by_coverage(Parameters::paper()));
    let seen = snapshot(SECOND, 0.5, vec![process(1, vec![base(0, 9), base(1, 9), huge(2, 0), base(3, 9)])]);
    let mut samples = |second: u32| -> Vec<Vec<(u64, u64)>> {
        let sampled = sampled_ranges(SECOND * second, &seen, &mut state);
        let ends = |ranges: &Vec<VirtRange>| {
            ranges.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>()
        };
        sampled.iter().map(ends).collect()
    };
    assert_eq!(samples(1), [vec![(at(0).start(), at(2).start()), (at(3).start(), at(4).start())]]);
    assert!(samples(30).is_empty());
    assert_eq!(samples(31).len(), 1);
}

fn recoveries(in_use: f64, parameters: Parameters, processes: Vec<Process>) -> Vec<(i32, u64)> {
    let seen = snapshot(SECOND, in_use, processes);
    demoted(&run(SECOND, &seen, &mut state(HawkEye::by_cost(parameters))))
}

#[test]
fn bloat_is_recovered_from_the_process_with_the_least_cost_when_memory_is_short() {
    let cheap = with_cost(process(2, vec![huge(0, 500), huge(1, 255)]), 0.01);
    let expensive = with_cost(process(1, vec![huge(0, 500)]), 0.30);
    let both = || vec![expensive.clone(), cheap.clone()];
    assert_eq!(recoveries(0.84, Parameters::paper(), both()), []);
    assert_eq!(recoveries(0.86, Parameters::paper(), both()), [(2, 0), (1, 0)]);
    assert_eq!(recoveries(0.86, Parameters::code(), both()), [(2, 0), (2, 1), (1, 0)]);
}

#[test]
fn recovery_goes_on_to_the_lower_mark_and_no_further() {
    let mut state = state(HawkEye::by_coverage(Parameters::paper()));
    let seen =
        |in_use, n| snapshot(SECOND, in_use, vec![process(1, (n..n + 3).map(|n| huge(n, 512)).collect())]);
    assert_eq!(demoted(&run(SECOND, &seen(0.80, 0), &mut state)), []);
    assert_eq!(demoted(&run(SECOND * 2, &seen(0.86, 0), &mut state)).len(), 3);
    assert_eq!(demoted(&run(SECOND * 3, &seen(0.75, 3), &mut state)).len(), 3);
    assert_eq!(demoted(&run(SECOND * 4, &seen(0.69, 6), &mut state)), []);
    assert_eq!(demoted(&run(SECOND * 5, &seen(0.80, 9), &mut state)), []);
    // An excess of 1 % of 16 GiB is 82 huge pages of zeros.
    let many = process(1, (100..300).map(|n| huge(n, 512)).collect());
    let narrow = Parameters { recover_from: 0.705, ..Parameters::paper() };
    assert_eq!(recoveries(0.71, narrow, vec![many]).len(), 82);
}

#[test]
fn uncounted_zeros_are_counted_piecewise() {
    let limits = Limits { scanned: Bytes::mib(6), ..Limits::default() };
    let mut state = State::new(Box::new(HawkEye::by_coverage(Parameters::paper())), limits);
    let unknown = |n| Region { zeros: None, ..huge(n, 0) };
    let seen = snapshot(SECOND, 0.9, vec![process(1, (0..5).map(unknown).collect())]);
    let mut scans = |second: u32| -> Vec<HugePage> {
        run(SECOND * second, &seen, &mut state)
            .into_iter()
            .find_map(|action| match action {
                Action::ZeroScan { regions, reason: Reason::Shortage, .. } => Some(regions),
                _ => None,
            })
            .unwrap_or_default()
    };
    assert_eq!(scans(1), [at(0), at(1), at(2)]);
    assert_eq!(scans(2), [at(3), at(4)]);
    assert_eq!(scans(3), []);
    assert_eq!(scans(62), [at(0), at(1), at(2)]);
}

#[test]
fn blocks_are_zeroed_ahead_at_twenty_a_second() {
    let mut state = state(HawkEye::by_coverage(Parameters::paper()));
    let empty = snapshot(SECOND, 0.1, Vec::new());
    let mut blocks = |second: u32| -> u64 {
        step_on_model(SECOND * second, &empty, &mut state)
            .iter()
            .map(|asked| match asked {
                Asked::Model(ModelAction::PreZero { blocks, .. }) => *blocks,
                Asked::Model(ModelAction::Sample { .. }) | Asked::Action(_) => 0,
            })
            .sum()
    };
    assert_eq!((blocks(1), blocks(2), blocks(5)), (20, 20, 60));
}

#[test]
fn on_a_running_machine_nothing_is_zeroed_and_that_is_known() {
    let empty = snapshot(SECOND, 0.1, Vec::new());
    let mut hawkeye = state(HawkEye::by_coverage(Parameters::paper()));
    assert!(!hawkeye.lacked_zeroing());
    assert_eq!(run(SECOND, &empty, &mut hawkeye), []);
    assert!(hawkeye.lacked_zeroing());
    let mut modelled = state(HawkEye::by_coverage(Parameters::paper()));
    assert!(!step_on_model(SECOND, &empty, &mut modelled).is_empty());
    assert!(!modelled.lacked_zeroing(), "the model does it");
    let mut linux = crate::State::new(crate::by_name("linux").unwrap(), crate::Limits::default());
    crate::step(SECOND, &empty, &mut linux);
    assert!(!linux.lacked_zeroing());
}

#[test]
fn a_failed_region_goes_to_the_end_in_the_code() {
    let mut state = state(HawkEye::by_coverage(Parameters {
        promote: Pace { work: 1, every: SECOND * 10 },
        lowest_bucket: 0,
        ..Parameters::code()
    }));
    let seen = snapshot(SECOND, 0.5, vec![process(1, covered(&[10, 500]))]);
    let first = step(SECOND, &seen, &mut state);
    assert_eq!(promoted(&first), [(1, 1)]);
    let failed = first.iter().find(|action| action.region().is_some()).unwrap();
    state.note(SECOND, &outcome(failed, Obtained::Busy));
    assert_eq!(promoted(&run(SECOND * 11, &seen, &mut state)), [(1, 0)]);
    assert_eq!(promoted(&run(SECOND * 21, &seen, &mut state)), [(1, 1)]);
}

#[test]
fn what_was_not_tried_is_asked_for_next_in_the_same_order() {
    let parameters = Parameters { promote: Pace { work: 4, every: SECOND * 10 }, ..Parameters::paper() };
    let mut state = state(HawkEye::by_coverage(parameters));
    let regions = covered(&[500, 490, 480, 470, 460]);
    let seen = snapshot(SECOND, 0.5, vec![process(1, regions.clone()), process(2, regions)]);
    let first = step(SECOND, &seen, &mut state);
    assert_eq!(promoted(&first).len(), 4);
    state.note(SECOND, &outcome(&first[0], Obtained::Done));
    assert_eq!(promoted(&run(SECOND, &seen, &mut state)), promoted(&first[1..]));
    assert_eq!(promoted(&run(SECOND, &seen, &mut state)), [], "the round is used up");
}

#[test]
fn faults_are_huge_and_prefer_zeroed_blocks() {
    let fault = Fault {
        process: id(1),
        region: at(0),
        present: 0,
        eligible: true,
        reserved: false,
        headroom: Headroom::default(),
    };
    let mut huge = HawkEye::by_coverage(Parameters::paper());
    assert_eq!(huge.on_fault(&fault), FaultSize::Huge);
    assert_eq!(huge.on_fault(&Fault { present: 3, ..fault }), FaultSize::Base);
    assert!(huge.prefers_zeroed());
    assert_eq!(HawkEye::by_coverage(Parameters::paper().base_faults()).on_fault(&fault), FaultSize::Base);
}
