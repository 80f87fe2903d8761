//! Files under /etc and on the boot partition: planned as whole texts, written atomically, all or
//! none.

use super::PersistError;
use megapage_kernel::directory::is_link_in_the_way;
use megapage_kernel::tree::{Tree, is_link_on_the_way};
use megapage_units::shown::shell_path;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes, and the most files of one directory.
const LONGEST: u64 = 1 << 20;
const MOST_FILES: usize = 4096;

/// First line of every file that is megapage's alone.
pub const MARKER: &str =
    "# Written by megapage pool persist; megapage pool persist --remove --apply takes it away.";

/// Suffix of the copy of another program's file, which holds its former text.
pub const BACKUP_SUFFIX: &str = ".megapage.bak";

/// One file, from its present to its target content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edit {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// Its text before; `None` if it does not exist.
    pub before: Option<String>,
    /// Its text after; `None` if it is removed.
    pub after: Option<String>,
}

impl Edit {
    /// Reads the present file. Refuses a symbolic link: it may lead out of the image that is
    /// edited, and would be replaced by a file.
    pub(super) fn of(tree: &Tree, path: PathBuf) -> Result<Edit, PersistError> {
        let before = read(tree, &path)?;
        Ok(Edit { after: before.clone(), before, path })
    }

    /// Returns the edit of a file of megapage's own that is to hold the marker and `text`, or to be
    /// removed. Refuses a file of that name that another program wrote.
    pub(super) fn own(tree: &Tree, path: PathBuf, text: Option<String>) -> Result<Edit, PersistError> {
        let mut edit = Edit::of(tree, path)?;
        if edit.before.as_deref().is_some_and(|before| !before.starts_with(MARKER)) {
            return Err(PersistError::NotOurs(edit.path));
        }
        edit.after = text.map(|text| format!("{MARKER}\n{text}"));
        Ok(edit)
    }

    /// Returns true if the file is already in its target state.
    pub fn is_no_op(&self) -> bool {
        self.before == self.after
    }

    /// Returns the shell lines that do the same.
    pub(super) fn commands(&self) -> Vec<String> {
        let path = shell_path(&self.path);
        match &self.after {
            _ if self.is_no_op() => Vec::new(),
            None => vec![format!("rm {path}")],
            Some(text) => {
                let mut lines = Vec::new();
                if self.before.is_none()
                    && let Some(parent) = self.path.parent().filter(|parent| !parent.is_dir())
                {
                    lines.push(format!("mkdir -p {}", shell_path(parent)));
                }
                lines.push(format!("cat > {path} <<'MEGAPAGE'\n{text}MEGAPAGE"));
                lines
            }
        }
    }

    fn make(&self, tree: &Tree) -> Result<(), PersistError> {
        set(tree, &self.path, self.after.as_deref())
    }

    fn undo(&self, tree: &Tree) -> Result<(), PersistError> {
        set(tree, &self.path, self.before.as_deref())
    }
}

/// Makes all edits. If one fails, undoes those before it and returns its error.
pub(super) fn make_all(tree: &Tree, edits: &[Edit]) -> Result<(), PersistError> {
    for (index, edit) in edits.iter().enumerate().filter(|(_, edit)| !edit.is_no_op()) {
        if let Err(error) = edit.make(tree) {
            for done in edits[..index].iter().rev().filter(|edit| !edit.is_no_op()) {
                done.undo(tree)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Returns the text of a file; `None` if there is none.
pub(super) fn read(tree: &Tree, path: &Path) -> Result<Option<String>, PersistError> {
    tree.read(path, LONGEST).map_err(|error| failed(path, error))
}

/// Returns the files in a directory that end in `.extension`, sorted; none if there is no such
/// directory.
pub(super) fn listed(tree: &Tree, directory: &Path, extension: &str) -> Result<Vec<PathBuf>, PersistError> {
    let names = tree.names(directory, MOST_FILES).map_err(|error| match failed(directory, error) {
        // For the files in the directory, the link is on the way.
        PersistError::Link(directory) => PersistError::LinkOnTheWay(directory),
        other => other,
    })?;
    let paths = names.into_iter().map(|name| directory.join(name));
    Ok(paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect())
}

fn set(tree: &Tree, path: &Path, text: Option<&str>) -> Result<(), PersistError> {
    let result = match text {
        Some(text) => tree.replace(path, text),
        None => tree.remove(path),
    };
    result.map_err(|error| failed(path, error))
}

pub(super) fn failed(path: &Path, source: io::Error) -> PersistError {
    let path = path.to_path_buf();
    match source {
        source if is_link_on_the_way(&source, &path) => PersistError::LinkOnTheWay(path),
        source if is_link_in_the_way(&source) => PersistError::Link(path),
        source => PersistError::Io { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_failure_undoes_what_was_done_before_it() {
        let tree = tempfile::tempdir().unwrap();
        let image = Tree::open(tree.path()).unwrap();
        let path = |name: &str| tree.path().join(name);
        fs::write(path("old"), "old\n").unwrap();
        fs::write(path("file"), "").unwrap();
        let edit = |name: &str, before: Option<&str>, after: Option<&str>| Edit {
            path: path(name),
            before: before.map(str::to_string),
            after: after.map(str::to_string),
        };
        let edits = [
            edit("old", Some("old\n"), Some("new\n")),
            edit("made", None, Some("made\n")),
            // Its directory is a file.
            edit("file/below", None, Some("x")),
        ];
        assert!(matches!(make_all(&image, &edits), Err(PersistError::Io { .. })));
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "old\n");
        assert!(!path("made").exists());
        make_all(&image, &edits[..2]).unwrap();
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "new\n");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn links_and_files_of_others_are_refused() {
        let tree = tempfile::tempdir().unwrap();
        let image = Tree::open(tree.path()).unwrap();
        let path = tree.path().join("60-megapage.conf");
        fs::write(&path, "vm.nr_hugepages = 1\n").unwrap();
        assert!(matches!(Edit::own(&image, path.clone(), None), Err(PersistError::NotOurs(_))));
        let link = tree.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Edit::of(&image, link), Err(PersistError::Link(_))));
    }
}
