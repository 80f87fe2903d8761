//! ELF files, as `megapage remap` and `megapage run` read them.

use crate::tree::with_file;
use megapage_launch::{elf, versions};
use megapage_remap::{layout, read_binary};

const FILE: &str = "program";

/// Reads the headers of a file: with any headers, no block lies outside of the file.
pub fn elf_remap(data: &[u8]) {
    let read = with_file(FILE, data, |root| read_binary(&root.path(FILE)));
    let Ok(binary) = read else { return };
    let size = data.len() as u64;
    assert_eq!(binary.size, size);
    let ranges = layout::primable(&binary);
    assert!(ranges.iter().all(|range| range.offset + range.length < size + 4096), "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].offset + pair[0].length < pair[1].offset), "{ranges:?}");
    assert_eq!(
        ranges.iter().flat_map(|range| range.blocks()).count() as u64 * layout::HUGE,
        layout::total(&ranges)
    );
    for segment in &binary.segments {
        for placed in [true, false] {
            assert!(layout::anonymous(segment, placed) <= segment.memory_size.next_multiple_of(4096) + 4096);
        }
        assert!(layout::relinked(segment) <= segment.file_size.next_multiple_of(4096));
    }
    let _ = (binary.span(), binary.base_alignment());
}

/// Reads the facts that decide about mechanisms, and the functions that a file names.
pub fn elf_launch(data: &[u8]) {
    with_file(FILE, data, |root| {
        let path = root.path(FILE);
        match elf::inspect_file(&path) {
            Ok(elf::FileKind::Script(line)) => assert!(line.len() <= 3 * 254 && data.starts_with(b"#!")),
            Ok(elf::FileKind::Elf64(facts)) => {
                let names = facts.imports.iter().chain(&facts.needed).chain(&facts.run_paths);
                // Each byte that is no text becomes three.
                let most = 3 * (4 * data.len() + (64 << 10));
                assert!(names.map(String::len).sum::<usize>() <= most, "names without end");
            }
            _ => {}
        }
        if let (Ok(needed), Ok(defined)) = (versions::needed(&path), versions::defined(&path)) {
            let lacks = |file: &String| versions::lacking(&needed, &[(file.clone(), defined.clone())].into());
            assert!(
                needed.keys().all(|file| needed.len() == 1 || lacks(file).is_some()),
                "others are not there"
            );
        }
    });
}
