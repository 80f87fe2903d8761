//! Configurations that the benches compare: settings of the kernel alone, and the daemon under each
//! policy.

use super::daemon::Daemon;
use crate::bench::Place;
use crate::experiment::select;
use crate::peers::{KERNEL_SETTINGS, KernelSetting};
use anyhow::{Context, Result};
use megapage_decide::by_name;
use megapage_kernel::spawn::Signals;
use megapage_kernel::thp::ThpEnabled;
use megapage_kernel::{KernelRoot, cpu_time_of, process};
use megapage_testing::thp_change::{ThpChange, ThpControls};
use megapage_units::Pid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Source of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The kernel alone, with these settings. Processes ask for nothing.
    Kernel(ThpControls),
    /// The daemon under the policy of this name, with this `enabled`.
    Daemon(&'static str, ThpEnabled),
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its name, in tables and on the command line.
    pub name: &'static str,
    /// The source of huge pages.
    pub who: Who,
}

/// Configuration that is judged.
pub const OURS: &str = "megapage";
/// The same beside a kernel that makes every fault huge: the daemon takes back bloat.
pub const OURS_ALWAYS: &str = "megapage-always";
const fn kernel(setting: KernelSetting) -> Configuration {
    Configuration { name: setting.name, who: Who::Kernel(setting.controls) }
}

const fn daemon(name: &'static str) -> Configuration {
    Configuration { name, who: Who::Daemon(name, ThpEnabled::Madvise) }
}

/// All, in the order of a round.
pub const CONFIGURATIONS: [Configuration; 14] = [
    kernel(KERNEL_SETTINGS[0]),
    kernel(KERNEL_SETTINGS[1]),
    kernel(KERNEL_SETTINGS[2]),
    kernel(KERNEL_SETTINGS[3]),
    kernel(KERNEL_SETTINGS[4]),
    kernel(KERNEL_SETTINGS[5]),
    kernel(KERNEL_SETTINGS[6]),
    daemon(OURS),
    Configuration { name: OURS_ALWAYS, who: Who::Daemon(OURS, ThpEnabled::Always) },
    daemon("hawkeye-pmu"),
    daemon("hawkeye-g"),
    daemon("ingens"),
    daemon("freebsd"),
    daemon("linux"),
];

/// Settings before and after a measurement: khugepaged is idle, and nothing becomes huge by itself.
pub const AT_REST: ThpControls = ThpControls { enabled: Some(ThpEnabled::Never), ..ThpControls::AS_FOUND };
/// Settings while the bench itself takes huge pages.
pub const ASKED: ThpControls = ThpControls { enabled: Some(ThpEnabled::Madvise), ..AT_REST };

impl Configuration {
    /// Returns the configurations of these names; all if none is named. Fails if a name is unknown.
    pub fn select(names: &[String]) -> Result<Vec<Configuration>> {
        select(&CONFIGURATIONS, |known| known.name, names, "configuration")
    }

    /// Returns the kernel's settings.
    pub fn controls(&self) -> ThpControls {
        match self.who {
            Who::Kernel(controls) => controls,
            Who::Daemon(_, enabled) => ThpControls { enabled: Some(enabled), ..ThpControls::AS_FOUND },
        }
    }

    /// Returns true if every program gets huge pages from the kernel.
    pub fn is_always(&self) -> bool {
        self.controls().enabled == Some(ThpEnabled::Always)
    }

    /// Returns shell lines that bring it about.
    pub fn shell_lines(&self) -> Vec<String> {
        let mut lines = self.controls().shell_lines();
        if let Who::Daemon(policy, _) = self.who {
            debug_assert!(by_name(policy).is_some());
            lines.push(format!("megapage daemon --policy {policy} &"));
        }
        lines
    }

    /// Sets the kernel, and starts the daemon for the processes `pids` if there is one.
    pub(super) fn start(
        &self,
        change: &mut ThpChange,
        pids: &[Pid],
        place: &Place,
        signals: &Signals,
    ) -> Result<Running> {
        let before = helpers()?;
        change.set(&self.controls()).context("the settings of transparent huge pages")?;
        let daemon = match self.who {
            Who::Kernel(_) => None,
            Who::Daemon(policy, _) => Some(Daemon::start(policy, pids, place, signals)?),
        };
        Ok(Running { before, daemon })
    }
}

/// A configuration in force.
#[derive(Debug)]
pub(super) struct Running {
    before: BTreeMap<Pid, Duration>,
    pub(super) daemon: Option<Daemon>,
}

impl Running {
    /// Returns the processor time that was spent on huge pages: by the kernel's threads of memory
    /// management, and all of the daemon's.
    pub(super) fn spent(&self) -> Result<Duration> {
        // khugepaged is a new thread after each time that it was switched off.
        let since = |(pid, now): (Pid, Duration)| {
            now.saturating_sub(self.before.get(&pid).copied().unwrap_or_default())
        };
        let kernel: Duration = helpers()?.into_iter().map(since).sum();
        let daemon = match &self.daemon {
            Some(daemon) => daemon.cpu()?,
            None => Duration::ZERO,
        };
        Ok(kernel + daemon)
    }

    /// Fails if the daemon has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.daemon.as_mut().map_or(Ok(()), Daemon::must_run)
    }

    /// Ends the daemon, if there is one, and lets the kernel become idle.
    pub(super) fn stop(self, change: &mut ThpChange) -> Result<()> {
        let stopped = self.daemon.map_or(Ok(()), Daemon::stop);
        change.set(&AT_REST).context("the settings of transparent huge pages")?;
        stopped
    }
}

/// Returns the processor time of each thread of the kernel that makes, finds or frees huge pages.
fn helpers() -> Result<BTreeMap<Pid, Duration>> {
    let root = KernelRoot::live();
    let mut found = BTreeMap::new();
    for pid in process::list_processes(&root)? {
        // One that has ended meanwhile does not count.
        let Ok(stat) = process::read_stat(&root, pid) else { continue };
        let is_ours = ["khugepaged", "kcompactd", "kswapd"].iter().any(|name| stat.name.starts_with(name));
        if stat.is_kernel_thread && is_ours {
            found.insert(pid, cpu_time_of(pid).unwrap_or(stat.cpu));
        }
    }
    Ok(found)
}

/// A configuration as data.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigurationReport {
    /// Its name.
    pub name: &'static str,
    /// Shell lines that bring it about.
    pub recipe: Vec<String>,
}

impl From<&Configuration> for ConfigurationReport {
    fn from(configuration: &Configuration) -> ConfigurationReport {
        ConfigurationReport { name: configuration.name, recipe: configuration.shell_lines() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_daemon_has_a_policy_and_every_recipe_sets_the_kernel() {
        for configuration in CONFIGURATIONS {
            if let Who::Daemon(policy, enabled) = configuration.who {
                assert!(by_name(policy).is_some(), "{policy}");
                let expected = if enabled == ThpEnabled::Always { OURS_ALWAYS } else { policy };
                assert_eq!(configuration.name, expected);
            }
            let recipe = configuration.shell_lines();
            assert!(recipe.iter().any(|line| line.ends_with("/enabled")), "{recipe:?}");
        }
        let names: std::collections::BTreeSet<_> = CONFIGURATIONS.iter().map(|known| known.name).collect();
        assert_eq!(names.len(), CONFIGURATIONS.len());
    }

    #[test]
    fn configurations_are_selected_in_the_order_of_a_round() {
        let select = |names: &[&str]| -> Vec<&str> {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            Configuration::select(&names).unwrap().iter().map(|known| known.name).collect()
        };
        assert_eq!(select(&[]).len(), CONFIGURATIONS.len());
        assert_eq!(select(&["megapage", "thp-hard"]), ["thp-hard", "megapage"]);
        let error = Configuration::select(&["windows".into()]).unwrap_err().to_string();
        assert!(error.starts_with("'windows' is no configuration; known: thp-never, "), "{error}");
    }

    #[test]
    fn the_kernels_own_threads_are_found() {
        // kcompactd and kswapd run on every Linux with memory management as Debian builds it. In a
        // container that hides the kernel's threads none is found.
        let found = helpers().unwrap();
        let root = KernelRoot::live();
        for pid in found.keys() {
            assert!(process::read_stat(&root, *pid).is_ok_and(|stat| stat.is_kernel_thread));
        }
    }
}
