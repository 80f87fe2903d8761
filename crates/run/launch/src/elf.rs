//! Reads the facts of one ELF file that decide which mechanism can reach it. Executes nothing.

use megapage_kernel::trusted::open_binary;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, Sym};
use object::{Endianness, Object, ObjectSection, ReadCache, elf};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Facts of a 64-bit ELF file, with the names that it imports and exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// `e_machine` of the ELF header.
    pub machine: u16,
    /// True if the file is position-independent (ET_DYN).
    pub position_independent: bool,
    /// PT_INTERP: the dynamic loader; `None` in a static executable and in most libraries.
    pub loader: Option<String>,
    /// DT_NEEDED, in order.
    pub needed: Vec<String>,
    /// DT_RPATH and DT_RUNPATH, split at the colons; `$ORIGIN` is not replaced.
    pub run_paths: Vec<String>,
    /// Undefined dynamic symbols.
    pub imports: Vec<String>,
    /// The names of [`TELLING_EXPORTS`] that the file defines dynamically.
    pub exports: Vec<&'static str>,
    /// True if a Go linker made it (`.note.go.buildid` or `.go.buildinfo`).
    pub go: bool,
    /// True if it holds glibc's table of tunables with `glibc.malloc.hugetlb`. This holds for
    /// glibc's own dynamic loader since 2.35, and for static programs linked with such a glibc.
    pub heap_tunable: bool,
}

/// Exports that identify a file: as an allocator, a language runtime, or a sanitizer.
pub const TELLING_EXPORTS: [&str; 12] = [
    "malloc",
    "mallocx",
    "mi_malloc",
    "tc_malloc",
    "Py_BytesMain",
    "php_request_startup",
    "napi_create_function",
    "JLI_Launch",
    "__asan_init",
    "__tsan_init",
    "__msan_init",
    "__hwasan_init",
];

/// Largest number of bytes of names that are read: this factor times the bytes of their table, and
/// then `LEAST_NAMES` more.
const NAMES_PER_BYTE: usize = 4;
const LEAST_NAMES: usize = 64 << 10;

const TUNABLE: &[u8] = b"glibc.malloc.hugetlb\0";

/// Kinds of files that execve(2) distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A 64-bit ELF file.
    Elf64(ElfFacts),
    /// A 32-bit ELF file, with its `e_machine`.
    Elf32(u16),
    /// A file that begins with `#!`: the rest of that line, without surrounding blanks.
    Script(String),
    /// Any other file: execvp(3) runs it by `/bin/sh`.
    Other,
}

/// Determines the kind of the file at `path`. Fails with InvalidData if it begins as ELF but is not
/// well-formed.
pub fn inspect_file(path: &Path) -> io::Result<FileKind> {
    let mut file = open_binary(path)?;
    // The kernel reads the line of a script from the first 256 bytes (BINPRM_BUF_SIZE).
    let mut start = Vec::with_capacity(256);
    file.by_ref().take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let end = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
        return Ok(FileKind::Script(String::from_utf8_lossy(&line[..end]).trim().to_string()));
    }
    if !start.starts_with(&elf::ELFMAG) {
        return Ok(FileKind::Other);
    }
    match start.get(4) {
        Some(&elf::ELFCLASS64) => {}
        Some(&elf::ELFCLASS32) if start.len() >= 20 => {
            return Ok(FileKind::Elf32(u16::from_le_bytes([start[18], start[19]])));
        }
        _ => return Err(malformed("an ELF header of no known class")),
    }
    file.seek(SeekFrom::Start(0))?;
    let cache = ReadCache::new(file);
    inspect_elf(&cache).map(FileKind::Elf64)
}

/// The longest build name that is accepted, in bytes: linkers make 8 to 20, Go's some 90.
const LONGEST_BUILD: usize = 256;
/// The longest notes that are searched, in bytes.
const LONGEST_NOTES: u64 = 64 << 10;
/// The name and the type of the note with the build name of Go's linker.
const GO_BUILD: (&[u8], u32) = (b"Go", 4);

/// Returns the name that the linker gave to this build of an ELF file (`.note.gnu.build-id`, or
/// Go's), in hexadecimal digits. `None` if it gave none, or if the file is no well-formed 64-bit
/// ELF file. Reads only the headers and the notes.
pub fn build_id(file: File) -> Option<String> {
    let cache = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?;
    let mut found = None;
    for segment in segments.iter().filter(|it| it.p_filesz(endian) <= LONGEST_NOTES) {
        let Ok(Some(mut notes)) = segment.notes(endian, &cache) else { continue };
        while let Ok(Some(note)) = notes.next() {
            let (name, kind) = (note.name(), note.n_type(endian));
            let is_gnu = name == elf::ELF_NOTE_GNU && kind == elf::NT_GNU_BUILD_ID;
            if is_gnu || (found.is_none() && (name, kind) == GO_BUILD) {
                found = Some(note.desc());
            }
        }
    }
    found.filter(|id| (1..=LONGEST_BUILD).contains(&id.len())).map(hexadecimal)
}

/// Formats bytes as two hexadecimal digits each.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn malformed(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

fn inspect_elf(data: &ReadCache<File>) -> io::Result<ElfFacts> {
    let file: ElfFile64<'_, Endianness, &ReadCache<File>> = ElfFile64::parse(data).map_err(malformed)?;
    let endian = file.endian();
    let header = file.elf_header();
    let mut facts = ElfFacts {
        machine: header.e_machine(endian),
        position_independent: header.e_type(endian) == elf::ET_DYN,
        go: file.section_by_name(".note.go.buildid").is_some()
            || file.section_by_name(".go.buildinfo").is_some(),
        ..ElfFacts::default()
    };
    // Reads the whole table at once: the cache would otherwise keep one entry for each name.
    let strings: &[u8] = match file.section_by_name(".dynstr") {
        Some(section) => section.data().map_err(malformed)?,
        None => &[],
    };
    let from = |offset: u64| strings.get(offset as usize..).unwrap_or_default();
    // Linkers store each name once, and few of them as the ends of others. Freely overlapping names
    // could take as much memory as the square of the file's bytes.
    let mut room = NAMES_PER_BYTE * strings.len() + LEAST_NAMES;
    let mut text = |offset: u64| {
        let name = from(offset).split(|&byte| byte == 0).next().unwrap_or_default();
        room = room.checked_sub(name.len()).ok_or_else(|| malformed("its names overlap without end"))?;
        Ok::<String, io::Error>(String::from_utf8_lossy(name).into_owned())
    };

    for segment in file.elf_program_headers() {
        if let Some(loader) = segment.interpreter(endian, data).map_err(malformed)? {
            facts.loader = Some(String::from_utf8_lossy(loader).into_owned());
        }
        for entry in segment.dynamic(endian, data).map_err(malformed)?.unwrap_or_default() {
            let value = entry.d_val(endian);
            match entry.tag32(endian) {
                Some(elf::DT_NEEDED) => facts.needed.push(text(value)?),
                Some(elf::DT_RPATH | elf::DT_RUNPATH) => {
                    facts.run_paths.extend(text(value)?.split(':').map(str::to_string));
                }
                _ => {}
            }
        }
    }
    for symbol in file.elf_dynamic_symbol_table().iter() {
        let offset = u64::from(symbol.st_name(endian));
        if offset == 0 {
            continue;
        }
        if symbol.is_undefined(endian) {
            facts.imports.push(text(offset)?);
        } else {
            // Node.js exports 200,000 names: compares them in place, and does not search the end of
            // each.
            let is = |export: &&&str| {
                from(offset).strip_prefix(export.as_bytes()).is_some_and(|end| end.first() == Some(&0))
            };
            facts.exports.extend(TELLING_EXPORTS.iter().find(is));
        }
    }
    // The table of tunables is in this section because its pointers are relocated.
    if let Some(section) = file.section_by_name(".data.rel.ro") {
        let bytes = section.data().map_err(malformed)?;
        facts.heap_tunable = bytes.windows(TUNABLE.len()).any(|window| window == TUNABLE);
    }
    Ok(facts)
}

/// Returns the usual name of an `e_machine` value; the number if it is not a common one.
pub fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_386 => "i386".into(),
        elf::EM_AARCH64 => "aarch64".into(),
        elf::EM_ARM => "arm".into(),
        elf::EM_RISCV => "riscv".into(),
        other => format!("ELF machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_a_name_unless_the_linker_gave_none() {
        let own = build_id(File::open(std::env::current_exe().unwrap()).unwrap());
        let shown =
            std::process::Command::new("readelf").arg("-n").arg(std::env::current_exe().unwrap()).output();
        let Ok(shown) = shown else { return megapage_testing::skip("needs readelf") };
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let listed = shown.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        assert_eq!(own.as_deref(), listed);
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/fuzz/elf_launch");
        for input in std::fs::read_dir(inputs).unwrap() {
            // No input makes it panic, or run without end.
            let _ = build_id(File::open(input.unwrap().path()).unwrap());
        }
        assert_eq!(build_id(File::open("/etc/passwd").unwrap()), None);
    }

    /// 300 symbols: the name of each is the rest of a table of 8 KiB, in which no string ends.
    #[test]
    fn names_that_overlap_without_end_are_refused() {
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/fuzz/elf_launch");
        // Shows only the messages: an accepted file gives megabytes of names.
        let error =
            inspect_file(&inputs.join("crash-overlapping-imports")).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("its names overlap without end"));
        let own = std::env::current_exe().unwrap();
        assert!(matches!(inspect_file(&own), Ok(FileKind::Elf64(facts)) if !facts.imports.is_empty()));
    }
}
