//! The index in a segment: built once, and found again by the next start.
//!
//! All postings stand in one block of the heap, two in each word, in the order of the index's row; the shape says where
//! a list begins. The root leads to a description, which is stored last: an index that was not finished has none.

use super::keep;
use anyhow::{Context, Result, ensure};
use megapage_bench::workload::retrieval::{
    Lists, Options, Query, Searcher, Shape, Tally, excerpt_seed, search_all,
};
use megapage_bench::workload::{HeapBacking, Measurement, Phases};
use megapage_segment::heap::{Handle, Request, Tag};
use megapage_segment::{Heap, Layout, Unlink};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROW: Tag = Tag::named("retrieval/row/1");
const ABOUT: Tag = Tag::named("retrieval/about/1");
/// Words of the description: postings, fingerprints, songs, then the handle of the row.
const ABOUT_WORDS: usize = 5;
/// Words that a thread builds at a time.
const CHUNK: usize = 1 << 16;
/// What the heap keeps for itself, and more.
const OVERHEAD: Bytes = Bytes::mib(4);

/// The postings, in memory that outlives the program.
#[derive(Debug)]
pub struct PersistentIndex<'heap> {
    shape: Shape,
    row: &'heap [AtomicU64],
}

impl PersistentIndex<'_> {
    /// The index that an earlier start has left, if it is of this shape; `None` where there is none.
    pub fn find(heap: &Heap, shape: Shape) -> Result<Option<PersistentIndex<'_>>> {
        let Some(root) = heap.root()? else { return Ok(None) };
        let about: Vec<u64> =
            heap.block(root, ABOUT)?.words().iter().map(|word| word.load(Ordering::Acquire)).collect();
        let [postings, fingerprints, songs, offset, serial] = about[..] else {
            anyhow::bail!("the index that is there is described by {} words", about.len());
        };
        let is_ours = (postings, fingerprints, songs)
            == (shape.postings(), shape.fingerprints(), u64::from(shape.songs()));
        ensure!(
            is_ours,
            "the index that is there has {postings} postings; ask for the same size, or rebuild it"
        );
        let row = heap.block(Handle { offset, serial }, ROW)?.words();
        ensure!(row.len() as u64 == shape.postings().div_ceil(2), "the index that is there is not whole");
        Ok(Some(PersistentIndex { shape, row }))
    }

    /// Builds the index with `threads` threads and makes it the root.
    pub fn build(heap: &Heap, shape: Shape, threads: NonZeroUsize) -> Result<PersistentIndex<'_>> {
        let handle = heap.allocate(Request::new(shape.postings().div_ceil(2) * 8, ROW))?;
        let row = heap.block(handle, ROW)?.words();
        let chunks = Mutex::new(row.chunks(CHUNK).enumerate());
        let next = || chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        std::thread::scope(|scope| {
            for _ in 0..threads.get() {
                scope.spawn(|| {
                    while let Some((chunk, words)) = next() {
                        for (number, word) in (CHUNK * chunk..).zip(words) {
                            let slot = 2 * number as u64;
                            let second =
                                if slot + 1 < shape.postings() { shape.posting(slot + 1) } else { 0 };
                            let both = u64::from(shape.posting(slot)) | u64::from(second) << 32;
                            word.store(both, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let about = heap.allocate(Request::new(ABOUT_WORDS as u64 * 8, ABOUT).zeroed())?;
        let what =
            [shape.postings(), shape.fingerprints(), u64::from(shape.songs()), handle.offset, handle.serial];
        for (word, value) in heap.block(about, ABOUT)?.words().iter().zip(what) {
            word.store(value, Ordering::Release);
        }
        heap.set_root(Some(about))?;
        Ok(PersistentIndex { shape, row })
    }
}

impl Lists for PersistentIndex<'_> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn postings(&self, fingerprint: u32) -> impl Iterator<Item = u32> {
        self.shape.list(fingerprint).map(|slot| {
            let word = self.row[(slot / 2) as usize].load(Ordering::Relaxed);
            (word >> (slot % 2 * 32)) as u32
        })
    }
}

/// What to run: an index in the directory of a pool.
#[derive(Clone, Debug)]
pub struct PersistentOptions {
    /// The index and its queries.
    pub search: Options,
    /// The directory in which the pool is.
    pub directory: PathBuf,
    /// Whether what is there is removed first.
    pub rebuild: bool,
}

/// Finds the index of an earlier start, or builds it, and answers the queries of [`megapage_bench::workload::retrieval::run`], with the same checksum.
///
/// Phases: `open` (the segment and its heap), `build` (where it was not found), `access` (all queries). Values:
/// `first_answer_ms`, from the start of the workload to the first answer; `found`, 1 where the index was there.
pub fn run(options: &PersistentOptions) -> Result<Measurement> {
    let start = Instant::now();
    let search = options.search;
    let shape = Shape::for_size(search.size);
    let mut phases = Phases::default();
    let segment = keep::Options {
        directory: options.directory.clone(),
        size: Bytes(shape.postings() * 4) + OVERHEAD,
        unlink: if options.rebuild { Unlink::Existing } else { Unlink::Never },
        layout: Layout::SingleFile,
    };
    let (heap, _) = phases.time("open", || -> Result<_> { Ok(Heap::open_or_format(segment.open()?)?) })?;
    let (index, found) = match PersistentIndex::find(&heap, shape.clone())? {
        Some(index) => (index, true),
        None => (phases.time("build", || PersistentIndex::build(&heap, shape, search.threads))?, false),
    };
    // Counts are touched as they are needed: a second thread's, and most of the first's, never before an answer.
    let mut searchers: Vec<Searcher> =
        (0..search.threads.get()).map(|_| Searcher::untouched(index.shape())).collect();
    let query = Query::excerpt(index.shape(), excerpt_seed(search.seed, 0), search.noise);
    searchers[0].count_hits(&index, &query);
    searchers[0].best_song().context("the first query hit nothing")?;
    let first_answer_ms = start.elapsed().as_secs_f64() * 1e3;
    let total: Tally = phases.time("access", || search_all(&index, &mut searchers, search));
    let values = BTreeMap::from([
        ("first_answer_ms".into(), first_answer_ms),
        ("found".into(), f64::from(u8::from(found))),
        ("recall".into(), total.found as f64 / f64::from(search.queries)),
        ("postings".into(), index.shape().postings() as f64),
        ("hugetlb".into(), f64::from(u8::from(heap.segment().is_on_hugetlb()))),
    ]);
    let backing = HeapBacking::default();
    Ok(Measurement { workload: "keep index".into(), phases, values, checksum: total.digest, backing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_answers_again_as_before() {
        let tree = tempfile::tempdir().unwrap();
        let directory = std::fs::canonicalize(tree.path()).unwrap();
        let search = Options {
            size: Bytes::mib(4),
            threads: NonZeroUsize::new(2).unwrap(),
            queries: 40,
            seed: 3,
            noise: 0.75,
        };
        let options = PersistentOptions { search, directory, rebuild: false };
        let on_heap = megapage_bench::workload::retrieval::run(search).unwrap();
        let first = run(&options).unwrap();
        assert_eq!((first.values["found"], first.checksum), (0.0, on_heap.checksum));
        assert!(first.phases.0.contains_key("build"));
        for _ in 0..2 {
            let again = run(&options).unwrap();
            assert_eq!((again.values["found"], again.checksum), (1.0, on_heap.checksum));
            assert!(!again.phases.0.contains_key("build"));
        }
        let other =
            PersistentOptions { search: Options { size: Bytes::mib(2), ..search }, ..options.clone() };
        let error = run(&other).unwrap_err().to_string();
        assert!(error.contains("ask for the same size"), "{error}");
        let rebuilt = run(&PersistentOptions { rebuild: true, ..options }).unwrap();
        assert_eq!((rebuilt.values["found"], rebuilt.checksum), (0.0, on_heap.checksum));
    }
}
