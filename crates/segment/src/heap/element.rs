//! An element of the heap: 64 bytes of header, then the memory that it describes.

use super::memory::{IMAGE, Image};
use super::seal::Seal;

/// The bytes of a header. Sizes and offsets of elements are multiples of it.
pub const HEADER: u64 = 64;
/// The smallest element: its header, and as much again.
pub const SMALLEST: u64 = 2 * HEADER;

const MAGIC: u64 = 0x6d70_e1e7;
/// The word of a header that parks it; zero in all others.
pub const PARK: usize = 6;
/// Bits of that word for size and dirtiness; the others are a check.
const PARKED: u64 = 0xffff_ffff;
const DIRTY: u64 = 1;

/// State of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Free.
    Free,
    /// Handed out.
    Used,
    /// Released, and being cleared. If it is found after a kill, it counts as free and dirty.
    Leaving,
    /// Free, and kept at hand for a block of its size (`magazine`).
    Parked,
}

/// A header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its state.
    pub state: State,
    /// For a free element: true if the memory behind the header may hold anything but zeros. For a
    /// used one: true if that memory need not be cleared when it is released.
    pub dirty: bool,
    /// All its bytes, the header's included.
    pub size: u64,
    /// The size of the element before it; 0 for the first.
    pub before: u64,
    /// The bytes that were asked for.
    pub len: u64,
    /// The type of its contents.
    pub tag: u64,
    /// Different for each allocation.
    pub serial: u64,
}

/// Returns the word that parks the element at `offset`: its size and dirtiness, and a check of
/// these and of its `before`. It is never zero.
#[inline]
pub fn parked_word(offset: u64, seal: Seal, size: u64, before: u64, dirty: bool) -> u64 {
    let says = (size / HEADER) << 1 | u64::from(dirty);
    seal.sum(offset, [says | 1 << 63, before]) & !PARKED | says & PARKED
}

impl Element {
    /// The word of a header that holds `before`.
    pub const BEFORE: usize = 2;

    /// Returns a free element.
    pub fn free(size: u64, before: u64, dirty: bool) -> Element {
        Element { state: State::Free, dirty, size, before, len: 0, tag: 0, serial: 0 }
    }

    /// Returns the header for an element at `offset` of the heap with this seal. A header that was
    /// copied elsewhere, or is left of an earlier heap, is invalid there.
    #[inline]
    pub fn encode(&self, offset: u64, seal: Seal) -> Image {
        let state = match self.state {
            State::Free => 1,
            State::Used => 2,
            State::Leaving => 3,
            State::Parked => {
                let mut image = [0; IMAGE];
                image[Element::BEFORE] = self.before;
                image[PARK] = parked_word(offset, seal, self.size, self.before, self.dirty);
                return image;
            }
        };
        let dirty = if self.dirty { DIRTY } else { 0 };
        let words =
            [MAGIC << 32 | state << 8 | dirty, self.size, self.before, self.len, self.tag, self.serial, 0];
        let [first, size, before, len, tag, serial, park] = words;
        [first, size, before, len, tag, serial, park, seal.sum(offset, words)]
    }

    /// Reads a header. Whatever the words are, the element returned has a size that fits into
    /// `room`, the bytes from `offset` to the end of the heap.
    #[inline]
    pub fn decode(image: &Image, offset: u64, seal: Seal, room: u64) -> Result<Element, &'static str> {
        let fits = |size: u64, before: u64| {
            (SMALLEST..=room).contains(&size) && size.is_multiple_of(HEADER) && before.is_multiple_of(HEADER)
        };
        if image[PARK] != 0 {
            let (says, before) = (image[PARK] & PARKED, image[Element::BEFORE]);
            let (size, dirty) = ((says >> 1) * HEADER, says & DIRTY != 0);
            if image[PARK] != parked_word(offset, seal, size, before, dirty) || !fits(size, before) {
                return Err("the element is parked, and its check is wrong");
            }
            return Ok(Element { state: State::Parked, dirty, size, before, len: 0, tag: 0, serial: 0 });
        }
        if image[0] >> 32 != MAGIC || image[0] & 0xffff_00fe != 0 {
            return Err("there is no element");
        }
        let [words @ .., sum] = *image;
        if sum != seal.sum(offset, words) {
            return Err("the checksum of the element is wrong");
        }
        let state = match image[0] >> 8 & 0xff {
            1 => State::Free,
            2 => State::Used,
            3 => State::Leaving,
            _ => return Err("the state of the element is unknown"),
        };
        let [_, size, before, len, tag, serial, ..] = *image;
        if !fits(size, before) {
            return Err("the size of the element does not fit");
        }
        if len > size - HEADER {
            return Err("the element holds more than fits");
        }
        Ok(Element { state, dirty: image[0] & DIRTY != 0, size, before, len, tag, serial })
    }
}

#[cfg(test)]
mod tests {
    use super::super::seal::Format;
    use super::*;

    #[test]
    fn a_header_holds_at_its_place_alone() {
        for format in Format::ALL {
            holds_at_its_place_alone(|salt| Seal { salt, format });
        }
    }

    fn holds_at_its_place_alone(seal: impl Fn(u64) -> Seal) {
        let own = seal(9);
        let element = Element {
            state: State::Used,
            dirty: true,
            size: 256,
            before: 128,
            len: 190,
            tag: 7,
            serial: 1 << 40,
        };
        let image = element.encode(4096, own);
        assert_eq!(Element::decode(&image, 4096, own, 256), Ok(element));
        for (offset, seal, room) in [(4160, own, 256), (4096, seal(8), 256), (4096, own, 192)] {
            assert!(Element::decode(&image, offset, seal, room).is_err());
        }
        for bit in 0..512 {
            let mut flipped = image;
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert!(Element::decode(&flipped, 4096, own, 256).is_err(), "bit {bit}");
        }
        let resealed = |change: fn(&mut Element)| {
            let mut element = element;
            change(&mut element);
            Element::decode(&element.encode(4096, own), 4096, own, 1024).is_err()
        };
        let parked = Element { state: State::Parked, len: 0, tag: 0, serial: 0, ..element };
        for parked in [parked, Element { dirty: false, ..parked }] {
            let mut image = parked.encode(4096, own);
            assert_eq!(Element::decode(&image, 4096, own, 256), Ok(parked));
            // The other words of the header mean nothing.
            (image[0], image[5], image[7]) = (7, 8, 9);
            assert_eq!(Element::decode(&image, 4096, own, 256), Ok(parked));
            for (offset, seal, room) in [(4160, own, 256), (4096, seal(8), 256), (4096, own, 192)] {
                assert!(Element::decode(&image, offset, seal, room).is_err());
            }
            for bit in 0..64 {
                for word in [Element::BEFORE, PARK] {
                    let mut flipped = image;
                    flipped[word] ^= 1 << bit;
                    assert!(Element::decode(&flipped, 4096, own, 256).is_err(), "bit {bit} of word {word}");
                }
            }
        }
        assert!(resealed(|e| e.size = 64));
        assert!(resealed(|e| e.size = 200));
        assert!(resealed(|e| e.before = 3));
        assert!(resealed(|e| e.len = 193));
        assert!(!resealed(|_| ()));
    }
}
