//! The loop observe, decide, act, and what is known of it.

#![forbid(unsafe_code)]

pub mod client;
pub mod log;
mod observability;
mod pass;
mod reporter;
mod serve;
mod shared;
mod telemetry;

pub use observability::{DEFAULT_SOCKET, Listen, LogConfig, LogFormat, LogLevel, MetricsConfig, Mode};
pub use pass::{Pass, Times};
pub use reporter::{Reporter, ReporterError};
pub use telemetry::metrics::{CLASSIC, Kind, METRICS, Metric, OPENMETRICS};
