//! The running systemd, queried by systemctl(1).

use crate::error::{SystemdError, refused};
use crate::name::UnitName;
use megapage_units::Pid;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The system manager of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Manager(());

/// The state of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// ActiveState: `active`, `inactive`, `failed`, `activating`...
    pub active: String,
    /// Its main process.
    pub main: Option<Pid>,
    /// Its control group, from the root of the hierarchy.
    pub group: Option<String>,
    /// True if unit files have changed since systemd read them.
    pub needs_reload: bool,
    /// Start of the active state, in seconds since the epoch.
    pub since: Option<u64>,
}

impl Manager {
    /// Returns the manager if systemd runs (sd_booted(3)) and `root` is this machine's.
    pub fn of(root: &Path) -> Option<Manager> {
        (root == Path::new("/") && Path::new("/run/systemd/system").is_dir()).then_some(Manager(()))
    }

    /// Makes systemd read the unit files again.
    pub fn reload(self) -> Result<(), SystemdError> {
        systemctl(&["daemon-reload"]).map(drop)
    }

    /// Restarts a service if it runs.
    pub fn restart(self, unit: &UnitName) -> Result<(), SystemdError> {
        systemctl(&["try-restart", unit.as_str()]).map(drop)
    }

    /// Returns the loaded instances of a template.
    pub fn instances(self, template: &UnitName) -> Result<Vec<UnitName>, SystemdError> {
        let pattern = format!("{}@*.service", template.prefix());
        let text = systemctl(&["list-units", "--all", "--plain", "--no-legend", &pattern])?;
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.filter_map(|name| UnitName::parse(name).ok()).collect())
    }

    /// Returns the time that the last run of a service's main process took. `None` if it has not
    /// ended, or none was started.
    pub fn lived(self, unit: &UnitName) -> Result<Option<Duration>, SystemdError> {
        let names = "--property=ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic";
        Ok(lived(&systemctl(&["show", names, unit.as_str()])?))
    }

    /// Returns the state of a service.
    pub fn state(self, unit: &UnitName) -> Result<State, SystemdError> {
        let names = "--property=ActiveState,MainPID,ControlGroup,NeedDaemonReload,ActiveEnterTimestamp";
        let text = systemctl(&["show", "--timestamp=unix", names, unit.as_str()])?;
        Ok(State::read(&text))
    }
}

fn lived(text: &str) -> Option<Duration> {
    let value = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        value.parse::<u64>().ok().filter(|microseconds| *microseconds > 0)
    };
    let (start, end) = (value("ExecMainStartTimestampMonotonic")?, value("ExecMainExitTimestampMonotonic")?);
    end.checked_sub(start).map(Duration::from_micros)
}

impl State {
    fn read(text: &str) -> State {
        let mut state = State::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "ActiveState" => state.active = value.into(),
                "MainPID" => state.main = value.parse().ok().filter(|pid| *pid > 0).map(Pid),
                "ControlGroup" => state.group = Some(value.to_string()).filter(|group| !group.is_empty()),
                "NeedDaemonReload" => state.needs_reload = value == "yes",
                "ActiveEnterTimestamp" => state.since = value.trim_start_matches('@').parse().ok(),
                _ => {}
            }
        }
        state
    }
}

fn systemctl(arguments: &[&str]) -> Result<String, SystemdError> {
    let command = format!("systemctl {}", arguments.join(" "));
    let failed = |what: String| refused(&command, what);
    let output =
        Command::new("systemctl").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.lines().next().unwrap_or("failed without a word").trim().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemctl_shows_is_read() {
        let text = "MainPID=812\nActiveState=active\nControlGroup=/system.slice/a.service\nNeedDaemonReload=no\n\
                    ActiveEnterTimestamp=@1700000000\n";
        let state = State::read(text);
        assert_eq!(
            (state.active.as_str(), state.main, state.needs_reload),
            ("active", Some(Pid(812)), false)
        );
        assert_eq!(
            (state.group.as_deref(), state.since),
            (Some("/system.slice/a.service"), Some(1_700_000_000))
        );
        let times = "ExecMainStartTimestampMonotonic=2000000\nExecMainExitTimestampMonotonic=";
        assert_eq!(lived(&format!("{times}3500000\n")), Some(Duration::from_millis(1500)));
        // The exit time may be that of the run before.
        assert_eq!((lived(&format!("{times}1\n")), lived(&format!("{times}0\n"))), (None, None));
        let stopped = State::read("MainPID=0\nControlGroup=\nActiveEnterTimestamp=\nActiveState=inactive\n");
        assert_eq!((stopped.main, stopped.group, stopped.since), (None, None, None));
        assert!(Manager::of(Path::new("/nonexistent")).is_none());
    }
}
