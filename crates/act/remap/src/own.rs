//! Moves of the calling process's own LOAD segments onto huge pages: the program's, and those of
//! chosen libraries. They are for a library that is loaded before `main`. Nothing here but
//! [`huge_bytes`] allocates by the C library: lists lie in pages of their own.

use crate::ledger::{Entry, Step, TextLedger};
use megapage_kernel::own_mappings::{own_huge_bytes, own_mappings};
use megapage_kernel::own_segments::{LoadedSegment, Part, loaded_segments};
use megapage_kernel::{
    Borrowed, Errno, MappedVec, Reservation, monotonic_time, thp_is_possible, thread_count,
};
use megapage_units::{HUGE_1G, HUGE_2M, PageSize};

/// Pages onto which segments are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Transparent huge pages.
    Thp,
    /// hugetlb pages of 2 MiB for segments that are never written, transparent huge pages for data.
    /// On hugetlb pages the first write after a fork takes a second page, and kills the child if
    /// the pool has none.
    Huge2M,
    /// The same with hugetlb pages of 1 GiB for each whole GiB of a segment, and of 2 MiB for the
    /// remainder. Pages of 2 MiB also replace those that the pool of 1 GiB pages lacks.
    Huge1G,
}

impl Pages {
    /// Parses the value of the environment variable.
    pub fn parse(text: &[u8]) -> Option<Pages> {
        match text {
            b"thp" => Some(Pages::Thp),
            b"2m" => Some(Pages::Huge2M),
            b"1g" => Some(Pages::Huge1G),
            _ => None,
        }
    }
}

/// Returns the name of a shared object as lists have it: without directories.
fn base_name(name: &[u8]) -> &[u8] {
    name.rsplit(|&byte| byte == b'/').next().unwrap_or(name)
}

/// Returns the items of a list of objects, which colons separate.
fn items(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b':').filter(|item| !item.is_empty())
}

/// Returns the place in the list of the object that the loader lists in place `place` as `name`.
fn object_number(place: usize, name: &[u8], list: &[u8]) -> Option<usize> {
    items(list).position(|item| match place {
        0 => item == PROGRAM,
        _ => item != PROGRAM && base_name(item) == base_name(name),
    })
}

/// Name of the program itself in a list of objects.
pub const PROGRAM: &[u8] = b".";

/// Returns the number of objects in a list.
pub fn objects(list: &[u8]) -> usize {
    items(list).count()
}

/// Moves every LOAD segment of the objects of a list (see [`crate::ledger::OBJECTS_VARIABLE`]) onto
/// `pages`: their whole blocks of 2 MiB. It also moves the last block of a read-only segment if at
/// least half of it is the segment's own and nothing lies behind. Notes the result of each in
/// `ledger`.
pub fn move_segments(pages: Pages, list: &[u8], ledger: &TextLedger) {
    let start = monotonic_time();
    let threads = thread_count().unwrap_or(u64::MAX);
    let mut segments: MappedVec<(usize, LoadedSegment)> = MappedVec::new();
    loaded_segments(|place, name, segment| {
        let Some(object) = object_number(place, name.to_bytes(), list) else { return };
        ledger.found(object);
        if segments.push((object, segment)).is_err() {
            ledger.too_many();
        }
    });
    // A .bss larger than the bytes that the object has in its file gets no huge pages. Touched here
    // and there, it would grow too far.
    let in_file = |wanted: usize| -> usize {
        let of_object = segments.iter().filter(|(object, _)| *object == wanted);
        of_object.map(|(_, segment)| segment.file_end() - segment.start()).sum()
    };
    let mut parts: MappedVec<(usize, Part)> = MappedVec::new();
    let listed = own_mappings(|mapping| {
        for (object, segment) in segments.iter() {
            let Some(part) = Part::of(segment, &mapping) else { continue };
            if parts.push((*object, part)).is_err() {
                ledger.too_many();
            }
        }
    });
    if listed.is_err() {
        // Nothing is known of the mappings: nothing is moved, and the ledger holds no entry.
        return ledger.done(0, threads);
    }
    let mut entries: MappedVec<Entry> = MappedVec::new();
    for (object, part) in parts.iter() {
        // A part that cannot be noted is not moved.
        if entries.len() == ledger.room() {
            ledger.too_many();
            break;
        }
        let next = segments.iter().any(|(other, segment)| {
            other == object && segment.start() >= part.end().next_multiple_of(HUGE_2M)
        });
        let means = Means { pages, alone: threads == 1, ledger, most_advised: in_file(*object) };
        if entries.push(Entry::of(*object, *part)).is_err() {
            ledger.too_many();
            break;
        }
        if let Some(entry) = entries.last_mut() {
            *entry = move_whole_blocks(*object, *part, means, next);
        }
    }
    correct_by_smaps(&mut entries);
    for entry in entries.iter() {
        ledger.add(*entry);
    }
    ledger.done((monotonic_time() - start).as_nanos() as u64, threads);
}

/// Corrects the moved bytes: only those that the kernel shows on huge pages at these addresses
/// count.
fn correct_by_smaps(entries: &mut [Entry]) {
    let mut huge: MappedVec<u64> = MappedVec::new();
    // Without room for the values, none is known.
    let room = entries.iter().try_for_each(|_| huge.push(0));
    let listed = room.and_then(|()| {
        own_huge_bytes(|start, end, bytes| {
            for (huge, entry) in huge.iter_mut().zip(entries.iter()) {
                let (first, last) = (entry.start.max(start as u64), entry.end.min(end as u64));
                *huge += last.saturating_sub(first).min(bytes as u64);
            }
        })
    });
    for (number, entry) in entries.iter_mut().enumerate() {
        let huge = huge.get(number).copied().unwrap_or(0);
        if huge < entry.moved {
            entry.step = Step::Unconfirmed;
            (entry.moved, entry.errno) = (huge, listed.err().map_or(0, |errno| errno.0));
        }
    }
}

impl Entry {
    /// Returns the entry of a part that nothing was done with yet.
    fn of(object: usize, part: Part) -> Entry {
        Entry {
            object,
            start: part.start() as u64,
            end: part.end() as u64,
            possible: 0,
            moved: 0,
            advised: 0,
            step: Step::TooSmall,
            errno: 0,
        }
    }
}

/// Means to move a part.
struct Means<'a> {
    pages: Pages,
    /// The process has one thread.
    alone: bool,
    ledger: &'a TextLedger,
    /// Most bytes of .bss for which huge pages are asked.
    most_advised: usize,
}

/// Moves one part. `followed` is true if another segment of the object begins behind the block in
/// which the part ends. Nothing else then expects to use the free part of the block.
fn move_whole_blocks(object: usize, part: Part, means: Means<'_>, followed: bool) -> Entry {
    let mut entry = Entry::of(object, part);
    let block_end = part.end().next_multiple_of(HUGE_2M);
    let own_of_last = part.end() - part.start().max(block_end - HUGE_2M);
    let extend = part.is_file()
        && !part.is_data()
        && followed
        && block_end > part.end()
        && part.start().next_multiple_of(HUGE_2M) < block_end
        && own_of_last >= HUGE_2M / 2;
    let behind = if extend { part.reserve_behind(block_end).ok() } else { None };
    let whole = behind.as_ref().map_or(part, |behind| part.with(behind.view())).whole_blocks();
    let Some(whole) = whole else { return entry };
    entry.possible = (whole.end() - whole.start()) as u64;
    if part.was_moved() {
        // Moved by the launcher, or by an earlier call: smaps shows later how much of it is left.
        (entry.moved, entry.step) = (entry.possible, Step::Done);
        return entry;
    }
    if !part.is_file() {
        if entry.possible > means.most_advised as u64 {
            (entry.possible, entry.step) = (0, Step::TooSmall);
            return entry;
        }
        // .bss is anonymous already, and pages that are never touched should take no memory. The
        // kernel also takes the advice if it will not follow it.
        (entry.step, entry.errno) = match whole.advise_thp() {
            Ok(()) if thp_is_possible() => (Step::Done, 0),
            Ok(()) => (Step::Off, 0),
            Err(errno) => (Step::Pages, errno.0),
        };
        entry.advised = if entry.step == Step::Done { entry.possible } else { 0 };
        return entry;
    }
    if part.is_open_code() {
        entry.step = Step::Open;
        return entry;
    }
    if part.is_data() && !means.alone {
        entry.step = Step::Threads;
        return entry;
    }
    let pages = if part.is_data() { Pages::Thp } else { means.pages };
    let moved = move_by_size(whole, pages, means.ledger);
    (entry.moved, entry.step, entry.errno) = (moved.bytes as u64, moved.step, moved.errno);
    match behind {
        // It belongs to the program now.
        Some(behind) if moved.last => entry.end = behind.keep().end() as u64,
        // Otherwise the last block stays as it was, and so does the space behind it.
        Some(_) | None => {}
    }
    entry
}

/// Result of moving some blocks.
struct Moved {
    bytes: usize,
    /// True if the last block is among them.
    last: bool,
    step: Step,
    errno: i32,
}

impl Moved {
    fn nothing(step: Step, errno: Errno) -> Moved {
        Moved { bytes: 0, last: false, step, errno: errno.0 }
    }
}

/// Returns the pieces of the addresses from `start` to `end`. The flag is true for single blocks of
/// `large` bytes, a power of two, and false for the pieces before and behind them.
fn pieces(start: usize, end: usize, large: usize) -> impl Iterator<Item = (usize, usize, bool)> {
    let first = start.next_multiple_of(large).min(end);
    let last = (end & !(large - 1)).max(first);
    let blocks = (first..last).step_by(large).map(move |at| (at, at + large, true));
    let plain = |start: usize, end: usize| (start < end).then_some((start, end, false));
    plain(start, first).into_iter().chain(blocks).chain(plain(last, end))
}

/// Moves whole blocks of 2 MiB onto pages of the largest size that is asked for and that they have
/// room for.
fn move_by_size(whole: Part, pages: Pages, ledger: &TextLedger) -> Moved {
    let plain = |part: Part| move_part(part, Some(PageSize::HUGE_2M), ledger);
    match pages {
        Pages::Thp => return move_part(whole, None, ledger),
        Pages::Huge2M => return plain(whole),
        Pages::Huge1G => {}
    }
    let mut all = Moved { bytes: 0, last: false, step: Step::Done, errno: 0 };
    for (start, end, is_large) in pieces(whole.start(), whole.end(), HUGE_1G) {
        let piece = whole.piece(start - whole.start(), end - start);
        let mut moved = match is_large {
            true => move_part(piece, Some(PageSize::HUGE_1G), ledger),
            false => plain(piece),
        };
        if is_large && moved.bytes == 0 {
            // In blocks of 2 MiB, all but the block that is in the way can be moved.
            let (step, errno) = (moved.step, moved.errno);
            moved = plain(piece);
            if moved.step == Step::Done && step == Step::Pages {
                (moved.step, moved.errno) = (Step::Smaller, errno);
            }
        }
        all.bytes += moved.bytes;
        all.last = moved.last;
        // Memory that stays where it is counts more than memory on smaller pages.
        if moved.step != Step::Done && (moved.step != Step::Smaller || all.step == Step::Done) {
            (all.step, all.errno) = (moved.step, moved.errno);
        }
    }
    all
}

/// Takes pages for all blocks: hugetlb pages of `size`, or transparent ones without a size. Then
/// moves all blocks that got huge ones.
fn move_part(whole: Part, size: Option<PageSize>, ledger: &TextLedger) -> Moved {
    let length = whole.end() - whole.start();
    let step = size.map_or(HUGE_2M, |size| size.bytes().0 as usize);
    let copy = match Reservation::new(length, step) {
        Ok(copy) => copy,
        Err(errno) => return Moved::nothing(Step::Pages, errno),
    };
    let start = monotonic_time();
    let taken = match size {
        None => copy.open().and_then(|()| {
            // If it is refused, the collapse below still makes huge pages.
            let _ = copy.advise_thp();
            copy.populate()
        }),
        Some(size) => copy.map_hugetlb(size).and_then(|()| copy.populate()),
    };
    if let Err(errno) = taken {
        ledger.got_pages((monotonic_time() - start).as_nanos() as u64);
        return Moved::nothing(Step::Pages, errno);
    }
    // The values of smaps come first: the collapse waits for every processor, even if it has
    // nothing to do. Linux before 6.1 does not know the collapse. Other kernels refuse it with the
    // same error if huge pages are ruled out. In both cases the values decide.
    let huge = size.is_some() || is_huge(copy.view()) || copy.collapse().is_ok() || is_huge(copy.view());
    ledger.got_pages((monotonic_time() - start).as_nanos() as u64);
    match whole.read_in() {
        // Linux before 5.14 does not know it: the pages are read as their bytes are copied.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(errno) => return Moved::nothing(Step::Read, errno),
    }
    // A range that is huge already stays so. Another is made huge, or refused.
    let collapse = |range: Borrowed| match size {
        Some(_) => Ok(()),
        None => range.collapse(),
    };
    // Copying a probe or a breakpoint kills the program: the kernel knows of it in the file's
    // mapping alone.
    let clean = |part: Part| match part.is_data() {
        true => Ok(()),
        false => match part.has_own_pages() {
            Ok(false) => Ok(()),
            Ok(true) => Err((Step::Changed, Errno::EBUSY)),
            Err(errno) => Err((Step::Changed, errno)),
        },
    };
    let mut moved = Moved { bytes: 0, last: false, step: Step::Done, errno: 0 };
    let all = huge && clean(whole).is_ok();
    let (mut at, pages) = (0, copy.view());
    // The part of the copy that is not used yet.
    let mut left = Some(copy);
    while at < length {
        let block = |at: usize| {
            if all {
                return Ok(());
            }
            let collapsed = if huge { Ok(()) } else { collapse(pages.part(at, step)) };
            collapsed.map_err(|errno| (Step::Pages, errno)).and_then(|()| clean(whole.piece(at, step)))
        };
        let first = block(at);
        let mut end = if all { length } else { at + step };
        while end < length && block(end).is_ok() == first.is_ok() {
            end += step;
        }
        let piece = whole.piece(at, end - at);
        let Some(mut source) = left.take() else { break };
        left = (end < length).then(|| source.split_off(end - at));
        let failed = |errno| (if errno == Errno::EBUSY { Step::Changed } else { Step::Replace }, errno);
        // If nothing is replaced, the pages of `source` are released.
        match first.and_then(|()| piece.replace_by(source).map_err(failed)) {
            Ok(()) => {
                moved.bytes += end - at;
                moved.last = end == length;
                // The name is not needed. The part stays in core dumps: a debugger does not look
                // into the file for parts that a dump lacks there.
                let _ = piece.name(c"megapage text");
            }
            Err((step, errno)) => (moved.step, moved.errno) = (step, errno.0),
        }
        at = end;
    }
    moved
}

/// Returns the bytes that the kernel shows on huge pages now, of the whole blocks of these entries.
pub fn huge_bytes(entries: &[Entry]) -> Result<u64, Errno> {
    let mut huge = vec![0; entries.len()];
    own_huge_bytes(|start, end, bytes| {
        for (huge, entry) in huge.iter_mut().zip(entries) {
            let common = entry.end.min(end as u64).saturating_sub(entry.start.max(start as u64));
            *huge += common.min(bytes as u64);
        }
    })?;
    Ok(huge.into_iter().zip(entries).map(|(huge, entry)| huge.min(entry.possible)).sum())
}

/// Returns the place in the list of the first object that is not loaded.
pub fn first_absent(list: &[u8]) -> Option<usize> {
    (0..objects(list)).find(|object| {
        let mut found = false;
        loaded_segments(|place, name, _| {
            found |= object_number(place, name.to_bytes(), list) == Some(*object)
        });
        !found
    })
}

/// Returns the most bytes that [`move_segments`] would copy.
pub fn copied_bytes(list: &[u8]) -> u64 {
    let mut bytes = 0;
    loaded_segments(|place, name, segment| {
        if object_number(place, name.to_bytes(), list).is_some() {
            let (start, end) = (segment.start().next_multiple_of(HUGE_2M), segment.file_end());
            bytes += end.next_multiple_of(HUGE_2M).saturating_sub(start) as u64;
        }
    });
    bytes
}

/// Returns true if the kernel shows all of a mapping on huge pages. Returns false if the mapping
/// was merged with another.
fn is_huge(range: Borrowed) -> bool {
    let mut huge = 0;
    let listed = own_huge_bytes(|start, end, bytes| {
        if (start, end) == (range.start(), range.end()) {
            huge = bytes;
        }
    });
    listed.is_ok() && huge == range.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_distinguished_from_what_lies_around_them() {
        let of = |start, end| pieces(start, end, 128).collect::<Vec<_>>();
        // Blocks of 128.
        assert_eq!(of(0, 256), [(0, 128, true), (128, 256, true)]);
        assert_eq!(of(4, 300), [(4, 128, false), (128, 256, true), (256, 300, false)]);
        assert_eq!(of(4, 250), [(4, 128, false), (128, 250, false)]);
        assert_eq!(of(4, 100), [(4, 100, false)]);
        assert_eq!(of(128, 200), [(128, 200, false)]);
        assert_eq!(of(128, 128), []);
    }

    #[test]
    fn objects_are_numbered_as_the_list_names_them() {
        let list = b"libjvm.so:.:/usr/lib/libz.so.1";
        assert_eq!(object_number(0, b"", list), Some(1));
        assert_eq!(object_number(3, b"/lib/x86_64-linux-gnu/libz.so.1", list), Some(2));
        assert_eq!(object_number(3, b"libjvm.so", list), Some(0));
        assert_eq!(object_number(3, b"libjvm.so.1", list), None);
        assert_eq!(object_number(0, b"", b"libz.so.1"), None, "the program is not asked for");
        assert_eq!(object_number(3, b"linux-vdso.so.1", b""), None);
        assert_eq!((objects(list), objects(b"::")), (3, 0));
        assert_eq!((Pages::parse(b"thp"), Pages::parse(b"2m")), (Some(Pages::Thp), Some(Pages::Huge2M)));
        assert_eq!((Pages::parse(b"1g"), Pages::parse(b"4k")), (Some(Pages::Huge1G), None));
        assert_eq!((first_absent(b".:libc.so.6"), first_absent(b".:libnone.so:libc.so.6")), (None, Some(1)));
        assert!(copied_bytes(b".:libc.so.6") >= copied_bytes(b"libc.so.6"));
    }
}
