//! Exactness of observations: a child touches known sets of pages, and every bit that is read is
//! compared.

use super::Observe;
use super::exactness::{Exactness, exactness};
use crate::bench::Gate;
use anyhow::{Context, Result, anyhow};
use megapage_observe::Observer;
use megapage_units::Bytes;
use serde::Serialize;

/// Rounds, each with another set.
const ROUNDS: usize = 10;
/// Base pages of the child at scale 1; a sixteenth of that on huge pages comes on top.
const MEMORY: Bytes = Bytes::gib(2);
/// Largest share of the touched pages that may be attributed to others who clear bits. A page's
/// mark as found idle has no time: without a limit it could hide a tracker's own mistakes. In
/// twelve runs beside a DAMON that looks at 1024 frames of 24 GiB twice a second, it was 0 to 330
/// of 875,000.
const MOST_DISTURBED: f64 = 1e-3;
/// The same of huge regions, whose one bit is cleared by any look at one of 512 frames: 0 to 46 of
/// 640 in the same runs.
const MOST_DISTURBED_HUGE: f64 = 0.2;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Exact {
    /// Rounds.
    pub rounds: usize,
    /// The comparison, and the mistakes in it.
    #[serde(flatten)]
    pub found: Exactness,
}

pub(super) fn run(
    options: &Observe,
    observer: &mut Observer,
    progress: &mut dyn FnMut(&str),
) -> Result<Exact> {
    let bytes = Bytes((MEMORY.0 as f64 * options.scale) as u64);
    let tracker = observer.tracker().context("no way to sample accessed bits")?;
    progress(&format!("exact: {ROUNDS} rounds on {bytes}"));
    let found = exactness(tracker, bytes, ROUNDS).map_err(|why| anyhow!(why))?;
    progress(&format!("exact: {} of {} pages wrong", found.wrong, found.pages));
    Ok(Exact { rounds: ROUNDS, found })
}

impl Exact {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let found = &self.found;
        let gate = |demand: String, wrong: u64, of: u64, disturbed: u64, most: u64| Gate {
            case: "exact",
            demand,
            found: match disturbed {
                0 => format!("{wrong} of {of}"),
                _ => format!("{wrong} of {of}, and {disturbed} by others"),
            },
            holds: wrong == 0 && of > 0 && disturbed <= most,
        };
        let most = (MOST_DISTURBED * found.touched as f64) as u64;
        let most_huge = (MOST_DISTURBED_HUGE * found.huge_regions as f64) as u64;
        let demand = |what: &str, most: u64| format!("{what} read wrongly: none, by others at most {most}");
        vec![
            gate(demand("base pages", most), found.wrong, found.pages, found.disturbed, most),
            gate(
                demand("huge regions", most_huge),
                found.wrong_huge,
                found.huge_regions,
                found.disturbed_huge,
                most_huge,
            ),
            gate("pages that lost what was written: none".into(), found.lost, found.pages, 0, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demand_can_fail_alone() {
        let good = Exactness {
            pages: 100_000,
            touched: 5000,
            disturbed: 5,
            huge_regions: 25,
            disturbed_huge: 5,
            ..Exactness::default()
        };
        let verdicts = |found: Exactness| {
            Exact { rounds: 10, found }.gates().iter().map(|gate| gate.holds).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(good), [true; 3]);
        assert_eq!(verdicts(Exactness { wrong: 1, ..good }), [false, true, true]);
        assert_eq!(verdicts(Exactness { disturbed: 6, ..good }), [false, true, true]);
        assert_eq!(verdicts(Exactness { disturbed_huge: 6, ..good }), [true, false, true]);
        assert_eq!(verdicts(Exactness { wrong_huge: 1, ..good }), [true, false, true]);
        assert_eq!(verdicts(Exactness { lost: 1, ..good }), [true, true, false]);
        assert_eq!(verdicts(Exactness { pages: 0, ..good }), [false, true, false]);
    }
}
