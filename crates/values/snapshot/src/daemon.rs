//! Report of a daemon on itself over its socket: plain values, written by the daemon and read by
//! the commands that show them.

use serde::{Deserialize, Serialize};

/// Schema of [`DaemonStatus`] as JSON.
pub const STATUS_SCHEMA: &str = "megapage.status/2";
/// Schema of [`Decisions`] as JSON.
pub const DECISIONS_SCHEMA: &str = "megapage.decisions/1";

/// Report of a daemon that was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonSeen {
    /// Its state.
    pub status: DaemonStatus,
    /// Its last decisions.
    pub decisions: Decisions,
}

/// State of a daemon at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// [`STATUS_SCHEMA`].
    pub schema: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Time since it began to report.
    pub running_seconds: f64,
    /// The policy's name; empty before the first pass.
    pub policy: String,
    /// True if it changes nothing.
    pub dry_run: bool,
    /// Passes so far.
    pub passes: u64,
    /// The last pass; `None` before the first.
    pub last_pass: Option<PassStatus>,
    /// Sum of all actions so far, including those on processes that have ended.
    pub totals: Totals,
    /// Its processor time, user and system.
    pub cpu_seconds: f64,
    /// Its resident memory, in bytes; `None` if that could not be read.
    pub resident_bytes: Option<u64>,
    /// Processes of the last pass with most huge memory or most actions; the configuration limits
    /// their number.
    pub processes: Vec<ProcessStatus>,
}

/// One pass of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassStatus {
    /// Number of the pass; 1 for the first.
    pub number: u64,
    /// Time since boot at which it began.
    pub at_seconds: f64,
    /// Time since it ended.
    pub ago_seconds: f64,
    /// Time of observing.
    pub observe_seconds: f64,
    /// Time of deciding.
    pub decide_seconds: f64,
    /// Time of acting.
    pub act_seconds: f64,
    /// Processor time of the daemon.
    pub cpu_seconds: f64,
    /// Processes that are watched.
    pub watched: u64,
    /// Processes that were selected and are not watched for now.
    pub skipped: u64,
    /// Anonymous huge memory of the watched processes, in bytes.
    pub huge_bytes: u64,
    /// True if the policy was notified that memory runs short.
    pub short: bool,
    /// Number of actions.
    pub actions: u64,
    /// Number of actions that were obtained.
    pub obtained: u64,
    /// Number of actions that a budget deferred.
    pub left: u64,
    /// Number of times that the latency guard made a pause or smaller batches.
    pub backed_off: u64,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
}

/// Sum of actions and their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Actions that were tried.
    pub actions: u64,
    /// Actions that were obtained.
    pub obtained: u64,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
}

/// Actions on one process, summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process.
    pub pid: i32,
    /// Start of the process, in clock ticks since boot: a reused pid is another process.
    pub start_ticks: u64,
    /// Its name, without control characters.
    pub name: String,
    /// Its huge memory, in bytes.
    pub huge_bytes: u64,
    /// Its resident memory, hugetlb pages included, in bytes.
    pub resident_bytes: u64,
    /// Zeros in its huge pages as far as they were scanned, in bytes.
    pub bloat_bytes: u64,
    /// Share of its cycles that address translation takes, 0 to 1, if it is known.
    pub translation_share: Option<f64>,
    /// Sum of the daemon's actions on it.
    pub done: Totals,
}

/// Last decisions of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// [`DECISIONS_SCHEMA`].
    pub schema: String,
    /// Number of the newest decision of all; 0 before the first. As `since` in a request, it
    /// selects the later ones.
    pub newest: u64,
    /// Decisions after `since` that are not stored any longer.
    pub lost: u64,
    /// The decisions, the oldest first.
    pub decisions: Vec<Decision>,
}

/// One action: the request, its reason, and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Number of the action; 1 for the first since the daemon started.
    pub number: u64,
    /// Time since boot at which its pass began.
    pub at_seconds: f64,
    /// Time since its pass began.
    pub ago_seconds: f64,
    /// Process whose memory it was; `None` for the machine.
    pub pid: Option<i32>,
    /// Name of the process, without control characters; empty if it was not observed.
    pub process: String,
    /// `promote`, `demote`, `recover`, `zero-scan`.
    pub action: String,
    /// First address of the region, in hexadecimal. `None` for several regions or none, or if the
    /// client is neither root nor the daemon's user.
    pub region: Option<String>,
    /// Rule of the policy, such as `gain`.
    pub reason: String,
    /// Result, such as `done` or `busy`.
    pub obtained: String,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
    /// Time spent in system calls.
    pub took_seconds: f64,
    /// Answer of the kernel if the action was not obtained, without control characters.
    pub why: Option<String>,
    /// True if the action was only planned (`--dry-run`).
    pub dry_run: bool,
}

impl Totals {
    /// Adds another sum.
    pub fn add(&mut self, other: &Totals) {
        self.actions += other.actions;
        self.obtained += other.obtained;
        self.promoted_bytes = self.promoted_bytes.saturating_add(other.promoted_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(other.freed_bytes);
    }
}
