//! The laboratory: experiments that judge megapage itself, against the kernel's own settings, other
//! programs, and its claims. No installed program is built from it.
//!
//! An experiment starts its own programs (`megapage-lab-workload`) or servers, in rounds, and
//! compares medians. The statistics and the head of a report are those of `megapage bench`.
//!
//! Architecture invariant: unsafe code is in [`machine`] alone, and is linked into no program that
//! is installed.

#![deny(unsafe_code)]

pub mod arguments;
pub mod bench;
pub mod chart;
mod child;
pub mod experiment;
pub mod fault;
pub mod fork;
pub mod install;
pub mod interference;
pub mod live;
pub mod machine;
pub mod observe;
pub mod papers;
pub mod peers;
pub mod persistent;
pub mod plan;
mod postgres;
mod redis;
pub mod simulate;
pub mod snapshot;
pub mod text;
pub mod trial;
pub mod workload;
