//! Mean of a few values, with an interval.

/// Mean with its interval of 90 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) mean: f64,
    pub(crate) high: f64,
}

/// Student's t at 95 % on one side, for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
];

impl Interval {
    /// Returns the interval of independent values; `None` for fewer than two.
    pub(crate) fn of(values: &[f64]) -> Option<Interval> {
        let count = values.len() as f64;
        let freedom = values.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / freedom as f64;
        let reach = STUDENT[freedom.min(STUDENT.len()) - 1] * (variance / count).sqrt();
        Some(Interval { low: mean - reach, mean, high: mean + reach })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        assert_eq!(Interval::of(&[1.0]), None);
        let found = Interval::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((found.mean - 2.0).abs() < 1e-12);
        assert!((found.high - 2.0 - 2.920 / 3f64.sqrt()).abs() < 1e-9, "{found:?}");
        let same = Interval::of(&[5.0; 40]).unwrap();
        assert_eq!((same.low, same.high), (5.0, 5.0));
    }
}
