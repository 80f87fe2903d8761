//! Lock for one daemon on a machine: a lock on a file, which ends with the process in any case.

use megapage_kernel::KernelRoot;
use megapage_kernel::runtime_directory::{LockError, LockFile};
use megapage_kernel::trusted::{read_bounded, require_ours};
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// Time to wait for the lock: a process that only checks it holds it for a moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest file that can be a lock, in bytes.
const LONGEST: u64 = 32;

/// Reason why this daemon may not run.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// Another daemon runs.
    #[error(
        "another megapage daemon is running: {who} has locked {file}: stop it first, or give another lock_file"
    )]
    Other {
        /// `process 4711 (megapage) of user 0`.
        who: String,
        /// Path of the lock.
        file: String,
    },
    /// The file cannot be made or locked.
    #[error("{file}: cannot be locked: {source}; run as root, or give another lock_file")]
    Io {
        /// Path of the lock.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
}

/// Lock, held for the life of this value. The file stays, with a number that no process has any
/// longer: harmless.
#[derive(Debug)]
pub struct Instance {
    _lock: LockFile,
}

impl Instance {
    /// Fails if another process holds the lock now, and succeeds if that is unknown.
    pub fn check(root: &KernelRoot, path: &Path) -> Result<(), InstanceError> {
        match LockFile::holder(root, path) {
            Some(who) => Err(InstanceError::Other { who, file: path.display().to_string() }),
            None => Ok(()),
        }
    }

    /// Takes the lock (flock(2)), and writes our number into the file.
    pub fn take(root: &KernelRoot, path: &Path) -> Result<Instance, InstanceError> {
        let failed = |path: &Path, source| InstanceError::Io { file: path.display().to_string(), source };
        is_usable(path).map_err(|source| failed(path, source))?;
        let lock = LockFile::take(root, path, PATIENCE).map_err(|error| match error {
            LockError::Held { path, holders } => {
                InstanceError::Other { who: holders, file: path.display().to_string() }
            }
            LockError::Io { path, source } => failed(&path, source),
        })?;
        let text = format!("{}\n", std::process::id());
        let write = |mut file: &File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(text.as_bytes())
        };
        write(lock.file()).map_err(|source| failed(path, source))?;
        Ok(Instance { _lock: lock })
    }
}

/// Refuses a file that holds anything else than the number of a process: a lock would destroy its
/// content.
///
/// # Errors
/// `AlreadyExists` for such a file.
pub fn is_usable(path: &Path) -> io::Result<()> {
    require_ours(path, "lock", |file| match read_bounded(file, LONGEST) {
        // Blocks that never reached the disk are read as zeros.
        Ok(bytes) => Ok(bytes.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'\n' | 0))),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Ok(false),
        Err(error) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_second_gets_the_pid_of_the_first_and_a_stale_file_is_ignored() {
        let root = KernelRoot::live();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/daemon.lock");
        let first = Instance::take(&root, &path).unwrap();
        let error = Instance::take(&root, &path).unwrap_err().to_string();
        assert!(
            error.contains("another megapage daemon is running: ") && error.contains("has locked"),
            "{error}"
        );
        assert_eq!(Instance::check(&root, &path).unwrap_err().to_string(), error);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "other users cannot lock it");
        drop(first);
        // Children that concurrent tests start hold it, too, up to their execve(2).
        let started = std::time::Instant::now();
        let patient = || {
            assert!(started.elapsed() < Duration::from_secs(120), "still locked");
            std::thread::sleep(Duration::from_millis(20));
        };
        while Instance::check(&root, &path).is_err() {
            patient();
        }
        assert!(Instance::check(&root, &directory.path().join("none")).is_ok());
        std::fs::write(&path, "4711\n").unwrap();
        let again = loop {
            match Instance::take(&root, &path) {
                Ok(again) => break again,
                Err(_) => patient(),
            }
        };
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(again);
        let error = Instance::take(&root, &directory.path().join("run")).unwrap_err().to_string();
        assert!(error.contains("cannot be locked"), "{error}");
    }

    #[test]
    fn what_is_no_lock_keeps_what_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        for text in ["root:x:0:0:root:/root:/bin/sh\n", "4711 and what another program wrote"] {
            std::fs::write(&path, text).unwrap();
            let error = Instance::take(&KernelRoot::live(), &path).unwrap_err().to_string();
            assert!(error.contains("it is there and no lock of megapage: remove it"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
