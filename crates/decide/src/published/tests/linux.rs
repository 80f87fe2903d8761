//! khugepaged's order and pace.

use crate::published::linux::{Linux, Parameters};
use crate::tests::made::*;
use crate::{Fault, FaultSize, Headroom, Obtained, Policy, step};
use megapage_snapshot::PAGES;
use megapage_units::Bytes;

fn two_processes() -> Vec<megapage_snapshot::Process> {
    let regions = || (0..10).map(|n| base(n, 512)).collect();
    vec![process(20, regions()), process(30, regions())]
}

#[test]
fn eight_regions_in_ten_seconds_from_low_to_high_one_process_after_the_other() {
    let mut state = state(Linux::new(Parameters::always()));
    let seen = snapshot(SECOND, 0.5, two_processes());
    let first = promoted(&run(SECOND, &seen, &mut state));
    assert_eq!(first, (0..8).map(|n| (20, n)).collect::<Vec<_>>());
    assert_eq!(promoted(&run(SECOND * 10, &seen, &mut state)), []);
    let second = promoted(&run(SECOND * 11, &seen, &mut state));
    assert_eq!(second, [(20, 8), (20, 9), (30, 0), (30, 1), (30, 2), (30, 3), (30, 4), (30, 5)]);
}

#[test]
fn the_older_process_is_first_whatever_its_pid() {
    let mut processes = two_processes();
    processes[0].id.start_ticks = 900;
    let mut state = state(Linux::new(Parameters::always()));
    let actions = run(SECOND, &snapshot(SECOND, 0.5, processes), &mut state);
    assert!(promoted(&actions).iter().all(|(pid, _)| *pid == 30));
}

#[test]
fn absent_swapped_and_idle_pages_are_judged_as_khugepaged_does() {
    let mut swapped = base(2, 400);
    swapped.swapped = 65;
    let regions = vec![base(0, 1), base(1, 0), swapped, accessed(base(3, 512), 0, SECOND), base(4, 512)];
    let seen = snapshot(SECOND, 0.5, vec![process(20, regions)]);
    let actions = run(SECOND, &seen, &mut state(Linux::new(Parameters::always())));
    assert_eq!(promoted(&actions), [(20, 0), (20, 4)]);
    let strict = Parameters { max_ptes_none: 0, ..Parameters::always() };
    assert_eq!(promoted(&run(SECOND, &seen, &mut state(Linux::new(strict)))), [(20, 4)]);
}

#[test]
fn never_promotes_nothing() {
    let mut seen = snapshot(SECOND, 0.5, two_processes());
    let never = |seen: &_| promoted(&run(SECOND, seen, &mut state(Linux::new(Parameters::never()))));
    assert_eq!(never(&seen), []);
    seen.processes[1].mappings[0].flags.huge = true;
    assert_eq!(never(&seen), []);
}

#[test]
fn a_first_touch_is_huge_where_that_is_possible() {
    let fault = Fault {
        process: id(20),
        region: at(0),
        present: 0,
        eligible: true,
        reserved: false,
        headroom: Headroom { total: Bytes::gib(16), free: Bytes::gib(8), ..Headroom::default() },
    };
    let mut always = Linux::new(Parameters::always());
    assert_eq!(always.on_fault(&fault), FaultSize::Huge);
    assert_eq!(always.on_fault(&Fault { present: 1, ..fault }), FaultSize::Base);
    assert_eq!(always.on_fault(&Fault { eligible: false, ..fault }), FaultSize::Base);
    assert_eq!(Linux::new(Parameters::never()).on_fault(&fault), FaultSize::Base);
}

#[test]
fn want_of_memory_stops_it_for_a_minute() {
    let mut state = state(Linux::new(Parameters::always()));
    let regions = (0..100).map(|n| base(n, PAGES)).collect();
    let seen = snapshot(SECOND, 0.5, vec![process(20, regions)]);
    let actions = step(SECOND, &seen, &mut state);
    state.note(SECOND, &outcome(&actions[0], Obtained::Done));
    state.note(SECOND, &outcome(&actions[1], Obtained::NoMemory));
    assert_eq!(promoted(&run(SECOND * 60, &seen, &mut state)), []);
    // The scan goes on with the first region that was not tried.
    assert_eq!(promoted(&run(SECOND * 61, &seen, &mut state)), (2..10).map(|n| (20, n)).collect::<Vec<_>>());
}

#[test]
fn processes_that_end_leave_the_queue() {
    let mut state = state(Linux::new(Parameters::always()));
    run(SECOND, &snapshot(SECOND, 0.5, two_processes()), &mut state);
    run(SECOND * 2, &snapshot(SECOND * 2, 0.5, Vec::new()), &mut state);
    assert_eq!(state.tracked(), 0);
}
