//! The daemon's configuration: a TOML file, and the command line over it.
//!
//! Every option has an effect and a default; an unknown one is an error. An error is one line:
//! file, line, problem and remedy.

mod pace;
pub mod text;
mod validate;

pub use pace::PublishedPace;
pub(crate) use validate::uid;

use crate::observability::{LogConfig, MetricsConfig};
use megapage_decide::megapage::claims::{Claim as Entitlement, Whom};
use megapage_decide::megapage::{Megapage, Parameters};
use megapage_decide::{Budgets, Latency, OWN, Pace, Policy, State, known};
use megapage_kernel::runtime_directory::runtime_file;
use megapage_kernel::trusted::{read_given, read_regular};
use megapage_observe::TrackerKind;
use megapage_units::{Bytes, HUGE_2M};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Largest size of a configuration file, in bytes.
const LONGEST: u64 = 1 << 20;

/// File that is read if none is named; it may be absent.
pub const DEFAULT_PATH: &str = "/etc/megapage/daemon.toml";
/// A pass is made at once when tasks have waited for memory for [`STALL`] within [`WITHIN`]
/// (pressure stall information).
pub(crate) const STALL: Duration = Duration::from_millis(50);
pub(crate) const WITHIN: Duration = Duration::from_secs(1);
/// Keys of former releases, by table. They have no effect; a file with one is accepted.
const GONE: [(&str, &str); 10] = [
    ("act", "call"),
    ("limits", "actions"),
    ("limits", "moved"),
    ("limits", "relief_percent"),
    ("limits", "scanned"),
    ("metrics", "decisions"),
    ("pressure", "stall"),
    ("pressure", "within"),
    ("shares", "guarantee_percent"),
    ("thp", "enabled"),
];

/// Tables of former releases: each of their keys is in [`GONE`].
const GONE_TABLES: [&str; 2] = ["shares", "thp"];

/// Trackers of former releases. A file that names one gets the best tracker.
const GONE_TRACKERS: [&str; 2] = ["damon-virtual", "smaps"];

/// Error in a configuration, in one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}{}: {what}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct ConfigError {
    /// The file, or `the command line`.
    pub file: String,
    /// The line, from 1; `None` if the error is about the whole file.
    pub line: Option<usize>,
    /// The error, and how to repair it.
    pub what: String,
}

/// Treatment of promoted memory when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExit {
    /// Leaves it huge.
    #[default]
    Leave,
    /// Splits what this daemon has promoted.
    Undo,
}

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The policy: one of docs/policies.md, such as megapage, hawkeye-pmu, hawkeye-g, ingens,
    /// freebsd, linux.
    pub policy: String,
    /// Shortest time between the starts of two passes; 100ms to 1h.
    #[serde(with = "text::time")]
    pub interval: Duration,
    /// Treatment of promoted memory when the daemon stops: "leave" or "undo".
    pub on_exit: OnExit,
    /// The daemon's nice value, -20 (highest priority) to 19: on a loaded machine the daemon must
    /// get a CPU to free memory. `observe.own_percent` bounds the CPU time that it takes.
    pub nice: i32,
    /// File that keeps cool-downs over a restart of the daemon; "" keeps none.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub state_file: PathBuf,
    /// Lock of the one daemon of this machine.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub lock_file: PathBuf,
    /// Selection of processes.
    pub processes: Processes,
    /// Observation of processes.
    pub observe: Observe,
    /// Detection of memory shortage.
    pub pressure: PressureWatch,
    /// Budgets of actions.
    pub act: Act,
    /// Bounds on the requests of any policy.
    pub limits: Limits,
    /// Promotion rate of the published policies.
    pub pace: PublishedPace,
    /// Claims for the policy "megapage": weights, caps and guaranteed memory, by command name or
    /// control group.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    /// Access to metrics, status and decisions.
    pub metrics: MetricsConfig,
    /// The log on standard error.
    pub log: LogConfig,
    /// Warnings about ignored keys of the file, one line each.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// Selection of the processes to watch. The daemon neither reads nor touches a process that no
/// option selects, or that one excludes. It never touches megapage itself, its children or kernel
/// threads, and process 1 only if `pids` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Processes {
    /// Regular expressions, searched in command names as by pgrep; none: all processes.
    pub include: Vec<String>,
    /// PIDs, in addition to `include`.
    pub pids: Vec<i32>,
    /// Regular expressions: skips processes with these names.
    pub exclude: Vec<String>,
    /// Control groups of the memory controller, with their descendants; none: all.
    pub cgroups: Vec<String>,
    /// Users, by name or number; none: all.
    pub users: Vec<String>,
    /// Users whose processes are skipped.
    pub exclude_users: Vec<String>,
    /// True to skip processes of builds for which `megapage trial` found that huge pages do not
    /// pay. Those in `pids` are not skipped.
    pub heed_trials: bool,
    /// Skips processes with less resident memory, except those in `pids`.
    #[serde(with = "text::size")]
    pub least_resident: Bytes,
    /// Most processes to watch, those with most anonymous memory; 1 to 4096. One user gets at most
    /// half of the places if others have processes.
    pub most: usize,
}

/// Observation of processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observe {
    /// Largest slow-down of a process by sampling, in percent of its CPU time.
    pub budget_percent: f64,
    /// Time from clearing accessed bits to reading them.
    #[serde(with = "text::time")]
    pub window: Duration,
    /// bpf, idle-pages or pagemap; "" for the best that works.
    pub tracker: String,
    /// CPU time that the daemon may take while there is nothing to do, in percent of one CPU:
    /// passes become rarer.
    pub own_percent: f64,
    /// The same while there is something to do: after a pass that deferred actions, while memory is
    /// short, or until a new process of 256 MiB or more is sampled (30 s at most).
    pub own_percent_busy: f64,
    /// The same while memory is recovered, to be in time before the OOM killer.
    pub own_percent_short: f64,
}

/// Detection of memory shortage between two passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PressureWatch {
    /// Interval at which the daemon checks memory in use, of the machine and of limited control
    /// groups. A pass starts at once when much of the remaining memory has gone. Also the shortest
    /// time between two passes.
    #[serde(with = "text::time")]
    pub look: Duration,
}

/// Budgets of actions. Each action counts as 2 MiB, whatever its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Act {
    /// Most memory promoted (copied and zeroed) per second, over all processes.
    #[serde(with = "text::size")]
    pub promoted_per_second: Bytes,
    /// The same for one process.
    #[serde(with = "text::size")]
    pub promoted_per_second_of_process: Bytes,
    /// Most memory split and recovered (searched for zeros by the kernel) per second, over all
    /// processes.
    #[serde(with = "text::size")]
    pub recovered_per_second: Bytes,
    /// The same for one process.
    #[serde(with = "text::size")]
    pub recovered_per_second_of_process: Bytes,
    /// Time for the system calls of one pass.
    #[serde(with = "text::time")]
    pub time: Duration,
    /// A process is skipped for a pause after a call that took more CPU time than this. It is also
    /// skipped, for the first such pause, after a call that took ten times as long because it
    /// waited.
    #[serde(with = "text::time")]
    pub latency_guard: Duration,
    /// The first such pause; it doubles with each further one...
    #[serde(with = "text::time")]
    pub pause: Duration,
    /// ...up to this. After a slow call it is at most a hundred times the time for one region.
    #[serde(with = "text::time")]
    pub pause_most: Duration,
}

/// Bounds on the requests of any policy: see `decide::Limits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Fewest base pages of zeros in a huge page that is recovered while memory is short (policy
    /// "megapage"); 1 to 512.
    pub least_zeros: u16,
    /// Time after an action during which its region is skipped.
    #[serde(with = "text::time")]
    pub settle: Duration,
    /// Time after a split during which its region is not promoted, and the other way round.
    #[serde(with = "text::time")]
    pub cool_down: Duration,
    /// Later, a split region is promoted only after a change: this many of its 512 base pages were
    /// added or removed, or memory in use has fallen by 30 percentage points.
    pub changed_pages: u16,
    /// The first back-off after a failure; it doubles with each further one...
    #[serde(with = "text::time")]
    pub back_off: Duration,
    /// ...up to this.
    #[serde(with = "text::time")]
    pub back_off_most: Duration,
    /// A process is skipped while a forked child shares its memory. If such children follow each
    /// other within this time, it is skipped until none came for this long. 0: forks do not matter.
    #[serde(with = "text::time")]
    pub fork_quiet: Duration,
}

/// Claim of a command name or a control group: exactly one of `name` and `cgroup` is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Each process of this command name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The processes of this control group and its descendants, together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Weight of their gain: 1 is the weight of others, 0 is never promoted.
    #[serde(default = "one")]
    pub weight: f64,
    /// Most huge memory: of each process, or of the control group in total.
    #[serde(default, with = "text::some_size", skip_serializing_if = "Option::is_none")]
    pub cap: Option<Bytes>,
    /// Huge memory that each process, or the control group in total, gets before others get more.
    #[serde(default, with = "text::some_size", skip_serializing_if = "Option::is_none")]
    pub least: Option<Bytes>,
}

fn one() -> f64 {
    1.0
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: OWN.into(),
            interval: Duration::from_secs(1),
            on_exit: OnExit::Leave,
            nice: -10,
            state_file: "/var/lib/megapage/daemon.json".into(),
            lock_file: runtime_file("daemon.lock"),
            processes: Processes::default(),
            observe: Observe::default(),
            pressure: PressureWatch::default(),
            act: Act::default(),
            limits: Limits::default(),
            pace: PublishedPace::default(),
            claims: Vec::new(),
            metrics: MetricsConfig::default(),
            log: LogConfig::default(),
            ignored: Vec::new(),
        }
    }
}

impl Default for Processes {
    fn default() -> Processes {
        Processes {
            include: Vec::new(),
            pids: Vec::new(),
            exclude: Vec::new(),
            cgroups: Vec::new(),
            users: Vec::new(),
            exclude_users: Vec::new(),
            heed_trials: true,
            least_resident: Bytes::mib(64),
            most: 256,
        }
    }
}

impl Default for Observe {
    fn default() -> Observe {
        Observe {
            budget_percent: 1.0,
            window: Duration::from_secs(1),
            tracker: String::new(),
            own_percent: 0.5,
            own_percent_busy: 10.0,
            own_percent_short: 50.0,
        }
    }
}

impl Default for PressureWatch {
    fn default() -> PressureWatch {
        PressureWatch { look: Duration::from_millis(100) }
    }
}

impl Default for Act {
    fn default() -> Act {
        let budgets = Budgets::default();
        Act {
            promoted_per_second: budgets.moved,
            promoted_per_second_of_process: budgets.moved_per_process,
            recovered_per_second: budgets.scanned,
            recovered_per_second_of_process: budgets.scanned_per_process,
            time: budgets.time,
            latency_guard: budgets.latency.slow,
            pause: budgets.latency.pause,
            pause_most: budgets.latency.pause_most,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let limits = megapage_decide::Limits::default();
        Limits {
            least_zeros: Parameters::default().least_zeros,
            settle: limits.settle,
            cool_down: limits.cool_down,
            changed_pages: limits.changed_pages,
            back_off: limits.back_off,
            back_off_most: limits.back_off_most,
            fork_quiet: limits.fork_quiet,
        }
    }
}

impl Config {
    /// Reads and checks a file. If the file is absent, returns an error if it is `needed`, else the
    /// defaults.
    pub fn read(path: &Path, needed: bool) -> Result<Config, ConfigError> {
        Config::read_by(read_given, path, needed)
    }

    /// Reads a regular file again. A pipe is refused: it is empty by now, or the read would block.
    pub fn reread(path: &Path, needed: bool) -> Result<Config, ConfigError> {
        Config::read_by(read_regular, path, needed)
    }

    fn read_by(
        read: fn(&Path, u64) -> std::io::Result<Vec<u8>>,
        path: &Path,
        needed: bool,
    ) -> Result<Config, ConfigError> {
        let file = path.display().to_string();
        let text = read(path, LONGEST);
        match text.and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other)) {
            Ok(text) => Config::parse(&file, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !needed => Ok(Config::default()),
            Err(error) => Err(ConfigError { file, line: None, what: format!("cannot be read: {error}") }),
        }
    }

    /// Reads and checks a text; `file` names it in errors.
    pub fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
        let error = |error: toml::de::Error| ConfigError {
            file: file.into(),
            line: error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
            // Some messages have several lines.
            what: error.message().split_whitespace().collect::<Vec<_>>().join(" "),
        };
        let mut table: toml::Table = toml::from_str(text).map_err(error)?;
        let ignored = ignored(file, text, &mut table);
        // Parses the text if possible: errors in a text have positions, errors in a table have
        // none.
        let read = if ignored.is_empty() { toml::from_str(text) } else { table.try_into() };
        let config = Config { ignored, ..read.map_err(error)? };
        config.check().map_err(|(key, what)| ConfigError {
            file: file.into(),
            line: validate::line_of(text, &key),
            what: format!("{key}: {what}"),
        })?;
        Ok(config)
    }

    /// Returns the configuration as text that [`Config::parse`] reads.
    pub fn to_toml(&self) -> String {
        // Cannot fail: it holds only strings, values, lists and tables.
        toml::to_string(self).unwrap_or_default()
    }

    /// Replaces the file's selection of processes: a number is a PID, anything else a regular
    /// expression. Changes nothing if `processes` is empty.
    pub fn choose(&mut self, processes: &[String]) {
        if processes.is_empty() {
            return;
        }
        let (pids, names): (Vec<&String>, Vec<&String>) =
            processes.iter().partition(|one| one.bytes().all(|byte| byte.is_ascii_digit()));
        // A number too large for a PID becomes a PID that no process has.
        self.processes.pids = pids.into_iter().map(|pid| pid.parse().unwrap_or(i32::MAX)).collect();
        self.processes.include = names.into_iter().cloned().collect();
        self.processes.least_resident = Bytes::ZERO;
    }

    /// Returns the policy with its parameters; `None` if its name is unknown.
    pub fn make_policy(&self) -> Option<Box<dyn Policy>> {
        if self.policy != OWN {
            return known(&self.policy).map(|known| known.make_at(self.pace.of_decide()));
        }
        let defaults = Parameters::default();
        // `act.promoted_per_second` limits promotions that pay soon, so the policy's own rate for
        // them must not be lower.
        let work = self.act.promoted_per_second.0.div_ceil(HUGE_2M as u64).max(defaults.promote.work);
        Some(Box::new(Megapage::new(Parameters {
            claims: self.claims.iter().filter_map(Claim::entitlement).collect(),
            promote_quick: Pace { work, ..defaults.promote_quick },
            least_zeros: self.limits.least_zeros,
            ..defaults
        })))
    }

    /// Returns the initial state of the policy within its limits.
    pub fn state(&self) -> Result<State, ConfigError> {
        let Some(policy) = self.make_policy() else {
            let what = format!("policy: there is no policy '{}'", self.policy);
            return Err(ConfigError { file: "the configuration".into(), line: None, what });
        };
        let mut state = State::new(policy, self.limits.of_decide());
        state.promotions().configure(self.act.budgets());
        Ok(state)
    }

    /// Returns the configured tracker; `None` for the best.
    pub fn tracker(&self) -> Option<TrackerKind> {
        TrackerKind::parse(self.observe.tracker.as_bytes())
    }
}

/// Removes keys in [`GONE`], empty tables in [`GONE_TABLES`], and a tracker in [`GONE_TRACKERS`]
/// from `table`. Returns a warning for each.
fn ignored(file: &str, text: &str, table: &mut toml::Table) -> Vec<String> {
    let mut ignored = Vec::new();
    for (section, key) in GONE.into_iter().chain([("observe", "tracker")]) {
        let Some(toml::Value::Table(within)) = table.get_mut(section) else { continue };
        let is_tracker = |value: &toml::Value| GONE_TRACKERS.map(Some).contains(&value.as_str());
        let is_gone = |value: &toml::Value| key != "tracker" || is_tracker(value);
        let is_gone_table = within.is_empty() && GONE_TABLES.contains(&section);
        if is_gone_table || within.get(key).is_some_and(is_gone) {
            within.remove(key);
            if within.is_empty() {
                table.remove(section);
            }
            let name = if is_gone_table { section.to_string() } else { format!("{section}.{key}") };
            let line = validate::line_of(text, &name);
            let line = line.map(|line| format!(":{line}")).unwrap_or_default();
            let instead = if section == "thp" { ", and use megapage thp persist enabled=always" } else { "" };
            ignored.push(format!("{file}{line}: {name} has no effect any more: delete it{instead}"));
        }
    }
    ignored
}

impl Act {
    /// Returns them as the crate decide takes them.
    pub fn budgets(&self) -> Budgets {
        let Act { latency_guard: slow, pause, pause_most, .. } = *self;
        Budgets {
            moved: self.promoted_per_second,
            moved_per_process: self.promoted_per_second_of_process,
            scanned: self.recovered_per_second,
            scanned_per_process: self.recovered_per_second_of_process,
            time: self.time,
            latency: Latency { slow, pause, pause_most, ..Latency::default() },
            ..Budgets::default()
        }
    }
}

impl Limits {
    /// Returns them as the crate decide takes them.
    pub fn of_decide(&self) -> megapage_decide::Limits {
        megapage_decide::Limits {
            settle: self.settle,
            cool_down: self.cool_down,
            changed_pages: self.changed_pages,
            back_off: self.back_off,
            back_off_most: self.back_off_most,
            fork_quiet: self.fork_quiet,
            ..megapage_decide::Limits::default()
        }
    }
}

impl Claim {
    fn entitlement(&self) -> Option<Entitlement> {
        let whom = match (&self.name, &self.cgroup) {
            (Some(name), None) => Whom::Name(name.clone()),
            (None, Some(group)) => Whom::Cgroup(group.clone()),
            _ => return None,
        };
        Some(Entitlement { whom, weight: self.weight, cap: self.cap, least: self.least })
    }
}

#[cfg(test)]
mod tests;
