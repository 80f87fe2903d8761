//! libmegapage_c.so: pools, segments, heaps, advice and remapping for C, as `include/megapage.h`
//! declares them.
//!
//! It is separate from libmegapage.so, which replaces malloc in every program that links to it. The
//! header is made from the files [`types`] and `entry`, whose documentation addresses C programmers
//! (`cargo xtask header`).
//!
//! Architecture invariant: a handle is a number that is looked up, never a pointer that is
//! followed. A handle that is closed, invented or of another kind is therefore an error. No panic
//! unwinds into C. No entry point touches the program's signals, its standard streams or its
//! allocator.

#![deny(unsafe_code)]

mod advice;
// Public for the fuzz targets alone. Whatever their Rust types say, these functions have the
// obligations of `include/megapage.h`: they follow each pointer that is not null and is aligned.
#[doc(hidden)]
pub mod entry;
#[doc(hidden)]
pub mod failure;
mod memory;
mod pointers;
mod remap;
mod tables;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod types;
mod upgrade;
mod waiting;
