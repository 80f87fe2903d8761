//! Quantiles of weighted values.

/// Returns the smallest value that, with those below it, has at least the share `quantile` (0 to 1)
/// of all weight. Returns 0 if nothing has weight. Values and weights are finite, weights not
/// negative.
pub fn quantile(values: &[(f64, f64)], quantile: f64) -> f64 {
    let mut sorted: Vec<(f64, f64)> = values.iter().copied().filter(|(_, weight)| *weight > 0.0).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let all: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    // Tolerates a difference in the last digits between sums of the same weights.
    let wanted = all * quantile.clamp(0.0, 1.0) * (1.0 - 1e-12);
    let mut below = 0.0;
    for (value, weight) in &sorted {
        below += weight;
        if below >= wanted {
            return *value;
        }
    }
    sorted.last().map_or(0.0, |(value, _)| *value)
}

/// Returns the quantile of values with equal weights.
pub(crate) fn plain_quantile(values: &[f64], at: f64) -> f64 {
    let weighted: Vec<(f64, f64)> = values.iter().map(|value| (*value, 1.0)).collect();
    quantile(&weighted, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_of_the_weight() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(plain_quantile(&hundred, 0.99), 99.0);
        assert_eq!(plain_quantile(&hundred, 0.5), 50.0);
        assert_eq!(plain_quantile(&hundred, 1.0), 100.0);
        assert_eq!(plain_quantile(&hundred, 0.0), 1.0);
        assert_eq!(quantile(&[(10.0, 98.0), (20.0, 2.0)], 0.99), 20.0, "the last 2 % of the time");
        assert_eq!(quantile(&[(10.0, 99.0), (20.0, 1.0)], 0.99), 10.0);
        assert_eq!(quantile(&[(20.0, 1.0), (10.0, 99.0), (99.0, 0.0)], 1.0), 20.0, "what has no weight");
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
