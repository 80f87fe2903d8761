use super::*;

fn process(memory: Movable) -> Process {
    let id = ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 1 };
    Process { id, name: "x".into(), memory }
}

fn regions(count: u64) -> Vec<HugePage> {
    (0..count).map(HugePage::nth).collect()
}

#[test]
fn a_pilot_that_was_slow_says_enough_and_one_that_was_refused_does_not() {
    let outcome = |asked: u64, obtained: u64, not_tried| PromoteOutcome {
        asked_bytes: asked << 21,
        obtained_bytes: obtained << 21,
        not_tried,
        ..PromoteOutcome::default()
    };
    assert!(is_enough(&outcome(15, 15, 0)) && is_enough(&outcome(15, 8, 0)));
    assert!(is_enough(&outcome(15, 6, 9)), "there was time for six");
    assert!(!is_enough(&outcome(15, 6, 0)), "nine were refused");
    assert!(!is_enough(&outcome(15, 0, 15)) && !is_enough(&outcome(0, 0, 0)));
}

#[test]
fn a_switch_has_the_time_that_its_regions_took_before() {
    let most = Duration::from_secs(1800);
    let time = |regions, millis, most| bounds(regions, Duration::from_millis(millis), most).time.as_millis();
    assert_eq!((time(0, 0, most), time(50, 0, most), time(50, 1, most)), (2000, 2100, 2100));
    assert_eq!((time(50, 300, most), time(100_000, 300, most)), (32_000, 60_000));
    assert_eq!(time(50, 300, Duration::from_secs(30)), 5000, "a short trial");
    assert_eq!(time(50, 300, Duration::from_secs(1)), 2000);
}

#[test]
fn what_cannot_be_tried_is_said_with_its_reasons() {
    let some = Movable { regions: regions(3), present: Bytes::mib(12), ..Movable::default() };
    assert_eq!(nothing(&[process(some.clone())]), None);
    assert_eq!(share(&[process(some)]), 0.5);
    let why = nothing(&[process(Movable {
        present: Bytes::mib(100),
        huge: Bytes::mib(64),
        excluded: Bytes::mib(30),
        forked: 2,
        on_larger_folios: 1,
        ..Movable::default()
    })]);
    assert_eq!(
        why.unwrap(),
        "it has 100 MiB of private memory; 64 MiB are huge already, and what was huge before is not split; 30 MiB are \
             excluded by the program, or locked; a forked process shares 4 MiB; 2 MiB lie on folios of 16 KiB to 1 MiB, \
             which a split would not restore"
    );
}
