//! Statistics that need no distribution: how far two rankings agree, and how sure a median is.

/// Kendall's tau-b of pairs: 1 where both order all pairs alike, -1 where they order them the other way round; ties
/// are taken into account (Kendall, Rank Correlation Methods, chapter 3). `None` for fewer than two pairs, and where
/// one of the two is the same throughout.
pub(super) fn tau_b(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut agree, mut disagree, mut first, mut second) = (0u64, 0u64, 0u64, 0u64);
    for (index, one) in pairs.iter().enumerate() {
        for other in &pairs[..index] {
            let (x, y) = (one.0 - other.0, one.1 - other.1);
            first += u64::from(x != 0.0);
            second += u64::from(y != 0.0);
            agree += u64::from(x * y > 0.0);
            disagree += u64::from(x * y < 0.0);
        }
    }
    let comparable = (first as f64 * second as f64).sqrt();
    (comparable > 0.0).then(|| (agree as f64 - disagree as f64) / comparable)
}

/// The interval that holds the median of what `samples` were drawn from with at least 90 %: the order statistics that
/// the sign test leaves (Conover, Practical Nonparametric Statistics, 3.2). For fewer than five samples that is not to
/// be had: then it is all of them. `None` for none.
pub(super) fn median_interval(samples: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    // How many samples at each end may be cut off: fewer than that many lie below the median in at most 5 % of cases.
    let count = sorted.len();
    let (mut below, mut term, mut cut) = (0.0, 0.5f64.powi(count as i32), 0);
    for successes in 0..count / 2 {
        below += term;
        if below > 0.05 {
            break;
        }
        cut = successes;
        term *= (count - successes) as f64 / (successes + 1) as f64;
    }
    Some([*sorted.get(cut)?, *sorted.get(count - 1 - cut)?])
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
        // One of six pairs is the wrong way round.
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
    fn it_is_that_of_scipy() {
        // scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) as its documentation gives it.
        near(&[(12.0, 1.0), (2.0, 4.0), (1.0, 7.0), (12.0, 1.0), (2.0, 0.0)], -0.471_404_520_791_031_7);
    }
}
