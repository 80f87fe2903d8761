//! Counts by size.

/// Numbers of values at or below each of a few bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Counts for each bound, and for values above the last; not added up.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram; `bounds` ascend.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the bounds, the last one infinite, each with the number of values between it and the
    /// one before.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_at_the_first_bound_that_holds_it() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.5, 9.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.buckets(), [(1.0, 2), (2.0, 1), (f64::INFINITY, 2)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 14.5));
    }
}
