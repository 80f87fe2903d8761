//! Music retrieval over an inverted index: which song is a second of noisy audio from?
//!
//! The index maps a 24-bit audio fingerprint to its posting list, up to 7,500 long, of (song, time). A query
//! is about 1,000 fingerprints; each hit is counted for its song and for the offset at which query and song
//! would be aligned, and the song with the highest count wins. The counts are a table of songs x 8,192
//! offsets for each thread, so that every hit is a memory access with no locality at all.

mod index;
mod permutation;
mod search;

use super::random::mix;
use super::{HeapBacking, Measurement, Phases};
use crate::arguments::{index_size, share};
use anyhow::{Result, ensure};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

pub use index::{Index, LONGEST_LIST, Lists, OFFSETS, Shape};
pub use search::{QUERY_FINGERPRINTS, Query, Searcher};

/// Find songs by noisy excerpts in an inverted index
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Options {
    /// Bytes of postings, 4 for each, 1m to 16g; 8,192 x 250,000 counts for each thread come on top
    // Below 1 GiB there are fewer songs and fingerprints in proportion.
    #[arg(long, default_value = "8g", value_parser = index_size)]
    pub size: Bytes,
    /// Threads that build and search
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
    /// Queries in each run
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub queries: u32,
    /// Selects songs, excerpts and noise
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The share of each query's fingerprints that is replaced by random ones
    #[arg(long, default_value_t = 0.75, value_parser = share)]
    pub noise: f64,
}

/// The share of queries that must find their song.
pub const RECALL_FLOOR: f64 = 0.99;

/// The seconds of audio that one query stands for.
pub const AUDIO_SECONDS: f64 = 1.0;

/// Builds the index, runs the queries and checks the answers.
///
/// Phases: `allocate` (index built, counts touched), `access` (all queries, by the clock on the wall).
pub fn run(options: Options) -> Result<Measurement> {
    ensure!((0.0..=1.0).contains(&options.noise), "noise is a share of 0 to 1, not {}", options.noise);
    let shape = Shape::for_size(options.size);
    let mut phases = Phases::default();
    let (index, mut searchers) = phases.time("allocate", || {
        let index = Index::build(shape, options.threads);
        let searchers = std::thread::scope(|scope| {
            // Each thread allocates and first touches its own counts, as a server would have it.
            let handles: Vec<_> =
                (0..options.threads.get()).map(|_| scope.spawn(|| Searcher::new(&index))).collect();
            handles.into_iter().map(join).collect::<Vec<_>>()
        });
        (index, searchers)
    });
    let backing = HeapBacking::of_this_process()?;

    let total = phases.time("access", || search_all(&index, &mut searchers, options));
    let wall = phases.0["access"].wall_ns as f64 / 1e9;
    let queries = f64::from(options.queries);
    let working = (total.fingerprint + total.lookup + total.sort).as_secs_f64().max(f64::MIN_POSITIVE);
    let values = BTreeMap::from([
        ("queries_per_second".into(), queries / wall),
        // Of one thread: the time that it works for one second of audio.
        ("real_time_rate".into(), working / (queries * AUDIO_SECONDS)),
        ("fingerprint_share".into(), total.fingerprint.as_secs_f64() / working),
        ("lookup_share".into(), total.lookup.as_secs_f64() / working),
        ("sort_share".into(), total.sort.as_secs_f64() / working),
        ("recall".into(), total.found as f64 / queries),
        ("noise".into(), options.noise),
        ("hits_per_query".into(), total.hits as f64 / queries),
        ("songs".into(), f64::from(index.shape().songs())),
        ("postings".into(), index.shape().postings() as f64),
        ("longest_list".into(), f64::from(index.shape().longest_list())),
    ]);
    std::mem::forget((index, searchers));
    Ok(Measurement { workload: "retrieval".into(), phases, values, checksum: total.digest, backing })
}

/// The time on the wall that `work` takes, and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// The result of a thread, or its panic.
fn join<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What one thread found and how long each phase of its queries took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// To make the queries' fingerprints.
    pub fingerprint: Duration,
    /// To read postings and count hits.
    pub lookup: Duration,
    /// To find the highest count and clear the counts.
    pub sort: Duration,
    /// Queries that found their song.
    pub found: usize,
    /// Postings that were counted.
    pub hits: u64,
    /// A checksum of the answers.
    pub digest: u64,
}

impl Tally {
    fn plus(self, other: Tally) -> Tally {
        Tally {
            fingerprint: self.fingerprint + other.fingerprint,
            lookup: self.lookup + other.lookup,
            sort: self.sort + other.sort,
            found: self.found + other.found,
            hits: self.hits + other.hits,
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

/// Every query, shared among a thread for each searcher.
pub fn search_all(index: &impl Lists, searchers: &mut [Searcher], options: Options) -> Tally {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (searchers.iter_mut().enumerate())
            .map(|(thread, searcher)| scope.spawn(move || search_share(index, searcher, options, thread)))
            .collect();
        handles.into_iter().map(join).fold(Tally::default(), Tally::plus)
    })
}

/// What selects the excerpt of query `number`.
pub fn excerpt_seed(seed: u64, number: u32) -> u64 {
    mix(seed ^ mix(u64::from(number)))
}

/// Every query whose number is `thread` modulo the number of threads.
fn search_share(index: &impl Lists, searcher: &mut Searcher, options: Options, thread: usize) -> Tally {
    let mut tally = Tally::default();
    for number in (0..options.queries).skip(thread).step_by(options.threads.get()) {
        let seed = excerpt_seed(options.seed, number);
        let (fingerprint, query) = timed(|| Query::excerpt(index.shape(), seed, options.noise));
        let (lookup, hits) = timed(|| searcher.count_hits(index, &query));
        let (sort, best) = timed(|| searcher.best_song());
        tally = tally.plus(Tally {
            fingerprint,
            lookup,
            sort,
            found: usize::from(best.is_some_and(|best| best.song == query.song())),
            hits,
            digest: mix(best.map_or(0, |best| u64::from(best.song) << 32 | u64::from(best.hits))),
        });
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(threads: usize) -> Options {
        Options {
            size: Bytes::mib(16),
            threads: NonZeroUsize::new(threads).unwrap(),
            queries: 60,
            seed: 1,
            noise: 0.75,
        }
    }

    #[test]
    fn songs_are_found_under_noise_whatever_the_threads() {
        let (one, two) = (run(options(1)).unwrap(), run(options(2)).unwrap());
        assert!(one.values["recall"] >= RECALL_FLOOR, "{:?}", one.values);
        assert_eq!(one.checksum, two.checksum);
        let shares = ["fingerprint_share", "lookup_share", "sort_share"].map(|name| one.values[name]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn pure_noise_finds_nothing() {
        let found = run(Options { noise: 1.0, ..options(1) }).unwrap();
        assert!(found.values["recall"] < 0.2, "{:?}", found.values);
        assert!(run(Options { noise: 1.5, ..options(1) }).is_err());
    }

    #[test]
    fn the_seed_selects_the_queries() {
        let (first, other) = (run(options(1)).unwrap(), run(Options { seed: 2, ..options(1) }).unwrap());
        assert_ne!(first.checksum, other.checksum);
    }
}
