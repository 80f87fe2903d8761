//! The daemon beside the table. Each refresh asks it; one that does not run is skipped silently,
//! unless the user named it.

use anyhow::Result;
use megapage_daemon::client::{ClientError, look};
use megapage_daemon::default_socket;
use megapage_snapshot::daemon::DaemonSeen;
use std::path::PathBuf;
use std::time::Duration;

/// Most decisions to request.
const DECISIONS: usize = 256;
/// Longest delay of the table by a daemon that the user did not name.
const UNNAMED_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for a daemon that the user named.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// The daemon's last report.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: PathBuf,
    named: bool,
    seen: Option<DaemonSeen>,
    note: Option<String>,
}

impl Daemon {
    /// Asks the daemon on `socket`, or on the usual one. Fails if a socket that the user named is
    /// not answered.
    pub fn ask(socket: Option<PathBuf>) -> Result<Daemon> {
        let named = socket.is_some();
        let socket = socket.unwrap_or_else(default_socket);
        let mut daemon = Daemon { socket, named, seen: None, note: None };
        match daemon.look() {
            Err(error) if named => Err(error.into()),
            _ => Ok(daemon),
        }
    }

    /// Asks again.
    pub fn refresh(&mut self) {
        // `look` keeps the error as a note.
        let _ = self.look();
    }

    fn look(&mut self) -> Result<(), ClientError> {
        let looked = look(&self.socket, DECISIONS, if self.named { NAMED_WITHIN } else { UNNAMED_WITHIN });
        self.note = match &looked {
            Err(ClientError::NoDaemon { .. }) if !self.named => None,
            Err(error) => Some(error.to_string()),
            Ok(_) => None,
        };
        let (seen, result) = match looked {
            Ok(seen) => (Some(seen), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.seen = seen;
        result
    }

    /// Returns the daemon's report; `None` if no daemon answers.
    pub fn seen(&self) -> Option<&DaemonSeen> {
        self.seen.as_ref()
    }

    /// Returns why no report is shown, if that is worth a line.
    pub fn note(&self) -> Option<String> {
        self.note.clone()
    }
}
