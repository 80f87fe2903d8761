//! Files under /etc and on the boot partition: planned as whole texts, written atomically, all or none.

use super::PersistError;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first line of every file that is megapage's alone.
pub const MARKER: &str =
    "# Written by megapage pool persist; megapage pool persist --remove --apply takes it away.";

/// Appended to the name of a file that somebody else owns, for the copy of what it held before.
pub const BACKUP_SUFFIX: &str = ".megapage.bak";

/// One file, from what it holds to what it shall hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edit {
    /// The file.
    pub path: PathBuf,
    /// Its text before; `None`: it is not there.
    pub before: Option<String>,
    /// Its text after; `None`: it is removed.
    pub after: Option<String>,
}

impl Edit {
    /// Reads what is there. A symbolic link is refused: it may lead out of the image that is edited, and would be
    /// replaced by a file.
    pub(super) fn of(path: PathBuf) -> Result<Edit, PersistError> {
        let before = read(&path)?;
        Ok(Edit { after: before.clone(), before, path })
    }

    /// A file of megapage's own that shall hold the marker and `text`, or go. One of that name that somebody
    /// else wrote is refused.
    pub(super) fn own(path: PathBuf, text: Option<String>) -> Result<Edit, PersistError> {
        let mut edit = Edit::of(path)?;
        if edit.before.as_deref().is_some_and(|before| !before.starts_with(MARKER)) {
            return Err(PersistError::NotOurs(edit.path));
        }
        edit.after = text.map(|text| format!("{MARKER}\n{text}"));
        Ok(edit)
    }

    /// Whether the file is already as it shall be.
    pub fn is_no_op(&self) -> bool {
        self.before == self.after
    }

    /// The shell lines that do the same.
    pub(super) fn commands(&self) -> Vec<String> {
        let path = quote(&self.path);
        match &self.after {
            _ if self.is_no_op() => Vec::new(),
            None => vec![format!("rm {path}")],
            Some(text) => {
                let mut lines = Vec::new();
                if self.before.is_none()
                    && let Some(parent) = self.path.parent().filter(|parent| !parent.is_dir())
                {
                    lines.push(format!("mkdir -p {}", quote(parent)));
                }
                lines.push(format!("cat > {path} <<'MEGAPAGE'\n{text}MEGAPAGE"));
                lines
            }
        }
    }

    fn make(&self) -> Result<(), PersistError> {
        set(&self.path, self.after.as_deref())
    }

    fn undo(&self) -> Result<(), PersistError> {
        set(&self.path, self.before.as_deref())
    }
}

/// Makes all edits; when one fails, those before it are undone and its error is returned.
pub(super) fn make_all(edits: &[Edit]) -> Result<(), PersistError> {
    for (index, edit) in edits.iter().enumerate().filter(|(_, edit)| !edit.is_no_op()) {
        if let Err(error) = edit.make() {
            for done in edits[..index].iter().rev().filter(|edit| !edit.is_no_op()) {
                done.undo()?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// The text of a file; `None` where there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, PersistError> {
    let failed = |source| PersistError::Io { path: path.to_path_buf(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.is_symlink() => return Err(PersistError::Link(path.to_path_buf())),
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}

fn set(path: &Path, text: Option<&str>) -> Result<(), PersistError> {
    let result = match text {
        Some(text) => write(path, text),
        None => fs::remove_file(path),
    };
    result.map_err(|source| PersistError::Io { path: path.to_path_buf(), source })
}

/// A new file beside the old one, synced, then renamed over it: a crash leaves the one or the other.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mode = fs::metadata(path).map_or(0o644, |metadata| metadata.permissions().mode() & 0o7777);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = directory.join(format!(".{name}.megapage.{}", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // What failed is reported; a left-over would only be in the way.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn quote(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_undoes_what_was_done_before_it() {
        let tree = tempfile::tempdir().unwrap();
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
        assert!(matches!(make_all(&edits), Err(PersistError::Io { .. })));
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "old\n");
        assert!(!path("made").exists());
        make_all(&edits[..2]).unwrap();
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "new\n");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn the_mode_of_a_file_is_kept() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("cmdline");
        fs::write(&path, "a\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        write(&path, "b\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn links_and_files_of_others_are_refused() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("60-megapage.conf");
        fs::write(&path, "vm.nr_hugepages = 1\n").unwrap();
        assert!(matches!(Edit::own(path.clone(), None), Err(PersistError::NotOurs(_))));
        let link = tree.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Edit::of(link), Err(PersistError::Link(_))));
    }

    #[test]
    fn unusual_names_are_quoted_for_the_shell() {
        assert_eq!(quote(Path::new("/etc/a b'c")), r"'/etc/a b'\''c'");
        assert_eq!(quote(Path::new("/etc/a-b.conf")), "/etc/a-b.conf");
    }
}
