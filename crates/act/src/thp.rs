//! Settings of transparent huge pages: sets all or none, and keeps them over a reboot by
//! tmpfiles.d(5).

mod others;

use megapage_kernel::thp::{RawSetting, boot_words, path, raw_settings, write_setting};
use megapage_kernel::tree::Tree;
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::PageSize;
use megapage_units::shown::shell_word;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// File that keeps the settings, relative to the root.
const TMPFILES: &str = "etc/tmpfiles.d/60-megapage-thp.conf";
/// First line of that file.
const MARKER: &str = "# Written by megapage thp persist; megapage thp persist --remove takes it away.";
/// Largest size of a file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Reason that settings were not changed or made persistent. Nothing was written, or the former
/// values were written back.
#[derive(Debug, Error)]
pub enum ThpError {
    /// Argument that is not `NAME=VALUE`.
    #[error("'{0}' is not a setting; write NAME=VALUE, such as enabled=madvise or 64k=inherit")]
    Form(String),
    /// A name that this kernel lacks.
    #[error("this kernel has no setting '{name}'; it has {names}")]
    Unknown {
        /// As given.
        name: String,
        /// Names of the settings that the kernel has.
        names: String,
    },
    /// A value that the setting does not take.
    #[error("{name}: '{value}' is not {takes}")]
    Value {
        /// The setting.
        name: String,
        /// As given.
        value: String,
        /// Values that it takes.
        takes: String,
    },
    /// The same setting twice.
    #[error("{0} is given twice")]
    Twice(String),
    /// No setting is named.
    #[error("no setting is named; write NAME=VALUE, such as enabled=madvise")]
    Nothing,
    /// CONFIG_TRANSPARENT_HUGEPAGE is off.
    #[error("this kernel was built without transparent huge pages")]
    NoThp,
    /// Another program's file.
    #[error("{}: was not written by megapage; move it away first", .0.display())]
    NotOurs(PathBuf),
    /// The kernel has refused.
    #[error("{}{}", .0, if .0.raw_os_error() == Some(13) { "; run as root (sudo)" } else { "" })]
    Kernel(#[from] KernelError),
    /// A file could not be read or written.
    #[error("{}: {source}{}", .path.display(), if .source.kind() == io::ErrorKind::PermissionDenied { "; run as root (sudo)" } else { "" })]
    Io {
        /// The file.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

/// One setting, from its present to its target value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Its name below the directory of the settings.
    pub name: String,
    /// Its value before.
    pub before: String,
    /// Its value after.
    pub after: String,
}

/// Change to the file that keeps settings over a reboot.
#[derive(Clone, Debug, Serialize)]
pub struct Persist {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// Its text before; `None` if it does not exist.
    pub before: Option<String>,
    /// Its text after; `None` if it is removed.
    pub after: Option<String>,
    /// Other sources of the same settings, and which of the two takes effect.
    pub notes: Vec<String>,
    #[serde(skip)]
    root: PathBuf,
}

/// Returns all settings that can be written.
pub fn get(kernel: &KernelRoot) -> Result<Vec<RawSetting>, ThpError> {
    let settings = raw_settings(kernel)?;
    if settings.is_empty() { Err(ThpError::NoThp) } else { Ok(settings) }
}

/// Returns the setting called `name`. `64k` and `64k/shmem` are short for `enabled` and
/// `shmem_enabled` of that size.
pub fn find<'a>(settings: &'a [RawSetting], name: &str) -> Result<&'a RawSetting, ThpError> {
    let full = full_name(name);
    settings.iter().find(|setting| setting.name == full).ok_or_else(|| ThpError::Unknown {
        name: name.into(),
        names: settings.iter().map(|setting| setting.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

fn full_name(name: &str) -> String {
    let (size, rest) = name.split_once('/').unwrap_or((name, "enabled"));
    let digit = size.starts_with(|c: char| c.is_ascii_digit());
    let kib = || Some(size.parse::<PageSize>().ok()?.bytes().0 / 1024);
    match (digit.then(kib).flatten(), rest) {
        (Some(kib), "shmem") => format!("hugepages-{kib}kB/shmem_enabled"),
        (Some(kib), rest) => format!("hugepages-{kib}kB/{rest}"),
        (None, _) if name == "shmem" => "shmem_enabled".into(),
        (None, _) => name.into(),
    }
}

/// Returns the steps that set `wanted`, each `NAME=VALUE`.
pub fn plan(kernel: &KernelRoot, wanted: &[String]) -> Result<Vec<Step>, ThpError> {
    let settings = get(kernel)?;
    if wanted.is_empty() {
        return Err(ThpError::Nothing);
    }
    let mut steps: Vec<Step> = Vec::new();
    for text in wanted {
        let (name, value) = text.split_once('=').ok_or_else(|| ThpError::Form(text.clone()))?;
        let setting = find(&settings, name)?;
        let takes = match setting.words.is_empty() {
            true if value.parse::<u64>().is_ok() => None,
            true => Some("a number".to_string()),
            false if setting.words.iter().any(|word| word == value) => None,
            false => Some(format!("one of {}", setting.words.join(", "))),
        };
        if let Some(takes) = takes {
            return Err(ThpError::Value { name: setting.name.clone(), value: value.into(), takes });
        }
        if steps.iter().any(|step| step.name == setting.name) {
            return Err(ThpError::Twice(setting.name.clone()));
        }
        let (before, after) = (setting.value.clone(), value.to_string());
        steps.push(Step { name: setting.name.clone(), before, after });
    }
    Ok(steps)
}

/// Applies all steps. If one is refused, restores the earlier ones.
pub fn apply(kernel: &KernelRoot, steps: &[Step]) -> Result<(), ThpError> {
    for (at, step) in steps.iter().enumerate() {
        if let Err(error) = write_setting(kernel, &step.name, &step.after) {
            for done in steps[..at].iter().rev() {
                // A setting that refuses its former value cannot be restored.
                write_setting(kernel, &done.name, &done.before).ok();
            }
            return Err(error.into());
        }
    }
    Ok(())
}

/// Returns the shell lines that set the same.
pub fn commands(steps: &[Step]) -> Vec<String> {
    let changed = steps.iter().filter(|step| step.before != step.after);
    changed.map(|step| format!("echo {} > {}", step.after, path(&step.name))).collect()
}

/// Returns the change that makes `steps` persistent, or without steps removes the file. Each call
/// replaces the whole file.
pub fn persist(kernel: &KernelRoot, root: &Path, steps: &[Step]) -> Result<Persist, ThpError> {
    let tree = Tree::open(root).map_err(|source| ThpError::Io { path: root.into(), source })?;
    let file = root.join(TMPFILES);
    let before = tree.read(&file, LONGEST).map_err(|source| ThpError::Io { path: file.clone(), source })?;
    if before.as_deref().is_some_and(|text| !text.starts_with(MARKER)) {
        return Err(ThpError::NotOurs(file));
    }
    let line = |step: &Step| format!("w {} - - - - {}\n", path(&step.name), step.after);
    let after = (!steps.is_empty())
        .then(|| steps.iter().fold(format!("{MARKER}\n"), |text, step| text + &line(step)));
    let mut notes = Vec::new();
    if !steps.is_empty() {
        // The running kernel's command line says nothing about that of an image.
        let words = if root == Path::new("/") { boot_words(kernel) } else { Vec::new() };
        notes.extend(words.into_iter().map(|word| {
            format!("the kernel's command line says {word}: that holds until systemd-tmpfiles runs, then what is kept here")
        }));
        notes.extend(others::others(&tree, &file, steps));
    }
    Ok(Persist { path: file, before, after, notes, root: root.into() })
}

impl Persist {
    /// Returns true if the file is already in its target state.
    pub fn is_no_op(&self) -> bool {
        self.before == self.after
    }

    /// Writes or removes the file.
    pub fn apply(&self) -> Result<(), ThpError> {
        if self.is_no_op() {
            return Ok(());
        }
        let failed = |source: io::Error| ThpError::Io { path: self.path.clone(), source };
        let tree = Tree::open(&self.root).map_err(failed)?;
        match &self.after {
            Some(text) => tree.replace(&self.path, text).map_err(failed),
            None => tree.remove(&self.path).map_err(failed),
        }
    }

    /// Returns the equivalent shell lines.
    pub fn commands(&self) -> Vec<String> {
        let file = shell_word(&self.path.to_string_lossy());
        match &self.after {
            _ if self.is_no_op() => Vec::new(),
            Some(text) => vec![format!("cat > {file} <<'MEGAPAGE'\n{text}MEGAPAGE")],
            None => vec![format!("rm {file}")],
        }
    }
}

#[cfg(test)]
mod tests;
