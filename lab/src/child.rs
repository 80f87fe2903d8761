//! Programs that the bench starts, and waits for them. Every wait checks for the user's request to
//! stop. Dropping the value of a program ends the program.

use crate::workload::measurement::Measurement;
use crate::workload::requests::READY;
use anyhow::{Context, Result, bail, ensure};
use megapage_bench::signals::SIGNAL_INTERVAL;
pub(crate) use megapage_bench::signals::{Stopped, check, stop_signals};
use megapage_bench::statistics::{Spent, nanoseconds};
use megapage_kernel::spawn::{
    ChildEvent, Signals, Usage, open_pidfd, poll_child, send_signal, signal, wait_any_readable, wait_readable,
};
use megapage_units::Pid;
use std::fmt::Display;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// See [`Child::grace`].
const GRACE: Duration = Duration::from_secs(5);
/// Longest time for an answer of a workload.
const LONGEST_ANSWER: Duration = Duration::from_secs(300);

/// Sleeps; fails with [`Stopped`] as soon as the user asks to stop.
pub(crate) fn sleep(signals: &Signals, time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        check(signals)?;
        let Some(rest) = time.checked_sub(start.elapsed()) else { return Ok(()) };
        std::thread::sleep(rest.min(SIGNAL_INTERVAL));
    }
}

/// A program that runs, until the value is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    what: String,
    ended: OwnedFd,
    /// The signal that asks it to stop; it also comes when the bench is killed.
    stop: i32,
    /// Time from that signal until it is killed.
    pub(crate) grace: Duration,
    collected: bool,
}

/// Result of a program that was run to its end.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The way in which it ended; `None` if it took too long, and was ended.
    pub(crate) event: Option<ChildEvent>,
    pub(crate) spent: Spent,
    pub(crate) usage: Usage,
    pub(crate) printed: Vec<u8>,
    pub(crate) said: String,
}

impl Child {
    /// Starts `command`; `stop` is the signal that ends it.
    pub(crate) fn start(signals: &Signals, command: &mut Command, stop: i32) -> Result<Child> {
        let what = command.get_program().to_string_lossy().into_owned();
        let pid = signals.spawn_bound(command, stop).with_context(|| format!("'{what}' did not start"))?;
        let ended = open_pidfd(pid).context("pidfd_open")?;
        Ok(Child { pid, what, ended, stop, grace: GRACE, collected: false })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the signal that asks it to stop.
    pub(crate) fn stop_signal(&self) -> i32 {
        self.stop
    }

    /// Returns the way in which it ended, if it has.
    pub(crate) fn end(&mut self) -> Result<Option<ChildEvent>> {
        Ok(self.collect()?.map(|(event, _)| event))
    }

    fn collect(&mut self) -> Result<Option<(ChildEvent, Usage)>> {
        let ended = poll_child(self.pid).context("wait4")?;
        let ended = ended.filter(|(event, _)| matches!(event, ChildEvent::Exited(_) | ChildEvent::Died(_)));
        self.collected |= ended.is_some();
        Ok(ended)
    }

    /// Waits until it has exited with 0; fails if it has not within `limit`, or ended otherwise.
    pub(crate) fn finish(mut self, signals: &Signals, limit: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < limit {
            check(signals)?;
            if wait_readable(self.ended.as_fd(), SIGNAL_INTERVAL).context("poll")?
                && let Some(event) = self.end()?
            {
                ensure!(event == ChildEvent::Exited(0), "'{}' ended with {event:?}", self.what);
                return Ok(());
            }
        }
        bail!("'{}' took longer than {} s", self.what, limit.as_secs())
    }

    /// Runs `command` to its end. Returns the bytes that it printed, and the text that it wrote to
    /// standard error. Fails if it takes longer than `limit`. The caller judges from the output how
    /// it ended.
    pub(crate) fn output(
        signals: &Signals,
        command: &mut Command,
        limit: Duration,
    ) -> Result<(Vec<u8>, String)> {
        let ended = Child::run(signals, command, limit)?;
        let program = command.get_program();
        ensure!(ended.event.is_some(), "{program:?} took longer than {} s", limit.as_secs());
        Ok((ended.printed, ended.said))
    }

    /// Runs `command` to its end, or ends it after `limit`. It has nothing to read.
    pub(crate) fn run(signals: &Signals, command: &mut Command, limit: Duration) -> Result<Ended> {
        Child::run_on_input(signals, command.stdin(Stdio::null()), limit)
    }

    /// Does the same for a command whose standard input is set.
    pub(crate) fn run_on_input(signals: &Signals, command: &mut Command, limit: Duration) -> Result<Ended> {
        let (mut out, out_end) = pipe().context("pipe")?;
        let (mut said, stderr_end) = pipe().context("pipe")?;
        command.stdout(out_end).stderr(stderr_end);
        let start = Instant::now();
        let mut child = Child::start(signals, command, signal::SIGTERM)?;
        // The command holds our copies of the writing ends.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (mut printed, mut complaint) = (Vec::new(), Vec::new());
        // Both are read side by side: a program that fills one pipe while this waits for the other
        // would wait without end.
        let mut open = vec![(&mut out, &mut printed), (&mut said, &mut complaint)];
        let mut ended = None;
        while ended.is_none() && start.elapsed() < limit {
            check(signals)?;
            if open.is_empty() {
                if wait_readable(child.ended.as_fd(), SIGNAL_INTERVAL).context("poll")? {
                    let wall = start.elapsed();
                    ended = child.collect()?.map(|(event, usage)| (event, usage, wall));
                }
                continue;
            }
            let ends: Vec<_> = open.iter().map(|(pipe, _)| pipe.as_fd()).collect();
            if !wait_any_readable(&ends, SIGNAL_INTERVAL).context("poll")? {
                continue;
            }
            let mut at = 0;
            while let Some((pipe, bytes)) = open.get_mut(at) {
                if wait_readable(pipe.as_fd(), Duration::ZERO).context("poll")? && !more(pipe, bytes)? {
                    open.swap_remove(at);
                } else {
                    at += 1;
                }
            }
        }
        let spent = ended.map(|(_, usage, wall)| Spent {
            wall_ns: nanoseconds(wall),
            cpu_ns: nanoseconds(usage.user + usage.system),
        });
        Ok(Ended {
            event: ended.map(|(event, ..)| event),
            spent: spent.unwrap_or_default(),
            usage: ended.map(|(_, usage, _)| usage).unwrap_or_default(),
            printed,
            said: String::from_utf8_lossy(&complaint).into_owned(),
        })
    }

    /// Asks it to stop by its signal and waits; then kills it. Returns the way in which it ended,
    /// if that is known.
    pub(crate) fn stop(mut self) -> Result<Option<ChildEvent>> {
        if self.collected {
            return Ok(None);
        }
        send_signal(self.pid, self.stop).ok();
        if wait_readable(self.ended.as_fd(), self.grace).context("poll")? {
            return self.end();
        }
        Ok(None)
    }

    /// Fails if it has ended.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        match self.end()? {
            Some(event) => bail!("'{}' ended with {event:?}", self.what),
            None => Ok(()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        for number in [self.stop, signal::SIGKILL] {
            if self.collected {
                return;
            }
            send_signal(self.pid, number).ok();
            if wait_readable(self.ended.as_fd(), self.grace).unwrap_or(false) {
                self.collected |= poll_child(self.pid).is_ok();
            }
        }
    }
}

/// Reads the bytes that are there; returns `false` at the end.
fn more(pipe: &mut PipeReader, bytes: &mut Vec<u8>) -> Result<bool> {
    let mut piece = [0; 4096];
    let count = pipe.read(&mut piece).context("what a program printed")?;
    bytes.extend(&piece[..count]);
    Ok(count > 0)
}

/// A workload that does the units that each request asks for
/// (`megapage-lab-workload pattern --serve`).
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    requests: PipeWriter,
    answers: PipeReader,
    /// The part of the next answer that was read.
    pending: Vec<u8>,
}

impl Server {
    /// Starts it and waits until its memory is filled.
    pub(crate) fn start(signals: &Signals, command: &mut Command) -> Result<Server> {
        let mut server = Server::open(signals, command)?;
        server.ready(signals)?;
        Ok(server)
    }

    /// Starts it, without waiting for anything.
    pub(crate) fn open(signals: &Signals, command: &mut Command) -> Result<Server> {
        let (requests_end, requests) = pipe().context("pipe")?;
        let (answers, answers_end) = pipe().context("pipe")?;
        command.stdin(requests_end).stdout(answers_end).stderr(Stdio::inherit());
        let child = Child::start(signals, command, signal::SIGKILL)?;
        // The command holds our copies of the other ends.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Server { child, requests, answers, pending: Vec::new() })
    }

    /// Waits until its memory is filled.
    pub(crate) fn ready(&mut self, signals: &Signals) -> Result<()> {
        let line = self.line(signals)?;
        ensure!(line == READY, "the workload said '{line}', not '{READY}'");
        Ok(())
    }

    pub(crate) fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Sends a request, such as a number of units, without waiting for the answer.
    pub(crate) fn ask(&mut self, request: impl Display) -> Result<()> {
        writeln!(self.requests, "{request}").context("the workload does not take requests")
    }

    /// Waits for the answer to a request.
    pub(crate) fn answer(&mut self, signals: &Signals) -> Result<Measurement> {
        let line = self.line(signals)?;
        serde_json::from_str(&line).with_context(|| format!("the workload said '{line}'"))
    }

    /// Returns true if an answer, or its end, can be read now.
    pub(crate) fn has_answered(&self) -> Result<bool> {
        wait_readable(self.answers.as_fd(), Duration::ZERO).context("poll")
    }

    /// Returns its next line.
    pub(crate) fn line(&mut self, signals: &Signals) -> Result<String> {
        let start = Instant::now();
        loop {
            if let Some(line) = self.whole_line() {
                return Ok(line);
            }
            check(signals)?;
            ensure!(start.elapsed() < LONGEST_ANSWER, "the workload does not answer");
            self.read_within(SIGNAL_INTERVAL)?;
        }
    }

    /// Returns the lines that it has written by now.
    pub(crate) fn lines(&mut self) -> Result<Vec<String>> {
        while self.read_within(Duration::ZERO)? {}
        Ok(std::iter::from_fn(|| self.whole_line()).collect())
    }

    fn whole_line(&mut self) -> Option<String> {
        let at = self.pending.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.pending.drain(..=at).collect();
        Some(String::from_utf8_lossy(&line[..at]).into_owned())
    }

    /// Reads the bytes that come within `time`. Returns false if none came.
    fn read_within(&mut self, time: Duration) -> Result<bool> {
        let comes = wait_readable(self.answers.as_fd(), time).context("poll")?;
        if comes {
            ensure!(more(&mut self.answers, &mut self.pending)?, "the workload ended without an answer");
        }
        Ok(comes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints more to each output than a pipe holds.
    #[test]
    fn all_of_both_outputs_is_read() {
        let script = "i=0; while [ $i -lt 3000 ]; do \
                      echo 'some words that are said on standard error, a line of them' >&2; i=$((i+1)); done; \
                      i=0; while [ $i -lt 3000 ]; do echo 'and as many that are printed'; i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let signals = stop_signals().unwrap();
        let (printed, said) = Child::output(&signals, &mut command, Duration::from_secs(300)).unwrap();
        assert_eq!(
            (printed.iter().filter(|byte| **byte == b'\n').count(), said.lines().count()),
            (3000, 3000)
        );
        assert!(said.len() > 64 << 10 && said.lines().all(|line| line.ends_with("a line of them")), "whole");
    }

    /// Checks that the wait for a program that has closed one output and goes on has an end.
    #[test]
    fn a_limit_holds_for_both_outputs() {
        for held in ["exec sleep 100 2>&-", "exec sleep 100 >&-"] {
            let mut command = Command::new("sh");
            command.args(["-c", held]);
            let signals = stop_signals().unwrap();
            let found = Child::output(&signals, &mut command, Duration::from_millis(300));
            assert!(found.unwrap_err().to_string().contains("took longer"), "{held}");
        }
    }
}
