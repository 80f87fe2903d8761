//! What an estimate was made from, to be made again: what a program was seen to touch, on which machine, and what huge
//! pages then gained it. Fixtures under `fixtures/advice` are such.

use super::calibrate::AccessTimes;
use super::estimate::{Estimate, NoEstimate, estimate};
use super::touches::Touches;
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};

/// One program, observed once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Its name.
    pub program: String,
    /// The TLBs of the machine.
    pub geometry: Geometry,
    /// What accesses took there.
    pub times: AccessTimes,
    /// What was sampled.
    pub touches: Touches,
    /// How many times as fast it was on huge pages, where that was measured.
    pub measured: Option<Measured>,
}

/// A gain that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The median of the turns.
    pub median: f64,
    /// What holds it with 90 %.
    pub interval: [f64; 2],
}

impl Recording {
    /// Estimates again.
    pub fn estimate(&self) -> Result<Estimate, NoEstimate> {
        estimate(&self.touches, &self.geometry, &self.times)
    }
}
