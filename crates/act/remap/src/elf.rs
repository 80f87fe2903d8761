//! One ELF file: its segments, and the other parts of its layout that matter. Nothing is executed.

use crate::RemapError;
use megapage_kernel::trusted::open_regular;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef, elf};
use serde::Serialize;
use std::path::Path;

/// LOAD segment: a part of the file that is mapped (elf(5)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Its place in the table of program headers, from 0.
    pub header: usize,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// Its address; in a position-independent file relative to the place of the file.
    pub address: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Bytes in memory: those beyond the bytes in the file are zeros (.bss).
    pub memory_size: u64,
    /// `p_align`: a power of two, or 0 or 1 for none.
    pub align: u64,
}

/// Placement of a file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// At the addresses that it names (ET_EXEC).
    Fixed,
    /// By the kernel, at a multiple of its largest `p_align` (ET_DYN, an executable).
    Independent,
    /// By the dynamic loader, which asks the kernel for room (ET_DYN, a shared library). Since
    /// glibc 2.35 the largest `p_align` is honoured.
    Library,
}

/// Contents of the headers of a 64-bit ELF executable or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Its placement.
    pub placement: Placement,
    /// The LOAD segments, by address.
    pub segments: Vec<Segment>,
    /// GNU_RELRO: the part that is made read-only after relocation, as (address, bytes).
    pub relro: Option<(u64, u64)>,
    /// The linker that made it, if that left its name; GNU ld leaves none.
    pub linker: Option<String>,
    /// Length of the file.
    pub size: u64,
}

impl Binary {
    /// Returns the alignment of the address at which the file is placed, in bytes, as far as it
    /// promises one.
    pub fn base_alignment(&self) -> u64 {
        match self.placement {
            // As if it were placed at address 0.
            Placement::Fixed => 1 << 63,
            Placement::Independent | Placement::Library => {
                self.segments.iter().map(|segment| segment.align).max().unwrap_or(0)
            }
        }
    }

    /// Returns the bytes of address space from its first segment to the end of its last.
    pub fn span(&self) -> u64 {
        let start = self.segments.first().map_or(0, |segment| segment.address);
        self.segments.last().map_or(0, |segment| segment.address + segment.memory_size - start)
    }
}

/// Reads the headers of `path`, a 64-bit little-endian ELF executable or shared library.
pub fn read_binary(path: &Path) -> Result<Binary, RemapError> {
    let file = open_regular(path).map_err(RemapError::io(path))?;
    let metadata = file.metadata().map_err(RemapError::io(path))?;
    let cache = ReadCache::new(file);
    parse(&cache, metadata.len()).map_err(|what| RemapError::unfit(path, what))
}

fn malformed(what: impl std::fmt::Display) -> String {
    format!("not a well-formed ELF file: {what}")
}

/// Most segments and sections that a file may have: more than any real one.
const MOST_HEADERS: usize = 65_000;
/// Longest dynamic section, or list of tools, that is read, in bytes.
const LONGEST_PART: u64 = 1 << 20;

fn parse<'d>(data: impl ReadRef<'d>, size: u64) -> Result<Binary, String> {
    let magic = data.read_bytes_at(0, 6).unwrap_or_default();
    if !magic.starts_with(&elf::ELFMAG) {
        return Err("not an ELF executable or library".into());
    }
    if magic[4] != elf::ELFCLASS64 || magic[5] != elf::ELFDATA2LSB {
        return Err(
            "a 32-bit or big-endian ELF file: only 64-bit little-endian ones have 2 MiB pages here".into()
        );
    }
    let header = elf::FileHeader64::<Endianness>::parse(data).map_err(malformed)?;
    let endian = header.endian().map_err(malformed)?;
    // Their numbers are elsewhere then, and have no bound.
    if header.e_phnum(endian) == elf::PN_XNUM || (header.e_shnum(endian) == 0 && header.e_shoff(endian) != 0)
    {
        return Err(malformed("more headers than any linker writes"));
    }
    let independent = match header.e_type(endian) {
        elf::ET_EXEC => false,
        elf::ET_DYN => true,
        _ => return Err("an ELF file that is neither an executable nor a shared library".into()),
    };
    let headers = header.program_headers(endian, data).map_err(malformed)?;
    let sections = header.sections(endian, data).map_err(malformed)?;
    if headers.len() > MOST_HEADERS || sections.len() > MOST_HEADERS {
        return Err(malformed("more headers than any linker writes"));
    }
    let (mut segments, mut relro) = (Vec::new(), None);
    let (mut interpreter, mut executable_mark, mut named) = (false, false, false);
    for (index, program) in headers.iter().enumerate() {
        let (offset, file_size) = (program.p_offset(endian), program.p_filesz(endian));
        match program.p_type(endian) {
            elf::PT_LOAD => {
                let flags = program.p_flags(endian);
                let segment = Segment {
                    header: index,
                    read: flags & elf::PF_R != 0,
                    write: flags & elf::PF_W != 0,
                    execute: flags & elf::PF_X != 0,
                    offset,
                    address: program.p_vaddr(endian),
                    file_size,
                    memory_size: program.p_memsz(endian),
                    align: program.p_align(endian),
                };
                let ends_inside = offset.checked_add(file_size).is_some_and(|end| end <= size);
                let ends = segment.address.checked_add(segment.memory_size);
                if !ends_inside || file_size > segment.memory_size || ends.is_none_or(|end| end >= 1 << 47) {
                    return Err(malformed(format!("program header {index} lies outside of the file")));
                }
                segments.push(segment);
            }
            elf::PT_INTERP => interpreter = true,
            elf::PT_GNU_RELRO => relro = Some((program.p_vaddr(endian), program.p_memsz(endian))),
            // A hole in the file can be of any length.
            elf::PT_DYNAMIC if file_size <= LONGEST_PART => {
                for entry in program.dynamic(endian, data).map_err(malformed)?.unwrap_or_default() {
                    match entry.tag32(endian) {
                        Some(elf::DT_FLAGS_1) => {
                            executable_mark |= entry.d_val(endian) & u64::from(elf::DF_1_PIE) != 0;
                        }
                        Some(elf::DT_SONAME) => named = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if segments.is_empty() {
        return Err("no LOAD segment: nothing of it is ever mapped".into());
    }
    segments.sort_by_key(|segment| segment.address);
    // libc.so.6 has an interpreter, too, because it can be run; but it has the name of a library
    // (DT_SONAME).
    let placement = match (independent, executable_mark || (interpreter && !named)) {
        (false, _) => Placement::Fixed,
        (true, true) => Placement::Independent,
        (true, false) => Placement::Library,
    };
    let mut linker = None;
    for section in sections.iter() {
        let (offset, bytes) = section.file_range(endian).unwrap_or((section.sh_offset(endian), 0));
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(malformed("a section lies outside of the file"));
        }
        match sections.section_name(endian, section).unwrap_or_default() {
            b".note.gnu.gold-version" => linker = Some("gold".to_string()),
            b".comment" if bytes <= LONGEST_PART => {
                linker = linker.or(mark(section.data(endian, data).unwrap_or_default()))
            }
            _ => {}
        }
    }
    Ok(Binary { placement, segments, relro, linker, size })
}

/// Returns the linker that left its name in the section `.comment`.
fn mark(comment: &[u8]) -> Option<String> {
    comment.split(|&byte| byte == 0).find_map(|line| {
        let line = String::from_utf8_lossy(line);
        if line.starts_with("mold ") {
            Some("mold".to_string())
        } else if line.starts_with("Linker:") && line.contains("LLD") {
            Some("lld".to_string())
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_is_reported() {
        let refused = |bytes: &[u8]| parse(bytes, bytes.len() as u64).unwrap_err();
        assert_eq!(refused(b"#!/bin/sh\n"), "not an ELF executable or library");
        assert_eq!(refused(b""), "not an ELF executable or library");
        assert!(refused(b"\x7fELF\x01\x01\x01").contains("32-bit"));
        assert!(refused(b"\x7fELF\x02\x01\x01").contains("not a well-formed ELF file"));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // Cut off within the segments: the headers name parts that are missing.
        let cut = &own[..own.len().min(8192)];
        assert!(refused(cut).contains("not a well-formed ELF file"), "{}", refused(cut));
        let mut object = own[..64].to_vec();
        object[16] = 1;
        assert!(refused(&object).contains("neither an executable nor a shared library"));
    }

    #[test]
    fn our_own_headers_are_read() {
        let own = read_binary(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own.placement, Placement::Independent);
        assert!(own.segments.iter().any(|segment| segment.execute && !segment.write));
        assert!(own.segments.windows(2).all(|pair| pair[0].address < pair[1].address));
        assert!(own.relro.is_some());
        assert!(own.span() > 100_000 && own.base_alignment() >= 0x1000);
    }

    #[test]
    fn tables_in_a_hole_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            file.as_file().set_len(1 << 42).unwrap();
            read_binary(file.path())
        };
        // A dynamic section of a TiB.
        let header = (0..usize::from(own[56])).map(|number| 64 + 56 * number);
        let dynamic = header.clone().find(|&at| own[at..at + 4] == elf::PT_DYNAMIC.to_le_bytes()).unwrap();
        own[dynamic + 32..dynamic + 40].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(read(&own).is_ok());
        // 2^32 headers: their number stands in the first section.
        own[56..58].copy_from_slice(&elf::PN_XNUM.to_le_bytes());
        let error = read(&own).unwrap_err().to_string();
        assert!(error.contains("more headers than any linker writes"), "{error}");
    }

    /// Any header gets an answer, and never a panic.
    #[test]
    fn damaged_headers_never_make_a_panic() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let size = own.len() as u64;
        let sections = u64::from_le_bytes(own[40..48].try_into().unwrap());
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..4000 {
            let mut next = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random >> 33
            };
            // The ELF header, the program headers, or the sections.
            let at = match next() % 4 {
                0 => next() % 64,
                1 | 2 => next() % 1024,
                _ => sections + next() % (size - sections),
            } as usize;
            let kept = own[at];
            own[at] =
                [0, 0xff, 0x7f, 0x80, kept ^ 1, kept.wrapping_add(0x20), next() as u8][next() as usize % 7];
            if let Ok(binary) = parse(&own[..], size) {
                let ranges = crate::layout::primable(&binary);
                assert!(ranges.iter().all(|range| range.offset + range.length < size + 4096));
                for segment in &binary.segments {
                    let _ = (crate::layout::anonymous(segment, true), crate::layout::relinked(segment));
                }
            }
            own[at] = kept;
        }
    }

    #[test]
    fn linkers_are_known_by_their_marks() {
        let name = |comment: &[u8]| mark(comment);
        assert_eq!(name(b"GCC: (Debian) 12.2.0\0Linker: Debian LLD 14.0.6\0").as_deref(), Some("lld"));
        assert_eq!(name(b"mold 1.10.1 (compatible with GNU ld)\0GCC: 12\0").as_deref(), Some("mold"));
        assert_eq!(name(b"GCC: (Debian) 12.2.0\0"), None);
    }
}
