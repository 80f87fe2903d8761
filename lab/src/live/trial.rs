//! The gain of a way of working by huge pages, tried before an experiment.

use serde::Serialize;

/// A way of working, and its gain by huge pages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Trial {
    /// Its name.
    pub way: &'static str,
    /// Bytes that are used.
    pub hot_bytes: u64,
    /// Units for each second of processor time on huge pages, over those on base pages.
    pub gain: f64,
}
