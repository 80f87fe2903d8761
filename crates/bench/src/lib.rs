//! Workloads, and the ways to run a program that they are compared under.
//!
//! A workload ([`workload`]) is a program of its own, `megapage-workload`: safe Rust on the system allocator,
//! so that an allocator under test takes the place of malloc(3) as it would for any program. The runner
//! ([`run`]) starts it under each peer in turn, interleaved, and compares medians. A command of the user's own is run in a few
//! ways, and compared pair by pair ([`command`]).
//!
//! Architecture invariant: a workload does not know which allocator it runs on, and the values for how its
//! memory is backed come from the kernel, never from the allocator.

#![forbid(unsafe_code)]

pub mod answer;
pub mod arguments;
pub mod command;
pub mod peers;
pub mod run;
pub mod save;
pub mod signals;
pub mod workload;
