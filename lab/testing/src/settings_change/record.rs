//! Record of the texts found and set, in a file. It serves the next process after an owner that was
//! killed together with its guard.

use super::Group;
use megapage_kernel::runtime_directory::runtime_directory;
use megapage_kernel::trusted::{Replace, make_directory_of, read_regular, replace_file};
use megapage_kernel::{KernelRoot, boot_id};
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Longest length of a record, in bytes. A longer file is not ours.
const LONGEST: u64 = 64 << 10;

/// Setting that was put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// File, as the user would name it.
    pub path: String,
    /// Text that the killed process had left.
    pub left: String,
    /// Text that it has again.
    pub former: String,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovered { path, left, former } = self;
        write!(f, "{path} is {former} again: a process that was killed had left {left}")
    }
}

/// Content of the file: the boot, and a line `SETTING FOUND SET...` for each setting. The file
/// exists from the first change on.
#[derive(Debug)]
pub(super) struct Record {
    root: KernelRoot,
    group: &'static Group,
    boot: String,
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    file: &'static str,
    former: String,
    /// All texts that it was set to: the process may be killed between any two writes.
    set: Vec<String>,
}

impl Record {
    pub(super) fn new(root: &KernelRoot, group: &'static Group, former: &[(&'static str, String)]) -> Record {
        let setting = |(file, former): &(&'static str, String)| Setting {
            file,
            former: former.clone(),
            set: Vec::new(),
        };
        let settings = former.iter().map(setting).collect();
        Record { root: root.clone(), group, boot: boot(root), settings }
    }

    pub(super) fn path(&self) -> PathBuf {
        runtime_directory(&self.root).join(self.group.record)
    }

    /// Notes the texts that are going to be set. If they cannot be written, only the guard can put
    /// the settings back.
    pub(super) fn note(&mut self, wanted: &[(&str, String)]) {
        for (file, text) in wanted {
            let setting = self.settings.iter_mut().find(|setting| setting.file == *file);
            if let Some(setting) = setting.filter(|setting| !setting.set.contains(text)) {
                setting.set.push(text.clone());
            }
        }
        self.write().ok();
    }

    fn write(&self) -> io::Result<()> {
        let mut text = format!("{}\n", self.boot);
        for Setting { file, former, set } in &self.settings {
            text += &format!("{file} {former} {}\n", set.join(" "));
        }
        // The file is written whole or not at all, whenever the process is killed.
        let path = std::path::absolute(self.path())?;
        make_directory_of(&path)?;
        replace_file(&path, text.as_bytes(), Replace { mode: 0o600, durable: false })
    }

    pub(super) fn remove(&self) {
        fs::remove_file(self.path()).ok();
    }
}

/// Puts back the settings that a record of the group lists, if they still have a text that the
/// record's owner set. Removes the record. The caller holds the lock: the process that wrote the
/// record has ended.
pub(crate) fn recover(root: &KernelRoot, group: &Group) -> Vec<Recovered> {
    let file = runtime_directory(root).join(group.record);
    let Some(text) = read_regular(&file, LONGEST).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return Vec::new();
    };
    let mut lines = text.lines();
    let mut recovered = Vec::new();
    if lines.next() == Some(&boot(root)) {
        recovered.extend(lines.filter_map(|line| recover_one(root, group, line)));
    }
    fs::remove_file(&file).ok();
    recovered
}

fn recover_one(root: &KernelRoot, group: &Group, line: &str) -> Option<Recovered> {
    let mut words = line.split(' ');
    let (name, former) = (words.next()?, words.next()?);
    let file = group.files.iter().copied().find(|file| *file == name)?;
    let left = group.chosen(root, file).ok()?;
    if left == former || !words.any(|set| set == left) {
        return None;
    }
    root.write(group.relative(file), former).ok()?;
    Some(Recovered { path: group.path(file), left, former: former.to_string() })
}

fn boot(root: &KernelRoot) -> String {
    boot_id(root).unwrap_or_default()
}
