//! Readings of a metric.

use serde::{Deserialize, Serialize};

/// Values of a metric that are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Greater values: requests for each second of processor time.
    More,
    /// Smaller values: latency.
    Less,
}

/// Current state of a metric: two growing sums. Its value between two readings is the growth of one
/// for each unit of growth of the other. Examples are requests by processor time, time in requests
/// by requests, and samples by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Requests, nanoseconds, or the sum of samples.
    pub amount: f64,
    /// Seconds, requests, or the number of samples.
    pub base: f64,
}

impl Reading {
    /// Returns the value since an earlier reading; `None` if nothing has happened, or a counter has
    /// restarted.
    pub fn since(&self, earlier: &Reading) -> Option<f64> {
        let (amount, base) = (self.amount - earlier.amount, self.base - earlier.base);
        let value = amount / base;
        (amount > 0.0 && base > 0.0 && value.is_finite()).then_some(value)
    }
}

impl Better {
    /// Returns the logarithm of a value, with a sign that makes better values greater.
    pub(crate) fn log(self, value: f64) -> f64 {
        match self {
            Better::More => value.ln(),
            Better::Less => -value.ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_has_grown_since() {
        let reading = |amount, base| Reading { amount, base };
        assert_eq!(reading(30.0, 5.0).since(&reading(10.0, 1.0)), Some(5.0));
        assert_eq!(reading(10.0, 5.0).since(&reading(10.0, 1.0)), None, "nothing was done");
        assert_eq!(reading(2.0, 5.0).since(&reading(10.0, 1.0)), None, "the service has been restarted");
        assert_eq!(reading(12.0, 1.0).since(&reading(10.0, 1.0)), None);
        assert!(Better::Less.log(2.0) < Better::Less.log(1.0) && Better::More.log(2.0) > 0.0);
    }
}
