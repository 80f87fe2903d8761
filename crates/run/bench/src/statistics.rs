//! Medians and spreads.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time that a run or one of its phases took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Time by the wall clock.
    pub wall_ns: u64,
    /// Processor time of all threads of the process. It does not grow while others have the
    /// processors.
    pub cpu_ns: u64,
}

/// Returns the time in nanoseconds, at most 64 bits of them: 584 years.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Clock by which runs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Wall-clock time
    Wall,
    /// Processor time of all threads, which varies less on a busy machine
    Cpu,
}

impl Clock {
    /// Returns the time of `spent` by this clock, in nanoseconds.
    pub fn of(self, spent: &Spent) -> f64 {
        match self {
            Clock::Wall => spent.wall_ns as f64,
            Clock::Cpu => spent.cpu_ns as f64,
        }
    }
}

/// The median and the ends of some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The median; for an even number of samples, the mean of the middle two.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of `samples`; `None` if there are none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }

    /// Returns only the median of `samples`; `None` if there are none.
    pub fn median_of(samples: &[f64]) -> Option<f64> {
        Spread::of(samples.iter().copied()).map(|spread| spread.median)
    }

    /// Returns half of the range (largest less smallest) as a share of the median.
    pub fn noise(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / (2.0 * self.median) } else { 0.0 }
    }
}

/// The median of some samples, and an interval that holds the median of their distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The median of the samples.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The probability that the interval holds the distribution's median, for any distribution; 0
    /// for a single sample.
    pub coverage: f64,
}

impl Interval {
    /// Returns the interval of `samples`; `None` if there are none. It is the narrowest pair of
    /// order statistics, equally far from both ends, that holds the median with at least `wanted`.
    /// The source is the sign test (Conover, Practical Nonparametric Statistics, 3.2). With too few
    /// samples, it is the smallest and the largest, and `coverage` is below `wanted`.
    pub fn of(samples: impl IntoIterator<Item = f64>, wanted: f64) -> Option<Interval> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let median = Spread::median_of(&sorted)?;
        // The probability that at most `dropped` samples lie below the median: it is then beyond
        // one end.
        let (mut term, mut beyond) = (0.5f64.powi(count as i32), 0.0);
        let (mut cut, mut coverage) = (0, 0.0);
        for dropped in 0..count / 2 {
            beyond += term;
            let covered = 1.0 - 2.0 * beyond;
            if dropped > 0 && covered < wanted {
                break;
            }
            (cut, coverage) = (dropped, covered);
            term *= (count - dropped) as f64 / (dropped + 1) as f64;
        }
        Some(Interval { median, low: sorted[cut], high: sorted[count - 1 - cut], coverage })
    }

    /// Returns true if the interval excludes `value` and reaches the coverage `wanted`.
    pub fn excludes(&self, value: f64, wanted: f64) -> bool {
        self.coverage >= wanted && (self.high < value || self.low > value)
    }
}

/// Formats nanoseconds as milliseconds with about three digits.
pub fn milliseconds(ns: f64) -> String {
    let ms = ns / 1e6;
    let decimals = if ms >= 100.0 {
        0
    } else if ms >= 10.0 {
        1
    } else {
        2
    };
    format!("{ms:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_between_its_ends() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        let four = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(four, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert!((four.noise() - 0.6).abs() < 1e-9);
    }

    #[test]
    fn an_interval_drops_as_many_samples_at_each_end_as_the_sign_test_allows() {
        let of = |count: u32| Interval::of((1..=count).map(f64::from), 0.95).unwrap();
        // 2 * (1 + 9) / 512 = 3.9 %, 2 * (1 + 9 + 36) / 512 = 18 %.
        let nine = of(9);
        assert_eq!((nine.low, nine.median, nine.high), (2.0, 5.0, 8.0));
        assert!((nine.coverage - (1.0 - 20.0 / 512.0)).abs() < 1e-12, "{nine:?}");
        // 2 / 64 = 3.1 %: six samples are the fewest that reach 95 %.
        assert_eq!((of(6).low, of(6).high, of(6).coverage), (1.0, 6.0, 1.0 - 2.0 / 64.0));
        assert_eq!((of(5).low, of(5).high, of(5).coverage), (1.0, 5.0, 1.0 - 2.0 / 32.0));
        assert_eq!((of(12).low, of(12).high), (3.0, 10.0));
        assert_eq!((of(1).low, of(1).coverage), (1.0, 0.0));
        assert_eq!(Interval::of([], 0.95), None);
    }

    #[test]
    fn an_interval_excludes_only_what_it_was_meant_to_cover() {
        let of = |count: usize| Interval::of((0..count).map(|at| 0.8 + 0.01 * at as f64), 0.95).unwrap();
        assert!(of(6).excludes(1.0, 0.95) && of(6).excludes(0.7, 0.95));
        assert!(!of(6).excludes(0.82, 0.95));
        assert!(!of(5).excludes(1.0, 0.95), "too few samples for that");
    }

    #[test]
    fn milliseconds_have_about_three_digits() {
        assert_eq!(milliseconds(1_234_000_000.0), "1234");
        assert_eq!(milliseconds(1_234_000.0), "1.23");
    }
}
