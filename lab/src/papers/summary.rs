//! Summary of the published values that are met, and of those that are not: the first lines of the
//! report.

use super::{Gate, Role, Value, short};
use serde::Serialize;

/// Wanted share of met values among those on which nothing was fitted.
pub const AIM: f64 = 0.9;

/// The values that are met, of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Met.
    pub met: usize,
    /// The total.
    pub of: usize,
}

impl Count {
    fn add(&mut self, met: bool) {
        self.met += usize::from(met);
        self.of += 1;
    }

    /// Returns the share that is met; 1 of none.
    pub fn share(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.met as f64 / self.of as f64 }
    }
}

/// Result of all values and gates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Values on which a parameter was fitted.
    pub fitted: Count,
    /// Values on which nothing was fitted.
    pub tested: Count,
    /// Gates without a number.
    pub gates: Count,
    /// The values and gates that are missed, one line each.
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

    /// Renders lines for people.
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
mod tests;
