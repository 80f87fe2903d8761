//! Carrying out what a policy asked for.

use megapage_decide::{Action, Outcome};
use megapage_snapshot::wire;
use megapage_units::Bytes;
use serde::Serialize;
use std::time::Duration;

/// What became of one action, with what it took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// What was asked, and what was obtained: by the page tables, not by what a call returned.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Memory that is huge now and was not, in bytes.
    #[serde(rename = "promoted_bytes", serialize_with = "wire::bytes")]
    pub promoted: Bytes,
    /// Memory that the machine got back, in bytes.
    #[serde(rename = "freed_bytes", serialize_with = "wire::bytes")]
    pub freed: Bytes,
    /// Time in system calls for this action; where several shared a call, its part.
    #[serde(rename = "took_ns", serialize_with = "nanoseconds")]
    pub took: Duration,
    /// What the kernel answered, in a few words, where the action was not obtained; `None` where it was.
    pub why: Option<String>,
}

/// Whoever carries actions out: the kernel, a dry run, or a test.
pub trait Actuator: Send {
    /// Carries out `actions`, which come from one step at the time `now` (since boot), in their order as far as budgets
    /// allow. Answers one for each action that was tried; those that a budget left for later are not answered.
    fn carry_out(&mut self, now: Duration, actions: &[Action]) -> Vec<Done>;
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_nanos() as u64)
}
