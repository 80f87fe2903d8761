//! The trait of policies, and the policies by name.

use crate::megapage::{self, Megapage};
use crate::published::freebsd::FreeBsd;
use crate::published::hawkeye::HawkEye;
use crate::published::ingens::{self, Ingens};
use crate::published::linux::{self, Linux};
use crate::{Fault, FaultSize, Outcome, Pace, Reservation, Tick, published::hawkeye};
use std::fmt::Debug;
use std::time::Duration;

/// Decides which memory becomes huge. A policy does not know whether it runs in the daemon or in
/// the simulator.
pub trait Policy: Debug + Send {
    /// Returns the name that a user gives.
    fn name(&self) -> &'static str;

    /// Looks at the snapshot and requests actions by the methods of `tick`, which apply the bounds
    /// common to all policies. Drops its state of processes that are no longer in the snapshot.
    fn tick(&mut self, tick: &mut Tick<'_>);

    /// Returns the answer to a first touch.
    fn on_fault(&mut self, fault: &Fault) -> FaultSize;

    /// Returns true if the policy ever asks for samples of access bits. If not, no samples are
    /// needed.
    fn samples(&self) -> bool {
        true
    }

    /// Returns true if the policy never promotes a process with unknown translation cost.
    fn needs_costs(&self) -> bool {
        false
    }

    /// Returns true if anonymous memory comes from blocks zeroed ahead, as far as there are some.
    fn prefers_zeroed(&self) -> bool {
        false
    }

    /// Returns the index of the reservation to break if nothing is free; `None` if the policy
    /// breaks none.
    fn breaks(&self, reservations: &[Reservation]) -> Option<usize> {
        let _ = reservations;
        None
    }

    /// Learns the outcome of an action that was tried. [`Tick::untried`] of the next step holds
    /// those that were not.
    fn note(&mut self, now: Duration, outcome: &Outcome) {
        let _ = (now, outcome);
    }

    /// Returns the number of processes and regions it tracks. A test compares it with the snapshot.
    fn tracked(&self) -> usize;

    /// Returns true if the last step ended at a bound of work while more work was worth doing soon.
    fn wants_more(&self) -> bool {
        false
    }
}

/// A policy that a user can name.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The name.
    pub name: &'static str,
    /// Description, in one line.
    pub what: &'static str,
    make: fn(Option<Pace>) -> Box<dyn Policy>,
}

impl Known {
    /// Returns the policy with its default parameters.
    pub fn make(&self) -> Box<dyn Policy> {
        (self.make)(None)
    }

    /// Returns the policy, promoting (Linux: looking at) at most the regions of `pace` in a round.
    /// For `megapage`, the pace also bounds promotions that would pay soon. A policy that never
    /// promotes is as by default.
    pub fn make_at(&self, pace: Pace) -> Box<dyn Policy> {
        (self.make)(Some(pace))
    }

    /// Returns true if the policy reproduces a published system: all do except `megapage`.
    pub fn is_published(&self) -> bool {
        self.name != OWN
    }
}

/// Name of this project's policy.
pub const OWN: &str = "megapage";

fn linux(parameters: linux::Parameters, pace: Option<Pace>) -> Box<dyn Policy> {
    Box::new(Linux::new(pace.map_or(parameters, |pace| parameters.at(pace))))
}

fn ingens(parameters: ingens::Parameters, pace: Option<Pace>) -> Box<dyn Policy> {
    Box::new(Ingens::new(pace.map_or(parameters, |pace| parameters.at(pace))))
}

fn by_coverage(parameters: hawkeye::Parameters, pace: Option<Pace>) -> Box<dyn Policy> {
    Box::new(HawkEye::by_coverage(pace.map_or(parameters, |pace| parameters.at(pace))))
}

fn by_counters(parameters: hawkeye::Parameters, pace: Option<Pace>) -> Box<dyn Policy> {
    Box::new(HawkEye::by_cost(pace.map_or(parameters, |pace| parameters.at(pace))))
}

fn own(pace: Option<Pace>) -> Box<dyn Policy> {
    let parameters = megapage::Parameters::default();
    Box::new(Megapage::new(match pace {
        Some(pace) => megapage::Parameters { promote: pace, promote_quick: pace, ..parameters },
        None => parameters,
    }))
}

macro_rules! policies {
    ($($name:expr, $what:expr => $make:expr;)*) => { &[$(Known { name: $name, what: $what, make: $make }),*] };
}

/// All policies and parameter sets. The constructors of the modules take further parameters.
pub const POLICIES: &[Known] = policies! {
    "linux", "Linux, THP always: huge on first touch, khugepaged from low to high addresses" =>
        |pace| linux(linux::Parameters::always(), pace);
    "linux-4k", "Linux, THP never" =>
        |pace| linux(linux::Parameters::never(), pace);
    "freebsd", "FreeBSD: reserve on first touch, promote what is fully populated" =>
        |pace| Box::new(pace.map_or_else(FreeBsd::default, FreeBsd::at));
    "ingens", "Ingens as in its paper: eager below a fragmentation of 0.5, else at 90 % utilisation" =>
        |pace| ingens(ingens::Parameters::paper(), pace);
    "ingens-code", "Ingens as released: at 90 % utilisation always" =>
        |pace| ingens(ingens::Parameters::code(), pace);
    "hawkeye-g", "HawkEye-G as in its paper: the highest access coverage first, over all processes" =>
        |pace| by_coverage(hawkeye::Parameters::paper(), pace);
    "hawkeye-pmu", "HawkEye-PMU as in its paper: the highest translation cost first" =>
        |pace| by_counters(hawkeye::Parameters::paper().named("hawkeye-pmu"), pace);
    "hawkeye-4k", "HawkEye-G with base pages at faults" =>
        |pace| by_coverage(hawkeye::Parameters::paper().base_faults().named("hawkeye-4k"), pace);
    "hawkeye-code", "HawkEye-G as released: logarithmic buckets, always to the head, eager recovery" =>
        |pace| by_coverage(hawkeye::Parameters::code(), pace);
    "hawkeye-pmu-code", "HawkEye-PMU as released: the highest cost of the processes with eight regions to gain from" =>
        |pace| by_counters(hawkeye::Parameters::code().named("hawkeye-pmu-code"), pace);
    OWN, "the highest gain for each byte first, with guaranteed shares and moving watermarks" =>
        own;
};

/// Returns the entry of the policy with this name.
pub fn known(name: &str) -> Option<&'static Known> {
    POLICIES.iter().find(|known| known.name == name)
}

/// Returns the policy with this name.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    known(name).map(Known::make)
}
