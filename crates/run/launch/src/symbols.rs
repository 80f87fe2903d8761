//! A map of symbols for profilers: `/tmp/perf-PID.map`. perf(1) reads it for memory without a file,
//! such as moved text.
//!
//! Source: tools/perf/Documentation/jit-interface.txt: a line for each function, `START SIZE NAME`,
//! in hexadecimal. perf accepts only a file that belongs to its user or to root.

use megapage_units::Pid;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, ReadCache, SymbolKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directory in which perf(1) looks; it ignores TMPDIR.
pub const DIRECTORY: &str = "/tmp";

/// Largest number of bytes of names that are read, for each byte of the file.
const NAMES_PER_BYTE: u64 = 4;

/// Returns the functions that a file names, by address: size in bytes, and name. Of several names
/// of one address, the first by the alphabet counts.
pub fn functions(path: &Path) -> io::Result<BTreeMap<u64, (u64, String)>> {
    let invalid = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let file = megapage_kernel::trusted::open_binary(path)?;
    // Each symbol takes bytes of the file, and so does each name; few files have names that
    // overlap.
    let mut room = NAMES_PER_BYTE * file.metadata()?.len();
    let cache = ReadCache::new(file);
    let file = ElfFile64::<Endianness, _>::parse(&cache).map_err(invalid)?;
    let mut found: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text || symbol.is_undefined() || symbol.size() == 0 {
            continue;
        }
        let Ok(name) = symbol.name() else { continue };
        // Skips a name that would break the line.
        if name.is_empty() || name.chars().any(char::is_control) {
            continue;
        }
        room = room.checked_sub(name.len() as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the names of its symbols overlap without end")
        })?;
        let new = (symbol.size(), name.to_string());
        match found.get(&symbol.address()) {
            Some(known) if known.1 <= new.1 => {}
            _ => drop(found.insert(symbol.address(), new)),
        }
    }
    Ok(found)
}

/// Returns the lines for those functions that lie in `ranges` of memory, and their number. `bias`
/// is added to the file's addresses.
pub fn lines(functions: &BTreeMap<u64, (u64, String)>, bias: u64, ranges: &[Range<u64>]) -> (usize, String) {
    let mut text = String::new();
    let mut count = 0;
    for (address, (size, name)) in functions {
        let address = address.wrapping_add(bias);
        if ranges.iter().any(|range| range.contains(&address)) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{address:x} {size:x} {name}");
            count += 1;
        }
    }
    (count, text)
}

/// The moved parts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedFile {
    /// The file.
    pub path: PathBuf,
    /// The number to add to the file's addresses.
    pub bias: u64,
    /// The ranges of memory.
    pub ranges: Vec<Range<u64>>,
}

/// Reads the names in the files, and writes the map of process `pid`. Returns its line in the
/// report, and the file.
pub fn make(directory: &Path, pid: Pid, files: &[MovedFile]) -> (MapReport, Option<PerfMap>) {
    let (mut text, mut functions, mut missing) = (String::new(), 0, None);
    for file in files {
        match self::functions(&file.path) {
            Ok(found) => {
                let (more, lines) = lines(&found, file.bias, &file.ranges);
                (functions, text) = (functions + more, text + &lines);
            }
            Err(error) => missing = Some(format!("{}: {error}", file.path.display())),
        }
    }
    let path = PerfMap::path(directory, pid);
    match PerfMap::write(directory, pid, &text) {
        Ok(map) => (MapReport { file: path, functions, missing }, Some(map)),
        Err(error) => (MapReport::none(path, &format!("it could not be written: {error}")), None),
    }
}

/// The map's part of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapReport {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// Number of functions in it.
    pub functions: usize,
    /// The reason why there is no map, or not all of it.
    pub missing: Option<String>,
}

/// The map's file, which is removed when the value is dropped.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    /// Device, inode and size, by which the file is recognised.
    identity: (u64, u64, u64),
}

impl MapReport {
    /// Returns the line for a map that does not exist.
    pub fn none(file: PathBuf, why: &str) -> MapReport {
        MapReport { file, functions: 0, missing: Some(why.into()) }
    }
}

impl PerfMap {
    /// Returns the map's path for process `pid`.
    pub fn path(directory: &Path, pid: Pid) -> PathBuf {
        directory.join(format!("perf-{}.map", pid.0))
    }

    /// Writes the map; only its user can change it. The file gets its name when it is complete.
    /// Fails with AlreadyExists if anything has that name, even a link; that stays.
    pub fn write(directory: &Path, pid: Pid, text: &str) -> io::Result<PerfMap> {
        let path = PerfMap::path(directory, pid);
        let unfinished = directory.join(format!(".megapage-{}-perf-{}.map", std::process::id(), pid.0));
        // O_EXCL follows no link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&unfinished)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.metadata())
            // link(2) never replaces a file, and does not follow a link at its target either.
            .and_then(|metadata| fs::hard_link(&unfinished, &path).map(|()| metadata));
        let removed = fs::remove_file(&unfinished);
        let metadata = written?;
        let identity = (metadata.dev(), metadata.ino(), metadata.len());
        let map = PerfMap { path, identity };
        removed?;
        Ok(map)
    }
}

impl Drop for PerfMap {
    /// Removes it, unless another program has replaced it, such as the program's own compiler.
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path);
        if now.is_ok_and(|it| (it.dev(), it.ino(), it.len()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_map_is_there_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf-77.map");
        let map = PerfMap::write(directory.path(), Pid(77), "1000 20 one\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1000 20 one\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o022, 0, "other users may not write");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        drop(map);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("perf-7.map"), directory.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        for target in [victim.clone(), directory.path().join("nothing")] {
            symlink(&target, &path).unwrap();
            let refused = PerfMap::write(directory.path(), Pid(7), "1 1 a\n").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            fs::remove_file(&path).unwrap();
            assert!(!directory.path().join("nothing").exists(), "no link is followed");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // A just-in-time compiler writes its own map.
        let map = PerfMap::write(directory.path(), Pid(7), "1 1 a\n").unwrap();
        fs::write(&path, "its own\n").unwrap();
        drop(map);
        assert_eq!(fs::read_to_string(&path).unwrap(), "its own\n");
    }

    #[test]
    fn functions_are_found_where_they_are_mapped() {
        let functions = functions(Path::new(&std::env::current_exe().unwrap())).unwrap();
        let (address, (size, _)) = functions
            .iter()
            .find(|(_, (_, name))| name.contains("functions_are_found_where_they_are_mapped"))
            .unwrap();
        let start = address + 0x1000;
        let range = start..start + 1;
        let (count, text) = lines(&functions, 0x1000, std::slice::from_ref(&range));
        assert_eq!(count, 1);
        assert!(text.starts_with(&format!("{start:x} {size:x} ")) && text.ends_with('\n'), "{text}");
        assert_eq!(lines(&functions, 0x1000, &[]).0, 0);
    }
}
