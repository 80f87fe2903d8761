//! Watermarks of short memory. They move with the pressure; those of HawkEye are fixed at 85 and 70
//! %.

use megapage_snapshot::Machine;
use std::time::Duration;

/// Part of a growth that remains after a second without one.
const KEPT: f64 = 0.8;

/// Constants of the watermarks. Shares of memory, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Highest value of the high watermark, if the kernel measures memory pressure. It applies at
    /// zero pressure.
    pub calm: f64,
    /// Highest value of the high watermark, if no source measures memory pressure.
    pub blind: f64,
    /// Lowest value of the high watermark.
    pub least: f64,
    /// Distance of the low watermark below the high one.
    pub gap: f64,
    /// Lead that recovery needs before memory is full, at the present rate of growth.
    pub lead: Duration,
    /// Factor by which the share of time in which some task waits for memory lowers the high
    /// watermark. With 2, 5 % of waiting lower it by 0.1.
    pub stall: f64,
}

/// The current watermarks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    constants: Constants,
    high: f64,
    /// Low watermark without regard to the growth.
    low_standing: f64,
    in_use: Option<f64>,
    /// Growth of the share in use, a second.
    growth: f64,
    short: bool,
    /// True if the share in use has reached the high watermark without regard to growth, since
    /// memory became short.
    reached: bool,
}

impl Watermarks {
    pub fn new(constants: Constants) -> Watermarks {
        let high = constants.blind;
        let low_standing = high - constants.gap;
        Watermarks { constants, high, low_standing, in_use: None, growth: 0.0, short: false, reached: false }
    }

    /// Takes in the state of the machine.
    pub fn observe(&mut self, machine: &Machine, in_use: f64, elapsed: Duration) {
        let (most, stalled) = match machine.pressure {
            Some(pressure) => (self.constants.calm, (pressure.some_10s / 100.0).clamp(0.0, 1.0)),
            None => (self.constants.blind, 0.0),
        };
        self.observe_share(in_use, most, stalled, elapsed);
    }

    /// Takes in the share in use. The high watermark is `most`, less the parts for growth and for
    /// stalled time.
    pub fn observe_share(&mut self, in_use: f64, most: f64, stalled: f64, elapsed: Duration) {
        if let Some(before) = self.in_use.filter(|_| elapsed > Duration::ZERO) {
            let growth = ((in_use - before) / elapsed.as_secs_f64()).max(0.0);
            // Follows a faster growth at once, and a slower one gradually. The decay is by time,
            // since passes come faster while memory is recovered.
            self.growth = growth.max(KEPT.powf(elapsed.as_secs_f64()) * self.growth);
        }
        self.in_use = Some(in_use);
        let ahead = self.growth * self.constants.lead.as_secs_f64();
        let mark =
            |ahead: f64| (most - ahead - self.constants.stall * stalled).min(most).max(self.constants.least);
        self.high = mark(ahead);
        self.low_standing = mark(0.0) - self.constants.gap;
        if in_use >= self.high {
            self.short = true;
            self.reached |= in_use >= mark(0.0);
        } else if in_use <= self.low() || !self.reached {
            // An expected shortage ends with the growth: a share below the watermark may stay there
            // permanently.
            (self.short, self.reached) = (false, false);
        }
    }

    /// Returns true if memory is short: from the high watermark on, down to the low one. An
    /// expected shortage ends as soon as it is no longer expected.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Returns true if memory is short now, and not only expected to be.
    pub fn has_been_reached(&self) -> bool {
        self.short && self.reached
    }

    /// Returns the low watermark. Promotions never raise the share in use above it.
    pub fn low(&self) -> f64 {
        self.high - self.constants.gap
    }

    /// Returns the nearness to short memory: 0 up to half of the low watermark, 1 from the low
    /// watermark on.
    pub fn nearness(&self, in_use: f64) -> f64 {
        nearness(self.low(), in_use)
    }

    /// Returns the nearness for a fault, to the low watermark without regard to growth. Recovery
    /// needs a lead and looks ahead. A fault needs none: the memory of that moment answers it.
    pub fn nearness_at_fault(&self, in_use: f64) -> f64 {
        nearness(self.low_standing, in_use)
    }

    /// Returns the growth of the share of memory in use, a second.
    pub fn growth(&self) -> f64 {
        self.growth
    }
}

/// Returns 0 up to half of `low`, 1 from `low` on, and linear values between.
fn nearness(low: f64, in_use: f64) -> f64 {
    let from = low / 2.0;
    if low <= 0.0 { 1.0 } else { ((in_use - from) / (low - from)).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::*;
    use megapage_snapshot::Pressure;

    const CONSTANTS: Constants =
        Constants { calm: 0.9, blind: 0.85, least: 0.5, gap: 0.1, lead: Duration::from_secs(20), stall: 2.0 };

    fn observed(uses: &[f64], some_10s: Option<f64>) -> Watermarks {
        let mut watermarks = Watermarks::new(CONSTANTS);
        for in_use in uses {
            let mut machine = snapshot(SECOND, *in_use, Vec::new()).machine;
            machine.pressure = some_10s.map(|some_10s| Pressure { some_10s, ..Pressure::default() });
            watermarks.observe(&machine, *in_use, SECOND);
        }
        watermarks
    }

    #[test]
    fn the_marks_follow_pressure_and_growth() {
        assert!((observed(&[0.6], None).low() - 0.75).abs() < 1e-9);
        assert!((observed(&[0.6], Some(0.0)).low() - 0.8).abs() < 1e-9);
        assert!((observed(&[0.6], Some(5.0)).low() - 0.7).abs() < 1e-9);
        assert!((observed(&[0.6], Some(90.0)).low() - 0.4).abs() < 1e-9);
        // 1 % a second fills 20 % in the time that recovery needs.
        assert!((observed(&[0.3, 0.31], None).low() - 0.55).abs() < 1e-9);
    }

    #[test]
    fn short_from_the_high_mark_to_the_low_one() {
        assert!(!observed(&[0.84], None).is_short());
        assert!(observed(&[0.86], None).is_short());
        assert!(observed(&[0.86, 0.80], None).is_short());
        assert!(!observed(&[0.86, 0.74], None).is_short());
        assert!(!observed(&[0.86, 0.74, 0.74], None).is_short());
    }

    #[test]
    fn what_was_only_expected_is_over_with_the_growth() {
        // 20 % a second would fill everything in the time that recovery needs.
        let filling = observed(&[0.4, 0.6, 0.8], None);
        assert!(filling.is_short() && !filling.has_been_reached());
        let still = |seconds: usize| observed(&[&[0.4, 0.6, 0.8][..], &vec![0.8; seconds]].concat(), None);
        assert!(still(5).is_short(), "growth is forgotten slowly");
        assert!(!still(30).is_short());
        // Once the watermark without growth was reached, only the low one ends it.
        let full: Vec<f64> = [0.4, 0.6, 0.86].into_iter().chain([0.8; 30]).collect();
        assert!(observed(&full, None).is_short() && observed(&full, None).has_been_reached());
        assert!(!observed(&[&full[..], &[0.7]].concat(), None).has_been_reached());
    }

    #[test]
    fn what_is_expected_lasts_as_long_however_often_it_is_looked() {
        // 10 % a second up to 0.8, then `looks` observations without growth.
        let after = |looks: u32, every: Duration| {
            let mut watermarks = Watermarks::new(CONSTANTS);
            for in_use in [0.6, 0.7, 0.8] {
                watermarks.observe_share(in_use, 0.85, 0.0, SECOND);
            }
            (0..looks).for_each(|_| watermarks.observe_share(0.8, 0.85, 0.0, every));
            watermarks
        };
        let tenth = Duration::from_millis(100);
        assert!((after(5, SECOND).growth() - after(50, tenth).growth()).abs() < 1e-9);
        assert!(after(10, SECOND).is_short() && after(100, tenth).is_short());
        assert!(!after(20, SECOND).is_short() && !after(200, tenth).is_short());
    }

    #[test]
    fn nearness_runs_from_half_the_low_mark_to_the_mark() {
        let watermarks = observed(&[0.1], None);
        assert_eq!(watermarks.nearness(0.3), 0.0);
        assert_eq!(watermarks.nearness(0.75), 1.0);
        assert!((watermarks.nearness(0.5625) - 0.5).abs() < 1e-9);
    }
    #[test]
    fn a_fault_looks_at_memory_as_it_is_and_not_ahead() {
        let filling = observed(&[0.3, 0.35], None);
        assert_eq!(filling.nearness(0.45), 1.0);
        assert!((filling.nearness_at_fault(0.45) - 0.2).abs() < 1e-9);
        // Pressure counts for both.
        assert_eq!(observed(&[0.3, 0.35], Some(90.0)).nearness_at_fault(0.45), 1.0);
    }
}
