//! Tests of the policies and guards, on synthetic snapshots.

mod freebsd;
mod groups;
mod guards;
mod hawkeye;
mod ingens;
mod linux;
pub mod made;
mod megapage;
mod names;
mod properties;
mod shared;
mod stationary;
