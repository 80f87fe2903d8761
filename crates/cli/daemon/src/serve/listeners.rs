//! Listeners for clients.

use crate::reporter_error::ReporterError;
use crate::{Mode, observability::MetricsConfig};
use megapage_kernel::service::{SocketError, SocketFile, group_number};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// Most connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The listeners that the configuration asks for.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(super) unix: Option<SocketFile>,
    pub(super) loopback: Option<(SocketAddr, TcpListener)>,
}

impl Listeners {
    /// Returns true if there is nothing to listen on.
    pub(crate) fn is_empty(&self) -> bool {
        self.unix.is_none() && self.loopback.is_none()
    }

    /// Opens the listeners of `config`. Takes over listeners that `before` has open already, once
    /// all others are open. On failure `before` stays as it was.
    pub(crate) fn open(
        config: &MetricsConfig,
        before: Option<(&MetricsConfig, &mut Listeners)>,
    ) -> Result<Listeners, ReporterError> {
        let group = group(&config.socket_group)?;
        let (old, mut open) = match before {
            Some((old, open)) => (Some(old), Some(open)),
            None => (None, None),
        };
        // A listener that should be open and is not, after a failure, is opened again.
        let has = |is_open: fn(&Listeners) -> bool| open.as_ref().is_some_and(|open| is_open(open));
        let keeps_unix =
            old.is_some_and(|old| old.socket == config.socket) && has(|open| open.unix.is_some());
        let keeps_loopback =
            old.is_some_and(|old| old.listen == config.listen) && has(|open| open.loopback.is_some());
        let mut opened = Listeners::default();
        if let Some(address) = config.listen.0.filter(|_| !keeps_loopback) {
            let listener = TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|source| ReporterError::Listen { address, source })?;
            opened.loopback = Some((address, listener));
        }
        if !config.socket.as_os_str().is_empty() {
            let kept = open.as_ref().and_then(|open| open.unix.as_ref()).filter(|_| keeps_unix);
            if let Some(kept) = kept {
                kept.set_rights(config.socket_mode.0, group)
                    .map_err(|source| ReporterError::Socket { path: config.socket.clone(), source })?;
            } else {
                opened.unix = Some(socket(&config.socket, config.socket_mode, group)?);
            }
        }
        if let Some(open) = &mut open {
            if keeps_unix {
                opened.unix = open.unix.take();
            }
            if keeps_loopback {
                opened.loopback = open.loopback.take();
            }
        }
        Ok(opened)
    }
}

/// Opens the socket, and turns its errors into those of the configuration.
fn socket(path: &Path, mode: Mode, group: Option<u32>) -> Result<SocketFile, ReporterError> {
    let path_buf = || path.to_path_buf();
    SocketFile::open(path, mode.0, group, BACKLOG).map_err(|error| match error {
        SocketError::Io(source) => ReporterError::Socket { path: path_buf(), source },
        SocketError::NoSocket => ReporterError::NoSocket { path: path_buf() },
        SocketError::InUse => ReporterError::InUse { path: path_buf() },
    })
}

/// Returns the number of a group that is given by name or number (group(5)).
fn group(name: &str) -> Result<Option<u32>, ReporterError> {
    if name.is_empty() {
        return Ok(None);
    }
    let failed = |source| ReporterError::Group { name: name.to_string(), source };
    let number = group_number(name).map_err(|source| failed(Some(source)))?;
    number.map(Some).ok_or_else(|| failed(None))
}
