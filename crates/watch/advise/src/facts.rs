//! The inputs of a verdict.

use crate::{Gain, Shared, TrialOutcome};
use megapage_launch::mechanism::Plan;
use megapage_observe::cost::estimate::Estimate;
use megapage_snapshot::{Process, TranslationCost};
use std::time::Duration;

/// What translation costs a process and what huge pages would gain it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What translation costs.
    pub cost: TranslationCost,
    /// What huge pages would gain.
    pub gain: Gain,
    /// The basis of the estimate, where there is one.
    pub estimate: Option<Estimate>,
    /// Words about how it was found, such as a trial's.
    pub notes: Vec<String>,
    /// What came of a trial, where one was made.
    pub trial: Option<TrialOutcome>,
}

/// Whether the memory of a running process can be promoted from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The caller may.
    Allowed,
    /// The caller lacks a right, as this says.
    Lacks(String),
    /// The kernel cannot, as this says: no right helps.
    Impossible(String),
}

/// The facts about one process.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The process, as observed last.
    pub process: Process,
    /// The memory that it shares, and with whom.
    pub shared: Shared,
    /// Its arguments, the program first.
    pub command: Vec<String>,
    /// Whether it has written a title over its arguments: `command` is then the program alone.
    pub retitled: bool,
    /// Its working directory, where that is not the caller's.
    pub directory: Option<String>,
    /// Presence of transparent huge pages in the kernel.
    pub has_thp: bool,
    /// Whether transparent huge pages are given without a request.
    pub thp_always: bool,
    /// For how long it was observed, a trial aside.
    pub observed: Duration,
    /// Whether it has ended meanwhile.
    pub ended: bool,
    /// What was found about its cost, or why nothing was.
    pub judged: Result<Judged, String>,
    /// The share of its private huge pages that holds only zeros, by a sample of them; `None` where not measured.
    pub zero_share: Option<f64>,
    /// How `megapage run` would start it, or why that is unknown.
    pub plan: Result<Plan, String>,
    /// The files of the program that import fork(2) or the like, by name.
    pub forks: Vec<String>,
    /// Bytes of 2 MiB pages that a new mapping can have from the pool.
    pub pool_2m: megapage_units::Bytes,
    /// What the TLB of one processor reaches with base pages, in bytes.
    pub reach: megapage_units::Bytes,
    /// Whether the process's memory can be promoted from outside.
    pub attach: Attach,
}
