//! The one operation under way: images that are to be stored, written down whole before the first of them is.
//!
//! A process that is killed has left either no operation (nothing was stored yet, or all was), or one that is whole:
//! then storing its images once more completes it. Nothing has to reach a disk: what a killed process has stored stays
//! in the segment's pages.

use super::HeapError;
use super::memory::{IMAGE, Image, store, store_image, words};
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
const COUNT: usize = 1;
const CHECKSUM: usize = 2;

/// What lies at `offset` afterwards.
pub type Change = (u64, Image);

/// Stores all `changes` or, if the process is killed, none or (after [`recover`]) all of them. The caller has checked
/// that they are in the segment, and holds the heap's lock.
pub fn commit(segment: &Segment, journal: u64, changes: &[Change]) -> Result<(), HeapError> {
    assert!(changes.len() <= MOST_IMAGES, "no operation changes that much");
    let words = words(segment, journal, JOURNAL / 8)?;
    let flat = changes.iter().flat_map(|(offset, image)| std::iter::once(*offset).chain(*image));
    for (word, value) in words[ENTRIES..].iter().zip(flat.clone()) {
        store(word, value);
    }
    store(&words[COUNT], changes.len() as u64);
    store(&words[CHECKSUM], checksum(changes.len() as u64, flat));
    store(&words[WHOLE], 1);
    for (offset, image) in changes {
        store_image(segment, *offset, image)?;
    }
    store(&words[WHOLE], 0);
    Ok(())
}

/// Completes the operation that a killed process has left, if there is one: `true`. `may` says at which offsets an
/// image may be stored.
pub fn recover(segment: &Segment, journal: u64, may: impl Fn(u64) -> bool) -> Result<bool, HeapError> {
    let damaged = |what| HeapError::Damaged { offset: journal, what };
    let words = words(segment, journal, JOURNAL / 8)?;
    let value = |at: usize| words[at].load(Ordering::Acquire);
    match value(WHOLE) {
        0 => return Ok(false),
        1 => {}
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
    if (0..count).any(|number| !may(entry(number).0)) {
        return Err(damaged("the journal leads outside the heap"));
    }
    for number in 0..count {
        let (offset, image) = entry(number);
        store_image(segment, offset, &image)?;
    }
    store(&words[WHOLE], 0);
    Ok(true)
}
