//! Advice, and the values that it is made of.

use crate::TrialOutcome;
use megapage_observe::cost::estimate::Estimate;
use megapage_snapshot::{CostSource, TranslationCost, wire};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// Speed-up of a program on huge pages, with an interval of about 90 %: `1 <= low <= likely <=
/// high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Lower end of the interval.
    pub low: f64,
    /// Best guess.
    pub likely: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Source of the values.
    pub source: CostSource,
}

megapage_units::named! {
    /// Short answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Verdict {
        /// Huge pages are worth it.
        UseHugePages = "use huge pages",
        /// Huge pages are not worth it.
        DoNotUse = "do not use huge pages",
        /// The process runs on huge pages already.
        AlreadyHuge = "nothing to do: it runs on huge pages",
        /// The interval holds both answers; a trial would decide.
        TryIt = "undecided: try it (--trial)",
        /// Nothing is known.
        Unknown = "not known",
    }
}

impl Advice {
    /// Returns the verdict as a sentence, with the bloat if there is any.
    pub fn sentence(&self) -> String {
        match (self.verdict, self.memory.bloat()) {
            (Verdict::AlreadyHuge, Some(bloat)) => {
                format!("it runs on huge pages, of which about {bloat} hold only zeros (bloat)")
            }
            _ => self.verdict.name().into(),
        }
    }
}

megapage_units::named! {
    /// Kind of huge page that fits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    pub enum PageKind {
        /// Transparent huge pages of 2 MiB.
        #[serde(rename = "thp")]
        Thp = "transparent huge pages (THP)",
        /// Pages of the 2 MiB hugetlb pool.
        #[serde(rename = "2m")]
        Hugetlb2m = "hugetlb pages of 2 MiB",
        /// No huge page.
        #[serde(rename = "none")]
        None = "none",
    }
}

/// One way to get huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct How {
    /// A command, or a line of a configuration file.
    pub what: String,
    /// Time at which it takes effect, or the reason for this way.
    pub why: String,
}

/// Memory by the pages it lies on, and the memory that huge pages would cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Private memory on base pages that whole huge pages could map.
    #[serde(serialize_with = "wire::bytes", rename = "promotable_bytes")]
    pub promotable: Bytes,
    /// Pages in those ranges that the program has not touched: a huge page would fill them with
    /// zeros. Ranges less than half touched do not count: megapage does not promote them.
    #[serde(serialize_with = "wire::bytes", rename = "filled_bytes")]
    pub filled: Bytes,
    /// Private memory in huge pages already.
    #[serde(serialize_with = "wire::bytes", rename = "huge_bytes")]
    pub huge: Bytes,
    /// Part of `huge` that holds only zeros, by a sample of its pages; `None` if it was not
    /// measured or if nothing is huge.
    #[serde(serialize_with = "wire::some_bytes", rename = "zero_bytes")]
    pub zeros: Option<Bytes>,
    /// Memory shared with other processes.
    #[serde(serialize_with = "wire::bytes", rename = "shared_bytes")]
    pub shared: Bytes,
    /// Part of `shared` that is in huge pages already.
    #[serde(serialize_with = "wire::bytes", rename = "shared_huge_bytes")]
    pub shared_huge: Bytes,
    /// Part of `shared` that external promotion could make huge.
    #[serde(serialize_with = "wire::bytes", rename = "shared_promotable_bytes")]
    pub shared_promotable: Bytes,
    /// Part of `shared` that no huge page can map at its place: address and offset disagree modulo
    /// 2 MiB.
    #[serde(serialize_with = "wire::bytes", rename = "shared_misplaced_bytes")]
    pub shared_misplaced: Bytes,
}

impl Memory {
    /// Returns the memory that holds only zeros in huge pages, if it is more than a tenth of them
    /// and more than 16 MiB.
    pub fn bloat(&self) -> Option<Bytes> {
        self.zeros.filter(|zeros| zeros.0 > self.huge.0 / 10 && *zeros > Bytes::mib(16))
    }
}

/// Whole advice on one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// Other processes that share its memory. The advice applies to them too, and the private
    /// memory is that of all.
    #[serde(serialize_with = "wire::pids")]
    pub others: Vec<Pid>,
    /// Time of observation, without a trial.
    #[serde(serialize_with = "wire::seconds", rename = "observed_seconds")]
    pub observed: Duration,
    /// True if the process has ended meanwhile: the advice holds for another run of it.
    pub ended: bool,
    /// The answer.
    pub verdict: Verdict,
    /// True if the process should switch: the verdict is to use huge pages.
    pub recommended: bool,
    /// Gain from huge pages; `None` if nothing is known.
    pub gain: Option<Gain>,
    /// Present cost of address translation.
    pub translation: Option<TranslationCost>,
    /// Kind of huge page that fits.
    pub kind: PageKind,
    /// Ways to get huge pages, the best first.
    pub how: Vec<How>,
    /// Memory by the pages it lies on, and the cost of huge pages in memory.
    pub memory: Memory,
    /// Possible harm, one line each.
    pub risks: Vec<String>,
    /// Reasons for this verdict.
    pub why: Vec<String>,
    /// Basis of the estimate; `None` if there is no estimate.
    pub estimate: Option<Estimate>,
    /// Outcome of the trial; `None` if none was made.
    pub trial: Option<TrialOutcome>,
}
