//! A query, and the search for its song.

use super::catalogue::Excerpt;
use super::index::{Lists, OFFSET_BITS, OFFSETS, Shape};
use super::landmark::{Fingerprinter, Landmark};

/// The song that fits a query best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The shard that has it.
    pub shard: u32,
    /// Its number there.
    pub song: u32,
    /// The time step of the song at which the query begins.
    pub offset: u32,
    /// Fingerprints that agree at that offset or the next one.
    pub hits: u16,
}

impl Match {
    /// Returns true if it is the song of `excerpt`.
    pub fn is(&self, excerpt: &Excerpt) -> bool {
        (self.shard, self.song) == (excerpt.shard, excerpt.song)
    }

    /// Returns true if it fits better than `other`; of equals the one with the lowest numbers does.
    fn is_better(&self, other: &Match) -> bool {
        let place = |it: &Match| (it.shard, it.song, it.offset);
        self.hits > other.hits || (self.hits == other.hits && place(self) < place(other))
    }
}

/// One thread's transform, and its counts of hits: the forward table of songs and offsets.
#[derive(Debug)]
pub struct Searcher {
    fingerprinter: Fingerprinter,
    /// One count for each song and offset.
    counts: Vec<u8>,
    /// The place in `counts` of each hit of the latest query, in the order found: these are not
    /// zero.
    hits: Vec<u32>,
}

impl Searcher {
    /// Makes counts for all songs of a shard of `index`, their memory touched.
    pub fn new(index: &impl Lists) -> Searcher {
        let mut searcher = Searcher::untouched(index.shape());
        for page in searcher.counts.chunks_mut(4096) {
            // Fresh memory is touched when it is written; `black_box` keeps the compiler from
            // skipping the write.
            page[0] = std::hint::black_box(0);
        }
        searcher
    }

    /// Makes counts whose memory is touched when it is needed.
    pub fn untouched(shape: &Shape) -> Searcher {
        let counts = vec![0u8; shape.songs() as usize * OFFSETS as usize];
        Searcher { fingerprinter: Fingerprinter::default(), counts, hits: Vec::new() }
    }

    /// Runs the first phase: returns the fingerprints of an excerpt.
    pub fn fingerprint(&mut self, shape: &Shape, samples: &[f32]) -> Vec<Landmark> {
        let mut landmarks = self.fingerprinter.landmarks(samples);
        landmarks.iter_mut().for_each(|landmark| landmark.fingerprint = shape.fold(landmark.fingerprint));
        landmarks
    }

    /// Runs the second phase: empties the forward table, and counts in it every posting of every
    /// fingerprint of a query, for its song and offset. Returns their number.
    pub fn count_hits(&mut self, index: &impl Lists, shard: u32, query: &[Landmark]) -> u64 {
        for &place in &self.hits {
            self.counts[place as usize] = 0;
        }
        self.hits.clear();
        for &Landmark { fingerprint, time } in query {
            let first = self.hits.len();
            self.hits.extend(index.postings(shard, fingerprint).map(|posting| {
                // A song that begins after the query does has its offset modulo the number of
                // offsets.
                let offset = posting.wrapping_sub(time) % OFFSETS;
                posting >> OFFSET_BITS << OFFSET_BITS | offset
            }));
            for &place in &self.hits[first..] {
                let count = &mut self.counts[place as usize];
                *count = count.saturating_add(1);
            }
        }
        self.hits.len() as u64
    }

    /// Runs the third phase: returns the best aligned song, of equals the one with the lowest
    /// number; none if there was no hit.
    ///
    /// A query's time steps are not those of the song: it begins somewhere within one, and its
    /// fingerprints agree at that offset or at the next. So both count.
    pub fn best_song(&self, shard: u32) -> Option<Match> {
        let mut best: Option<Match> = None;
        for &place in &self.hits {
            let (song, offset) = (place >> OFFSET_BITS, place % OFFSETS);
            let next = if offset + 1 < OFFSETS { self.counts[place as usize + 1] } else { 0 };
            let hits = u16::from(self.counts[place as usize]) + u16::from(next);
            let found = Match { shard, song, offset, hits };
            if best.is_none_or(|best| found.is_better(&best)) {
                best = Some(found);
            }
        }
        best
    }

    /// Returns the better of two matches.
    pub fn better(one: Option<Match>, other: Option<Match>) -> Option<Match> {
        match (one, other) {
            (Some(one), Some(other)) => Some(if other.is_better(&one) { other } else { one }),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{Contents, Index};
    use super::super::landmark::HOP;
    use super::*;
    use megapage_units::Bytes;
    use std::num::NonZeroUsize;

    #[test]
    fn an_excerpt_without_noise_is_found_at_its_place() {
        let shape = Shape::for_size(Bytes::mib(4));
        let index = Index::build(&Contents::prepare(shape.clone(), NonZeroUsize::MIN), NonZeroUsize::MIN);
        let mut searcher = Searcher::new(&index);
        for number in 0..20 {
            let excerpt = Excerpt::of(&shape, 1, number, 0.0);
            let query = searcher.fingerprint(&shape, &excerpt.samples);
            assert!(searcher.count_hits(&index, 0, &query) >= query.len() as u64 / 2);
            let best = searcher.best_song(0).unwrap();
            assert!(best.is(&excerpt) && best.hits > 50, "{number}: {best:?}, not {}", excerpt.song);
            assert!((best.offset as usize).abs_diff(excerpt.first / HOP) <= 1, "{best:?} {}", excerpt.first);
        }
        assert_eq!(searcher.count_hits(&index, 0, &[]), 0);
        assert!(searcher.counts.iter().all(|&count| count == 0), "the table is empty again");
        assert_eq!(searcher.best_song(0), None);
    }

    #[test]
    fn of_equals_the_lowest_number_wins() {
        let of = |shard, song, hits| Some(Match { shard, song, offset: 5, hits });
        assert_eq!(Searcher::better(of(0, 7, 3), of(1, 2, 3)), of(0, 7, 3));
        assert_eq!(Searcher::better(of(0, 7, 3), of(0, 2, 3)), of(0, 2, 3));
        assert_eq!(Searcher::better(of(0, 7, 3), of(1, 2, 4)), of(1, 2, 4));
        assert_eq!(Searcher::better(None, of(1, 2, 4)), of(1, 2, 4));
        assert_eq!(Searcher::better(None, None), None);
    }
}
