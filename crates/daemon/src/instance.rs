//! One daemon on a machine: a lock on a file, which ends with the process however that ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// How often the lock is tried, and the time between.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Why this daemon is not the one.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// There is another.
    #[error(
        "another megapage daemon is running{who} ({file} is locked): stop it first, or give another lock_file"
    )]
    Other {
        /// `: process 4711`, or empty.
        who: String,
        /// The lock.
        file: String,
    },
    /// The file cannot be made or locked.
    #[error("{file}: cannot be locked: {source}; run as root, or give another lock_file")]
    Io {
        /// The lock.
        file: String,
        /// Why.
        source: io::Error,
    },
}

impl InstanceError {
    /// Whoever holds the lock on `file`, at `path`, has written its number into it.
    fn other(file: File, path: &Path) -> InstanceError {
        let mut text = String::new();
        let _ = file.take(32).read_to_string(&mut text);
        let who = text.trim().parse::<u32>().map(|pid| format!(": process {pid}")).unwrap_or_default();
        InstanceError::Other { who, file: path.display().to_string() }
    }
}

/// The lock, held until this is dropped. The file stays, with a number that nobody has any longer: harmless.
#[derive(Debug)]
pub struct Instance {
    _file: File,
}

impl Instance {
    /// Whether another process holds the lock. Where that cannot be found out, nobody does.
    pub fn is_taken(path: &Path) -> bool {
        Instance::check(path).is_err()
    }

    /// Refuses where another process holds the lock now.
    pub fn check(path: &Path) -> Result<(), InstanceError> {
        let Ok(file) = File::open(path) else { return Ok(()) };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(InstanceError::other(file, path)),
            _ => Ok(()),
        }
    }

    /// Takes the lock (flock(2)), and writes our number into the file.
    pub fn take(path: &Path) -> Result<Instance, InstanceError> {
        let name = path.display().to_string();
        let failed = |source| InstanceError::Io { file: name.clone(), source };
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let mut file = options.open(path).map_err(failed)?;
        let mut tries = 1;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Who only looks whether it is locked holds it for a moment.
                Err(TryLockError::WouldBlock) if tries < TRIES => std::thread::sleep(BETWEEN_TRIES),
                Err(TryLockError::WouldBlock) => return Err(InstanceError::other(file, path)),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            tries += 1;
        }
        let text = format!("{}\n", std::process::id());
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(text.as_bytes())
        };
        write(&mut file).map_err(failed)?;
        Ok(Instance { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_the_first_is_and_a_stale_file_is_no_matter() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/daemon.lock");
        let first = Instance::take(&path).unwrap();
        let error = Instance::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("running: process {} (", std::process::id())), "{error}");
        assert!(Instance::is_taken(&path));
        assert_eq!(Instance::check(&path).unwrap_err().to_string(), error);
        drop(first);
        // What tests beside this one start holds it, too, until it executes its program.
        let started = std::time::Instant::now();
        let patient = || {
            assert!(started.elapsed() < Duration::from_secs(120), "still locked");
            std::thread::sleep(BETWEEN_TRIES);
        };
        while Instance::is_taken(&path) {
            patient();
        }
        assert!(!Instance::is_taken(&directory.path().join("none")));
        std::fs::write(&path, "4711 and what somebody else wrote").unwrap();
        let again = loop {
            match Instance::take(&path) {
                Ok(again) => break again,
                Err(_) => patient(),
            }
        };
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(again);
        let error = Instance::take(&directory.path().join("run")).unwrap_err().to_string();
        assert!(error.contains("cannot be locked"), "{error}");
    }
}
