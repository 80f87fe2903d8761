//! The policies at the pace of one testbed.
//!
//! The papers compare policies on one machine, whose thread for promotions works through memory at
//! one pace: see [`Pace::PAPERS`]. The kernel's default, 8 regions every 10 s, would take an hour
//! and a half for 40 GB.

use megapage_decide::{Pace, Policy, known};
use std::time::Duration;

/// Regions that a policy may promote (Linux: scan) in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(pub f64);

impl Speed {
    /// The papers' testbed: [`Pace::PAPERS`].
    pub const TESTBED: Speed = Speed(8.0);
    /// Limits of a speed: one region an hour, and more memory than could be copied.
    pub const RANGE: std::ops::RangeInclusive<f64> = 1.0 / 3600.0..=10_000.0;

    /// Returns a pace of eight regions at a time, as the kernel's.
    pub fn pace(self) -> Pace {
        Pace { work: 8, every: Duration::from_secs_f64(8.0 / self.0) }
    }
}

/// Returns the policy of this name (see [`megapage_decide::POLICIES`]), promoting at this speed;
/// `None` if there is none.
pub fn policy(name: &str, speed: Speed) -> Option<Box<dyn Policy>> {
    known(name).map(|known| known.make_at(speed.pace()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::POLICIES;

    #[test]
    fn every_policy_is_there_under_its_own_name() {
        for known in POLICIES {
            assert_eq!(policy(known.name, Speed::TESTBED).unwrap().name(), known.name);
        }
        assert!(policy("magic", Speed::TESTBED).is_none());
    }

    #[test]
    fn the_testbed_is_as_fast_as_the_papers() {
        assert_eq!(Speed::TESTBED.pace(), Pace::PAPERS);
    }
}
