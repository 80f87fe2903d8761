//! The cost of address translation for a process: measured by [`pmu`] if the processor has one,
//! else estimated by [`estimate`] from the samples of [`probe`].

mod cached;
pub mod calibrate;
mod contiguity;
pub mod estimate;
pub mod pmu;
pub mod probe;
pub mod rates;
pub mod recording;
pub mod touches;
