//! redis-server in a separate memory group, and its clients.

use crate::child::{Child, check, sleep};
use crate::redis;
use anyhow::{Context, Result, bail};
use megapage_kernel::spawn::{ChildEvent, Signals, signal};
use megapage_kernel::{KernelRoot, cpu_time_of, process};
use megapage_testing::MemoryGroup;
use megapage_units::{Bytes, Pid};
use std::error::Error;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time of a call.
const LONGEST: Duration = Duration::from_secs(120);
/// Keys that one script sets or deletes.
const KEYS_PER_CALL: u64 = 10_000;
/// Time between two looks at the server.
const LOOK: Duration = Duration::from_millis(50);

/// End of the server: it was killed, or ended by itself, because its memory did not suffice.
#[derive(Debug)]
pub(super) struct Ended(ChildEvent);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis-server ended with {:?}", self.0)
    }
}

impl Error for Ended {}

/// A server that runs.
pub(super) struct Redis {
    // Dropped in this order: the client, the server, its group, its directory.
    client: Option<Child>,
    server: Child,
    pub(super) group: MemoryGroup,
    directory: TempDir,
}

/// Callback while a client works: it looks at the server.
pub(super) type Look<'a> = &'a mut dyn FnMut(&Redis) -> Result<()>;

impl Redis {
    /// Starts one that may take `limit`.
    pub(super) fn start(limit: Bytes, signals: &Signals) -> Result<Redis> {
        let directory = redis::directory()?;
        let name = format!("megapage-bench-{}", std::process::id());
        let group =
            MemoryGroup::create(&KernelRoot::live(), &name, limit).context("a memory group with a limit")?;
        let mut command = redis::command(redis::SERVER)?;
        command.args(redis::ARGUMENTS).arg("no");
        // It refuses writes before its known memory gets near the group's limit; it does not know
        // of bloat.
        command.args(["--maxmemory", &(limit.0 / 16 * 15).to_string(), "--maxmemory-policy", "noeviction"]);
        redis::settle(&mut command, directory.path());
        let mut server = Child::start(signals, &mut command, signal::SIGTERM)?;
        // The memory that it has taken until now, a few MB, is charged to our own group.
        group.add(server.pid()).context("the memory group")?;
        redis::wait(directory.path(), signals, || must_run(&mut server))?;
        Ok(Redis { client: None, server, group, directory })
    }

    pub(super) fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Returns its resident memory.
    pub(super) fn rss(&self) -> Result<Bytes> {
        Ok(process::read_status(&KernelRoot::live(), self.pid())?.rss)
    }

    /// Runs `script` for all keys of `from..to`: ARGV has the first and the last key of a call,
    /// then `arguments`.
    pub(super) fn script(
        &mut self,
        script: &str,
        keys: std::ops::Range<u64>,
        arguments: &[&str],
        signals: &Signals,
        look: Look<'_>,
    ) -> Result<()> {
        // A call moves about the same bytes for any size of the values.
        let bytes: u64 = arguments.first().and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let step = (64u64 << 20).checked_div(bytes).unwrap_or(KEYS_PER_CALL).clamp(1, KEYS_PER_CALL);
        for first in keys.clone().step_by(step as usize) {
            let last = (first + step).min(keys.end) - 1;
            let mut command = redis::client("redis-cli", self.directory.path())?;
            command.args(["-e", "EVAL", script, "0", &first.to_string(), &last.to_string()]).args(arguments);
            self.finish(command, signals, look)?;
        }
        Ok(())
    }

    fn finish(&mut self, mut command: Command, signals: &Signals, look: Look<'_>) -> Result<()> {
        let mut client = Child::start(signals, &mut command, signal::SIGTERM)?;
        let start = Instant::now();
        loop {
            check(signals)?;
            let ended = client.end()?;
            must_run(&mut self.server)?;
            match ended {
                Some(ChildEvent::Exited(0)) => return Ok(()),
                Some(event) => {
                    // A server that is being killed is still there for a moment.
                    sleep(signals, 4 * LOOK)?;
                    must_run(&mut self.server)?;
                    bail!("redis-cli ended with {event:?}: the server refused a write");
                }
                None => {}
            }
            look(self)?;
            if start.elapsed() > LONGEST {
                bail!("redis-cli took longer than {} s", LONGEST.as_secs());
            }
            std::thread::sleep(LOOK / 5);
        }
    }

    /// Waits for `time`, and looks at the server meanwhile.
    pub(super) fn wait(&mut self, time: Duration, signals: &Signals, look: Look<'_>) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            sleep(signals, LOOK)?;
            must_run(&mut self.server)?;
            look(self)?;
        }
        Ok(())
    }

    /// Starts a client that asks for random ones of `keys` keys, until [`Redis::quiet`].
    pub(super) fn ask(&mut self, keys: u64, signals: &Signals) -> Result<()> {
        let mut command = redis::client("redis-benchmark", self.directory.path())?;
        // redis-benchmark counts requests in a C int.
        command.args(["-c", "4", "-P", "16", "-r", &keys.to_string(), "-n", "2000000000"]);
        // Eight bytes of a value: copying all of it through a socket would take most of the time,
        // on any pages.
        command.args(["GETRANGE", "key:__rand_int__", "2000", "2007"]);
        self.client = Some(Child::start(signals, &mut command, signal::SIGKILL)?);
        Ok(())
    }

    /// Stops that client.
    pub(super) fn quiet(&mut self) {
        self.client = None;
    }

    /// Returns the commands that it has processed, and the processor time that it has taken.
    pub(super) fn work(&self, signals: &Signals) -> Result<(u64, Duration)> {
        let text = self.query(&["INFO", "stats"], signals)?;
        let line = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        let commands = line.and_then(|value| value.trim().parse().ok());
        let cpu = cpu_time_of(self.pid()).context("the server's time")?;
        Ok((commands.context("redis-server does not count its commands")?, cpu))
    }

    /// Returns the number of keys that it holds.
    pub(super) fn keys(&self, signals: &Signals) -> Result<u64> {
        let text = self.query(&["DBSIZE"], signals)?;
        text.trim().parse().with_context(|| format!("DBSIZE was answered with '{}'", text.trim()))
    }

    fn query(&self, words: &[&str], signals: &Signals) -> Result<String> {
        let mut command = redis::client("redis-cli", self.directory.path())?;
        command.args(words);
        let (printed, said) = Child::output(signals, &mut command, LONGEST)?;
        if printed.is_empty() {
            bail!("redis-cli answered nothing: {}", said.trim());
        }
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}

/// Fails with [`Ended`] if the server has ended.
fn must_run(server: &mut Child) -> Result<()> {
    match server.end()? {
        Some(event) => Err(Ended(event).into()),
        None => Ok(()),
    }
}
