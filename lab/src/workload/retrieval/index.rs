//! Contents of the index, and their places.
//!
//! Some songs are recorded: synthesised, and fingerprinted as queries are ([`super::catalogue`]).
//! The postings of all others fill the lists up. They stand in one imagined row, and the lists are
//! consecutive pieces of it. A [`Permutation`] gives the (song, time) at each place of the row: so
//! an index of any size is built at the speed of writing memory.
//!
//! An index of more than 64 GiB consists of several shards: each has separate songs, and a list for
//! each fingerprint.

use super::audio::SAMPLE_RATE;
use super::catalogue::Recorded;
use super::landmark::{BITS, HOP, most_landmarks};
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

/// Songs in a full shard.
const SONGS: u32 = 250_000;
/// The smallest shard with all songs: about 1,000 fingerprints of each, as many as a query has.
const FULL: Bytes = Bytes::gib(1);
/// The largest shard: about 64,000 fingerprints of each song.
const LARGEST: Bytes = Bytes::gib(64);
/// The smallest index that is laid out.
const LEAST: Bytes = Bytes::kib(256);
/// The most different lengths of lists.
const LENGTHS: u64 = 4096;
/// Recorded songs in an index, all shards together; at most one in eight.
const RECORDED: u32 = 512;
/// Approximate fingerprints in a second of music: they give the length of a song from its
/// fingerprints.
const FINGERPRINTS_PER_SECOND: u64 = 1000;
/// Samples of the shortest and the longest recorded song: longer than an excerpt, and with no more
/// time steps than there are offsets.
const SHORTEST_SONG: u64 = 10_000;
const LONGEST_SONG: u64 = (OFFSETS as u64) * (HOP as u64);

/// Numbers of songs, fingerprints and postings, and the place of each posting.
#[derive(Clone, Debug)]
pub struct Shape {
    shards: u32,
    /// Songs of a shard, recorded ones included: these have the highest numbers.
    songs: u32,
    recorded: u32,
    fingerprint_bits: u32,
    /// The length of the lists of each class, and the start of the class in the row of all postings
    /// that are not recorded. Every class has equally many lists.
    lengths: Vec<u32>,
    starts: Vec<u64>,
    postings: u64,
    /// The (song, number within the song) at each place of the row.
    row: Permutation,
    /// The list of each fingerprint: without it, similar fingerprints would have lists of similar
    /// length.
    ranks: Permutation,
    /// Fingerprints of every song that is not recorded; some have one more.
    song_fingerprints: u32,
    /// Time steps from one fingerprint of a song to the next, in units of 2^-32.
    time_step: u64,
}

/// Returns the number of shards of an index of `size`.
pub(super) fn shards(size: Bytes) -> u32 {
    // The largest size in 64 bits has 2^28 shards.
    size.0.div_ceil(LARGEST.0).max(1) as u32
}

/// Returns the songs, and the bits of a fingerprint, of a shard of `size`.
pub(super) fn dimensions(size: Bytes) -> (u32, u32) {
    let halvings = (0..).find(|&n| FULL.0 >> n <= size.0.max(LEAST.0)).unwrap_or(0);
    (SONGS >> halvings, BITS - halvings)
}

impl Shape {
    /// Returns the shape of an index with about `size` of postings, 4 bytes each. From 1 GiB on it
    /// has 250,000 songs and 24-bit fingerprints. Below (for tests) it has fewer of both in
    /// proportion; from 64 GiB on it has as many in each shard. The least size is 256 KiB.
    pub fn for_size(size: Bytes) -> Shape {
        Shape::with_shards(size, shards(size))
    }

    fn with_shards(size: Bytes, shards: u32) -> Shape {
        let size = Bytes(size.0 / u64::from(shards)).max(LEAST);
        let (songs, fingerprint_bits) = dimensions(size);
        let recorded = (RECORDED / shards).clamp(1, songs / 8);
        let others = songs - recorded;

        let fingerprints = 1u64 << fingerprint_bits;
        let classes = LENGTHS.min(fingerprints);
        let lists_per_class = fingerprints / classes;
        let total = size.0 as f64 / 4.0 * f64::from(others) / f64::from(songs);
        let lengths = list_lengths(classes as usize, total / lists_per_class as f64);
        let mut starts = Vec::with_capacity(lengths.len());
        let mut postings = 0;
        for &length in &lengths {
            starts.push(postings);
            postings += u64::from(length) * lists_per_class;
        }
        let song_fingerprints = (postings / u64::from(others)) as u32;
        Shape {
            shards,
            songs,
            recorded,
            fingerprint_bits,
            lengths,
            starts,
            postings,
            row: Permutation::new(postings),
            ranks: Permutation::new(fingerprints),
            song_fingerprints,
            time_step: (u64::from(OFFSETS) << 32) / (u64::from(song_fingerprints) + 1),
        }
    }

    /// Returns the number of shards, which are searched one after the other.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Returns the number of songs in a shard.
    pub fn songs(&self) -> u32 {
        self.songs
    }

    /// Returns the number of songs in the index.
    pub fn all_songs(&self) -> u64 {
        u64::from(self.songs) * u64::from(self.shards)
    }

    /// Returns the number of recorded songs in the index: queries ask for these.
    pub fn recorded(&self) -> u32 {
        self.recorded * self.shards
    }

    /// Returns the shard of recorded song `number`, below [`Shape::recorded`], and its number
    /// there.
    pub fn place_of(&self, number: u32) -> (u32, u32) {
        (number % self.shards, self.songs - self.recorded + number / self.shards)
    }

    /// Returns the samples of a recorded song: its length is in proportion to its share of the
    /// index.
    pub fn song_samples(&self) -> usize {
        let rate = u64::from(SAMPLE_RATE) / FINGERPRINTS_PER_SECOND;
        (u64::from(self.song_fingerprints) * rate).clamp(SHORTEST_SONG, LONGEST_SONG) as usize
    }

    /// Returns the number of posting lists in a shard: distinct fingerprints.
    pub fn fingerprints(&self) -> u64 {
        1 << self.fingerprint_bits
    }

    /// Returns the number of posting lists in the index.
    pub fn lists(&self) -> u64 {
        self.fingerprints() * u64::from(self.shards)
    }

    /// Returns the list of `fingerprint` in `shard`.
    pub fn list(&self, shard: u32, fingerprint: u32) -> usize {
        ((u64::from(shard) << self.fingerprint_bits) | u64::from(fingerprint)) as usize
    }

    /// Folds the bits of a fingerprint that a small index does not have into the others.
    pub(super) fn fold(&self, fingerprint: u32) -> u32 {
        (fingerprint ^ fingerprint >> self.fingerprint_bits) & ((1 << self.fingerprint_bits) - 1)
    }

    /// Returns the postings of songs that are not recorded, in a shard. With the other counts, it
    /// distinguishes one shape from another.
    pub fn filling(&self) -> u64 {
        self.postings
    }

    /// Returns an upper limit for the number of the index's postings.
    pub fn most_postings(&self) -> u64 {
        let recorded = u64::from(self.recorded()) * most_landmarks(self.song_samples()) as u64;
        self.postings * u64::from(self.shards) + recorded
    }

    /// Returns the time, below [`OFFSETS`], of fingerprint `number` of a song.
    fn time(&self, number: u32) -> u32 {
        ((u64::from(number) * self.time_step) >> 32) as u32
    }

    /// Returns the place of the list of `fingerprint` in the row.
    fn slots(&self, fingerprint: u64) -> Range<u64> {
        let rank = self.ranks.forward(fingerprint);
        let lists_per_class = self.fingerprints() / self.lengths.len() as u64;
        let class = (rank / lists_per_class) as usize;
        let length = u64::from(self.lengths[class]);
        let first = self.starts[class] + rank % lists_per_class * length;
        first..first + length
    }

    /// Returns the posting at `slot` of the row.
    fn posting(&self, slot: u64) -> u32 {
        let place = self.row.backward(slot);
        let regular = self.song_fingerprints;
        let (song, number) = match u32::try_from(place) {
            // The division of 32 bits is the faster one.
            Ok(place) => (place / regular, place % regular),
            Err(_) => ((place / u64::from(regular)) as u32, (place % u64::from(regular)) as u32),
        };
        let others = self.songs - self.recorded;
        // The additional fingerprints of the longer songs stand behind all regular ones.
        let (song, number) = if song < others {
            (song, number)
        } else {
            ((place - u64::from(others) * u64::from(regular)) as u32, regular)
        };
        song << OFFSET_BITS | self.time(number)
    }
}

/// Returns the lengths of `classes` equally frequent lists that sum to about `total`, from 1 to
/// [`LONGEST_LIST`]. They are the quantiles of a log-logistic distribution, as skewed as those of
/// spectral fingerprints are.
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

/// Postings of each list, from which an index is built.
#[derive(Debug)]
pub struct Contents {
    shape: Shape,
    recorded: Recorded,
}

impl Contents {
    /// Records songs with `threads` threads.
    pub fn prepare(shape: Shape, threads: NonZeroUsize) -> Contents {
        let recorded = Recorded::of(&shape, threads);
        Contents { shape, recorded }
    }

    /// Returns its shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the postings of recorded songs in `list`, and the places of those of others.
    /// Together they are at most [`LONGEST_LIST`].
    fn parts(&self, list: usize) -> (&[u32], Range<u64>) {
        let recorded = self.recorded.postings(list);
        let recorded = &recorded[..recorded.len().min(LONGEST_LIST as usize)];
        let slots = self.shape.slots(list as u64 & (self.shape.fingerprints() - 1));
        let room = u64::from(LONGEST_LIST) - recorded.len() as u64;
        (recorded, slots.start..slots.end.min(slots.start + room))
    }

    /// Returns the length of `list`.
    pub fn length(&self, list: usize) -> usize {
        let (recorded, slots) = self.parts(list);
        recorded.len() + (slots.end - slots.start) as usize
    }

    /// Returns the postings in `list`.
    pub fn postings(&self, list: usize) -> impl Iterator<Item = u32> {
        let (recorded, slots) = self.parts(list);
        recorded.iter().copied().chain(slots.map(|slot| self.shape.posting(slot)))
    }
}

/// Posting lists, in any kind of memory.
pub trait Lists: Sync {
    /// Returns the shape that they were built to.
    fn shape(&self) -> &Shape;

    /// Returns the postings of `fingerprint` in `shard`.
    fn postings(&self, shard: u32, fingerprint: u32) -> impl Iterator<Item = u32>;
}

/// Posting lists, each in a separate allocation.
#[derive(Debug)]
pub struct Index {
    shape: Shape,
    lists: Vec<Vec<u32>>,
}

/// Lists that a thread builds at a time.
const CHUNK: usize = 1 << 12;

impl Index {
    /// Builds the index with `threads` threads.
    pub fn build(contents: &Contents, threads: NonZeroUsize) -> Index {
        let shape = contents.shape().clone();
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); shape.lists() as usize];
        let chunks = Mutex::new(lists.chunks_mut(CHUNK).enumerate());
        let next = || chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        std::thread::scope(|scope| {
            for _ in 0..threads.get() {
                scope.spawn(|| {
                    while let Some((chunk, lists)) = next() {
                        for (number, list) in (CHUNK * chunk..).zip(lists) {
                            // An allocation of exactly its size.
                            list.reserve_exact(contents.length(number));
                            list.extend(contents.postings(number));
                        }
                    }
                });
            }
        });
        Index { shape, lists }
    }

    /// Returns the shape that it was built to.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of postings in the index.
    pub fn postings(&self) -> u64 {
        self.lists.iter().map(|list| list.len() as u64).sum()
    }

    /// Returns the length of the longest list.
    pub fn longest_list(&self) -> usize {
        self.lists.iter().map(Vec::len).max().unwrap_or(0)
    }
}

impl Lists for Index {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn postings(&self, shard: u32, fingerprint: u32) -> impl Iterator<Item = u32> {
        self.lists[self.shape.list(shard, fingerprint)].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_index_is_as_the_workload_states() {
        for gib in [1, 8, 60, 64] {
            let shape = Shape::for_size(Bytes::gib(gib));
            assert_eq!((shape.shards(), shape.songs(), shape.fingerprints()), (1, 250_000, 1 << 24));
            let all = 4.0 * shape.filling() as f64 * 250_000.0 / f64::from(250_000 - RECORDED);
            assert!((0.99..1.0001).contains(&(all / (gib << 30) as f64)), "{gib}: {all}");
            assert!(shape.lengths.iter().all(|&length| length <= LONGEST_LIST));
            assert!(shape.song_fingerprints >= 1000, "{gib}: {}", shape.song_fingerprints);
        }
        let seed = Shape::for_size(Bytes::gib(60));
        assert_eq!(seed.lengths.last(), Some(&LONGEST_LIST));
        // A minute of each song.
        assert!((60.0..66.0).contains(&(seed.song_samples() as f64 / f64::from(SAMPLE_RATE))));
    }

    #[test]
    fn an_index_of_terabytes_has_shards() {
        for (size, shards) in [(Bytes::gib(65), 2), (Bytes::gib(1024), 16), (Bytes::gib(65536), 1024)] {
            let shape = Shape::for_size(size);
            assert_eq!((shape.shards(), shape.all_songs()), (shards, u64::from(shards) * 250_000));
            let bytes = 4.0 * shape.filling() as f64 * f64::from(shards);
            assert!((0.98..1.0).contains(&(bytes / size.0 as f64)), "{size}: {bytes}");
            assert!(shape.recorded() >= shards && shape.recorded() <= RECORDED.max(shards));
            // The last posting of a row fits its word.
            let last = shape.posting(shape.filling() - 1);
            assert!(last >> OFFSET_BITS < shape.songs() - shape.recorded);
        }
    }

    #[test]
    fn every_posting_stands_in_one_list() {
        for shards in [1, 3] {
            let shape = Shape::with_shards(Bytes::mib(u64::from(shards)), shards);
            let contents = Contents::prepare(shape.clone(), NonZeroUsize::MIN);
            let index = Index::build(&contents, NonZeroUsize::new(2).unwrap());
            assert!(index.postings() <= shape.most_postings());
            let mut of_songs = vec![0u64; shape.all_songs() as usize];
            for (number, list) in index.lists.iter().enumerate() {
                assert_eq!(list.len(), contents.length(number));
                let shard = number / shape.fingerprints() as usize;
                for posting in list {
                    of_songs[shard * shape.songs() as usize + (posting >> OFFSET_BITS) as usize] += 1;
                }
            }
            let (recorded, others): (Vec<_>, Vec<_>) = (0..of_songs.len()).partition(|song| {
                (0..shape.recorded()).any(|number| {
                    let (shard, own) = shape.place_of(number);
                    *song == (shard * shape.songs() + own) as usize
                })
            });
            assert_eq!(recorded.len(), shape.recorded() as usize);
            let regular = u64::from(shape.song_fingerprints);
            // In a full list, postings of songs that are not recorded are skipped.
            let cut =
                others.iter().filter(|&&song| !(regular..=regular + 1).contains(&of_songs[song])).count();
            assert!(
                cut * 10 < others.len() && others.iter().all(|&song| of_songs[song] <= regular + 1),
                "{cut}"
            );
            assert!(recorded.iter().all(|&song| of_songs[song] > 500));
        }
    }

    #[test]
    fn times_ascend_within_a_song() {
        let shape = Shape::for_size(Bytes::mib(1));
        let last = shape.song_fingerprints;
        assert_eq!(shape.time(0), 0);
        assert!((1..=last).all(|number| shape.time(number - 1) <= shape.time(number)));
        assert!(shape.time(last) < OFFSETS);
    }
}
