//! The journal: the one operation under way, as images of 64 bytes. All images are written to the
//! journal before the first is stored in its place.
//!
//! After a kill the journal holds no operation (nothing was stored yet, or all was), or a whole
//! one. Storing its images once more completes it. Nothing has to reach a disk: all that a killed
//! process has stored stays in the segment's pages.

use super::HeapError;
use super::element::{Element, HEADER, PARK, SMALLEST, parked_word};
use super::memory::{IMAGE, Image, store, store_image, words};
use super::seal::{Format, Seal};
use crate::checksum::checksum;
use crate::segment::Segment;
use std::sync::atomic::Ordering;

/// Bytes of the journal.
pub const JOURNAL: u64 = 4096;
const ENTRIES: usize = 8;
const ENTRY: usize = 1 + IMAGE;
/// The most images of one operation.
pub const MOST_IMAGES: usize = (JOURNAL as usize / 8 - ENTRIES) / ENTRY;

const WHOLE: usize = 0;
/// Value that the first version stored there. That version knows no format of elements, and would
/// complete an operation of the second one wrongly. At another value it refuses the heap.
const FIRST_WAS_WHOLE: u64 = 1;
const IS_WHOLE: u64 = 2;
const COUNT: usize = 1;
const CHECKSUM: usize = 2;

/// An offset, and its contents afterwards. At an offset with [`CARVE`] the image is a [`Carve`].
pub(crate) type Change = (u64, Image);
/// Marks an offset, which is a multiple of 64, whose image is a [`Carve`].
const CARVE: u64 = 1;
/// The most elements that one operation cuts, or wipes.
pub const MOST_CARVED: u64 = 1 << 10;

/// Elements of one size, side by side, that are parked: two words of each are stored. With `wipe`,
/// headers of such elements that are no longer in use: all their words are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carve {
    /// Bytes of each.
    pub size: u64,
    /// The number of elements.
    pub count: u64,
    /// The size of the element before the first.
    pub before: u64,
    /// True if their memory is dirty.
    pub dirty: bool,
    /// The heap's seal.
    pub seal: Seal,
    /// True if they are no elements any more.
    pub wipe: bool,
}

impl Carve {
    /// Returns the same as a change at `at`.
    pub fn change(&self, at: u64) -> Change {
        let Carve { size, count, before, dirty, seal: Seal { salt, format }, wipe } = *self;
        (at | CARVE, [size, count, before, u64::from(dirty), salt, u64::from(wipe), format as u64, 0])
    }

    /// Reads an image; `None` for a heap of a format that this version does not know.
    fn of(image: &Image) -> Option<Carve> {
        let [size, count, before, dirty, salt, wipe, format, _] = *image;
        let format = match format {
            // The first version had one format, and left the word zero.
            0 => Format::InTurn,
            other => Format::of(other)?,
        };
        let seal = Seal { salt, format };
        Some(Carve { size, count, before, dirty: dirty != 0, seal, wipe: wipe != 0 })
    }

    /// Returns true if it is well-formed, and `may` allows its first and its last header.
    fn is_inside(&self, at: u64, may: impl Fn(u64) -> bool) -> bool {
        let shaped = self.size.is_multiple_of(HEADER)
            && (SMALLEST..1 << 32).contains(&self.size)
            && (1..=MOST_CARVED).contains(&self.count);
        shaped && may(at) && at.checked_add(self.size * (self.count - 1)).is_some_and(may)
    }

    fn apply(&self, segment: &Segment, at: u64) -> Result<(), HeapError> {
        for number in 0..self.count {
            let at = at + number * self.size;
            if self.wipe {
                store_image(segment, at, &[0; IMAGE])?;
                continue;
            }
            let before = if number == 0 { self.before } else { self.size };
            let words = words(segment, at, IMAGE as u64)?;
            store(&words[Element::BEFORE], before);
            store(&words[PARK], parked_word(at, self.seal, self.size, before, self.dirty));
        }
        Ok(())
    }
}

/// Stores the images of a change.
fn apply(segment: &Segment, (offset, image): &Change) -> Result<(), HeapError> {
    match offset & CARVE {
        0 => store_image(segment, *offset, image),
        _ => match Carve::of(image) {
            Some(carve) => carve.apply(segment, offset & !CARVE),
            None => {
                Err(HeapError::Damaged { offset: *offset, what: "the format of its elements is unknown" })
            }
        },
    }
}

/// Stores all `changes`. If the process is killed, either none or (after [`recover`]) all of them
/// are stored. The caller has checked that they are in the segment, and holds the heap's lock.
pub fn commit(segment: &Segment, journal: u64, changes: &[Change]) -> Result<(), HeapError> {
    assert!(changes.len() <= MOST_IMAGES, "no operation changes that much");
    let words = words(segment, journal, JOURNAL / 8)?;
    let flat = changes.iter().flat_map(|(offset, image)| std::iter::once(*offset).chain(*image));
    for (word, value) in words[ENTRIES..].iter().zip(flat.clone()) {
        store(word, value);
    }
    store(&words[COUNT], changes.len() as u64);
    store(&words[CHECKSUM], checksum(changes.len() as u64, flat));
    store(&words[WHOLE], IS_WHOLE);
    for change in changes {
        apply(segment, change)?;
    }
    store(&words[WHOLE], 0);
    Ok(())
}

/// Completes the operation that a killed process has left. Returns true if there was one. `may`
/// returns true for offsets at which an image may be stored.
pub fn recover(segment: &Segment, journal: u64, may: impl Fn(u64) -> bool) -> Result<bool, HeapError> {
    let damaged = |what| HeapError::Damaged { offset: journal, what };
    let words = words(segment, journal, JOURNAL / 8)?;
    let value = |at: usize| words[at].load(Ordering::Acquire);
    match value(WHOLE) {
        0 => return Ok(false),
        FIRST_WAS_WHOLE | IS_WHOLE => {}
        _ => return Err(damaged("the journal is in no known state")),
    }
    let count = usize::try_from(value(COUNT)).ok().filter(|count| *count <= MOST_IMAGES);
    let count = count.ok_or_else(|| damaged("the journal tells of more than it holds"))?;
    let flat = (ENTRIES..ENTRIES + count * ENTRY).map(value);
    if value(CHECKSUM) != checksum(count as u64, flat) {
        return Err(damaged("the checksum of the journal is wrong"));
    }
    let entry = |number: usize| -> Change {
        let at = ENTRIES + number * ENTRY;
        (value(at), std::array::from_fn(|word| value(at + 1 + word)))
    };
    let is_inside = |(offset, image): Change| match offset & CARVE {
        0 => may(offset),
        _ => Carve::of(&image).is_some_and(|carve| carve.is_inside(offset & !CARVE, &may)),
    };
    if (0..count).any(|number| !is_inside(entry(number))) {
        return Err(damaged("the journal leads outside the heap, or is of a later version"));
    }
    for number in 0..count {
        apply(segment, &entry(number))?;
    }
    store(&words[WHOLE], 0);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carve_is_read_back_of_each_format_that_is_known() {
        for format in Format::ALL {
            let seal = Seal { salt: 7, format };
            let carve = Carve { size: 128, count: 3, before: 64, dirty: true, seal, wipe: false };
            let (offset, image) = carve.change(4096);
            assert_eq!((offset, Carve::of(&image)), (4096 | CARVE, Some(carve)));
            // As the first version stored it.
            let first = Carve { seal: Seal { format: Format::InTurn, ..seal }, ..carve };
            assert_eq!(Carve::of(&[128, 3, 64, 1, 7, 0, 0, 0]), Some(first));
            assert_eq!(Carve::of(&[128, 3, 64, 1, 7, 0, 3, 0]), None, "of a later version");
        }
    }
}
