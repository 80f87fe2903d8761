//! `/run/megapage`: files that are valid until the next boot. Only this file knows its name.

use crate::KernelRoot;
use crate::file_locks::flock_holders;
use crate::process::read_status;
use crate::trusted::open_regular;
use megapage_inside::runtime_file::RUNTIME_DIRECTORY;
pub use megapage_inside::runtime_file::runtime_file;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Pause between two tries of a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Returns the directory of the system under `root`.
pub fn runtime_directory(root: &KernelRoot) -> PathBuf {
    root.path(RUNTIME_DIRECTORY)
}

/// Reason why a lock is not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is locked by {}", .path.display(), .holders)]
    Held {
        /// The file.
        path: PathBuf,
        /// Processes that hold it: `process 4711 (sleep) of user 1000`.
        holders: String,
    },
    /// The file cannot be made or used.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// An flock(2) on a file that only its owner can open (mode 0600), so that no other user can take
/// the lock. The lock is held until this value is dropped and no child has the descriptor any
/// longer. The file stays.
#[derive(Debug)]
pub struct LockFile {
    file: File,
}

impl LockFile {
    /// Takes the lock on the file at `path`, and waits for at most `patience`. Makes a missing
    /// file, and its directory. Removes the access of others to a file that an older version has
    /// left. Refuses a symbolic link (ELOOP), and a file of another user than root or the caller.
    pub fn take(root: &KernelRoot, path: &Path, patience: Duration) -> Result<LockFile, LockError> {
        let failed = |source| LockError::Io { path: path.to_path_buf(), source };
        let file = open(path).map_err(failed)?;
        let end = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(LockFile { file }),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => sleep(LOCK_PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let holders = file.metadata().map(|found| holders(root, &found)).map_err(failed)?;
                    return Err(LockError::Held { path: path.to_path_buf(), holders });
                }
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }

    /// Returns the holder of a lock on the file at `path` now; `None` if no process holds one, or
    /// that cannot be found out. Reads the kernel's list of locks if the caller may not open the
    /// file.
    pub fn holder(root: &KernelRoot, path: &Path) -> Option<String> {
        let listed = |found: &Metadata| flock_holders(root, found.dev(), found.ino()).unwrap_or_default();
        let Ok(file) = open_regular(path) else {
            let found = std::fs::symlink_metadata(path).ok().filter(|found| found.is_file())?;
            return (!listed(&found).is_empty()).then(|| holders(root, &found));
        };
        let found = file.metadata().ok()?;
        let held = flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
        held.then(|| holders(root, &found))
    }

    /// Returns the file, which a child may keep locked.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Releases the lock now, even if a child of another thread still holds the file open until it
    /// executes its program.
    pub fn release(self) {
        flock(&self.file, FlockOperation::Unlock).ok();
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        // Others get no write access, whatever the umask: no file is read from a directory that
        // others may write to.
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let not_regular = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    // A device is refused here, because opening one could have effects.
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        return Err(not_regular());
    }
    let file: File = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into();
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(not_regular());
    }
    if found.uid() != 0 && found.uid() != crate::effective_uid() {
        let what = format!("it belongs to user {}, who could keep it locked: remove it", found.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if found.mode() & 0o077 != 0 {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
    }
    Ok(file)
}

/// Returns the names of the processes that hold a lock on a file.
fn holders(root: &KernelRoot, file: &Metadata) -> String {
    let pids = flock_holders(root, file.dev(), file.ino()).unwrap_or_default();
    let name = |pid: &megapage_units::Pid| match read_status(root, *pid) {
        Ok(status) => format!("process {pid} ({}) of user {}", status.name, status.uids[0]),
        // The kernel names the process that took the lock; a child may still hold it.
        Err(_) => format!("what process {pid}, which has ended, has started"),
    };
    match pids.as_slice() {
        [] => "another process".into(),
        pids => pids.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn take(path: &Path) -> Result<LockFile, LockError> {
        LockFile::take(&KernelRoot::live(), path, Duration::from_millis(60))
    }

    #[test]
    fn other_users_cannot_open_it_and_an_old_one_is_closed_to_them() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("run/lock");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(LockFile::holder(&KernelRoot::live(), &path), None);
        take(&path).unwrap().release();
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        take(&path).unwrap().release();
        assert_eq!(mode(), 0o600);
        // A file that is not a lock file of ours stays as it is.
        let victim = tree.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&victim, tree.path().join("link")).unwrap();
        assert!(take(&tree.path().join("link")).is_err());
        assert!(take(tree.path()).is_err());
        assert_eq!(std::fs::metadata(&victim).unwrap().mode() & 0o777, 0o644);
        if crate::effective_uid() == 0 {
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            let what = take(&path).unwrap_err().to_string();
            assert!(what.contains("it belongs to user 4711, who could keep it locked: remove it"), "{what}");
        }
    }

    #[test]
    fn the_holder_is_named_after_a_bounded_wait() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("lock");
        let held = take(&path).unwrap();
        let began = Instant::now();
        let what = take(&path).unwrap_err().to_string();
        assert!(began.elapsed() >= Duration::from_millis(60), "it waits");
        // Some file systems report other numbers here, by which no process is found.
        let found = held.file().metadata().unwrap();
        let listed = flock_holders(&KernelRoot::live(), found.dev(), found.ino()).unwrap();
        let who = match listed.is_empty() {
            true => "another process".to_string(),
            false => format!("process {} (", std::process::id()),
        };
        assert!(what.contains(&format!("is locked by {who}")), "{what}");
        assert!(LockFile::holder(&KernelRoot::live(), &path).is_some_and(|holder| holder.contains(&who)));
        held.release();
        take(&path).unwrap();
    }
}
