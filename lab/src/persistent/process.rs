//! A program that is run to its end, and what it took.

use crate::bench::Spread;
use crate::child::check;
use anyhow::{Context, Result, bail};
use megapage_kernel::spawn::{
    ChildEvent, Signals, open_pidfd, poll_child, send_signal, signal, wait_readable,
};
use std::io::{Read, Seek, Write, pipe};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// No run takes longer: it is killed.
const LONGEST: Duration = Duration::from_secs(900);
/// How often a wait looks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// What a run took, in milliseconds, and what it printed.
#[derive(Clone, Debug, Default)]
pub(super) struct Took {
    pub wall_ms: f64,
    pub user_ms: f64,
    pub system_ms: f64,
    pub printed: String,
}

/// Runs `command` with `input` (at most 4 KiB) as its standard input. An error where it ends with anything but 0.
pub(super) fn timed(command: &mut Command, input: &str, signals: &Signals) -> Result<Took> {
    let (input_end, mut writer) = pipe().context("pipe")?;
    // Less than what a pipe holds: this returns without a reader.
    writer.write_all(input.as_bytes()).context("pipe")?;
    drop(writer);
    let mut out = tempfile::tempfile().context("a file for what it prints")?;
    let copy = |file: &std::fs::File| file.try_clone().context("a file for what it prints");
    command.stdin(input_end).stdout(copy(&out)?).stderr(copy(&out)?);
    let what = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let pid =
        signals.spawn_bound(command, signal::SIGKILL).with_context(|| format!("'{what}' did not start"))?;
    let ended = open_pidfd(pid).context("pidfd_open")?;
    let stop = || {
        send_signal(pid, signal::SIGKILL).ok();
        wait_readable(ended.as_fd(), Duration::from_secs(10)).ok();
        poll_child(pid).ok();
    };
    loop {
        let ready = wait_readable(ended.as_fd(), SIGNAL_INTERVAL).context("poll")?;
        let wall = start.elapsed();
        if ready && let Some((event, usage)) = poll_child(pid).context("wait4")? {
            let mut printed = Vec::new();
            out.rewind().and_then(|()| out.read_to_end(&mut printed)).context("what it printed")?;
            let printed = String::from_utf8_lossy(&printed).into_owned();
            if event != ChildEvent::Exited(0) {
                bail!("'{what}' ended with {event:?}: {}", printed.lines().last().unwrap_or_default().trim());
            }
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            return Ok(Took {
                wall_ms: ms(wall),
                user_ms: ms(usage.user),
                system_ms: ms(usage.system),
                printed,
            });
        }
        if let Err(error) = check(signals) {
            stop();
            return Err(error);
        }
        if wall > LONGEST {
            stop();
            bail!("'{what}' took longer than {} s", LONGEST.as_secs());
        }
    }
}

/// The spread of one value of several runs.
pub(super) fn spread(runs: &[Took], value: impl Fn(&Took) -> f64) -> Spread {
    Spread::of(runs.iter().map(value)).unwrap_or_default()
}
