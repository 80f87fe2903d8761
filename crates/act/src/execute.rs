//! Carrying out what a policy asked for.

mod abilities;
mod budget;
pub mod counters;
mod dry_run;
mod executor;
mod options;
mod regions;
mod verdict;
mod work;

pub use abilities::{Abilities, Split, missing_rights};
pub use counters::Counters;
pub use dry_run::DryRun;
pub(crate) use dry_run::{promote_line, split_line};
pub use executor::Executor;
pub use options::ExecutorOptions;

use crate::remote::RemoteError;
use megapage_decide::{Action, Outcome};
use megapage_snapshot::wire;
use megapage_units::Bytes;
use serde::Serialize;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Why nothing can be carried out.
#[derive(Debug, Error)]
pub enum ExecuteError {
    /// The caller lacks rights. The text names all of them, and how to get them.
    #[error("{0}")]
    NotAllowed(String),
    /// The child that the kernel is tried on cannot be had.
    #[error("the kernel cannot be tried on a child process: {0}")]
    Child(#[source] io::Error),
    /// The child did not find what it had written.
    #[error("a child process lost bytes while its huge pages were tried: this kernel is not acted on")]
    BytesLost,
    /// Another reason, such as a kernel that does not show what came of an action.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// What became of one action, with what it took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// What was requested and obtained: by the page tables, not by what a call returned.
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
    /// What the kernel answered, in a few words, where the action was not obtained; `None` where it was. Of a dry run,
    /// that it was one.
    pub why: Option<String>,
}

/// What carries actions out: the kernel, a dry run, or a test.
pub trait Actuator: Send {
    /// Carries out `actions`, which come from one step at the time `now` (since boot), in their order as far as budgets
    /// allow. Answers one for each action that was tried; those that a budget deferred are not answered. Zero
    /// scans are the observer's, and not answered either.
    fn carry_out(&mut self, now: Duration, actions: &[Action]) -> Vec<Done>;

    /// How many times, since this was last asked, something was left alone for a while because a call was slow or memory
    /// was short.
    fn backed_off(&mut self) -> u64 {
        0
    }

    /// Until when, since boot, it does nothing like `action` to that process, as calls on it were slow or no memory was to be
    /// had for it; a time that has passed where nothing keeps it from that. `None`: it does not say.
    fn backs_off_until(&self, action: &Action) -> Option<Duration> {
        let _ = action;
        None
    }

    /// What it has done since it was started; `None` for one that does nothing.
    fn counted(&self) -> Option<Counters> {
        None
    }

    /// Takes other bounds from now on. What it knows stays.
    fn configure(&mut self, options: ExecutorOptions) {
        let _ = options;
    }

    /// Demotes what this actuator has promoted and is still huge, and only that. Budgets do not apply; it takes half a
    /// minute at most. Answers for each region that was tried, with the reason [`megapage_decide::Reason::Undo`].
    fn undo(&mut self, now: Duration) -> Vec<Done> {
        let _ = now;
        Vec::new()
    }
}

/// Why a promotion to less than 2 MiB is never obtained.
const NO_SMALL: &str = "MADV_COLLAPSE makes pages of 2 MiB alone";

fn nanoseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_nanos() as u64)
}
