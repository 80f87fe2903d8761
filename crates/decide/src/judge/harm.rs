//! The guard against harm: it stops within a window, without waiting for blocks.

use serde::Serialize;
use std::collections::VecDeque;

/// Slices of windows without the change that are remembered.
const REMEMBERED: usize = 64;
/// So many are needed before anything can be far worse than they are.
const LEAST: usize = 8;
/// Far worse: by more than a tenth,
const LEAST_DROP: f64 = 0.105;
/// and by more than so many standard deviations, as the median deviation of the slices tells them.
const DEVIATIONS: f64 = 6.0;
/// Of normal values the standard deviation is so many median deviations.
const MEDIAN_DEVIATION: f64 = 1.4826;
/// Slices in a row that are far worse: one may be a pause of the service's own.
const IN_A_ROW: u32 = 3;

/// That a trial was stopped because the service had become far worse, and better again without the change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// By how much it was worse, as a share: 0.3 where 70 % was left.
    pub drop: f64,
    /// After how many seconds of the window it was stopped.
    pub after_seconds: f64,
}

/// What slices without the change look like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    off: VecDeque<f64>,
    in_a_row: u32,
}

impl Guard {
    /// A slice without the change: the logarithm of its value.
    pub fn note(&mut self, log: f64) {
        self.in_a_row = 0;
        if self.off.len() == REMEMBERED {
            self.off.pop_front();
        }
        self.off.push_back(log);
    }

    /// Whether enough is known.
    pub fn is_ready(&self) -> bool {
        self.off.len() >= LEAST
    }

    /// A slice with the change; whether it and those before it are far worse than what was seen without.
    pub fn is_harmed(&mut self, log: f64) -> bool {
        let is_far = self.bound().is_some_and(|bound| log < bound);
        self.in_a_row = if is_far { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= IN_A_ROW
    }

    /// A new window begins.
    pub fn begin(&mut self) {
        self.in_a_row = 0;
    }

    /// Below this a slice is far worse, and worse than any that was seen.
    pub fn bound(&self) -> Option<f64> {
        let median = self.median()?;
        let mut deviations: Vec<f64> = self.off.iter().map(|log| (log - median).abs()).collect();
        let deviation = middle(&mut deviations) * MEDIAN_DEVIATION;
        let least = self.off.iter().copied().fold(f64::INFINITY, f64::min);
        Some((median - LEAST_DROP.max(DEVIATIONS * deviation)).min(least))
    }

    /// The usual value; `None` where too little is known.
    pub fn median(&self) -> Option<f64> {
        self.is_ready().then(|| middle(&mut self.off.iter().copied().collect::<Vec<_>>()))
    }

    /// The service has changed by itself: what was seen before says nothing any more.
    pub fn forget(&mut self) {
        *self = Guard::default();
    }
}

/// The median of values, of which there is at least one.
pub(crate) fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        let mut guard = Guard::default();
        (0..16).for_each(|slice| guard.note(5.0 + 0.01 * f64::from(slice % 4)));
        guard
    }

    #[test]
    fn three_slices_in_a_row_far_below_are_harm() {
        let mut guard = guard();
        assert!(!guard.is_harmed(4.5) && !guard.is_harmed(4.5));
        assert!(!guard.is_harmed(4.99), "it was a pause");
        assert!(!guard.is_harmed(4.5) && !guard.is_harmed(4.5) && guard.is_harmed(4.5));
    }

    #[test]
    fn a_tenth_less_is_not_far_and_neither_is_what_was_seen_before() {
        let mut calm = guard();
        assert!((0..9).all(|_| !calm.is_harmed(4.95)), "5 % less");
        let mut wild = guard();
        wild.note(4.0);
        assert!((0..9).all(|_| !wild.is_harmed(4.2)));
        assert!(!Guard::default().is_harmed(-9.0), "nothing is known yet");
    }
}
