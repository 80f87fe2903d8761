//! Memory that outlives the program: a start with a segment, and the cost of its heap.

use crate::workload::measurement::{HeapBacking, Measurement, Phases};
use anyhow::{Context, Result, ensure};
use megapage_segment::heap::{Handle, HeapError, Request, Tag};
use megapage_segment::{Heap, Layout, Options as SegmentOptions, Pool, Segment, Unlink};
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Sizes of blocks, in bytes, as DPDK's malloc_perf has them.
pub const SIZES: [u64; 10] =
    [64, 128, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 1 << 30];
/// Kinds of blocks: with any bytes, and with zeros.
pub const KINDS: [&str; 2] = ["malloc", "zmalloc"];
/// The most blocks of one size.
pub(super) const MOST_RUNS: usize = 10_000;
const TAG: Tag = Tag::named("bench/block");

/// Place of the segment, and options for opening it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory in which the pool is, on a hugetlbfs.
    pub directory: PathBuf,
    /// Its memory.
    pub size: Bytes,
    /// Treatment of existing files.
    pub unlink: Unlink,
    /// Its files.
    pub layout: Layout,
    /// True if opening fills the page tables, also for memory that is found again.
    pub populate: bool,
}

impl Options {
    /// Opens the segment, and makes it if there is none.
    pub(super) fn open(&self) -> Result<Segment> {
        let application = "bench".parse().map_err(anyhow::Error::msg)?;
        let name = "kept".parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::open_in(&self.directory, &application, PageSize::HUGE_2M)?;
        let options = SegmentOptions {
            unlink: self.unlink,
            layout: self.layout,
            populate: self.populate,
            ..SegmentOptions::new(name, self.size)
        };
        Ok(pool.open_segment(&options)?)
    }
}

/// Starts like a program that has all of its memory in a segment, and ends.
///
/// Phases: `open`. Values: `fresh_pages`, `dirty_pages`, `hugetlb` (1 if its pages are).
pub fn start(options: &Options) -> Result<Measurement> {
    let mut phases = Phases::default();
    let segment = phases.time("open", || options.open())?;
    let opened = segment.opened();
    // Its memory is in use from here on.
    let first = segment.words(segment.data_start(), 1).context("the segment has no memory")?;
    first[0].fetch_add(1, Ordering::Relaxed);
    let values = BTreeMap::from([
        ("fresh_pages".into(), opened.fresh_pages as f64),
        ("dirty_pages".into(), opened.dirty_pages as f64),
        ("hugetlb".into(), f64::from(u8::from(segment.is_on_hugetlb()))),
    ]);
    let checksum = first[0].load(Ordering::Relaxed);
    Ok(Measurement {
        workload: "keep start".into(),
        phases,
        values,
        checksum,
        backing: HeapBacking::default(),
    })
}

/// Allocates and frees blocks of every size that fits, of each kind, and writes all of them in
/// between.
///
/// Values: `KIND.SIZE.VALUE`, where a value is one of `runs`, `allocate_us`, `free_us`, `memset_us`
/// (for a block), `cleared_allocating` and `cleared_freeing` (bytes for a block). With
/// [`Unlink::Never`] all memory counts as dirty.
pub fn malloc(options: &Options) -> Result<Measurement> {
    let mut phases = Phases::default();
    let segment = phases.time("open", || options.open())?;
    if options.unlink == Unlink::Never {
        // A process that has looked at memory may have written to it.
        let start = segment.data_start();
        let words = (segment.size().0 - start) / 8;
        segment.words(start, words as usize).context("the segment has no memory")?;
    }
    let heap = Heap::format(segment)?;
    let mut values = BTreeMap::new();
    let mut checksum = 0;
    for kind in KINDS {
        for size in SIZES {
            let name = |value: &str| format!("{kind}.{size}.{value}");
            let Some(found) = blocks(&heap, kind == "zmalloc", size)? else { continue };
            checksum += found.runs;
            let runs = found.runs as f64;
            values.insert(name("runs"), runs);
            for (what, value) in found.values {
                values.insert(name(what), value / runs);
            }
        }
    }
    Ok(Measurement {
        workload: "keep malloc".into(),
        phases,
        values,
        checksum,
        backing: HeapBacking::default(),
    })
}

/// Times of a number of blocks, in all.
struct Blocks {
    runs: u64,
    values: [(&'static str, f64); 5],
}

/// Measures blocks; `None` if not one fits.
fn blocks(heap: &Heap, zeroed: bool, size: u64) -> Result<Option<Blocks>> {
    let request = Request { zeroed, ..Request::new(size, TAG) };
    let mut handles: Vec<Handle> = Vec::with_capacity(MOST_RUNS);
    let before = heap.statistics();
    let start = Instant::now();
    while handles.len() < MOST_RUNS {
        match heap.allocate(request) {
            Ok(handle) => handles.push(handle),
            Err(HeapError::Full { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let allocating = start.elapsed();
    if handles.is_empty() {
        return Ok(None);
    }
    let start = Instant::now();
    for handle in &handles {
        let block = heap.block(*handle, TAG)?;
        if zeroed {
            ensure!(block.words()[0].load(Ordering::Relaxed) == 0, "a block of zeros holds an old byte");
        }
        // Zeros, as DPDK's malloc_perf writes: processors store them sooner than other values.
        block.fill(0);
    }
    let writing = start.elapsed();
    for handle in &handles {
        // Words that have to be cleared again.
        let words = heap.block(*handle, TAG)?.words();
        for at in [0, words.len() / 2, words.len() - 1] {
            words[at].store(u64::MAX, Ordering::Relaxed);
        }
    }
    let between = heap.statistics();
    let start = Instant::now();
    for handle in &handles {
        heap.free(*handle)?;
    }
    let freeing = start.elapsed();
    let after = heap.statistics();
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let cleared_allocating = between.cleared_on_allocation - before.cleared_on_allocation;
    let cleared_freeing = after.cleared_on_free - before.cleared_on_free;
    Ok(Some(Blocks {
        runs: handles.len() as u64,
        values: [
            ("allocate_us", us(allocating)),
            ("free_us", us(freeing)),
            ("memset_us", us(writing)),
            ("cleared_allocating", cleared_allocating as f64),
            ("cleared_freeing", cleared_freeing as f64),
        ],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &tempfile::TempDir, unlink: Unlink) -> Options {
        let directory = std::fs::canonicalize(directory.path()).unwrap();
        Options { directory, size: Bytes::mib(24), unlink, layout: Layout::FilePerPage, populate: false }
    }

    #[test]
    fn a_second_start_finds_what_the_first_left() {
        let directory = tempfile::tempdir().unwrap();
        let found = |unlink| start(&options(&directory, unlink)).unwrap();
        assert_eq!(found(Unlink::Never).checksum, 1);
        let second = found(Unlink::Never);
        assert_eq!((second.checksum, second.values["fresh_pages"]), (2, 0.0));
        assert!(second.values["dirty_pages"] > 0.0);
        let cold = found(Unlink::Existing);
        assert_eq!((cold.checksum, cold.values["fresh_pages"]), (1, 12.0));
    }

    #[test]
    fn clean_memory_is_cleared_freeing_and_dirty_memory_allocating() {
        let directory = tempfile::tempdir().unwrap();
        let clean = malloc(&options(&directory, Unlink::Existing)).unwrap().values;
        let dirty = malloc(&options(&directory, Unlink::Never)).unwrap().values;
        assert_eq!(clean["malloc.64.runs"], 10_000.0);
        assert!(!clean.contains_key("malloc.1073741824.runs"), "it does not fit");
        for size in [64, 4096, 1 << 20] {
            let value = |found: &BTreeMap<String, f64>, kind: &str, name: &str| {
                found[&format!("{kind}.{size}.{name}")]
            };
            for kind in KINDS {
                assert_eq!(value(&clean, kind, "cleared_allocating"), 0.0, "{kind} {size}");
                assert!(value(&clean, kind, "cleared_freeing") >= size as f64, "{kind} {size}");
                assert_eq!(value(&dirty, kind, "cleared_freeing"), 0.0, "{kind} {size}");
            }
            assert_eq!(value(&dirty, "malloc", "cleared_allocating"), 0.0);
            assert!(value(&dirty, "zmalloc", "cleared_allocating") >= size as f64);
        }
    }
}
