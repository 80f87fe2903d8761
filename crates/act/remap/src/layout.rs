//! Parts of a file that 2 MiB entries can map, by its layout, and the means. Pure.

use crate::{Binary, Segment};
use megapage_units::{BASE_PAGE, HUGE_2M};
use serde::Serialize;

/// Size of the huge pages considered here, in bytes.
pub const HUGE: u64 = HUGE_2M as u64;
const PAGE: u64 = BASE_PAGE as u64;

/// A part of a file: whole blocks of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FileRange {
    /// Its start, a multiple of 2 MiB.
    pub offset: u64,
    /// Its length in bytes, a multiple of 2 MiB, not 0.
    pub length: u64,
}

impl FileRange {
    /// Returns the offsets of its blocks.
    pub fn blocks(self) -> impl Iterator<Item = u64> {
        (self.offset..self.offset + self.length).step_by(HUGE_2M)
    }
}

/// Returns the addresses of a segment's file pages, as (start, end): whole pages, as the kernel
/// maps them.
pub(crate) fn file_pages(segment: &Segment) -> (u64, u64) {
    let start = segment.address & !(PAGE - 1);
    (start, (segment.address + segment.file_size).next_multiple_of(PAGE))
}

/// Returns true if file offset and address agree modulo 2 MiB: only then can 2 MiB entries map the
/// file's own pages.
pub fn is_congruent(segment: &Segment) -> bool {
    segment.address % HUGE == segment.offset % HUGE
}

/// Returns the whole blocks of 2 MiB of the segment's file pages, by address, as a part of the
/// file. Returns `None` if offset and address do not agree, or the segment is writable: the kernel
/// maps private writable pages by base pages. Also returns `None` if the segment holds no whole
/// block, or the file ends before.
pub fn whole_blocks(segment: &Segment, file_size: u64) -> Option<FileRange> {
    if segment.write || segment.file_size == 0 || !is_congruent(segment) {
        return None;
    }
    let (start, end) = file_pages(segment);
    let (first, end) = (start.next_multiple_of(HUGE), end & !(HUGE - 1));
    // File offset of the page that `start` maps; the difference is the same for every page.
    let page_offset = segment.offset & !(PAGE - 1);
    let length = end.checked_sub(first).filter(|&length| length > 0)?;
    let offset = page_offset + (first - start);
    // The last page of the file may be a part of one; a block beyond it is never read as one folio.
    let inside = file_size.next_multiple_of(PAGE).saturating_sub(offset) & !(HUGE - 1);
    let length = length.min(inside);
    (length > 0).then_some(FileRange { offset, length })
}

/// Returns the parts of the file that 2 MiB entries can map after priming, if the file is placed at
/// a multiple of 2 MiB. They are sorted by offset, without overlap.
pub fn primable(binary: &Binary) -> Vec<FileRange> {
    let mut ranges: Vec<FileRange> =
        binary.segments.iter().filter_map(|segment| whole_blocks(segment, binary.size)).collect();
    ranges.sort_by_key(|range| range.offset);
    let mut merged: Vec<FileRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.offset <= last.offset + last.length => {
                let end = (range.offset + range.length).max(last.offset + last.length);
                last.length = end - last.offset;
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the bytes of `ranges`.
pub fn total(ranges: &[FileRange]) -> u64 {
    ranges.iter().map(|range| range.length).sum()
}

/// Returns the bytes of a segment, .bss included, that lie in whole blocks of 2 MiB by address. A
/// copy in anonymous memory can have them on huge pages. If the segments are not aligned to 2 MiB
/// (`placed` is false), returns a lower bound, for any placement.
pub fn anonymous(segment: &Segment, placed: bool) -> u64 {
    whole_pages(segment, placed, HUGE)
}

/// Returns the same for blocks of `page` bytes, a power of two of at least a base page.
pub fn whole_pages(segment: &Segment, placed: bool, page: u64) -> u64 {
    let (start, _) = file_pages(segment);
    let end = (segment.address + segment.memory_size).next_multiple_of(PAGE);
    if placed {
        (end & !(page - 1)).saturating_sub(start.next_multiple_of(page))
    } else {
        // In the worst case it starts one base page after a multiple of `page`.
        (end - start).saturating_sub(page - PAGE) & !(page - 1)
    }
}

/// Returns the bytes that 2 MiB entries could map if the linker had started each read-only segment
/// at a multiple of 2 MiB.
pub fn relinked(segment: &Segment) -> u64 {
    if segment.write { 0 } else { segment.file_size.next_multiple_of(PAGE) & !(HUGE - 1) }
}

/// Options with which a linker lays a program out for 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LinkerFlags {
    /// The linker.
    pub linker: &'static str,
    /// The options, as a compiler driver (gcc, clang) takes them.
    pub flags: &'static str,
}

const PAGE_SIZE_ALONE: &str = "-Wl,-z,max-page-size=0x200000";
const SEPARATE_TOO: &str = "-Wl,-z,max-page-size=0x200000,-z,separate-loadable-segments";

/// Options for each linker. The first two linkers lay segments out congruent, GNU ld also at
/// multiples of 2 MiB. The others pack the file unless configured otherwise.
pub const LINKER_FLAGS: [LinkerFlags; 4] = [
    LinkerFlags { linker: "GNU ld", flags: PAGE_SIZE_ALONE },
    LinkerFlags { linker: "gold", flags: PAGE_SIZE_ALONE },
    LinkerFlags { linker: "lld", flags: SEPARATE_TOO },
    LinkerFlags { linker: "mold", flags: SEPARATE_TOO },
];

/// Returns the options for the linker of this name; GNU ld's if it is not known.
pub fn linker_flags(linker: Option<&str>) -> LinkerFlags {
    let known = LINKER_FLAGS.iter().find(|flags| Some(flags.linker) == linker);
    *known.unwrap_or(&LINKER_FLAGS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(offset: u64, address: u64, file_size: u64) -> Segment {
        Segment {
            header: 0,
            read: true,
            write: false,
            execute: true,
            offset,
            address,
            file_size,
            memory_size: file_size,
            align: 0x1000,
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_interior_counts() {
        let range = |offset, length| Some(FileRange { offset, length });
        let file = 64 * MIB;
        assert_eq!(whole_blocks(&text(0x1000, 0x40_1000, 8 * MIB), file), range(2 * MIB, 6 * MIB));
        assert_eq!(whole_blocks(&text(2 * MIB, 4 * MIB, 8 * MIB), file), range(2 * MIB, 8 * MIB));
        // The last page is mapped whole.
        assert_eq!(whole_blocks(&text(2 * MIB, 4 * MIB, 2 * MIB - 5), file), range(2 * MIB, 2 * MIB));
        assert_eq!(whole_blocks(&text(2 * MIB, 4 * MIB, 2 * MIB - 0x1000), file), None);
        // 2 MiB, but not aligned.
        assert_eq!(whole_blocks(&text(MIB, MIB, 2 * MIB), file), None);
        // The start within a page.
        assert_eq!(whole_blocks(&text(2 * MIB + 5, 4 * MIB + 5, 2 * MIB), file), range(2 * MIB, 2 * MIB));
        // Offset and address do not agree.
        assert_eq!(whole_blocks(&text(0x1000, 0x2000, 8 * MIB), file), None);
        let data = Segment { write: true, ..text(2 * MIB, 4 * MIB, 8 * MIB) };
        assert_eq!(whole_blocks(&data, file), None);
        // The file ends within the last block, by its last page, and before that.
        let long = text(0, 0, 4 * MIB);
        assert_eq!(whole_blocks(&long, 4 * MIB - 5), range(0, 4 * MIB));
        assert_eq!(whole_blocks(&long, 4 * MIB - 0x1000), range(0, 2 * MIB));
        assert_eq!(whole_blocks(&long, 5), None);
    }

    #[test]
    fn an_anonymous_copy_needs_no_congruence_and_may_be_written() {
        assert_eq!(anonymous(&text(0x1000, 0x40_2000, 8 * MIB), true), 6 * MIB);
        let data = Segment { write: true, memory_size: 9 * MIB, ..text(0x1000, 2 * MIB, MIB) };
        assert_eq!(anonymous(&data, true), 8 * MIB);
        // The place is not known: at worst 4 KiB after a multiple.
        assert_eq!(anonymous(&text(0, 0, 8 * MIB), true), 8 * MIB);
        assert_eq!(anonymous(&text(0, 0, 8 * MIB), false), 6 * MIB);
        assert_eq!(anonymous(&text(0, 0, 4 * MIB - 0x1000), false), 2 * MIB);
        assert_eq!(anonymous(&text(0, 0, MIB), false), 0);
        assert_eq!(anonymous(&text(MIB, MIB, 2 * MIB), true), 0);
        // Whole GiB, from 1 GiB on, of a segment that starts at 512 MiB.
        let (gib, long) = (1 << 30, text(0, 512 * MIB, 3 << 30));
        assert_eq!(whole_pages(&long, true, gib), 2 * gib);
        assert_eq!(whole_pages(&long, false, gib), 2 * gib);
        assert_eq!(whole_pages(&text(0, 512 * MIB, gib), true, gib), 0);
    }

    #[test]
    fn relinking_wins_all_but_the_tail() {
        assert_eq!(relinked(&text(MIB, MIB, 9 * MIB)), 8 * MIB);
        assert_eq!(relinked(&Segment { write: true, ..text(0, 0, 8 * MIB) }), 0);
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut binary = Binary {
            placement: crate::Placement::Fixed,
            segments: vec![text(6 * MIB, 6 * MIB, 2 * MIB), text(2 * MIB, 2 * MIB, 4 * MIB)],
            relro: None,
            linker: None,
            size: 64 * MIB,
        };
        assert_eq!(primable(&binary), [FileRange { offset: 2 * MIB, length: 6 * MIB }]);
        assert_eq!(primable(&binary)[0].blocks().collect::<Vec<_>>(), [2 * MIB, 4 * MIB, 6 * MIB]);
        binary.segments[0].offset += 4 * MIB;
        assert_eq!((primable(&binary).len(), total(&primable(&binary))), (2, 6 * MIB));
    }

    #[test]
    fn each_linker_has_its_flags() {
        assert!(linker_flags(Some("lld")).flags.contains("separate-loadable-segments"));
        assert!(!linker_flags(Some("gold")).flags.contains("separate"));
        assert_eq!(linker_flags(None).linker, "GNU ld");
    }
}
