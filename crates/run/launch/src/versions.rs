//! Versions of symbols. The loader ends a program before `main` if a preloaded library needs a
//! version that the program's C library lacks. The launcher therefore compares them first. Executes
//! nothing.

use object::read::elf::FileHeader;
use object::{Endianness, ReadCache, elf};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names of versions (`GLIBC_2.17`), by the name of the file that defines them (`libc.so.6`).
pub type Versions = BTreeMap<String, BTreeSet<String>>;

/// Files that a library of ours may need. The loader is of the same release as its C library.
const FILES: [&str; 4] = ["libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libpthread.so.0"];
/// Longest name of a version, in bytes; longer ones are ignored.
const LONGEST_NAME: usize = 64;
/// Largest number of versions of one file; further ones are ignored. glibc has some 50.
const MOST_VERSIONS: usize = 512;

type Read<'a> = (elf::FileHeader64<Endianness>, Endianness, &'a ReadCache<File>);

fn with_sections<T>(path: &Path, read: impl Fn(Read<'_>) -> object::Result<T>) -> io::Result<T> {
    let cache = ReadCache::new(File::open(path)?);
    let header = elf::FileHeader64::<Endianness>::parse(&cache);
    let read = header.and_then(|header| read((*header, header.endian()?, &cache)));
    read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns a name as text, unless it is too long to be one.
fn text(name: &[u8]) -> Option<String> {
    (name.len() <= LONGEST_NAME).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Returns the versions that the loader requires when it loads `library`.
pub fn needed(library: &Path) -> io::Result<Versions> {
    with_sections(library, |(header, endian, data)| {
        let sections = header.sections(endian, data)?;
        let mut versions = Versions::new();
        let Some((needs, strings)) = sections.gnu_verneed(endian, data)? else { return Ok(versions) };
        let strings = sections.strings(endian, data, strings)?;
        for need in needs.take(MOST_VERSIONS) {
            let (need, names) = need?;
            let Some(file) = text(need.file(endian, strings)?).filter(|it| !it.starts_with("ld-linux"))
            else {
                continue;
            };
            let of_file = versions.entry(file).or_default();
            for name in names.take(MOST_VERSIONS) {
                let name = name?;
                if name.vna_flags.get(endian) & elf::VER_FLG_WEAK == 0 {
                    of_file.extend(text(name.name(endian, strings)?));
                }
            }
        }
        Ok(versions)
    })
}

/// Returns the versions that `file` defines.
pub fn defined(file: &Path) -> io::Result<BTreeSet<String>> {
    with_sections(file, |(header, endian, data)| {
        let sections = header.sections(endian, data)?;
        let mut versions = BTreeSet::new();
        let Some((definitions, strings)) = sections.gnu_verdef(endian, data)? else { return Ok(versions) };
        let strings = sections.strings(endian, data, strings)?;
        for definition in definitions.take(MOST_VERSIONS) {
            // The further names are those of versions that it includes.
            let Some(name) = definition?.1.next()? else { continue };
            versions.extend(text(name.name(endian, strings)?));
        }
        Ok(versions)
    })
}

/// Returns the versions that a program with this loader has. They are in the files beside the
/// loader, where its C library lies, and in those that `find` returns. If these differ, both must
/// define a version.
pub fn offered(loader: &Path, find: impl Fn(&str) -> Option<PathBuf>) -> Versions {
    let beside = fs::canonicalize(loader).unwrap_or(loader.into());
    let mut offered = Versions::new();
    for name in FILES {
        let beside = beside.with_file_name(name);
        let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let found = find(name).filter(|found| identity(found) != identity(&beside));
        let mut versions = [beside].into_iter().chain(found).filter_map(|file| defined(&file).ok());
        if let Some(first) = versions.next() {
            offered.insert(name.into(), versions.fold(first, |sure, more| &sure & &more));
        }
    }
    offered
}

/// Returns the reason why a library that needs `needed` cannot be loaded with `offered`; `None` if
/// it can.
pub fn lacking(needed: &Versions, offered: &Versions) -> Option<String> {
    needed.iter().find_map(|(file, versions)| {
        let Some(there) = offered.get(file) else {
            return Some(format!("{file} is not found, and the library needs it"));
        };
        let missing = versions.difference(there).max_by_key(|name| number(name))?;
        let newest = there.iter().filter(|name| family(name) == family(missing)).max_by_key(|it| number(it));
        Some(match newest {
            Some(newest) => format!("its {file} goes up to {newest}, and the library needs {missing}"),
            None => format!("its {file} defines no {missing}, and the library needs it"),
        })
    })
}

/// Returns the part before the number: `GLIBC` for `GLIBC_2.17`.
fn family(version: &str) -> &str {
    version.rsplit_once('_').map_or(version, |(family, _)| family)
}

/// Returns the number as its parts. `GLIBC_PRIVATE` has the smallest.
fn number(version: &str) -> Vec<u32> {
    let parts = version.rsplit_once('_').map_or("", |(_, number)| number).split('.');
    parts.map_while(|part| part.parse().ok()).collect()
}
