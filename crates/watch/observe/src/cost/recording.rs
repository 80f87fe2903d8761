//! What an estimate was made from, to be made again: what a program was seen to touch, on which machine, and what huge
//! pages then gained it. Fixtures under `fixtures/advice` are such.

use super::calibrate::AccessTimes;
use super::estimate::{Estimate, NoEstimate, estimate};
use super::touches::{History, Touches};
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

    /// The same with at most so many histories, taken evenly from all.
    pub fn thinned(mut self, most: usize) -> Recording {
        let histories = std::mem::take(&mut self.touches.histories);
        // Closer looks show how hot the hottest is: of either kind as large a part is stored.
        let (close, others): (Vec<History>, Vec<History>) = histories.into_iter().partition(|it| it.close);
        let all = (close.len() + others.len()).max(1);
        for kind in [others, close] {
            let keep = (kind.len() * most).div_ceil(all).min(kind.len());
            let count = kind.len();
            let kept =
                kind.into_iter().enumerate().filter(|(n, _)| (n + 1) * keep / count > n * keep / count);
            self.touches.histories.extend(kept.map(|(_, history)| history));
        }
        self
    }
}
