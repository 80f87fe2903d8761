//! The file that a process executes, by what the kernel knows already. Its file system is not
//! asked, for a FUSE server might never answer.

use crate::process::path_of_its_file;
use crate::{KernelError, KernelRoot};
use megapage_units::Pid;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::path::{Path, PathBuf};

/// State of one file of this machine: another state has another number, size or time (statx(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramFile {
    device: (u32, u32),
    inode: u64,
    bytes: u64,
    modified: (i64, u32),
}

impl ProgramFile {
    /// Returns the state of the file at `path`.
    pub fn at(path: &Path) -> Result<ProgramFile, KernelError> {
        // The kernel answers from its caches, without renewing them.
        let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
        let failed =
            |error: rustix::io::Errno| KernelError::Io { path: PathBuf::from(path), source: error.into() };
        let found = found.map_err(failed)?;
        Ok(ProgramFile {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            bytes: found.stx_size,
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        })
    }

    /// Returns the file that `pid` executes, also where its name is gone or leads elsewhere by now.
    /// Needs the right to trace the process.
    pub fn of_process(root: &KernelRoot, pid: Pid) -> Result<ProgramFile, KernelError> {
        ProgramFile::at(&path_of_its_file(root, pid, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Copies by another process: a file that this one writes could not be executed while one of
    /// its threads forks.
    fn copy(to: &Path) {
        assert!(Command::new("cp").arg("/bin/cat").arg(to).status().unwrap().success());
    }

    #[test]
    fn a_process_executes_the_file_that_it_was_started_from() {
        let root = KernelRoot::live();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        copy(&path);
        let file = ProgramFile::at(&path).unwrap();
        let mut running = Command::new(&path).stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid(running.id().cast_signed());
        assert_eq!(ProgramFile::of_process(&root, pid).unwrap(), file);
        // Replaced, as by an upgrade.
        let newer = directory.path().join("newer");
        copy(&newer);
        std::fs::rename(&newer, &path).unwrap();
        let of_process = ProgramFile::of_process(&root, pid).unwrap();
        assert_eq!(of_process, file);
        assert_ne!(of_process, ProgramFile::at(&path).unwrap());
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(ProgramFile::of_process(&root, pid).is_err());
    }
}
