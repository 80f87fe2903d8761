//! One step of a transaction, and its result.

use super::plan::Step;
use megapage_kernel::hugetlb::{PoolFile, PoolScope};
use serde::Serialize;

/// Step and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepOutcome {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// The value read back at the end; `None` in a dry run.
    pub obtained: Option<u64>,
    /// Number of times that the value was written: 0 if it was already as asked, or in a dry run.
    pub attempts: u32,
}

impl StepOutcome {
    /// Returns the pages that were asked for and not obtained.
    pub fn missing(&self) -> u64 {
        self.obtained.map_or(0, |obtained| self.step.asked.saturating_sub(obtained))
    }

    pub(super) fn not_made(step: &Step, obtained: Option<u64>) -> StepOutcome {
        StepOutcome { step: step.clone(), obtained, attempts: 0 }
    }
}

/// Returns the step's name, such as `the pool of 2m pages`, `node 1's pool of 2m pages`,
/// `the overcommit limit of 2m pages`.
pub fn title(step: &Step) -> String {
    match (step.file, step.scope) {
        (PoolFile::Overcommit, _) => format!("the overcommit limit of {} pages", step.size),
        (PoolFile::Pages, PoolScope::Machine) => format!("the pool of {} pages", step.size),
        (PoolFile::Pages, PoolScope::Node(node)) => format!("node {node}'s pool of {} pages", step.size),
    }
}
