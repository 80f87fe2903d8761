//! Inputs of a verdict.

use crate::{Gain, Shared, TrialOutcome};
use megapage_launch::mechanism::Plan;
use megapage_observe::cost::estimate::Estimate;
use megapage_snapshot::{Process, TranslationCost};
use std::time::Duration;

/// Cost of translation for a process, and its gain from huge pages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judged {
    /// Cost of translation.
    pub cost: TranslationCost,
    /// Gain from huge pages.
    pub gain: Gain,
    /// Basis of the estimate, if there is one.
    pub estimate: Option<Estimate>,
    /// Remarks on how these were found, such as a trial's.
    pub notes: Vec<String>,
    /// Outcome of a trial, if one was made.
    pub trial: Option<TrialOutcome>,
}

/// Ability to promote the memory of a running process from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// The caller may promote.
    Allowed,
    /// The caller lacks a right; the line names it.
    Lacks(String),
    /// The kernel cannot promote, and no right helps; the line gives the reason.
    Impossible(String),
}

/// Facts about one process.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The process, as last observed.
    pub process: Process,
    /// Memory that it shares, and the processes it shares with.
    pub shared: Shared,
    /// Its arguments, the program first.
    pub command: Vec<String>,
    /// True if it has written a title over its arguments: `command` is then the program alone.
    pub retitled: bool,
    /// Its working directory, if that is not the caller's.
    pub directory: Option<String>,
    /// Presence of transparent huge pages in the kernel.
    pub has_thp: bool,
    /// True if the kernel gives transparent huge pages without a request.
    pub thp_always: bool,
    /// Time of observation, without a trial.
    pub observed: Duration,
    /// True if it has ended meanwhile.
    pub ended: bool,
    /// Its cost and gain, or the reason why they are unknown.
    pub judged: Result<Judged, String>,
    /// Share of its private huge pages that holds only zeros, by a sample of them; `None` if not
    /// measured.
    pub zero_share: Option<f64>,
    /// Plan by which `megapage run` would start it, or the reason why that is unknown.
    pub plan: Result<Plan, String>,
    /// Files of the program that import fork(2) or the like, by name.
    pub forks: Vec<String>,
    /// Bytes of 2 MiB pages that a new mapping can have from the pool.
    pub pool_2m: megapage_units::Bytes,
    /// Memory that the TLB of one processor reaches with base pages, in bytes.
    pub reach: megapage_units::Bytes,
    /// Ability to promote the memory of the process from outside.
    pub attach: Attach,
}
