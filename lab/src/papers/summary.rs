//! How many of the published values are met, and which are not: the first lines of the report.

use super::{Gate, Role, Value, short};
use serde::Serialize;

/// The share of the values on which nothing was fitted that is to be met.
pub const AIM: f64 = 0.9;

/// So many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Met.
    pub met: usize,
    /// Of so many.
    pub of: usize,
}

impl Count {
    fn add(&mut self, met: bool) {
        self.met += usize::from(met);
        self.of += 1;
    }

    /// The share that is met; 1 of none.
    pub fn share(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.met as f64 / self.of as f64 }
    }
}

/// What came out of all values and gates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Values on which a parameter was fitted.
    pub fitted: Count,
    /// Values on which nothing was fitted.
    pub tested: Count,
    /// Gates without a number.
    pub gates: Count,
    /// What is missed, one line each.
    pub missed: Vec<String>,
}

impl Summary {
    /// Counts them.
    pub fn of(values: &[Value], gates: &[Gate]) -> Summary {
        let mut summary = Summary::default();
        for value in values {
            let count = match value.role {
                Role::Fitted => &mut summary.fitted,
                Role::Tested => &mut summary.tested,
            };
            count.add(value.is_met());
            if !value.is_met() {
                summary.missed.push(format!(
                    "{}: {}, {}: published {}, ours {} ({:+.1} %)",
                    value.table,
                    value.row,
                    value.what,
                    short(value.published),
                    short(value.ours),
                    value.deviation() * 100.0
                ));
            }
        }
        for gate in gates {
            summary.gates.add(gate.passed);
            if !gate.passed {
                summary
                    .missed
                    .push(format!("gate {}: required {}; got {}", gate.name, gate.wanted, gate.got));
            }
        }
        summary
    }

    /// Lines for people.
    pub fn human(&self) -> String {
        let (fitted, tested) = (self.fitted, self.tested);
        let mut out = format!(
            "{} of {} published figures met\n\
             fitted on: {} of {}\n\
             not fitted on: {} of {}, {:.0} % (aim: {:.0} %, {})\n\
             gates without a number: {} of {}\n",
            fitted.met + tested.met,
            fitted.of + tested.of,
            fitted.met,
            fitted.of,
            tested.met,
            tested.of,
            tested.share() * 100.0,
            AIM * 100.0,
            if tested.share() >= AIM { "reached" } else { "MISSED" },
            self.gates.met,
            self.gates.of,
        );
        for missed in &self.missed {
            out += &format!("MISSED {missed}\n");
        }
        out
    }
}

#[cfg(test)]
mod tests {
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
}
