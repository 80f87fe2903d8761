//! The order, price, shares, caps, watermarks and faults of megapage's policy.

use super::made::*;
use crate::megapage::claims::{Claim, Whom};
use crate::megapage::{Megapage, Parameters};
use crate::{Action, Fault, FaultSize, Headroom, Limits, Obtained, Pace, Reason, State, step};
use megapage_snapshot::{
    AccessClass, AccessProfile, CostSource, Leaf, PAGES, Process, Region, Sampling, Snapshot, TrackerKind,
    TranslationCost,
};
use megapage_units::{Bytes, PageSize};
use std::time::Duration;

const SMALL: u64 = 64 << 10;

pub(super) fn visited(region: Region, visits: f64, class: AccessClass) -> Region {
    Region { profile: Some(AccessProfile { visits, class }), ..accessed(region, 512, SECOND) }
}

fn many(count: u64, visits: f64, class: AccessClass) -> Vec<Region> {
    (0..count).map(|n| visited(base(n, PAGES), visits, class)).collect()
}

fn with_cost(mut process: Process, share: f64) -> Process {
    process.translation =
        Some(TranslationCost { share, low: share, high: share, source: CostSource::Measured });
    process
}

/// Returns the promotions of one step, with their reasons.
fn reasons(parameters: Parameters, seen: &Snapshot) -> Vec<(i32, u64, Reason)> {
    let actions = run(SECOND, seen, &mut state(Megapage::new(parameters)));
    promoted(&actions)
        .into_iter()
        .zip(actions.iter().filter(|action| matches!(action, Action::Promote { .. })))
        .map(|((pid, region), action)| (pid, region, action.reason()))
        .collect()
}

pub(super) fn unguaranteed() -> Parameters {
    Parameters { guarantee: 0.0, ..constants() }
}

#[test]
fn at_equal_coverage_who_waits_for_page_walks_comes_before_who_streams() {
    let streams = process(1, many(40, 1e4, AccessClass::Streaming));
    let chases = process(2, many(40, 1e4, AccessClass::Dependent));
    let seen = snapshot(SECOND, 0.3, vec![streams, chases]);
    let order = reasons(unguaranteed(), &seen);
    // The expensive regions pay at once and are all taken; the cheap ones follow at a slower pace.
    assert_eq!(order.len(), 40 + 32);
    assert!(order[..40].iter().all(|(pid, _, reason)| (*pid, *reason) == (2, Reason::Gain)), "{order:?}");
    assert!(order[40..].iter().all(|(pid, ..)| *pid == 1), "{order:?}");
}

#[test]
fn what_does_not_pay_within_the_process_s_life_is_not_promoted() {
    let mut young = with_cost(process(1, many(1000, 1e3, AccessClass::Random)), 0.01);
    young.cpu = SECOND * 10;
    // 1 % over 1000 regions is 1e-5 each, 1.2 ms in the expected 120 s: less than 2 ms.
    assert_eq!(reasons(unguaranteed(), &snapshot(SECOND, 0.3, vec![young.clone()])), []);
    young.cpu = SECOND * 1000;
    assert_eq!(reasons(unguaranteed(), &snapshot(SECOND, 0.3, vec![young])).len(), 32);
}

#[test]
fn what_fits_the_tlb_is_left_as_it_is() {
    let small = process(1, many(3, 1e6, AccessClass::Dependent));
    assert_eq!(reasons(unguaranteed(), &snapshot(SECOND, 0.3, vec![small])), []);
}

#[test]
fn one_promotion_in_four_goes_to_who_has_less_than_its_share() {
    let insensitive = with_cost(process(1, many(40, 1e3, AccessClass::Streaming)), 0.0001);
    let sensitive = with_cost(process(2, many(400, 1e5, AccessClass::Dependent)), 0.4);
    // The 440 regions are more than the room below the low watermark.
    let seen = snapshot(SECOND, 0.72, vec![insensitive, sensitive]);
    let order = reasons(constants(), &seen);
    let of = |pid| order.iter().filter(|(other, ..)| *other == pid).count();
    assert_eq!((of(1), of(2)), (16, 112), "{order:?}");
    assert!(order.iter().any(|(pid, _, reason)| (*pid, *reason) == (1, Reason::GuaranteedShare)));
}

#[test]
fn where_memory_suffices_for_all_shares_are_served_less_often_but_are_served() {
    let insensitive = with_cost(process(1, many(40, 1e3, AccessClass::Streaming)), 0.0001);
    let sensitive = with_cost(process(2, many(400, 1e5, AccessClass::Dependent)), 0.4);
    let order = reasons(constants(), &snapshot(SECOND, 0.3, vec![insensitive, sensitive]));
    let served = order.iter().filter(|(.., reason)| *reason == Reason::GuaranteedShare).count();
    assert_eq!((order.len(), served), (128, 2), "{order:?}");
    assert!(order.iter().any(|(pid, ..)| *pid == 1), "{order:?}");
}

#[test]
fn what_is_granted_comes_before_any_gain() {
    let insensitive = with_cost(process(1, many(40, 1e3, AccessClass::Streaming)), 0.0001);
    let sensitive = with_cost(process(2, many(400, 1e5, AccessClass::Dependent)), 0.4);
    let claim = Claim { whom: Whom::Name("p1".into()), weight: 1.0, cap: None, least: Some(Bytes::mib(20)) };
    let parameters = Parameters { claims: vec![claim], ..unguaranteed() };
    let order = reasons(parameters, &snapshot(SECOND, 0.3, vec![insensitive, sensitive]));
    assert!(
        order[..10].iter().all(|(pid, _, why)| (*pid, *why) == (1, Reason::GuaranteedShare)),
        "{order:?}"
    );
    assert!(order[10..].iter().all(|(pid, ..)| *pid == 2), "{order:?}");
}

#[test]
fn weights_shift_the_order_and_a_weight_of_zero_excludes() {
    let alike = |pid| with_cost(process(pid, many(200, 1e5, AccessClass::Dependent)), 0.3);
    let seen = snapshot(SECOND, 0.3, vec![alike(1), alike(2), alike(3)]);
    let claim = |name: &str, weight| Claim { whom: Whom::Name(name.into()), weight, cap: None, least: None };
    let parameters = Parameters { claims: vec![claim("p2", 2.0), claim("p1", 0.0)], ..unguaranteed() };
    assert!(reasons(parameters.clone(), &seen).iter().all(|(pid, ..)| *pid == 2));
    let parameters = Parameters { guarantee: 1.0, ..parameters };
    assert!(reasons(parameters, &seen).iter().all(|(pid, ..)| *pid != 1));
}

#[test]
fn caps_are_never_exceeded_and_an_excess_is_taken_back_where_it_hurts_least() {
    let member = |pid| {
        let mut process = process(pid, many(40, 1e5, AccessClass::Dependent));
        process.cgroup = "/batch/x".to_string();
        process
    };
    let processes = vec![member(1), member(2)];
    let cap =
        Claim { whom: Whom::Cgroup("/batch".into()), weight: 1.0, cap: Some(Bytes::mib(10)), least: None };
    let parameters = Parameters { claims: vec![cap], ..constants() };
    let mut state = state(Megapage::new(parameters));
    let mut seen = snapshot(SECOND, 0.3, processes);
    assert_eq!(promoted(&run(SECOND, &seen, &mut state)).len(), 5);
    for (n, region) in seen.processes[0].regions.iter_mut().take(7).enumerate() {
        let visits = if n == 3 || n == 5 { 1.0 } else { 1e5 };
        *region = visited(huge(n as u64, 0), visits, AccessClass::Dependent);
    }
    // More than 300 s later, as a promoted region is not demoted at once.
    let actions = run(SECOND * 400, &seen, &mut state);
    assert_eq!((promoted(&actions), demoted(&actions)), (vec![], vec![(1, 3), (1, 5)]));
    assert!(actions.iter().any(|action| action.reason() == Reason::OverCap));
}

#[test]
fn the_fuller_memory_is_the_fuller_a_region_must_be() {
    let sparse = || {
        let regions = (0..40).map(|n| visited(base(n, 200), 1e5, AccessClass::Dependent)).collect();
        process(1, regions)
    };
    let sizes = |in_use| -> Vec<PageSize> {
        let seen = snapshot(SECOND, in_use, vec![sparse()]);
        run(SECOND, &seen, &mut state(Megapage::new(unguaranteed())))
            .iter()
            .filter_map(|action| match action {
                Action::Promote { size, .. } => Some(*size),
                _ => None,
            })
            .collect()
    };
    assert_eq!(sizes(0.3), [PageSize::HUGE_2M; 40]);
    assert_eq!(sizes(0.7), [PageSize::new(SMALL).unwrap(); 40]);
    assert_eq!(sizes(0.8), []);
}

#[test]
fn full_regions_are_promoted_even_when_memory_is_short() {
    let full = process(1, many(40, 1e5, AccessClass::Dependent));
    assert_eq!(reasons(unguaranteed(), &snapshot(SECOND, 0.95, vec![full])).len(), 40);
}

/// Returns the seconds of the first ten minutes in which a process of a hundred covered regions is
/// sampled.
fn sampled(parameters: Parameters, coverage: u16, share: f64) -> Vec<u32> {
    let regions = (0..100).map(|n| accessed(base(n, PAGES), coverage, SECOND)).collect();
    let seen = snapshot(SECOND, 0.3, vec![with_cost(process(1, regions), share)]);
    let mut state = state(Megapage::new(parameters));
    (1..600).filter(|second| !sampled_ranges(SECOND * *second, &seen, &mut state).is_empty()).collect()
}

#[test]
fn samples_are_as_rare_as_their_cost_demands() {
    assert_eq!(sampled(unguaranteed(), 0, 0.0)[..4], [1, 11, 21, 31]);
    // 40 000 first accesses of 470 ns are 19 ms: half a per cent of 3.8 s, a thousandth of 19 s. A
    // sample that leads to nothing doubles the time to the next, three times.
    assert_eq!(sampled(unguaranteed(), 400, 0.0)[..5], [1, 11, 21, 37, 68]);
    let expensive = Parameters { sample_budget: 0.001, ..unguaranteed() };
    assert_eq!(sampled(expensive.clone(), 400, 0.0), [1, 20, 58, 134, 285, 436, 587]);
    // If it leads to promotions, it stays as frequent as allowed.
    assert_eq!(sampled(expensive, 400, 0.3)[..3], [1, 20, 39]);
}

#[test]
fn a_size_that_the_kernel_cannot_collapse_to_is_not_asked_for_again() {
    let regions = (0..40).map(|n| visited(base(n, 200), 1e5, AccessClass::Dependent)).collect();
    let seen = snapshot(SECOND, 0.7, vec![process(1, regions)]);
    let mut state = state(Megapage::new(unguaranteed()));
    let actions = step(SECOND, &seen, &mut state);
    let small = actions.iter().find(|action| matches!(action, Action::Promote { .. })).unwrap();
    state.note(SECOND, &outcome(small, Obtained::Unsupported));
    assert_eq!(promoted(&run(SECOND * 60, &seen, &mut state)), []);
}

#[test]
fn small_pages_are_asked_for_once() {
    let seen = snapshot(
        SECOND,
        0.7,
        vec![process(1, (0..8).map(|n| visited(base(n, 200), 1e5, AccessClass::Dependent)).collect())],
    );
    let mut state = state(Megapage::new(unguaranteed()));
    let actions = run(SECOND, &seen, &mut state);
    assert_eq!(promoted(&actions).len(), 8);
    assert_eq!(promoted(&run(SECOND * 100, &seen, &mut state)), []);
}

#[test]
fn in_shortage_the_bloat_that_is_cheapest_to_give_up_goes_first() {
    let mut regions: Vec<Region> =
        (1..20).map(|n| visited(huge(n, 0), 1e6, AccessClass::Dependent)).collect();
    regions.insert(0, visited(huge(0, 400), 1e6, AccessClass::Dependent));
    let hot = process(1, regions);
    let cold = process(
        2,
        vec![visited(huge(0, 100), 0.0, AccessClass::Random), visited(huge(1, 63), 0.0, AccessClass::Random)],
    );
    let mut seen = snapshot(SECOND, 0.86, vec![hot, cold]);
    let recovered = |seen: &Snapshot| demoted(&run(SECOND, seen, &mut state(Megapage::new(unguaranteed()))));
    assert_eq!(recovered(&seen), [(2, 0), (1, 0)]);
    // If the kernel measures pressure and finds none, memory is not short yet.
    seen.machine.pressure = Some(megapage_snapshot::Pressure::default());
    assert_eq!(recovered(&seen), []);
}

#[test]
fn scans_that_find_nothing_become_rare() {
    let full = process(1, (0..10).map(|n| huge(n, 0)).collect());
    let seen = snapshot(SECOND, 0.95, vec![full]);
    let mut state = state(Megapage::new(constants()));
    let scans: Vec<u32> = (1..2000)
        .filter(|second| {
            let actions = run(SECOND * *second, &seen, &mut state);
            actions.iter().any(|action| action.reason() == Reason::Shortage)
        })
        .collect();
    assert_eq!(scans, [1, 31, 91, 211, 451, 931, 1531]);
}

fn fault(in_use: f64) -> Fault {
    let total = Bytes::gib(16);
    let free = Bytes((total.0 as f64 * (1.0 - in_use)) as u64);
    Fault {
        process: id(1),
        region: at(100),
        present: 0,
        eligible: true,
        reserved: false,
        headroom: Headroom { total, free, huge_available: 100, zeroed: 0, fragmentation: None },
    }
}

/// Returns the answers to faults at these levels of memory. Before, the process has made 59
/// regions, each with `used` pages in use.
fn answers(used: u16, levels: [f64; 3]) -> [FaultSize; 3] {
    let mut state = State::new(Box::new(Megapage::new(constants())), Default::default());
    let seen = |regions| snapshot(SECOND, 0.3, vec![process(1, regions)]);
    step(SECOND, &seen(vec![]), &mut state);
    for second in 2..60 {
        // One new region each second.
        let regions = (0..u64::from(second)).map(|n| huge(n, PAGES - used)).collect();
        step(SECOND * second, &seen(regions), &mut state);
    }
    levels.map(|in_use| state.on_fault(&fault(in_use)))
}

#[test]
fn faults_are_huge_for_who_fills_them_or_while_memory_is_plentiful() {
    let small = FaultSize::Mthp(PageSize::new(SMALL).unwrap());
    let levels = [0.3, 0.6, 0.8];
    assert_eq!(answers(512, levels), [FaultSize::Huge; 3]);
    assert_eq!(answers(340, levels), [FaultSize::Huge, FaultSize::Huge, small]);
    assert_eq!(answers(20, levels), [FaultSize::Huge, FaultSize::Base, FaultSize::Base]);
}

#[test]
fn a_fault_that_cannot_be_huge_gets_less() {
    let small = FaultSize::Mthp(PageSize::new(SMALL).unwrap());
    let mut state = state(Megapage::new(constants()));
    assert_eq!(state.on_fault(&Fault { eligible: false, ..fault(0.3) }), FaultSize::Base);
    assert_eq!(state.on_fault(&Fault { present: 9, ..fault(0.3) }), small);
    assert_eq!(state.on_fault(&fault(0.9999)), FaultSize::Base);
    let mut none_free = fault(0.3);
    none_free.headroom.huge_available = 0;
    assert_eq!(state.on_fault(&none_free), small);
}

#[test]
fn a_cap_holds_at_faults_too() {
    let cap = Claim { whom: Whom::Name("p1".into()), weight: 1.0, cap: Some(Bytes::mib(4)), least: None };
    let mut state = state(Megapage::new(Parameters { claims: vec![cap], ..constants() }));
    run(SECOND, &snapshot(SECOND, 0.3, vec![process(1, vec![])]), &mut state);
    let answers = [0, 1, 2].map(|_| state.on_fault(&fault(0.3)));
    assert_eq!(answers[..2], [FaultSize::Huge; 2]);
    assert_ne!(answers[2], FaultSize::Huge);
}

#[test]
fn every_process_reaches_its_guaranteed_share() {
    // One process with endless gain, two that gain next to nothing; promotions take effect.
    let mut processes = vec![
        with_cost(process(1, many(3000, 1e5, AccessClass::Dependent)), 0.5),
        with_cost(process(2, many(600, 1e2, AccessClass::Streaming)), 0.0001),
        with_cost(process(3, many(100, 1e2, AccessClass::Streaming)), 0.0001),
    ];
    let parameters = Parameters { promote: Pace { work: 64, every: SECOND }, ..constants() };
    let mut state = state(Megapage::new(parameters));
    for second in 1..60 {
        let seen = snapshot(SECOND * second, 0.3, processes.clone());
        for (pid, n) in promoted(&run(SECOND * second, &seen, &mut state)) {
            processes[pid as usize - 1].regions[n as usize].leaf = megapage_snapshot::Leaf::Huge2m;
        }
    }
    // A quarter of 0.7 x 8192 huge pages and the existing ones, divided by three: at least 477
    // each, as far as there is use.
    let had: Vec<usize> = processes.iter().map(Process::huge_regions).collect();
    assert!(had[0] >= 477 && had[1] >= 477 && had[2] == 100, "{had:?}");
}

/// Returns the snapshot as of a machine whose accesses are sampled.
fn tracked(mut seen: Snapshot, tracker: TrackerKind) -> Snapshot {
    seen.sampling = Some(Sampling {
        tracker,
        lacks: Vec::new(),
        skipped: Vec::new(),
        first_access_ns: 500.0,
        budget: 0.01,
    });
    seen
}

#[test]
fn what_was_not_sampled_yet_waits_for_that_but_not_for_long() {
    let unknown = || with_cost(process(1, (0..100).map(|n| base(n, PAGES)).collect()), 0.4);
    // Returns the first second, from 20 to 29, in which it is promoted.
    let when = |tracker: Option<TrackerKind>, parameters: Parameters| -> Vec<u32> {
        let mut state = state(Megapage::new(parameters));
        let is_promoted = |second: &u32| {
            let seen = snapshot(SECOND * *second, 0.3, vec![unknown()]);
            let seen = tracker.map_or(seen.clone(), |tracker| tracked(seen, tracker));
            !promoted(&run(SECOND * *second, &seen, &mut state)).is_empty()
        };
        (20..30).filter(is_promoted).take(1).collect()
    };
    for parameters in [constants(), unguaranteed()] {
        assert_eq!(when(Some(TrackerKind::Bpf), parameters.clone()), [25]);
        assert_eq!(when(Some(TrackerKind::Pagemap), parameters.clone()), [20]);
        assert_eq!(when(None, parameters), [20]);
    }
}

#[test]
fn without_a_tracker_of_accesses_full_regions_of_who_works_are_promoted() {
    let regions = || vec![base(0, PAGES), base(1, PAGES - 1), base(2, PAGES)];
    let run = |tracker, cpu: Duration| {
        let mut state = state(Megapage::new(live()));
        let mut found = Vec::new();
        for second in 0..12 {
            let mut one = process(1, regions());
            one.cpu = Duration::from_secs(300) + cpu * second;
            let seen = tracked(snapshot(SECOND * (second + 1), 0.3, vec![one]), tracker);
            found = promoted(&run(SECOND * (second + 1), &seen, &mut state));
            if !found.is_empty() {
                break;
            }
        }
        found
    };
    assert_eq!(run(TrackerKind::Pagemap, SECOND), [(1, 0), (1, 2)]);
    assert_eq!(run(TrackerKind::Pagemap, SECOND / 50), [], "it sleeps");
    assert_eq!(run(TrackerKind::Bpf, SECOND), [], "samples tell");
}

#[test]
fn sampled_hot_regions_come_before_all_and_cold_ones_never_come() {
    let mut regions: Vec<Region> = (0..60).map(|n| base(n, PAGES)).collect();
    regions.extend((60..100).map(|n| accessed(base(n, PAGES), 0, SECOND)));
    regions.extend((100..140).map(|n| accessed(base(n, PAGES), PAGES, SECOND)));
    let mut state = state(Megapage::new(constants()));
    let mut asked = Vec::new();
    for second in 1..20 {
        let seen = snapshot(SECOND * second, 0.3, vec![process(1, regions.clone())]);
        for (_, n) in promoted(&run(SECOND * second, &tracked(seen, TrackerKind::Bpf), &mut state)) {
            regions[n as usize].leaf = megapage_snapshot::Leaf::Huge2m;
            // While samples may still come, only hot regions are promoted.
            assert!(n >= 100 || second >= 6, "{n} in second {second}");
            asked.push(n);
        }
    }
    asked.sort_unstable();
    // Once they are huge, the others count as cold as the sampled ones, and gain nothing.
    assert_eq!(asked, (100..140).collect::<Vec<u64>>());
}

#[test]
fn what_was_not_tried_counts_as_never_asked_for() {
    let cap = Claim { whom: Whom::Name("p1".into()), weight: 1.0, cap: Some(Bytes::mib(200)), least: None };
    let parameters = Parameters { claims: vec![cap], ..constants() };
    let seen = snapshot(SECOND, 0.3, vec![process(1, many(400, 1e5, AccessClass::Dependent))]);
    let mut state = state(Megapage::new(parameters));
    let moment = |n: u32| SECOND + Duration::from_millis(10) * n;
    let first = promoted(&run(moment(0), &seen, &mut state));
    assert_eq!(first.len(), 100);
    // Within the round, only the work that the cap has left is due, unless untried requests are
    // released.
    assert_eq!(promoted(&run(moment(1), &seen, &mut state)).len(), 28);
    assert_eq!(promoted(&run(moment(2), &seen, &mut state)), []);
    let mut state = State::new(
        Box::new(Megapage::new(constants())),
        Limits { settle: Duration::from_secs(60), ..Limits::default() },
    );
    let first = step(moment(0), &seen, &mut state);
    assert_eq!(promoted(&first).len(), 128);
    assert_eq!(state.promotions().saved_regions(), []);
    let again = step(moment(1), &seen, &mut state);
    assert_eq!(promoted(&again), promoted(&first));
    // A tried action is charged.
    let (tried, rest) = again.split_first().unwrap();
    state.note(moment(1), &outcome(tried, Obtained::Busy));
    assert_eq!(state.promotions().saved_regions().len(), 1);
    assert_eq!(promoted(&step(moment(2), &seen, &mut state)), promoted(rest));
}

#[test]
fn a_step_within_a_round_may_ask_for_what_the_one_before_had_no_use_for() {
    let mut state = state(Megapage::new(constants()));
    let moment = |n: u32| SECOND + Duration::from_millis(10) * n;
    let nothing = snapshot(SECOND, 0.3, vec![process(1, Vec::new())]);
    assert_eq!(promoted(&run(moment(0), &nothing, &mut state)), []);
    let seen = snapshot(SECOND, 0.3, vec![process(1, many(400, 1e5, AccessClass::Dependent))]);
    assert!(!state.policy().wants_more());
    assert_eq!(promoted(&run(moment(1), &seen, &mut state)).len(), 128);
    assert_eq!(promoted(&run(moment(2), &seen, &mut state)), []);
    // 272 regions wait. There is more as long as one of them was not requested.
    assert!(state.policy().wants_more());
    assert_eq!(promoted(&run(SECOND * 2, &seen, &mut state)).len(), 128);
    assert!(state.policy().wants_more());
    assert_eq!(promoted(&run(SECOND * 3, &seen, &mut state)).len(), 128);
    assert!(state.policy().wants_more());
    promoted(&run(
        SECOND * 30,
        &snapshot(SECOND * 30, 0.3, vec![process(1, many(16, 1e5, AccessClass::Dependent))]),
        &mut state,
    ));
    assert!(!state.policy().wants_more());
}

#[test]
fn what_is_guaranteed_need_not_pay_unless_it_is_to() {
    // They are visited, but so seldom that a promotion never pays.
    let seldom = many(20, 1.0, AccessClass::Streaming);
    let asked = |guaranteed_pays| {
        let mut state = state(Megapage::new(Parameters { guaranteed_pays, ..constants() }));
        promoted(&run(SECOND, &snapshot(SECOND, 0.3, vec![process(1, seldom.clone())]), &mut state)).len()
    };
    assert_eq!((asked(false), asked(true)), (20, 0));
}

/// Returns a process that has run for an hour, with an estimated translation cost.
fn estimated(regions: Vec<Region>, share: f64) -> Process {
    let mut process = with_cost(process(1, regions), share);
    process.cpu = SECOND * 3600;
    process.translation =
        process.translation.map(|cost| TranslationCost { source: CostSource::Estimated, ..cost });
    process
}

fn live() -> Parameters {
    Parameters { least_streaming: 0.02, guaranteed_pays: true, ..constants() }
}

#[test]
fn what_streams_is_left_alone_where_little_is_to_be_gained_from_all_of_it() {
    let asked = |process| reasons(live(), &snapshot(SECOND, 0.3, vec![process])).len();
    let of = |share, class| estimated(many(100, 1e4, class), share);
    assert_eq!(asked(of(0.019, AccessClass::Streaming)), 0);
    assert_eq!(asked(of(0.021, AccessClass::Streaming)), asked(of(0.021, AccessClass::Random)));
    assert!(asked(of(0.019, AccessClass::Random)) > 0);
    let measured = with_cost(of(0.019, AccessClass::Streaming), 0.019);
    assert!(asked(measured) > 0, "counters do not guess");
    // Regions without a sample count like the sampled ones.
    let mut regions = many(10, 1e4, AccessClass::Streaming);
    regions.extend((10..100).map(|n| base(n, PAGES)));
    assert_eq!(asked(estimated(regions.clone(), 0.019)), 0);
    assert!(asked(estimated(regions, 0.021)) > 0);
}

#[test]
fn the_remainder_of_a_stream_is_promoted_too() {
    let seen = |huge: u64, second| {
        let mut regions = many(100, 1e4, AccessClass::Streaming);
        for region in &mut regions[..huge as usize] {
            region.leaf = Leaf::Huge2m;
        }
        // As regions become huge, the cost falls.
        let process = estimated(regions, 0.03 * (100 - huge) as f64 / 100.0);
        snapshot(SECOND * second, 0.3, vec![process])
    };
    let mut begun = state(Megapage::new(live()));
    assert!(!promoted(&run(SECOND, &seen(0, 1), &mut begun)).is_empty());
    assert_eq!(promoted(&run(SECOND * 60, &seen(60, 60), &mut begun)).len(), 40);
    let mut late = state(Megapage::new(live()));
    assert_eq!(promoted(&run(SECOND, &seen(60, 1), &mut late)), []);
}

#[test]
fn regions_that_gain_alike_are_promoted_in_the_order_of_their_addresses() {
    let mut regions = many(40, 1e4, AccessClass::Dependent);
    for (place, region) in regions.iter_mut().enumerate() {
        // Each region gains 2 % more than the one before; one gains far more.
        let visits = if place == 30 { 1e5 } else { 1e4 * (1.0 + 0.02 * place as f64) };
        region.profile = region.profile.map(|profile| AccessProfile { visits, ..profile });
    }
    let seen = snapshot(SECOND, 0.3, vec![process(1, regions)]);
    let order = |alike| -> Vec<u64> {
        let order = reasons(Parameters { alike, ..unguaranteed() }, &seen);
        order.into_iter().map(|(_, region, _)| region).collect()
    };
    let by_gain = order(1.0);
    assert!(by_gain[1..].is_sorted_by(|one, other| one > other), "{by_gain:?}");
    // The others are two or three steps below the best. The test leaves open which one.
    let by_address = order(2.0);
    assert_eq!(by_address[0], by_gain[0]);
    let falls = by_address[1..].windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(by_address.len() == by_gain.len() && falls <= 1, "{by_address:?}");
}

#[test]
fn what_is_alike_within_a_process_does_not_change_who_comes_first() {
    let alike = |pid| with_cost(process(pid, many(40, 1e5, AccessClass::Dependent)), 0.3);
    let claim = Claim { whom: Whom::Name("p2".into()), weight: 1.1, cap: None, least: None };
    let parameters = Parameters { claims: vec![claim], alike: 2.0, ..unguaranteed() };
    let order = reasons(parameters, &snapshot(SECOND, 0.3, vec![alike(1), alike(2)]));
    assert!(order.len() == 80 && order[..40].iter().all(|(pid, ..)| *pid == 2), "{order:?}");
}
