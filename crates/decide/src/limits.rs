//! Bounds on what a policy may ask for in one step, whatever policy it is.

use megapage_units::Bytes;
use std::time::Duration;

/// Bounds common to all policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most bytes copied and zeroed in one step: 2 MiB for each promotion and each block zeroed ahead.
    pub moved: Bytes,
    /// Most bytes read in one step by zero scans and by recovery, which looks for zeros itself.
    pub scanned: Bytes,
    /// Most actions in one step.
    pub actions: usize,
    /// Most ranges in one sample.
    pub sample_ranges: usize,
    /// After an action on a region, how long the region is left alone: the next snapshot must have seen the effect.
    pub settle: Duration,
    /// After a demotion, how long the region is not promoted; and after a promotion, how long it is not demoted.
    pub cool_down: Duration,
    /// After the cool-down, a demoted region is promoted again only if something has changed: this many more or
    /// fewer of its base pages are present...
    pub changed_pages: u16,
    /// ...or the share of memory in use has fallen by this much (0 to 1). More than recovery itself frees, so that
    /// the two cannot chase each other.
    pub relief: f64,
    /// The first wait after a failure, doubled with each further one on the same region...
    pub back_off: Duration,
    /// ...up to this. Also how long a region that cannot be promoted, and a process that is denied, are left alone.
    pub back_off_most: Duration,
    /// A process is not changed while forked children share its memory; nor, where they came within less than this of
    /// the ones before, until none was seen for so long. With 0 they are no reason to leave it alone.
    pub fork_quiet: Duration,
}

impl Default for Limits {
    /// Returns the bounds of the daemon, the plan and the simulator.
    ///
    /// Collapsing has budgets of its own in the actuator: bytes a second, time, and the latency guard. A pass of zero scans
    /// is to be over soon: another one follows at once while memory is short.
    fn default() -> Limits {
        Limits {
            moved: Bytes::gib(1),
            scanned: Bytes::mib(256),
            actions: 4096,
            sample_ranges: 1 << 16,
            settle: Duration::from_secs(2),
            cool_down: Duration::from_secs(300),
            changed_pages: 64,
            relief: 0.3,
            back_off: Duration::from_secs(10),
            back_off_most: Duration::from_secs(3600),
            // A program that saves itself by fork(2) more often would have what is promoted split again at once.
            fork_quiet: Duration::from_secs(10),
        }
    }
}
