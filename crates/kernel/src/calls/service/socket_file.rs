//! Socket in the file system.

use crate::directory::Directory;
use crate::socket::{FileId, connect_to, listen_at, set_rights};
use crate::trusted::trusted_directory;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Reason why a socket cannot be opened. The caller names the path.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path holds a file that is no socket.
    #[error("it is there and no socket: remove it, or give another path")]
    NoSocket,
    /// Another process answers there.
    #[error("another service answers there: stop that one, or give another path")]
    InUse,
}

/// Listening socket in the file system, owned until this value is dropped.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    id: FileId,
}

impl SocketFile {
    /// Listens on the absolute `path` with the rights `mode`, for `group`. At most `backlog`
    /// connections may wait. Replaces a socket at which no process answers, left by a service that
    /// was killed. Makes the directory if only that one is missing. PermissionDenied if others
    /// control the directory ([`trusted_directory`]).
    pub fn open(path: &Path, mode: u32, group: Option<u32>, backlog: i32) -> Result<SocketFile, SocketError> {
        if !path.is_absolute() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "give an absolute path").into());
        }
        trusted_directory(path)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket),
            Ok(_) => match connect_to(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                // Too many connections wait there already, so another process listens.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                _ => return Err(SocketError::InUse),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => directory_of(path)?,
            Err(error) => return Err(error.into()),
        }
        let listener = listen_at(path, mode, group, backlog)?;
        let id = FileId::of_path(path)?;
        Ok(SocketFile { listener, path: path.to_path_buf(), id })
    }

    /// Changes who may connect from now on. ESTALE if another file has taken the place of the
    /// socket. That file is not touched, and no link to it is followed.
    pub fn set_rights(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        set_rights(&self.path, mode, group, Some(self.id))
    }

    /// Returns the listener. Accepting does not wait.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

/// File beside a socket, locked while this value lives, and removed afterwards. Only one of several
/// services that start together gets the lock, before any checks if the socket is in use.
#[derive(Debug)]
pub struct SocketLock {
    directory: Directory,
    name: String,
    _file: fs::File,
}

impl SocketLock {
    /// Locks `PATH.lock`. Makes the directory if only that one is missing. A symbolic link on the
    /// directory's path is refused.
    pub fn take(path: &Path) -> Result<SocketLock, SocketError> {
        directory_of(path)?;
        let wrong = || io::Error::new(ErrorKind::InvalidInput, "it is no path of a file");
        let directory = Directory::open(path.parent().ok_or_else(wrong)?)?;
        let name = format!("{}.lock", path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?);
        // Its former owner may remove the file: then the one of that name is another file.
        for _ in 0..16 {
            let file = match directory.create_file(&name, 0o600) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => match directory.open_file(&name) {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    opened => opened?,
                },
                made => made?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Err(SocketError::InUse),
                Err(fs::TryLockError::Error(error)) => return Err(error.into()),
            }
            let same = |found: &fs::Metadata, own: &fs::Metadata| {
                (found.dev(), found.ino()) == (own.dev(), own.ino())
            };
            let own = file.metadata()?;
            if directory
                .open_file(&name)
                .and_then(|found| found.metadata())
                .is_ok_and(|found| same(&found, &own))
            {
                return Ok(SocketLock { directory, name, _file: file });
            }
        }
        Err(SocketError::InUse)
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        // The file is removed while it is locked: a process that waits for the lock checks the name
        // again.
        let _ = self.directory.remove_file(self.name.as_ref());
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another service may have put its socket there meanwhile.
        if FileId::of_path(&self.path).is_ok_and(|found| found == self.id) {
            // A socket left behind does no harm: no process answers, and the next service replaces
            // it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the directory of the socket, if only that one is missing.
fn directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.exists() => fs::DirBuilder::new().mode(0o755).create(parent),
        _ => Ok(()),
    }
}

/// Returns the number of a group that is given by number or, as in /etc/group (group(5)), by name.
/// Returns `None` if there is no such group.
pub fn group_number(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let text = fs::read_to_string("/etc/group")?;
    Ok(text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let tree = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(tree.path()).unwrap();
        (tree, base)
    }

    #[test]
    fn one_service_at_a_time_and_what_is_left_is_replaced() {
        let (_tree, base) = tree();
        let path = base.join("run/socket");
        let first = SocketFile::open(&path, 0o600, None, 4).unwrap();
        assert!(matches!(SocketFile::open(&path, 0o600, None, 4), Err(SocketError::InUse)));
        // The socket is like one of a service that was killed: no process listens on it.
        let left = base.join("left");
        drop(UnixListener::bind(&left).unwrap());
        let replaced = SocketFile::open(&left, 0o640, None, 4).unwrap();
        assert_eq!(fs::metadata(&left).unwrap().permissions().mode() & 0o777, 0o640);
        drop((first, replaced));
        assert!(!path.exists() && !left.exists());
        fs::write(&left, "").unwrap();
        assert!(matches!(SocketFile::open(&left, 0o600, None, 4), Err(SocketError::NoSocket)));
        assert!(left.exists());
        symlink("/dev/null", base.join("link")).unwrap();
        let through = SocketFile::open(&base.join("link"), 0o600, None, 4);
        assert!(matches!(through, Err(SocketError::NoSocket)), "a link is not followed");
    }

    #[test]
    fn one_of_those_that_start_together_gets_the_lock() {
        let (_tree, base) = tree();
        let path = base.join("run/socket");
        let first = SocketLock::take(&path).unwrap();
        assert!(matches!(SocketLock::take(&path), Err(SocketError::InUse)));
        drop(first);
        assert_eq!(fs::read_dir(base.join("run")).unwrap().count(), 0);
        drop(SocketLock::take(&path).unwrap());
        symlink("/dev/null", base.join("run/socket.lock")).unwrap();
        assert!(SocketLock::take(&path).is_err(), "a link is not followed");
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        assert_eq!(group_number("root").unwrap(), Some(0));
        assert_eq!(group_number("4711").unwrap(), Some(4711));
        assert_eq!(group_number("no-such-group").unwrap(), None);
    }
}
