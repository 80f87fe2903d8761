//! DAMON on physical memory: how much of the machine's memory was accessed, exactly, by no process or region.
//!
//! A scheme `stat` with the filter `young` looks at every page frame once in an interval, counts those whose accessed
//! bit is set in any mapping, and clears the bits (Linux 6.14). Every process then pays for its first access to each
//! page again: the interval is therefore so long that even a process that touches all memory is slowed by no more
//! than [`BUDGET`].

use super::TrackError;
use megapage_kernel::KernelRoot;
use megapage_kernel::damon::{self, Configuration, Count, Damon, Target};
use megapage_snapshot::MachineAccess;
use megapage_units::{BASE_PAGE, Bytes};
use std::time::Duration;

/// The largest slow-down of one process that touches all of the machine's memory in each interval.
const BUDGET: f64 = 0.01;
/// What a first access after a clearing costs, at most: a guest on nested page tables takes half of it.
const FIRST_ACCESS: Duration = Duration::from_micros(1);
/// The shortest interval: the monitor's own work is then small, too.
const SHORTEST: Duration = Duration::from_secs(60);
/// How long the kernel takes to answer at most.
const SAMPLE: Duration = Duration::from_millis(100);

/// The monitor. Dropping it switches it off and releases DAMON.
#[derive(Debug)]
pub struct DamonPhysical {
    damon: Damon,
    interval: Duration,
    /// All of the machine's memory.
    memory: Bytes,
    /// When the next count can be complete.
    due: Duration,
    /// What was counted when the last one was.
    former: Option<damon::Counted>,
    last: Option<MachineAccess>,
}

impl DamonPhysical {
    /// Starts the monitor; `now` is a clock of any origin. Needs root, and that no other process uses DAMON: EBUSY
    /// otherwise.
    pub fn start(root: &KernelRoot, now: Duration) -> Result<DamonPhysical, TrackError> {
        let ranges = damon::physical_memory(root)?;
        let memory: Bytes = ranges.iter().map(|range| range.len()).sum();
        if memory == Bytes::ZERO {
            return Err(TrackError::Failed("the addresses of physical memory are hidden; needs root".into()));
        }
        let frames = memory.0 as f64 / BASE_PAGE as f64;
        let interval = FIRST_ACCESS.mul_f64(frames / BUDGET).max(SHORTEST);
        // The kernel takes whole samples.
        let interval = Duration::from_secs(interval.as_secs_f64().ceil() as u64);
        let damon = Damon::take(root, 1)?;
        let regions = ranges.len().max(10) as u64;
        damon.configure(
            0,
            &Configuration {
                target: Target::Physical,
                ranges,
                // What is counted does not depend on how many there are: few cost little.
                regions: (regions, 2 * regions),
                sample: SAMPLE,
                aggregation: 10 * SAMPLE,
                apply: interval,
                count: Count::AccessedPages,
            },
        )?;
        damon.start(0)?;
        Ok(DamonPhysical { damon, interval, memory, due: now + interval, former: None, last: None })
    }

    /// From one count to the next.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The last complete count; `None` in the first two intervals, of which the first only clears. Asks the kernel
    /// once in an interval, which takes it up to 0.1 s.
    pub fn read(&mut self, now: Duration) -> Result<Option<MachineAccess>, TrackError> {
        if now < self.due {
            return Ok(self.last);
        }
        let counted = self.damon.counted(0)?;
        self.due = now + self.interval;
        let Some(former) = self.former.filter(|_| counted.tried > Bytes::ZERO) else {
            // Counted since whenever the bits were last cleared, by any process: no interval of ours.
            self.former = (counted.tried >= self.memory).then_some(counted);
            return Ok(None);
        };
        let tried = counted.tried.saturating_sub(former.tried);
        if tried > Bytes::ZERO {
            // Several passes may have been made since: the mean of them.
            let share = counted.passed.saturating_sub(former.passed).0 as f64 / tried.0 as f64;
            self.last = Some(MachineAccess {
                accessed: Bytes((share * self.memory.0 as f64).round() as u64),
                examined: self.memory,
                interval: self.interval,
            });
            self.former = Some(counted);
        }
        Ok(self.last)
    }
}
