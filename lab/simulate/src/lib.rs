//! A model machine around the same policies that the daemon runs.
//!
//! Architecture invariant: no I/O, no clock but the simulated one, and no chance but from the seed:
//! the same run twice gives the same bytes.

#![forbid(unsafe_code)]

mod compare;
pub mod curve;
pub mod hardware;
pub mod machine;
pub mod memory;
mod process;
pub mod record;
pub mod testbed;
pub mod trace;
pub mod workload;

pub use compare::{CompareError, Comparison, Scene, all_policies, compare};
pub use machine::{Machine, Point, ProcessResult, Run, Setup};
pub use megapage_plan::translation::HostPages;
pub use process::{Account, Fate};
