//! FreeBSD never binds memory that the program did not touch.

use crate::published::freebsd::FreeBsd;
use crate::tests::made::*;
use crate::{Fault, FaultSize, Headroom, Obtained, Pace, Policy, Reservation, step};
use megapage_snapshot::PAGES;

#[test]
fn only_what_is_fully_populated_becomes_huge() {
    let mut depopulated = huge(3, 0);
    depopulated.present = 511;
    let regions = vec![base(0, 511), base(1, PAGES), huge(2, 500), depopulated];
    let actions =
        run(SECOND, &snapshot(SECOND, 0.99, vec![process(20, regions)]), &mut state(FreeBsd::default()));
    assert_eq!(promoted(&actions), [(20, 1)]);
    assert_eq!(demoted(&actions), [(20, 3)]);
}

#[test]
fn with_a_pace_it_promotes_no_faster_and_what_was_not_tried_is_due_at_once() {
    let seen = |second: u32| {
        let regions = (0..40).map(|n| base(n, PAGES)).collect();
        snapshot(SECOND * second, 0.5, vec![process(20, regions)])
    };
    let mut state = state(FreeBsd::at(Pace { work: 8, every: SECOND }));
    let first = step(SECOND, &seen(1), &mut state);
    assert_eq!(promoted(&first).len(), 8);
    first[..7].iter().for_each(|action| state.note(SECOND, &outcome(action, Obtained::Done)));
    assert_eq!(promoted(&run(SECOND, &seen(1), &mut state)), [(20, 7)]);
    assert!(run(SECOND, &seen(1), &mut state).is_empty(), "the next round is a second later");
    assert_eq!(promoted(&run(SECOND * 3, &seen(3), &mut state)).len(), 16, "two rounds");
}

#[test]
fn a_region_is_reserved_once() {
    let fault = Fault {
        process: id(20),
        region: at(0),
        present: 0,
        eligible: true,
        reserved: false,
        headroom: Headroom::default(),
    };
    let mut policy = FreeBsd::default();
    assert_eq!(policy.on_fault(&fault), FaultSize::Reserve);
    assert_eq!(policy.on_fault(&Fault { present: 9, reserved: true, ..fault }), FaultSize::Reserve);
    assert_eq!(policy.on_fault(&Fault { present: 9, ..fault }), FaultSize::Base);
    assert_eq!(policy.on_fault(&Fault { eligible: false, ..fault }), FaultSize::Base);
}

#[test]
fn the_partial_reservation_that_changed_least_recently_is_broken() {
    let reservation =
        |n, populated, changed| Reservation { process: id(20), region: at(n), populated, changed };
    let all = [reservation(0, PAGES, SECOND), reservation(1, 500, SECOND * 3), reservation(2, 7, SECOND * 2)];
    let policy = FreeBsd::default();
    assert_eq!(policy.breaks(&all), Some(2));
    assert_eq!(policy.breaks(&all[..1]), None);
    assert_eq!(policy.breaks(&[]), None);
}
