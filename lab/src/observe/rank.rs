//! Statistics that need no distribution: the agreement of two rankings, and the certainty of a
//! median.

use crate::bench::Interval;

/// Returns Kendall's tau-b of pairs: 1 if both order all pairs alike, -1 if they order them in
/// reverse. Ties are taken into account (Kendall, Rank Correlation Methods, chapter 3). `None` for
/// fewer than two pairs, and if one of the two is the same throughout.
pub(crate) fn tau_b(pairs: &[(f64, f64)]) -> Option<f64> {
    Agreement::of(pairs, |_, _| true).tau_b()
}

/// Agreement of two rankings, pair by pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Pairs that both order alike.
    pub(super) right: u64,
    /// Pairs that they order in reverse.
    pub(super) wrong: u64,
    /// Pairs that are not equal in the first, and those that are not equal in the second.
    apart: [u64; 2],
}

impl Agreement {
    /// Counts the pairs that `counts` accepts, by their places in `values`.
    pub(super) fn of(values: &[(f64, f64)], counts: impl Fn(usize, usize) -> bool) -> Agreement {
        let mut found = Agreement::default();
        for (index, one) in values.iter().enumerate() {
            for (_, other) in values[..index].iter().enumerate().filter(|(at, _)| counts(index, *at)) {
                let (x, y) = (one.0 - other.0, one.1 - other.1);
                found.apart[0] += u64::from(x != 0.0);
                found.apart[1] += u64::from(y != 0.0);
                found.right += u64::from(x * y > 0.0);
                found.wrong += u64::from(x * y < 0.0);
            }
        }
        found
    }

    /// Returns [`tau_b`] over the pairs that count.
    pub(super) fn tau_b(&self) -> Option<f64> {
        let comparable = (self.apart[0] as f64 * self.apart[1] as f64).sqrt();
        (comparable > 0.0).then(|| (self.right as f64 - self.wrong as f64) / comparable)
    }
}

/// Returns true if two intervals have nothing in common: then it is known which of the two is more.
pub(super) fn are_apart(one: [f64; 2], other: [f64; 2]) -> bool {
    one[0] > other[1] || other[0] > one[1]
}

/// Returns the interval that holds the median of the distribution of `samples` with at least 90 %.
/// For fewer than five samples there is no such interval: then it is all of them. `None` for none.
pub(crate) fn median_interval(samples: &[f64]) -> Option<[f64; 2]> {
    Interval::of(samples.iter().copied(), 0.90).map(|interval| [interval.low, interval.high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_as_sure_as_the_sign_test_says() {
        let of = |count: i32| median_interval(&(1..=count).map(f64::from).collect::<Vec<_>>());
        assert_eq!(of(0), None);
        assert_eq!(of(3), Some([1.0, 3.0]));
        // 90 % intervals of the table of binomial confidence limits for a median.
        assert_eq!(of(5), Some([1.0, 5.0]));
        assert_eq!(of(8), Some([2.0, 7.0]));
        assert_eq!(of(20), Some([6.0, 15.0]));
        assert_eq!(median_interval(&[3.0, 1.0, 2.0, 9.0, 5.0, 4.0, 8.0, 7.0]), Some([2.0, 8.0]));
    }

    fn near(pairs: &[(f64, f64)], expected: f64) {
        let tau = tau_b(pairs).unwrap();
        assert!((tau - expected).abs() < 1e-9, "{tau}, not {expected}");
    }

    #[test]
    fn rankings_agree_disagree_or_do_neither() {
        near(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)], 1.0);
        near(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], -1.0);
        // One of six pairs is in reverse order.
        near(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)], 4.0 / 6.0);
        assert_eq!(tau_b(&[]), None);
        assert_eq!(tau_b(&[(1.0, 1.0)]), None);
        assert_eq!(tau_b(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn ties_count_neither_way() {
        // 5 of 6 pairs differ in the first, 5 of 6 in the second, 4 agree: 4 / sqrt(5 x 5).
        near(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 3.0)], 0.8);
        near(&[(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)], 1.0);
    }

    #[test]
    fn indistinguishable_pairs_are_left_out() {
        assert!(are_apart([1.0, 1.1], [1.2, 1.3]) && are_apart([1.2, 1.3], [1.0, 1.1]));
        assert!(!are_apart([1.0, 1.2], [1.2, 1.3]) && !are_apart([1.0, 2.0], [1.2, 1.3]));
        // The second and third, which are ordered wrongly, do not count.
        let values = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)];
        let found = Agreement::of(&values, |one, other| one + other != 3);
        assert_eq!((found.right, found.wrong, found.tau_b()), (4, 0, Some(1.0)));
        let found = Agreement::of(&values, |_, _| true);
        assert_eq!((found.right, found.wrong), (5, 1));
        assert_eq!(Agreement::of(&values, |_, _| false).tau_b(), None);
        // Equal predictions are no order: of two pairs that are distinguished one is left.
        let found = Agreement::of(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)], |one, other| one + other != 3);
        assert!((found.tau_b().unwrap() - 1.0 / 2f64.sqrt()).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn it_is_that_of_scipy() {
        // scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) as its documentation gives it.
        near(&[(12.0, 1.0), (2.0, 4.0), (1.0, 7.0), (12.0, 1.0), (2.0, 0.0)], -0.471_404_520_791_031_7);
    }
}
