//! The experiments' workloads: programs with known work, each on the system allocator.
//!
//! Architecture invariant: a workload does not know which allocator it runs on. The values for how
//! its memory is backed come from the kernel, never from the allocator.

pub mod access;
pub mod answer;
pub mod blocks;
pub mod busy;
pub mod concurrent_forks;
pub mod first_touch;
pub mod fork;
pub mod idle;
pub mod index;
pub mod keep;
pub mod measurement;
pub mod pattern;
pub mod probe;
pub mod release;
pub mod requests;
pub mod retrieval;
pub mod service;
pub mod steady;
mod way;
