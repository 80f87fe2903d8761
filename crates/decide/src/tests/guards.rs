//! Properties of every policy, shown on the one that promotes and demotes most readily: FreeBSD's
//! rule.

use crate::published::freebsd::FreeBsd;
use crate::tests::made::*;
use crate::{Limits, Obtained, State, step};
use megapage_snapshot::{Leaf, Mapping, MappingKind, Missed, MissedWhy, PAGES, Process, Region, Snapshot};
use megapage_units::{Bytes, HugePage, Pid, VirtRange};

fn full(n: u64) -> Region {
    base(n, PAGES)
}

/// Returns a huge page that FreeBSD's rule demotes.
fn holed(n: u64) -> Region {
    Region { leaf: Leaf::Huge2m, ..base(n, 100) }
}

fn acts_on(process: Process) -> bool {
    let seen = snapshot(SECOND, 0.5, vec![process]);
    !run(SECOND, &seen, &mut state(FreeBsd::default())).is_empty()
}

#[test]
fn guarded_ranges_are_left_alone() {
    let plain = || process(20, vec![full(0), holed(1)]);
    assert!(acts_on(plain()));
    let with = |change: fn(&mut Mapping)| {
        let mut process = plain();
        change(&mut process.mappings[0]);
        acts_on(process)
    };
    assert!(!with(|mapping| mapping.flags.no_huge = true));
    assert!(!with(|mapping| mapping.flags.locked = true));
    assert!(!with(|mapping| mapping.flags.userfault = true));
    assert!(!with(|mapping| mapping.flags.shared = true));
    assert!(!with(|mapping| mapping.flags.device = true));
    for kind in [MappingKind::File, MappingKind::Shared, MappingKind::Hugetlb, MappingKind::Special] {
        let mut process = plain();
        process.mappings[0].kind = kind;
        assert!(!acts_on(process), "{kind:?}");
    }
    assert!(!with(|mapping| mapping.range = VirtRange::new(BASE + 4096, BASE + 4096 + (1 << 21)).unwrap()));
    let mut process = plain();
    process.regions.iter_mut().for_each(|region| region.whole = false);
    assert!(!acts_on(process));
    let mut process = plain();
    process.regions.iter_mut().for_each(|region| region.mapping = 7);
    assert!(!acts_on(process));
}

#[test]
fn a_process_without_thp_is_demoted_but_not_promoted() {
    let mut without = process(20, vec![full(0), holed(1)]);
    without.thp_disabled = true;
    let actions = run(SECOND, &snapshot(SECOND, 0.5, vec![without]), &mut state(FreeBsd::default()));
    assert_eq!((promoted(&actions), demoted(&actions)), (vec![], vec![(20, 1)]));
}

#[test]
fn a_process_that_forks_is_left_alone_while_it_shares_and_where_it_forks_often_until_it_was_quiet() {
    let limits = Limits { fork_quiet: SECOND * 30, ..Limits::default() };
    let mut state = State::new(Box::new(FreeBsd::default()), limits);
    let seen = |children| {
        let mut process = process(20, vec![full(0)]);
        process.sharing_children = Some(children);
        snapshot(SECOND, 0.5, vec![process])
    };
    assert_eq!(run(SECOND, &seen(1), &mut state), []);
    assert_eq!(promoted(&run(SECOND * 2, &seen(0), &mut state)), [(20, 0)]);
    // The promoted region was split again; the next child comes, and goes.
    assert_eq!(run(SECOND * 10, &seen(1), &mut state), []);
    assert_eq!(run(SECOND * 12, &seen(0), &mut state), []);
    assert_eq!(run(SECOND * 39, &seen(0), &mut state), []);
    assert_eq!(promoted(&run(SECOND * 40, &seen(0), &mut state)), [(20, 0)]);
}

#[test]
fn a_child_in_the_snapshot_that_has_not_executed_anything_counts_as_a_fork() {
    let parent = process(20, vec![full(0)]);
    let mut child = process(21, vec![]);
    child.parent = Pid(20);
    let pair = |child: &Process| snapshot(SECOND, 0.5, vec![parent.clone(), child.clone()]);
    assert_eq!(promoted(&run(SECOND, &pair(&child), &mut state(FreeBsd::default()))), [(20, 0)]);
    child.id.start_stack = parent.id.start_stack;
    assert_eq!(run(SECOND, &pair(&child), &mut state(FreeBsd::default())), []);
}

#[test]
fn bytes_and_actions_of_a_step_are_bounded() {
    let regions: Vec<Region> = (0..100).map(full).collect();
    let seen = snapshot(SECOND, 0.5, vec![process(20, regions)]);
    let count =
        |limits: Limits| run(SECOND, &seen, &mut State::new(Box::new(FreeBsd::default()), limits)).len();
    assert_eq!(count(Limits { moved: Bytes::mib(21), ..Limits::default() }), 10);
    assert_eq!(count(Limits { actions: 7, ..Limits::default() }), 7);
    assert_eq!(count(Limits::default()), 100);
}

#[test]
fn a_demoted_region_is_promoted_again_only_after_the_cool_down_and_a_change() {
    let mut state = state(FreeBsd::default());
    let seen = |region: Region, in_use| snapshot(SECOND, in_use, vec![process(20, vec![region])]);
    assert_eq!(demoted(&run(SECOND, &seen(holed(0), 0.9), &mut state)), [(20, 0)]);
    // The demotion has taken effect, then all pages are present, but it is too early.
    assert_eq!(run(SECOND * 2, &seen(base(0, 100), 0.9), &mut state), []);
    assert_eq!(run(SECOND * 300, &seen(full(0), 0.9), &mut state), []);
    assert_eq!(promoted(&run(SECOND * 301, &seen(full(0), 0.9), &mut state)), [(20, 0)]);
}

#[test]
fn nothing_has_changed_so_it_stays_demoted_unless_memory_is_plentiful() {
    let mut state = state(FreeBsd::default());
    let seen = |region: Region, in_use| snapshot(SECOND, in_use, vec![process(20, vec![region])]);
    let holed = Region { present: 511, ..holed(0) };
    assert_eq!(demoted(&run(SECOND, &seen(holed, 0.9), &mut state)), [(20, 0)]);
    run(SECOND * 2, &seen(base(0, 511), 0.9), &mut state);
    assert_eq!(run(SECOND * 5000, &seen(full(0), 0.7), &mut state), []);
    assert_eq!(promoted(&run(SECOND * 5001, &seen(full(0), 0.55), &mut state)), [(20, 0)]);
}

#[test]
fn a_promotion_without_effect_is_tried_less_and_less_often() {
    let mut state = state(FreeBsd::default());
    let seen = snapshot(SECOND, 0.5, vec![process(20, vec![full(0)])]);
    let tries: Vec<u64> =
        (0..20_000).filter(|second| !run(SECOND * *second as u32, &seen, &mut state).is_empty()).collect();
    let waits: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits[..10], [2, 10, 20, 40, 80, 160, 320, 640, 1280, 2560]);
    assert!(waits[10..].iter().all(|wait| *wait == 3600));
}

/// Tries promotions of regions 0 and 1 each second for an hour. The first try of region 0 is
/// answered with `obtained`. Returns the second of the next try of each.
fn after(obtained: Obtained) -> (Option<u64>, Option<u64>) {
    let mut state = state(FreeBsd::default());
    let seen = snapshot(SECOND, 0.5, vec![process(20, vec![full(0), full(1)])]);
    let actions = step(SECOND, &seen, &mut state);
    state.note(SECOND, &outcome(&actions[1], Obtained::Done));
    state.note(SECOND, &outcome(&actions[0], obtained));
    let mut again = (None, None);
    for second in 2..4000 {
        for (_, region) in promoted(&run(SECOND * second, &seen, &mut state)) {
            let slot = if region == 0 { &mut again.0 } else { &mut again.1 };
            slot.get_or_insert(u64::from(second));
        }
    }
    again
}

#[test]
fn each_failure_is_backed_off_from_in_its_way() {
    assert_eq!(after(Obtained::Busy), (Some(11), Some(3)));
    assert_eq!(after(Obtained::Impossible), (Some(3601), Some(3)));
    assert_eq!(after(Obtained::NoMemory), (Some(11), Some(11)));
    assert_eq!(after(Obtained::Denied), (Some(3601), Some(3601)));
    // A result found while memory was short may be untrue later.
    assert_eq!(after(Obtained::Unsupported), (Some(3601), Some(3601)));
}

#[test]
fn refusals_of_one_step_lengthen_the_wait_for_memory_once() {
    let mut state = state(FreeBsd::default());
    let seen = snapshot(SECOND, 0.5, vec![process(20, vec![full(0), full(1), full(2)])]);
    let mut tries = Vec::new();
    for second in 1..100 {
        let actions = step(SECOND * second, &seen, &mut state);
        let refused = |action| state.note(SECOND * second, &outcome(action, Obtained::NoMemory));
        actions.iter().for_each(refused);
        tries.extend((!actions.is_empty()).then_some(second));
    }
    assert_eq!(tries, [1, 11, 31, 71]);
}

#[test]
fn who_is_gone_is_forgotten_who_could_not_be_read_is_not() {
    let mut state = state(FreeBsd::default());
    let seen = snapshot(SECOND, 0.5, vec![process(20, vec![full(0)])]);
    run(SECOND, &seen, &mut state);
    assert_eq!(state.tracked(), 2);
    let mut missed = snapshot(SECOND * 2, 0.5, Vec::new());
    missed.missed = vec![Missed { pid: Pid(20), why: MissedWhy::Denied, what: "no right to".to_string() }];
    run(SECOND * 2, &missed, &mut state);
    assert_eq!(state.tracked(), 2);
    missed.missed[0].why = MissedWhy::Gone;
    run(SECOND * 3, &missed, &mut state);
    assert_eq!(state.tracked(), 0);
}

#[test]
fn a_region_that_is_gone_is_forgotten() {
    let mut state = state(FreeBsd::default());
    let seen = |regions| snapshot(SECOND, 0.5, vec![process(20, regions)]);
    run(SECOND, &seen(vec![full(0), full(1), full(2)]), &mut state);
    assert_eq!(state.tracked(), 4);
    run(SECOND * 2, &seen(vec![full(1)]), &mut state);
    assert_eq!(state.tracked(), 2);
}

#[test]
fn a_process_that_no_snapshot_could_show_is_left_alone() {
    let unsound = |regions: Vec<Region>| !acts_on(process(20, regions));
    assert!(unsound(vec![full(1), full(0)]));
    assert!(unsound(vec![full(1), full(1)]));
    assert!(unsound(vec![Region { page: HugePage::containing(u64::MAX), ..full(0) }]));
    assert!(unsound(vec![full(0), base(1, 513)]));
    let twice: Snapshot = snapshot(SECOND, 0.5, vec![process(20, vec![full(0)]), process(20, vec![full(1)])]);
    assert_eq!(promoted(&run(SECOND, &twice, &mut state(FreeBsd::default()))), [(20, 0)]);
}
