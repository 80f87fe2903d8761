//! Results of one pass of the loop, as plain values: the source of logs, metrics and views.

use megapage_act::execute::{Counters, Done};
use megapage_decide::Obtained;
use megapage_snapshot::{CostSource, Missed, Snapshot, wire};
use megapage_units::Bytes;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// One pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Number of the pass; 1 for the first.
    pub number: u64,
    /// Time of its begin, since boot.
    pub at: Duration,
    /// The policy's name.
    pub policy: &'static str,
    /// True if nothing was changed: `--dry-run`.
    pub dry_run: bool,
    /// Observations.
    pub snapshot: Arc<Snapshot>,
    /// Actions that were tried, in order.
    pub done: Vec<Done>,
    /// Actions that the policy asked for and that a budget deferred.
    pub left: u64,
    /// Number of times that actions took so long that the actuator made a pause, or smaller
    /// batches, during this pass.
    pub backed_off: u64,
    /// Counts of the actuator since its start; `None` for one that does nothing.
    pub executor: Option<Counters>,
    /// Source of translation costs; `None` if nothing reports them.
    pub costs: Option<CostSource>,
    /// True if the policy was notified that memory runs short: by pressure stall information, not
    /// by a policy's watermarks.
    pub short: bool,
    /// Times of its parts.
    pub times: Times,
    /// Huge memory of the watched processes, private and shared, in bytes; each block of shared
    /// memory counts once.
    pub huge: Bytes,
    /// Processes that are watched.
    pub watched: usize,
    /// Processes that were selected and could not be looked at, or that are skipped for now.
    pub skipped: usize,
}

/// Times of the parts of a pass, on the wall, and the processor time of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Time of observing.
    #[serde(serialize_with = "wire::seconds", rename = "observe_seconds")]
    pub observe: Duration,
    /// Time of deciding.
    #[serde(serialize_with = "wire::seconds", rename = "decide_seconds")]
    pub decide: Duration,
    /// Time of acting.
    #[serde(serialize_with = "wire::seconds", rename = "act_seconds")]
    pub act: Duration,
    /// Processor time of the daemon, user and system.
    #[serde(serialize_with = "wire::seconds", rename = "cpu_seconds")]
    pub cpu: Duration,
}

/// Schema of [`PassDocument`].
pub const SCHEMA: &str = "megapage.daemon/2";

impl Pass {
    /// Returns the number of changes that were requested and not obtained. A change that this
    /// machine cannot make is no failure, and neither is one to a process that has ended.
    pub fn failed(&self) -> usize {
        let failed = |done: &&Done| {
            !matches!(done.outcome.obtained, Obtained::Done | Obtained::Unsupported | Obtained::Gone)
        };
        self.done.iter().filter(failed).count()
    }
}

/// A pass as JSON: without the snapshot, but with the skipped processes.
#[derive(Clone, Debug, Serialize)]
pub struct PassDocument<'a> {
    number: u64,
    #[serde(serialize_with = "wire::seconds", rename = "at_seconds")]
    at: Duration,
    policy: &'static str,
    dry_run: bool,
    short: bool,
    watched: usize,
    skipped: usize,
    #[serde(serialize_with = "wire::bytes", rename = "huge_bytes")]
    huge: Bytes,
    left: u64,
    backed_off: u64,
    #[serde(flatten)]
    times: Times,
    done: &'a [Done],
    missed: &'a [Missed],
}

impl<'a> PassDocument<'a> {
    /// Returns the reported values of a pass.
    pub fn new(pass: &'a Pass) -> PassDocument<'a> {
        PassDocument {
            number: pass.number,
            at: pass.at,
            policy: pass.policy,
            dry_run: pass.dry_run,
            short: pass.short,
            watched: pass.watched,
            skipped: pass.skipped,
            huge: pass.huge,
            left: pass.left,
            backed_off: pass.backed_off,
            times: pass.times,
            done: &pass.done,
            missed: &pass.snapshot.missed,
        }
    }
}
