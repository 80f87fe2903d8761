//! The heap against a model, at every crash point, and over bytes that are not a heap.

use super::memory::crash::{self, Crash};
use super::*;
use crate::{Name, SegmentError};
use megapage_units::PageSize;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const TAG: Tag = Tag::named("test/1");
const PAGE: u64 = 2 << 20;

fn name() -> Name {
    "heap-test".parse().unwrap()
}

/// Returns a segment of base pages: the tests do not depend on their size.
fn segment(pages: u64, most: u64) -> Segment {
    Segment::in_memory(name(), PageSize::HUGE_2M, false, Bytes(pages * PAGE), Bytes(most * PAGE)).unwrap()
}

fn heap(pages: u64, most: u64) -> Heap {
    Heap::format(segment(pages, most)).unwrap()
}

fn file_of(heap: &Heap) -> File {
    // A separate description: the lock on the other ends with the heap.
    megapage_kernel::directory::reopen(&heap.segment().descriptor().unwrap().unwrap()).unwrap()
}

/// Maps a segment as another process does. Another test of this process may have its addresses for
/// a while.
fn share(file: &File) -> Segment {
    for _ in 0..3000 {
        match Segment::of_memory_file(file, true) {
            Err(SegmentError::Address { .. }) => std::thread::sleep(Duration::from_millis(10)),
            shared => return shared.unwrap(),
        }
    }
    panic!("its addresses are never free");
}

fn reopen(heap: Heap) -> Heap {
    let file = file_of(&heap);
    drop(heap);
    Heap::open(Segment::of_memory_file(&file, false).unwrap()).unwrap()
}

fn bytes(heap: &Heap, handle: Handle) -> Vec<u8> {
    heap.block(handle, TAG).unwrap().to_vec()
}

#[test]
fn what_is_allocated_is_found_again() {
    let heap = heap(1, 1);
    assert!(heap.root().unwrap().is_none());
    let handle = heap.allocate(Request::new(1000, TAG)).unwrap();
    assert!(heap.block(handle, TAG).unwrap().write(0, &[7; 1000]));
    heap.set_root(Some(handle)).unwrap();
    let heap = reopen(heap);
    let root = heap.root().unwrap().unwrap();
    assert_eq!(root, handle);
    assert_eq!(bytes(&heap, root), [7; 1000]);
    assert_eq!(heap.blocks().unwrap(), [BlockInfo { handle, tag: TAG, len: 1000 }]);
    assert!(matches!(heap.free(root), Err(HeapError::Root(_))));
    assert!(matches!(heap.block(root, Tag(1)), Err(HeapError::Type { .. })));
    heap.set_root(None).unwrap();
    heap.free(root).unwrap();
    assert!(matches!(heap.free(root), Err(HeapError::Stale(_))));
    assert!(matches!(heap.block(root, TAG), Err(HeapError::Stale(_))));
    let again = heap.allocate(Request::new(1000, TAG)).unwrap();
    assert_eq!(again.offset, root.offset, "the same place");
    assert!(matches!(heap.block(root, TAG), Err(HeapError::Stale(_))), "and yet another allocation");
    assert!(heap.block(again, TAG).is_ok());
}

#[test]
fn memory_is_cleared_once() {
    let heap = heap(2, 2);
    let room = |len: u64| len.next_multiple_of(64);
    // Fresh memory: cleared when it is released, and not again.
    let handle = heap.allocate(Request::new(100_000, TAG).zeroed()).unwrap();
    assert_eq!(heap.statistics().cleared_on_allocation, 0);
    assert!(heap.block(handle, TAG).unwrap().write(0, &vec![1; 100_000]));
    heap.free(handle).unwrap();
    assert_eq!(heap.statistics().cleared_on_free, room(100_000));
    let again = heap.allocate(Request::new(100_000, TAG).zeroed()).unwrap();
    assert_eq!(bytes(&heap, again), vec![0; 100_000]);
    assert_eq!(heap.statistics().cleared_on_allocation, 0);
    // A second heap in the same pages: they are dirty, so memory is cleared for the allocation.
    assert!(heap.block(again, TAG).unwrap().write(0, &vec![2; 100_000]));
    let file = file_of(&heap);
    drop(heap);
    let heap = Heap::format(Segment::of_memory_file(&file, false).unwrap()).unwrap();
    let handle = heap.allocate(Request::new(100_000, TAG)).unwrap();
    let is_old = |bytes: &[u8]| bytes.contains(&2);
    assert!(is_old(&bytes(&heap, handle)), "what is not asked to be zero is not");
    heap.free(handle).unwrap();
    assert_eq!(heap.statistics().cleared_on_free, 0);
    let handle = heap.allocate(Request::new(100_000, TAG).zeroed()).unwrap();
    assert_eq!(bytes(&heap, handle), vec![0; 100_000]);
    assert_eq!(heap.statistics().cleared_on_allocation, room(100_000));
    heap.verify(Depth::Memory).unwrap();
}

#[test]
fn clean_joined_with_dirty_is_dirty() {
    // The heap covers two pages. The second was never handed out before the heap is made again, so
    // it is clean.
    let heap = heap(3, 3);
    let small = heap.allocate(Request::new(1000, TAG)).unwrap();
    assert!(heap.block(small, TAG).unwrap().write(0, &[9; 1000]));
    let file = file_of(&heap);
    drop(heap);
    let heap = Heap::format(Segment::of_memory_file(&file, false).unwrap()).unwrap();
    let sum = heap.verify(Depth::Memory).unwrap();
    assert!(sum.dirty.0 > PAGE / 2 && sum.dirty.0 < PAGE && sum.clean.0 > PAGE, "{sum:?}");
    // More than either piece holds: they are joined, and the result is cleared for a caller that
    // wants zeros.
    let handle = heap.allocate(Request::new(2 * PAGE + PAGE / 2, TAG).zeroed()).unwrap();
    assert!(heap.statistics().cleared_on_allocation >= 2 * PAGE + PAGE / 2);
    assert!(bytes(&heap, handle).iter().all(|byte| *byte == 0));
    heap.verify(Depth::Memory).unwrap();
}

#[test]
fn alignment_holds_in_the_segment_and_in_memory() {
    let heap = heap(4, 4);
    for shift in 0..=21 {
        let handle = heap.allocate(Request::new(100, TAG).aligned(1 << shift)).unwrap();
        assert!(handle.offset.is_multiple_of(1 << shift));
        assert!((heap.segment().address() as u64 + handle.offset).is_multiple_of(1 << shift));
        heap.verify(Depth::Memory).unwrap();
    }
    for bad in [Request::new(0, TAG), Request::new(1, TAG).aligned(3), Request::new(1, TAG).aligned(1 << 31)]
    {
        assert!(matches!(heap.allocate(bad), Err(HeapError::Request(_))));
    }
    assert!(matches!(heap.allocate(Request::new(u64::MAX, TAG)), Err(HeapError::Request(_))));
}

#[test]
fn a_heap_grows_until_it_may_not() {
    let heap = heap(1, 8);
    let handles: Vec<Handle> =
        (0..3).map(|_| heap.allocate(Request::new(2 * PAGE, TAG).zeroed()).unwrap()).collect();
    assert!(heap.segment().size() <= Bytes(8 * PAGE));
    let error = heap.allocate(Request::new(2 * PAGE, TAG)).unwrap_err();
    assert!(matches!(error, HeapError::Full { .. }), "{error}");
    assert!(handles.iter().all(|handle| bytes(&heap, *handle).iter().all(|byte| *byte == 0)));
    let heap = reopen(heap);
    heap.verify(Depth::Memory).unwrap();
    assert!(handles.iter().all(|handle| heap.block(*handle, TAG).is_ok()));
}

#[test]
fn a_sharer_of_a_segment_reads_and_does_not_allocate() {
    let heap = heap(1, 1);
    let handle = heap.allocate(Request::new(100, TAG)).unwrap();
    heap.set_root(Some(handle)).unwrap();
    heap.block(handle, TAG).unwrap().write(3, b"here");
    let file = file_of(&heap);
    let address = heap.segment().address();
    // In one process the addresses are taken.
    let error = Segment::of_memory_file(&file, true).unwrap_err();
    assert!(error.to_string().contains(&format!("{address:#x}")), "{error}");
    let error = Segment::of_memory_file(&file, false).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    drop(heap);
    let shared = Heap::open(share(&file)).unwrap();
    assert_eq!(shared.segment().address(), address);
    assert_eq!(shared.root().unwrap(), Some(handle));
    let mut text = [0; 4];
    assert!(shared.block(handle, TAG).unwrap().read(3, &mut text));
    assert_eq!(&text, b"here");
    assert!(matches!(shared.allocate(Request::new(1, TAG)), Err(HeapError::NotOwner(_))));
    assert!(matches!(shared.free(handle), Err(HeapError::NotOwner(_))));
    assert!(matches!(shared.set_root(None), Err(HeapError::NotOwner(_))));
    assert!(shared.segment().grow(Bytes(PAGE)).is_err());
}

#[test]
fn a_memory_file_that_its_sender_could_truncate_is_refused() {
    // All of a segment, in a file that can become shorter: every access could be a signal then.
    let heap = heap(1, 1);
    let mut copy = tempfile::tempfile().unwrap();
    std::io::copy(&mut file_of(&heap), &mut copy).unwrap();
    drop(heap);
    let error = Segment::of_memory_file(&copy, false).unwrap_err().to_string();
    assert!(error.contains("F_SEAL_SHRINK"), "{error}");
}

#[test]
fn threads_may_use_one_heap() {
    let heap = heap(2, 8);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let heap = &heap;
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..400u64 {
                    let len = 1 + (round * 37 + u64::from(thread) * 101) % 5000;
                    let handle = heap.allocate(Request::new(len, TAG).zeroed()).unwrap();
                    assert!(bytes(heap, handle).iter().all(|byte| *byte == 0));
                    heap.block(handle, TAG).unwrap().write(0, &vec![thread + 1; len as usize]);
                    mine.push(handle);
                    if round % 3 == 2 {
                        let old = mine.swap_remove((round as usize * 7) % mine.len());
                        assert!(bytes(heap, old).iter().all(|byte| *byte == thread + 1));
                        heap.free(old).unwrap();
                    }
                }
                mine.into_iter().for_each(|handle| heap.free(handle).unwrap());
            });
        }
    });
    assert_eq!(heap.verify(Depth::Memory).unwrap().blocks, 0);
}

/// One action on a heap.
#[derive(Clone, Debug)]
enum Step {
    Allocate { len: u64, shift: u32, zeroed: bool },
    Free(usize),
    Resize(usize, u64),
    Root(usize),
    Reopen,
    Reformat,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 1u64..400, 2 => 1u64..40_000, 1 => 1u64..1_500_000];
    let step = prop_oneof![
        8 => (len.clone(), 0u32..15, any::<bool>())
            .prop_map(|(len, shift, zeroed)| Step::Allocate { len, shift, zeroed }),
        6 => any::<usize>().prop_map(Step::Free),
        3 => (any::<usize>(), len).prop_map(|(which, len)| Step::Resize(which, len)),
        1 => any::<usize>().prop_map(Step::Root),
        1 => Just(Step::Reopen),
        1 => Just(Step::Reformat),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Expected contents of a heap: the bytes that were written to each block.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<Handle, Vec<u8>>,
    root: Option<Handle>,
    next: u8,
}

impl Model {
    fn pick(&self, which: usize) -> Option<Handle> {
        let count = self.blocks.len();
        self.blocks.keys().nth(which.checked_rem(count)?).copied()
    }

    /// Writes the next value to all of a block.
    fn fill(&mut self, heap: &Heap, handle: Handle, len: u64) {
        self.next = self.next % 250 + 1;
        let content = vec![self.next; len as usize];
        assert!(heap.block(handle, TAG).unwrap().write(0, &content));
        self.blocks.insert(handle, content);
    }

    fn check(&self, heap: &Heap) {
        let sum = heap.verify(Depth::Memory).unwrap();
        assert_eq!(sum.blocks, self.blocks.len() as u64);
        assert_eq!(heap.root().unwrap(), self.root);
        for (handle, content) in &self.blocks {
            assert!(bytes(heap, *handle) == *content, "a block was changed by another");
        }
    }

    fn take(&mut self, heap: Heap, step: &Step) -> Heap {
        match step {
            Step::Allocate { len, shift, zeroed } => {
                let request = Request { len: *len, alignment: 1 << shift, zeroed: *zeroed, tag: TAG };
                match heap.allocate(request) {
                    Ok(handle) => {
                        if *zeroed {
                            assert!(bytes(&heap, handle).iter().all(|byte| *byte == 0), "an old byte");
                        }
                        self.fill(&heap, handle, *len);
                    }
                    Err(error) => assert!(matches!(error, HeapError::Full { .. }), "{error}"),
                }
            }
            Step::Free(which) => {
                if let Some(handle) = self.pick(*which) {
                    if self.root == Some(handle) {
                        heap.set_root(None).unwrap();
                        self.root = None;
                    }
                    heap.free(handle).unwrap();
                    self.blocks.remove(&handle);
                }
            }
            Step::Resize(which, len) => {
                if let Some(handle) = self.pick(*which) {
                    match heap.resize(handle, *len) {
                        Ok(now) => {
                            let before = self.blocks.remove(&handle).unwrap();
                            let kept = before.len().min(*len as usize);
                            assert_eq!(bytes(&heap, now)[..kept], before[..kept]);
                            if self.root == Some(handle) {
                                self.root = Some(now);
                            }
                            self.fill(&heap, now, *len);
                        }
                        Err(error) => assert!(matches!(error, HeapError::Full { .. }), "{error}"),
                    }
                }
            }
            Step::Root(which) => {
                self.root = self.pick(*which);
                heap.set_root(self.root).unwrap();
            }
            Step::Reopen => return reopen(heap),
            Step::Reformat => {
                let file = file_of(&heap);
                drop(heap);
                *self = Model { next: self.next, ..Model::default() };
                return Heap::format(Segment::of_memory_file(&file, false).unwrap()).unwrap();
            }
        }
        heap
    }
}

/// Returns the number of cases: many more if the environment asks for a soak.
fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("MEGAPAGE_SOAK").is_some() { 4096 } else { 48 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_heap_does_what_the_model_does(steps in steps()) {
        let mut heap = heap(1, 3);
        let mut model = Model::default();
        for step in &steps {
            heap = model.take(heap, step);
            model.check(&heap);
        }
    }

    #[test]
    fn flipped_bytes_are_an_error_or_a_valid_view(
        steps in proptest::collection::vec((1u64..3000, any::<bool>()), 1..30),
        flips in proptest::collection::vec((0u64..24_000, 1u8..=255, any::<bool>()), 1..12),
    ) {
        let heap = heap(1, 2);
        let mut last = None;
        for (len, free) in steps {
            if free && let Some(handle) = last.take() {
                heap.free(handle).unwrap();
            }
            last = Some(heap.allocate(Request::new(len, TAG)).unwrap());
        }
        heap.set_root(last).unwrap();
        let start = heap.segment().data_start();
        for (at, mask, in_header) in flips {
            // The first bytes of words near the start of a 64-byte unit: most of these are in
            // headers.
            let at = if in_header { at / 64 * 64 + at % 8 * 8 } else { at };
            let words = heap.segment().words(start + at / 8 * 8, 1).unwrap();
            words[0].fetch_xor(u64::from(mask) << (at % 8 * 8), std::sync::atomic::Ordering::Relaxed);
        }
        // Its users meet errors.
        use_all(&heap, last);
        let file = file_of(&heap);
        drop(heap);
        for shared in [true, false] {
            let segment =
                if shared { share(&file) } else { Segment::of_memory_file(&file, false).unwrap() };
            if let Ok(heap) = Heap::open(segment) {
                use_all(&heap, last);
            }
        }
    }
}

/// Calls everything that a heap offers; nothing may panic or lead outside.
fn use_all(heap: &Heap, handle: Option<Handle>) {
    let end = heap.segment().size().0;
    for handle in [heap.root().ok().flatten(), handle].into_iter().flatten() {
        if let Ok(block) = heap.block(handle, TAG) {
            assert!(handle.offset + block.len() <= end);
            block.to_vec();
        }
        let _ = heap.resize(handle, 5000);
        let _ = heap.resize(handle, 10);
    }
    if let Ok(blocks) = heap.blocks() {
        blocks.iter().for_each(|block| assert!(block.handle.offset + block.len <= end));
    }
    let _ = heap.verify(Depth::Memory);
    let new = heap.allocate(Request::new(300, TAG).zeroed());
    if let Ok(new) = new {
        let _ = heap.free(new);
    }
    let _ = heap.set_root(None);
    let _ = handle.map(|handle| heap.free(handle));
    let _ = heap.verify(Depth::Headers);
}

#[test]
fn small_blocks_are_kept_at_hand_and_given_up_for_large_ones() {
    let heap = heap(1, 1);
    let allocate = |len: u64| heap.allocate(Request::new(len, TAG).zeroed());
    let whole = heap.verify(Depth::Memory).unwrap();
    let sizes = [1, 64, 65, 1000, 4096, 4097];
    let mut handles: Vec<Handle> =
        (0..600).map(|number| allocate(sizes[number % sizes.len()]).unwrap()).collect();
    for handle in &handles {
        let words = heap.block(*handle, TAG).unwrap().words();
        assert!(words.iter().all(|word| word.swap(u64::MAX, std::sync::atomic::Ordering::Relaxed) == 0));
    }
    // In the order of their offsets modulo 1024, so that runs of them have gaps.
    handles.sort_by_key(|handle| handle.offset % 1024);
    let used = handles.split_off(300);
    let stale: Vec<Handle> = handles.clone();
    handles.into_iter().for_each(|handle| heap.free(handle).unwrap());
    assert!(stale.iter().all(|handle| matches!(heap.free(*handle), Err(HeapError::Stale(_)))));
    heap.verify(Depth::Memory).unwrap();
    // They are free after a restart, too, and at hand again.
    let heap = reopen(heap);
    assert!(!heap.statistics().recovered);
    assert_eq!(heap.verify(Depth::Memory).unwrap().blocks, used.len() as u64);
    assert!(stale.iter().all(|handle| matches!(heap.block(*handle, TAG), Err(HeapError::Stale(_)))));
    used.iter().for_each(|handle| heap.free(*handle).unwrap());
    let again = heap.allocate(Request::new(1000, TAG).zeroed()).unwrap();
    assert!(bytes(&heap, again).iter().all(|byte| *byte == 0));
    heap.free(again).unwrap();
    // All memory in one piece is available.
    let most = whole.largest_free.0;
    let large = heap.allocate(Request::new(most, TAG).zeroed()).unwrap();
    assert!(bytes(&heap, large).iter().all(|byte| *byte == 0), "an old byte");
    heap.free(large).unwrap();
    assert_eq!(heap.verify(Depth::Memory).unwrap().largest_free, whole.largest_free);
}

/// Checks a heap after a crash in one step: all blocks but the one that the step changes are
/// unchanged.
fn check_goes_on(heap: &Heap, before: &BTreeMap<Handle, Vec<u8>>, context: &str) {
    let found = heap.blocks().unwrap();
    let lost = before.iter().filter(|(handle, _)| !found.iter().any(|block| block.handle == **handle));
    assert!(lost.count() <= 1, "{context}: blocks were lost");
    for block in &found {
        if let Some(content) = before.get(&block.handle) {
            let kept = content.len().min(block.len as usize);
            assert!(bytes(heap, block.handle)[..kept] == content[..kept], "{context}");
        }
    }
    assert!(found.len() <= before.len() + 1, "{context}");
    let zeros = heap.allocate(Request::new(50_000, TAG).zeroed()).unwrap();
    assert!(bytes(heap, zeros).iter().all(|byte| *byte == 0), "{context}: an old byte");
    heap.free(zeros).unwrap();
    heap.verify(Depth::Memory).unwrap_or_else(|error| panic!("{context}: {error}"));
}

#[test]
fn a_kill_at_any_store_leaves_a_sound_heap() {
    let script = [
        Step::Allocate { len: 3000, shift: 0, zeroed: true },
        Step::Allocate { len: 500, shift: 12, zeroed: false },
        Step::Allocate { len: 900, shift: 0, zeroed: true },
        Step::Root(1),
        Step::Free(0),
        Step::Resize(0, 4000),
        Step::Resize(0, 300),
        Step::Allocate { len: 2_060_000, shift: 0, zeroed: true },
        Step::Free(2),
        Step::Root(0),
        Step::Free(1),
        // The elements at hand are given up for it.
        Step::Allocate { len: 4_000_000, shift: 0, zeroed: true },
        Step::Reformat,
        Step::Allocate { len: 700, shift: 0, zeroed: true },
    ];
    let mut crashes = 0;
    for (number, step) in script.iter().enumerate() {
        for stores in 0.. {
            let mut heap = heap(1, 3);
            let mut model = Model::default();
            for step in &script[..number] {
                heap = model.take(heap, step);
            }
            let file = file_of(&heap);
            let before = model.blocks.clone();
            crash::after(Some(stores));
            let result = catch_unwind(AssertUnwindSafe(|| model.take(heap, step)));
            crash::after(None);
            match result {
                Ok(heap) => {
                    model.check(&heap);
                    break;
                }
                Err(panic) => assert!(panic.is::<Crash>(), "{step:?} after {stores} stores"),
            }
            crashes += 1;
            let context = format!("{step:?} after {stores} stores");
            let reformats = matches!(step, Step::Reformat);
            match Heap::open(Segment::of_memory_file(&file, false).unwrap()) {
                Ok(heap) => {
                    heap.verify(Depth::Memory).unwrap_or_else(|error| panic!("{context}: {error}"));
                    if !reformats {
                        check_goes_on(&heap, &before, &context);
                    }
                }
                // There is none while it is replaced.
                Err(HeapError::None(_)) if reformats => {}
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
    assert!(crashes > 500, "{crashes} crash points were tried");
}
