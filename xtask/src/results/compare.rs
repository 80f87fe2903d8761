//! Comparisons of one value of megapage's with one of another's, and their outcome.

use megapage_bench::statistics::Spread;
use serde_json::Value;

/// Limits of the noise: a smaller difference always counts as equal, and a larger one never does,
/// for any spread of the runs.
const LEAST_NOISE: f64 = 0.02;
const MOST_NOISE: f64 = 0.10;

/// Reads an object with `median`, `min` and `max`, or a number, which has no ends.
pub(super) fn spread_of(value: &Value) -> Option<Spread> {
    if let Some(number) = value.as_f64() {
        return Spread::of([number]);
    }
    let number = |name: &str| value.get(name).and_then(Value::as_f64);
    Some(Spread { median: number("median")?, min: number("min")?, max: number("max")? })
}

/// Returns the inverse: for a quantity of which more is better, less of the inverse is.
pub(super) fn inverse(of: Spread) -> Spread {
    Spread { median: 1.0 / of.median, min: 1.0 / of.max, max: 1.0 / of.min }
}

/// Standing of megapage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Leads,
    Level,
    Loses,
}

/// Comparison of two values of which less is better.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// The quantity.
    pub what: String,
    /// The name of the other.
    pub against: String,
    pub ours: Spread,
    pub theirs: Spread,
}

impl Comparison {
    /// Returns level within the noise that the runs themselves show: half the distance of the ends
    /// of the noisier side, as in the benches' gates.
    pub(super) fn standing(&self) -> Standing {
        let noise = self.ours.noise().max(self.theirs.noise()).clamp(LEAST_NOISE, MOST_NOISE);
        match self.ratio() {
            ratio if ratio > 1.0 + noise => Standing::Loses,
            ratio if ratio < 1.0 / (1.0 + noise) => Standing::Leads,
            _ => Standing::Level,
        }
    }

    fn ratio(&self) -> f64 {
        self.ours.median / self.theirs.median
    }

    /// Describes it in words: a share of the other's, or a factor if the share is very small or
    /// large.
    pub(super) fn text(&self) -> String {
        let Comparison { what, against, .. } = self;
        match self.ratio() {
            ratio if ratio < 0.05 => format!("{what} 1/{:.0} of {against}", 1.0 / ratio),
            ratio if ratio >= 20.0 => format!("{what} {ratio:.0} times {against}"),
            ratio => format!("{what} {ratio:.2} of {against}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn standing(ours: f64, theirs: f64, noise: f64) -> Standing {
        let spread =
            |median: f64| Spread { median, min: median * (1.0 - noise), max: median * (1.0 + noise) };
        let of =
            Comparison { what: "x".into(), against: "y".into(), ours: spread(ours), theirs: spread(theirs) };
        of.standing()
    }

    #[test]
    fn noise_decides_what_is_level() {
        assert_eq!(standing(1.05, 1.0, 0.01), Standing::Loses);
        assert_eq!(standing(1.05, 1.0, 0.06), Standing::Level);
        assert_eq!(standing(1.0, 1.05, 0.01), Standing::Leads);
        assert_eq!(standing(1.015, 1.0, 0.0), Standing::Level);
        assert_eq!(standing(1.12, 1.0, 0.9), Standing::Loses, "noise without bound excuses nothing");
    }

    #[test]
    fn values_are_read_as_reports_write_them() {
        let spread = spread_of(&json!({ "median": 2.0, "min": 1.0, "max": 4.0 })).unwrap();
        assert_eq!((spread.median, inverse(spread).median, inverse(spread).max), (2.0, 0.5, 1.0));
        assert!(spread_of(&json!(null)).is_none() && spread_of(&json!({ "median": 1.0 })).is_none());
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert!(Spread::of([]).is_none());
        let of = |ours: f64| Comparison {
            what: "start".into(),
            against: "dpdk".into(),
            ours: Spread::of([ours]).unwrap(),
            theirs: Spread::of([100.0]).unwrap(),
        };
        assert_eq!(of(1.0).text(), "start 1/100 of dpdk");
        assert_eq!(of(75.0).text(), "start 0.75 of dpdk");
        assert_eq!(of(2500.0).text(), "start 25 times dpdk");
    }
}
