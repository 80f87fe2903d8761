//! redis-server, by itself or under `megapage run`.

use super::client::{Connection, key};
use crate::bench::Place;
use crate::child::{Child, check};
use crate::redis;
use anyhow::{Context, Result, ensure};
use megapage_kernel::smaps::{backing, read_smaps};
use megapage_kernel::spawn::{Signals, signal};
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_units::Pid;
use serde::Serialize;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Keys that one script sets.
const KEYS_PER_CALL: u64 = 20_000;

/// Program that puts redis' memory on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// No program: base pages.
    Base,
    /// Its own allocator with `thp:always`: as under the kernel's setting `always`, for this
    /// process alone.
    Allocator,
    /// `megapage run` with these arguments.
    Run(&'static [&'static str]),
    /// The daemon, for this process alone.
    Daemon,
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    control: Connection,
    // Dropped before its directory.
    _process: Child,
    pid: Pid,
    directory: TempDir,
}

/// Returns the command line, without the socket and the directory.
pub(super) fn words(who: Who) -> Vec<&'static str> {
    let mut words = match who {
        Who::Base | Who::Daemon => Vec::new(),
        Who::Allocator => vec!["env", "MALLOC_CONF=thp:always"],
        Who::Run(arguments) => [&["megapage", "run"], arguments, &["--"]].concat(),
    };
    words.push(redis::SERVER);
    words.extend(redis::ARGUMENTS);
    words.push(if who == Who::Base { "yes" } else { "no" });
    words
}

impl Server {
    pub(super) fn start(who: Who, place: &Place, signals: &Signals) -> Result<Server> {
        let directory = redis::directory()?;
        let words = words(who);
        let mut command = match words[0] {
            "megapage" => Command::new(&place.megapage),
            name => redis::command(name)?,
        };
        command.args(&words[1..]).env("MEGAPAGE_LIBRARY", &place.library);
        redis::settle(&mut command, directory.path());
        command.stderr(Stdio::null());
        let mut process = Child::start(signals, &mut command, signal::SIGTERM)?;
        redis::wait(directory.path(), signals, || process.must_run())?;
        let mut control = Connection::open(&redis::socket(directory.path()))?;
        let pid = info(&mut control, "server", "process_id")?;
        Ok(Server { control, _process: process, pid: Pid(pid as i32), directory })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn socket(&self) -> PathBuf {
        redis::socket(self.directory.path())
    }

    /// Sets `keys` keys to values of `bytes` bytes.
    pub(super) fn fill(&mut self, keys: u64, bytes: usize, signals: &Signals) -> Result<()> {
        for first in (0..keys).step_by(KEYS_PER_CALL as usize) {
            let last = (first + KEYS_PER_CALL).min(keys) - 1;
            let (first, last, bytes) = (first.to_string(), last.to_string(), bytes.to_string());
            self.control.call(&["EVAL", redis::FILL, "0", &first, &last, &bytes])?;
            check(signals)?;
        }
        let found = self.control.call(&["GET", &key(keys - 1)])?;
        ensure!(found.len() == bytes, "a value has {} bytes, not {bytes}", found.len());
        Ok(())
    }

    /// Asks it to save. Fails if it has not begun.
    pub(super) fn save(&mut self) -> Result<()> {
        self.control.call(&["BGSAVE"]).map(|_| ())
    }

    /// Returns true if it is saving.
    pub(super) fn is_saving(&mut self) -> Result<bool> {
        Ok(self.info("persistence", "rdb_bgsave_in_progress")? != 0)
    }

    /// Returns a value of INFO.
    pub(super) fn info(&mut self, section: &str, field: &str) -> Result<u64> {
        info(&mut self.control, section, field)
    }

    /// Fails unless the last save was successful.
    pub(super) fn must_have_saved(&mut self) -> Result<()> {
        let text = self.control.call(&["INFO", "persistence"])?;
        ensure!(text.contains("rdb_last_bgsave_status:ok"), "redis-server could not save");
        Ok(())
    }

    /// Returns the commands for each second of its processor time, measured over `time`.
    pub(super) fn speed(&mut self, keys: u64, time: Duration) -> Result<f64> {
        let cpu = || cpu_time_of(self.pid).context("the server's time");
        let before = cpu()?;
        let mut reader = Connection::open(&self.socket())?;
        let count = reader.read_for(keys, time)?;
        let seconds = cpu()?.saturating_sub(before).as_secs_f64();
        ensure!(seconds > 0.0, "redis-server did no work");
        Ok(count as f64 / seconds)
    }

    /// Returns the share of its heap-like memory that is on huge pages.
    pub(super) fn huge_share(&self) -> Result<f64> {
        let mappings = read_smaps(&KernelRoot::live(), self.pid)?;
        let bytes = backing(mappings.iter().filter(|mapping| mapping.is_heap_like()));
        Ok(bytes.huge().0 as f64 / bytes.total().0.max(1) as f64)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It closes the connection instead of answering.
        self.control.call(&["SHUTDOWN", "NOSAVE"]).ok();
    }
}

fn info(control: &mut Connection, section: &str, field: &str) -> Result<u64> {
    let text = control.call(&["INFO", section])?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let line = line.with_context(|| format!("redis-server does not report {field}"))?;
    line.trim().parse().with_context(|| format!("{field} of redis-server is '{line}'"))
}
