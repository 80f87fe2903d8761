//! Compares a command in several ways, pair by pair ([`command`]), and runs a small workload of the
//! product ([`workload::access`]), which is compared in the same way.
//!
//! The laboratory's benches use the same parts: statistics, the head of a report, measurements.
//!
//! Architecture invariant: a workload does not know which allocator it runs on. The values for how
//! its memory is backed come from the kernel, never from the allocator.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod build;
pub mod command;
pub mod fit;
pub mod head;
pub mod libraries;
pub mod save;
pub mod signals;
pub mod statistics;
pub mod workload;
