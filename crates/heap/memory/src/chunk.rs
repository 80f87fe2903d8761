//! The state of one 2 MiB chunk, packed into two words.
//!
//! A chunk has 32 slices of 64 KiB, the step in which the allocator commits and decommits.
//! *Committed* slices are in use. *Used* slices may hold old bytes. A slice that was decommitted
//! while its chunk stayed mapped is used but not committed (dirty). A slice that is not used reads
//! as zero (clean).

use crate::ledger::Backing;
use crate::sync::AtomicU64;
use megapage_units::HUGE_2M;
use std::sync::atomic::Ordering::Relaxed;

/// 64 KiB in bytes: the allocator's commit step, mimalloc's arena slice.
pub const SLICE: usize = 64 << 10;

/// Current mapping of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Reserved addresses only.
    None,
    /// Mapped, with pages that are reserved in the pool and not faulted in yet; nothing counts as
    /// obtained.
    Reserved(Backing),
    /// Mapped and ready.
    Mapped(Backing),
    /// Without addresses: they are reserved again when the allocator commits a part. The program
    /// may map something there before.
    GivenUp,
}

impl Mapping {
    const fn encode(self) -> u64 {
        match self {
            Mapping::None => 0,
            Mapping::Reserved(backing) => 0x10 | backing as u64,
            Mapping::Mapped(backing) => 0x20 | backing as u64,
            Mapping::GivenUp => 0x30,
        }
    }

    fn decode(word: u64) -> Mapping {
        let backing = Backing::ALL[(word & 0xf) as usize % Backing::ALL.len()];
        match word >> 4 {
            0 => Mapping::None,
            1 => Mapping::Reserved(backing),
            3 => Mapping::GivenUp,
            _ => Mapping::Mapped(backing),
        }
    }
}

/// Bits beside the encoded mapping: the addresses are accessible though nothing is mapped; huge
/// pages are advised.
const OPEN: u64 = 0x100;
const ADVISED: u64 = 0x200;

/// On base pages.
pub const BASE: Mapping = Mapping::Mapped(Backing::Base);

/// A chunk's two words. They are written only under the chunk's group lock, so that relaxed order
/// suffices. The upper half of the second says which slices the latest commit has added: see
/// [`Chunk::added`].
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    slices: &'a AtomicU64,
    mapping: &'a AtomicU64,
}

impl<'a> Chunk<'a> {
    /// Words of state per chunk.
    pub const WORDS: usize = 2;

    /// Returns the chunk of index `index` among `words`.
    pub fn at(words: &'a [AtomicU64], index: usize) -> Chunk<'a> {
        Chunk { slices: &words[2 * index], mapping: &words[2 * index + 1] }
    }

    /// Returns the chunk's mapping.
    pub fn mapping(self) -> Mapping {
        Mapping::decode(self.mapping.load(Relaxed) & 0xff)
    }

    /// Notes a new mapping. Advice is kept if the chunk is mapped.
    pub fn set_mapping(self, mapping: Mapping) {
        let kept = if let Mapping::Mapped(_) = mapping { self.mapping.load(Relaxed) & ADVISED } else { 0 };
        self.mapping.store(mapping.encode() | kept, Relaxed);
    }

    /// Notes that the addresses are accessible though nothing is mapped, and adds the chunk to
    /// `count`.
    pub fn set_open(self, count: &AtomicU64) {
        self.mapping.store(Mapping::None.encode() | OPEN, Relaxed);
        count.fetch_add(1, Relaxed);
    }

    /// Returns true if the addresses are accessible though nothing is mapped.
    pub fn is_open(self) -> bool {
        self.mapping.load(Relaxed) & OPEN != 0
    }

    /// Notes that transparent huge pages are advised, until nothing is mapped any more.
    pub fn set_advised(self) {
        self.mapping.store(self.mapping.load(Relaxed) | ADVISED, Relaxed);
    }

    /// Returns true if transparent huge pages are advised.
    pub fn is_advised(self) -> bool {
        self.mapping.load(Relaxed) & ADVISED != 0
    }

    /// Returns the committed slices, a bit each.
    pub fn committed(self) -> u32 {
        self.slices.load(Relaxed) as u32
    }

    /// Returns the slices that may hold old bytes, a bit each.
    pub fn used(self) -> u32 {
        (self.slices.load(Relaxed) >> 32) as u32
    }

    /// Sets both bit maps.
    pub fn set_slices(self, committed: u32, used: u32) {
        self.slices.store(u64::from(used) << 32 | u64::from(committed), Relaxed);
    }

    /// Commits the slices of `mask`. Returns true if all of them were clean.
    pub fn commit(self, mask: u32) -> bool {
        let clean = self.used() & mask == 0;
        let added = mask & !self.committed();
        self.mapping
            .store(self.mapping.load(Relaxed) & u64::from(u32::MAX) | u64::from(added) << 32, Relaxed);
        self.set_slices(self.committed() | mask, self.used() | mask);
        clean
    }

    /// Returns the slices that the latest commit added to the committed ones, while the mapping
    /// stays.
    pub fn added(self) -> u32 {
        (self.mapping.load(Relaxed) >> 32) as u32
    }
}

/// Returns the slices that `[start, end)` touches (`whole` = false) or covers (`whole` = true). The
/// offsets are in bytes within one chunk, `start <= end <= 2 MiB`.
pub fn slice_mask(start: usize, end: usize, whole: bool) -> u32 {
    let (first, last) =
        if whole { (start.div_ceil(SLICE), end / SLICE) } else { (start / SLICE, end.div_ceil(SLICE)) };
    if first >= last {
        return 0;
    }
    let below = |bits: usize| if bits >= 32 { u32::MAX } else { (1u32 << bits) - 1 };
    below(last) & !below(first)
}

/// Returns the chunks that `[start, end)` touches, each with its [`slice_mask`]. The offsets are in
/// bytes.
pub fn masks(start: usize, end: usize, whole: bool) -> impl Iterator<Item = (usize, u32)> {
    (start / HUGE_2M..end.div_ceil(HUGE_2M)).map(move |index| {
        let base = index * HUGE_2M;
        (index, slice_mask(start.saturating_sub(base), (end - base).min(HUGE_2M), whole))
    })
}

/// Returns the runs of set bits in `mask`, each as (first slice, number of slices).
pub fn runs(mut mask: u32) -> impl Iterator<Item = (usize, usize)> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let count = (mask >> first).trailing_ones();
        let cleared = if first + count >= 32 { 0 } else { u32::MAX << (first + count) };
        mask &= cleared;
        Some((first as usize, count as usize))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn masks_touch_or_cover() {
        assert_eq!(slice_mask(0, HUGE_2M, false), u32::MAX);
        assert_eq!(slice_mask(0, HUGE_2M, true), u32::MAX);
        assert_eq!(slice_mask(SLICE, 2 * SLICE, true), 0b10);
        assert_eq!(slice_mask(SLICE + 1, 2 * SLICE, false), 0b10);
        assert_eq!(slice_mask(SLICE + 1, 2 * SLICE, true), 0);
        assert_eq!(slice_mask(SLICE + 1, 3 * SLICE - 1, false), 0b110);
        assert_eq!(slice_mask(5, 5, true), 0);
    }

    #[test]
    fn runs_of_every_mask_rebuild_it() {
        for mask in [0, 1, 0b1011, u32::MAX, 0x8000_0000, 0xF0F0_0001] {
            let rebuilt = runs(mask)
                .fold(0u32, |all, (first, n)| all | slice_mask(first * SLICE, (first + n) * SLICE, true));
            assert_eq!(rebuilt, mask);
        }
    }

    #[test]
    fn a_commit_notes_what_it_has_added() {
        let words = [const { AtomicU64::new(0) }; Chunk::WORDS];
        let chunk = Chunk::at(&words, 0);
        chunk.set_mapping(Mapping::Mapped(Backing::Broker));
        assert!(chunk.commit(0b0110));
        assert_eq!(chunk.added(), 0b0110);
        assert!(!chunk.commit(u32::MAX), "some were used");
        assert_eq!(chunk.added(), !0b0110);
        assert_eq!(chunk.mapping(), Mapping::Mapped(Backing::Broker));
        chunk.set_mapping(Mapping::None);
        assert_eq!((chunk.added(), chunk.mapping()), (0, Mapping::None));
    }

    #[test]
    fn an_open_chunk_is_open_until_it_is_mapped_and_advice_stays_until_it_is_not() {
        let words = [const { AtomicU64::new(0) }; Chunk::WORDS];
        let chunk = Chunk::at(&words, 0);
        chunk.set_open(&AtomicU64::new(0));
        assert!(chunk.is_open() && chunk.mapping() == Mapping::None);
        chunk.set_mapping(Mapping::Mapped(Backing::Thp));
        chunk.set_advised();
        assert!(chunk.commit(1) && !chunk.is_open() && chunk.is_advised());
        chunk.set_mapping(BASE);
        assert!(chunk.is_advised() && chunk.mapping() == BASE);
        chunk.set_mapping(Mapping::None);
        assert!(!chunk.is_advised() && !chunk.is_open());
    }

    #[test]
    fn mappings_survive_packing() {
        for backing in Backing::ALL {
            let all = [Mapping::None, Mapping::Reserved(backing), Mapping::Mapped(backing), Mapping::GivenUp];
            assert_eq!(all.map(|mapping| Mapping::decode(mapping.encode())), all);
        }
    }
}
