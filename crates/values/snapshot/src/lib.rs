//! What is observed of a machine and its processes, as values: the words that observe writes, and that policies,
//! reports and the simulator read.
//!
//! Architecture invariant: no I/O, no clock, no threads. A snapshot holds no file and no path to be read later, so
//! that a synthetic one is as good as an observed one.

#![forbid(unsafe_code)]

mod backing;
pub mod daemon;
pub mod group;
mod heat;
mod machine;
mod process;
mod region;
mod sampling;
pub mod thp;
mod translation;
pub mod wire;

pub use backing::BackingBytes;
pub use heat::{Heat, HeatCell, HeatRow};
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
    /// When it was taken: time since boot (`CLOCK_BOOTTIME`), or the simulator's clock. Never falls.
    #[serde(serialize_with = "wire::seconds", rename = "taken_seconds")]
    pub taken: Duration,
    /// The machine.
    pub machine: Machine,
    /// How access bits are sampled; `None` where they are not.
    pub sampling: Option<Sampling>,
    /// The processes that could be observed, ascending by pid.
    pub processes: Vec<Process>,
    /// Those asked for that could not be observed this time, each with the reason. What was known of them before
    /// is not repeated. One that could be observed, but not sampled, is in both lists.
    pub missed: Vec<Missed>,
}

impl Snapshot {
    /// The process of this pid, where it was observed.
    pub fn process(&self, pid: megapage_units::Pid) -> Option<&Process> {
        self.processes.iter().find(|process| process.id.pid == pid)
    }
}
