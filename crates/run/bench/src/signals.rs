//! Stops a bench: takes SIGINT, SIGTERM and SIGHUP. Every wait checks for them, so that pools and
//! settings are put back.

use anyhow::{Context, Result};
use megapage_kernel::spawn::{Signals, signal};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Time between two checks for a signal in a wait.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Error of a bench that the user stopped with this signal.
#[derive(Debug)]
pub struct Stopped(i32);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl Error for Stopped {}

/// Takes the signals by which a user stops a bench, for [`check`]. Dropping the value restores
/// their former handling.
pub fn stop_signals() -> Result<Signals> {
    Signals::take(&[signal::SIGINT, signal::SIGTERM, signal::SIGHUP]).context("signals cannot be taken")
}

/// Fails with [`Stopped`] once the user has asked to stop.
pub fn check(signals: &Signals) -> Result<()> {
    match signals.next().context("signalfd")? {
        Some(came) => Err(Stopped(came.number).into()),
        None => Ok(()),
    }
}
