//! Temporary change of the kernel's settings: all of a group or none, and back again.

mod record;

use crate::undo::Undo;
use megapage_kernel::runtime_directory::{LockError, LockFile, runtime_directory};
use megapage_kernel::{KernelError, KernelRoot};
use record::Record;
pub use record::Recovered;
pub(crate) use record::recover;
use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

/// Settings that are changed together.
#[derive(Debug)]
pub(crate) struct Group {
    /// Directory of the settings, relative to a [`KernelRoot`].
    pub(crate) directory: &'static str,
    /// Files, in the order in which they are written.
    pub(crate) files: &'static [&'static str],
    /// Files that some kernels lack: such a file is neither noted nor set.
    pub(crate) optional: &'static [&'static str],
    /// File that every kernel with such settings has, and that errors name.
    pub(crate) main: &'static str,
    /// Name of the lock in the runtime directory.
    pub(crate) lock: &'static str,
    /// Name of the record, in the runtime directory, of the texts found and set.
    pub(crate) record: &'static str,
}

impl Group {
    /// Returns the path of a setting, relative to a [`KernelRoot`].
    pub(crate) fn relative(&self, file: &str) -> String {
        format!("{}/{file}", self.directory)
    }

    /// Returns the path of a setting, as the user would name it.
    pub(crate) fn path(&self, file: &str) -> String {
        format!("/{}/{file}", self.directory)
    }

    /// Returns the present text of a setting. A choice shows all words, the chosen one in brackets;
    /// a number stands alone.
    fn chosen(&self, root: &KernelRoot, file: &str) -> Result<String, KernelError> {
        let text = root.read(self.relative(file))?;
        let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
        Ok(word.unwrap_or(text.trim()).to_string())
    }

    /// Returns shell lines that set the files to `texts`, which are in the order of the files.
    pub(crate) fn shell_lines(&self, texts: impl IntoIterator<Item = Option<String>>) -> Vec<String> {
        let lines = self.files.iter().zip(texts);
        lines.filter_map(|(file, text)| Some(format!("echo {} > {}", text?, self.path(file)))).collect()
    }
}

/// Right to change a group of settings. Dropping the value puts them back in reverse order. If this
/// process is killed, a shell does so ([`Undo`]). If the shell is killed as well, as with a whole
/// control group, the next owner of the right does. For that, a file in the runtime directory
/// records the texts found and set, if the directory can be written to. Only one process on a
/// machine has the right: it takes a lock in that directory, which only root can open.
#[derive(Debug)]
pub(crate) struct SettingsChange {
    root: KernelRoot,
    group: &'static Group,
    former: Vec<(&'static str, String)>,
    record: Record,
    recovered: Vec<Recovered>,
    pub(crate) guard: Option<Undo>,
    pub(crate) lock: Option<LockFile>,
}

/// Shell script with pairs of arguments `FILE TEXT`, and `RECORD` at the end. Writes each text to
/// its file if that exists, and then removes the record.
const PUT_BACK: &str =
    "while [ $# -gt 1 ]; do [ -e \"$1\" ] && printf %s \"$2\" > \"$1\"; shift 2; done; rm -f \"$1\"";

/// Longest wait for the right. The guard of a killed process needs time to put back its changes.
const PATIENCE: Duration = Duration::from_secs(2);

impl SettingsChange {
    /// Takes the right. Undoes the changes of a process that was killed, and then reads the
    /// settings. Fails with ENOENT on a kernel without such settings. Fails with `WouldBlock` if
    /// another process keeps the right for two seconds.
    pub(crate) fn begin(root: &KernelRoot, group: &'static Group) -> Result<SettingsChange, KernelError> {
        let io_error = |source: io::Error| KernelError::Io { path: group.path(group.main).into(), source };
        // A kernel without such settings needs no lock.
        root.read(group.relative(group.main))?;
        let lock =
            LockFile::take(root, &runtime_directory(root).join(group.lock), PATIENCE).map_err(|error| {
                match error {
                    LockError::Held { holders, .. } => {
                        let what = format!("{holders} holds it; wait for its end, or end it");
                        io_error(io::Error::new(io::ErrorKind::WouldBlock, what))
                    }
                    LockError::Io { path, source } => KernelError::Io { path, source },
                }
            })?;
        let recovered = record::recover(root, group);
        let mut former = Vec::new();
        for file in group.files.iter().copied() {
            match group.chosen(root, file) {
                Err(error) if error.is_gone() && group.optional.contains(&file) => {}
                text => former.push((file, text?)),
            }
        }
        let record = Record::new(root, group, &former);
        let file = |(file, text): &(&str, String)| [root.path(group.relative(file)).into(), text.into()];
        let record_path = [record.path().into_os_string()];
        let arguments: Vec<OsString> = former.iter().rev().flat_map(file).chain(record_path).collect();
        let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
        let guard = Undo::holding(lock.file(), PUT_BACK, &arguments).map_err(io_error)?;
        Ok(SettingsChange {
            root: root.clone(),
            group,
            former,
            record,
            recovered,
            guard: Some(guard),
            lock: Some(lock),
        })
    }

    /// Returns the settings that a killed process had changed, and that were put back before the
    /// settings were noted.
    pub(crate) fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// Checks that the kernel has a setting: ENOENT if not.
    pub(crate) fn require(&self, file: &str) -> Result<(), KernelError> {
        self.root.read(self.group.relative(file)).map(|_| ())
    }

    /// Sets each file of the group to its text. A file without a text is set to the text that was
    /// found. If one setting is refused, all are put back.
    pub(crate) fn set(&mut self, texts: impl IntoIterator<Item = Option<String>>) -> Result<(), KernelError> {
        let texts: Vec<(&str, Option<String>)> = self.group.files.iter().copied().zip(texts).collect();
        let text_for = |file: &str, former: &str| {
            let text = texts.iter().find(|(name, _)| *name == file).and_then(|(_, text)| text.clone());
            text.unwrap_or(former.to_string())
        };
        let wanted: Vec<(&str, String)> =
            self.former.iter().map(|(file, former)| (*file, text_for(file, former))).collect();
        // Written before the first change: this process may be killed at any moment.
        self.record.note(&wanted);
        for (file, text) in &wanted {
            if let Err(error) = self.write(file, text) {
                self.put_back();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts all settings back as they were found. Ignores a file that refuses its own former text.
    fn put_back(&self) {
        for (file, former) in self.former.iter().rev() {
            self.write(file, former).ok();
        }
    }

    /// Writes a text that is not there already: khugepaged wakes at a write of the same text, too.
    fn write(&self, file: &str, text: &str) -> Result<(), KernelError> {
        if self.group.chosen(&self.root, file).is_ok_and(|now| now == text) {
            return Ok(());
        }
        self.root.write(self.group.relative(file), text)
    }
}

impl Drop for SettingsChange {
    fn drop(&mut self) {
        self.put_back();
        // Removed before the guard ends, which removes it as well. A record that outlives both
        // would make the next owner undo a choice that an administrator has made since.
        self.record.remove();
        if let Some(guard) = self.guard.take() {
            guard.release();
        }
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
    }
}

/// Makes a captured tree from (path, text) pairs. The tree is deleted with the first value.
#[cfg(test)]
pub(crate) fn captured_tree(files: &[(&str, &str)]) -> (tempfile::TempDir, KernelRoot) {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root = KernelRoot::captured(directory.path());
    (directory, root)
}
