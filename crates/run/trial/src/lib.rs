//! Tries huge pages on a running service. The trial makes its memory huge and base again in random
//! order while the service works. The memory stays huge if the service's own metric gains.
//!
//! [`Trial::prepare`] looks at the processes and the metric and changes nothing; [`Trial::run`]
//! does the trial. `megapage_decide::judge` decides the result and the time of each switch.
//!
//! Architecture invariant: at the end, memory is as it was before, unless the decision was to keep
//! it. This also holds after a signal or megapage's death. Memory that was huge before is never
//! split. A metric is read within bounds of time and bytes; one that cannot be read ends the trial.

#![forbid(unsafe_code)]

mod live;
mod metric;
mod processor;
mod reader;
mod report;
mod trial;

pub use metric::{Kind, Metric, MetricOptions, Per};
pub use report::{ProcessReport, Report};
pub use trial::{Options, Target, Trial, TrialError};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "megapage.trial/1";
