//! Workloads and the peers that they are run against.
//!
//! A workload ([`workload`]) is a program of its own, `megapage-workload`: safe Rust on the system allocator,
//! so that an allocator under test takes the place of malloc(3) as it would for any program. The runner
//! ([`run`]) starts it under each peer in turn, interleaved, and compares medians.
//!
//! Architecture invariant: a workload does not know which allocator it runs on, and the figures for how its
//! memory is backed come from the kernel, never from the allocator.

#![forbid(unsafe_code)]

mod child;
pub mod fault;
pub mod fork;
mod install;
pub mod kept;
pub mod live;
pub mod observe;
pub mod peers;
mod postgres;
mod redis;
pub mod run;
pub mod snapshot;
pub mod text;
pub mod workload;
