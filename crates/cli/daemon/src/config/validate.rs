//! Checks of the values of a configuration.

use super::{Config, PublishedPace};
use crate::{instance, saved_state};
use megapage_decide::{OWN, POLICIES};
use megapage_kernel::identity::account;
use megapage_observe::TrackerKind;
use regex_lite::Regex;
use std::io::ErrorKind;
use std::time::Duration;

/// A key with its table (`observe.window`), and the error in its value.
type Wrong = (String, String);

fn wrong<T>(key: &str, what: impl Into<String>) -> Result<T, Wrong> {
    Err((key.into(), what.into()))
}

impl Config {
    /// Checks all values. Returns the key of the first invalid one, with the error.
    pub fn check(&self) -> Result<(), Wrong> {
        if !POLICIES.iter().any(|known| known.name == self.policy) {
            let names: Vec<&str> = POLICIES.iter().map(|known| known.name).collect();
            return wrong(
                "policy",
                format!("there is no policy '{}'; it is one of {}", self.policy, names.join(", ")),
            );
        }
        time("interval", self.interval, Duration::from_millis(100), Duration::from_secs(3600))?;
        if !(-20..=19).contains(&self.nice) {
            return wrong("nice", format!("{} is not from -20 to 19", self.nice));
        }
        if self.lock_file.as_os_str().is_empty() {
            return wrong(
                "lock_file",
                "give a path: the lock keeps two daemons from undoing each other's work",
            );
        }
        // Refuses a file with other content, which would be destroyed. A file that cannot be read
        // cannot be written either: that is reported later.
        for (key, path, checked) in [
            ("lock_file", &self.lock_file, instance::is_usable(&self.lock_file)),
            ("state_file", &self.state_file, saved_state::is_replaceable(&self.state_file)),
        ] {
            match checked {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    return wrong(key, format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        self.check_processes()?;
        let observe = &self.observe;
        percent("observe.budget_percent", observe.budget_percent)?;
        percent("observe.own_percent", observe.own_percent)?;
        percent("observe.own_percent_busy", observe.own_percent_busy)?;
        percent("observe.own_percent_short", observe.own_percent_short)?;
        time("observe.window", observe.window, Duration::from_millis(10), Duration::from_secs(60))?;
        if !observe.tracker.is_empty() && self.tracker().is_none() {
            let names = TrackerKind::ALL.map(TrackerKind::name).join(", ");
            let what = format!("there is no tracker '{}'; it is \"\" or one of {names}", observe.tracker);
            return wrong("observe.tracker", what);
        }
        let pressure = &self.pressure;
        time("pressure.look", pressure.look, Duration::from_millis(10), Duration::from_secs(10))?;
        self.check_act()?;
        self.check_pace()?;
        self.check_claims()
    }

    fn check_pace(&self) -> Result<(), Wrong> {
        let pace = &self.pace;
        if !(1..=65_536).contains(&pace.regions) {
            return wrong("pace.regions", format!("{} is not from 1 to 65536", pace.regions));
        }
        time("pace.interval", pace.interval, Duration::from_millis(10), Duration::from_secs(3600))?;
        if self.policy == OWN && *pace != PublishedPace::default() {
            let what = "only published policies have a pace; policy 'megapage' is bounded by \
                        act.promoted_per_second: set that, or choose another policy";
            return wrong("pace", what);
        }
        Ok(())
    }

    fn check_processes(&self) -> Result<(), Wrong> {
        let processes = &self.processes;
        for (key, patterns) in
            [("processes.include", &processes.include), ("processes.exclude", &processes.exclude)]
        {
            for pattern in patterns {
                if let Err(error) = Regex::new(pattern) {
                    return wrong(key, format!("'{pattern}' is not a regular expression: {error}"));
                }
            }
        }
        for (key, users) in
            [("processes.users", &processes.users), ("processes.exclude_users", &processes.exclude_users)]
        {
            for user in users {
                uid(user).map_err(|what| (key.to_string(), what))?;
            }
        }
        if let Some(group) = processes.cgroups.iter().find(|group| !group.starts_with('/')) {
            let what =
                format!("'{group}' does not start with '/': write it as `megapage top --json` shows it");
            return wrong("processes.cgroups", what);
        }
        if let Some(pid) = processes.pids.iter().find(|pid| **pid < 1) {
            return wrong("processes.pids", format!("{pid} is no process identifier"));
        }
        count("processes.most", processes.most, 4096)
    }

    fn check_act(&self) -> Result<(), Wrong> {
        let act = &self.act;
        for (key, bytes) in [
            ("act.promoted_per_second", act.promoted_per_second),
            ("act.promoted_per_second_of_process", act.promoted_per_second_of_process),
            ("act.recovered_per_second", act.recovered_per_second),
            ("act.recovered_per_second_of_process", act.recovered_per_second_of_process),
        ] {
            if bytes.0 < 2 << 20 {
                return wrong(key, "must be at least 2m, one huge page");
            }
        }
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(10));
        time("act.latency_guard", act.latency_guard, short, long)?;
        time("act.time", act.time, short, long)?;
        time("act.pause", act.pause, short, act.pause_most)?;
        time("act.pause_most", act.pause_most, short, Duration::from_secs(3600))?;
        let limits = &self.limits;
        if !(1..=512).contains(&limits.least_zeros) {
            return wrong("limits.least_zeros", "must be from 1 to 512, the base pages of a huge page");
        }
        if limits.changed_pages > 512 {
            return wrong("limits.changed_pages", "must be at most 512, the base pages of a huge page");
        }
        let day = Duration::from_secs(86_400);
        for (key, value) in [
            ("limits.settle", limits.settle),
            ("limits.cool_down", limits.cool_down),
            ("limits.back_off", limits.back_off),
            ("limits.back_off_most", limits.back_off_most),
            ("limits.fork_quiet", limits.fork_quiet),
        ] {
            time(key, value, Duration::ZERO, day)?;
        }
        Ok(())
    }

    fn check_claims(&self) -> Result<(), Wrong> {
        if self.policy != OWN && !self.claims.is_empty() {
            let what = format!("policy '{}' knows no claims, only policy 'megapage' does", self.policy);
            return wrong("claim", what);
        }
        for claim in &self.claims {
            if claim.name.is_some() == claim.cgroup.is_some() {
                return wrong("claim", "each claim has either a name or a cgroup");
            }
            if claim.name.as_deref().is_some_and(|name| name.len() > 15) {
                let what = "the kernel keeps 15 bytes of a command name: this one is longer";
                return wrong("claim.name", what);
            }
            if claim.cgroup.as_deref().is_some_and(|group| !group.starts_with('/')) {
                return wrong("claim.cgroup", "must start with '/', as `megapage top --json` shows it");
            }
            if !(0.0..=1e6).contains(&claim.weight) {
                return wrong("claim.weight", "must be from 0 to 1000000");
            }
            if let (Some(least), Some(cap)) = (claim.least, claim.cap)
                && least > cap
            {
                return wrong("claim.least", "is more than the cap of the same claim");
            }
        }
        Ok(())
    }
}

/// The number of a user given by name or number.
pub fn uid(user: &str) -> Result<u32, String> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    match account(user) {
        Ok(Some(account)) => Ok(account.uid),
        Ok(None) => Err(format!("there is no user '{user}'")),
        Err(error) => Err(format!("user '{user}' cannot be looked up: {error}")),
    }
}

fn time(key: &str, value: Duration, least: Duration, most: Duration) -> Result<(), Wrong> {
    let text = super::text::of_duration;
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => wrong(key, format!("{} is not from {} to {}", text(value), text(least), text(most))),
    }
}

fn percent(key: &str, value: f64) -> Result<(), Wrong> {
    // The comparison also refuses NaN.
    match value > 0.0 && value <= 100.0 {
        true => Ok(()),
        false => wrong(key, format!("{value} is not above 0 and at most 100")),
    }
}

fn count(key: &str, value: usize, most: usize) -> Result<(), Wrong> {
    match (1..=most).contains(&value) {
        true => Ok(()),
        false => wrong(key, format!("{value} is not from 1 to {most}")),
    }
}

/// Returns the line, from 1, on which `text` has `key`, such as `observe.window`: in its table,
/// dotted, or as a table itself.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut table = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_start_matches('[').split(']').next().unwrap_or_default().trim().to_string();
            if table == key {
                return Some(number + 1);
            }
            continue;
        }
        let name = line.split('=').next().unwrap_or_default().trim();
        let full = if table.is_empty() { name.to_string() } else { format!("{table}.{name}") };
        if line.contains('=') && full == key {
            return Some(number + 1);
        }
    }
    None
}
