//! What was found and what was set, in a file, for the next process after an owner that was killed together with its guard.

use super::Group;
use crate::runtime_directory::runtime_directory;
use crate::trusted::{Replace, make_directory_of, read_regular, replace_file};
use crate::{KernelRoot, boot_id};
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

/// A file that is longer is none of ours, in bytes.
const LONGEST: u64 = 64 << 10;

/// A setting that was put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The file, as the user would name it.
    pub path: String,
    /// What it had been left at.
    pub left: String,
    /// What it is again.
    pub former: String,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovered { path, left, former } = self;
        write!(f, "{path} is {former} again: a process that was killed had left {left}")
    }
}

/// The file: the boot, and a line `SETTING FOUND SET...` for each setting. It is there from the first change on.
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
    /// All that it was set to: the end may come between any two writes.
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

    /// Notes what is going to be set. Where that cannot be written nothing stands in for the guard.
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
        // Whole or not at all, whenever the end comes.
        let path = std::path::absolute(self.path())?;
        make_directory_of(&path)?;
        replace_file(&path, text.as_bytes(), Replace { mode: 0o600, durable: false })
    }

    pub(super) fn remove(&self) {
        fs::remove_file(self.path()).ok();
    }
}

/// Puts back what a record of the group lists, where it is still what it had been set to, and removes the record. The caller
/// holds the lock: the process that wrote the record has ended.
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
