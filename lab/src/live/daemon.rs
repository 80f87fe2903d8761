//! `megapage daemon` as a child, with its defaults except for the processes that it may touch and
//! the place of its files.

use crate::bench::Place;
use crate::child::Child;
use anyhow::{Context, Result, bail};
use megapage_kernel::KernelRoot;
use megapage_kernel::cpu_time_of;
use megapage_kernel::process::read_stat;
use megapage_kernel::spawn::{ChildEvent, Signals, send_signal, signal};
use megapage_units::Pid;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A daemon that runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    directory: TempDir,
}

impl Daemon {
    /// Starts one under `policy` that watches only `pids`.
    pub(crate) fn start(policy: &str, pids: &[Pid], place: &Place, signals: &Signals) -> Result<Daemon> {
        let directory =
            tempfile::Builder::new().prefix("megapage-bench-daemon").tempdir().context("a directory")?;
        let file = directory.path().join("daemon.toml");
        fs::write(&file, configuration(pids, directory.path()))
            .with_context(|| file.display().to_string())?;
        let log = log(directory.path());
        let said = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(&place.megapage);
        command.args(["daemon", "--policy", policy, "--config"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = Child::start(signals, &mut command, signal::SIGTERM)?;
        Ok(Daemon { child, directory })
    }

    /// Returns its processor time so far, with that of its children that have ended.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let pid = self.child.pid();
        let own = cpu_time_of(pid).context("the daemon's processor time")?;
        Ok(own + read_stat(&KernelRoot::live(), pid)?.children_cpu)
    }

    /// Sends it a signal: one that stops it for a while, or lets it go on.
    pub(super) fn send(&self, number: i32) -> Result<()> {
        send_signal(self.child.pid(), number).context("a signal to the daemon")
    }

    /// Fails if it has ended, with the last line that it wrote.
    pub(super) fn must_run(&mut self) -> Result<()> {
        match self.child.end()? {
            None => Ok(()),
            Some(event) => bail!("megapage daemon ended with {event:?}: {}", self.last_words()),
        }
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(log(self.directory.path())).unwrap_or_default();
        text.lines().last().unwrap_or("it said nothing").to_string()
    }

    /// Ends it. Promotions stay. Fails if it does not exit with 0.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.must_run()?;
        let words = |directory: &Path| fs::read_to_string(log(directory)).unwrap_or_default();
        match self.child.stop()? {
            Some(ChildEvent::Exited(0)) => Ok(()),
            event => bail!(
                "megapage daemon ended with {event:?} when it was asked to: {}",
                words(self.directory.path()).lines().last().unwrap_or("it said nothing")
            ),
        }
    }
}

fn log(directory: &Path) -> PathBuf {
    directory.join("daemon.log")
}

/// Returns the configuration file: the defaults, for these processes only.
fn configuration(pids: &[Pid], directory: &Path) -> String {
    let mut text = String::new();
    let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
    writeln!(text, "state_file = \"\"").ok();
    writeln!(text, "lock_file = \"{}\"", directory.join("lock").display()).ok();
    // No other program reads its metrics.
    writeln!(text, "[metrics]\nsocket = \"\"").ok();
    writeln!(text, "[processes]").ok();
    // No command name is empty: processes are selected only by number.
    writeln!(text, "include = [\"^$\"]").ok();
    writeln!(text, "pids = [{}]", pids.join(", ")).ok();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_benchs_own_processes_are_selected() {
        let text = configuration(&[Pid(7), Pid(4711)], Path::new("/run/here"));
        assert!(text.contains("include = [\"^$\"]\npids = [7, 4711]\n"), "{text}");
        assert!(text.contains("lock_file = \"/run/here/lock\""), "{text}");
    }
}
