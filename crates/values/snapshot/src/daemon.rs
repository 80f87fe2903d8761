//! What a daemon reports on itself over its socket: plain values, written by the daemon and read by the commands that show them.

use serde::{Deserialize, Serialize};

/// The schema of [`DaemonStatus`] as JSON.
pub const STATUS_SCHEMA: &str = "megapage.status/2";
/// The schema of [`Decisions`] as JSON.
pub const DECISIONS_SCHEMA: &str = "megapage.decisions/1";

/// What a daemon that was asked has reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonSeen {
    /// How it is.
    pub status: DaemonStatus,
    /// What it did last.
    pub decisions: Decisions,
}

/// A daemon at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// [`STATUS_SCHEMA`].
    pub schema: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it began to report.
    pub running_seconds: f64,
    /// The policy's name; empty before the first pass.
    pub policy: String,
    /// Whether it changes nothing.
    pub dry_run: bool,
    /// Passes so far.
    pub passes: u64,
    /// The last of them; `None` before the first.
    pub last_pass: Option<PassStatus>,
    /// All actions so far, those of processes that have ended included.
    pub totals: Totals,
    /// Its own processor time, user and system.
    pub cpu_seconds: f64,
    /// Its own resident memory, in bytes; `None` where that could not be read.
    pub resident_bytes: Option<u64>,
    /// The processes of the last pass that have most huge memory or were acted on most, at most so many as the
    /// configuration says.
    pub processes: Vec<ProcessStatus>,
}

/// One pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassStatus {
    /// 1 for the first.
    pub number: u64,
    /// When it began, since boot.
    pub at_seconds: f64,
    /// Since it ended.
    pub ago_seconds: f64,
    /// Observing.
    pub observe_seconds: f64,
    /// Deciding.
    pub decide_seconds: f64,
    /// Acting.
    pub act_seconds: f64,
    /// The daemon's processor time.
    pub cpu_seconds: f64,
    /// Processes that are watched.
    pub watched: u64,
    /// Processes that were selected and are not watched for now.
    pub skipped: u64,
    /// Anonymous huge memory of the watched processes, in bytes.
    pub huge_bytes: u64,
    /// Whether the policy was notified that memory runs short.
    pub short: bool,
    /// Actions.
    pub actions: u64,
    /// Those of them that were obtained.
    pub obtained: u64,
    /// Actions that a budget deferred.
    pub left: u64,
    /// How often the latency guard made a pause or smaller batches.
    pub backed_off: u64,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
}

/// What was done, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Actions that were tried.
    pub actions: u64,
    /// Those of them that were obtained.
    pub obtained: u64,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
}

/// What was done to one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process.
    pub pid: i32,
    /// When it started, in clock ticks since boot: a pid that is used again is another process.
    pub start_ticks: u64,
    /// Its name, without control characters.
    pub name: String,
    /// Its huge memory, in bytes.
    pub huge_bytes: u64,
    /// Its resident memory, hugetlb pages included, in bytes.
    pub resident_bytes: u64,
    /// Zeros in its huge pages as far as they were scanned, in bytes.
    pub bloat_bytes: u64,
    /// The share of its cycles that address translation takes, 0 to 1, where that is known.
    pub translation_share: Option<f64>,
    /// What the daemon has done to it.
    pub done: Totals,
}

/// The last decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// [`DECISIONS_SCHEMA`].
    pub schema: String,
    /// The number of the newest decision of all; 0 before the first. Asking `since` it gives what comes after.
    pub newest: u64,
    /// Decisions after `since` that are not stored any longer.
    pub lost: u64,
    /// Oldest first.
    pub decisions: Vec<Decision>,
}

/// One action: what was asked, why, and what was obtained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// 1 for the first since the daemon started.
    pub number: u64,
    /// When the pass began in which it was taken, since boot.
    pub at_seconds: f64,
    /// Since then.
    pub ago_seconds: f64,
    /// Whose memory; `None` where the machine's.
    pub pid: Option<i32>,
    /// The process's name, without control characters; empty where it was not observed.
    pub process: String,
    /// `promote`, `demote`, `recover`, `zero-scan`.
    pub action: String,
    /// The region's first address, in hexadecimal; `None` where several or none are concerned, or who asks is neither
    /// root nor the daemon's user.
    pub region: Option<String>,
    /// The rule of the policy, such as `gain`.
    pub reason: String,
    /// What was obtained, such as `done` or `busy`.
    pub obtained: String,
    /// Memory made huge, in bytes.
    pub promoted_bytes: u64,
    /// Memory released to the machine, in bytes.
    pub freed_bytes: u64,
    /// Time in system calls.
    pub took_seconds: f64,
    /// The kernel's answer where it was not obtained, without control characters.
    pub why: Option<String>,
    /// Whether this was only thought of (`--dry-run`).
    pub dry_run: bool,
}

impl Totals {
    /// These and those of a further action.
    pub fn add(&mut self, other: &Totals) {
        self.actions += other.actions;
        self.obtained += other.obtained;
        self.promoted_bytes = self.promoted_bytes.saturating_add(other.promoted_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(other.freed_bytes);
    }
}
