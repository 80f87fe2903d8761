//! Music retrieval over an inverted index: it finds the song from which a second of noisy audio was
//! taken.
//!
//! It works like the audio retrieval service for which huge pages were found to bring 50 %. (1) A
//! second of audio is turned into about 1,000 fingerprints, pairs of peaks of its spectrum. (2) The
//! index maps each, a 24-bit word, to its posting list, up to 7,500 long, of (song, time). Each
//! posting is counted in a table of songs x 8,192 offsets, at which query and song would be
//! aligned. (3) The offsets are compared, and the song with the most hits at one of them wins.
//! There the phases took 1, 80 and 19 % of the time. Each list, and each hit in the table, which
//! every thread has for itself, is a memory access with no locality at all.

mod audio;
mod catalogue;
mod index;
mod landmark;
mod permutation;
mod search;
mod size;

use crate::arguments::{index_size, share};
use crate::workload::measurement::{HeapBacking, Measurement, Phases};
use anyhow::{Result, ensure};
use megapage_bench::random::mix;
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

pub use audio::SAMPLE_RATE;
pub use catalogue::Excerpt;
pub use index::{Contents, Index, LONGEST_LIST, Lists, OFFSETS, Shape};
pub use search::{Match, Searcher};
pub use size::{largest, memory};

/// Find songs by noisy excerpts in an inverted index
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Options {
    /// Bytes of postings, 4 for each, from 1m on; 8,192 x 250,000 counts for each thread come on
    /// top
    // Below 1 GiB there are fewer songs and fingerprints in proportion, above 64 GiB more songs.
    #[arg(long, default_value = "8g", value_parser = index_size)]
    pub size: Bytes,
    /// Threads that build and search
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
    /// Queries in each run
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub queries: u32,
    /// Selects excerpts and noise
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The noise's share of the power of each excerpt
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    pub noise: f64,
}

/// Share of queries that must find their song.
pub const RECALL_FLOOR: f64 = 0.99;

/// Seconds of audio of one query.
pub const AUDIO_SECONDS: f64 = 1.0;

/// Builds the index, runs the queries and checks the answers.
///
/// Phases: `record` (songs and excerpts synthesised), `allocate` (index built, counts touched),
/// `access` (all queries, by the clock on the wall).
pub fn run(options: Options) -> Result<Measurement> {
    ensure!((0.0..=1.0).contains(&options.noise), "noise is a share of 0 to 1, not {}", options.noise);
    let mut phases = Phases::default();
    let (contents, excerpts) = phases.time("record", || {
        let contents = Contents::prepare(Shape::for_size(options.size), options.threads);
        let excerpts = excerpts(contents.shape(), options);
        (contents, excerpts)
    });
    let (index, mut searchers) = phases.time("allocate", || {
        let index = Index::build(&contents, options.threads);
        drop(contents);
        let searchers = std::thread::scope(|scope| {
            // Each thread allocates and first touches its own counts, as a server would have it.
            let handles: Vec<_> =
                (0..options.threads.get()).map(|_| scope.spawn(|| Searcher::new(&index))).collect();
            handles.into_iter().map(join).collect::<Vec<_>>()
        });
        (index, searchers)
    });
    let backing = HeapBacking::of_this_process()?;

    let total = phases.time("access", || search_all(&index, &mut searchers, &excerpts));
    let wall = phases.0["access"].wall_ns as f64 / 1e9;
    let queries = f64::from(options.queries);
    let working = (total.fingerprint + total.lookup + total.sort).as_secs_f64().max(f64::MIN_POSITIVE);
    let values = BTreeMap::from([
        ("queries_per_second".into(), queries / wall),
        // For all threads together.
        ("audio_seconds_per_second".into(), queries * AUDIO_SECONDS / wall),
        // For one thread: the time that it works for one second of audio.
        ("real_time_rate".into(), working / (queries * AUDIO_SECONDS)),
        ("fingerprint_share".into(), total.fingerprint.as_secs_f64() / working),
        ("lookup_share".into(), total.lookup.as_secs_f64() / working),
        ("sort_share".into(), total.sort.as_secs_f64() / working),
        ("recall".into(), total.found as f64 / queries),
        ("noise".into(), options.noise),
        ("fingerprints_per_query".into(), total.fingerprints as f64 / queries),
        ("hits_per_query".into(), total.hits as f64 / queries),
        ("songs".into(), index.shape().all_songs() as f64),
        ("postings".into(), index.postings() as f64),
        ("longest_list".into(), index.longest_list() as f64),
    ]);
    std::mem::forget((index, searchers));
    Ok(Measurement { workload: "retrieval".into(), phases, values, checksum: total.digest, backing })
}

/// Returns the excerpts of the queries.
pub fn excerpts(shape: &Shape, options: Options) -> Vec<Excerpt> {
    (0..options.queries).map(|number| Excerpt::of(shape, options.seed, number, options.noise)).collect()
}

/// Returns the time on the wall that `work` takes, and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Returns the result of a thread, or resumes its panic.
fn join<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Findings of one thread, and the times of the phases of its queries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The time to make the queries' fingerprints.
    pub fingerprint: Duration,
    /// The time to empty the table, read postings and count hits.
    pub lookup: Duration,
    /// The time to find the highest count.
    pub sort: Duration,
    /// Fingerprints of all queries.
    pub fingerprints: u64,
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
            fingerprints: self.fingerprints + other.fingerprints,
            found: self.found + other.found,
            hits: self.hits + other.hits,
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

/// Runs every query, shared among a thread for each searcher.
pub fn search_all(index: &impl Lists, searchers: &mut [Searcher], excerpts: &[Excerpt]) -> Tally {
    let threads = searchers.len();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (searchers.iter_mut().enumerate())
            .map(|(thread, searcher)| {
                let share = excerpts.iter().skip(thread).step_by(threads);
                scope.spawn(move || {
                    share.map(|excerpt| search(index, searcher, excerpt)).fold(Tally::default(), Tally::plus)
                })
            })
            .collect();
        handles.into_iter().map(join).fold(Tally::default(), Tally::plus)
    })
}

/// Returns the seed that selects excerpt `number`.
fn excerpt_seed(seed: u64, number: u32) -> u64 {
    mix(seed ^ mix(u64::from(number)))
}

/// Runs one query.
fn search(index: &impl Lists, searcher: &mut Searcher, excerpt: &Excerpt) -> Tally {
    let shape = index.shape();
    let (fingerprint, query) = timed(|| searcher.fingerprint(shape, &excerpt.samples));
    let mut tally = Tally { fingerprint, fingerprints: query.len() as u64, ..Tally::default() };
    let mut best = None;
    for shard in 0..shape.shards() {
        let (lookup, hits) = timed(|| searcher.count_hits(index, shard, &query));
        let (sort, found) = timed(|| searcher.best_song(shard));
        best = Searcher::better(best, found);
        tally = tally.plus(Tally { lookup, sort, hits, ..Tally::default() });
    }
    let answer = best.map_or(0, |best| {
        mix(u64::from(best.shard) << 32 | u64::from(best.song))
            ^ u64::from(best.offset) << 16
            ^ u64::from(best.hits)
    });
    Tally { found: usize::from(best.is_some_and(|best| best.is(excerpt))), digest: mix(answer), ..tally }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(threads: usize) -> Options {
        Options {
            size: Bytes::mib(8),
            threads: NonZeroUsize::new(threads).unwrap(),
            queries: 30,
            seed: 1,
            noise: 0.5,
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
