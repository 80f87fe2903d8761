//! Source of the kernel's files: the running machine, or a captured tree.
//!
//! Files of another process are read with a deadline (see [`crate::helper`]). Every read has a
//! bound (see [`KernelRoot::read`]).

use crate::helper::{self, Session, Wait};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Kernel file that could not be read, written or understood.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Failure to open, read or write the file.
    #[error("{path}: {source}")]
    Io {
        /// The file, as the user would name it.
        path: PathBuf,
        /// Kernel's answer.
        source: io::Error,
    },
    /// The file's text does not have the form that its documentation gives.
    #[error("{path}: line {line}: {what}")]
    Parse {
        /// The file, as the user would name it.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Text that was expected there.
        what: String,
    },
}

impl KernelError {
    /// Returns the kernel's error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            KernelError::Io { source, .. } => source.raw_os_error(),
            KernelError::Parse { .. } => None,
        }
    }

    /// Returns true if the file, or the process that it belongs to, does not exist. An open
    /// `/proc/PID` file answers ESRCH once the process has gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
    }

    /// Returns true if the process that the file belongs to does not answer because its memory map
    /// is locked. [`helper::Locked`] holds the time since when.
    pub fn is_locked(&self) -> bool {
        matches!(self, KernelError::Io { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }
}

/// Returns `None` for a file that is not there: on a kernel without the feature, or of a process
/// that has ended.
pub fn optional<T>(result: Result<T, KernelError>) -> Result<Option<T>, KernelError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes to read at once, if the kernel gives that much. Nearly every file of `/proc` and `/sys` is
/// shorter. None reports its length, and a buffer that grows from a few bytes would take ten calls.
const AT_ONCE: usize = 8 << 10;
/// Length of the longest file that is read whole. No file under `/proc` and `/sys` comes near it,
/// except those of processes.
const MOST: usize = 64 << 20;
/// Bytes read of a text that a process sets itself (`cmdline`, `environ`). Such a text may be as
/// long as the process has memory (`PR_SET_MM_MAP` of prctl(2)). The bound is above the kernel's
/// own limit of one argument (MAX_ARG_STRLEN, execve(2)).
const MOST_OF_ITS_OWN: usize = 256 << 10;
/// Length of the longest line. A path with every byte escaped fits in.
const LONGEST_LINE: usize = 64 << 10;

/// Directory that holds `proc/` and `sys/`: `/` on a running machine, any directory in a test.
#[derive(Clone, Debug)]
pub struct KernelRoot {
    root: PathBuf,
}

impl KernelRoot {
    /// Returns the root of the running machine.
    pub fn live() -> KernelRoot {
        KernelRoot { root: PathBuf::from("/") }
    }

    /// Returns the root of a captured tree: a directory that holds `proc/` and `sys/`.
    pub fn captured(root: impl Into<PathBuf>) -> KernelRoot {
        KernelRoot { root: root.into() }
    }

    /// Returns true if this is the running machine. Actions refuse any other root.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the path by which another process can open descriptor `fd` of process `pid`, if it
    /// has the permission (proc_pid_fd(5)).
    pub fn descriptor_path(pid: u32, fd: i32) -> PathBuf {
        PathBuf::from(format!("/proc/{pid}/fd/{fd}"))
    }

    /// Returns the path by which the calling process can reopen its own descriptor `fd`. The path
    /// holds no process number: a /proc of another PID namespace may know the process under another
    /// number.
    pub fn own_descriptor_path(fd: i32) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{fd}"))
    }

    /// Returns the full path of `relative` (such as `proc/meminfo`, without a leading slash).
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Returns the whole text of a kernel file. Replaces bytes that are not UTF-8.
    ///
    /// Returns only the first 256 KiB of `/proc/PID/cmdline` and `environ`, see
    /// [`KernelRoot::read_cut`]. Any other file longer than 64 MiB is an error (EFBIG). If another
    /// process does not answer, [`KernelError::is_locked`] is true for the error.
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, KernelError> {
        let relative = relative.as_ref();
        let (text, cut) = self.read_cut(relative)?;
        if cut && !is_its_own(relative) {
            let source = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(KernelError::Io { path: self.path(relative), source });
        }
        Ok(text)
    }

    /// Reads like [`KernelRoot::read`], but cuts a longer file at the bound. Returns the text, and
    /// true if it was cut.
    pub fn read_cut(&self, relative: impl AsRef<Path>) -> Result<(String, bool), KernelError> {
        let relative = relative.as_ref();
        let most = if is_its_own(relative) { MOST_OF_ITS_OWN } else { MOST };
        let path = self.path(relative);
        let result = match self.locked_by(relative) {
            None => read_all(&path, most),
            Some(pid) => Session::begin(pid, Wait::Killable).and_then(|mut session| {
                let mut bytes = Vec::new();
                session.read_file(&path, &mut |piece| {
                    bytes.extend_from_slice(piece);
                    bytes.len() <= most
                })?;
                Ok(bytes)
            }),
        };
        match result {
            Ok(mut bytes) => {
                let cut = bytes.len() > most;
                bytes.truncate(most);
                let text = String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
                Ok((text, cut))
            }
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Passes the lines of a kernel file to `each`, one after the other, while it returns true.
    /// Never holds the whole text. Replaces bytes that are not UTF-8. Lines are counted from 1; a
    /// line of more than 64 KiB is an error.
    pub fn each_line(
        &self,
        relative: impl AsRef<Path>,
        mut each: impl FnMut(usize, &str) -> bool,
    ) -> Result<(), KernelError> {
        let relative = relative.as_ref();
        let path = self.path(relative);
        let mut lines = Lines { rest: Vec::new(), number: 0, too_long: false };
        let mut feed = |piece: &[u8]| lines.feed(piece, &mut each);
        let result = match self.locked_by(relative) {
            None => File::open(&path).and_then(|mut file| {
                let mut piece = vec![0; LONGEST_LINE];
                loop {
                    match file.read(&mut piece) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                        Ok(0) => return Ok(()),
                        Ok(length) if feed(&piece[..length]) => {}
                        Ok(_) => return Ok(()),
                    }
                }
            }),
            Some(pid) => Session::begin(pid, Wait::Killable)
                .and_then(|mut session| session.read_file(&path, &mut feed)),
        };
        result.map_err(|source| KernelError::Io { path: path.clone(), source })?;
        if lines.too_long {
            let what = format!("expected a line of at most {LONGEST_LINE} bytes");
            return Err(KernelError::Parse { path, line: lines.number + 1, what });
        }
        lines.end(&mut each);
        Ok(())
    }

    /// Returns the other process whose memory map must not be locked for `relative` to be read or
    /// written, if there is one.
    fn locked_by(&self, relative: &Path) -> Option<megapage_units::Pid> {
        if !self.is_live() {
            return None;
        }
        helper::locked_by(relative).filter(|pid| helper::is_foreign(self, *pid))
    }

    /// Returns the one decimal number that a kernel file holds.
    pub fn read_u64(&self, relative: impl AsRef<Path>) -> Result<u64, KernelError> {
        let text = self.read(&relative)?;
        text.trim().parse().map_err(|_| KernelError::Parse {
            path: self.path(relative),
            line: 1,
            what: format!("expected a decimal number, found '{}'", text.trim()),
        })
    }

    /// Returns the names in a directory, sorted.
    pub fn list(&self, relative: impl AsRef<Path>) -> Result<Vec<String>, KernelError> {
        let path = self.path(relative);
        let names = || -> io::Result<BTreeSet<String>> {
            fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        let names = names().map_err(|source| KernelError::Io { path, source })?;
        Ok(names.into_iter().collect())
    }

    /// Writes `text` to a kernel file in one write, as the kernel expects. Does not create a
    /// missing file: the error is ENOENT, while sysfs would answer EACCES to an attempt to create
    /// it.
    pub fn write(&self, relative: impl AsRef<Path>, text: &str) -> Result<(), KernelError> {
        let relative = relative.as_ref();
        let path = self.path(relative);
        let written = match self.locked_by(relative) {
            None => {
                let opened = fs::OpenOptions::new().write(true).truncate(true).open(&path);
                opened.and_then(|mut file| file.write_all(text.as_bytes()))
            }
            Some(pid) => Session::begin(pid, Wait::Killable).and_then(|mut session| {
                let file = session.open(&path, libc::O_WRONLY | libc::O_TRUNC)?;
                session.write(file.as_fd(), text.as_bytes())
            }),
        };
        written.map_err(|source| KernelError::Io { path, source })
    }
}

/// Returns true for a file whose text a process sets itself, with any length.
fn is_its_own(relative: &Path) -> bool {
    let is = |name: &str| relative.ends_with(name);
    relative.starts_with("proc") && (is("cmdline") || is("environ"))
}

/// Splitter of text that comes in pieces into lines.
struct Lines {
    /// Beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    /// Number of the last whole line.
    number: usize,
    too_long: bool,
}

impl Lines {
    /// Takes the next piece. Returns true if the next one is wanted.
    fn feed(&mut self, mut piece: &[u8], each: &mut dyn FnMut(usize, &str) -> bool) -> bool {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&piece[..end], &piece[end + 1..]);
            self.number += 1;
            let go_on = if self.rest.is_empty() {
                each(self.number, &String::from_utf8_lossy(line))
            } else {
                self.rest.extend_from_slice(line);
                let line = std::mem::take(&mut self.rest);
                each(self.number, &String::from_utf8_lossy(&line))
            };
            if !go_on {
                self.rest.clear();
                return false;
            }
            piece = after;
        }
        self.rest.extend_from_slice(piece);
        self.too_long = self.rest.len() > LONGEST_LINE;
        !self.too_long
    }

    /// Ends the text: its last line may lack a newline.
    fn end(self, each: &mut dyn FnMut(usize, &str) -> bool) {
        if !self.rest.is_empty() {
            each(self.number + 1, &String::from_utf8_lossy(&self.rest));
        }
    }
}

/// Reads a file of unknown length: all of it, but at most `most` bytes and one more.
fn read_all(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(AT_ONCE);
    // `File::read_to_end` would ask the kernel for the length all the same.
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a captured tree from (path, text) pairs, for the tests of readers. It lives as long as the
/// first value.
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
            error.to_string().contains("bad: line 1: expected a decimal number, found 'many'"),
            "{error}"
        );
        assert!(root.read("proc/none").unwrap_err().is_gone());
        assert!(root.write("proc/none", "1").unwrap_err().is_gone());
        root.write("proc/sys/vm/bad", "3\n").unwrap();
        assert_eq!(root.read_u64("proc/sys/vm/bad").unwrap(), 3);
        assert!(!root.is_live());
    }

    #[test]
    fn what_a_process_says_of_itself_is_cut_and_other_files_are_refused() {
        let long = "x".repeat(MOST_OF_ITS_OWN + 1);
        let (_keep, root) = captured_tree(&[("proc/7/cmdline", &long), ("proc/7/comm", "x\n")]);
        let (text, cut) = root.read_cut("proc/7/cmdline").unwrap();
        assert!(text.len() == MOST_OF_ITS_OWN && cut);
        assert_eq!(root.read("proc/7/cmdline").unwrap().len(), MOST_OF_ITS_OWN);
        assert_eq!(root.read_cut("proc/7/comm").unwrap(), ("x\n".into(), false));
        // The file is sparse: nothing of that length is written.
        File::create(root.path("proc/7/large")).unwrap().set_len(MOST as u64 + 1).unwrap();
        assert_eq!(root.read("proc/7/large").unwrap_err().raw_os_error(), Some(libc::EFBIG));
    }

    #[test]
    fn lines_are_whole_wherever_a_piece_ends() {
        let text = "a\n\nbcd\nlast";
        for size in 1..text.len() + 1 {
            let mut lines = Lines { rest: Vec::new(), number: 0, too_long: false };
            let mut found = Vec::new();
            let mut each = |number: usize, line: &str| {
                found.push((number, line.to_string()));
                true
            };
            assert!(text.as_bytes().chunks(size).all(|piece| lines.feed(piece, &mut each)));
            lines.end(&mut each);
            let expected = [(1, "a"), (2, ""), (3, "bcd"), (4, "last")];
            assert_eq!(found, expected.map(|(number, line)| (number, line.to_string())), "pieces of {size}");
        }
    }

    #[test]
    fn lines_end_early_and_are_bounded() {
        let (_keep, root) = captured_tree(&[("proc/7/maps", "a\nb\nc\n"), ("proc/8/maps", "")]);
        let mut count = 0;
        root.each_line("proc/7/maps", |number, _| {
            count = number;
            number < 2
        })
        .unwrap();
        assert_eq!(count, 2);
        fs::write(root.path("proc/8/maps"), "x".repeat(2 * LONGEST_LINE)).unwrap();
        let error = root.each_line("proc/8/maps", |_, _| true).unwrap_err().to_string();
        assert!(error.contains("line 1: expected a line of at most"), "{error}");
    }
}
