//! redis-server with random keys, asked by redis-benchmark.

use super::{Copy, Work};
use crate::child::Child;
use crate::redis;
use anyhow::{Context, Result, ensure};
use megapage_kernel::perf::{Event, Group, Scope};
use megapage_kernel::spawn::{Signals, signal};
use megapage_units::Pid;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Keys at scale 1, with values of [`VALUE_BYTES`]: about 750 MB.
const KEYS: f64 = 1_500_000.0;
const VALUE_BYTES: usize = 400;
/// Keys that one script sets.
const KEYS_PER_CALL: u64 = 50_000;
/// Requests that make one unit of work: about 1 ms of the server.
const REQUESTS_PER_UNIT: u64 = 1000;
/// Longest time of a call.
const LONGEST: Duration = Duration::from_secs(300);

pub(super) struct Redis {
    // Dropped in this order: the clients, the server, its directory.
    client: Option<Child>,
    server: Child,
    time: Group,
    keys: u64,
    directory: TempDir,
}

impl Redis {
    pub(super) fn start(scale: f64, signals: &Signals) -> Result<Redis> {
        let directory = redis::directory()?;
        let mut command = redis::command(redis::SERVER)?;
        command.args(redis::ARGUMENTS).arg("no");
        redis::settle(&mut command, directory.path());
        let mut server = Child::start(signals, &mut command, signal::SIGTERM)?;
        redis::wait(directory.path(), signals, || server.must_run())?;
        // All commands run in the main thread.
        let scope = Scope { user_only: false, new_threads: false };
        let time = Group::open(server.pid().0, &[Event::TASK_CLOCK], scope).context("perf_event_open")?;
        let keys = (KEYS * scale).max(1000.0) as u64;
        let redis = Redis { client: None, server, time, keys, directory };
        redis.fill(signals)?;
        Ok(redis)
    }

    fn fill(&self, signals: &Signals) -> Result<()> {
        for first in (0..self.keys).step_by(KEYS_PER_CALL as usize) {
            let last = (first + KEYS_PER_CALL).min(self.keys) - 1;
            let (first, last, bytes) = (first.to_string(), last.to_string(), VALUE_BYTES.to_string());
            let mut command = redis::client("redis-cli", self.directory.path())?;
            command.args(["EVAL", redis::FILL, "0", &first, &last, &bytes]);
            Child::start(signals, &mut command, signal::SIGTERM)?.finish(signals, LONGEST)?;
        }
        Ok(())
    }

    fn requests(&self, count: u64) -> Result<Command> {
        let mut command = redis::client("redis-benchmark", self.directory.path())?;
        command.args(["-c", "4", "-P", "32", "-r", &self.keys.to_string(), "-n", &count.to_string()]);
        command.args(["GET", "key:__rand_int__"]);
        Ok(command)
    }
}

impl Copy for Redis {
    fn work(&mut self, units: u64, signals: &Signals) -> Result<Work> {
        let before = self.time.read().context("the server's time")?;
        let mut command = self.requests(units * REQUESTS_PER_UNIT)?;
        Child::start(signals, &mut command, signal::SIGTERM)?.finish(signals, LONGEST)?;
        let after = self.time.read().context("the server's time")?;
        let cpu = after.counts[0].saturating_sub(before.counts[0]);
        ensure!(cpu > 0, "redis-server did no work");
        Ok(Work { units, cpu: Duration::from_nanos(cpu) })
    }

    fn keep_busy(&mut self, signals: &Signals) -> Result<Pid> {
        // redis-benchmark counts requests in a C int.
        let mut command = self.requests(2_000_000_000)?;
        self.client = Some(Child::start(signals, &mut command, signal::SIGKILL)?);
        Ok(self.server.pid())
    }

    fn pid(&self) -> Option<Pid> {
        Some(self.server.pid())
    }
}
