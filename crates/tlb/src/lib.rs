//! A translation lookaside buffer as a model: its geometry, and how often a load of page accesses misses it.
//!
//! The model is Che's approximation of an LRU cache (Che, Tung, Wang 2002; Denning's working set of 1968 is the same
//! thought), in two levels as by Martina, Garetto and Leonardi (2014). It is validated against [`exact`].
//!
//! Architecture invariant: pure. Geometry is decoded from the raw words of CPUID, which the caller has read.

#![forbid(unsafe_code)]

pub mod exact;
mod geometry;
mod model;

pub use geometry::{Cpuid, Geometry, GeometrySource};
pub use model::{Class, EntrySize, Walks, characteristic_time, walks, walks_each};
