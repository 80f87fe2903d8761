//! One turn of work: its clock, the pace at which each process is worked on, and whether a process is still the same.

use super::ExecutorOptions;
use super::budget::Bucket;
use super::pace::{Batch, Pause};
use megapage_kernel::maps::read_maps;
use megapage_kernel::{KernelRoot, process};
use megapage_snapshot::ProcessId;
use megapage_units::VirtRange;
use std::time::{Duration, Instant};

/// How one process is acted on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) collapse: Batch,
    pub(super) split: Batch,
    /// Its calls were slow.
    pub(super) pause: Pause,
    /// Its control group is full.
    pub(super) group_full: Pause,
    pub(super) moved: Bucket,
    pub(super) scanned: Bucket,
    pub(super) used: Duration,
}

/// The time of one lot of actions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) now: Duration,
    pub(super) started: Instant,
    pub(super) most: Duration,
    /// Whether a slow call is no reason to leave the process alone.
    pub(super) urgent: bool,
}

impl Clock {
    pub(super) fn now(&self) -> Duration {
        self.now + self.started.elapsed()
    }

    pub(super) fn is_up(&self) -> bool {
        self.started.elapsed() >= self.most
    }
}

impl Pace {
    pub(super) fn new(options: &ExecutorOptions, now: Duration) -> Pace {
        Pace {
            collapse: Batch::default(),
            split: Batch::default(),
            pause: Pause::default(),
            group_full: Pause::default(),
            moved: Bucket::new(options.moved_per_process, now),
            scanned: Bucket::new(options.scanned_per_process, now),
            used: now,
        }
    }

    /// Until when its process is left alone. `no_memory`: the pause of all promotions.
    pub(super) fn rests_until(&self, promotes: bool, no_memory: &Pause) -> Duration {
        match promotes {
            true => self.pause.until().max(self.group_full.until()).max(no_memory.until()),
            false => self.pause.until(),
        }
    }
}

/// Whether one mapping of the process holds the region whole; `None` where that cannot be read.
pub(super) fn is_mapped(root: &KernelRoot, id: ProcessId, region: VirtRange) -> Option<bool> {
    let mappings = read_maps(root, id.pid).ok()?;
    Some(mappings.iter().any(|mapping| mapping.range.intersection(region) == Some(region)))
}

/// Whether the process is there and still the one that was meant: not another one with its number, nor another
/// program.
pub(super) fn is_same(root: &KernelRoot, id: ProcessId) -> bool {
    process::read_stat(root, id.pid).is_ok_and(|stat| {
        !stat.is_zombie()
            && stat.start_ticks == id.start_ticks
            // 0 where the kernel does not show it.
            && (stat.start_stack == id.start_stack || stat.start_stack == 0 || id.start_stack == 0)
    })
}
