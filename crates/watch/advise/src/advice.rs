//! Advice.

use crate::TrialOutcome;
use megapage_observe::cost::estimate::Estimate;
use megapage_snapshot::{CostSource, TranslationCost, wire};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// How many times as fast a program would be, with an interval of about 90 %: `1 <= low <= likely <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The lower end.
    pub low: f64,
    /// The best guess.
    pub likely: f64,
    /// The upper end.
    pub high: f64,
    /// Where it comes from.
    pub source: CostSource,
}

/// The short answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Huge pages are worth it.
    UseHugePages,
    /// They are not.
    DoNotUse,
    /// It has them.
    AlreadyHuge,
    /// The interval holds both; a trial would show.
    TryIt,
    /// Nothing is known.
    Unknown,
}

impl Verdict {
    /// As a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Verdict::UseHugePages => "use huge pages",
            Verdict::DoNotUse => "do not use huge pages",
            Verdict::AlreadyHuge => "nothing to do: it runs on huge pages",
            Verdict::TryIt => "undecided: try it (--trial)",
            Verdict::Unknown => "not known",
        }
    }
}

impl Advice {
    /// The verdict as a sentence, with what goes against it.
    pub fn sentence(&self) -> String {
        match (self.verdict, self.memory.bloat()) {
            (Verdict::AlreadyHuge, Some(bloat)) => {
                format!("it runs on huge pages, of which about {bloat} hold only zeros (bloat)")
            }
            _ => self.verdict.sentence().into(),
        }
    }
}

/// The kind of huge page that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PageKind {
    /// Transparent huge pages of 2 MiB.
    #[serde(rename = "thp")]
    Thp,
    /// Pages of the 2 MiB hugetlb pool.
    #[serde(rename = "2m")]
    Hugetlb2m,
    /// None.
    #[serde(rename = "none")]
    None,
}

impl PageKind {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            PageKind::Thp => "transparent huge pages (THP)",
            PageKind::Hugetlb2m => "hugetlb pages of 2 MiB",
            PageKind::None => "none",
        }
    }
}

/// One way to get them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct How {
    /// A command or a line of a configuration file.
    pub what: String,
    /// When, or why this one.
    pub why: String,
}

/// What they cost in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Private memory on base pages that whole huge pages could map.
    #[serde(serialize_with = "wire::bytes", rename = "promotable_bytes")]
    pub promotable: Bytes,
    /// Pages in those ranges that the program has not touched and that a huge page would fill with zeros. Ranges less
    /// than half touched, which megapage does not promote, are left out.
    #[serde(serialize_with = "wire::bytes", rename = "filled_bytes")]
    pub filled: Bytes,
    /// Private memory in huge pages already.
    #[serde(serialize_with = "wire::bytes", rename = "huge_bytes")]
    pub huge: Bytes,
    /// Of that, what holds only zeros, by a sample of its pages; `None` where not measured, or nothing is huge.
    #[serde(serialize_with = "wire::some_bytes", rename = "zero_bytes")]
    pub zeros: Option<Bytes>,
    /// Memory shared with other processes.
    #[serde(serialize_with = "wire::bytes", rename = "shared_bytes")]
    pub shared: Bytes,
    /// Of that, what is in huge pages already.
    #[serde(serialize_with = "wire::bytes", rename = "shared_huge_bytes")]
    pub shared_huge: Bytes,
    /// Of that, what external promotion could make huge.
    #[serde(serialize_with = "wire::bytes", rename = "shared_promotable_bytes")]
    pub shared_promotable: Bytes,
    /// Of that, what no huge page can map where it lies: address and offset disagree modulo 2 MiB.
    #[serde(serialize_with = "wire::bytes", rename = "shared_misplaced_bytes")]
    pub shared_misplaced: Bytes,
}

impl Memory {
    /// Memory that holds only zeros in huge pages, where it is more than a tenth of them and than 16 MiB.
    pub fn bloat(&self) -> Option<Bytes> {
        self.zeros.filter(|zeros| zeros.0 > self.huge.0 / 10 && *zeros > Bytes::mib(16))
    }
}

/// The whole advice on one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Which.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// Other processes that share its memory, to which this applies as well: private memory is that of all.
    #[serde(serialize_with = "wire::pids")]
    pub others: Vec<Pid>,
    /// For how long it was observed, a trial aside.
    #[serde(serialize_with = "wire::seconds", rename = "observed_seconds")]
    pub observed: Duration,
    /// Whether it has ended meanwhile: the advice holds for another run of it.
    pub ended: bool,
    /// The answer.
    pub verdict: Verdict,
    /// Whether it is advised to switch: the verdict is to use huge pages.
    pub recommended: bool,
    /// What it would gain; `None` where nothing is known.
    pub gain: Option<Gain>,
    /// What address translation costs it now.
    pub translation: Option<TranslationCost>,
    /// The kind that fits.
    pub kind: PageKind,
    /// Ways to get them, the best first.
    pub how: Vec<How>,
    /// What they cost in memory.
    pub memory: Memory,
    /// What may go wrong.
    pub risks: Vec<String>,
    /// Why this verdict.
    pub why: Vec<String>,
    /// The basis of the estimate; `None` where there is none.
    pub estimate: Option<Estimate>,
    /// What came of the trial; `None` where none was made.
    pub trial: Option<TrialOutcome>,
}
