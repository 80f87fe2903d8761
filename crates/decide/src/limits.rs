//! Bounds on the requests of one step, for all policies.

use megapage_units::Bytes;
use std::time::Duration;

/// Bounds common to all policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum of bytes copied and zeroed in one step: 2 MiB for each promotion and each block
    /// zeroed ahead.
    pub moved: Bytes,
    /// Maximum of bytes read in one step by zero scans and by recovery, which looks for zeros
    /// itself.
    pub scanned: Bytes,
    /// Maximum of actions in one step.
    pub actions: usize,
    /// Maximum of ranges in one sample.
    pub sample_ranges: usize,
    /// Back-off of a region after an action on it: the next snapshot must have seen the effect.
    pub settle: Duration,
    /// Time after a demotion in which the region is not promoted, and after a promotion in which it
    /// is not demoted.
    pub cool_down: Duration,
    /// After the cool-down, a demoted region is promoted again only after a change: this many more
    /// or fewer of its base pages are present...
    pub changed_pages: u16,
    /// ...or the share of memory in use has fallen by this much (0 to 1). This is more than
    /// recovery itself frees, so that the two cannot undo each other in turn.
    pub relief: f64,
    /// First back-off after a failure, doubled with each further failure in a row. Failures count
    /// for each region; a lack of memory for promotions counts for the whole machine.
    pub back_off: Duration,
    /// Longest back-off. Also that of a region that cannot be changed, of a process that is denied,
    /// and of a kind of action that is unsupported.
    pub back_off_most: Duration,
    /// Private memory of a process is not changed while forked children share it. If the children
    /// came within less than this time of the ones before, it is not changed before this time
    /// without children has passed. With 0, children have no effect.
    pub fork_quiet: Duration,
}

impl Default for Limits {
    /// Returns the bounds of the daemon, the plan and the simulator.
    ///
    /// Collapsing also has budgets in the actuator: bytes a second, time, and the latency guard.
    /// The zero scans of one step must end soon: another step follows at once while memory is
    /// short.
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
            // If a program saves itself by fork(2) more often, its promotions would be split again
            // at once.
            fork_quiet: Duration::from_secs(10),
        }
    }
}
