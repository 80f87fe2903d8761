//! Words of a segment: reading, storing in order, clearing, copying.

use super::HeapError;
use crate::segment::Segment;
use megapage_kernel::{clear_words, fill_words};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of an element's header, of the heap's own, and of an image in the journal.
pub const IMAGE: usize = 8;

/// An image of 64 bytes.
pub(crate) type Image = [u64; IMAGE];

fn outside(offset: u64) -> HeapError {
    HeapError::Damaged { offset, what: "it leads outside the segment" }
}

/// Returns the words at `offset`. Fails if they are not all in the segment.
#[inline]
pub fn words(segment: &Segment, offset: u64, count: u64) -> Result<&[AtomicU64], HeapError> {
    let inside = usize::try_from(count).ok().filter(|_| offset >= segment.data_start());
    inside.and_then(|count| segment.raw(offset, count)).ok_or_else(|| outside(offset))
}

/// Returns the 64 bytes at `offset`.
#[inline]
pub fn load(segment: &Segment, offset: u64) -> Result<Image, HeapError> {
    let words = words(segment, offset, IMAGE as u64)?;
    Ok(std::array::from_fn(|at| words[at].load(Ordering::Acquire)))
}

/// Stores one word after all that were stored before it. A process that is killed has stored a
/// prefix of its stores: release order keeps the compiler and the processor from swapping two of
/// them.
pub fn store(word: &AtomicU64, value: u64) {
    #[cfg(test)]
    crash::point();
    word.store(value, Ordering::Release);
}

/// Stores 64 bytes, word by word.
pub fn store_image(segment: &Segment, offset: u64, image: &Image) -> Result<(), HeapError> {
    for (word, value) in words(segment, offset, IMAGE as u64)?.iter().zip(image) {
        store(word, *value);
    }
    Ok(())
}

/// Time at which cleared memory is used next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextUse {
    /// At once, by the caller that allocated it.
    Soon,
    /// Later, when it is allocated.
    Later,
}

/// The most words that are cleared through the caches. Larger memory that is used soon is cleared
/// past them, too: a second-level cache holds no more.
const CACHED: usize = (1 << 20) / size_of::<u64>();

/// Clears `bytes` (a multiple of 8) from `offset` on. Another process may still read freed memory:
/// it reads whole words.
pub fn clear(segment: &Segment, offset: u64, bytes: u64, next: NextUse) -> Result<(), HeapError> {
    let words = words(segment, offset, bytes / 8)?;
    let (first, second) = words.split_at(words.len() / 2);
    for half in [first, second] {
        #[cfg(test)]
        crash::point();
        match next {
            NextUse::Soon if words.len() <= CACHED => fill_words(half, 0),
            _ => clear_words(half),
        }
    }
    // Later stores are not seen before the zeros are.
    std::sync::atomic::fence(Ordering::Release);
    Ok(())
}

/// Returns the offset of the first word that is not zero.
pub fn first_nonzero(segment: &Segment, offset: u64, bytes: u64) -> Result<Option<u64>, HeapError> {
    let at = words(segment, offset, bytes / 8)?.iter().position(|word| word.load(Ordering::Relaxed) != 0);
    Ok(at.map(|at| offset + at as u64 * 8))
}

/// Copies the first `count` words.
pub fn copy(from: &[AtomicU64], to: &[AtomicU64], count: usize) {
    for (from, to) in from.iter().zip(to).take(count) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Reads bytes out of words, from byte `at` on; as many as there are.
pub fn read_bytes(words: &[AtomicU64], at: usize, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (index, from) = ((at + done) / 8, (at + done) % 8);
        let Some(word) = words.get(index) else { return };
        let count = (8 - from).min(bytes.len() - done);
        let whole = word.load(Ordering::Relaxed).to_le_bytes();
        bytes[done..done + count].copy_from_slice(&whole[from..from + count]);
        done += count;
    }
}

/// Writes bytes into words, from byte `at` on. Bytes beside them keep the values that others write
/// there at the same time.
pub fn write_bytes(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (index, from) = ((at + done) / 8, (at + done) % 8);
        let Some(word) = words.get(index) else { return };
        let count = (8 - from).min(bytes.len() - done);
        let part = &bytes[done..done + count];
        if count == 8 {
            word.store(u64::from_le_bytes(part.try_into().expect("eight bytes")), Ordering::Relaxed);
        } else {
            let merged = |old: u64| {
                let mut whole = old.to_le_bytes();
                whole[from..from + count].copy_from_slice(part);
                Some(u64::from_le_bytes(whole))
            };
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
        }
        done += count;
    }
}

/// Crashes at a chosen store: the segment then holds the same as after a kill at that store.
#[cfg(test)]
pub mod crash {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Payload of the panic.
    pub struct Crash;

    /// Sets the crash to the store after `stores` more; `None`: never.
    pub fn after(stores: Option<u64>) {
        LEFT.with(|left| left.set(stores));
    }

    pub fn point() {
        LEFT.with(|left| match left.get() {
            Some(0) => std::panic::panic_any(Crash),
            Some(more) => left.set(Some(more - 1)),
            None => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_out_of_words_at_any_place() {
        for at in 0..17 {
            for len in 0..20 {
                let words: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(u64::MAX)).collect();
                let text: Vec<u8> = (0..len as u8).collect();
                write_bytes(&words, at, &text);
                let mut all = [0; 40];
                read_bytes(&words, 0, &mut all);
                assert_eq!(&all[at..at + len], &text[..]);
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xff), "{at} {len}");
                let mut back = vec![0; len];
                read_bytes(&words, at, &mut back);
                assert_eq!(back, text);
            }
        }
    }
}
