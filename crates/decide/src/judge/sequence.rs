//! An interval that holds at every moment, so that one may look after each block and stop.
//!
//! A block compares one window with the change and one without, in an order that a fair coin draws.
//! Suppose that the change has no effect. Exchanging the two windows would then give the same
//! difference with the other sign. For any changes of the service by itself, a block's difference
//! is as likely to be +d as -d, given all blocks before. If the change adds an effect to the
//! logarithm, this holds for the difference less the effect. Nothing else is assumed: neither
//! independent windows, nor a distribution of their noise.
//!
//! Take a supposed effect m, and any L > 0. A gambler in a fair game bets that the effect is
//! greater. The wealth is then the product over the blocks of `1 + tanh(L (y - m))`. The game is
//! fair because tanh is odd, and the factors' mean is 1. By Ville's inequality the wealth ever
//! reaches 2 / error in at most error / 2 of all trials. Each m for which it has been reached is
//! excluded. The opposite bet excludes effects from the other side in the same way.
//!
//! A block pays at most 2, so that an outlier counts as one block. L is the scale of the noise; a
//! mean over a fixed set of scales is fair as well. See Howard et al., "Time-uniform,
//! nonparametric, nonasymptotic confidence sequences" (2021), and de la Pena (1999) on sums of
//! symmetric terms.

/// Number of noise scales bet on, the finest last: a standard deviation of 50 % down to 0.02 % of a
/// value.
const SCALES: i32 = 12;
const COARSEST: f64 = 2.0;
/// Largest difference of logarithms: no service changes by more than e^20.
const MOST: f64 = 20.0;
/// Halvings of an interval of 80, down to 1e-7.
const HALVINGS: u32 = 30;

/// Bounds of an effect, as logarithms. A bound is infinite as long as it is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Likely value: the bets on either side have equal wealth there. Not a number before the first
    /// block.
    pub likely: f64,
    /// Upper bound.
    pub high: f64,
}

/// Differences of the blocks so far, and the resulting interval.
#[derive(Clone, Debug)]
pub struct Sequence {
    threshold: f64,
    values: Vec<f64>,
    interval: Interval,
}

impl Sequence {
    /// Returns a sequence that excludes the true effect with a chance of at most `error` (above 0,
    /// below 1), at any number of looks. Each side has half of it.
    pub fn new(error: f64) -> Sequence {
        let interval = Interval { low: f64::NEG_INFINITY, likely: f64::NAN, high: f64::INFINITY };
        Sequence { threshold: (2.0 / error).ln(), values: Vec::new(), interval }
    }

    /// Adds a block's difference of logarithms. Skips a value that is not finite.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.values.push(value.clamp(-MOST, MOST));
        let Interval { low, high, .. } = self.interval;
        let (now_low, now_high) = (self.bound(1.0), self.bound(-1.0));
        let likely = halve(|at| self.wealth(at, 1.0) - self.wealth(at, -1.0));
        // Each interval held at its moment, so all hold together. If they have no common part, the
        // latest one counts.
        let (all_low, all_high) = (low.max(now_low), high.min(now_high));
        let (low, high) = if all_low <= all_high { (all_low, all_high) } else { (now_low, now_high) };
        self.interval = Interval { low, likely: likely.clamp(low, high), high };
    }

    /// Returns the number of differences.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true if there is no difference yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the current interval.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Returns the bound on the side of `sign`, up to which effects are excluded.
    fn bound(&self, sign: f64) -> f64 {
        // No bound is known as long as even the farthest effect is not excluded.
        if self.wealth(-2.0 * MOST * sign, sign) < self.threshold {
            return -sign * f64::INFINITY;
        }
        sign * halve(|at| self.wealth(sign * at, sign) - self.threshold)
    }

    /// Returns the logarithm of the wealth of a gambler who bets that the effect is greater than
    /// `at` (`sign` 1), or less (-1).
    fn wealth(&self, at: f64, sign: f64) -> f64 {
        let of_scale = |scale: i32| -> f64 {
            let factor = sign * COARSEST * 2f64.powi(scale);
            self.values.iter().map(|value| log_bet(factor * (value - at))).sum()
        };
        let all: Vec<f64> = (0..SCALES).map(of_scale).collect();
        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.iter().map(|one| (one - most).exp()).sum();
        most + (sum / f64::from(SCALES)).ln()
    }
}

/// Returns ln(1 + tanh x), without loss if x is far below zero: ln 2 - ln(1 + e^(-2x)).
fn log_bet(x: f64) -> f64 {
    let y = -2.0 * x;
    std::f64::consts::LN_2 - if y > 30.0 { y } else { y.exp().ln_1p() }
}

/// Returns the zero of a falling function.
fn halve(falling: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-2.0 * MOST, 2.0 * MOST);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if falling(middle) > 0.0 { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::conduct::tests::Random;

    #[test]
    fn clear_blocks_bound_the_effect_from_eight_on() {
        let mut sequence = Sequence::new(0.05);
        assert!(sequence.is_empty() && sequence.interval().likely.is_nan());
        for block in 0..12 {
            sequence.add(0.10 + if block % 2 == 0 { 0.001 } else { -0.001 });
            let Interval { low, likely, high } = sequence.interval();
            assert!((likely - 0.10).abs() < 0.0015, "{block} {likely}");
            if block + 1 < 6 {
                // Five heads in a row have a chance of 1/32, which is more than 0.025.
                assert!(low.is_infinite() && high.is_infinite(), "{block}");
            }
        }
        let Interval { low, high, .. } = sequence.interval();
        assert!(low > 0.09 && high < 0.11, "{low} {high}");
    }

    #[test]
    fn the_true_effect_is_excluded_no_more_often_than_promised_however_often_one_looks() {
        let mut random = Random::new(7);
        // Normal, Cauchy, and noise whose scale changes a thousandfold between blocks.
        for kind in 0..3 {
            let mut excluded = 0;
            for _ in 0..400 {
                let mut sequence = Sequence::new(0.05);
                // The interval excludes the values that the bets on either side exclude.
                let ever = (0..60).any(|block| {
                    let noise = match kind {
                        0 => 0.01 * random.normal(),
                        1 => 0.01 * random.normal() / random.normal(),
                        _ => 0.01 * random.normal() * 10f64.powi(block % 4),
                    };
                    sequence.values.push(0.02 + noise);
                    [1.0, -1.0].iter().any(|side| sequence.wealth(0.02, *side) >= sequence.threshold)
                });
                excluded += u32::from(ever);
            }
            // At most 20 are expected; three standard deviations more are left to chance.
            assert!(excluded <= 20 + 13, "kind {kind}: {excluded} of 400");
        }
    }

    #[test]
    fn an_outlier_counts_as_one_block() {
        let mut random = Random::new(3);
        let mut sequence = Sequence::new(0.05);
        for block in 0..40 {
            let noise = 0.004 * random.normal();
            sequence.add(if block % 10 == 9 { -15.0 } else { 0.05 + noise });
        }
        let Interval { low, likely, high } = sequence.interval();
        assert!((likely - 0.05).abs() < 0.006 && low > 0.03 && high < 0.07, "{low} {likely} {high}");
        sequence.add(f64::NAN);
        assert_eq!(sequence.len(), 40);
    }

    #[test]
    fn a_bet_far_off_loses_and_does_not_overflow() {
        assert!((log_bet(0.0)).abs() < 1e-12);
        assert!((log_bet(50.0) - std::f64::consts::LN_2).abs() < 1e-12);
        assert!((log_bet(-1000.0) - (std::f64::consts::LN_2 - 2000.0)).abs() < 1e-9);
    }
}
