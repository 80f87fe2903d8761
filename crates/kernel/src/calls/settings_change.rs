//! Changing settings of the kernel's for a while: all of a group or none, and back again.

mod record;

use crate::guard::Guard;
use crate::runtime_directory::{LockError, LockFile, runtime_directory};
use crate::{KernelError, KernelRoot};
use record::Record;
pub use record::Recovered;
pub(crate) use record::recover;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Settings that are changed as one.
#[derive(Debug)]
pub(crate) struct Group {
    /// Their directory, relative to a [`KernelRoot`].
    pub(crate) directory: &'static str,
    /// The files, in the order in which they are written.
    pub(crate) files: &'static [&'static str],
    /// Files that some kernels lack: there they are neither noted nor set.
    pub(crate) optional: &'static [&'static str],
    /// The one that every kernel with such settings has, and that errors name.
    pub(crate) main: &'static str,
    /// The lock in the runtime directory, and the record of what was found and set.
    pub(crate) lock: &'static str,
    /// See there.
    pub(crate) record: &'static str,
}

impl Group {
    /// Relative to a [`KernelRoot`].
    pub(crate) fn relative(&self, file: &str) -> String {
        format!("{}/{file}", self.directory)
    }

    /// As the user would name it.
    pub(crate) fn path(&self, file: &str) -> String {
        format!("/{}/{file}", self.directory)
    }

    /// What a setting is now. A choice shows all words, the chosen one in brackets; a number stands alone.
    fn chosen(&self, root: &KernelRoot, file: &str) -> Result<String, KernelError> {
        let text = root.read(self.relative(file))?;
        let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
        Ok(word.unwrap_or(text.trim()).to_string())
    }

    /// Shell lines that set the same as `texts`, which are those of the files in their order.
    pub(crate) fn shell_lines(&self, texts: impl IntoIterator<Item = Option<String>>) -> Vec<String> {
        let lines = self.files.iter().zip(texts);
        lines.filter_map(|(file, text)| Some(format!("echo {} > {}", text?, self.path(file)))).collect()
    }
}

/// The right to change a group of settings. They are put back when the value is dropped, in the reverse order, and also when
/// this process is killed ([`Guard`]). Where the guard is killed as well, as with a whole control group, the next owner of
/// the right puts them back: what was found, and what was set, is recorded in the runtime directory meanwhile (where that can
/// be written to). One at a time on a machine: a lock there is taken, which only root can open.
#[derive(Debug)]
pub(crate) struct SettingsChange {
    root: KernelRoot,
    group: &'static Group,
    former: Vec<(&'static str, String)>,
    record: Record,
    recovered: Vec<Recovered>,
    pub(crate) guard: Option<Guard>,
    pub(crate) lock: Option<LockFile>,
}

/// For how long the right is waited for: the guard of a process that was killed puts back what that changed.
const PATIENCE: Duration = Duration::from_secs(2);

impl SettingsChange {
    /// Notes `files` of the group, and changes nothing yet but what a process that was killed has left. ENOENT on a kernel
    /// without such settings, [`KernelError::Held`] where another process holds the right and keeps it for two seconds.
    pub(crate) fn begin(
        root: &KernelRoot,
        group: &'static Group,
        files: &[&'static str],
    ) -> Result<SettingsChange, KernelError> {
        let io_error = |source: io::Error| KernelError::Io { path: group.path(group.main).into(), source };
        // A kernel that has no such settings has none to lock.
        root.read(group.relative(group.main))?;
        let lock =
            LockFile::take(root, &runtime_directory(root).join(group.lock), PATIENCE).map_err(|error| {
                match error {
                    LockError::Held { holders, .. } => {
                        KernelError::Held { path: group.path(group.main).into(), holders }
                    }
                    LockError::Io { path, source } => KernelError::Io { path, source },
                }
            })?;
        let recovered = record::recover(root, group);
        let mut former = Vec::new();
        for file in files.iter().copied() {
            match group.chosen(root, file) {
                Err(error) if error.is_gone() && group.optional.contains(&file) => {}
                text => former.push((file, text?)),
            }
        }
        let file = |(file, text): &(&str, String)| (root.path(group.relative(file)), text.clone());
        let files = former.iter().rev().map(file).collect();
        let record = Record::new(root, group, &former);
        let guard = Guard::of_locked_files(files, record.path(), lock.file().as_fd()).map_err(io_error)?;
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

    /// What a process that was killed had left, and was put back before the settings were noted.
    pub(crate) fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// Whether there is more than one setting to change.
    pub(crate) fn is_whole(&self) -> bool {
        self.former.len() > 1
    }

    /// ENOENT where this kernel has no such setting.
    pub(crate) fn require(&self, file: &str) -> Result<(), KernelError> {
        self.root.read(self.group.relative(file)).map(|_| ())
    }

    /// Sets each file of the group to its text, and where it has none, as it was found. Where one setting is refused, all are
    /// put back.
    pub(crate) fn set(&mut self, texts: impl IntoIterator<Item = Option<String>>) -> Result<(), KernelError> {
        let texts: Vec<(&str, Option<String>)> = self.group.files.iter().copied().zip(texts).collect();
        let text_for = |file: &str, former: &str| {
            let text = texts.iter().find(|(name, _)| *name == file).and_then(|(_, text)| text.clone());
            text.unwrap_or(former.to_string())
        };
        let wanted: Vec<(&str, String)> =
            self.former.iter().map(|(file, former)| (*file, text_for(file, former))).collect();
        // Before the first is written: the end may come at any moment.
        self.record.note(&wanted);
        for (file, text) in &wanted {
            if let Err(error) = self.root.write(self.group.relative(file), text) {
                self.put_back();
                return Err(error);
            }
        }
        Ok(())
    }

    /// As everything was found. There is nothing to do about a file that refuses its own former text.
    fn put_back(&self) {
        for (file, former) in self.former.iter().rev() {
            self.root.write(self.group.relative(file), former).ok();
        }
    }
}

impl Drop for SettingsChange {
    fn drop(&mut self) {
        self.put_back();
        // Before the guard ends, which removes it as well: a record that outlives both would have the next owner undo what an
        // administrator has chosen since.
        self.record.remove();
        if let Some(guard) = self.guard.take() {
            guard.release().ok();
        }
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
    }
}
