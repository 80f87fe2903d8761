//! What one pass of the loop saw and did: what logs, metrics and views are made of. Plain values.

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
    /// 1 for the first.
    pub number: u64,
    /// When it began, since boot.
    pub at: Duration,
    /// The policy's name.
    pub policy: &'static str,
    /// Whether nothing was changed: `--dry-run`.
    pub dry_run: bool,
    /// What was seen.
    pub snapshot: Arc<Snapshot>,
    /// What was done, in order.
    pub done: Vec<Done>,
    /// Actions that the policy asked for and that a budget deferred.
    pub left: u64,
    /// How often actions took so long that the actuator made a pause, or smaller batches, during this pass.
    pub backed_off: u64,
    /// What the actuator has done since it was started; `None` for one that does nothing.
    pub executor: Option<Counters>,
    /// How translation costs are found out; `None` where nothing reports them.
    pub costs: Option<CostSource>,
    /// Whether the policy was notified that memory runs short: by pressure stall information, not by the watermarks of a policy.
    pub short: bool,
    /// How long its parts took.
    pub times: Times,
    /// Huge memory of the watched processes, private and shared, each block of shared memory once; in bytes.
    pub huge: Bytes,
    /// Processes that are watched.
    pub watched: usize,
    /// Processes that were selected and could not be looked at, or that are skipped for now.
    pub skipped: usize,
}

/// How long the parts of a pass took, on the wall, and what the whole took of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Observing.
    #[serde(serialize_with = "wire::seconds", rename = "observe_seconds")]
    pub observe: Duration,
    /// Deciding.
    #[serde(serialize_with = "wire::seconds", rename = "decide_seconds")]
    pub decide: Duration,
    /// Acting.
    #[serde(serialize_with = "wire::seconds", rename = "act_seconds")]
    pub act: Duration,
    /// Processor time of the daemon's own, user and system.
    #[serde(serialize_with = "wire::seconds", rename = "cpu_seconds")]
    pub cpu: Duration,
}

/// The schema of [`PassDocument`].
pub const SCHEMA: &str = "megapage.daemon/2";

impl Pass {
    /// Changes that were asked for and not obtained. What this machine cannot do at all is no failure, and neither is a
    /// process that has ended.
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
    /// What is reported of a pass.
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
