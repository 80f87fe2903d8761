//! What address translation costs a process: measured by [`pmu`], where there is one, else estimated by [`estimate`]
//! from what [`probe`] samples.

mod cached;
pub mod calibrate;
mod contiguity;
pub mod estimate;
pub mod pmu;
pub mod probe;
pub mod rates;
pub mod recording;
pub mod touches;
