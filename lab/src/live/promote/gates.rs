//! Gates of the daemon, and the gain over time as a picture.

use super::{Promote, PromoteRow};
use crate::bench::Gate;
use crate::chart::{Chart, Line};
use crate::experiment::Section;
use crate::live::configuration::OURS;
use crate::live::{Failure, Measured, table};
use crate::peers::{ALWAYS, is_tuned};

/// Factor by which it is to be sooner than khugepaged at its defaults.
const SOONER: f64 = 100.0;

impl Promote {
    fn row(&self, name: &str) -> Option<&PromoteRow> {
        self.rows.iter().find(|row| row.configuration == name)
    }
}

impl Measured for Promote {
    const KEY: &'static str = "promote";

    fn failures(&self) -> &[Failure] {
        &self.failures
    }

    fn sections(&self) -> Vec<Section> {
        table::promote(self)
    }

    fn gates(&self) -> Vec<Gate> {
        let Some(ours) = self.row(OURS) else { return Vec::new() };
        let mut gates = Vec::new();
        let seconds = |row: &PromoteRow| row.seconds_to_huge.map(|spread| spread.median);
        let extrapolated = |row: &PromoteRow| if row.extrapolated { " (extrapolated)" } else { "" };
        let text = |found: Option<f64>| found.map_or("not huge".to_string(), |found| format!("{found:.2} s"));
        if let Some(always) = self.row(ALWAYS) {
            let ratio = seconds(always).zip(seconds(ours)).map(|(theirs, ours)| theirs / ours);
            gates.push(Gate {
                case: "promote",
                demand: format!(
                    "what is used huge {SOONER:.0} times sooner than by khugepaged at its defaults"
                ),
                found: match ratio {
                    Some(ratio) => format!(
                        "{ratio:.0} times: {} against {}{}",
                        text(seconds(ours)),
                        text(seconds(always)),
                        extrapolated(always)
                    ),
                    None => format!("{} against {}", text(seconds(ours)), text(seconds(always))),
                },
                holds: ratio.is_some_and(|ratio| ratio >= SOONER),
            });
        }
        let cpu = |row: &PromoteRow| row.cpu_seconds.map(|spread| spread.median);
        for (demand, value) in [
            (
                "what is used huge sooner than by khugepaged at its best setting",
                seconds as fn(&PromoteRow) -> Option<f64>,
            ),
            ("at less processor time than khugepaged at its best setting", cpu),
        ] {
            let tuned = self.rows.iter().filter(|row| is_tuned(row.configuration));
            let known = tuned.filter_map(|row| Some((value(row)?, row)));
            let Some((best, row)) = known.min_by(|one, other| one.0.total_cmp(&other.0)) else { continue };
            gates.push(Gate {
                case: "promote",
                demand: demand.into(),
                found: format!(
                    "{} against {} ({}){}",
                    text(value(ours)),
                    text(Some(best)),
                    row.configuration,
                    extrapolated(row)
                ),
                holds: value(ours).is_some_and(|ours| ours < best),
            });
        }
        gates
    }

    /// Draws the gain over time, of the first run of each configuration.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        let lines = self.rows.iter().filter_map(|row| {
            let sample = row.samples.first()?;
            Some(Line { name: row.configuration.into(), points: sample.gain.clone(), pale: false })
        });
        vec![(
            "gain",
            Chart {
                title: "Share of the attainable gain".into(),
                x: "seconds from the start".into(),
                y: "share".into(),
                lines: lines.collect(),
            },
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of, sample};
    use super::super::{ATTAINED, HEAP, HOT};
    use super::*;
    use crate::bench::Spread;
    use crate::workload::steady::Way;

    #[test]
    fn later_or_more_expensive_fails() {
        let judge = |ours: (f64, f64), hard: (f64, f64), always: f64| -> Vec<bool> {
            judged(ours, hard, always).iter().map(|gate| gate.holds).collect()
        };
        assert_eq!(judge((2.0, 1.0), (9.0, 9.0), 300.0), [true, true, true]);
        assert_eq!(judge((4.0, 1.0), (9.0, 9.0), 300.0), [false, true, true]);
        assert_eq!(judge((9.5, 9.5), (9.0, 9.0), 2000.0), [true, false, false]);
        // Each demand is against the setting that is best by its quantity.
        let found: Vec<String> =
            judged((2.0, 1.0), (9.0, 9.0), 300.0).iter().map(|gate| gate.found.clone()).collect();
        assert!(found[1].contains("(thp-hard)") && found[2].contains("(thp-hard-0)"), "{found:?}");
    }

    fn judged(ours: (f64, f64), hard: (f64, f64), always: f64) -> Vec<Gate> {
        let one = |median| Spread { median, min: median, max: median };
        let found = Promote {
            heap_bytes: HEAP,
            way: Way::Sparse.name(),
            hot_bytes: HOT,
            trials: Vec::new(),
            base_rate: one(1.0),
            huge_rate: one(2.0),
            gain_share: ATTAINED,
            longest_seconds: 45.0,
            rows: vec![
                of(OURS, vec![sample(Some(ours.0), ours.1, 0)], false),
                of("thp-hard", vec![sample(Some(hard.0), hard.1, 0)], true),
                of("thp-hard-0", vec![sample(Some(hard.0 + 1.0), hard.1 - 0.1, 0)], true),
                of(ALWAYS, vec![sample(Some(always), 1.0, 0)], true),
            ],
            failures: Vec::new(),
        };
        found.gates()
    }
}
