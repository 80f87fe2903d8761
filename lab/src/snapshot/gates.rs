//! Gates: latencies while a child saves no worse than on base pages, and the speed of huge pages
//! before and after.

use super::{BASE, OURS, Row, THP};
use crate::bench::Gate;

/// Least share of the speed that huge pages give.
const SPEED: f64 = 0.97;
/// Least share of the heap that is huge again.
const HUGE: f64 = 0.9;
const CASE: &str = "redis";

/// Judges the rows that ran.
pub(super) fn judge(rows: &[Row]) -> Vec<Gate> {
    let row = |name: &str| rows.iter().find(|row| row.configuration == name);
    let (Some(ours), Some(base)) = (row(OURS), row(BASE)) else { return Vec::new() };
    let mut gates = Vec::new();
    let p999 = |row: &Row| row.spread(|sample| sample.during.p999_ns as f64 / 1e3).map(|it| it.median);
    if let Some((ours, base)) = p999(ours).zip(p999(base)) {
        gates.push(Gate {
            case: CASE,
            demand: format!("{OURS}: p99.9 during the save no more than on base pages"),
            found: format!("{ours:.0} us, not {base:.0}"),
            holds: ours <= base,
        });
    }
    let speeds = row(THP).and_then(|row| row.spread(|sample| sample.speed_before));
    if let Some(huge) = speeds {
        for (name, value) in [
            ("before", ours.spread(|sample| sample.speed_before)),
            ("after", ours.spread(|sample| sample.speed_after)),
        ] {
            let Some(value) = value else { continue };
            let ratio = value.median / huge.median;
            gates.push(Gate {
                case: CASE,
                demand: format!("{OURS}: speed {name} the save at least {SPEED} of {THP} before it"),
                found: format!("{ratio:.3}"),
                holds: ratio >= SPEED,
            });
        }
    }
    if let Some(after) = ours.spread(|sample| sample.huge_after) {
        gates.push(Gate {
            case: CASE,
            demand: format!("{OURS}: {:.0} % of the heap huge after the save", 100.0 * HUGE),
            found: format!("{:.0} % in every run", 100.0 * after.min),
            holds: after.min >= HUGE,
        });
    }
    gates
}

#[cfg(test)]
mod tests {
    use super::super::{Phase, Sample, Who};
    use super::*;

    fn row(configuration: &'static str, p999_ns: u64, speed: f64, huge: f64) -> Row {
        let phase = Phase { p999_ns, ..Phase::default() };
        let sample = Sample {
            huge_before: huge,
            huge_saved: 0.1,
            huge_after: huge,
            back_seconds: Some(1.0),
            speed_before: speed,
            speed_after: speed,
            fork_us: 1,
            copied_bytes: 1,
            save_seconds: 1.0,
            quiet: phase,
            during: phase,
            settled: phase,
            after: phase,
        };
        Row { configuration, who: Who::Base, samples: vec![sample], notes: Vec::new() }
    }

    #[test]
    fn each_demand_can_fail_by_itself() {
        let others = [row(BASE, 1000, 80.0, 0.0), row(THP, 900, 100.0, 1.0)];
        let holds = |ours: Row| -> Vec<bool> {
            judge(&[&others[..], &[ours]].concat()).iter().map(|gate| gate.holds).collect()
        };
        assert_eq!(holds(row(OURS, 1000, 97.0, 0.9)), [true; 4]);
        assert_eq!(holds(row(OURS, 1001, 97.0, 0.9)), [false, true, true, true]);
        assert_eq!(holds(row(OURS, 1000, 96.0, 0.9)), [true, false, false, true]);
        assert_eq!(holds(row(OURS, 1000, 97.0, 0.8)), [true, true, true, false]);
        assert!(judge(&others).is_empty());
    }
}
