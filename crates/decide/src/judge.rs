//! Judges a change of a running service by the service's own metric: on and off in blocks of random order, a sequential test
//! with a bounded error, a guard against harm, and a budget for what switching costs.
//!
//! [`conduct()`] runs a trial on any [`Service`]. The blocks' order is drawn, and that alone makes the test exact: whatever the
//! service does by itself (drift, bursts, a day's load) befalls on and off alike, see [`Sequence`].
//!
//! Architecture invariant: no I/O, clock, randomness but from the seed, threads or global state. A trial of a service that works
//! and one of a model run the same code.

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
