//! A socket in the file system.

use megapage_kernel::directory::{Directory, is_link_in_the_way};
use megapage_kernel::effective_uid;
use megapage_kernel::socket::{connect_to, listen_at};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a socket cannot be opened. The path is the caller's to name.
#[derive(Debug, Error)]
pub enum SocketError {
    /// What the system answered.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is something else where the socket is to be.
    #[error("it is there and no socket: remove it, or give another path")]
    NoSocket,
    /// Somebody answers there.
    #[error("another service answers there: stop that one, or give another path")]
    InUse,
}

/// A listening socket in the file system, ours until this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode.
    which: (u64, u64),
}

impl SocketFile {
    /// Listens on the absolute `path` with the rights `mode`, for `group`; as many as `backlog` connections may wait. A
    /// socket at which nobody answers, which a service that was killed has left, is replaced. The directory is made
    /// where only that one is missing.
    pub fn open(path: &Path, mode: u32, group: Option<u32>, backlog: i32) -> Result<SocketFile, SocketError> {
        if !path.is_absolute() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "give an absolute path").into());
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket),
            Ok(_) => match connect_to(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                // Too many wait there already, so somebody listens.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                _ => return Err(SocketError::InUse),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => directory_of(path)?,
            Err(error) => return Err(error.into()),
        }
        let listener = listen_at(path, mode, group, backlog)?;
        let which = which(path)?;
        Ok(SocketFile { listener, path: path.to_path_buf(), which })
    }

    /// Where connections come in. Accepting does not wait.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

/// A file beside a socket, locked while this lives, and gone afterwards: of services that start together one gets it, before
/// any looks whether the socket is in use.
#[derive(Debug)]
pub struct SocketLock {
    directory: Directory,
    name: String,
    _file: fs::File,
}

impl SocketLock {
    /// Locks `PATH.lock`. The directory, on whose path there is no symbolic link, is made where only that one is missing.
    pub fn take(path: &Path) -> Result<SocketLock, SocketError> {
        directory_of(path)?;
        let wrong = || io::Error::new(ErrorKind::InvalidInput, "it is no path of a file");
        let directory = Directory::open(path.parent().ok_or_else(wrong)?)?;
        let name = format!("{}.lock", path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?);
        // Whoever had it removes it: then it is another file.
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
        // While it is locked: whoever waits for it looks again.
        let _ = self.directory.remove_file(self.name.as_ref());
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another service may have put its own there meanwhile.
        if which(&self.path).is_ok_and(|found| found == self.which) {
            // Left behind it does no harm: nobody answers, and the next service replaces it.
            let _ = fs::remove_file(&self.path);
        }
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

/// Refuses a path on which somebody else could put another socket: one that leads through a symbolic link, or whose
/// directory, or one above it, belongs to another user than root or the caller's, or may be written to by others (above it:
/// and is not sticky). A directory that is missing is nobody's: its own parent is looked at.
pub fn trusted_directory(path: &Path) -> io::Result<()> {
    let refuse = |what: String| Err(io::Error::new(ErrorKind::PermissionDenied, what));
    let Some(parent) = path.parent() else { return refuse("it is no path of a file".into()) };
    let directory = match Directory::open(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => match parent.parent() {
            Some(above) => Directory::open(above),
            None => Err(error),
        },
        opened => opened,
    };
    let directory = match directory {
        Err(error) if is_link_in_the_way(&error) => {
            return refuse("a symbolic link is in the way: give the path without it".into());
        }
        opened => opened?,
    };
    let found = directory.metadata()?;
    let name = directory.path().display();
    if found.uid() != 0 && found.uid() != effective_uid() {
        return refuse(format!("directory {name} belongs to user {}: use one of your own", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return refuse(format!("directory {name} may be written to by others: use one that may not"));
    }
    // Whoever may write to a directory above could put another in its place; a sticky one keeps them from it.
    for above in std::path::absolute(parent)?.ancestors().skip(1) {
        // No link is on the way, as has been seen; to look is not to read.
        let found = fs::symlink_metadata(above)?;
        let name = above.display();
        if found.uid() != 0 && found.uid() != effective_uid() {
            let uid = found.uid();
            return refuse(format!("directory {name}, above it, belongs to user {uid}: use one of your own"));
        }
        if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
            return refuse(format!(
                "directory {name}, above it, may be written to by others: use one that may not"
            ));
        }
    }
    Ok(())
}

/// The number of a group that is given by number or, as in /etc/group (group(5)), by name; `None`: there is no such
/// group.
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
        // As a service that was killed leaves it: a socket that nobody listens on.
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
    fn a_directory_that_others_control_is_refused() {
        let (_tree, base) = tree();
        trusted_directory(&base.join("s")).unwrap();
        trusted_directory(&base.join("missing/s")).unwrap();
        fs::create_dir(base.join("open")).unwrap();
        fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(&base, base.join("link")).unwrap();
        fs::create_dir_all(base.join("wide/inner")).unwrap();
        fs::set_permissions(base.join("wide"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(base.join("open/inner")).unwrap();
        trusted_directory(&base.join("open/inner/s")).unwrap();
        for (path, what) in [
            ("open/s", "written to by others"),
            ("link/s", "symbolic link"),
            ("wide/inner/s", "above it, may be written to"),
            ("wide/inner/missing/s", "above it, may be written to"),
        ] {
            let error = trusted_directory(&base.join(path)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        assert!(trusted_directory(Path::new("/")).is_err());
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        assert_eq!(group_number("root").unwrap(), Some(0));
        assert_eq!(group_number("4711").unwrap(), Some(4711));
        assert_eq!(group_number("no-such-group").unwrap(), None);
    }
}
