//! Several starts of a program as one run.

use crate::workload::measurement::Measurement;
use megapage_bench::statistics::Spent;
use megapage_bench::statistics::{Clock, Spread, milliseconds};
use std::collections::BTreeMap;

/// Returns one measurement for several of the same program: the median of each phase. All other
/// values are the last one's.
pub(super) fn median_measurement(measurements: Vec<Measurement>) -> Measurement {
    let mut samples: BTreeMap<String, Vec<Spent>> = BTreeMap::new();
    for measurement in &measurements {
        for (name, spent) in &measurement.phases.0 {
            samples.entry(name.clone()).or_default().push(*spent);
        }
    }
    let mut result = measurements.into_iter().next_back().unwrap_or_default();
    for (name, spent) in samples {
        let median = |clock: Clock| {
            Spread::of(spent.iter().map(|one| clock.of(one))).map_or(0, |spread| spread.median as u64)
        };
        result.phases.0.insert(name, Spent { wall_ns: median(Clock::Wall), cpu_ns: median(Clock::Cpu) });
    }
    result
}

/// Describes a run in a few words, for the progress line.
pub(super) fn brief(found: &Measurement) -> String {
    let phases: Vec<String> = found
        .phases
        .0
        .iter()
        .map(|(name, spent)| format!("{name} {}", milliseconds(spent.wall_ns as f64)))
        .collect();
    format!("{} ms, {:.0} % huge", phases.join(", "), 100.0 * found.backing.huge_share())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_starts_count_as_their_median() {
        let one = |wall_ns| {
            let mut measurement = Measurement::default();
            measurement.phases.0.insert("process".into(), Spent { wall_ns, cpu_ns: 1 });
            measurement
        };
        let median = median_measurement(vec![one(10), one(1000), one(30)]);
        assert_eq!(median.phases.0["process"], Spent { wall_ns: 30, cpu_ns: 1 });
    }
}
