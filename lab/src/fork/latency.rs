//! Times of many launches.

use crate::bench::Spread;
use crate::workload::fork::percentile;
use serde::Serialize;

/// Launches of all runs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The median launch of each run: the median, the least and the greatest of them.
    pub median_ns: Spread,
    /// The 90th percentile of all launches of all runs.
    pub p90_ns: u64,
    /// The 99th percentile of them.
    pub p99_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
}

/// Launches as they come, run by run.
#[derive(Clone, Debug, Default)]
pub(super) struct Launches {
    medians: Vec<f64>,
    all: Vec<u64>,
}

impl Launches {
    /// Adds the launches of one run.
    pub(super) fn add(&mut self, run: &[u64]) {
        if let Some(spread) = Spread::of(run.iter().map(|ns| *ns as f64)) {
            self.medians.push(spread.median);
            self.all.extend(run);
        }
    }

    /// Returns their times; `None` if there were none.
    pub(super) fn latency(&self) -> Option<Latency> {
        let median_ns = Spread::of(self.medians.iter().copied())?;
        let mut all = self.all.clone();
        all.sort_unstable();
        Some(Latency {
            median_ns,
            p90_ns: percentile(&all, 90.0),
            p99_ns: percentile(&all, 99.0),
            max_ns: percentile(&all, 100.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_count_alike_and_launches_too() {
        let mut launches = Launches::default();
        launches.add(&[]);
        assert_eq!(launches.latency(), None);
        launches.add(&[1, 2, 9]);
        launches.add(&[4]);
        launches.add(&[8, 6, 100]);
        let found = launches.latency().unwrap();
        assert_eq!(found.median_ns, Spread { median: 4.0, min: 2.0, max: 8.0 });
        assert_eq!((found.p90_ns, found.max_ns), (100, 100));
    }
}
