//! What switching may cost: windows are as long as keeps it small.

use std::time::Duration;

/// What one switch cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Processor time that was spent on it, on whatever processor.
    pub processor: Duration,
    /// For how long the service's memory was worked on: so long all of the service may have waited.
    pub held: Duration,
}

/// The account of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// The share of the service's processor time that may be spent.
    share: f64,
    /// Spent so far, in seconds of processor time.
    spent: f64,
    /// What a switch on, and one off, is expected to cost.
    on: f64,
    off: f64,
}

/// By how much windows are longer than the expected costs demand: these vary.
const MARGIN: f64 = 1.15;
/// Switches on and off, in pairs, that a block of two windows needs: one switch between the two, and, as a coin draws their order,
/// one more before every other block.
const PAIRS: f64 = 0.75;

impl Budget {
    /// `expected`: a switch, before the first; `spent`: so far; `cores`: how many processors the service keeps busy.
    pub fn new(share: f64, expected: Cost, spent: Cost, cores: f64) -> Budget {
        let cost = loss(expected, cores);
        Budget { share, spent: loss(spent, cores), on: cost, off: cost }
    }

    /// A switch has been made.
    pub fn note(&mut self, huge: bool, cost: Cost, cores: f64) {
        let cost = loss(cost, cores);
        self.spent += cost;
        let expected = if huge { &mut self.on } else { &mut self.off };
        // The last one counts for more than those before.
        *expected = if *expected > cost { (*expected + 3.0 * cost) / 4.0 } else { cost };
    }

    /// Whether a switch on, and the one off that it entails, stay within the budget of a service that has taken `processor` so
    /// far.
    pub fn allows(&self, processor: Duration) -> bool {
        self.spent + self.on + self.off <= self.share * processor.as_secs_f64()
    }

    /// How long a window should be, at least `least`: two of them, with what each `settles`, pay for the switches that a block
    /// needs in the mean. [`Budget::allows`] sees that it is never more.
    pub fn window(&self, least: Duration, settles: Duration, cores: f64, most: Duration) -> Duration {
        let both = MARGIN * PAIRS * (self.on + self.off) / (self.share * cores.max(1e-3));
        let needed = Duration::try_from_secs_f64(both / 2.0).unwrap_or(most).saturating_sub(settles);
        needed.max(least).min(most.max(least))
    }

    /// What was spent, in seconds of processor time.
    pub fn spent(&self) -> f64 {
        self.spent
    }
}

/// What a switch takes from a service at most: all of it for as long as its memory was worked on, and a processor for the rest of
/// the work.
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
        // 10 ms of work and waiting each way: 2 s of the service.
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
