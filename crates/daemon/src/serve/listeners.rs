//! Where clients come in.

use crate::reporter::ReporterError;
use crate::{Mode, observability::MetricsConfig};
use megapage_kernel::socket::{connect_to, listen_at, set_rights};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The listeners that the configuration asks for.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(super) unix: Option<SocketFile>,
    pub(super) loopback: Option<(SocketAddr, TcpListener)>,
}

/// A socket in the file system, ours until this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode.
    which: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another daemon may have put its own there meanwhile.
        if which(&self.path).is_ok_and(|found| found == self.which) {
            // Left behind it does no harm: nobody answers, and the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listeners {
    /// Whether there is nothing to listen on.
    pub(crate) fn is_empty(&self) -> bool {
        self.unix.is_none() && self.loopback.is_none()
    }

    /// Opens what `config` asks for; what `before` has open already is taken over once everything else is open. On
    /// failure `before` is as it was.
    pub(crate) fn open(
        config: &MetricsConfig,
        before: Option<(&MetricsConfig, &mut Listeners)>,
    ) -> Result<Listeners, ReporterError> {
        let group = group(&config.socket_group)?;
        let (old, mut open) = match before {
            Some((old, open)) => (Some(old), Some(open)),
            None => (None, None),
        };
        // One that should be open and is not, after a failure, is opened anew.
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
            if keeps_unix {
                set_rights(&config.socket, config.socket_mode.0, group)
                    .map_err(|source| ReporterError::Socket { path: config.socket.clone(), source })?;
            } else {
                opened.unix = Some(SocketFile::open(&config.socket, config.socket_mode, group)?);
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

impl SocketFile {
    fn open(path: &Path, mode: Mode, group: Option<u32>) -> Result<SocketFile, ReporterError> {
        let failed = |source| ReporterError::Socket { path: path.to_path_buf(), source };
        if !path.is_absolute() {
            return Err(failed(io::Error::new(ErrorKind::InvalidInput, "give an absolute path")));
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ReporterError::NoSocket { path: path.to_path_buf() });
            }
            Ok(_) => match connect_to(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    // Nobody answers: a daemon that was killed left it.
                    fs::remove_file(path).map_err(failed)?;
                }
                // Too many wait there already, so somebody listens.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(failed(error)),
                _ => return Err(ReporterError::InUse { path: path.to_path_buf() }),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => directory_of(path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
        let listener = listen_at(path, mode.0, group, BACKLOG).map_err(failed)?;
        let which = which(path).map_err(failed)?;
        Ok(SocketFile { listener, path: path.to_path_buf(), which })
    }
}

/// Makes the directory that the socket is to lie in, where only that one is missing.
fn directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.exists() => fs::DirBuilder::new().mode(0o755).create(parent),
        _ => Ok(()),
    }
}

fn which(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// The number of a group that is given by name or number (group(5)).
fn group(name: &str) -> Result<Option<u32>, ReporterError> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let failed = |source| ReporterError::Group { name: name.to_string(), source };
    let text = fs::read_to_string("/etc/group").map_err(|source| failed(Some(source)))?;
    let number = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    number.map(Some).ok_or_else(|| failed(None))
}
