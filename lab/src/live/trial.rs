//! What huge pages gain a way of working, tried before an experiment.

use serde::Serialize;

/// A way of working, and what huge pages gain it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Trial {
    /// Its name.
    pub way: &'static str,
    /// Bytes that are used.
    pub hot_bytes: u64,
    /// Units for each second of processor time on huge pages, over those on base pages.
    pub gain: f64,
}
