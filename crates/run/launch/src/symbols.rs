//! A map of symbols for profilers: `/tmp/perf-PID.map`, as perf(1) reads it for memory that no file backs. Text that was
//! moved is such memory.
//!
//! Source: tools/perf/Documentation/jit-interface.txt: a line for each function, `START SIZE NAME`, in hexadecimal. perf
//! believes a file only that belongs to its user or to root.

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

/// Where perf(1) looks, whatever TMPDIR says.
pub const DIRECTORY: &str = "/tmp";

/// Bytes of names that are taken at most, for each byte of the file.
const NAMES_PER_BYTE: u64 = 4;

/// The functions that a file names, by address: bytes and name. Of several names of one address the first by the
/// alphabet.
pub fn functions(path: &Path) -> io::Result<BTreeMap<u64, (u64, String)>> {
    let invalid = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let file = megapage_kernel::trusted::open_binary(path)?;
    // Each symbol takes bytes of the file, and so do names, which overlap in few of them.
    let mut room = NAMES_PER_BYTE * file.metadata()?.len();
    let cache = ReadCache::new(file);
    let file = ElfFile64::<Endianness, _>::parse(&cache).map_err(invalid)?;
    let mut found: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text || symbol.is_undefined() || symbol.size() == 0 {
            continue;
        }
        let Ok(name) = symbol.name() else { continue };
        // A name that would break the line.
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

/// Lines for those functions that lie in `ranges` of memory, where the file's addresses are `bias` less. Their number,
/// and the lines.
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

/// What of a file was moved: where its addresses are `bias` less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedFile {
    /// The file.
    pub path: PathBuf,
    /// What to add to its addresses.
    pub bias: u64,
    /// The memory.
    pub ranges: Vec<Range<u64>>,
}

/// Reads what the files name, and writes the map of process `pid`: its line in the report, and the file.
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

/// What a report says of the map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapReport {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// Functions in it.
    pub functions: usize,
    /// Why there is none, or not all.
    pub missing: Option<String>,
}

/// The file, until the value is dropped.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    /// Device, inode and bytes, by which it is known again.
    identity: (u64, u64, u64),
}

impl MapReport {
    /// There is none.
    pub fn none(file: PathBuf, why: &str) -> MapReport {
        MapReport { file, functions: 0, missing: Some(why.into()) }
    }
}

impl PerfMap {
    /// The name for process `pid`.
    pub fn path(directory: &Path, pid: Pid) -> PathBuf {
        directory.join(format!("perf-{}.map", pid.0))
    }

    /// Writes it, for its user alone to change. It gets its name when it is whole. AlreadyExists where there is
    /// something of that name, a link included: that stays.
    pub fn write(directory: &Path, pid: Pid, text: &str) -> io::Result<PerfMap> {
        let path = PerfMap::path(directory, pid);
        let unfinished = directory.join(format!(".megapage-{}-perf-{}.map", std::process::id(), pid.0));
        // O_EXCL follows no link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&unfinished)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.metadata())
            // link(2) never replaces, and follows no link at its target either.
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
    /// Removes it, unless another program, such as the program's own compiler, has made it theirs.
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
        // A just-in-time compiler that writes its own.
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
