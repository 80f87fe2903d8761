//! The results of a trial.

use megapage_decide::judge::{Better, Outcome};
use serde::Serialize;

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Private memory that is present.
    pub private_bytes: u64,
    /// Part of it that was huge before the trial, and has stayed so.
    pub huge_before_bytes: u64,
    /// Bytes of the regions that the trial has made huge and base.
    pub moved_bytes: u64,
}

/// A trial: `megapage.trial/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The service, as the user named it.
    pub service: String,
    /// The unit; empty if the service runs in none.
    pub unit: String,
    /// The metric, in words.
    pub metric: String,
    /// The better values: greater or smaller ones.
    pub better: Better,
    /// The least gain that is worth it.
    pub least_gain: f64,
    /// The chance that the interval is wrong.
    pub error: f64,
    /// The longest time of the trial.
    pub most_seconds: f64,
    /// The shortest length of a window.
    pub period_seconds: f64,
    /// The settling time after a switch.
    pub settle_seconds: f64,
    /// The seed that the order was drawn with.
    pub seed: u64,
    /// The processes.
    pub processes: Vec<ProcessReport>,
    /// The share of the private memory that was made huge and base.
    pub share: f64,
    /// Largest number of regions that were huge at a time, added up over the processes.
    pub promoted_regions: u64,
    /// Bytes of zeros that splits have freed.
    pub freed_bytes: u64,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The file in which the next start finds the verdict; `None` if none was kept.
    pub verdict_file: Option<String>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}
