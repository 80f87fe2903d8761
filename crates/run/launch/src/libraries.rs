//! Finds a library as the dynamic loader would (ld.so(8)), without running it.

use megapage_kernel::trusted::read_regular;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest configuration file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Largest number of files that `include` lines of ld.so.conf may name in all; further ones are
/// skipped.
const MOST_FILES: usize = 256;

/// The directories that are searched for every program: LD_LIBRARY_PATH, those of
/// `/etc/ld.so.conf`, and the loader's own. The loader's cache is not read: it lists the files in
/// these directories.
#[derive(Clone, Debug)]
pub(crate) struct LibraryPath {
    directories: Vec<PathBuf>,
}

impl LibraryPath {
    /// Returns this machine's directories, with the given value of LD_LIBRARY_PATH.
    pub fn of_machine(ld_library_path: Option<&str>) -> LibraryPath {
        let mut directories: Vec<PathBuf> = ld_library_path
            .unwrap_or_default()
            .split([':', ';'])
            .filter(|directory| !directory.is_empty())
            .map(PathBuf::from)
            .collect();
        let mut seen = BTreeSet::new();
        read_configuration(Path::new("/etc/ld.so.conf"), &mut directories, &mut seen);
        for directory in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            directories.push(directory.into());
        }
        LibraryPath { directories }
    }

    /// Returns the file for `name` as needed by `needer` with these run paths; `None` if there is
    /// none.
    pub fn find(&self, name: &str, needer: &Path, run_paths: &[String]) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| path.is_file());
        }
        // $ORIGIN is the file's real directory: /usr/bin/java is a link into the JDK.
        let needer = fs::canonicalize(needer).unwrap_or(needer.into());
        let origin = needer.parent().unwrap_or(Path::new("/")).to_string_lossy();
        let own = run_paths
            .iter()
            .map(|path| PathBuf::from(path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)));
        own.chain(self.directories.iter().cloned())
            .map(|directory| directory.join(name))
            .find(|p| p.is_file())
    }
}

fn read_configuration(file: &Path, directories: &mut Vec<PathBuf>, seen: &mut BTreeSet<PathBuf>) {
    if seen.len() >= MOST_FILES || !seen.insert(file.to_path_buf()) {
        return;
    }
    // An unreadable file adds nothing, as for ldconfig.
    let Ok(text) = read_regular(file, LONGEST) else { return };
    for line in String::from_utf8_lossy(&text).lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(pattern) = line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            for file in matching_files(Path::new(pattern.trim()), file) {
                read_configuration(&file, directories, seen);
            }
        } else if line.starts_with('/') {
            directories.push(line.into());
        }
    }
}

/// Returns the files that `pattern` names, sorted. Only a `*` in its last part is supported, as it
/// is used in practice.
fn matching_files(pattern: &Path, includer: &Path) -> Vec<PathBuf> {
    let pattern = includer.parent().unwrap_or(Path::new("/")).join(pattern);
    let last = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((prefix, suffix)) = last.split_once('*') else { return vec![pattern] };
    let Some(Ok(entries)) = pattern.parent().map(fs::read_dir) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.len() >= prefix.len() + suffix.len() && name.starts_with(prefix) && name.ends_with(suffix)
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_found() {
        let path = LibraryPath::of_machine(None);
        assert!(path.find("libc.so.6", Path::new("/usr/bin/env"), &[]).is_some());
        assert_eq!(path.find("libno-such-thing.so.1", Path::new("/usr/bin/env"), &[]), None);
    }

    #[test]
    fn includes_and_origins_are_followed() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("conf.d");
        fs::create_dir(&directory).unwrap();
        fs::write(tree.path().join("main.conf"), "# first\ninclude conf.d/*.conf\n/two # last\n").unwrap();
        fs::write(directory.join("a.conf"), "/one\n").unwrap();
        fs::write(directory.join("b.txt"), "/not-read\n").unwrap();
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        read_configuration(&tree.path().join("main.conf"), &mut found, &mut seen);
        assert_eq!(found, [PathBuf::from("/one"), PathBuf::from("/two")]);

        fs::create_dir(tree.path().join("bin")).unwrap();
        fs::create_dir(tree.path().join("lib")).unwrap();
        fs::write(tree.path().join("lib/libown.so"), "").unwrap();
        let needer = tree.path().join("bin/program");
        let own = LibraryPath { directories: found }.find("libown.so", &needer, &["$ORIGIN/../lib".into()]);
        assert!(own.is_some());
    }
}
