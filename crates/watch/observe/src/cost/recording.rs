//! The basis of an estimate: the touches of a program, the machine, and the measured gain by huge
//! pages. The estimate can be made again from it. The fixtures under `fixtures/advice` are
//! recordings.

use super::calibrate::AccessTimes;
use super::estimate::{Estimate, NoEstimate, estimate};
use super::touches::Touches;
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};

/// One program, observed once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Name of the program.
    pub program: String,
    /// TLBs of the machine.
    pub geometry: Geometry,
    /// Access times of the machine.
    pub times: AccessTimes,
    /// Sampled touches.
    pub touches: Touches,
    /// Speed-up on huge pages, if it was measured.
    pub measured: Option<Measured>,
}

/// Measured gain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Median over the turns.
    pub median: f64,
    /// Interval that holds it with 90 %.
    pub interval: [f64; 2],
}

impl Recording {
    /// Makes the estimate again.
    pub fn estimate(&self) -> Result<Estimate, NoEstimate> {
        estimate(&self.touches, &self.geometry, &self.times)
    }
}
