//! Ingens's thresholds, fairness and sampling.

use crate::published::ingens::{Ingens, Parameters};
use crate::tests::made::*;
use crate::{Fault, FaultSize, Headroom, Pace, Policy};
use megapage_snapshot::{Process, Snapshot};

fn fast(parameters: Parameters) -> Parameters {
    Parameters { promote: Pace { work: 1 << 20, ..parameters.promote }, ..parameters }
}

fn fragmented(by: f64, processes: Vec<Process>) -> Snapshot {
    let mut seen = snapshot(SECOND, 0.5, processes);
    seen.machine.nodes[0].fragmentation = Some(by);
    seen
}

fn order(parameters: Parameters, seen: &Snapshot) -> Vec<(i32, u64)> {
    promoted(&run(SECOND, seen, &mut state(Ingens::new(parameters))))
}

#[test]
fn it_is_eager_while_memory_is_not_fragmented_and_wants_ninety_per_cent_else() {
    let sparse_and_full = || vec![process(1, vec![base(0, 1), base(1, 460), base(2, 461)])];
    assert_eq!(order(Parameters::paper(), &fragmented(0.49, sparse_and_full())).len(), 3);
    assert_eq!(order(Parameters::paper(), &fragmented(0.5, sparse_and_full())), [(1, 2)]);
    assert_eq!(order(Parameters::code(), &fragmented(0.0, sparse_and_full())), [(1, 2)]);
    // Without any free memory, fragmentation is 1.
    let mut full = fragmented(0.0, sparse_and_full());
    full.machine.nodes[0].fragmentation = None;
    assert_eq!(order(Parameters::paper(), &full), [(1, 2)]);
}

#[test]
fn eight_regions_in_ten_seconds_from_low_to_high_addresses() {
    let regions = (0..20).map(|n| base(n, 512)).collect();
    let seen = fragmented(0.9, vec![process(1, regions)]);
    assert_eq!(order(Parameters::paper(), &seen), (0..8).map(|n| (1, n)).collect::<Vec<_>>());
}

#[test]
fn who_has_fewer_huge_pages_is_served_first() {
    let rich = process(1, vec![huge(0, 0), huge(1, 0), huge(2, 0), base(3, 512), base(4, 512)]);
    let poor = process(2, vec![huge(0, 0), base(1, 512), base(2, 512), base(3, 512)]);
    let seen = fragmented(0.9, vec![rich, poor]);
    // The counts are 3 against 1, 2, then 3 against 3.
    assert_eq!(order(fast(Parameters::paper()), &seen), [(2, 1), (2, 2), (1, 3), (2, 3), (1, 4)]);
}

#[test]
fn idle_huge_pages_count_more_after_they_were_seen_idle() {
    let owner =
        |pid, coverage, sampled| process(pid, vec![accessed(huge(0, 0), coverage, sampled), base(1, 512)]);
    let seen = |second: u32| {
        let sampled = SECOND * second;
        fragmented(0.9, vec![owner(1, 0, sampled), owner(2, 512, sampled)])
    };
    let slow = Parameters { promote: Pace { work: 512, every: SECOND * 100 }, ..Parameters::paper() };
    let mut state = state(Ingens::new(slow));
    // At first neither is known to be hot: the order of pids decides.
    assert_eq!(promoted(&run(SECOND, &seen(1), &mut state)), [(1, 1)]);
    for second in 2..101 {
        run(SECOND * second, &seen(second), &mut state);
    }
    assert_eq!(promoted(&run(SECOND * 101, &seen(101), &mut state)), [(2, 1)]);
}

#[test]
fn the_code_serves_who_lacks_most() {
    let small = process(1, vec![huge(0, 0), base(1, 512)]);
    let large = process(2, vec![huge(0, 0), base(1, 512), base(2, 512), base(3, 512)]);
    let seen = fragmented(0.9, vec![small, large]);
    assert_eq!(order(fast(Parameters::code()), &seen), [(2, 1), (1, 1), (2, 2), (2, 3)]);
}

#[test]
fn samples_come_every_two_and_four_seconds() {
    let sampled = |parameters, second: u32, state: &mut Option<crate::State>| {
        let state = state.get_or_insert_with(|| crate::tests::made::state(Ingens::new(parameters)));
        let seen = fragmented(0.9, vec![process(1, vec![base(0, 1)])]);
        !sampled_ranges(SECOND * second, &seen, state).is_empty()
    };
    let seconds = |parameters| -> Vec<u32> {
        let mut state = None;
        (1..10).filter(|second| sampled(parameters, *second, &mut state)).collect()
    };
    assert_eq!(seconds(Parameters::paper()), [1, 3, 5, 7, 9]);
    assert_eq!(seconds(Parameters::code()), [1, 5, 9]);
}

#[test]
fn what_is_hot_is_sampled_in_one_round_of_five() {
    let mut state = state(Ingens::new(Parameters::paper()));
    let sizes: Vec<u64> = (1..60)
        .step_by(2)
        .map(|second| {
            let sampled = SECOND * second;
            let hot = (0..10).map(|n| accessed(base(n, 300), 300, sampled));
            let cold = (10..13).map(|n| accessed(base(n, 300), 0, sampled));
            let seen = fragmented(0.9, vec![process(1, hot.chain(cold).collect())]);
            sampled_ranges(sampled, &seen, &mut state).iter().flatten().map(|range| range.len().0 >> 21).sum()
        })
        .collect();
    assert_eq!(sizes[0], 13);
    assert_eq!(sizes[20..], [5; 10]);
}

#[test]
fn faults_get_base_pages() {
    let fault = Fault {
        process: id(1),
        region: at(0),
        present: 0,
        eligible: true,
        reserved: false,
        headroom: Headroom::default(),
    };
    assert_eq!(Ingens::new(Parameters::paper()).on_fault(&fault), FaultSize::Base);
}
