//! The benefit of huge pages for a fleet. Recordings of its hosts ([`recording`]) are merged
//! ([`fleet`]), replayed under a policy ([`replay`](mod@replay)) and judged ([`plan`](fn@plan)).
//!
//! Architecture invariant: no I/O, no clock, and no chance but from the seed. The same recordings
//! give the same plan, in any order.

#![forbid(unsafe_code)]

pub mod fleet;
mod gain;
mod judge;
mod need;
mod plan;
pub mod random;
pub mod recording;
pub mod replay;
mod statistics;
#[cfg(test)]
#[path = "synthetic_tests.rs"]
mod synthetic;
pub mod translation;

pub use gain::Gain;
pub use judge::{Means, Verdict};
pub use plan::{HostPlan, Options, Plan, PlanError, ServicePlan, plan};
pub(crate) use statistics::plain_quantile;
pub use statistics::quantile;

/// Name and version of the JSON form of a plan.
pub const SCHEMA: &str = "megapage.plan/1";
