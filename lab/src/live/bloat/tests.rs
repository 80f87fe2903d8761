//! Gates and comparisons on known values.

use super::*;
use crate::peers::HARD;

fn row(name: &'static str, ended: Option<&str>, rss: u64, throughput: f64) -> BloatRow {
    let sample = Sample {
        round: 1,
        ended: ended.map(str::to_string),
        throughput: Some(throughput),
        rss_bytes: [None, None, Some(rss).filter(|_| ended.is_none())],
        ..Sample::default()
    };
    let configuration = Configuration::select(&[name.to_string()]).unwrap()[0];
    let mut row = BloatRow { samples: vec![sample], ..BloatRow::of(&configuration) };
    row.summarise();
    row
}

fn holds(ours: BloatRow, hard: BloatRow) -> Vec<bool> {
    let mut rows = vec![row(NEVER, None, 1000, 90.0), row(ALWAYS, None, 1500, 100.0), hard, ours];
    compare(&mut rows);
    let found = Bloat { keys: 1, value_bytes: 1, limit_bytes: 1, rows, stalls: None, failures: Vec::new() };
    found.gates().iter().map(|gate| gate.holds).collect()
}

#[test]
fn bloat_slowness_and_an_early_end_fail() {
    let killed = || row(HARD, Some("killed"), 0, 100.0);
    assert_eq!(holds(row(OURS, None, 1040, 98.0), killed()), [true, true, true, true]);
    assert_eq!(holds(row(OURS, None, 1060, 96.0), killed()), [true, false, false, true]);
    assert_eq!(holds(row(OURS, Some("killed"), 0, 98.0), killed()), [false, false, true, false]);
    let none_exceeds = row(HARD, None, 1900, 100.0);
    assert_eq!(holds(row(OURS, None, 1040, 98.0), none_exceeds), [false, true, true, true]);
    // If a setting of khugepaged does better by both, the daemon does not improve on it.
    let better = row("thp-hard-64", None, 1030, 99.0);
    assert_eq!(holds(row(OURS, None, 1040, 98.0), better), [false, true, true, false]);
    let dearer = row("thp-hard-64", None, 1050, 99.0);
    assert_eq!(holds(row(OURS, None, 1040, 98.0), dearer), [false, true, true, true]);
    // Beside a kernel that makes every fault huge it is judged by the same gates.
    assert_eq!(holds(row(OURS_ALWAYS, None, 1060, 98.0), killed()), [true, false, true, true]);
    // If both ran, the report says if one of them holds all.
    let both = |always: f64| {
        let mut rows = vec![
            row(NEVER, None, 1000, 90.0),
            row(ALWAYS, None, 1500, 100.0),
            killed(),
            row(OURS, None, 1010, 90.0),
            row(OURS_ALWAYS, None, 1040, always),
        ];
        compare(&mut rows);
        let found =
            Bloat { keys: 1, value_bytes: 1, limit_bytes: 1, rows, stalls: None, failures: Vec::new() };
        found.gates()
    };
    let holds: Vec<bool> = both(99.0).iter().map(|gate| gate.holds).collect();
    assert_eq!(holds, [true, true, false, true, true, true, true, true, true]);
    assert_eq!(both(99.0)[8].found, OURS_ALWAYS);
    assert!(!both(90.0)[8].holds);
}

#[test]
fn runs_are_compared_with_those_of_their_own_round() {
    let of = |name, values: &[(u32, f64)]| {
        let mut row = row(name, None, 0, 0.0);
        row.samples = values
            .iter()
            .map(|(round, value)| Sample {
                round: *round,
                throughput: Some(*value),
                rss_bytes: [None, None, Some(*value as u64)],
                ..Sample::default()
            })
            .collect();
        row.summarise();
        row
    };
    // The second round was twice as fast for all, and thp-always failed in the fourth.
    let mut rows = vec![
        of(NEVER, &[(1, 100.0), (2, 100.0), (3, 200.0)]),
        of(ALWAYS, &[(1, 100.0), (2, 200.0), (3, 100.0)]),
        of(OURS, &[(4, 500.0), (3, 110.0), (2, 202.0), (1, 99.0)]),
    ];
    compare(&mut rows);
    let ours = rows[2].throughput_of_always.unwrap();
    assert_eq!((ours.min, ours.median, ours.max), (0.99, 1.01, 1.1));
    assert_eq!((rows[2].throughput_rounds, rows[2].samples.len()), (3, 4));
    assert_eq!(rows[2].rss_end_of_never.unwrap().median, 0.99);
    assert_eq!(rows[1].throughput_of_always.unwrap().median, 1.0);
}

#[test]
fn memory_is_steady_once_it_changed_little_for_long_enough() {
    let mut steady = Steady::new(Duration::from_secs(10));
    let mut note = |seconds, bytes| steady.note(Duration::from_secs(seconds), bytes);
    assert!(!note(0, 1500));
    assert!(!note(5, 1200));
    assert!(!note(6, 1000));
    assert!(!note(10, 1000));
    assert!(!note(15, 1003), "what was there ten seconds ago counts");
    assert!(note(16, 1003));
    assert!(!note(17, 1010), "it grows");
    assert!(!note(26, 1010));
    assert!(note(27, 1010));
}

#[test]
fn the_limit_is_above_what_is_set_and_below_twice_that() {
    let set = KEYS * VALUE_BYTES;
    assert!(LIMIT > set * 5 / 4 && LIMIT < set * 9 / 5);
}

#[test]
fn a_recovery_that_was_measured_alone_has_no_picture() {
    let found =
        |rows| Bloat { keys: 1, value_bytes: 1, limit_bytes: 1, rows, stalls: None, failures: Vec::new() };
    assert!(found(Vec::new()).charts().is_empty());
    assert_eq!(found(vec![row(OURS, None, 1000, 90.0)]).charts().len(), 1);
}
