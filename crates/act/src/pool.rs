//! Sizing the hugetlb pools as one transaction: weigh, write, read back, work on a shortfall, explain it, and put
//! everything back where that was asked for.
//!
//! [`plan`] decides and refuses; [`Plan::apply`] writes; [`Plan::dry_run`] only says what would be written.

mod addition;
mod apply;
mod debt;
mod error;
pub mod persist;
mod plan;
mod shortfall;
mod spec;

pub use addition::{Addition, AdditionError};
pub use apply::{Outcome, StepOutcome, title};
pub use debt::Debt;
pub use error::PoolError;
pub use plan::{MemoryImpact, Plan, Request, Step, floor, plan};
pub use shortfall::{Cause, Evidence, Missing, Shortfall};
pub use spec::{Amount, Quantity, SizeName, Spec, SpecError};
