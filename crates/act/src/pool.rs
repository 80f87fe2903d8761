//! Sizing of the hugetlb pools as one transaction: it weighs, writes, reads back, works on a
//! shortfall and explains it. It restores the former values if that was asked for.
//!
//! [`plan()`] decides and refuses; [`Plan::apply`] writes; [`Plan::dry_run`] only says what would
//! be written.

mod addition;
mod apply;
mod error;
mod impact;
mod loan;
mod outcome;
pub mod persist;
mod plan;
mod shortfall;
mod spec;

pub use addition::{Addition, AdditionError};
pub use apply::Outcome;
pub use error::PoolError;
pub use impact::MemoryImpact;
pub use loan::Loan;
pub use outcome::{StepOutcome, title};
pub use plan::{Plan, Request, Step, floor, plan};
pub use shortfall::{Cause, Evidence, Missing, Shortfall};
pub use spec::{Amount, Quantity, SizeName, Spec, SpecError};
