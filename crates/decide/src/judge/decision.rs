//! Result of a trial.

use crate::judge::sequence::Interval;
use serde::{Deserialize, Serialize};

megapage_units::named! {
    /// Decision about a change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Decision {
        /// It gains more than the least gain.
        Gains = "gains",
        /// It gains less than the least gain, and may even hurt.
        NoGain = "no gain",
        /// It makes the service worse.
        Hurts = "hurts",
        /// The trial ended before a decision.
        Undecided = "undecided",
    }
}

impl Decision {
    /// Returns the decision by `interval`, of logarithms, if a gain of `least` (0.01 for 1 %) is
    /// worth it; `None` if there is none yet.
    pub fn of(interval: &Interval, least: f64) -> Option<Decision> {
        if interval.low > least.ln_1p() {
            Some(Decision::Gains)
        } else if interval.high < 0.0 {
            Some(Decision::Hurts)
        } else {
            (interval.high < least.ln_1p()).then_some(Decision::NoGain)
        }
    }

    /// Returns true if this is certain enough for use at the next start.
    pub fn is_known(self) -> bool {
        self != Decision::Undecided
    }
}

/// Gain of a service by a change: 0.03 for 3 %. A bound is `None` as long as it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    /// Lower bound.
    pub low: Option<f64>,
    /// Likely value.
    pub likely: Option<f64>,
    /// Upper bound.
    pub high: Option<f64>,
}

impl From<Interval> for Gain {
    fn from(interval: Interval) -> Gain {
        let gain = |log: f64| Some(log.exp_m1()).filter(|gain| gain.is_finite() && log.is_finite());
        Gain { low: gain(interval.low), likely: gain(interval.likely), high: gain(interval.high) }
    }
}

impl Gain {
    /// Returns a text such as `+3.1 % (+2.0 to +4.4 %)`, without unknown bounds.
    pub fn in_words(&self) -> String {
        let percent = |gain: f64| format!("{:+.1}", 100.0 * gain);
        let Some(likely) = self.likely else { return "not measured".into() };
        let bounds = match (self.low, self.high) {
            (Some(low), Some(high)) => format!(" ({} to {} %)", percent(low), percent(high)),
            (Some(low), None) => format!(" (at least {} %)", percent(low)),
            (None, Some(high)) => format!(" (at most {} %)", percent(high)),
            (None, None) => " (no bound yet)".into(),
        };
        format!("{} %{bounds}", percent(likely))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_decide() {
        let of = |low, high| Decision::of(&Interval { low, likely: 0.0, high }, 0.01);
        assert_eq!(of(0.011, 0.5), Some(Decision::Gains));
        assert_eq!(of(0.009, 0.5), None, "it may be less than the least gain");
        assert_eq!(of(-0.5, 0.009), Some(Decision::NoGain));
        assert_eq!(of(-0.5, -0.001), Some(Decision::Hurts));
        assert_eq!(of(f64::NEG_INFINITY, f64::INFINITY), None);
    }

    #[test]
    fn gains_are_told_with_the_bounds_that_are_known() {
        let gain = Gain::from(Interval { low: 0.02, likely: 0.03, high: f64::INFINITY });
        assert_eq!(gain.in_words(), "+3.0 % (at least +2.0 %)");
        let gain = Gain { low: Some(-0.004), likely: Some(0.0), high: Some(0.0051) };
        assert_eq!(gain.in_words(), "+0.0 % (-0.4 to +0.5 %)");
        assert_eq!(Gain::default().in_words(), "not measured");
    }
}
