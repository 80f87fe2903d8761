//! The inverted index, and the synthetic songs that it holds.
//!
//! All postings of the index stand in one imagined row; the lists are consecutive pieces of it, and a
//! [`Permutation`] says which (song, time) stands where. Read backward, it gives a list's postings one after
//! the other, so that building is fast; read forward, a song's fingerprints, so that no song is stored.

use super::permutation::Permutation;
use megapage_units::Bytes;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;

/// The longest posting list.
pub const LONGEST_LIST: u32 = 7500;
/// Time steps of a song, and so offsets between query and song.
pub const OFFSETS: u32 = 1 << OFFSET_BITS;
/// A posting is a 32-bit word: the song above, the time in the lowest bits.
pub(super) const OFFSET_BITS: u32 = 13;

/// Songs in a full index.
const SONGS: u64 = 250_000;
/// Bits of a fingerprint in a full index.
const FINGERPRINT_BITS: u32 = 24;
/// The smallest index with all songs: about 1,000 fingerprints of each, as many as a query has.
const FULL: Bytes = Bytes::gib(1);
/// Lists come in this many lengths at most.
const LENGTHS: u64 = 4096;

/// How many songs, fingerprints and postings there are, and which posting stands where.
#[derive(Clone, Debug)]
pub struct Shape {
    songs: u32,
    fingerprints: u64,
    /// The length of the lists of each class, and where the class begins in the row of all postings.
    /// Every class has equally many lists.
    lengths: Vec<u32>,
    starts: Vec<u64>,
    postings: u64,
    /// Which (song, number within the song) stands where in the row.
    row: Permutation,
    /// Which fingerprint has which list: without it, like fingerprints would have lists of like length.
    ranks: Permutation,
    /// Fingerprints of every song; the first `longer_songs` have one more.
    song_fingerprints: u32,
    longer_songs: u32,
    /// Time steps from one fingerprint of a song to the next, in units of 2^-32.
    time_step: u64,
}

impl Shape {
    /// The shape of an index with `size` of postings, 4 bytes each; from 1 GiB on with 250,000 songs and
    /// 24-bit fingerprints, below (for tests) with fewer of both in proportion. At least 256 KiB, at most
    /// 16 GiB are laid out whatever is asked.
    pub fn for_size(size: Bytes) -> Shape {
        let size = size.clamp(Bytes::kib(256), Bytes::gib(16));
        let halvings = (0..).find(|&n| FULL.0 >> n <= size.0).unwrap_or(0);
        let songs = (SONGS >> halvings) as u32;
        let fingerprints = 1u64 << (FINGERPRINT_BITS - halvings);

        let classes = LENGTHS.min(fingerprints);
        let lists_per_class = fingerprints / classes;
        let lengths = list_lengths(classes as usize, size.0 as f64 / 4.0 / lists_per_class as f64);
        let mut starts = Vec::with_capacity(lengths.len());
        let mut postings = 0;
        for &length in &lengths {
            starts.push(postings);
            postings += u64::from(length) * lists_per_class;
        }
        let song_fingerprints = (postings / u64::from(songs)) as u32;
        Shape {
            songs,
            fingerprints,
            lengths,
            starts,
            postings,
            row: Permutation::new(postings),
            ranks: Permutation::new(fingerprints),
            song_fingerprints,
            longer_songs: (postings % u64::from(songs)) as u32,
            time_step: (u64::from(OFFSETS) << 32) / (u64::from(song_fingerprints) + 1),
        }
    }

    /// Songs in the index.
    pub fn songs(&self) -> u32 {
        self.songs
    }

    /// Distinct fingerprints: posting lists in the index.
    pub fn fingerprints(&self) -> u64 {
        self.fingerprints
    }

    /// Postings in the index.
    pub fn postings(&self) -> u64 {
        self.postings
    }

    /// The length of the longest posting list.
    pub fn longest_list(&self) -> u32 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// How many fingerprints `song` has.
    pub fn fingerprints_of(&self, song: u32) -> u32 {
        self.song_fingerprints + u32::from(song < self.longer_songs)
    }

    /// The time, below [`OFFSETS`], of fingerprint `number` of a song.
    pub fn time(&self, number: u32) -> u32 {
        ((u64::from(number) * self.time_step) >> 32) as u32
    }

    /// Fingerprint `number` of `song`.
    pub fn fingerprint(&self, song: u32, number: u32) -> u32 {
        let regular = u64::from(self.song_fingerprints);
        // The additional fingerprints of the longer songs stand behind all regular ones.
        let place = if u64::from(number) < regular {
            u64::from(song) * regular + u64::from(number)
        } else {
            u64::from(self.songs) * regular + u64::from(song)
        };
        let slot = self.row.forward(place);
        let class = self.starts.partition_point(|&start| start <= slot) - 1;
        let in_class = (slot - self.starts[class]) / u64::from(self.lengths[class]);
        self.ranks.backward(class as u64 * self.lists_per_class() + in_class) as u32
    }

    fn lists_per_class(&self) -> u64 {
        self.fingerprints / self.lengths.len() as u64
    }

    /// Where the posting list of `fingerprint` stands in the row.
    pub fn list(&self, fingerprint: u32) -> Range<u64> {
        let rank = self.ranks.forward(u64::from(fingerprint));
        let class = (rank / self.lists_per_class()) as usize;
        let length = u64::from(self.lengths[class]);
        let first = self.starts[class] + rank % self.lists_per_class() * length;
        first..first + length
    }

    /// The posting list of `fingerprint`, in an allocation of exactly its size.
    fn posting_list(&self, fingerprint: u32) -> Vec<u32> {
        let slots = self.list(fingerprint);
        let mut list = Vec::with_capacity((slots.end - slots.start) as usize);
        list.extend(slots.map(|slot| self.posting(slot)));
        list
    }

    /// What stands at `slot` of the row.
    pub fn posting(&self, slot: u64) -> u32 {
        // At most 16 GiB of postings: a place fits 32 bits, whose division is the faster one.
        let place = self.row.backward(slot) as u32;
        let regular = self.song_fingerprints;
        let (song, number) = (place / regular, place % regular);
        let (song, number) =
            if song < self.songs { (song, number) } else { (place - self.songs * regular, regular) };
        song << OFFSET_BITS | self.time(number)
    }
}

/// The lengths of `classes` equally frequent lists that sum to about `total`, from 1 to [`LONGEST_LIST`]: the
/// quantiles of a log-logistic distribution, as skewed as those of spectral fingerprints are.
fn list_lengths(classes: usize, total: f64) -> Vec<u32> {
    const SKEW: f64 = 1.6;
    let quantile = |class: usize| {
        let below = (class as f64 + 0.5) / classes as f64;
        (below / (1.0 - below)).powf(1.0 / SKEW)
    };
    let at_median = |median: f64| -> Vec<u32> {
        (0..classes)
            .map(|class| (median * quantile(class)).clamp(1.0, f64::from(LONGEST_LIST)) as u32)
            .collect()
    };
    // The sum grows with the median: halve the interval that holds it.
    let (mut low, mut high) = (0.0, f64::from(LONGEST_LIST));
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let sum: u64 = at_median(middle).iter().map(|&length| u64::from(length)).sum();
        if (sum as f64) < total { low = middle } else { high = middle }
    }
    at_median(low)
}

/// Posting lists, wherever they are.
pub trait Lists: Sync {
    /// The shape that they were built to.
    fn shape(&self) -> &Shape;

    /// The postings of `fingerprint`.
    fn postings(&self, fingerprint: u32) -> impl Iterator<Item = u32>;
}

/// The posting lists, each in an allocation of its own.
#[derive(Debug)]
pub struct Index {
    shape: Shape,
    lists: Vec<Vec<u32>>,
}

/// Lists that a thread builds at a time.
const CHUNK: usize = 1 << 12;

impl Index {
    /// Builds the index with `threads` threads.
    pub fn build(shape: Shape, threads: NonZeroUsize) -> Index {
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); shape.fingerprints as usize];
        let chunks = Mutex::new(lists.chunks_mut(CHUNK).enumerate());
        let next = || chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        std::thread::scope(|scope| {
            for _ in 0..threads.get() {
                scope.spawn(|| {
                    while let Some((chunk, lists)) = next() {
                        for (fingerprint, list) in (CHUNK * chunk..).zip(lists) {
                            *list = shape.posting_list(fingerprint as u32);
                        }
                    }
                });
            }
        });
        Index { shape, lists }
    }

    /// The shape that it was built to.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The postings of `fingerprint`.
    pub fn postings(&self, fingerprint: u32) -> &[u32] {
        &self.lists[fingerprint as usize]
    }
}

impl Lists for Index {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn postings(&self, fingerprint: u32) -> impl Iterator<Item = u32> {
        Index::postings(self, fingerprint).iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_index_is_as_the_workload_states() {
        for gib in [1, 8, 16] {
            let shape = Shape::for_size(Bytes::gib(gib));
            assert_eq!((shape.songs(), shape.fingerprints()), (250_000, 1 << 24));
            let bytes = 4 * shape.postings();
            assert!(bytes <= gib << 30 && bytes as f64 > 0.99 * (gib << 30) as f64, "{gib}: {bytes}");
            assert!(shape.longest_list() <= LONGEST_LIST);
            assert!(shape.fingerprints_of(0) >= 1000, "{gib}: {}", shape.fingerprints_of(0));
        }
        assert_eq!(Shape::for_size(Bytes::gib(8)).longest_list(), LONGEST_LIST);
    }

    #[test]
    fn every_fingerprint_of_a_song_is_in_its_list() {
        let shape = Shape::for_size(Bytes::mib(1));
        let index = Index::build(shape.clone(), NonZeroUsize::MIN);
        let mut postings = 0;
        for song in 0..shape.songs() {
            for number in 0..shape.fingerprints_of(song) {
                let list = index.postings(shape.fingerprint(song, number));
                assert!(list.contains(&(song << OFFSET_BITS | shape.time(number))), "{song} {number}");
                postings += 1;
            }
        }
        assert_eq!(postings, shape.postings());
        assert_eq!(index.lists.iter().map(|list| list.len() as u64).sum::<u64>(), postings);
    }

    #[test]
    fn times_ascend_within_a_song() {
        let shape = Shape::for_size(Bytes::mib(1));
        let last = shape.fingerprints_of(0) - 1;
        assert_eq!(shape.time(0), 0);
        assert!((1..=last).all(|number| shape.time(number - 1) <= shape.time(number)));
        assert!(shape.time(last) < OFFSETS);
    }
}
