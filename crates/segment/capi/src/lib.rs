//! libmegapage_c.so: pools, segments, heaps, advice and remapping for C, as `include/megapage.h` declares them.
//!
//! A library of its own, not libmegapage.so: that one replaces malloc in whatever links to it. The header is made from
//! the files [`types`] and `entry`, whose documentation speaks to C (`cargo xtask header`).
//!
//! Architecture invariant: a handle is a number that is looked up, never a pointer that is followed, so that one that
//! is closed, synthetic or of another kind is an error. No panic unwinds into C, and no entry point touches the
//! program's signals, its standard streams or its allocator.

#![deny(unsafe_code)]

mod advice;
mod entry;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod pointers;
mod remap;
mod tables;
#[cfg(test)]
mod tests;
mod types;
mod upgrade;
mod waiting;
