//! Records the use of memory by the services of a host, for `megapage plan`. Takes less than a set
//! share of one processor, and does not reveal the owner of the host.
//!
//! [`megapage_plan::recording`] defines the contents; observe samples accesses and estimates costs.
//!
//! Architecture invariant: data leave the host only by the files that the user names. Without
//! `named` no name, path, argument or user is written.

#![forbid(unsafe_code)]

mod file;
mod name;
mod pace;
mod recorder;
mod sampler;

pub use file::Output;
pub use name::{KeyError, Namer};
pub use recorder::{Options, RecordError, Summary, Why, record};

/// Name and version of the JSON form of a summary.
pub const SCHEMA: &str = "megapage.record/1";
