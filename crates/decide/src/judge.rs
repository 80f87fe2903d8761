//! Judges a change of a running service by the service's metric. The change is on and off in blocks
//! of random order. A sequential test has a bounded error; a guard stops harm; a budget bounds the
//! cost of switching.
//!
//! [`conduct()`] runs a trial on any [`Service`]. The order of the blocks is drawn at random, which
//! alone makes the test exact. The service's own changes (drift, bursts, a day's load) affect on
//! and off alike, see [`Sequence`].
//!
//! Architecture invariant: no I/O, clock, randomness but from the seed, threads or global state. A
//! trial of a working service and one of a model run the same code.

mod budget;
mod conduct;
mod decision;
mod harm;
mod reading;
mod sequence;

pub use budget::Cost;
pub use conduct::{Block, Outcome, Progress, Service, Stop, Terms, conduct};
pub use decision::{Decision, Gain};
pub use harm::Harm;
pub use reading::{Better, Reading};
pub use sequence::{Interval, Sequence};
