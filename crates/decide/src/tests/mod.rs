//! Tests of the policies and guards, on synthetic snapshots.

mod groups;
mod guards;
pub mod made;
mod megapage;
mod names;
mod properties;
mod shared;
mod stationary;
