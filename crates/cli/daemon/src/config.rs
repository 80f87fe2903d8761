//! The daemon's configuration: a TOML file, and the command line over it.
//!
//! Every option has an effect and a default; one that is not known is an error. Errors are one line: file, line, what,
//! how to repair it.

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

/// The longest configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The file that is read where none is named; it need not be there.
pub const DEFAULT_PATH: &str = "/etc/megapage/daemon.toml";
/// A pass is made at once when tasks have waited for memory for [`STALL`] within [`WITHIN`]
/// (pressure stall information).
pub(crate) const STALL: Duration = Duration::from_millis(50);
pub(crate) const WITHIN: Duration = Duration::from_secs(1);
/// Keys of former releases, by table. They have no effect any more, and a file that has one is read
/// all the same.
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

/// Why a configuration cannot be used, in one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}{}: {what}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct ConfigError {
    /// The file, or `the command line`.
    pub file: String,
    /// Counted from 1; `None` where it is about the file as a whole.
    pub line: Option<usize>,
    /// The error, and how to repair it.
    pub what: String,
}

/// What becomes of promotions when the daemon is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExit {
    /// They stay.
    #[default]
    Leave,
    /// What this daemon has promoted is split again.
    Undo,
}

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The policy: one of docs/policies.md, such as megapage, hawkeye-pmu, hawkeye-g, ingens, freebsd, linux.
    pub policy: String,
    /// From one pass to the next, at least; 100ms to 1h.
    #[serde(with = "text::time")]
    pub interval: Duration,
    /// What becomes of promotions when the daemon is stopped: "leave" or "undo".
    pub on_exit: OnExit,
    /// The daemon's own priority, -20 (before all others) to 19: what is to relieve a loaded machine must get a
    /// processor; how much of it is bounded by `observe.own_percent`.
    pub nice: i32,
    /// Where cool-downs are stored over a restart of the daemon; "" keeps none.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub state_file: PathBuf,
    /// Locked by the one daemon of this machine.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub lock_file: PathBuf,
    /// Which processes.
    pub processes: Processes,
    /// How they are looked at.
    pub observe: Observe,
    /// When memory runs short.
    pub pressure: PressureWatch,
    /// What acting may cost.
    pub act: Act,
    /// Bounds on what a policy may ask for, whatever policy it is.
    pub limits: Limits,
    /// The published policies: how fast they promote.
    pub pace: PublishedPace,
    /// The policy "megapage": weights, caps and guaranteed shares, by name or control group.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    /// Where values and decisions can be had.
    pub metrics: MetricsConfig,
    /// What is written to standard error.
    pub log: LogConfig,
    /// Keys of the file that are ignored: a line for each, which says so.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// Which processes are watched. One that is selected by none of these, or is denied, is neither looked at nor touched;
/// megapage itself, its children and kernel threads never are, and process 1 only where `pids` names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Processes {
    /// Regular expressions that are looked for in command names, as pgrep does; none: all.
    pub include: Vec<String>,
    /// Identifiers, in addition to `include`.
    pub pids: Vec<i32>,
    /// Regular expressions: processes of these names are left alone.
    pub exclude: Vec<String>,
    /// Control groups (of the memory controller), with all below them; none: all.
    pub cgroups: Vec<String>,
    /// Users, by name or number; none: all.
    pub users: Vec<String>,
    /// Users whose processes are left alone.
    pub exclude_users: Vec<String>,
    /// Processes of builds of which `megapage trial` has found that huge pages do not pay are left alone, unless `pids` names
    /// them.
    pub heed_trials: bool,
    /// Processes with less resident memory are left alone, unless `pids` names them.
    #[serde(with = "text::size")]
    pub least_resident: Bytes,
    /// At most so many, those with most anonymous memory, and no user's more than half of them where others have some; 1 to
    /// 4096.
    pub most: usize,
}

/// How processes are looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observe {
    /// The largest slow-down of a process by being looked at, in per cent of its processor time.
    pub budget_percent: f64,
    /// From clearing accessed bits to reading them.
    #[serde(with = "text::time")]
    pub window: Duration,
    /// bpf, idle-pages or pagemap; "" for the best that works.
    pub tracker: String,
    /// What the daemon may take of one processor while there is nothing to do, in per cent: passes become rarer.
    pub own_percent: f64,
    /// The same while there is something to do: after a pass that deferred actions, while memory is short, or until a new
    /// process of 256 MiB or more was sampled (30 s at most).
    pub own_percent_busy: f64,
    /// The same while memory is taken back: until it is, a process may be killed for lack of it.
    pub own_percent_short: f64,
}

/// How a shortage is noticed between two passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PressureWatch {
    /// How often the memory in use is looked at, the machine's and that of limited control groups: a pass is made at once
    /// when much of what was left has gone. Also the shortest time between two passes.
    #[serde(with = "text::time")]
    pub look: Duration,
}

/// What acting may cost. All rates are of 2 MiB for each action, whatever came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Act {
    /// Most memory promoted in a second, over all processes: what is copied and zeroed.
    #[serde(with = "text::size")]
    pub promoted_per_second: Bytes,
    /// The same of one process.
    #[serde(with = "text::size")]
    pub promoted_per_second_of_process: Bytes,
    /// Most memory split and recovered in a second, over all processes: what the kernel looks through for zeros.
    #[serde(with = "text::size")]
    pub recovered_per_second: Bytes,
    /// The same of one process.
    #[serde(with = "text::size")]
    pub recovered_per_second_of_process: Bytes,
    /// Time in system calls in one pass.
    #[serde(with = "text::time")]
    pub time: Duration,
    /// After a call that took more processor time than this, its process is left alone for a while; also, for the first
    /// such while, after one that took ten times as long because it had to wait.
    #[serde(with = "text::time")]
    pub latency_guard: Duration,
    /// The first such while; it doubles each time that this happens again...
    #[serde(with = "text::time")]
    pub pause: Duration,
    /// ...up to this, and after a slow call up to a hundred times what a region of it took.
    #[serde(with = "text::time")]
    pub pause_most: Duration,
}

/// Bounds on what a policy may ask for: see `decide::Limits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Policy "megapage": a huge page with so many base pages of zeros is recovered while memory is short; 1 to 512.
    pub least_zeros: u16,
    /// After an action a region is left alone for so long.
    #[serde(with = "text::time")]
    pub settle: Duration,
    /// What was split is not promoted for so long, and the other way round.
    #[serde(with = "text::time")]
    pub cool_down: Duration,
    /// After that it is promoted only if so many of its 512 base pages have come or gone, or the
    /// part of memory in use has fallen by 30 %.
    pub changed_pages: u16,
    /// The first wait after a failure; doubled with each further one...
    #[serde(with = "text::time")]
    pub back_off: Duration,
    /// ...up to this.
    #[serde(with = "text::time")]
    pub back_off_most: Duration,
    /// A process is left alone while a forked child shares its memory; where they come more often than this, until none
    /// was seen for so long. 0: they are no reason.
    #[serde(with = "text::time")]
    pub fork_quiet: Duration,
}

/// What one name or control group is entitled to. Exactly one of `name` and `cgroup`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Each process of this command name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The processes of this control group and those below it, together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// How much their gain counts against others': 1 is as every process's, 0 is never promoted.
    #[serde(default = "one")]
    pub weight: f64,
    /// Most huge memory: of each process, or of the control group in all.
    #[serde(default, with = "text::some_size", skip_serializing_if = "Option::is_none")]
    pub cap: Option<Bytes>,
    /// Huge memory that each process, or the control group in all, gets before others get more.
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
    /// Reads and checks a file. `needed`: whether it is an error that there is none; else the defaults are answered.
    pub fn read(path: &Path, needed: bool) -> Result<Config, ConfigError> {
        Config::read_by(read_given, path, needed)
    }

    /// Reads it again: a pipe of the caller's is empty by now, or would be waited for.
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
        // A text has places for errors, a table has none.
        let read = if ignored.is_empty() { toml::from_str(text) } else { table.try_into() };
        let config = Config { ignored, ..read.map_err(error)? };
        config.check().map_err(|(key, what)| ConfigError {
            file: file.into(),
            line: validate::line_of(text, &key),
            what: format!("{key}: {what}"),
        })?;
        Ok(config)
    }

    /// The same as a file that [`Config::parse`] reads.
    pub fn to_toml(&self) -> String {
        // All that it holds are strings, values, lists and tables.
        toml::to_string(self).unwrap_or_default()
    }

    /// Chooses processes instead of those that the file includes: a value is an identifier, anything else a regular
    /// expression. None leaves the choice as it is.
    pub fn choose(&mut self, processes: &[String]) {
        if processes.is_empty() {
            return;
        }
        let (pids, names): (Vec<&String>, Vec<&String>) =
            processes.iter().partition(|one| one.bytes().all(|byte| byte.is_ascii_digit()));
        // A number that is no identifier at all is one that no process has.
        self.processes.pids = pids.into_iter().map(|pid| pid.parse().unwrap_or(i32::MAX)).collect();
        self.processes.include = names.into_iter().cloned().collect();
        self.processes.least_resident = Bytes::ZERO;
    }

    /// The policy, with its parameters.
    pub fn make_policy(&self) -> Option<Box<dyn Policy>> {
        if self.policy != OWN {
            return known(&self.policy).map(|known| known.make_at(self.pace.of_decide()));
        }
        let defaults = Parameters::default();
        // What pays soon is paced by what acting may take, which is measured, and not by a value.
        let work = self.act.promoted_per_second.0.div_ceil(HUGE_2M as u64).max(defaults.promote.work);
        Some(Box::new(Megapage::new(Parameters {
            claims: self.claims.iter().filter_map(Claim::entitlement).collect(),
            promote_quick: Pace { work, ..defaults.promote_quick },
            least_zeros: self.limits.least_zeros,
            ..defaults
        })))
    }

    /// Returns the policy within its limits, before it has seen anything.
    pub fn state(&self) -> Result<State, ConfigError> {
        let Some(policy) = self.make_policy() else {
            let what = format!("policy: there is no policy '{}'", self.policy);
            return Err(ConfigError { file: "the configuration".into(), line: None, what });
        };
        let mut state = State::new(policy, self.limits.of_decide());
        state.promotions().configure(self.act.budgets());
        Ok(state)
    }

    /// The tracker that is asked for; `None` for the best.
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
    /// As decide takes them.
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
    /// As decide takes them.
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
