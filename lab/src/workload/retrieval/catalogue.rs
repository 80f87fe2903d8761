//! The recorded songs of an index: synthesised, and fingerprinted by the same pipeline as queries.

use super::audio::{Song, add_noise};
use super::index::{OFFSET_BITS, Shape};
use super::landmark::Fingerprinter;
use super::{AUDIO_SECONDS, SAMPLE_RATE, excerpt_seed};
use megapage_bench::random::Random;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

/// Samples of an excerpt.
const EXCERPT: usize = (AUDIO_SECONDS * SAMPLE_RATE as f64) as usize;

/// The postings of recorded songs, by list.
#[derive(Debug)]
pub struct Recorded {
    /// Start of each list, and end of the last.
    starts: Vec<u32>,
    postings: Vec<u32>,
}

impl Recorded {
    /// Synthesises and fingerprints the recorded songs of an index.
    pub fn of(shape: &Shape, threads: NonZeroUsize) -> Recorded {
        let next = AtomicU32::new(0);
        let record = || {
            let mut fingerprinter = Fingerprinter::default();
            let mut found = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= shape.recorded() {
                    return found;
                }
                let samples = Song::new(u64::from(number)).samples(0, shape.song_samples());
                let (shard, song) = shape.place_of(number);
                found.extend(fingerprinter.landmarks(&samples).into_iter().map(|landmark| {
                    let list = shape.list(shard, shape.fold(landmark.fingerprint)) as u64;
                    (list, song << OFFSET_BITS | landmark.time)
                }));
            }
        };
        let mut all: Vec<(u64, u32)> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.get()).map(|_| scope.spawn(record)).collect();
            handles.into_iter().flat_map(super::join).collect()
        });
        // Sorted, so that the order does not depend on the threads.
        all.sort_unstable();
        let mut starts = Vec::with_capacity(shape.lists() as usize + 1);
        let mut at = 0;
        for list in 0..=shape.lists() {
            while all.get(at).is_some_and(|&(of, _)| of < list) {
                at += 1;
            }
            starts.push(at as u32);
        }
        Recorded { starts, postings: all.into_iter().map(|(_, posting)| posting).collect() }
    }

    /// Returns the postings in `list`.
    pub fn postings(&self, list: usize) -> &[u32] {
        &self.postings[self.starts[list] as usize..self.starts[list + 1] as usize]
    }
}

/// A second of a recorded song, with noise: the subject of a query.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// The shard that has the song.
    pub shard: u32,
    /// The song's number there.
    pub song: u32,
    /// The sample of the song with which it begins.
    pub first: usize,
    /// [`AUDIO_SECONDS`] of audio.
    pub samples: Vec<f32>,
}

impl Excerpt {
    /// Returns excerpt `number` of those that `seed` selects; `noise`, from 0 to 1, is the noise's
    /// share of its power.
    pub fn of(shape: &Shape, seed: u64, number: u32, noise: f64) -> Excerpt {
        let mut random = Random::new(excerpt_seed(seed, number));
        let recorded = random.below(shape.recorded() as usize) as u32;
        let (shard, song) = shape.place_of(recorded);
        let first = random.below(shape.song_samples() - EXCERPT + 1);
        let mut samples = Song::new(u64::from(recorded)).samples(first, EXCERPT);
        add_noise(&mut samples, noise, &mut random);
        Excerpt { shard, song, first, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Bytes;

    #[test]
    fn recording_is_the_same_whatever_the_threads() {
        let shape = Shape::for_size(Bytes::mib(1));
        let [one, two] = [1, 2].map(|threads| Recorded::of(&shape, NonZeroUsize::new(threads).unwrap()));
        assert_eq!((one.starts, one.postings), (two.starts, two.postings));
    }

    #[test]
    fn an_excerpt_is_the_same_for_the_same_seed() {
        let shape = Shape::for_size(Bytes::mib(4));
        let (one, same) = (Excerpt::of(&shape, 7, 3, 0.5), Excerpt::of(&shape, 7, 3, 0.5));
        assert_eq!((one.song, one.first, &one.samples), (same.song, same.first, &same.samples));
        assert_eq!(one.samples.len(), 8000);
        assert_ne!(one.samples, Excerpt::of(&shape, 8, 3, 0.5).samples);
        assert_ne!(one.samples, Excerpt::of(&shape, 7, 4, 0.5).samples);
        // Other noise, the same place.
        let clean = Excerpt::of(&shape, 7, 3, 0.0);
        assert_eq!((clean.song, clean.first), (one.song, one.first));
    }
}
