//! Translation cost from the processor's performance monitoring unit: cycles with a page walk under
//! way, divided by all unhalted cycles of a process.
//!
//! This is the value of the hardware, not the gain by huge pages. Out-of-order execution hides a
//! part of a walk. On huge pages a walk is shorter, not absent.

mod calibrate;
mod counters;
mod events;
mod share;

use counters::{Counters, OpenError};
use megapage_kernel::perf::{self, Event, Scope};
use megapage_kernel::{KernelError, KernelRoot, processor};
use megapage_snapshot::{ProcessId, TranslationCost};
use megapage_units::Pid;
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;

pub use calibrate::Calibration;
pub use events::{Counted, Recipe, recipe};
pub use share::{Interval, NoCost, interval, share};

/// Largest number of intervals from which a value is computed: older ones are forgotten.
const MOST_INTERVALS: usize = 32;

/// Reason why the performance monitoring unit gives no value.
#[derive(Debug, Error)]
pub enum PmuError {
    /// The kernel offers no hardware counters.
    #[error(
        "no performance monitoring unit: the kernel offers no hardware counters, as in most virtual machines \
         ({0}); the cost is estimated instead"
    )]
    Absent(String),
    /// The events for page walks on this processor are unknown.
    #[error("no events for page walks are known for this processor ({0}); the cost is estimated instead")]
    Unknown(String),
    /// The kernel refuses to count.
    #[error(
        "counting events of process {pid} is refused (kernel.perf_event_paranoid is {paranoia}): run as root, or \
         with CAP_PERFMON and CAP_SYS_PTRACE"
    )]
    Denied {
        /// Process.
        pid: Pid,
        /// Value of the setting; `-` if it cannot be read.
        paranoia: String,
    },
    /// The process has too many threads for our descriptors.
    #[error(
        "process {pid} has more threads than can be counted at {events} descriptors each: raise 'ulimit -n' and try \
         again"
    )]
    TooManyThreads {
        /// Process.
        pid: Pid,
        /// Descriptors for each thread.
        events: usize,
    },
    /// The process has ended. This is normal.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// On AMD, the cost of a miss could not be measured.
    #[error("the cost of a TLB miss could not be measured: {0}; the cost is estimated instead")]
    Uncalibrated(String),
    /// The kernel gave another error.
    #[error("perf_event_open: {0}")]
    Failed(std::io::Error),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Counter of the page walks of processes.
#[derive(Debug)]
pub struct Pmu {
    root: KernelRoot,
    recipe: &'static Recipe,
    events: Vec<Event>,
    scope: Scope,
    calibration: Option<Calibration>,
    watched: BTreeMap<ProcessId, Watched>,
}

#[derive(Debug)]
struct Watched {
    counters: Counters,
    intervals: VecDeque<Interval>,
}

impl Pmu {
    /// Looks up the events for page walks on this processor, and tries them on the calling thread.
    /// On AMD processors it then measures the cost of a miss, for about 10 ms.
    pub fn open(root: &KernelRoot) -> Result<Pmu, PmuError> {
        let which = processor(root)?;
        let unit = hardware_unit(root)?.ok_or_else(|| PmuError::Absent("no counting unit 'cpu'".into()))?;
        let recipe = recipe(&which).ok_or_else(|| {
            PmuError::Unknown(format!("{} family {} model {}", which.vendor, which.family, which.model))
        })?;
        let events: Vec<Event> = recipe.events().map(|config| Event { unit, config }).collect();
        let own = Pid(std::process::id().cast_signed());
        let scope =
            counters::usable_scope(&events).map_err(|error| explain(root, own, events.len(), error))?;
        let calibration = match recipe.counted {
            Counted::WalkCycles { .. } => None,
            Counted::Misses { walkers, .. } => {
                Some(calibrate::measure(root, &events, scope, walkers).map_err(PmuError::Uncalibrated)?)
            }
        };
        Ok(Pmu { root: root.clone(), recipe, events, scope, calibration, watched: BTreeMap::new() })
    }

    /// Starts to count a process. Does nothing if it is counted already. Each thread takes two or
    /// three descriptors.
    pub fn watch(&mut self, id: ProcessId) -> Result<(), PmuError> {
        if self.watched.contains_key(&id) {
            return Ok(());
        }
        let counters = Counters::attach(&self.root, id.pid, &self.events, self.scope)
            .map_err(|error| explain(&self.root, id.pid, self.events.len(), error))?;
        self.watched.insert(id, Watched { counters, intervals: VecDeque::new() });
        Ok(())
    }

    /// Ends the current interval of a process. Returns its translation cost over the last 32
    /// intervals. Returns `Ok(None)` if the process is not watched, or was counted for too short a
    /// time.
    pub fn read(&mut self, id: ProcessId) -> Result<Option<TranslationCost>, PmuError> {
        let Some(watched) = self.watched.get_mut(&id) else { return Ok(None) };
        let threads = watched
            .counters
            .advance(&self.root)
            .map_err(|error| explain(&self.root, id.pid, self.events.len(), error))?;
        watched.intervals.push_back(interval(&threads));
        if watched.intervals.len() > MOST_INTERVALS {
            watched.intervals.pop_front();
        }
        let intervals = watched.intervals.make_contiguous();
        Ok(share(self.recipe, self.calibration, intervals).ok())
    }

    /// Stops counting all processes except those in `alive`.
    pub fn retain(&mut self, alive: &[ProcessId]) {
        self.watched.retain(|id, _| alive.contains(id));
    }
}

/// Returns the unit that counts cycles and page walks: `cpu`, or the fast cores of a processor with
/// two kinds. Then neither walks nor cycles on slow cores are counted.
fn hardware_unit(root: &KernelRoot) -> Result<Option<u32>, KernelError> {
    match perf::unit(root, "cpu")? {
        Some(unit) => Ok(Some(unit)),
        None => perf::unit(root, "cpu_core"),
    }
}

fn explain(root: &KernelRoot, pid: Pid, events: usize, error: OpenError) -> PmuError {
    match error {
        OpenError::Absent(error) => PmuError::Absent(error.to_string()),
        OpenError::Refused => PmuError::Denied {
            pid,
            paranoia: perf::paranoia(root).map_or("-".to_string(), |paranoia| paranoia.to_string()),
        },
        OpenError::TooMany => PmuError::TooManyThreads { pid, events },
        OpenError::Gone => PmuError::Gone(pid),
        OpenError::Failed(error) => PmuError::Failed(error),
        OpenError::Kernel(error) => PmuError::Kernel(error),
    }
}

#[cfg(test)]
mod tests;
