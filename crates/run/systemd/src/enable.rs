//! Switches a service on and off: writes or removes one drop-in.

use crate::decide::{Decision, decide, options};
use crate::drop_in::{DROP_IN, DropIn, Held};
use crate::error::{SystemdError, refused};
use crate::files::Files;
use crate::name::UnitName;
use crate::plain;
use crate::reach::{Asked, Way};
use crate::service::Service;
use megapage_kernel::KernelRoot;
use megapage_kernel::tree::Tree;
use megapage_launch::applications::Application;
use megapage_launch::verdict;
use megapage_units::shown::shell_word;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// Directory of the administrator's drop-ins, below the root.
pub(crate) const PLACE: &str = "etc/systemd/system";
/// The longest drop-in that is read, in bytes.
const LONGEST: u64 = 1 << 16;

/// One file, from its present to its target content.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The service.
    pub unit: String,
    /// The drop-in.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// Its text before; `None`: it does not exist.
    pub before: Option<String>,
    /// Its text after; `None`: it is removed.
    pub after: Option<String>,
    /// The decision how to reach the program; `None` if the service is switched off.
    pub decision: Option<Decision>,
    /// True if its directory is removed with it, once that is empty.
    #[serde(skip)]
    removes_directory: bool,
    #[serde(skip)]
    root: PathBuf,
    #[serde(skip)]
    name: UnitName,
}

/// Finds the service that `text` names: a unit, or a program that exactly one service starts.
pub fn find(root: &Path, text: &str) -> Result<UnitName, SystemdError> {
    let files = Files::new(root);
    if !text.contains('/') {
        let name = UnitName::parse(text)?;
        if let Some(service) = Service::load(&files, &name, None)? {
            return Ok(service.name);
        }
    }
    let mut found: Vec<UnitName> = Vec::new();
    for name in files.services() {
        let Ok(name) = UnitName::parse(&name) else { continue };
        // A unit that cannot be read is skipped.
        let Ok(Some(service)) = Service::load(&files, &name, None) else { continue };
        let starts = |program: &str| {
            program == text || (!text.contains('/') && program.rsplit('/').next() == Some(text))
        };
        let own = service.commands().is_ok_and(|commands| commands.iter().any(|it| starts(&it.program)));
        let known = Application::of_unit(service.name.prefix()).is_some_and(|it| it.names.contains(&text));
        if (own || known) && !found.contains(&service.name) {
            found.push(service.name);
        }
    }
    match found.as_slice() {
        [] => Err(unknown(text)),
        [one] => Ok(one.clone()),
        several => {
            let units = several.iter().map(UnitName::as_str).collect::<Vec<_>>().join(", ");
            Err(SystemdError::Refused(format!("several services start '{text}': name one of {units}")))
        }
    }
}

/// Returns the change that switches a service on. Changes nothing yet.
pub fn enable(
    kernel: &KernelRoot,
    root: &Path,
    unit: &UnitName,
    asked: &Asked,
) -> Result<Change, SystemdError> {
    let files = Files::new(root);
    let unknown = || unknown(unit.as_str());
    let name = Service::load(&files, unit, None)?.ok_or_else(unknown)?.name;
    let (path, before, held) = held(root, &name)?;
    let service = Service::load(&files, &name, Some((&path, None)))?.ok_or_else(unknown)?;
    let mut decision = decide(kernel, root, &service, asked)?;
    if root == Path::new("/")
        && let Some(verdict) = verdict::of_unit(name.as_str())
    {
        decision.notes.push(verdict.in_words());
    }
    let made_directory = match &held {
        Some(drop_in) => drop_in.made_directory,
        None => !open(root)?.is_directory(path.parent().unwrap_or(root)),
    };
    let words = options(&asked.request);
    let options = words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
    let text = DropIn { options, made_directory, lines: decision.lines.clone() }.text();
    let merged = Service::load(&files, &name, Some((&path, Some(&text))))?.ok_or_else(unknown)?;
    holds(&merged, &decision, &asked.launcher).map_err(|why| refused(&name, why))?;
    Ok(Change {
        unit: name.to_string(),
        path,
        before,
        after: Some(text),
        decision: Some(decision),
        removes_directory: false,
        root: root.to_path_buf(),
        name,
    })
}

/// Returns the change that switches a service off again. Also works for a unit that no longer
/// exists.
pub fn disable(root: &Path, unit: &UnitName) -> Result<Change, SystemdError> {
    let files = Files::new(root);
    let name = match Service::load(&files, unit, None) {
        Ok(Some(service)) => service.name,
        _ => unit.clone(),
    };
    let (path, before, held) = held(root, &name)?;
    let Some(held) = held else { return Err(SystemdError::NotEnabled { unit: name, path }) };
    Ok(Change {
        unit: name.to_string(),
        path,
        before,
        after: None,
        decision: None,
        removes_directory: held.made_directory,
        root: root.to_path_buf(),
        name,
    })
}

fn unknown(name: &str) -> SystemdError {
    SystemdError::Refused(format!(
        "there is no service '{name}', and none starts a program of that name; systemctl list-unit-files names them"
    ))
}

fn open(root: &Path) -> Result<Tree, SystemdError> {
    Tree::open(root).map_err(|source| SystemdError::Io { path: root.to_path_buf(), source })
}

/// Reads the drop-in of a service: returns its path, its text and its content. Fails for a file
/// that is not ours, or that was changed.
fn held(root: &Path, name: &UnitName) -> Result<(PathBuf, Option<String>, Option<DropIn>), SystemdError> {
    let path = root.join(PLACE).join(format!("{name}.d")).join(DROP_IN);
    let text =
        open(root)?.read(&path, LONGEST).map_err(|source| SystemdError::Io { path: path.clone(), source })?;
    match text.as_deref().map(DropIn::read) {
        None => Ok((path, None, None)),
        Some(Held::Whole(drop_in)) => Ok((path, text, Some(drop_in))),
        Some(Held::Changed) => Err(SystemdError::Changed(path)),
        Some(Held::Other) => Err(SystemdError::NotOurs(path)),
    }
}

/// Fails if systemd ends up with other values than the drop-in sets: another drop-in may come after
/// it.
fn holds(merged: &Service, decision: &Decision, launcher: &Path) -> Result<(), String> {
    let after = |key: &str| {
        let last = merged.entries.iter().rfind(|entry| entry.key == key);
        last.map_or_else(|| key.to_string(), |entry| entry.path.display().to_string())
    };
    match decision.way {
        Way::Environment => {
            let environment = merged.environment();
            let lost = decision.variables.iter().find(|(name, value)| environment.get(name) != Some(value));
            match lost {
                Some((name, _)) => Err(format!(
                    "{} comes after {DROP_IN} and sets Environment= again, without {name}: rename it so that it comes before",
                    after("Environment")
                )),
                None => Ok(()),
            }
        }
        Way::Launcher => {
            let commands = merged.commands().unwrap_or_default();
            let ours = commands.iter().all(|command| Path::new(&command.program) == launcher);
            match ours && !commands.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "{} comes after {DROP_IN} and sets ExecStart= again: rename it so that it comes before",
                    after("ExecStart")
                )),
            }
        }
    }
}

impl Change {
    /// Returns the name of the service.
    pub fn name(&self) -> &UnitName {
        &self.name
    }

    /// Returns true if the file is already in its target state.
    pub fn is_no_op(&self) -> bool {
        self.before == self.after
    }

    /// Writes or removes the file. On the running system, also forgets recorded failures.
    pub fn apply(&self) -> Result<(), SystemdError> {
        if self.root == Path::new("/") {
            plain::forget(&KernelRoot::live(), &self.root, &self.name)?;
        }
        if self.is_no_op() {
            return Ok(());
        }
        let failed = |source: io::Error| SystemdError::Io { path: self.path.clone(), source };
        let tree = open(&self.root)?;
        match &self.after {
            Some(text) => tree.replace(&self.path, text).map_err(failed),
            None => {
                tree.remove(&self.path).map_err(failed)?;
                if self.removes_directory
                    && let Some(directory) = self.path.parent()
                {
                    tree.remove_empty(directory).map_err(failed)?;
                }
                Ok(())
            }
        }
    }

    /// Returns the change as a unified diff.
    pub fn diff(&self) -> String {
        let lines = |text: &Option<String>| -> Vec<String> {
            text.iter().flat_map(|text| text.lines()).map(String::from).collect()
        };
        let (before, after) = (lines(&self.before), lines(&self.after));
        let name = |there: bool| if there { self.path.display().to_string() } else { "/dev/null".into() };
        let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        let rest = before.len().min(after.len()) - same;
        let tail = before.iter().rev().zip(after.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
        let (gone, new) = (&before[same..before.len() - tail], &after[same..after.len() - tail]);
        // An empty side has the number of the line before it.
        let at = |lines: &[String]| if lines.is_empty() { same } else { same + 1 };
        let mut text = format!(
            "--- {}\n+++ {}\n@@ -{},{} +{},{} @@\n",
            name(self.before.is_some()),
            name(self.after.is_some()),
            at(gone),
            gone.len(),
            at(new),
            new.len()
        );
        for (mark, lines) in [('-', gone), ('+', new)] {
            for line in lines {
                text.push(mark);
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// Returns the shell lines that make the same change, without the restart.
    pub fn commands(&self) -> Vec<String> {
        let word = |path: &Path| shell_word(&path.to_string_lossy());
        let directory = self.path.parent().unwrap_or(&self.root);
        let mut lines = match &self.after {
            _ if self.is_no_op() => return Vec::new(),
            Some(text) => vec![
                format!("mkdir -p {}", word(directory)),
                format!("cat > {} <<'MEGAPAGE'\n{text}MEGAPAGE", word(&self.path)),
            ],
            None => vec![format!("rm {}", word(&self.path))],
        };
        if self.after.is_none() && self.removes_directory {
            lines.push(format!("rmdir --ignore-fail-on-non-empty {}", word(directory)));
        }
        if self.root == Path::new("/") {
            lines.push("systemctl daemon-reload".into());
        }
        lines
    }
}
