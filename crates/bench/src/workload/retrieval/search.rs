//! A query, and how its song is found.

use super::index::{Lists, OFFSET_BITS, OFFSETS, Shape};
use crate::workload::Random;

/// Fingerprints of a query; fewer only where the songs of a small index have fewer.
pub const QUERY_FINGERPRINTS: u32 = 1000;

/// A noisy excerpt of one song.
#[derive(Clone, Debug)]
pub struct Query {
    song: u32,
    /// Each fingerprint with its time from the start of the excerpt.
    fingerprints: Vec<(u32, u32)>,
}

impl Query {
    /// The excerpt that `seed` selects, with each fingerprint replaced by a random one with probability `noise`.
    pub fn excerpt(shape: &Shape, seed: u64, noise: f64) -> Query {
        let mut random = Random::new(seed);
        let song = random.below(shape.songs() as usize) as u32;
        let length = QUERY_FINGERPRINTS.min(shape.fingerprints_of(song));
        let first = random.below((shape.fingerprints_of(song) - length + 1) as usize) as u32;
        let fingerprints = (first..first + length).map(|number| {
            let fingerprint = if random.chance(noise) {
                random.below(shape.fingerprints() as usize) as u32
            } else {
                shape.fingerprint(song, number)
            };
            (fingerprint, shape.time(number) - shape.time(first))
        });
        Query { song, fingerprints: fingerprints.collect() }
    }

    /// The song that it was taken from.
    pub fn song(&self) -> u32 {
        self.song
    }
}

/// The song that fits a query best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its number.
    pub song: u32,
    /// The time in the song at which the query begins.
    pub offset: u32,
    /// Fingerprints that agree at that offset; counted up to 255.
    pub hits: u8,
}

/// One thread's counts of hits.
#[derive(Debug)]
pub struct Searcher {
    /// One count for each song and offset; all zero between queries.
    counts: Vec<u8>,
    /// The place in `counts` of each hit of the query, in the order found.
    hits: Vec<u32>,
}

impl Searcher {
    /// Counts for all songs of `index`, their memory touched.
    pub fn new(index: &impl Lists) -> Searcher {
        let mut searcher = Searcher::untouched(index.shape());
        for page in searcher.counts.chunks_mut(4096) {
            // Fresh memory is touched when written, and the compiler must not know that nothing changes.
            page[0] = std::hint::black_box(0);
        }
        searcher
    }

    /// Counts whose memory is touched when it is needed.
    pub fn untouched(shape: &Shape) -> Searcher {
        Searcher { counts: vec![0u8; shape.songs() as usize * OFFSETS as usize], hits: Vec::new() }
    }

    /// Counts every posting of every fingerprint of `query` for its song and offset; how many there were.
    pub fn count_hits(&mut self, index: &impl Lists, query: &Query) -> u64 {
        self.hits.clear();
        for &(fingerprint, query_time) in &query.fingerprints {
            let first = self.hits.len();
            self.hits.extend(index.postings(fingerprint).map(|posting| {
                // A song that begins after the query does has its offset modulo the number of offsets.
                let offset = posting.wrapping_sub(query_time) % OFFSETS;
                posting >> OFFSET_BITS << OFFSET_BITS | offset
            }));
            for &place in &self.hits[first..] {
                let count = &mut self.counts[place as usize];
                *count = count.saturating_add(1);
            }
        }
        self.hits.len() as u64
    }

    /// The best aligned song, of equals the one with the lowest number; none where nothing was hit.
    /// Clears the counts for the next query.
    pub fn best_song(&mut self) -> Option<Match> {
        // The best of a place is taken when it is met first; its count is zero from then on.
        let mut best: Option<(u8, u32)> = None;
        for &place in &self.hits {
            let count = std::mem::take(&mut self.counts[place as usize]);
            if best.is_none_or(|(hits, other)| count > hits || (count == hits && place < other)) {
                best = Some((count, place));
            }
        }
        best.map(|(hits, place)| Match { song: place >> OFFSET_BITS, offset: place % OFFSETS, hits })
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::Index;
    use super::*;
    use megapage_units::Bytes;
    use std::num::NonZeroUsize;

    #[test]
    fn an_excerpt_without_noise_is_found_at_its_place() {
        let shape = Shape::for_size(Bytes::mib(4));
        let index = Index::build(shape.clone(), NonZeroUsize::MIN);
        let mut searcher = Searcher::new(&index);
        for seed in 0..20 {
            let query = Query::excerpt(&shape, seed, 0.0);
            assert!(searcher.count_hits(&index, &query) >= u64::from(QUERY_FINGERPRINTS));
            let best = searcher.best_song().unwrap();
            assert_eq!((best.song, best.hits), (query.song(), u8::MAX));
            assert!(searcher.counts.iter().all(|&count| count == 0), "counts are left over");
        }
    }

    #[test]
    fn a_query_is_the_same_for_the_same_seed() {
        let shape = Shape::for_size(Bytes::mib(4));
        let (one, same) = (Query::excerpt(&shape, 7, 0.5), Query::excerpt(&shape, 7, 0.5));
        assert_eq!((one.song, &one.fingerprints), (same.song, &same.fingerprints));
        assert_ne!(one.fingerprints, Query::excerpt(&shape, 8, 0.5).fingerprints);
        let clean = Query::excerpt(&shape, 7, 0.0);
        let kept = one.fingerprints.iter().zip(&clean.fingerprints).filter(|(a, b)| a == b).count();
        // With the same seed the excerpt is the same and half of it is replaced.
        assert!((400..600).contains(&kept), "{kept}");
    }
}
