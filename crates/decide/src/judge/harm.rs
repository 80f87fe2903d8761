//! Guard against harm: it stops within a window, without waiting for blocks.

use serde::Serialize;
use std::collections::VecDeque;

/// Maximum of remembered slices of windows without the change.
const REMEMBERED: usize = 64;
/// Least number of such slices before the guard compares.
const LEAST: usize = 8;
/// A slice is far worse if it is lower by more than a tenth,
const LEAST_DROP: f64 = 0.105;
/// and by more than this number of standard deviations, estimated by the median deviation of the
/// slices.
const DEVIATIONS: f64 = 6.0;
/// Standard deviation of normal values, in median deviations.
const MEDIAN_DEVIATION: f64 = 1.4826;
/// Slices in a row that must be far worse: one may be a pause of the service.
const IN_A_ROW: u32 = 3;

/// Stop of a trial because the service became far worse, and better again without the change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// Loss, as a share: 0.3 if 70 % was left.
    pub drop: f64,
    /// Seconds of the window before the stop.
    pub after_seconds: f64,
}

/// Knowledge about slices without the change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    off: VecDeque<f64>,
    in_a_row: u32,
}

impl Guard {
    /// Notes a slice without the change: the logarithm of its value.
    pub fn note(&mut self, log: f64) {
        self.in_a_row = 0;
        if self.off.len() == REMEMBERED {
            self.off.pop_front();
        }
        self.off.push_back(log);
    }

    /// Returns true if there are enough slices.
    pub fn is_ready(&self) -> bool {
        self.off.len() >= LEAST
    }

    /// Notes a slice with the change. Returns true if it and those before it are far worse than
    /// those without the change.
    pub fn is_harmed(&mut self, log: f64) -> bool {
        let is_far = self.bound().is_some_and(|bound| log < bound);
        self.in_a_row = if is_far { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= IN_A_ROW
    }

    /// Begins a new window.
    pub fn begin(&mut self) {
        self.in_a_row = 0;
    }

    /// Returns the bound below which a slice is far worse, and worse than any slice without the
    /// change.
    pub fn bound(&self) -> Option<f64> {
        let median = self.median()?;
        let mut deviations: Vec<f64> = self.off.iter().map(|log| (log - median).abs()).collect();
        let deviation = middle(&mut deviations) * MEDIAN_DEVIATION;
        let least = self.off.iter().copied().fold(f64::INFINITY, f64::min);
        Some((median - LEAST_DROP.max(DEVIATIONS * deviation)).min(least))
    }

    /// Returns the usual value; `None` if there are too few slices.
    pub fn median(&self) -> Option<f64> {
        self.is_ready().then(|| middle(&mut self.off.iter().copied().collect::<Vec<_>>()))
    }

    /// Forgets all slices, as the service has changed by itself.
    pub fn forget(&mut self) {
        *self = Guard::default();
    }
}

/// Returns the median of values, of which there is at least one.
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
