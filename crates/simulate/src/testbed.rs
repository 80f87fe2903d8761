//! The policies at the pace of one testbed.
//!
//! The papers compare policies on one machine, whose thread for promotions works through memory at one pace. The
//! kernel's default, 8 regions every 10 s, would take an hour and a half for 40 GB; the papers' values (about 1000 s
//! for a scan of a Graph500) report on a faster one, that they do not give.

use megapage_decide::hawkeye::{self};
use megapage_decide::hawkeye_g::HawkEyeG;
use megapage_decide::hawkeye_pmu::HawkEyePmu;
use megapage_decide::ingens::{self, Ingens};
use megapage_decide::linux::{self, Linux};
use megapage_decide::megapage::{self, Megapage};
use megapage_decide::{Limits, Pace, Policy, by_name};
use megapage_units::Bytes;
use std::time::Duration;

/// Regions that a policy may promote (Linux: look at) in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(pub f64);

impl Speed {
    /// The kernel's and the policies' own: 4096 pages every 10 s.
    pub const DEFAULT: Speed = Speed(0.8);
    /// The papers' testbed: fitted on the time that Linux takes for Graph500.
    pub const TESTBED: Speed = Speed(8.0);
    /// The bounds of what may be asked for: one region an hour, and more than memory could be copied.
    pub const RANGE: std::ops::RangeInclusive<f64> = 1.0 / 3600.0..=10_000.0;

    /// Eight units of work at a time, as the kernel does.
    fn of(self, unit: u64) -> Pace {
        Pace { work: 8 * unit, every: Duration::from_secs_f64(8.0 / self.0) }
    }
}

/// The policy of this name (see [`megapage_decide::POLICIES`]), promoting at this speed; `None` where there is none.
pub fn policy(name: &str, speed: Speed) -> Option<Box<dyn Policy>> {
    let hawkeye =
        |parameters: hawkeye::Parameters| hawkeye::Parameters { promote: speed.of(1), ..parameters };
    Some(match name {
        "linux" => {
            Box::new(Linux::new(linux::Parameters { scan: speed.of(512), ..linux::Parameters::always() }))
        }
        "ingens" => Box::new(Ingens::new(ingens::Parameters {
            promote: speed.of(512),
            ..ingens::Parameters::paper()
        })),
        "ingens-code" => {
            Box::new(Ingens::new(ingens::Parameters { promote: speed.of(512), ..ingens::Parameters::code() }))
        }
        "hawkeye-g" => Box::new(HawkEyeG::new(hawkeye(hawkeye::Parameters::paper()))),
        "hawkeye-4k" => {
            Box::new(HawkEyeG::new(hawkeye(hawkeye::Parameters::paper().base_faults().named("hawkeye-4k"))))
        }
        "hawkeye-code" => Box::new(HawkEyeG::new(hawkeye(hawkeye::Parameters::code()))),
        "hawkeye-pmu" => {
            Box::new(HawkEyePmu::new(hawkeye(hawkeye::Parameters::paper().named("hawkeye-pmu"))))
        }
        "hawkeye-pmu-code" => {
            Box::new(HawkEyePmu::new(hawkeye(hawkeye::Parameters::code().named("hawkeye-pmu-code"))))
        }
        // The same pace for it, however quickly a promotion would pay.
        "megapage" => Box::new(Megapage::new(megapage::Parameters {
            promote: speed.of(1),
            promote_quick: speed.of(1),
            ..megapage::Parameters::default()
        })),
        _ => by_name(name)?,
    })
}

/// Bounds on each step of the policy of this name. FreeBSD has no pace of its own, since it never copies; where regions
/// were not reserved it has to, here, and then it is held to the same pace as the others.
pub fn limits(name: &str, speed: Speed, step: f64, limits: Limits) -> Limits {
    if name != "freebsd" {
        return limits;
    }
    let regions = (speed.0 * step).max(1.0) as u64;
    Limits { moved: Bytes(regions << 21).min(limits.moved), ..limits }
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
        assert!(policy("magic", Speed::DEFAULT).is_none());
    }
}
