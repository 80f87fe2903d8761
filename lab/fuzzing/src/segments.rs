//! Segments and the heaps in them, after any bytes were written over their headers.

use crate::tree::Tree;
use megapage_segment::heap::{Depth, Heap, Request, Tag};
use megapage_segment::{Options, Pool, checksum};
use megapage_units::{Bytes, PageSize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SIZE: u64 = 2 << 20;
const TAG: Tag = Tag(7);
/// Words of one image: an element's header, or the heap's.
const IMAGE: u64 = 8;
/// Offsets in the segment (header.rs, open.rs, journal.rs).
const SLOT: u64 = 4096;
const SLOT_WORDS: u64 = 32;
const PAGE_STATES: u64 = 2 * SLOT;
const HEAP: u64 = 3 * SLOT;
const JOURNAL: u64 = HEAP + SLOT;
const FIRST_ELEMENT: u64 = JOURNAL + SLOT;
const JOURNAL_ENTRIES: u64 = 8;
const JOURNAL_ENTRY: u64 = 1 + IMAGE;
const HEAP_MAGIC: u64 = u64::from_le_bytes(*b"mphp\0\0\0\x01");

/// A segment with a heap of some blocks in it, as its owner left it.
struct Kept {
    _tree: Tree,
    pool: Pool,
    file: PathBuf,
    /// Its first part, which holds all words that are overwritten.
    image: Vec<u8>,
    /// Offsets of the elements.
    elements: Vec<u64>,
}

fn options() -> Options {
    Options::new("one".parse().expect("a name"), Bytes(SIZE)).reuse()
}

impl Kept {
    fn new() -> Kept {
        let tree = Tree::new();
        let parent = std::fs::canonicalize(tree.path()).expect("a directory");
        let pool =
            Pool::open_in(&parent, &"app".parse().expect("a name"), PageSize::HUGE_2M).expect("a pool");
        let heap = Heap::format(pool.open_segment(&options()).expect("a segment")).expect("a heap");
        let mut elements = vec![FIRST_ELEMENT];
        for bytes in [100, 1000, 64, 5000] {
            let handle = heap.allocate(Request::new(bytes, TAG).zeroed()).expect("room");
            elements.push(handle.offset - 64);
            heap.set_root(Some(handle)).expect("a root");
        }
        let second = heap.blocks().expect("blocks")[1].handle;
        heap.free(second).expect("a block");
        drop(heap);
        let file = only_file(&pool.path().join("one"));
        let last = elements.iter().max().expect("the first");
        let mut image = vec![0; (last + 8 * IMAGE) as usize];
        File::open(&file).and_then(|file| file.read_exact_at(&mut image, 0)).expect("the segment's file");
        Kept { _tree: tree, pool, file, image, elements }
    }
}

fn only_file(directory: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(directory).expect("the segment's directory");
    files.next().expect("a file").expect("a file").path()
}

fn word(image: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(*image[at as usize..].first_chunk().expect("eight bytes"))
}

fn set(image: &mut [u8], at: u64, value: u64) {
    image[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
}

fn sum(image: &[u8], seed: u64, at: u64, words: u64) -> u64 {
    checksum(seed, (0..words).map(|number| word(image, at + 8 * number)))
}

/// Makes the checksums right again: then only the checks of the values remain.
fn reseal(image: &mut [u8], elements: &[u64]) {
    for slot in [0, SLOT] {
        let value = sum(image, 0, slot, SLOT_WORDS - 1);
        set(image, slot + 8 * (SLOT_WORDS - 1), value);
    }
    let value = sum(image, HEAP_MAGIC, HEAP, IMAGE - 1);
    set(image, HEAP + 8 * (IMAGE - 1), value);
    let salt = word(image, HEAP + 8 * 5);
    for at in elements {
        let value = sum(image, salt ^ at, *at, IMAGE - 1);
        set(image, at + 8 * (IMAGE - 1), value);
    }
    let count = word(image, JOURNAL + 8);
    if count <= SLOT / 8 / JOURNAL_ENTRY {
        let words = (count * JOURNAL_ENTRY).min(SLOT / 8 - JOURNAL_ENTRIES);
        let value = sum(image, count, JOURNAL + 8 * JOURNAL_ENTRIES, words);
        set(image, JOURNAL + 16, value);
    }
}

/// Overwrites words of the header, the page states, the heap's header, its journal and its
/// elements, with or without valid checksums. Then opens it as its owner. No bytes make it panic,
/// or touch anything outside the segment. A heap that is opened can be used.
///
/// The input: one byte that says if checksums are made valid, then changes of eleven bytes: the
/// place, the number of the word, the value.
pub fn segment(data: &[u8]) {
    thread_local! {
        static KEPT: Kept = Kept::new();
    }
    let Some((&flags, changes)) = data.split_first() else { return };
    KEPT.with(|kept| {
        let mut image = kept.image.clone();
        for change in changes.chunks_exact(11).take(64) {
            let (place, number) = (change[0], u64::from(change[1]) | u64::from(change[2]) << 8);
            let value = u64::from_le_bytes(*change[3..].first_chunk().expect("eight bytes"));
            let at = match place % 6 {
                0 => 8 * (number % SLOT_WORDS),
                1 => SLOT + 8 * (number % SLOT_WORDS),
                2 => PAGE_STATES + 8 * (number % 8),
                3 => HEAP + 8 * (number % IMAGE),
                4 => JOURNAL + 8 * (number % (SLOT / 8)),
                _ => {
                    let element = kept.elements[usize::from(place / 6) % kept.elements.len()];
                    element + 8 * (number % IMAGE)
                }
            };
            set(&mut image, at, value);
        }
        if flags & 1 != 0 {
            reseal(&mut image, &kept.elements);
        }
        let file = OpenOptions::new().write(true).open(&kept.file).expect("the segment's file");
        file.write_all_at(&image, 0).expect("the segment's file");
        use_heap(kept);
        // The file may be longer, or locked: the next input must find it as before.
        file.set_len(SIZE).expect("the segment's file");
    });
}

fn use_heap(kept: &Kept) {
    let Ok(segment) = kept.pool.open_segment(&options()) else { return };
    if !matches!(Heap::is_in(&segment), Ok(true)) {
        return;
    }
    let Ok(heap) = Heap::open(segment) else { return };
    let _ = heap.verify(Depth::Memory);
    let size = heap.segment().size().0;
    for block in heap.blocks().unwrap_or_default() {
        assert!(block.handle.offset + block.len <= size, "a block ends in the segment: {block:?}");
        let read = heap.block(block.handle, block.tag).expect("a block that was listed");
        assert_eq!(read.to_vec().len() as u64, block.len);
    }
    if let Ok(new) = heap.allocate(Request::new(300, TAG).zeroed().aligned(4096)) {
        let block = heap.block(new, TAG).expect("a block that was allocated");
        assert!(block.to_vec().iter().all(|byte| *byte == 0), "zeroed memory is zero");
        assert!(block.write(0, &[1; 300]));
        if let Ok(new) = heap.resize(new, 9000) {
            let _ = heap.set_root(Some(new)).and_then(|()| heap.set_root(None)).and_then(|()| heap.free(new));
        }
    }
    for block in heap.blocks().unwrap_or_default() {
        let _ = heap.free(block.handle);
    }
    let _ = heap.verify(Depth::Memory);
}

/// Runs calls of the library for C, with numbers that are open, closed, of another kind or
/// invented: see [`crate::c_calls::handles`].
pub fn c_handles(data: &[u8]) {
    thread_local! {
        static TREE: Tree = Tree::new();
    }
    TREE.with(|tree| {
        let directory = std::fs::canonicalize(tree.path()).expect("a directory");
        crate::c_calls::handles(directory.to_str().expect("a path of ours"), data);
    });
}
