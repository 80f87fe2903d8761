//! Compares a command in several ways, pair by pair ([`command`]).
//!
//! The laboratory's benches use the same parts: statistics, the head of a report.

#![forbid(unsafe_code)]

pub mod build;
pub mod command;
pub mod head;
pub mod libraries;
pub mod random;
pub mod save;
pub mod signals;
pub mod statistics;
