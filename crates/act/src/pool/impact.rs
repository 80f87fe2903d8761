//! Memory that a change of the pools leaves for all else.

use megapage_observe::wire;
use megapage_units::Bytes;
use serde::Serialize;

/// Effect of the steps on the remainder of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryImpact {
    /// All memory.
    #[serde(serialize_with = "wire::bytes", rename = "total_bytes")]
    pub total: Bytes,
    /// `MemAvailable` before.
    #[serde(serialize_with = "wire::bytes", rename = "available_bytes")]
    pub available: Bytes,
    /// `MemAvailable` once every page is obtained.
    #[serde(serialize_with = "wire::bytes", rename = "available_after_bytes")]
    pub available_after: Bytes,
    /// The safe floor, by [`super::floor`].
    #[serde(serialize_with = "wire::bytes", rename = "floor_bytes")]
    pub floor: Bytes,
}
