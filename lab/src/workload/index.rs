//! The index in a segment: built once, and found again by the next start.
//!
//! All postings are in one block of the heap, two in each word, list after list. Another block
//! holds the start of each list. The root leads to a description, which is stored last: an
//! unfinished index has none.

use super::keep;
use crate::workload::measurement::{HeapBacking, Measurement, Phases};
use crate::workload::retrieval::{Contents, Lists, Options, Searcher, Shape, Tally, excerpts, search_all};
use anyhow::{Result, ensure};
use megapage_segment::heap::{Handle, Request, Tag};
use megapage_segment::{Heap, Layout, Unlink};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROW: Tag = Tag::named("retrieval/row/2");
const STARTS: Tag = Tag::named("retrieval/starts/2");
const ABOUT: Tag = Tag::named("retrieval/about/2");
/// Lists that a thread builds at a time.
const CHUNK: usize = 1 << 12;
/// Room for the heap's own data, and more.
const OVERHEAD: Bytes = Bytes::mib(4);

/// The postings, in memory that outlives the program.
#[derive(Debug)]
pub struct PersistentIndex<'heap> {
    shape: Shape,
    /// Start of each list in the row, and end of the last one.
    starts: &'heap [AtomicU64],
    row: &'heap [AtomicU64],
}

/// Returns the words that distinguish one shape from another: postings that fill it up, lists,
/// songs.
fn words_of(shape: &Shape) -> [u64; 3] {
    [shape.filling(), shape.lists(), shape.all_songs()]
}

/// Stores `postings` from slot `start` of a zeroed row on. In a word that two lists share, each
/// writes its half.
fn fill(row: &[AtomicU64], start: u64, postings: impl Iterator<Item = u32>) {
    let mut lower = None;
    let mut end = start;
    for posting in postings {
        let word = &row[(end / 2) as usize];
        match lower.take() {
            Some(lower) => word.store(lower | u64::from(posting) << 32, Ordering::Relaxed),
            None if end.is_multiple_of(2) => lower = Some(u64::from(posting)),
            None => _ = word.fetch_or(u64::from(posting) << 32, Ordering::Relaxed),
        }
        end += 1;
    }
    if let Some(lower) = lower {
        row[(end / 2) as usize].fetch_or(lower, Ordering::Relaxed);
    }
}

/// Returns the memory of a segment with an index of `size`.
pub fn segment_size(size: Bytes) -> Bytes {
    let shape = Shape::for_size(size);
    Bytes(shape.most_postings() * 4 + (shape.lists() + 1) * 8) + OVERHEAD
}

impl PersistentIndex<'_> {
    /// Returns the index that an earlier start has left, if it is of this shape; `None` if there is
    /// none.
    pub fn find(heap: &Heap, shape: Shape) -> Result<Option<PersistentIndex<'_>>> {
        let Some(root) = heap.root()? else { return Ok(None) };
        let about: Vec<u64> =
            heap.block(root, ABOUT)?.words().iter().map(|word| word.load(Ordering::Acquire)).collect();
        let [filling, lists, songs, starts_offset, starts_serial, offset, serial] = about[..] else {
            anyhow::bail!("the index that is there is described by {} words", about.len());
        };
        ensure!(
            [filling, lists, songs] == words_of(&shape),
            "the index that is there is filled up with {filling} postings; ask for the same size, or rebuild it"
        );
        let starts = heap.block(Handle { offset: starts_offset, serial: starts_serial }, STARTS)?.words();
        let row = heap.block(Handle { offset, serial }, ROW)?.words();
        let postings = starts.last().map_or(0, |end| end.load(Ordering::Relaxed));
        ensure!(
            starts.len() as u64 == lists + 1 && row.len() as u64 >= postings.div_ceil(2),
            "the index that is there is not whole"
        );
        Ok(Some(PersistentIndex { shape, starts, row }))
    }

    /// Builds the index with `threads` threads and makes it the root.
    pub fn build(heap: &Heap, shape: Shape, threads: NonZeroUsize) -> Result<PersistentIndex<'_>> {
        let contents = Contents::prepare(shape.clone(), threads);
        let starts_handle = heap.allocate(Request::new((shape.lists() + 1) * 8, STARTS))?;
        let starts = heap.block(starts_handle, STARTS)?.words();
        let mut postings = 0;
        for (list, start) in starts.iter().enumerate() {
            start.store(postings, Ordering::Relaxed);
            if (list as u64) < shape.lists() {
                postings += contents.length(list) as u64;
            }
        }
        // Zeroed: two lists may share a word, and each adds its half.
        let handle = heap.allocate(Request::new(postings.div_ceil(2).max(1) * 8, ROW).zeroed())?;
        let row = heap.block(handle, ROW)?.words();
        let chunks = Mutex::new((0..shape.lists() as usize).step_by(CHUNK));
        let next = || chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        std::thread::scope(|scope| {
            for _ in 0..threads.get() {
                scope.spawn(|| {
                    while let Some(first) = next() {
                        let end = (first + CHUNK).min(shape.lists() as usize);
                        for (list, start) in (first..end).zip(&starts[first..]) {
                            let start = start.load(Ordering::Relaxed);
                            fill(row, start, contents.postings(list));
                        }
                    }
                });
            }
        });
        let handles = [starts_handle.offset, starts_handle.serial, handle.offset, handle.serial];
        let what: Vec<u64> = words_of(&shape).into_iter().chain(handles).collect();
        let about = heap.allocate(Request::new(what.len() as u64 * 8, ABOUT).zeroed())?;
        for (word, value) in heap.block(about, ABOUT)?.words().iter().zip(what) {
            word.store(value, Ordering::Release);
        }
        heap.set_root(Some(about))?;
        Ok(PersistentIndex { shape, starts, row })
    }

    /// Returns the number of postings in the index.
    pub fn postings(&self) -> u64 {
        self.starts.last().map_or(0, |end| end.load(Ordering::Relaxed))
    }
}

impl Lists for PersistentIndex<'_> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn postings(&self, shard: u32, fingerprint: u32) -> impl Iterator<Item = u32> {
        let list = self.shape.list(shard, fingerprint);
        let [start, end] = [list, list + 1].map(|at| self.starts[at].load(Ordering::Relaxed));
        (start..end).map(|slot| {
            let word = self.row[(slot / 2) as usize].load(Ordering::Relaxed);
            (word >> (slot % 2 * 32)) as u32
        })
    }
}

/// Options of a run: an index in the directory of a pool.
#[derive(Clone, Debug)]
pub struct PersistentOptions {
    /// The index and its queries.
    pub search: Options,
    /// The directory in which the pool is.
    pub directory: PathBuf,
    /// True if an existing index is removed first.
    pub rebuild: bool,
}

/// Finds the index of an earlier start, or builds it, and answers the queries of
/// [`crate::workload::retrieval::run`], with the same checksum.
///
/// Phases: `open` (the segment and its heap), `build` (if it was not found), `access` (all
/// queries). Values: `first_answer_ms`, from the start of the workload to the first answer;
/// `found`, 1 if the index was there.
pub fn run(options: &PersistentOptions) -> Result<Measurement> {
    let start = Instant::now();
    let search = options.search;
    let shape = Shape::for_size(search.size);
    let mut phases = Phases::default();
    let segment = keep::Options {
        directory: options.directory.clone(),
        size: segment_size(search.size),
        unlink: if options.rebuild { Unlink::Existing } else { Unlink::Never },
        layout: Layout::SingleFile,
        populate: false,
    };
    let (heap, _) = phases.time("open", || -> Result<_> { Ok(Heap::open_or_format(segment.open()?)?) })?;
    let (index, found) = match PersistentIndex::find(&heap, shape.clone())? {
        Some(index) => (index, true),
        None => (phases.time("build", || PersistentIndex::build(&heap, shape, search.threads))?, false),
    };
    // Counts are touched when they are needed: those of a second thread, and most of the first
    // one's, never before an answer.
    let mut searchers: Vec<Searcher> =
        (0..search.threads.get()).map(|_| Searcher::untouched(index.shape())).collect();
    let first = excerpts(index.shape(), Options { queries: 1, ..search });
    ensure!(search_all(&index, &mut searchers[..1], &first).hits > 0, "the first query hit nothing");
    let first_answer_ms = start.elapsed().as_secs_f64() * 1e3;
    let excerpts = excerpts(index.shape(), search);
    let total: Tally = phases.time("access", || search_all(&index, &mut searchers, &excerpts));
    let values = BTreeMap::from([
        ("first_answer_ms".into(), first_answer_ms),
        ("found".into(), f64::from(u8::from(found))),
        ("recall".into(), total.found as f64 / f64::from(search.queries)),
        ("postings".into(), index.postings() as f64),
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
            noise: 0.5,
        };
        let options = PersistentOptions { search, directory, rebuild: false };
        let on_heap = crate::workload::retrieval::run(search).unwrap();
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
