//! Sampling of access bits, and processes that could not be observed.

use crate::wire;
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

megapage_units::named! {
    /// Method to learn which memory was accessed, the best first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum TrackerKind {
        /// A BPF program reads the page tables; madvise(MADV_COLD) clears the bits.
        Bpf = "bpf",
        /// `/sys/kernel/mm/page_idle/bitmap`.
        IdlePages = "idle-pages",
        /// PAGEMAP_SCAN shows which memory is used, not which is accessed.
        Pagemap = "pagemap",
    }
}

impl TrackerKind {
    /// Returns true if it shows a process's accesses. A tracker that does not clears nothing, and
    /// costs a process nothing.
    pub const fn tells_accesses(self) -> bool {
        !matches!(self, TrackerKind::Pagemap)
    }
}

/// Method of sampling access bits on this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// The tracker in use.
    pub tracker: TrackerKind,
    /// Abilities that the tracker lacks, one sentence each.
    pub lacks: Vec<&'static str>,
    /// Better trackers that are not used, each with the reason.
    pub skipped: Vec<(TrackerKind, String)>,
    /// Cost to the target of the first access to a base page after its bit was cleared, in
    /// nanoseconds, as measured at the start. 0 with a tracker that clears nothing.
    pub first_access_ns: f64,
    /// Largest allowed slow-down of a target, as a share of its processor time (0.01 is 1 %).
    pub budget: f64,
}

/// Sampling of one process's access bits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessSampling {
    /// Time from clearing the bits to reading them.
    #[serde(serialize_with = "wire::seconds", rename = "window_seconds")]
    pub window: Duration,
    /// Time from one clearing to the next, as the budget allows at the target's present rate;
    /// `None` if no other sample follows.
    #[serde(serialize_with = "wire::some_seconds", rename = "period_seconds")]
    pub period: Option<Duration>,
    /// Time at which the last sample was read (the snapshot's clock).
    #[serde(serialize_with = "wire::seconds", rename = "sampled_seconds")]
    pub sampled: Duration,
    /// Ranges whose bits are cleared in a sample.
    pub ranges: usize,
    /// Length of these ranges.
    #[serde(serialize_with = "wire::bytes", rename = "ranges_bytes")]
    pub bytes: Bytes,
    /// Present memory in them that the sample omits, because other processes map it, too, and the
    /// tracker cannot clear that. This happens after a fork(2), in shared memory, and in pages that
    /// KSM has merged. Coverage does not count it.
    #[serde(serialize_with = "wire::bytes", rename = "shared_bytes")]
    pub shared: Bytes,
    /// Processor time that sampling has taken from the target so far. It is estimated from the
    /// pages that were accessed and the cost of a first access.
    #[serde(serialize_with = "wire::seconds", rename = "cost_seconds")]
    pub cost: Duration,
    /// The same as a share of the target's processor time since the observation began (0.01 is 1
    /// %). It can exceed the budget for a while, if the target takes less time than before.
    pub slowdown: f64,
    /// Number of samples so far.
    pub samples: u64,
}

/// Reason why a process could not be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissedWhy {
    /// It has ended, or never existed.
    Gone,
    /// It has executed another program since: its earlier values no longer hold.
    Replaced,
    /// The kernel refuses (EPERM, EACCES).
    Denied,
    /// Its memory map is locked, so it does not answer. megapage backs off from it for a while.
    Locked,
    /// It exceeds the bound on mappings, or on memory.
    Bounded,
    /// It is deferred: it comes first in the next snapshot.
    Postponed,
    /// Another part of megapage excludes it, such as a trial.
    Vetoed,
    /// Anything else.
    Failed,
}

/// A requested process that could not be observed, or whose access bits could not be sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Identifier of the process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Class of the reason.
    pub why: MissedWhy,
    /// Reason in one line, with the remedy.
    pub what: String,
}
