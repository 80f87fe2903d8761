//! Where everything goes. Pure: a plan follows from the headers alone.

use crate::layout::{HUGE, file_pages, is_congruent, linker_flags, primable, relinked, total};
use crate::{Binary, Placement, Segment};
use megapage_units::{BASE_PAGE, Bytes};

const PAGE: u64 = BASE_PAGE as u64;

/// Bytes of the old file that go into the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where they start in the old file.
    pub from: u64,
    /// Where they start in the new file.
    pub to: u64,
    /// How many.
    pub length: u64,
}

/// Eight bytes of the new file's headers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where in the new file.
    pub at: u64,
    /// What is written there.
    pub value: u64,
}

/// How the new file is made: a file of zeros, then the copies, then the patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its length.
    pub size: u64,
    /// What is copied, by place in the old file, without overlap.
    pub copies: Vec<Copy>,
    /// What is changed afterwards.
    pub patches: Vec<Patch>,
    /// Bytes that priming could have on huge pages before.
    pub before: u64,
    /// And afterwards.
    pub after: u64,
    /// Segments whose place in the file changes.
    pub moved: usize,
    /// Bytes by which segments become longer.
    pub extended: u64,
}

impl Plan {
    /// The parts of the old file, `size` bytes long, that are not copied: they must hold nothing.
    pub fn left_out(&self, size: u64) -> Vec<(u64, u64)> {
        let mut left = Vec::new();
        let mut at = 0;
        for copy in &self.copies {
            if copy.from > at {
                left.push((at, copy.from));
            }
            at = copy.from + copy.length;
        }
        if at < size {
            left.push((at, size));
        }
        left
    }
}

// Offsets of fields in the 64-bit headers (elf(5)).
const E_PHOFF: u64 = 32;
const E_SHOFF: u64 = 40;
const HEADER_SIZE: u64 = 64;
const PROGRAM_HEADER_SIZE: u64 = 56;
const P_OFFSET: u64 = 8;
const P_FILESZ: u64 = 32;
const P_MEMSZ: u64 = 40;
const P_ALIGN: u64 = 48;
const SECTION_HEADER_SIZE: u64 = 64;
const SH_OFFSET: u64 = 24;

/// Plans a layout of `binary` for 2 MiB; the error says why there is none.
pub fn plan(binary: &Binary) -> Result<Plan, String> {
    let is_placed = |binary: &Binary| binary.base_alignment() >= HUGE;
    let before = if is_placed(binary) { total(&primable(binary)) } else { 0 };
    let lost = |segment: &&Segment| {
        !is_congruent(segment) && !congruent(segment).write && whole(&congruent(segment)) > 0
    };
    let relay = binary.segments.iter().any(|segment| lost(&segment));
    let segments = if relay { relaid(binary)? } else { in_place(binary) };
    let moves: Vec<(u64, u64, u64)> = binary
        .segments
        .iter()
        .zip(&segments)
        .filter(|(old, _)| old.file_size > 0)
        .map(|(old, new)| (old.offset, old.file_size, new.offset))
        .collect();
    let mut plan = Plan {
        size: binary.size,
        copies: vec![Copy { from: 0, to: 0, length: binary.size }],
        patches: Vec::new(),
        before,
        after: 0,
        moved: moves.iter().filter(|(old, _, new)| old != new).count(),
        extended: binary.segments.iter().zip(&segments).map(|(old, new)| new.file_size - old.file_size).sum(),
    };
    if relay {
        plan.copies = copies(binary, &segments, &moves)?;
    }
    let ends = plan.copies.iter().map(|copy| copy.to + copy.length);
    plan.size =
        ends.chain(segments.iter().map(|segment| segment.offset + segment.file_size)).max().unwrap_or(0);
    patch(binary, &segments, &mut plan)?;
    let new = Binary { segments, size: plan.size, ..binary.clone() };
    plan.after = if is_placed(&new) { total(&primable(&new)) } else { 0 };
    if plan.after == 0 {
        return Err(nothing_to_gain(binary));
    }
    if plan.after <= before {
        // As good as it gets: a plain copy.
        let whole = Copy { from: 0, to: 0, length: binary.size };
        return Ok(Plan {
            size: binary.size,
            copies: vec![whole],
            patches: Vec::new(),
            before,
            after: before,
            moved: 0,
            extended: 0,
        });
    }
    Ok(plan)
}

fn nothing_to_gain(binary: &Binary) -> String {
    let won: u64 = binary.segments.iter().map(relinked).sum();
    if won == 0 {
        return "its code and constants are smaller than 2 MiB: nothing to gain".into();
    }
    format!(
        "no read-only segment holds a whole block of 2 MiB at its address, and addresses cannot change: link it with \
         {} for up to {}",
        linker_flags(binary.linker.as_deref()).flags,
        Bytes(won)
    )
}

/// The segment, as if its offset agreed with its address.
fn congruent(segment: &Segment) -> Segment {
    Segment { offset: segment.address % HUGE, ..segment.clone() }
}

/// Bytes of whole blocks, where the file does not end before.
fn whole(segment: &Segment) -> u64 {
    crate::layout::whole_blocks(segment, u64::MAX >> 1).map_or(0, |range| range.length)
}

/// Segments where they are, with the alignment that they have in fact, and longer where that is possible.
fn in_place(binary: &Binary) -> Vec<Segment> {
    let mut segments = binary.segments.clone();
    for (index, old) in binary.segments.iter().enumerate() {
        segments[index].file_size += room(binary, index, |offset, end| {
            // Nothing else may lie in the file where the segment grows, and it may not grow beyond the file.
            let others = binary.segments.iter().filter(|other| other.header != old.header);
            let taken =
                others.filter(|other| other.file_size > 0).map(|other| (other.offset, other.file_size));
            let sections = binary.sections.iter().filter(|section| section.size > 0);
            let taken = taken
                .chain(sections.map(|section| (section.offset, section.size)))
                .chain([binary.section_headers, binary.program_headers]);
            end <= binary.size
                && !taken
                    .into_iter()
                    .any(|(start, length)| start < end && start + length > offset && length > 0)
        });
    }
    finish(binary, segments)
}

/// Segments one after another, each at the next offset that agrees with its address.
fn relaid(binary: &Binary) -> Result<Vec<Segment>, String> {
    let mut segments = binary.segments.clone();
    let mut order: Vec<usize> = (0..segments.len()).collect();
    order.sort_by_key(|&index| (segments[index].offset, segments[index].file_size));
    // The ELF header stays at the start, and so does the table of program headers, if in no segment.
    let table = (binary.program_headers.0, binary.program_headers.0 + binary.program_headers.1);
    let in_segment =
        |s: &Segment, (start, end): (u64, u64)| s.offset <= start && end <= s.offset + s.file_size;
    let mut end = HEADER_SIZE;
    if !binary.segments.iter().any(|segment| in_segment(segment, table)) {
        if table.0 != HEADER_SIZE {
            return Err("its program headers lie outside of its segments: it cannot be laid out anew".into());
        }
        end = table.1;
    }
    let mut old_end = 0;
    for index in order {
        let old = &binary.segments[index];
        if old.file_size > 0 && old.offset < old_end {
            return Err("its segments share bytes of the file: they cannot be moved apart".into());
        }
        if old.offset > 0 || old.file_size == 0 {
            if old.offset < HEADER_SIZE && old.file_size > 0 {
                return Err("a segment starts within the ELF header: it cannot be moved".into());
            }
            // From a page of its own: no page of the file is mapped by two segments.
            let start = end.next_multiple_of(PAGE);
            segments[index].offset = start + (old.address.wrapping_sub(start) % HUGE);
        }
        if old.file_size > 0 {
            old_end = old.offset + old.file_size;
            segments[index].file_size += room(binary, index, |_, _| true);
            end = segments[index].offset + segments[index].file_size;
        }
    }
    Ok(finish(binary, segments))
}

/// By how many bytes the segment can become longer so that its last block is whole; 0 where it cannot, or less than
/// half of that block is its own (it would take memory for nothing). `free` says whether the file has room, given the
/// old end of the segment and its new one.
fn room(binary: &Binary, index: usize, free: impl Fn(u64, u64) -> bool) -> u64 {
    let segment = &binary.segments[index];
    if segment.write || segment.file_size == 0 || segment.file_size != segment.memory_size {
        return 0;
    }
    let (start, end) = file_pages(segment);
    let block = end & !(HUGE - 1);
    // After the last segment starts the heap.
    let Some(next) = binary.segments.get(index + 1) else { return 0 };
    if start > block || end - block < HUGE / 2 || file_pages(next).0 < block + HUGE {
        return 0;
    }
    let old_end = segment.offset + segment.file_size;
    let more = block + HUGE - (segment.address + segment.file_size);
    if free(old_end, old_end + more) { more } else { 0 }
}

/// Asks for 2 MiB where offset and address agree, and lets the longer segments be as long in memory.
fn finish(binary: &Binary, mut segments: Vec<Segment>) -> Vec<Segment> {
    for (new, old) in segments.iter_mut().zip(&binary.segments) {
        new.memory_size += new.file_size - old.file_size;
        // At fixed addresses no alignment is asked for.
        if binary.placement != Placement::Fixed && is_congruent(new) {
            new.align = new.align.max(HUGE);
        }
    }
    segments
}

/// What goes where: the segments, and behind them whatever else a header describes.
fn copies(binary: &Binary, segments: &[Segment], moves: &[(u64, u64, u64)]) -> Result<Vec<Copy>, String> {
    let mut copies: Vec<Copy> = moves.iter().map(|&(from, length, to)| Copy { from, to, length }).collect();
    let mut claimed = vec![(0, HEADER_SIZE), binary.program_headers, binary.section_headers];
    claimed.extend(binary.sections.iter().map(|section| (section.offset, section.size)));
    let mut outside: Vec<(u64, u64)> = Vec::new();
    for (start, length) in claimed.into_iter().filter(|(_, length)| *length > 0) {
        let end = start + length;
        if moves.iter().any(|&(from, length, _)| from <= start && end <= from + length) {
            continue;
        }
        if moves.iter().any(|&(from, length, _)| from < end && start < from + length) {
            return Err("a section lies half in a segment: it cannot be laid out anew".into());
        }
        outside.push((start, end));
    }
    outside.sort_unstable();
    let mut end = segments.iter().map(|segment| segment.offset + segment.file_size).max().unwrap_or(0);
    let between = |start: u64, end: u64| moves.iter().any(|&(from, _, _)| start <= from && from < end);
    for (start, stop) in merged(outside, between) {
        let kept = stop <= binary.program_headers.0 + binary.program_headers.1 && start < HEADER_SIZE;
        // The headers stay at the start; for the others any alignment up to a page is preserved.
        let to = if kept {
            start
        } else {
            let page = end.next_multiple_of(PAGE);
            page + start % PAGE
        };
        copies.push(Copy { from: start, to, length: stop - start });
        end = end.max(to + stop - start);
    }
    copies.sort_unstable_by_key(|copy| copy.from);
    Ok(copies)
}

/// Ranges less than a page apart as one: what is between them is padding and comes along, unless `between` says that
/// a segment starts there.
fn merged(sorted: Vec<(u64, u64)>, between: impl Fn(u64, u64) -> bool) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in sorted {
        match merged.last_mut() {
            Some(last) if start < last.1 + PAGE && !between(last.1, start) => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The headers' fields that change.
fn patch(binary: &Binary, segments: &[Segment], plan: &mut Plan) -> Result<(), String> {
    let moved = |start: u64, length: u64| {
        let end = start.checked_add(length)?;
        let inside = |copy: &&Copy| copy.from <= start && end <= copy.from + copy.length;
        plan.copies.iter().find(inside).map(|copy| copy.to + (start - copy.from))
    };
    let lost = |start: u64, length: u64| {
        format!(
            "the {length} bytes from offset {start}, which a header names, lie in no single segment or section: it was \
             rewritten after linking, and cannot be laid out anew"
        )
    };
    let moved = |start: u64, length: u64| moved(start, length).ok_or_else(|| lost(start, length));
    let mut patches = Vec::new();
    let mut change = |at: u64, old: u64, new: u64| {
        if old != new {
            patches.push(Patch { at, value: new });
        }
    };
    let table = moved(binary.program_headers.0, binary.program_headers.1)?;
    change(E_PHOFF, binary.program_headers.0, table);
    let field = |header: usize, field: u64| table + header as u64 * PROGRAM_HEADER_SIZE + field;
    for (old, new) in binary.segments.iter().zip(segments) {
        change(field(old.header, P_OFFSET), old.offset, new.offset);
        change(field(old.header, P_FILESZ), old.file_size, new.file_size);
        change(field(old.header, P_MEMSZ), old.memory_size, new.memory_size);
        change(field(old.header, P_ALIGN), old.align, new.align);
    }
    for other in binary.others.iter().filter(|other| other.file_size > 0) {
        let new = moved(other.offset, other.file_size)?;
        change(field(other.header, P_OFFSET), other.offset, new);
    }
    if binary.section_headers.1 > 0 {
        let table = moved(binary.section_headers.0, binary.section_headers.1)?;
        change(E_SHOFF, binary.section_headers.0, table);
        for (index, section) in binary.sections.iter().enumerate() {
            let new = if section.size > 0 {
                moved(section.offset, section.size)?
            } else {
                empty_section(binary, segments, section)
            };
            change(table + index as u64 * SECTION_HEADER_SIZE + SH_OFFSET, section.offset, new);
        }
    }
    plan.patches = patches;
    Ok(())
}

/// Where a section without bytes in the file (.bss, .tbss) is declared to lie: as far from the start of its segment as its
/// address is; elsewhere unchanged.
fn empty_section(binary: &Binary, segments: &[Segment], section: &crate::Section) -> u64 {
    let holds = |s: &&Segment| s.address <= section.address && section.address < s.address + s.memory_size;
    let old = binary.segments.iter().find(holds).filter(|_| section.loaded);
    let Some(old) = old else { return section.offset };
    let new = segments.iter().find(|new| new.header == old.header).expect("the same segments");
    section.offset.wrapping_add(new.offset.wrapping_sub(old.offset))
}
