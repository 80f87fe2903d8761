//! Records what the services of a host do with their memory, for `megapage plan`: at less than a set share of one
//! processor, and without saying whose host it is.
//!
//! What is recorded is [`megapage_plan::recording`]; how accesses are sampled and costs estimated is observe's.
//!
//! Architecture invariant: nothing leaves the host but by the files that the user names. Without `named` no name, path,
//! argument or user is written.

#![forbid(unsafe_code)]

mod file;
mod name;
mod pace;
mod recorder;
mod sampler;

pub use file::Output;
pub use name::{KeyError, Namer};
pub use recorder::{Options, RecordError, Summary, Why, record};
pub use sampler::Sampler;

/// The name and version of the JSON form of a summary.
pub const SCHEMA: &str = "megapage.record/1";
