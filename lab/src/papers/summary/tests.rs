use super::*;
use crate::papers::{Source, Tolerance};

fn value(row: &str, ours: f64, role: Role, tolerance: Tolerance) -> Value {
    Value {
        table: "table",
        row: row.to_string(),
        what: "s",
        published: 100.0,
        source: Source::Summary,
        ours,
        role,
        tolerance,
    }
}

#[test]
fn fitted_and_tested_values_are_counted_apart_and_misses_come_by_name() {
    let within = Tolerance::Within(0.1);
    let values = [
        value("a", 109.0, Role::Fitted, within),
        value("b", 89.0, Role::Tested, within),
        value("c", 100.0, Role::Tested, within),
        value("d", 20.0, Role::Tested, Tolerance::AtMost),
        value("e", 101.0, Role::Tested, Tolerance::AtMost),
        value("f", f64::NAN, Role::Tested, within),
    ];
    let gate = |name, passed| Gate { name, wanted: "w".into(), got: "g".into(), passed };
    let summary = Summary::of(&values, &[gate("good", true), gate("bad", false)]);
    assert_eq!(summary.fitted, Count { met: 1, of: 1 });
    assert_eq!(summary.tested, Count { met: 2, of: 5 });
    assert_eq!(summary.gates, Count { met: 1, of: 2 });
    let text = summary.human();
    assert!(text.starts_with("3 of 6 published figures met\n"), "{text}");
    assert!(text.contains("not fitted on: 2 of 5, 40 % (aim: 90 %, MISSED)"), "{text}");
    let missed: Vec<&str> = text.lines().filter(|line| line.starts_with("MISSED")).collect();
    assert_eq!(missed.len(), 4, "{text}");
    assert_eq!(missed[0], "MISSED table: b, s: published 100, ours 89.0 (-11.0 %)");
    assert_eq!(missed[3], "MISSED gate bad: required w; got g");
}
