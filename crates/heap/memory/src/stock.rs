//! The way to a broker of pre-zeroed huge pages (`megapage pool serve`): the messages, and the
//! client.
//!
//! A request is one message of [`wire::REQUEST`] bytes. An answer is one of [`wire::ANSWER`] bytes
//! with descriptors; then the connection is over. Nothing here allocates: the preloaded heap asks
//! from within malloc.

mod client;
pub mod wire;

pub(crate) use client::take_noting;
pub use client::{Granted, TakeError, ask, connect, set_patience, socket_path, take};

/// Environment variable: the socket of a broker, from which the preloaded heap takes its pages.
pub const POOL_VARIABLE: &str = "MEGAPAGE_POOL";
/// Environment variable: time that a broker may take for each step, in milliseconds, from 1 to
/// 60,000; 500 without it.
pub const POOL_PATIENCE_VARIABLE: &str = "MEGAPAGE_POOL_PATIENCE_MS";
