//! The loop observe, decide, act, and what is known of it.

#![forbid(unsafe_code)]

mod observability;
mod pass;

pub use observability::{DEFAULT_SOCKET, Listen, LogConfig, LogFormat, LogLevel, MetricsConfig, Mode};
pub use pass::{Pass, Times};
