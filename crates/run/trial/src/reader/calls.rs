//! Calls of the service's own functions, and passes of USDT probes (places that it announces).

use super::Service;
use crate::metric::Point;
use megapage_kernel::function_calls::{CallCounter, CallSite};
use megapage_kernel::maps::read_maps;
use megapage_kernel::process::path_of_its_file;
use megapage_kernel::{KernelRoot, trusted};
use megapage_units::Pid;
use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, NoteIterator};
use object::{Endianness, Object, ObjectSection, ObjectSegment, ReadCache};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Starts to count at a function or probe of the service's processes.
pub(super) fn open(service: &Service<'_>, point: &Point, timed: bool) -> Result<CallCounter, String> {
    let pid = *service.pids.first().ok_or("there is no process")?;
    let file = file_of(service.root, pid, point.file.as_deref())?;
    let site = match &point.provider {
        None => CallSite::Function(point.name.clone()),
        Some(provider) => static_site(&file, provider, &point.name)?,
    };
    CallCounter::open(service.root, service.pids, &file, &site, timed).map_err(|error| error.to_string())
}

/// Returns a path at which we can open the file, whichever root directory the process has. The file
/// is the program, a path, or a mapped library with this name.
fn file_of(root: &KernelRoot, pid: Pid, name: Option<&str>) -> Result<PathBuf, String> {
    match name {
        None => Ok(path_of_its_file(root, pid, None)),
        Some(path) if path.starts_with('/') => Ok(path_of_its_file(root, pid, Some(path))),
        Some(name) => {
            let maps = read_maps(root, pid).map_err(|error| error.to_string())?;
            let is_meant = |path: &str| Path::new(path).file_name().is_some_and(|it| it == name);
            let mapped = maps.iter().find(|it| it.execute && it.name.starts_with('/') && is_meant(&it.name));
            let mapped = mapped.ok_or(format!("process {pid} runs no code of a file named {name}"))?;
            Ok(path_of_its_file(root, pid, Some(&mapped.name)))
        }
    }
}

/// The type of a note that announces a probe (`_SDT_NOTE_TYPE` of sys/sdt.h), and the note's owner.
const NOTE_TYPE: u32 = 3;
const OWNER: &[u8] = b"stapsdt";
const MOST_NOTES: u64 = 64 << 20;

/// Returns the probe that the file announces as `provider:name`; the first of several.
///
/// Source: "UserSpaceProbeImplementation" of SystemTap's wiki. A note holds three addresses and
/// three strings. The addresses are those of the probe, of the section `.stapsdt.base` at the time
/// of the link, and of the semaphore (or 0).
fn static_site(path: &Path, provider: &str, name: &str) -> Result<CallSite, String> {
    let shown = path.display();
    let file: File = trusted::open_binary(path).map_err(|error| format!("{shown}: {error}"))?;
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(|error| format!("{shown}: {error}"))?;
    let found = elf.section_by_name(".note.stapsdt").filter(|it| it.size() <= MOST_NOTES);
    let notes = found.and_then(|it| it.data().ok()).unwrap_or_default();
    let base = elf.section_by_name(".stapsdt.base").map(|it| it.address());
    let mut known = Vec::new();
    for note in
        announcements(elf.endian(), notes).filter_map(|note| Announced::parse(note, elf.is_little_endian()))
    {
        if (note.provider, note.name) == (provider.as_bytes(), name.as_bytes()) {
            // Prelinking has moved a file by this distance since it was linked.
            let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
            let offset = |address: u64| {
                let address = address.wrapping_add(moved);
                let segment =
                    elf.segments().find(|it| (it.address()..it.address() + it.size()).contains(&address));
                segment.map(|it| address - it.address() + it.file_range().0)
            };
            let nowhere = || format!("{shown}: {provider}:{name} lies outside of the file");
            let semaphore = match note.semaphore {
                0 => 0,
                address => offset(address).ok_or_else(nowhere)?,
            };
            return Ok(CallSite::Static { offset: offset(note.place).ok_or_else(nowhere)?, semaphore });
        }
        known.push(format!(
            "{}:{}",
            String::from_utf8_lossy(note.provider),
            String::from_utf8_lossy(note.name)
        ));
    }
    known.sort();
    known.dedup();
    Err(match known.len() {
        0 => format!("{shown} announces no place (USDT): it was built without sys/sdt.h"),
        count => format!(
            "{shown} announces no {provider}:{name}; it has {count} others, such as {}",
            known.iter().take(5).cloned().collect::<Vec<_>>().join(", ")
        ),
    })
}

/// Returns the descriptions of the notes that announce a probe.
fn announcements(endian: Endianness, notes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, 4, notes).into_iter().flatten();
    let notes = notes.map_while(Result::ok);
    notes.filter(move |it| it.n_type(endian) == NOTE_TYPE && it.name() == OWNER).map(|it| it.desc())
}

struct Announced<'a> {
    place: u64,
    base: u64,
    semaphore: u64,
    provider: &'a [u8],
    name: &'a [u8],
}

impl<'a> Announced<'a> {
    fn parse(description: &'a [u8], little: bool) -> Option<Announced<'a>> {
        let word = |at: usize| {
            let bytes = description.get(at..at + 8)?.try_into().ok()?;
            Some(if little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
        };
        let mut strings = description.get(24..)?.split(|byte| *byte == 0);
        Some(Announced {
            place: word(0)?,
            base: word(8)?,
            semaphore: word(16)?,
            provider: strings.next()?,
            name: strings.next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, owner: &[u8], description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32, description.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [owner, description] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn notes_are_read_to_the_last_and_broken_ones_end_them() {
        let mut description = Vec::new();
        for word in [0x1234u64, 0x5000, 0x6000] {
            description.extend(word.to_le_bytes());
        }
        description.extend(b"redis\0call\0-4@%eax\0");
        let mut notes = note(1, b"GNU\0", b"other");
        notes.extend(note(NOTE_TYPE, b"stapsdt\0", &description));
        let found: Vec<_> = announcements(Endianness::Little, &notes).collect();
        assert_eq!(found, [&description[..]]);
        let announced = Announced::parse(found[0], true).unwrap();
        assert_eq!((announced.place, announced.base, announced.semaphore), (0x1234, 0x5000, 0x6000));
        assert_eq!((announced.provider, announced.name), (&b"redis"[..], &b"call"[..]));
        for length in 0..notes.len() {
            // A cut at any length causes no panic, and no more notes than there are.
            assert!(announcements(Endianness::Little, &notes[..length]).count() <= 1);
        }
        notes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(announcements(Endianness::Little, &notes).count(), 0);
        assert!(Announced::parse(&description[..20], true).is_none());
    }

    #[test]
    fn the_file_is_the_programs_or_a_mapped_librarys() {
        let root = KernelRoot::live();
        let own = Pid(std::process::id().cast_signed());
        assert!(file_of(&root, own, None).unwrap().ends_with("exe"));
        let libc = file_of(&root, own, Some("libc.so.6")).unwrap();
        assert!(libc.exists() && libc.ends_with("libc.so.6"), "{}", libc.display());
        assert!(
            file_of(&root, own, Some("libnone.so"))
                .unwrap_err()
                .contains("no code of a file named libnone.so")
        );
    }
}
