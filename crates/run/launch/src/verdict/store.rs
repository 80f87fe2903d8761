//! Files of verdicts: one small file each, in a directory that belongs to the user.

use megapage_kernel::directory::Directory;
use megapage_kernel::effective_uid;
use megapage_kernel::trusted::{Replace, make_directory_of, open_own_directory};
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable with the directory of verdicts; with `none`, none are read or written.
pub const TRIALS_VARIABLE: &str = "MEGAPAGE_TRIALS";
/// Root's directory.
const ROOTS: &str = "/var/lib/megapage/trials";
/// Directory below that of the user's state.
const BELOW_STATE: &str = "megapage/trials";
/// Largest size of a file, in bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Largest number of verdicts of one user; the oldest ones are removed.
const MOST_VERDICTS: usize = 512;
/// Largest number of names that are read from the directory.
const MOST_NAMES: usize = 4096;
const END: &str = ".json";

/// Returns the directory of the calling user's verdicts, or the reason why there is none.
pub fn directory() -> Result<PathBuf, String> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    directory_of(effective_uid(), variable)
}

fn directory_of(user: u32, variable: impl Fn(&'static str) -> Option<OsString>) -> Result<PathBuf, String> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match variable(TRIALS_VARIABLE) {
        Some(named) if named == "none" => return Err(format!("{TRIALS_VARIABLE} is none")),
        Some(named) if Path::new(&named).is_absolute() => return Ok(named.into()),
        Some(_) => return Err(format!("{TRIALS_VARIABLE} is no absolute path")),
        None if user == 0 => return Ok(ROOTS.into()),
        None => {}
    }
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Ok(state.ok_or("neither XDG_STATE_HOME nor HOME names a directory")?.join(BELOW_STATE))
}

/// The verdicts of one user.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// Returns the store in the directory `path`, which may be missing.
    pub fn at(path: PathBuf) -> Store {
        Store { path }
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file of a verdict.
    pub fn file(&self, key: &str) -> PathBuf {
        self.path.join(format!("{key}{END}"))
    }

    /// Reads a verdict's bytes; `None` if there is none.
    pub fn read(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let read = open_own_directory(&self.path)
            .and_then(|it| it.read_own_file(&format!("{key}{END}"), MOST_BYTES));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Replaces a verdict, or adds one and removes the oldest beyond the bound.
    pub fn write(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let directory = match open_own_directory(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.make()?,
            opened => opened?,
        };
        let name = OsString::from(format!("{key}{END}"));
        let is_new = directory.open_file_to_read(&format!("{key}{END}")).is_err();
        directory.replace_file(&name, bytes, Replace { mode: 0o600, durable: false })?;
        if is_new { thin_out(&directory, MOST_VERDICTS) } else { Ok(()) }
    }

    fn make(&self) -> io::Result<Directory> {
        make_directory_of(&self.path)?;
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        open_own_directory(&self.path)
    }

    /// Returns the keys of all verdicts.
    pub fn keys(&self) -> io::Result<Vec<String>> {
        match open_own_directory(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            opened => {
                let (names, _) = opened?.names(MOST_NAMES)?;
                Ok(names.iter().filter_map(|name| key_of(name)).map(String::from).collect())
            }
        }
    }

    /// Removes a verdict.
    pub fn remove(&self, key: &str) -> io::Result<()> {
        open_own_directory(&self.path)?.remove_file(OsStr::new(&format!("{key}{END}")))
    }

    /// Returns all files of the store, each as `parse` reads it.
    pub fn all<T>(&self, parse: fn(&[u8]) -> Result<T, String>) -> std::io::Result<Vec<Stored<T>>> {
        let stored = |key: String| {
            let read = self.read(&key).map_err(|error| error.to_string());
            let bytes = read.and_then(|bytes| bytes.ok_or_else(|| "it is gone".into()));
            Stored { file: self.file(&key), content: bytes.and_then(|bytes| parse(&bytes)), key }
        };
        Ok(self.keys()?.into_iter().map(stored).collect())
    }
}

/// A file of a store.
#[derive(Debug)]
pub struct Stored<T> {
    /// Its key.
    pub key: String,
    /// Its path.
    pub file: PathBuf,
    /// Its content, or the reason why it cannot be read.
    pub content: Result<T, String>,
}

/// Returns the key that a file's name holds; `None` for another file.
fn key_of(name: &OsStr) -> Option<&str> {
    let key = name.to_str()?.strip_suffix(END)?;
    (key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(key)
}

/// Removes the oldest verdicts, and drafts of killed writers, so that `most` stay.
fn thin_out(directory: &Directory, most: usize) -> io::Result<()> {
    let (names, _) = directory.names(MOST_NAMES)?;
    let age = |name: &OsString| {
        let written = directory.open_file_to_read(name.to_str()?).and_then(|file| file.metadata());
        // An unreadable file goes first.
        Some(written.map_or((i64::MIN, 0), |it| (it.mtime(), it.mtime_nsec())))
    };
    let is_ours = |name: &&OsString| key_of(name).is_some() || name.as_bytes().ends_with(b".new");
    if names.len() <= most {
        return Ok(());
    }
    let mut ours: Vec<_> = names.iter().filter(is_ours).filter_map(|name| Some((age(name)?, name))).collect();
    ours.sort();
    for (_, name) in ours.iter().take(ours.len().saturating_sub(most)) {
        // Another run may have removed it just now.
        let _ = directory.remove_file(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    fn key(number: usize) -> String {
        format!("{number:064x}")
    }

    #[test]
    fn verdicts_are_written_read_listed_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let store = Store::at(base.path().join("state/trials"));
        assert_eq!(store.read(&key(1)).unwrap(), None);
        assert!(store.keys().unwrap().is_empty());
        store.write(&key(1), b"first").unwrap();
        store.write(&key(1), b"second").unwrap();
        assert_eq!(store.read(&key(1)).unwrap().unwrap(), b"second");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(store.path()), mode(&store.file(&key(1)))), (0o700, 0o600));
        fs::write(store.path().join("README"), "not ours").unwrap();
        assert_eq!(store.keys().unwrap(), [key(1)]);
        store.remove(&key(1)).unwrap();
        assert_eq!(store.read(&key(1)).unwrap(), None);
    }

    #[test]
    fn the_oldest_verdicts_go() {
        let base = tempfile::tempdir().unwrap();
        let store = Store::at(base.path().join("trials"));
        for number in 0..8 {
            store.write(&key(number), b"x").unwrap();
            let file = File::options().write(true).open(store.file(&key(number))).unwrap();
            let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - number as u64);
            file.set_modified(at).unwrap();
        }
        thin_out(&open_own_directory(store.path()).unwrap(), 3).unwrap();
        assert_eq!(store.keys().unwrap(), [key(0), key(1), key(2)]);
    }

    #[test]
    fn a_store_of_others_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        let store = Store::at(base.path().join("trials"));
        store.write(&key(1), b"x").unwrap();
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(store.read(&key(1)).is_err() && store.write(&key(1), b"y").is_err());
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(store.file(&key(2)), vec![b' '; MOST_BYTES as usize + 1]).unwrap();
        assert_eq!(store.read(&key(2)).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn the_directory_is_the_users_own() {
        let of = |user, set: &[(&str, &str)]| {
            let find = |name| set.iter().find(|(it, _)| *it == name).map(|(_, value)| OsString::from(value));
            directory_of(user, find).map(|path| path.to_str().unwrap().to_string())
        };
        let home = ("HOME", "/home/a");
        assert_eq!(of(0, &[home]).unwrap(), ROOTS);
        assert_eq!(of(7, &[home]).unwrap(), "/home/a/.local/state/megapage/trials");
        assert_eq!(of(7, &[home, ("XDG_STATE_HOME", "/s")]).unwrap(), "/s/megapage/trials");
        assert_eq!(of(7, &[home, ("XDG_STATE_HOME", "s")]).unwrap(), "/home/a/.local/state/megapage/trials");
        assert_eq!(of(0, &[(TRIALS_VARIABLE, "/x")]).unwrap(), "/x");
        assert!(of(7, &[]).is_err() && of(7, &[(TRIALS_VARIABLE, "none"), home]).is_err());
        assert!(of(7, &[(TRIALS_VARIABLE, "x"), home]).is_err());
    }
}
