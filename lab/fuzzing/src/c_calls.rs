//! Arbitrary sequences of calls of the library for C, with arbitrary handles.

use megapage_c::entry::*;
use megapage_c::failure::errno::{EBADF, EIO};
use megapage_c::types::*;
use std::collections::BTreeSet;
use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};

/// Most calls that one input makes.
const MOST_CALLS: usize = 64;
/// Size of a segment, and the most that a segment may grow to.
const SIZE: u64 = 2 << 20;
const TAG: u64 = 7;

/// Objects that one input has opened.
#[derive(Default)]
struct Opened {
    /// Every number that was given out, and some that never were.
    numbers: Vec<u64>,
    pools: BTreeSet<u64>,
    segments: BTreeSet<u64>,
    heaps: BTreeSet<u64>,
    handles: Vec<megapage_handle>,
}

/// Makes the calls that `steps` describes, four bytes for each, in `directory` (absolute, without
/// symbolic links). Checks that a number that is not open as the wanted kind is an error, and that
/// an open one is never answered with EBADF. Closes everything that was opened.
pub fn handles(directory: &str, steps: &[u8]) {
    let Ok(directory) = CString::new(directory) else { return };
    let mut opened = Opened { numbers: vec![0, u64::MAX, 1 << 40], ..Opened::default() };
    opened.handles = vec![
        megapage_handle::default(),
        megapage_handle { offset: u64::MAX - 7, serial: 1 },
        megapage_handle { offset: 3 << 12, serial: 1 << 40 },
    ];
    for step in steps.chunks_exact(4).take(MOST_CALLS) {
        opened.call(&directory, [step[0], step[1], step[2], step[3]]);
    }
    let Opened { pools, segments, heaps, .. } = opened;
    heaps.into_iter().for_each(|heap| assert_eq!(megapage_heap_close(heap), 0));
    segments.into_iter().for_each(|segment| assert_eq!(megapage_segment_close(segment), 0));
    for pool in pools {
        for name in [c"one", c"two"] {
            let _ = megapage_pool_remove(pool, name.as_ptr(), null_mut());
        }
        assert_eq!(megapage_pool_close(pool), 0);
    }
}

/// Checks that a number that is not open is an error, and that EBADF means only that. No call may
/// meet a fault of the library's own.
fn judge(answer: c_int, is_open: bool) {
    assert!(is_open || answer < 0, "answer {answer} for what is not open");
    assert!(!is_open || answer != -EBADF, "what is open counts as not open");
    assert_ne!(answer, -EIO);
}

impl Opened {
    fn number(&self, at: u8) -> u64 {
        self.numbers[usize::from(at) % self.numbers.len()]
    }

    fn handle(&self, at: u8) -> megapage_handle {
        self.handles[usize::from(at) % self.handles.len()]
    }

    fn call(&mut self, directory: &CString, [what, which, more, other]: [u8; 4]) {
        let number = self.number(which);
        let name = if more & 1 == 0 { c"one" } else { c"two" }.as_ptr();
        let (is_pool, is_segment, is_heap) =
            (self.pools.contains(&number), self.segments.contains(&number), self.heaps.contains(&number));
        let mut options = megapage_options {
            size: 0,
            most: 0,
            unlink: 0,
            layout: 0,
            node: 0,
            mode: 0,
            flags: 0,
            reserved: 0,
        };
        assert_eq!(megapage_options_init(&raw mut options, SIZE), 0);
        options.unlink = u32::from(more >> 1 & 3);
        options.layout = u32::from(more >> 3 & 3);
        // Lengths from zero to more than exist.
        let length = [0, 1, 64, 4096, SIZE, u64::MAX, u64::MAX - 100, 1 << 63][usize::from(other % 8)];
        let mut id = 0;
        match what % 18 {
            0 if self.pools.len() < 4 => {
                let size = [MEGAPAGE_2M, 0, 4096, u64::MAX][usize::from(more % 4)];
                let answer = megapage_pool_open_in(directory.as_ptr(), c"fuzz".as_ptr(), size, &raw mut id);
                assert_eq!(answer == 0, size == MEGAPAGE_2M);
                self.note(answer, id, |opened| &mut opened.pools);
            }
            1 if self.segments.len() < 4 => {
                let answer = megapage_segment_open(number, name, &raw const options, &raw mut id);
                judge(answer, is_pool);
                self.note(answer, id, |opened| &mut opened.segments);
            }
            2 if self.heaps.len() < 4 => {
                let mut found = 9;
                let answer =
                    megapage_heap_open(number, name, &raw const options, &raw mut id, &raw mut found);
                judge(answer, is_pool);
                assert!(answer != 0 || found <= 1);
                self.note(answer, id, |opened| &mut opened.heaps);
            }
            3 => judge(megapage_pool_remove(number, name, null_mut()), is_pool),
            4 => {
                judge(megapage_segment_close(number), is_segment);
                self.segments.remove(&number);
            }
            5 => {
                judge(megapage_heap_close(number), is_heap);
                self.heaps.remove(&number);
            }
            6 => {
                // Open segments of a closed pool stay open. No more are opened in it, and none is
                // removed.
                judge(megapage_pool_close(number), is_pool);
                self.pools.remove(&number);
            }
            7 => {
                let (mut address, mut bytes) = (null_mut(), 0);
                judge(megapage_segment_memory(number, &raw mut address, &raw mut bytes), is_segment);
                assert!(bytes <= SIZE);
            }
            8 => judge(megapage_segment_grow(number, length), is_segment),
            9 => {
                let mut about = megapage_segment_info::default();
                judge(megapage_segment_about(number, &raw mut about), is_segment);
                judge(megapage_heap_about(number, &raw mut about), is_heap);
            }
            10 => {
                let mut handle = megapage_handle::default();
                let alignment = [0, 64, 4096, 3, 1 << 30, u64::MAX][usize::from(more % 6)];
                let flags = u32::from(other >> 3 & 3);
                let answer = megapage_heap_allocate(number, length, alignment, flags, TAG, &raw mut handle);
                judge(answer, is_heap);
                if answer == 0 {
                    assert!(length > 0 && handle.offset < SIZE);
                    self.handles.push(handle);
                }
            }
            11 => judge(megapage_heap_free(number, self.handle(more)), is_heap),
            12 => {
                let mut handle = self.handle(more);
                let answer = megapage_heap_resize(number, &raw mut handle, length);
                judge(answer, is_heap);
                if answer == 0 {
                    self.handles.push(handle);
                }
            }
            13 => {
                let (mut address, mut bytes) = (null_mut(), 0);
                let tag = if other & 1 == 0 { TAG } else { 8 };
                let answer =
                    megapage_heap_block(number, self.handle(more), tag, &raw mut address, &raw mut bytes);
                judge(answer, is_heap);
                assert!(answer != 0 || (bytes <= SIZE && tag == TAG && !address.is_null()));
            }
            14 => judge(megapage_heap_set_root(number, self.handle(more)), is_heap),
            15 => {
                let mut handle = megapage_handle::default();
                judge(megapage_heap_root(number, &raw mut handle), is_heap);
                judge(megapage_heap_find(number, TAG, &raw mut handle), is_heap);
            }
            16 if self.heaps.len() < 4 => {
                let answer = megapage_heap_share(number, name, &raw mut id);
                judge(answer, is_pool);
                self.note(answer, id, |opened| &mut opened.heaps);
            }
            // Null pointers are an error for every number.
            _ => {
                assert!(megapage_heap_block(number, self.handle(more), TAG, null_mut(), null_mut()) < 0);
                assert!(megapage_segment_open(number, null(), null(), null_mut()) < 0);
                assert!(megapage_heap_resize(number, null_mut(), length) < 0);
                assert_eq!(megapage_tag(null()), 0);
            }
        }
    }

    /// Notes a number that was given out, and checks that it was not given out before.
    fn note(&mut self, answer: c_int, id: u64, kind: impl Fn(&mut Opened) -> &mut BTreeSet<u64>) {
        if answer == 0 {
            assert!(!self.numbers.contains(&id), "{id} was given out before");
            self.numbers.push(id);
            kind(self).insert(id);
        }
    }
}
