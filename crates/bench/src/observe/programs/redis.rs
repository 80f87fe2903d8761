//! redis-server with random keys, asked by redis-benchmark.

use super::{Copy, Work, find};
use crate::child::{Child, sleep};
use anyhow::{Context, Result, ensure};
use megapage_kernel::perf::{Event, Group, Scope};
use megapage_kernel::spawn::{Signals, signal};
use megapage_units::Pid;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Keys at scale 1, with values of so many bytes: about 750 MB.
const KEYS: f64 = 1_500_000.0;
const VALUE_BYTES: usize = 400;
/// Keys that one script sets.
const KEYS_PER_CALL: u64 = 50_000;
/// Requests that make one unit of work: about 1 ms of the server.
const REQUESTS_PER_UNIT: u64 = 1000;
/// No call takes longer.
const LONGEST: Duration = Duration::from_secs(300);

/// What lacks, where something does.
pub(super) fn lacks() -> Option<&'static str> {
    let all = ["redis-server", "redis-cli", "redis-benchmark"];
    (!all.iter().all(|name| find(name).is_some())).then_some("apt-get install redis-server redis-tools")
}

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
        let directory = tempfile::Builder::new().prefix("megapage-bench").tempdir().context("a directory")?;
        let mut command = Command::new(find("redis-server").context("redis-server")?);
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--disable-thp", "no", "--unixsocket"])
            .arg(socket(directory.path()))
            .args(["--dir"])
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut server = Child::start(signals, &mut command, signal::SIGTERM)?;
        for _ in 0..100 {
            if socket(directory.path()).exists() {
                break;
            }
            server.must_run()?;
            sleep(signals, Duration::from_millis(50))?;
        }
        // All commands run in the main thread.
        let scope = Scope { user_only: false, new_threads: false };
        let time = Group::open(server.pid().0, &[Event::TASK_CLOCK], scope).context("perf_event_open")?;
        let keys = (KEYS * scale).max(1000.0) as u64;
        let redis = Redis { client: None, server, time, keys, directory };
        redis.fill(signals)?;
        Ok(redis)
    }

    fn fill(&self, signals: &Signals) -> Result<()> {
        // As redis-benchmark names its random keys.
        let script = "for i = ARGV[1], ARGV[2] do \
                      redis.call('set', string.format('key:%012d', i), string.rep('x', ARGV[3])) end";
        for first in (0..self.keys).step_by(KEYS_PER_CALL as usize) {
            let last = (first + KEYS_PER_CALL).min(self.keys) - 1;
            let mut command = self.client("redis-cli")?;
            command.args([
                "EVAL",
                script,
                "0",
                &first.to_string(),
                &last.to_string(),
                &VALUE_BYTES.to_string(),
            ]);
            Child::start(signals, &mut command, signal::SIGTERM)?.finish(signals, LONGEST)?;
        }
        Ok(())
    }

    fn client(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(find(name).with_context(|| name.to_string())?);
        command.arg("-s").arg(socket(self.directory.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    fn requests(&self, count: u64) -> Result<Command> {
        let mut command = self.client("redis-benchmark")?;
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

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}
