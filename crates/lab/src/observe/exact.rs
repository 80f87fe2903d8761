//! Is what is observed true? A child touches sets of pages that are known, and every bit that is read is compared.

use super::Observe;
use anyhow::{Context, Result, anyhow};
use megapage_bench::run::Gate;
use megapage_observe::Observer;
use megapage_observe::tracker::self_test::exactness;
use megapage_units::Bytes;
use serde::Serialize;

/// Rounds, each with another set.
const ROUNDS: usize = 10;
/// Base pages of the child at scale 1; a sixteenth of that on huge pages comes on top.
const MEMORY: Bytes = Bytes::gib(2);
/// Of the pages that were touched, this share at most may be put down to others who clear bits. That a page is marked as
/// found idle does not say when: without a bound, a tracker's own mistakes could hide behind it. In twelve runs beside a DAMON
/// that looks at 1024 frames of 24 GiB twice a second, it was 0 to 330 of 875,000.
const MOST_DISTURBED: f64 = 1e-3;
/// The same of huge regions, whose one bit is cleared by whoever looks at any of 512 frames: 0 to 46 of 640 in the same runs.
const MOST_DISTURBED_HUGE: f64 = 0.2;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Exact {
    /// Rounds.
    pub rounds: usize,
    /// Base pages compared, over all rounds.
    pub pages: u64,
    /// Those of them that were touched.
    pub touched: u64,
    /// Pages read as accessed that were not touched, or the other way round.
    pub wrong: u64,
    /// Pages that were touched and whose bit somebody else (the machine's own DAMON, say) had cleared again.
    pub disturbed: u64,
    /// Huge regions compared, over all rounds.
    pub huge_regions: u64,
    /// Those read wrongly, or split.
    pub wrong_huge: u64,
    /// Those that somebody else disturbed.
    pub disturbed_huge: u64,
    /// Pages that had lost what was written there.
    pub lost: u64,
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
    let exact = Exact {
        rounds: ROUNDS,
        pages: found.pages,
        touched: found.touched,
        wrong: found.wrong,
        disturbed: found.disturbed,
        huge_regions: found.huge_regions,
        wrong_huge: found.wrong_huge,
        disturbed_huge: found.disturbed_huge,
        lost: found.lost,
    };
    progress(&format!("exact: {} of {} pages wrong", exact.wrong, exact.pages));
    Ok(exact)
}

impl Exact {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let gate = |demand: String, wrong: u64, of: u64, disturbed: u64, most: u64| Gate {
            case: "exact",
            demand,
            found: match disturbed {
                0 => format!("{wrong} of {of}"),
                _ => format!("{wrong} of {of}, and {disturbed} by others"),
            },
            holds: wrong == 0 && of > 0 && disturbed <= most,
        };
        let most = (MOST_DISTURBED * self.touched as f64) as u64;
        let most_huge = (MOST_DISTURBED_HUGE * self.huge_regions as f64) as u64;
        let demand = |what: &str, most: u64| format!("{what} read wrongly: none, by others at most {most}");
        vec![
            gate(demand("base pages", most), self.wrong, self.pages, self.disturbed, most),
            gate(
                demand("huge regions", most_huge),
                self.wrong_huge,
                self.huge_regions,
                self.disturbed_huge,
                most_huge,
            ),
            gate("pages that lost what was written: none".into(), self.lost, self.pages, 0, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_demand_can_fail_alone() {
        let good = Exact {
            rounds: 10,
            pages: 100_000,
            touched: 5000,
            wrong: 0,
            disturbed: 5,
            huge_regions: 25,
            wrong_huge: 0,
            disturbed_huge: 5,
            lost: 0,
        };
        let verdicts = |exact: Exact| exact.gates().iter().map(|gate| gate.holds).collect::<Vec<_>>();
        assert_eq!(verdicts(good.clone()), [true; 3]);
        assert_eq!(verdicts(Exact { wrong: 1, ..good.clone() }), [false, true, true]);
        assert_eq!(verdicts(Exact { disturbed: 6, ..good.clone() }), [false, true, true]);
        assert_eq!(verdicts(Exact { disturbed_huge: 6, ..good.clone() }), [true, false, true]);
        assert_eq!(verdicts(Exact { wrong_huge: 1, ..good.clone() }), [true, false, true]);
        assert_eq!(verdicts(Exact { lost: 1, ..good.clone() }), [true, true, false]);
        assert_eq!(verdicts(Exact { pages: 0, ..good }), [false, true, false]);
    }
}
