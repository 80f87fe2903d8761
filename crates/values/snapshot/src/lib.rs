//! Observations of a machine and its processes, as values: observe writes them, and policies,
//! reports and the simulator read them.
//!
//! Architecture invariant: no I/O, no clock, no threads. A snapshot refers to no file or path that
//! is read later, so a synthetic snapshot is as good as an observed one.

#![forbid(unsafe_code)]

mod backing;
pub mod daemon;
pub mod group;
mod machine;
mod process;
mod region;
mod sampling;
pub mod thp;
mod translation;
pub mod wire;

pub use backing::BackingBytes;
pub use machine::{Counters, Machine, Memory, Node, Pool, Pressure};
pub use process::{
    HugePages, MappedObject, Mapping, MappingFlags, MappingKind, MemoryLimit, Outline, Process, ProcessId,
};
pub use region::{AccessClass, AccessProfile, Accessed, Leaf, PAGES, Region};
pub use sampling::{Missed, MissedWhy, ProcessSampling, Sampling, TrackerKind};
pub use translation::{CostSource, TranslationCost};

use serde::Serialize;
use std::time::Duration;

/// A machine and chosen processes at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Time at which it was taken: since boot (`CLOCK_BOOTTIME`), or by the simulator's clock. It
    /// never falls.
    #[serde(serialize_with = "wire::seconds", rename = "taken_seconds")]
    pub taken: Duration,
    /// The machine.
    pub machine: Machine,
    /// Method of sampling access bits; `None` if they are not sampled.
    pub sampling: Option<Sampling>,
    /// Processes that could be observed, ascending by pid.
    pub processes: Vec<Process>,
    /// Requested processes that could not be observed this time, each with the reason. Earlier
    /// values of theirs are not repeated. A process that could be observed, but not sampled, is in
    /// both lists.
    pub missed: Vec<Missed>,
}

impl Snapshot {
    /// Returns the process with this pid, if it was observed.
    pub fn process(&self, pid: megapage_units::Pid) -> Option<&Process> {
        self.processes.iter().find(|process| process.id.pid == pid)
    }
}
