//! Actions on the machine or another process, each with an outcome and a dry run.

#![forbid(unsafe_code)]

pub mod demote;
mod engine;
pub mod execute;
pub mod pool;
pub mod promote;
pub mod reclaim;
mod remote;
mod reversible;
mod shared;
mod sharing;
pub mod thp;

pub use remote::{Bounds, RemoteError, lacking_right};
pub use reversible::{Movable, Reversible, Undone, movable};
