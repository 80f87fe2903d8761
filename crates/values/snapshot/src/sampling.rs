//! How access bits were sampled, and who could not be observed.

use crate::wire;
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

megapage_units::named! {
    /// A way to learn which memory was accessed, best first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum TrackerKind {
        /// A BPF program reads the page tables; madvise(MADV_COLD) clears the bits.
        Bpf = "bpf",
        /// `/sys/kernel/mm/page_idle/bitmap`.
        IdlePages = "idle-pages",
        /// PAGEMAP_SCAN shows what is used, not what is accessed.
        Pagemap = "pagemap",
        /// `Referenced` of `/proc/PID/smaps`, cleared by `/proc/PID/clear_refs`.
        Smaps = "smaps",
    }
}

impl TrackerKind {
    /// Whether it shows what a process accessed. One that does not clears nothing, and costs a process nothing.
    pub const fn tells_accesses(self) -> bool {
        !matches!(self, TrackerKind::Pagemap)
    }
}

/// How access bits are sampled on this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// The tracker in use.
    pub tracker: TrackerKind,
    /// What it cannot give, one sentence each.
    pub lacks: Vec<&'static str>,
    /// The better trackers that are not used, each with the reason.
    pub skipped: Vec<(TrackerKind, String)>,
    /// What the first access to a base page after its bit was cleared costs the target, in nanoseconds, as
    /// measured at the start; 0 with a tracker that clears nothing.
    pub first_access_ns: f64,
    /// The largest slow-down of a target that is allowed, as a share of its processor time (0.01 is 1 %).
    pub budget: f64,
}

/// How one process's access bits were sampled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessSampling {
    /// From clearing the bits to reading them.
    #[serde(serialize_with = "wire::seconds", rename = "window_seconds")]
    pub window: Duration,
    /// From one clearing to the next, as the budget allows at the target's present rate; `None` where no other
    /// sample follows.
    #[serde(serialize_with = "wire::some_seconds", rename = "period_seconds")]
    pub period: Option<Duration>,
    /// When the last sample was read (the snapshot's clock).
    #[serde(serialize_with = "wire::seconds", rename = "sampled_seconds")]
    pub sampled: Duration,
    /// Ranges whose bits are cleared in a sample.
    pub ranges: usize,
    /// Their length.
    #[serde(serialize_with = "wire::bytes", rename = "ranges_bytes")]
    pub bytes: Bytes,
    /// Present memory in them that the sample leaves out, since other processes map it, too, and the tracker cannot
    /// clear that: after a fork(2), in shared memory, where KSM has merged. Coverage does not count it.
    #[serde(serialize_with = "wire::bytes", rename = "shared_bytes")]
    pub shared: Bytes,
    /// The processor time that sampling has taken from the target so far: an estimate from the pages that were
    /// accessed and the cost of a first access.
    #[serde(serialize_with = "wire::seconds", rename = "cost_seconds")]
    pub cost: Duration,
    /// The same as a share of the processor time that the target has taken since the observation began (0.01 is
    /// 1 %). It can be above the budget for a while: where the target takes less time than it did before.
    pub slowdown: f64,
    /// Samples so far.
    pub samples: u64,
}

/// Why a process could not be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissedWhy {
    /// It has ended, or there never was one.
    Gone,
    /// It has executed another program since: what was known of it no longer holds.
    Replaced,
    /// The kernel refuses (EPERM, EACCES).
    Denied,
    /// It does not answer: its memory map is locked. It is left alone for a while.
    Locked,
    /// It has more mappings, or more memory, than is looked at.
    Bounded,
    /// Its turn has not come: it comes first in the next snapshot.
    Postponed,
    /// It is left alone for what is known of it, as by a trial.
    Vetoed,
    /// Anything else.
    Failed,
}

/// A process that was asked for and could not be observed, or whose access bits could not be sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Which.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Why, as a class.
    pub why: MissedWhy,
    /// Why, in one line, with what helps.
    pub what: String,
}
