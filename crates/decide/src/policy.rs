//! What a policy is, and the policies by name.

use crate::megapage::{self, Megapage};
use crate::published::freebsd::FreeBsd;
use crate::published::hawkeye::HawkEye;
use crate::published::ingens::{self, Ingens};
use crate::published::linux::{self, Linux};
use crate::{Fault, FaultSize, Outcome, Pace, Reservation, Tick, published::hawkeye};
use std::fmt::Debug;
use std::time::Duration;

/// Says which memory becomes huge. A policy does not know whether it runs in the daemon or in the simulator.
pub trait Policy: Debug + Send {
    /// The name that a user gives.
    fn name(&self) -> &'static str;

    /// Looks at the snapshot and asks for actions, by the methods of `tick`, which apply the bounds that are common to all
    /// policies. Whatever the policy keeps of processes that are not in the snapshot any longer, it
    /// drops.
    fn tick(&mut self, tick: &mut Tick<'_>);

    /// What a first touch is answered with.
    fn on_fault(&mut self, fault: &Fault) -> FaultSize;

    /// Whether it ever asks for samples of access bits. Where it does not, no samples need to be taken.
    fn samples(&self) -> bool {
        true
    }

    /// Whether it promotes nothing of a process whose translation cost is not known.
    fn needs_costs(&self) -> bool {
        false
    }

    /// Whether anonymous memory is taken from blocks that were zeroed ahead, where there are some.
    fn prefers_zeroed(&self) -> bool {
        false
    }

    /// Which reservation to break when nothing is free, as an index; `None` where the policy makes none.
    fn breaks(&self, reservations: &[Reservation]) -> Option<usize> {
        let _ = reservations;
        None
    }

    /// Learns what became of an action that was tried. What was not is in [`Tick::untried`] of the next step.
    fn note(&mut self, now: Duration, outcome: &Outcome) {
        let _ = (now, outcome);
    }

    /// How many processes and regions it tracks: a test holds that against the snapshot.
    fn tracked(&self) -> usize;

    /// Whether the last step ended at a bound of work while there was more that is worth doing soon.
    fn wants_more(&self) -> bool {
        false
    }
}

/// A policy that a user can name.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The name.
    pub name: &'static str,
    /// What it is, in one line.
    pub what: &'static str,
    make: fn(Option<Pace>) -> Box<dyn Policy>,
}

impl Known {
    /// The policy, with its parameters by default.
    pub fn make(&self) -> Box<dyn Policy> {
        (self.make)(None)
    }

    /// The same, but promoting (Linux: looking at) no more than so many regions in a round; `megapage` however soon they
    /// would pay. One that never promotes is as by default.
    pub fn make_at(&self, pace: Pace) -> Box<dyn Policy> {
        (self.make)(Some(pace))
    }

    /// Whether it reproduces a published system: all but `megapage`.
    pub fn is_published(&self) -> bool {
        self.name != OWN
    }
}

/// The name of the policy that is this project's own.
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

/// All policies and parameter sets. Parameters beyond these are given to the constructors of the modules.
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

/// What is known of the policy of this name.
pub fn known(name: &str) -> Option<&'static Known> {
    POLICIES.iter().find(|known| known.name == name)
}

/// The policy of this name.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    known(name).map(Known::make)
}
