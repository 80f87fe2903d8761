//! Model of a translation lookaside buffer: its geometry, and the rate at which a load of page
//! accesses misses it.
//!
//! The model is Che's approximation of an LRU cache (Che, Tung, Wang 2002; Denning's working set of
//! 1968 is the same idea). It has two levels, as by Martina, Garetto and Leonardi (2014). It is
//! tested against an exact LRU.
//!
//! Architecture invariant: pure. Geometry is decoded from values of the processor that the caller
//! has read: the raw words of CPUID, or the kinds of Arm cores.

#![forbid(unsafe_code)]

mod arm;
#[cfg(test)]
mod exact_tests;
mod geometry;
mod model;

pub use arm::ArmCore;
pub use geometry::{Cpuid, Geometry, GeometrySource, Processor};
pub use model::{Class, EntrySize, Walks, characteristic_time, walks, walks_each};
