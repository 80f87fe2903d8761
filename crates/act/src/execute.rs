//! Execution of the actions that a policy asked for.

mod abilities;
pub mod counters;
mod dry_run;
mod executor;
mod histogram;
mod verdict;
mod work;

pub use abilities::{Abilities, Split, missing_rights};
pub use counters::Counters;
pub use dry_run::DryRun;
pub(crate) use dry_run::{promote_line, split_line};
pub use executor::Executor;
pub use histogram::Histogram;

use crate::remote::RemoteError;
use megapage_decide::{Action, Outcome, Promotions};
use megapage_snapshot::wire;
use megapage_units::Bytes;
use serde::Serialize;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Reason that nothing can be carried out.
#[derive(Debug, Error)]
pub enum ExecuteError {
    /// The caller lacks rights. The text names all of them, and how to get them.
    #[error("{0}")]
    NotAllowed(String),
    /// The child that the kernel is tried on could not be started.
    #[error("the kernel cannot be tried on a child process: {0}")]
    Child(#[source] io::Error),
    /// The child did not find what it had written.
    #[error("a child process lost bytes while its huge pages were tried: this kernel is not acted on")]
    BytesLost,
    /// Another reason, such as a kernel that does not show the effect of an action.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// Result of one action, with its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// Amounts requested and obtained: by the page tables, not by the answer of a call.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Memory that is huge now and was not before, in bytes.
    #[serde(rename = "promoted_bytes", serialize_with = "wire::bytes")]
    pub promoted: Bytes,
    /// Memory that the machine got back, in bytes.
    #[serde(rename = "freed_bytes", serialize_with = "wire::bytes")]
    pub freed: Bytes,
    /// Time in system calls for this action; its share if several actions shared a call.
    #[serde(rename = "took_ns", serialize_with = "nanoseconds")]
    pub took: Duration,
    /// The kernel's answer in a few words, if the action was not obtained; `None` if it was. A dry
    /// run says that it was one.
    pub why: Option<String>,
}

/// Executor of actions: the kernel, a dry run, or a test.
pub trait Actuator: Send {
    /// Carries out `actions` of one step at the time `now` (since boot), in their order, as far as
    /// the budgets and back-offs of `promotions` allow. Returns one answer for each action that was
    /// tried. Deferred actions get no answer. The observer carries out zero scans, which get no
    /// answer either.
    fn carry_out(&mut self, now: Duration, actions: &[Action], promotions: &mut Promotions) -> Vec<Done>;

    /// Returns its counters since the start; `None` for an actuator that does nothing.
    fn counted(&self) -> Option<Counters> {
        None
    }

    /// Demotes only regions that `promotions` stores as made huge and that are still huge. Budgets
    /// do not apply; it takes half a minute at most. Answers for each region that was tried, with
    /// the reason [`megapage_decide::Reason::Undo`].
    fn undo(&mut self, now: Duration, promotions: &mut Promotions) -> Vec<Done> {
        let _ = (now, promotions);
        Vec::new()
    }
}

/// Reason that a promotion to less than 2 MiB is never obtained.
const NO_SMALL: &str = "MADV_COLLAPSE makes pages of 2 MiB alone";

fn nanoseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_nanos() as u64)
}
