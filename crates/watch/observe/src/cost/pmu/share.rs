//! The share of cycles in page walks, with an interval, from counts. Pure.

use super::{Calibration, Counted, Recipe};
use megapage_kernel::perf::Reading;
use megapage_snapshot::{CostSource, TranslationCost};
use thiserror::Error;

/// Least cycles (a few milliseconds) that show anything about a process.
const LEAST_CYCLES: f64 = 1e7;
/// Cycles without a page walk that show an uncounted event: each interrupt brings the kernel's
/// pages into the TLB. Then a hypervisor passes the counters through without counting.
const SILENT_CYCLES: f64 = 1e9;
/// Half-width of the interval after one interval, as a share of the value: it does not show how the
/// next may differ.
const ONE_INTERVAL: f64 = 0.25;
/// Greatest difference of the uncounted time from the counted time, as a share of the value, while
/// events take turns on the counters.
const NOT_COUNTED: f64 = 0.5;
/// Greatest share that is reported: some cycles do work.
const GREATEST: f64 = 0.99;

/// Counts of a process's threads in one interval, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Nanoseconds on processors.
    pub enabled_ns: f64,
    /// Nanoseconds of these in which the events were counted.
    pub running_ns: f64,
    /// Unhalted cycles, scaled up to all of the time.
    pub cycles: f64,
    /// Counts of walks, scaled in the same way: for loads and for stores, or misses and 0.
    pub walks: [f64; 2],
}

/// Reason why counts give no share.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum NoCost {
    /// The process hardly ran.
    #[error("it ran for only {0:.0} cycles")]
    TooShort(f64),
    /// Other users hold the counters.
    #[error("it ran, but others hold the counters")]
    NeverCounted,
    /// Cycles are counted, but walks are not.
    #[error("not one page walk in {0:.1e} cycles: the hypervisor does not pass the event through")]
    Silent(f64),
}

/// Adds up the counts of threads, each a difference of two readings (cycles first, then walks).
/// Scales the counts of each thread by its own times: perf_event_open(2),
/// `PERF_FORMAT_TOTAL_TIME_RUNNING`.
pub fn interval(threads: &[Reading]) -> Interval {
    let mut sum = Interval::default();
    for thread in threads {
        sum.enabled_ns += thread.enabled_ns as f64;
        sum.running_ns += thread.running_ns as f64;
        if thread.running_ns == 0 {
            continue;
        }
        let scale = thread.enabled_ns as f64 / thread.running_ns as f64;
        let count = |index: usize| thread.counts.get(index).map_or(0.0, |count| *count as f64 * scale);
        sum.cycles += count(0);
        sum.walks[0] += count(1);
        sum.walks[1] += count(2);
    }
    sum
}

/// Returns the share of cycles in walks over some intervals of one process. Its interval of about
/// 90 % combines
///
/// - the spread between the intervals (ratio estimator, Student's t; Cochran, Sampling Techniques,
///   6.3),
/// - the uncounted time while events took turns on the counters,
/// - the uncertainty of the events: two walks in one cycle, or the overlap of misses.
///
/// `calibration` is used if the recipe counts misses.
pub fn share(
    recipe: &Recipe,
    calibration: Option<Calibration>,
    intervals: &[Interval],
) -> Result<TranslationCost, NoCost> {
    let total = |of: fn(&Interval) -> f64| intervals.iter().map(of).sum::<f64>();
    let (enabled, running) = (total(|i| i.enabled_ns), total(|i| i.running_ns));
    let cycles = total(|i| i.cycles);
    if enabled > 0.0 && running == 0.0 {
        return Err(NoCost::NeverCounted);
    }
    if cycles.is_nan() || cycles < LEAST_CYCLES {
        return Err(NoCost::TooShort(cycles));
    }
    let (first, second) = (total(|i| i.walks[0]), total(|i| i.walks[1]));
    if first + second == 0.0 && cycles >= SILENT_CYCLES {
        return Err(NoCost::Silent(cycles));
    }
    // Cycles for each count, with the least and the greatest that the events allow.
    let (weight, least, greatest) = match (recipe.counted, calibration) {
        (Counted::WalkCycles { overlap: true, .. }, _) if first + second > 0.0 => {
            (1.0, first.max(second) / (first + second), 1.0)
        }
        (Counted::WalkCycles { .. }, _) => (1.0, 1.0, 1.0),
        (Counted::Misses { .. }, Some(cost)) => (cost.cycles, cost.low, cost.high),
        // Without a calibration the cost of a miss is unknown: a recipe of misses always has one.
        (Counted::Misses { .. }, None) => (0.0, 0.0, 0.0),
    };
    let ratio = (first + second) / cycles;
    let residuals: Vec<f64> = intervals
        .iter()
        .filter(|interval| interval.cycles > 0.0)
        .map(|interval| interval.walks[0] + interval.walks[1] - ratio * interval.cycles)
        .collect();
    let count = residuals.len();
    let sampling = if count < 2 {
        ratio * ONE_INTERVAL
    } else {
        let squares: f64 = residuals.iter().map(|residual| residual * residual).sum();
        let error = (count as f64 / (count - 1) as f64 * squares).sqrt() / cycles;
        student(count - 1) * error
    };
    let not_counted = if enabled > 0.0 { (1.0 - running / enabled).clamp(0.0, 1.0) } else { 0.0 };
    let half = sampling.hypot(ratio * not_counted * NOT_COUNTED);
    let share = (weight * ratio).clamp(0.0, GREATEST);
    Ok(TranslationCost {
        share,
        low: (least * (ratio - half)).clamp(0.0, share),
        high: (greatest * (ratio + half)).clamp(share, GREATEST),
        source: CostSource::Measured,
    })
}

/// Returns the 95 % quantile of Student's t: 90 % lie between it and its negative.
fn student(degrees: usize) -> f64 {
    const QUANTILES: [f64; 10] = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81];
    // Beyond the table, the first terms of its expansion are right to 1 %.
    QUANTILES.get(degrees.saturating_sub(1)).copied().unwrap_or(1.645 * (1.0 + 0.96 / degrees as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::pmu::recipe;
    use megapage_kernel::Processor;

    fn haswell() -> &'static Recipe {
        recipe(&Processor { vendor: "GenuineIntel".into(), family: 6, model: 63 }).unwrap()
    }

    fn counted(cycles: f64, load: f64, store: f64) -> Interval {
        Interval { enabled_ns: 1e9, running_ns: 1e9, cycles, walks: [load, store] }
    }

    #[test]
    fn nothing_counted_is_no_figure_and_no_zero() {
        assert_eq!(share(haswell(), None, &[]), Err(NoCost::TooShort(0.0)));
        assert_eq!(share(haswell(), None, &[counted(9e6, 1e6, 0.0)]), Err(NoCost::TooShort(9e6)));
        let starved = Interval { enabled_ns: 1e9, ..Interval::default() };
        assert_eq!(share(haswell(), None, &[starved]), Err(NoCost::NeverCounted));
        assert_eq!(share(haswell(), None, &[counted(2e9, 0.0, 0.0)]), Err(NoCost::Silent(2e9)));
        // A short run may have no walks.
        assert_eq!(share(haswell(), None, &[counted(2e7, 0.0, 0.0)]).unwrap().share, 0.0);
    }

    #[test]
    fn threads_are_scaled_each_by_its_own_times() {
        let reading = |enabled_ns, running_ns, counts: [u64; 3]| Reading {
            enabled_ns,
            running_ns,
            counts: counts.to_vec(),
        };
        let sum = interval(&[
            reading(100, 50, [1000, 10, 1]),
            reading(100, 100, [1000, 20, 2]),
            reading(100, 0, [0, 0, 0]),
        ]);
        let expected = Interval { enabled_ns: 300.0, running_ns: 150.0, cycles: 3000.0, walks: [40.0, 4.0] };
        assert_eq!(sum, expected);
    }

    #[test]
    fn steady_intervals_are_narrow_and_changing_ones_wide() {
        let steady: Vec<_> = (0..8).map(|_| counted(1e9, 3e8, 1e7)).collect();
        let value = share(haswell(), None, &steady).unwrap();
        assert!((value.share - 0.31).abs() < 1e-9 && value.high - value.low < 1e-6, "{value:?}");
        let changing: Vec<_> =
            (0..8).map(|n| counted(1e9, if n % 2 == 0 { 5e8 } else { 1e8 }, 0.0)).collect();
        let value = share(haswell(), None, &changing).unwrap();
        // The standard error of the mean is 0.2 x sqrt(8 / 7) / sqrt(8) = 0.0756; t of 7 degrees is
        // 1.89.
        assert!((value.high - value.share - 0.1429).abs() < 1e-3, "{value:?}");
        let one = share(haswell(), None, &steady[..1]).unwrap();
        assert!((one.high - 0.3875).abs() < 1e-9, "{one:?}");
    }

    #[test]
    fn turns_on_the_counters_widen_the_interval() {
        let half = Interval { running_ns: 5e8, ..counted(1e9, 3e8, 1e7) };
        let value = share(haswell(), None, &[half; 8]).unwrap();
        assert!((value.share - 0.31).abs() < 1e-9);
        assert!((value.high / value.share - 1.25).abs() < 1e-6, "{value:?}");
    }

    #[test]
    fn a_share_stays_below_one() {
        let value = share(haswell(), None, &[counted(1e9, 2e9, 2e9); 4]).unwrap();
        assert!(value.low <= value.share && value.share <= value.high && value.high < 1.0, "{value:?}");
    }

    #[test]
    fn quantiles_fall_to_those_of_the_normal_distribution() {
        let quantiles: Vec<f64> = (1..200).map(student).collect();
        assert!(quantiles.windows(2).all(|pair| pair[0] >= pair[1]), "{quantiles:?}");
        assert!((student(30) - 1.697).abs() < 0.04 && (student(199) - 1.653).abs() < 0.01);
    }
}
