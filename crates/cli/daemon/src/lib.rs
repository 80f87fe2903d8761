//! The loop observe, decide, act, and the reports about it.
//!
//! [`Daemon`] makes one pass at a time and never waits; [`service::run`] is the daemon of a
//! machine: one of them, woken by time, memory pressure and signals.

#![forbid(unsafe_code)]

mod cadence;
mod children;
pub mod client;
pub mod config;
pub mod daemon;
mod filling;
#[doc(hidden)]
pub mod fuzzing;
mod instance;
pub mod log;
mod new_processes;
mod observability;
mod pass;
mod reporter;
mod reporter_error;
mod rights;
mod saved_state;
mod select;
mod serve;
pub mod service;
mod shared;
mod telemetry;
mod zeroing;

pub use config::Config;
pub use daemon::{Daemon, Parts};
pub use observability::{Listen, LogConfig, LogFormat, LogLevel, MetricsConfig, Mode, default_socket};
pub use pass::{Pass, PassDocument, SCHEMA, Times};
pub use reporter::{Reporter, ReporterError};
pub use saved_state::SavedState;
pub use select::Veto;
pub use telemetry::metrics::{CLASSIC, OPENMETRICS};
pub use telemetry::table::{METRICS, Metric, PREFIX};
