//! Budget of a trial for switching. Windows are long enough to keep the cost small.

use std::time::Duration;

/// Cost of one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Processor time spent on it, on any processor.
    pub processor: Duration,
    /// Time for which the service's memory was worked on. All of the service may have waited during
    /// it.
    pub held: Duration,
}

/// Account of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Share of the service's processor time that may be spent.
    share: f64,
    /// Seconds of processor time spent so far.
    spent: f64,
    /// Expected cost of a switch on, and of one off.
    on: f64,
    off: f64,
}

/// Factor by which windows are longer than the expected costs demand, as these vary.
const MARGIN: f64 = 1.15;
/// Switches on and off, in pairs, that a block of two windows needs. One switch is between the two.
/// As a coin draws their order, one more comes before every other block.
const PAIRS: f64 = 0.75;

impl Budget {
    /// Returns a budget. `expected` is the cost of a switch before the first one, and `spent` the
    /// cost so far. `cores` is the number of processors that the service keeps busy.
    pub fn new(share: f64, expected: Cost, spent: Cost, cores: f64) -> Budget {
        let cost = loss(expected, cores);
        Budget { share, spent: loss(spent, cores), on: cost, off: cost }
    }

    /// Notes a switch.
    pub fn note(&mut self, huge: bool, cost: Cost, cores: f64) {
        let cost = loss(cost, cores);
        self.spent += cost;
        let expected = if huge { &mut self.on } else { &mut self.off };
        // Gives the last cost more weight than those before.
        *expected = if *expected > cost { (*expected + 3.0 * cost) / 4.0 } else { cost };
    }

    /// Returns true if the budget allows a switch on, and the one off that it entails. `processor`
    /// is the time that the service has taken so far.
    pub fn allows(&self, processor: Duration) -> bool {
        self.spent + self.on + self.off <= self.share * processor.as_secs_f64()
    }

    /// Returns the length of a window, at least `least`. Two windows, with the time that each
    /// `settles`, pay for the mean number of switches of a block. [`Budget::allows`] keeps the cost
    /// within the budget.
    pub fn window(&self, least: Duration, settles: Duration, cores: f64, most: Duration) -> Duration {
        let both = MARGIN * PAIRS * (self.on + self.off) / (self.share * cores.max(1e-3));
        let needed = Duration::try_from_secs_f64(both / 2.0).unwrap_or(most).saturating_sub(settles);
        needed.max(least).min(most.max(least))
    }

    /// Returns the spent processor time, in seconds.
    pub fn spent(&self) -> f64 {
        self.spent
    }
}

/// Returns the most that a switch takes from a service. This is the whole service while its memory
/// was worked on, and one processor for the rest of the work.
fn loss(cost: Cost, cores: f64) -> f64 {
    let rest = cost.processor.saturating_sub(cost.held);
    cost.held.as_secs_f64() * cores.max(1.0) + rest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(milliseconds: u64) -> Cost {
        Cost { processor: Duration::from_millis(milliseconds), held: Duration::from_millis(milliseconds) }
    }

    #[test]
    fn a_switch_waits_until_the_service_has_worked_a_hundred_times_as_long() {
        let second = Duration::from_secs(1);
        let mut budget = Budget::new(0.01, cost(10), cost(0), 1.0);
        // 10 ms of work and waiting each way are paid by 2 s of the service.
        assert!(!budget.allows(second) && budget.allows(second * 3));
        budget.note(true, cost(10), 1.0);
        budget.note(false, cost(5), 1.0);
        assert!((budget.spent() - 0.015).abs() < 1e-9);
        assert!(!budget.allows(second * 3) && budget.allows(second * 4));
        // A service on four processors loses more by waiting, and has more to lose.
        let budget = Budget::new(0.01, cost(10), cost(0), 4.0);
        assert!(budget.allows(second * 9) && !budget.allows(second * 7));
    }

    #[test]
    fn windows_are_as_long_as_their_switches_cost() {
        let (second, none) = (Duration::from_secs(1), Duration::ZERO);
        let budget = Budget::new(0.01, cost(10), cost(0), 1.0);
        let window = budget.window(none, none, 1.0, second * 600).as_secs_f64();
        assert!((window - 0.8625).abs() < 1e-6, "{window}");
        let settled = budget.window(none, second / 2, 1.0, second * 600).as_secs_f64();
        assert!((settled - 0.3625).abs() < 1e-6, "{settled}");
        assert_eq!(budget.window(second * 10, none, 1.0, second * 600), second * 10);
        assert_eq!(budget.window(second, none, 0.0, second * 60), second * 60, "one that is idle");
    }
}
