//! One ELF file: its segments, and what else of its layout matters. Nothing is executed.

use crate::RemapError;
use megapage_kernel::trusted::open_regular;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef, elf};
use serde::Serialize;
use std::path::Path;

/// A LOAD segment: a part of the file that is mapped (elf(5)).
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
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Its address; in a position-independent file relative to where the file is placed.
    pub address: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Bytes in memory: what is more than in the file is zeros (.bss).
    pub memory_size: u64,
    /// `p_align`: a power of two, or 0 or 1 for none.
    pub align: u64,
}

/// Where a file is placed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// At the addresses that it names (ET_EXEC).
    Fixed,
    /// By the kernel, at a multiple of its largest `p_align` (ET_DYN, an executable).
    Independent,
    /// By the dynamic loader, which asks the kernel for room (ET_DYN, a shared library). Since glibc 2.35 the largest
    /// `p_align` is honoured.
    Library,
}

/// A section, as far as moving it is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where in the file it starts.
    pub offset: u64,
    /// Its bytes in the file: 0 for .bss.
    pub size: u64,
    /// Its address; meaningful where `loaded`.
    pub address: u64,
    /// Whether it belongs into memory (SHF_ALLOC).
    pub loaded: bool,
    /// The alignment that its offset needs.
    pub align: u64,
}

/// A program header of another kind than LOAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherHeader {
    /// Its place in the table.
    pub(crate) header: usize,
    /// `p_offset`.
    pub(crate) offset: u64,
    /// `p_filesz`, or what of it must be found in the file.
    pub(crate) file_size: u64,
}

/// What the headers of a 64-bit ELF executable or library say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Where it is placed.
    pub placement: Placement,
    /// The LOAD segments, by address.
    pub segments: Vec<Segment>,
    /// GNU_RELRO: what is made read-only after relocation, as (address, bytes).
    pub relro: Option<(u64, u64)>,
    /// The sections; none where the table was stripped. The first, empty one is included, so that places count from 0.
    pub sections: Vec<Section>,
    /// The linker that made it, where it left its name; GNU ld leaves none.
    pub linker: Option<String>,
    /// Length of the file.
    pub size: u64,
    pub(crate) others: Vec<OtherHeader>,
    /// Where the table of program headers starts, and its bytes.
    pub(crate) program_headers: (u64, u64),
    /// Where the table of sections starts, and its bytes; (0, 0) where there is none.
    pub(crate) section_headers: (u64, u64),
}

impl Binary {
    /// The alignment of the address that the file is placed at, in bytes, as far as it promises one.
    pub fn base_alignment(&self) -> u64 {
        match self.placement {
            // Address 0, so to say.
            Placement::Fixed => 1 << 63,
            Placement::Independent | Placement::Library => {
                self.segments.iter().map(|segment| segment.align).max().unwrap_or(0)
            }
        }
    }

    /// The bytes of address space from its first segment to the end of its last.
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

/// The most segments and sections that a file may have: more than any real one.
const MOST_HEADERS: usize = 65_000;

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
    let (mut segments, mut others, mut relro) = (Vec::new(), Vec::new(), None);
    let (mut interpreter, mut executable_mark, mut named) = (false, false, false);
    for (index, program) in headers.iter().enumerate() {
        let (offset, file_size) = (program.p_offset(endian), program.p_filesz(endian));
        if program.p_type(endian) != elf::PT_LOAD {
            // RELRO goes to the end of a page, with padding that is not in the file: only its start counts.
            let file_size =
                if program.p_type(endian) == elf::PT_GNU_RELRO { file_size.min(1) } else { file_size };
            others.push(OtherHeader { header: index, offset, file_size });
        }
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
            elf::PT_DYNAMIC => {
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
    // libc.so.6 has an interpreter, too: it can be run; but it has the name that a library has.
    let placement = match (independent, executable_mark || (interpreter && !named)) {
        (false, _) => Placement::Fixed,
        (true, true) => Placement::Independent,
        (true, false) => Placement::Library,
    };
    let mut linker = None;
    let mut found = Vec::new();
    for section in sections.iter() {
        let (offset, bytes) = section.file_range(endian).unwrap_or((section.sh_offset(endian), 0));
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(malformed("a section lies outside of the file"));
        }
        found.push(Section {
            offset,
            size: bytes,
            address: section.sh_addr(endian),
            loaded: section.sh_flags(endian) & u64::from(elf::SHF_ALLOC) != 0,
            align: section.sh_addralign(endian),
        });
        match sections.section_name(endian, section).unwrap_or_default() {
            b".note.gnu.gold-version" => linker = Some("gold".to_string()),
            b".comment" => linker = linker.or(mark(section.data(endian, data).unwrap_or_default())),
            _ => {}
        }
    }
    let entry = |bytes: usize, count: usize| (bytes * count) as u64;
    let section_headers = match header.e_shoff(endian) {
        0 => (0, 0),
        offset => (offset, entry(size_of::<elf::SectionHeader64<Endianness>>(), found.len())),
    };
    let program_headers =
        (header.e_phoff(endian), entry(size_of::<elf::ProgramHeader64<Endianness>>(), headers.len()));
    Ok(Binary {
        placement,
        segments,
        relro,
        sections: found,
        linker,
        size,
        others,
        program_headers,
        section_headers,
    })
}

/// The linker that left its name in the section `.comment`.
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
        // Cut off within the segments: the headers name what is not there.
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
        assert!(own.relro.is_some() && own.sections.len() > 10);
        assert!(own.span() > 100_000 && own.base_alignment() >= 0x1000);
    }

    /// Whatever a header says, there is an answer: no panic, and no plan that loses or doubles bytes.
    #[test]
    fn damaged_headers_never_make_a_panic() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (size, mut planned) = (own.len() as u64, 0);
        let sections = parse(&own[..], size).unwrap().section_headers;
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
                _ => sections.0 + next() % sections.1,
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
                if let Ok(plan) = crate::align::plan(&binary) {
                    planned += 1;
                    assert!(plan.after >= plan.before);
                    let mut to: Vec<_> = plan.copies.iter().map(|copy| (copy.to, copy.length)).collect();
                    to.sort_unstable();
                    assert!(to.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{plan:?}");
                    assert!(plan.copies.windows(2).all(|pair| pair[0].from + pair[0].length <= pair[1].from));
                    assert!(plan.copies.iter().all(|copy| copy.from + copy.length <= size));
                }
            }
            own[at] = kept;
        }
        let whole = crate::align::plan(&parse(&own[..], size).unwrap());
        assert!(planned > 0 || whole.is_err(), "the undamaged file can be laid out anew, and no damaged one");
    }

    #[test]
    fn linkers_are_known_by_their_marks() {
        let name = |comment: &[u8]| mark(comment);
        assert_eq!(name(b"GCC: (Debian) 12.2.0\0Linker: Debian LLD 14.0.6\0").as_deref(), Some("lld"));
        assert_eq!(name(b"mold 1.10.1 (compatible with GNU ld)\0GCC: 12\0").as_deref(), Some("mold"));
        assert_eq!(name(b"GCC: (Debian) 12.2.0\0"), None);
    }
}
