//! FreeBSD never binds what the program did not touch.

use super::made::*;
use crate::freebsd::FreeBsd;
use crate::{Fault, FaultSize, Headroom, Policy, Reservation};
use megapage_snapshot::PAGES;

#[test]
fn only_what_is_fully_populated_becomes_huge() {
    let mut depopulated = huge(3, 0);
    depopulated.present = 511;
    let regions = vec![base(0, 511), base(1, PAGES), huge(2, 500), depopulated];
    let actions = run(SECOND, &snapshot(SECOND, 0.99, vec![process(20, regions)]), &mut state(FreeBsd));
    assert_eq!(promoted(&actions), [(20, 1)]);
    assert_eq!(demoted(&actions), [(20, 3)]);
}

#[test]
fn a_region_is_reserved_once() {
    let fault = Fault {
        process: id(20),
        region: at(0),
        present: 0,
        eligible: true,
        advised: false,
        reserved: false,
        headroom: Headroom::default(),
    };
    assert_eq!(FreeBsd.on_fault(&fault), FaultSize::Reserve);
    assert_eq!(FreeBsd.on_fault(&Fault { present: 9, reserved: true, ..fault }), FaultSize::Reserve);
    assert_eq!(FreeBsd.on_fault(&Fault { present: 9, ..fault }), FaultSize::Base);
    assert_eq!(FreeBsd.on_fault(&Fault { eligible: false, ..fault }), FaultSize::Base);
}

#[test]
fn the_partial_reservation_that_changed_least_recently_is_broken() {
    let reservation =
        |n, populated, changed| Reservation { process: id(20), region: at(n), populated, changed };
    let all = [reservation(0, PAGES, SECOND), reservation(1, 500, SECOND * 3), reservation(2, 7, SECOND * 2)];
    assert_eq!(FreeBsd.breaks(&all), Some(2));
    assert_eq!(FreeBsd.breaks(&all[..1]), None);
    assert_eq!(FreeBsd.breaks(&[]), None);
}
