//! The loop observe, decide, act, and what is known of it.

#![forbid(unsafe_code)]

mod pass;

pub use pass::{Pass, Times};
