//! Unit files and drop-ins, read below a root.

use crate::error::{SystemdError, refused};
use megapage_kernel::trusted::{open_regular_no_link, read_bounded};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The load path of the system manager, the most important directory first (systemd.unit(5), "UNIT
/// FILE LOAD PATH").
pub(crate) const LOAD_PATH: [&str; 14] = [
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "run/systemd/generator.early",
    "etc/systemd/system",
    "etc/systemd/system.attached",
    "run/systemd/system",
    "run/systemd/system.attached",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    // A link to the one before, except on a machine without a merged /usr.
    "lib/systemd/system",
    "run/systemd/generator.late",
    "usr/local/share/systemd/system",
];
/// The longest unit file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Largest number of links that are followed one after the other.
const MOST_LINKS: usize = 8;
/// Largest number of entries that are read of one directory.
const MOST_ENTRIES: usize = 16384;

/// A file that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The path after all links, and the text.
    Text(PathBuf, String),
    /// A link to /dev/null, or an empty file: the path before links.
    Masked(PathBuf),
}

/// The files below a root. Links are followed as the system in that root would follow them.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub fn new(root: &Path) -> Files {
        Files { root: root.to_path_buf() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Maps a path of that system to a path of this one.
    pub fn path(&self, inside: &Path) -> PathBuf {
        self.root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read(&self, path: &Path) -> Result<Option<Found>, SystemdError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source: io::Error| SystemdError::Io { path, source }
        };
        let mut at = path.to_path_buf();
        for _ in 0..MOST_LINKS {
            let metadata = match fs::symlink_metadata(&at) {
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
                    return Ok(None);
                }
                metadata => metadata.map_err(failed(&at))?,
            };
            if metadata.is_symlink() {
                let target = fs::read_link(&at).map_err(failed(&at))?;
                if target == Path::new("/dev/null") {
                    return Ok(Some(Found::Masked(path.to_path_buf())));
                }
                at = match target.is_absolute() {
                    true => self.path(&target),
                    false => at.parent().unwrap_or(&self.root).join(target),
                };
                continue;
            }
            // The directory's owner may replace the file by something else meanwhile.
            let file = open_regular_no_link(&at).map_err(failed(&at))?;
            if file.metadata().map_err(failed(&at))?.len() == 0 {
                return Ok(Some(Found::Masked(path.to_path_buf())));
            }
            let bytes = read_bounded(file, LONGEST).map_err(failed(&at))?;
            let text = String::from_utf8(bytes).map_err(|_| refused(at.display(), "is not UTF-8"))?;
            return Ok(Some(Found::Text(at, text)));
        }
        Err(failed(path)(io::Error::new(ErrorKind::InvalidInput, "too many symbolic links")))
    }

    /// Returns the names in a directory, sorted; none if it does not exist or may not be read.
    pub fn names(&self, directory: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        let names = entries.take(MOST_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let sorted: BTreeSet<String> = names.collect();
        sorted.into_iter().collect()
    }

    /// Returns the first file with this name on the load path.
    pub fn unit(&self, name: &str) -> Result<Option<Found>, SystemdError> {
        for directory in LOAD_PATH {
            if let Some(found) = self.read(&self.root.join(directory).join(name))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the names of all services on the load path.
    pub fn services(&self) -> BTreeSet<String> {
        let names = LOAD_PATH.iter().flat_map(|directory| self.names(&self.root.join(directory)));
        names.filter(|name| name.ends_with(".service")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// Tests a file whose owner replaces it by a FIFO, between any two steps of ours.
    #[test]
    fn a_file_that_becomes_a_fifo_is_not_waited_for() {
        let tree = tempfile::tempdir().unwrap();
        let path = |name: &str| tree.path().join(name);
        fs::write(path("file"), "[Service]\n").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        fs::hard_link(path("file"), path("unit")).unwrap();
        let (files, unit) = (Files::new(tree.path()), path("unit"));
        let (to, done) = mpsc::channel();
        std::thread::spawn(move || {
            let read = (0..20_000).filter(|_| matches!(files.read(&unit), Ok(Some(Found::Text(..))))).count();
            let _ = to.send(read);
        });
        let started = Instant::now();
        let read = loop {
            for name in ["pipe", "file"] {
                fs::hard_link(path(name), path("next")).unwrap();
                fs::rename(path("next"), path("unit")).unwrap();
            }
            match done.try_recv() {
                Ok(read) => break read,
                Err(_) if started.elapsed() < Duration::from_secs(60) => {}
                Err(error) => panic!("a read waits: {error}"),
            }
        };
        assert!(read > 0, "the file is read while it is there");
    }
}
