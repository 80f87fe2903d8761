//! Metrics as a file, for node_exporter's textfile collector.

use crate::shared::Shared;
use crate::telemetry::metrics::{classic, openmetrics};
use megapage_kernel::trusted::{Replace, remove_file, replace_file};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest time between two writings: Prometheus rarely scrapes more often.
const EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two reports of a failure.
const REPORT_EVERY: Duration = Duration::from_secs(600);

/// Readable by all, with any umask: the collector is another user.
const HOW: Replace = Replace { mode: 0o644, durable: false };

/// File of the metrics.
#[derive(Debug)]
pub(super) struct Textfile {
    path: PathBuf,
    /// True if something has been noted since it was written.
    stale: bool,
    written: Option<Instant>,
    reported: Option<Instant>,
}

impl Textfile {
    pub(super) fn new(path: PathBuf) -> Textfile {
        Textfile { path, stale: true, written: None, reported: None }
    }

    /// Notes that there is something new.
    pub(super) fn noted(&mut self) {
        self.stale = true;
    }

    /// Returns the time of the next writing.
    pub(super) fn due(&self, now: Instant) -> Instant {
        match (self.stale, self.written) {
            (false, _) => now + EVERY * 12,
            (true, None) => now,
            (true, Some(written)) => written + EVERY,
        }
    }

    pub(super) fn write_if_due(&mut self, shared: &Arc<Shared>, now: Instant) {
        if self.due(now) > now {
            return;
        }
        (self.stale, self.written) = (false, Some(now));
        if let Err(error) = replace_file(&self.path, classic(&openmetrics(shared)).as_bytes(), HOW)
            && self.reported.is_none_or(|reported| now.saturating_duration_since(reported) >= REPORT_EVERY)
        {
            self.reported = Some(now);
            tracing::warn!(path = %self.path.display(), %error, "the metrics cannot be written");
        }
    }

    /// Removes the file, so that outdated values are not collected.
    pub(super) fn remove(self) {
        match remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "the metrics cannot be removed");
            }
            _ => {}
        }
    }
}
