//! Where the kernel's files are read from: the running machine, or a captured tree.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A kernel file that could not be read, written or understood.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file, as the user would name it.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The file's text is not of the form its documentation gives.
    #[error("{path}: line {line}: {what}")]
    Parse {
        /// The file, as the user would name it.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What was expected there.
        what: String,
    },
}

impl KernelError {
    /// The kernel's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            KernelError::Io { source, .. } => source.raw_os_error(),
            KernelError::Parse { .. } => None,
        }
    }

    /// Whether the file, or the process that it belongs to, is not there.
    /// ESRCH is what an open `/proc/PID` file answers once the process has gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
    }
}

/// What is read at once, if the kernel gives that much: nearly every file of `/proc` and `/sys` is shorter. None tells its length, and a buffer that
/// grows from a few bytes would take ten calls for it.
const AT_ONCE: usize = 8 << 10;

/// The directory under which `proc/` and `sys/` lie: `/` on a running machine, any directory in a test.
#[derive(Clone, Debug)]
pub struct KernelRoot {
    root: PathBuf,
}

impl Default for KernelRoot {
    fn default() -> Self {
        KernelRoot::live()
    }
}

impl KernelRoot {
    /// The running machine.
    pub fn live() -> KernelRoot {
        KernelRoot { root: PathBuf::from("/") }
    }

    /// A captured tree: a directory that holds `proc/` and `sys/`.
    pub fn captured(root: impl Into<PathBuf>) -> KernelRoot {
        KernelRoot { root: root.into() }
    }

    /// Whether this is the running machine. Actions refuse anything else.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The path by which another process opens descriptor `fd` of process `pid` (proc_pid_fd(5)), where it may.
    pub fn descriptor_path(pid: u32, fd: i32) -> PathBuf {
        PathBuf::from(format!("/proc/{pid}/fd/{fd}"))
    }

    /// The full path of `relative` (such as `proc/meminfo`, without a leading slash).
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// The whole text of a kernel file. Bytes that are not UTF-8 are replaced.
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, KernelError> {
        let path = self.path(relative);
        match read_all(&path) {
            Ok(bytes) => Ok(String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// The one decimal figure that a kernel file holds.
    pub fn read_u64(&self, relative: impl AsRef<Path>) -> Result<u64, KernelError> {
        let text = self.read(&relative)?;
        text.trim().parse().map_err(|_| KernelError::Parse {
            path: self.path(relative),
            line: 1,
            what: format!("expected a decimal figure, found '{}'", text.trim()),
        })
    }

    /// The names in a directory, sorted.
    pub fn list(&self, relative: impl AsRef<Path>) -> Result<Vec<String>, KernelError> {
        let path = self.path(relative);
        let entries = fs::read_dir(&path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>());
        match entries {
            Ok(names) => {
                let mut names: Vec<String> =
                    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
                names.sort();
                Ok(names)
            }
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Writes `text` to a kernel file in one write, as the kernel wants it. A file that is not there is not made:
    /// the error is ENOENT, where sysfs would answer EACCES to an attempt to create it.
    pub fn write(&self, relative: impl AsRef<Path>, text: &str) -> Result<(), KernelError> {
        let path = self.path(relative);
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| KernelError::Io { path, source })
    }
}

/// All of a file whose length nobody tells.
fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(AT_ONCE);
    // `File::read_to_end` would ask for the length all the same.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A captured tree from (path, text) pairs, for the tests of readers; it goes with the first value.
#[cfg(test)]
pub(crate) fn captured_tree(files: &[(&str, &str)]) -> (tempfile::TempDir, KernelRoot) {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = KernelRoot::captured(directory.path());
    (directory, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_tree_is_read_like_the_machine() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc/sys/vm")).unwrap();
        fs::write(tree.path().join("proc/sys/vm/nr_hugepages"), "12\n").unwrap();
        fs::write(tree.path().join("proc/sys/vm/bad"), "many\n").unwrap();
        let root = KernelRoot::captured(tree.path());
        assert_eq!(root.read_u64("proc/sys/vm/nr_hugepages").unwrap(), 12);
        assert_eq!(root.list("proc/sys/vm").unwrap(), ["bad", "nr_hugepages"]);
        let error = root.read_u64("proc/sys/vm/bad").unwrap_err();
        assert!(
            error.to_string().contains("bad: line 1: expected a decimal figure, found 'many'"),
            "{error}"
        );
        assert!(root.read("proc/none").unwrap_err().is_gone());
        assert!(root.write("proc/none", "1").unwrap_err().is_gone());
        root.write("proc/sys/vm/bad", "3\n").unwrap();
        assert_eq!(root.read_u64("proc/sys/vm/bad").unwrap(), 3);
        assert!(!root.is_live());
    }
}
