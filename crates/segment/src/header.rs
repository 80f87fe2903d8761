//! Header of a segment: two slots that are written in turn, and the state of each page.
//!
//! It lies in the first page itself, not in a file beside it. On hugetlbfs a file of a few bytes
//! takes a whole page. A file elsewhere would outlive the pages: it survives a reboot.

use crate::checksum::checksum;
use crate::name::{LONGEST_NAME, Name};
use megapage_units::{Bytes, PageSize};
use serde::Serialize;

/// The most pages of one segment: the states of so many fit into the first page of 2 MiB.
pub const MOST_PAGES: u64 = 1 << 20;
/// Bytes of one slot.
pub const SLOT: u64 = 4096;
/// Words of a slot that are used; the last is the checksum of the others.
pub const SLOT_WORDS: usize = 32;
/// Offset of the states of the pages, one byte each.
pub const PAGE_STATES: u64 = 2 * SLOT;
/// Bytes of a file that are read to judge it.
pub const HEADER_BYTES: usize = 2 * SLOT as usize;

/// State of a page that has never been handed out: all zeros, except for the segment's own data.
/// Any other byte means that the page may hold old bytes. Zero differs from it in four bits, so
/// that no single flipped bit turns one into the other.
pub const CLEAN: u8 = 0xc6;

const MAGIC: u64 = u64::from_le_bytes(*b"megapage");
const VERSION: u64 = 1;

/// Arrangement of a segment's pages in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// All in one file.
    #[default]
    SingleFile,
    /// Each in a separate file.
    FilePerPage,
}

/// Contents of a segment's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts up with every change.
    pub generation: u64,
    /// The size of its pages: 2 MiB or 1 GiB.
    pub page_size: PageSize,
    /// Their arrangement in files.
    pub layout: Layout,
    /// The most that it may grow to.
    pub most_pages: u64,
    /// The pages that it has, all populated.
    pub pages: u64,
    /// The user who made it.
    pub uid: u32,
    /// The group that it was made with.
    pub gid: u32,
    /// The permission bits of its files.
    pub mode: u32,
    /// The NUMA node that its pages are bound to.
    pub node: Option<u32>,
    /// The address at which its owner has it mapped, or had it last.
    pub address: u64,
    /// Time at which it was made, in seconds since 1970.
    pub created: u64,
    /// Openings by an owner so far.
    pub openings: u64,
    /// Its name.
    pub name: Name,
}

/// Contents of the slots of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: all zeros, as after an interrupted creation.
    Nothing,
    /// A header, and the slot that holds it (0 or 1).
    Header(Box<Header>, usize),
    /// Something else, and the reason why it is no header.
    Broken(String),
}

/// Returns the offset of the first byte behind header and page states.
pub fn data_start(most_pages: u64) -> u64 {
    PAGE_STATES + most_pages.next_multiple_of(SLOT)
}

impl Header {
    /// Returns the bytes of all its pages.
    pub fn size(&self) -> Bytes {
        Bytes(self.pages * self.page_size.bytes().0)
    }

    /// Returns the words of a slot.
    pub fn encode(&self) -> [u64; SLOT_WORDS] {
        let mut words = [0; SLOT_WORDS];
        words[0] = MAGIC;
        words[1] = VERSION;
        words[2] = self.generation;
        words[3] = self.page_size.bytes().0;
        words[4] = match self.layout {
            Layout::SingleFile => 0,
            Layout::FilePerPage => 1,
        };
        words[5] = self.most_pages;
        words[6] = self.pages;
        words[7] = u64::from(self.uid) << 32 | u64::from(self.gid);
        words[8] = u64::from(self.mode);
        words[9] = self.node.map_or(0, |node| u64::from(node) + 1);
        words[10] = self.address;
        words[11] = self.created;
        words[12] = self.openings;
        let name = self.name.as_str().as_bytes();
        words[13] = name.len() as u64;
        for (word, part) in words[14..].iter_mut().zip(name.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(bytes);
        }
        words[SLOT_WORDS - 1] = checksum(0, words[..SLOT_WORDS - 1].iter().copied());
        words
    }

    /// Reads a slot. The error says in a few words why it is no header. The result is consistent
    /// whatever the words are: the sizes fit, and the name is valid.
    pub fn decode(words: &[u64; SLOT_WORDS]) -> Result<Header, String> {
        if words[0] != MAGIC {
            return Err("it does not begin as a segment does".into());
        }
        if words[SLOT_WORDS - 1] != checksum(0, words[..SLOT_WORDS - 1].iter().copied()) {
            return Err("its checksum is wrong".into());
        }
        if words[1] != VERSION {
            return Err(format!("its format is version {}, and this is version {VERSION}", words[1]));
        }
        let page_size = PageSize::new(words[3]).filter(|size| is_segment_page(*size));
        let page_size = page_size.ok_or_else(|| format!("its page size is {}", words[3]))?;
        let layout = match words[4] {
            0 => Layout::SingleFile,
            1 => Layout::FilePerPage,
            other => return Err(format!("its layout is {other}")),
        };
        let (most_pages, pages) = (words[5], words[6]);
        if pages == 0 || pages > most_pages || most_pages > MOST_PAGES {
            return Err(format!("it has {pages} of {most_pages} pages"));
        }
        let length = usize::try_from(words[13]).ok().filter(|length| *length <= LONGEST_NAME);
        let length = length.ok_or_else(|| "its name is too long".to_string())?;
        let bytes: Vec<u8> = words[14..14 + LONGEST_NAME / 8].iter().flat_map(|w| w.to_le_bytes()).collect();
        let name = std::str::from_utf8(&bytes[..length]).map_err(|_| "its name is no text".to_string())?;
        let small = |word: u64, what: &str| u32::try_from(word).map_err(|_| format!("its {what} is {word}"));
        Ok(Header {
            generation: words[2],
            page_size,
            layout,
            most_pages,
            pages,
            uid: (words[7] >> 32) as u32,
            gid: words[7] as u32,
            mode: small(words[8], "mode")?,
            node: words[9].checked_sub(1).map(|node| small(node, "node")).transpose()?,
            address: words[10],
            created: words[11],
            openings: words[12],
            name: name.parse()?,
        })
    }
}

/// Returns true if segments may have pages of this size.
pub fn is_segment_page(size: PageSize) -> bool {
    size == PageSize::HUGE_2M || size == PageSize::HUGE_1G
}

/// Judges the first [`HEADER_BYTES`] of a file; fewer are broken. The later one of two headers
/// counts. A slot that was being written when its writer died has a wrong checksum, and the other
/// slot is still valid.
pub fn read(bytes: &[u8]) -> Found {
    if bytes.len() < HEADER_BYTES {
        return Found::Broken("it is shorter than a header".into());
    }
    let slot = |number: usize| {
        let start = number * SLOT as usize;
        let mut words = [0; SLOT_WORDS];
        for (word, part) in words.iter_mut().zip(bytes[start..].chunks_exact(8)) {
            *word = u64::from_le_bytes(part.try_into().expect("eight bytes"));
        }
        words
    };
    let slots = [slot(0), slot(1)];
    if slots.iter().flatten().all(|word| *word == 0) {
        return Found::Nothing;
    }
    match (Header::decode(&slots[0]), Header::decode(&slots[1])) {
        (Ok(first), Ok(second)) if second.generation > first.generation => Found::Header(second.into(), 1),
        (Ok(first), _) => Found::Header(first.into(), 0),
        (Err(_), Ok(second)) => Found::Header(second.into(), 1),
        // The first slot says more, unless it is empty.
        (Err(why), Err(other)) => {
            Found::Broken(if slots[0].iter().all(|word| *word == 0) { other } else { why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(generation: u64) -> Header {
        Header {
            generation,
            page_size: PageSize::HUGE_2M,
            layout: Layout::FilePerPage,
            most_pages: 512,
            pages: 3,
            uid: 1000,
            gid: 27,
            mode: 0o640,
            node: Some(0),
            address: 0x7f00_4000_0000,
            created: 1_790_000_000,
            openings: 4,
            name: "index".parse().unwrap(),
        }
    }

    fn bytes(slots: [Option<&Header>; 2]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        for (number, header) in slots.iter().enumerate() {
            for (at, word) in header.iter().flat_map(|header| header.encode()).enumerate() {
                let at = number * SLOT as usize + at * 8;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn a_header_comes_back() {
        let longest = Header { name: "n".repeat(64).parse().unwrap(), node: None, ..header(1) };
        for header in [header(7), longest] {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        assert_eq!(data_start(1), 12288);
        assert!(data_start(MOST_PAGES) < PageSize::HUGE_2M.bytes().0);
    }

    #[test]
    fn the_later_slot_counts_and_a_torn_one_does_not() {
        let (old, new) = (header(7), header(8));
        assert_eq!(read(&bytes([Some(&old), Some(&new)])), Found::Header(new.clone().into(), 1));
        assert_eq!(read(&bytes([Some(&new), Some(&old)])), Found::Header(new.clone().into(), 0));
        assert_eq!(read(&bytes([Some(&old), None])), Found::Header(old.clone().into(), 0));
        assert_eq!(read(&bytes([None, None])), Found::Nothing);
        // Every state of a slot that is being overwritten, word by word.
        let (before, after) = (bytes([Some(&old), Some(&header(6))]), bytes([Some(&old), Some(&new)]));
        for words in 0..SLOT_WORDS {
            let mut torn = before.clone();
            let (from, to) = (SLOT as usize, SLOT as usize + words * 8);
            torn[from..to].copy_from_slice(&after[from..to]);
            let found = read(&torn);
            assert_eq!(found, Found::Header(old.clone().into(), 0), "{words} words written");
        }
    }

    #[test]
    fn what_is_wrong_is_reported() {
        let mut strange = bytes([None, None]);
        strange[0] = 1;
        assert_eq!(read(&strange), Found::Broken("it does not begin as a segment does".into()));
        let mut flipped = bytes([Some(&header(1)), None]);
        flipped[48] ^= 1;
        assert_eq!(read(&flipped), Found::Broken("its checksum is wrong".into()));
        assert_eq!(read(&[0; 100]), Found::Broken("it is shorter than a header".into()));
        let resealed = |change: fn(&mut [u64; SLOT_WORDS])| {
            let mut words = header(1).encode();
            change(&mut words);
            words[SLOT_WORDS - 1] = checksum(0, words[..SLOT_WORDS - 1].iter().copied());
            Header::decode(&words).unwrap_err()
        };
        assert_eq!(resealed(|w| w[1] = 2), "its format is version 2, and this is version 1");
        assert_eq!(resealed(|w| w[3] = 4096), "its page size is 4096");
        assert_eq!(resealed(|w| w[6] = 513), "it has 513 of 512 pages");
        assert_eq!(resealed(|w| w[5] = u64::MAX), "it has 3 of 18446744073709551615 pages");
        assert_eq!(resealed(|w| w[13] = 65), "its name is too long");
        assert!(resealed(|w| w[14] = u64::from(b'/')).contains("is no name"));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_goes_unseen(bit in 0..HEADER_BYTES * 8) {
            let (old, new) = (header(7), header(8));
            let mut flipped = bytes([Some(&old), Some(&new)]);
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read(&flipped) {
                Found::Header(found, _) => prop_assert!(*found == old || *found == new),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn any_bytes_are_judged(noise in proptest::collection::vec(any::<u8>(), 0..600), at in 0..HEADER_BYTES) {
            let mut bytes = bytes([Some(&header(7)), None]);
            let end = (at + noise.len()).min(HEADER_BYTES);
            bytes[at..end].copy_from_slice(&noise[..end - at]);
            let _ = read(&bytes);
            let _ = read(&noise);
        }
    }
}
