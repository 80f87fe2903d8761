//! Tries huge pages on a running service: its memory is made huge and base again in random order while it works, and stays huge
//! where the service's own metric gains.
//!
//! [`Trial::prepare`] looks at the processes and the metric and changes nothing; [`Trial::run`] is the trial. What is decided, and
//! when, is `megapage_decide::judge`'s.
//!
//! Architecture invariant: at the end, also after a signal or megapage's death, memory is as it was before, unless the decision
//! was to keep it. Memory that was huge before is never split. A metric is read within bounds of time and bytes, and one that
//! cannot be read ends the trial.

#![forbid(unsafe_code)]

mod live;
mod metric;
mod processor;
mod reader;
mod report;
mod trial;

pub use metric::{Kind, Metric, MetricOptions, Per};
pub use report::{ProcessReport, Report, human};
pub use trial::{Options, Target, Trial, TrialError};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "megapage.trial/1";
