//! The entry points as C calls them: errors, and calls by many threads that lose nothing.

use crate::entry::*;
use crate::failure::errno::{EBADF, EINVAL, ENOENT, ENOTCONN, EPERM, EPROTO, EPROTOTYPE, ESTALE};
use crate::types::*;
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn said() -> String {
    crate::pointers::text(megapage_message(), "the message").unwrap()
}

/// Returns a pool on base pages, and the directory that it is in.
fn pool() -> (tempfile::TempDir, megapage_pool) {
    let tree = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(tree.path()).unwrap();
    let mut pool = 0;
    let answer = megapage_pool_open_in(
        c(path.to_str().unwrap()).as_ptr(),
        c"app".as_ptr(),
        MEGAPAGE_2M,
        &raw mut pool,
    );
    assert_eq!(answer, 0, "{}", said());
    (tree, pool)
}

fn options(size: u64) -> megapage_options {
    let mut options =
        megapage_options { size: 0, most: 9, unlink: 9, layout: 9, node: 9, mode: 9, flags: 9, reserved: 9 };
    assert_eq!(megapage_options_init(&raw mut options, size), 0);
    megapage_options { unlink: MEGAPAGE_UNLINK_NEVER, ..options }
}

fn heap(pool: megapage_pool, options: megapage_options) -> (megapage_heap, u32) {
    let (mut heap, mut found) = (0, 9);
    let answer = megapage_heap_open(pool, c"one".as_ptr(), &raw const options, &raw mut heap, &raw mut found);
    assert_eq!(answer, 0, "{}", said());
    (heap, found)
}

const NONE: megapage_handle = megapage_handle { offset: 0, serial: 0 };

fn allocate(heap: megapage_heap, length: u64, tag: u64) -> megapage_handle {
    let mut handle = NONE;
    assert_eq!(
        megapage_heap_allocate(heap, length, 0, MEGAPAGE_ZEROED, tag, &raw mut handle),
        0,
        "{}",
        said()
    );
    handle
}

#[test]
fn a_heap_is_found_again() {
    let (_tree, pool) = pool();
    let (heap_id, found) = heap(pool, options(4 << 20));
    assert_eq!(found, 0);
    let handle = allocate(heap_id, 1000, 7);
    assert_eq!(megapage_heap_set_root(heap_id, handle), 0);
    let (mut address, mut length) = (null_mut(), 0);
    assert_eq!(megapage_heap_block(heap_id, handle, 7, &raw mut address, &raw mut length), 0);
    assert_eq!((length, address.addr() % 64), (1000, 0));
    assert_eq!(megapage_heap_close(heap_id), 0);
    let (heap_id, found) = heap(pool, options(4 << 20));
    assert_eq!(found, 1);
    let mut root = NONE;
    assert_eq!(megapage_heap_root(heap_id, &raw mut root), 0);
    assert_eq!(root, handle);
    let mut same = NONE;
    assert_eq!(megapage_heap_find(heap_id, 7, &raw mut same), 0);
    assert_eq!(same, handle);
    assert_eq!(megapage_heap_find(heap_id, 8, &raw mut same), 0);
    assert_eq!(same, NONE);
    // It grows, in place or elsewhere, and the root moves along.
    assert_eq!(megapage_heap_resize(heap_id, &raw mut root, 100_000), 0, "{}", said());
    let mut now = NONE;
    assert_eq!(megapage_heap_root(heap_id, &raw mut now), 0);
    assert_eq!(now, root);
    let mut about = megapage_segment_info::default();
    assert_eq!(megapage_heap_about(heap_id, &raw mut about), 0);
    assert_eq!((about.size, about.page_size, about.hugetlb, about.owner), (4 << 20, MEGAPAGE_2M, 0, 1));
    assert!(about.dirty_pages >= 1 && about.openings == 1, "{about:?}");
    assert_eq!(megapage_heap_close(heap_id), 0);
    let mut memory = 0;
    assert_eq!(megapage_pool_remove(pool, c"one".as_ptr(), &raw mut memory), 0, "{}", said());
    assert!(memory > 0);
    assert_eq!(megapage_pool_remove(pool, c"one".as_ptr(), null_mut()), -ENOENT);
    assert_eq!(megapage_pool_close(pool), 0);
}

#[test]
fn reused_pages_are_touched_at_the_first_access_or_when_populated() {
    let (_tree, pool) = pool();
    let absent = |flags: u32| {
        let asked = megapage_options { flags, ..options(8 << 20) };
        let (mut segment, mut address, mut length) = (0, null_mut(), 0);
        let answer = megapage_segment_open(pool, c"one".as_ptr(), &raw const asked, &raw mut segment);
        assert_eq!(answer, 0, "{}", said());
        assert_eq!(megapage_segment_memory(segment, &raw mut address, &raw mut length), 0);
        let mut backing = megapage_backing::default();
        assert_eq!(megapage_backing_of(address, length as usize, &raw mut backing), 0, "{}", said());
        assert_eq!(megapage_segment_close(segment), 0);
        backing.absent
    };
    assert_eq!(absent(0), 0, "fresh pages are there at once");
    assert!(absent(0) > 4 << 20);
    assert_eq!(absent(MEGAPAGE_POPULATE), 0);
    assert_eq!(megapage_pool_close(pool), 0);
}

#[test]
fn segments_and_heaps_are_handed_over_to_a_successor() {
    let (tree, pool) = pool();
    let path = c(std::fs::canonicalize(tree.path()).unwrap().join("upgrade").to_str().unwrap());
    let (heap, _) = heap(pool, options(4 << 20));
    let handle = allocate(heap, 64, 1);
    assert_eq!(megapage_heap_set_root(heap, handle), 0);
    let open = |name: &std::ffi::CStr, layout: u32| {
        let (mut segment, mut address, mut length) = (0, null_mut(), 0);
        let asked = megapage_options { unlink: MEGAPAGE_UNLINK_ALWAYS, layout, ..options(4 << 20) };
        let answer = megapage_segment_open(pool, name.as_ptr(), &raw const asked, &raw mut segment);
        assert_eq!(answer, 0, "{}", said());
        assert_eq!(megapage_segment_memory(segment, &raw mut address, &raw mut length), 0);
        (segment, address.addr())
    };
    let (unlinked, _) = open(c"two", MEGAPAGE_SINGLE_FILE);
    let (scattered, _) = open(c"three", MEGAPAGE_FILE_PER_PAGE);
    let mut listener = 0;
    assert_eq!(megapage_upgrade_listen(path.as_ptr(), &raw mut listener), 0, "{}", said());
    assert!(megapage_upgrade_descriptor(listener) > 2);
    assert_eq!(megapage_upgrade_wait(listener, 0), 0);
    let hand_over =
        |handles: &[u64]| megapage_upgrade_hand_over(listener, handles.as_ptr(), handles.len(), 60_000);
    assert_eq!(hand_over(&[heap]), -ENOTCONN);
    let take_over = || {
        let (mut segments, mut count) = ([0; MEGAPAGE_UPGRADE_MOST], usize::MAX);
        let (to, many) = (segments.as_mut_ptr(), &raw mut count);
        let answer = megapage_upgrade_take_over(path.as_ptr(), 60_000, to, many);
        (answer, segments[..if answer == 0 { count } else { 0 }].to_vec())
    };
    let meet = |handles: &[u64]| {
        std::thread::scope(|scope| {
            let successor = scope.spawn(take_over);
            assert_eq!(megapage_upgrade_wait(listener, 60_000), 1);
            assert_eq!(megapage_upgrade_wait(listener, 0), 1, "it is still there");
            (hand_over(handles), successor.join().unwrap())
        })
    };
    // A handle that cannot be handed over stays, and so do all that were to go with it.
    let many = [heap; MEGAPAGE_UPGRADE_MOST + 1];
    for (handles, errno) in
        [(&[heap, unlinked, scattered][..], EINVAL), (&[heap, pool], EBADF), (&[heap, heap], EBADF)]
    {
        let (answer, (refused, segments)) = meet(handles);
        assert_eq!((answer, refused, segments.len()), (-errno, -EPROTO, 0), "{}", said());
        let mut root = NONE;
        assert_eq!(megapage_heap_root(heap, &raw mut root), 0, "{}", said());
        assert_eq!(root, handle);
    }
    assert_eq!(hand_over(&many), -EINVAL);
    let (answer, (taken, segments)) = meet(&[heap, unlinked]);
    assert_eq!((answer, taken, segments.len()), (0, 0, 2), "{}", said());
    assert_eq!(megapage_heap_close(heap), -EBADF);
    assert_eq!(megapage_segment_close(unlinked), -EBADF);
    assert_eq!(megapage_upgrade_close(listener), -EBADF);
    let (mut theirs, mut found, mut root) = (0, 9, NONE);
    assert_eq!(megapage_heap_of_segment(segments[0], &raw mut theirs, &raw mut found), 0, "{}", said());
    assert_eq!(megapage_heap_root(theirs, &raw mut root), 0);
    assert_eq!((found, root), (1, handle));
    assert_eq!(megapage_segment_close(segments[0]), -EBADF, "the heap has it");
    let mut about = megapage_segment_info::default();
    assert_eq!(megapage_segment_about(segments[1], &raw mut about), 0);
    assert_eq!((about.owner, about.dirty_pages), (1, 2));
    // No process listens any more.
    assert_eq!(take_over(), (0, Vec::new()));
    for close in [segments[1], scattered] {
        assert_eq!(megapage_segment_close(close), 0);
    }
    assert_eq!(megapage_heap_close(theirs), 0);
    assert_eq!(megapage_pool_close(pool), 0);
}

#[test]
fn handles_that_lead_nowhere_are_errors() {
    let (_tree, pool) = pool();
    let (heap, _) = heap(pool, options(4 << 20));
    let handle = allocate(heap, 10, 1);
    let mut address = null_mut();
    let mut block = |heap, handle, tag| megapage_heap_block(heap, handle, tag, &raw mut address, null_mut());
    assert_eq!(block(heap, handle, 2), -EPROTOTYPE);
    assert!(said().contains("is of type 0x1, not 0x2"), "{}", said());
    assert_eq!(block(pool, handle, 1), -EBADF);
    assert_eq!(said(), format!("{pool} is no open heap"));
    assert_eq!(block(0, handle, 1), -EBADF);
    assert_eq!(block(u64::MAX, handle, 1), -EBADF);
    assert_eq!(megapage_segment_close(heap), -EBADF);
    assert_eq!(megapage_heap_free(heap, handle), 0);
    assert_eq!(megapage_heap_free(heap, handle), -ESTALE);
    assert_eq!(block(heap, handle, 1), -ESTALE);
    assert_eq!(megapage_heap_set_root(heap, handle), -ESTALE);
    assert_eq!(megapage_heap_free(heap, megapage_handle { offset: 3, serial: u64::MAX }), -ESTALE);
    assert_eq!(megapage_heap_close(heap), 0);
    assert_eq!(megapage_heap_close(heap), -EBADF);
    assert_eq!(block(heap, handle, 1), -EBADF);
    assert_eq!(megapage_pool_close(pool), 0);
    assert_eq!(megapage_pool_close(pool), -EBADF);
}

#[test]
fn pointers_and_values_that_make_no_sense_are_errors() {
    let (_tree, pool) = pool();
    let asked = options(4 << 20);
    let mut out = 0u64;
    let name = c"one".as_ptr();
    let open = |name: *const c_char, options: *const megapage_options, out: *mut u64| {
        megapage_heap_open(pool, name, options, out, null_mut())
    };
    assert_eq!(open(null(), &raw const asked, &raw mut out), -EINVAL);
    assert_eq!(said(), "the name is a null pointer");
    assert_eq!(open(name, null(), &raw mut out), -EINVAL);
    assert_eq!(open(name, &raw const asked, null_mut()), -EINVAL);
    assert_eq!(said(), "the pointer for the heap is null or misaligned");
    let odd = (&raw mut out).wrapping_byte_add(1);
    assert_eq!(open(name, &raw const asked, odd), -EINVAL);
    assert_eq!(open(c"../other".as_ptr(), &raw const asked, &raw mut out), -EINVAL);
    assert_eq!(open(c"caf\xe9".as_ptr(), &raw const asked, &raw mut out), -EINVAL);
    assert_eq!(said(), "the name is not UTF-8");
    for bad in [
        megapage_options { unlink: 3, ..asked },
        megapage_options { layout: 2, ..asked },
        megapage_options { node: -2, ..asked },
        megapage_options { node: 4000, ..asked },
        megapage_options { size: 0, ..asked },
        megapage_options { mode: 0o7777, ..asked },
        megapage_options { flags: 2, ..asked },
        megapage_options { reserved: 1, ..asked },
    ] {
        assert_eq!(open(name, &raw const bad, &raw mut out), -EINVAL, "{bad:?}: {}", said());
    }
    assert_eq!(out, 0, "a result is not written on an error");
    assert_eq!(megapage_pool_open_in(c"/".as_ptr(), c"app".as_ptr(), 4096, &raw mut out), -EINVAL);
    assert_eq!(megapage_advise(null(), 0, 0, null_mut()), -EINVAL);
    assert_eq!(megapage_advise(null::<u8>().wrapping_add(4096).cast(), usize::MAX, 0, null_mut()), -EINVAL);
    assert_eq!(megapage_backing_of((&raw const out).cast(), 8, null_mut()), -EINVAL);
    assert_eq!(megapage_tag(null()), 0);
    assert_eq!(megapage_tag(c"index/1".as_ptr()), ::megapage_segment::heap::Tag::named("index/1").0);
    let (heap, _) = heap(pool, asked);
    let mut handle = NONE;
    for (length, alignment, flags) in [(0, 0, 0), (8, 3, 0), (8, 1 << 31, 0), (8, 0, 2)] {
        let answer = megapage_heap_allocate(heap, length, alignment, flags, 1, &raw mut handle);
        assert_eq!(answer, -EINVAL, "{length} {alignment} {flags}");
    }
    assert_eq!(handle, NONE);
    let version = crate::pointers::text(megapage_version(), "the version").unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_segment_without_a_heap_is_one_piece_of_memory() {
    let (mut segment, mut address, mut length) = (0, null_mut(), 0);
    let size = 4 << 20;
    let answer =
        megapage_segment_in_memory(c"piece".as_ptr(), MEGAPAGE_2M, 0, size, 8 << 20, &raw mut segment);
    assert_eq!(answer, 0, "{}", said());
    assert_eq!(megapage_segment_memory(segment, &raw mut address, &raw mut length), 0);
    assert!(length > size - (64 << 10) && length < size && !address.is_null());
    assert_eq!(megapage_segment_grow(segment, 6 << 20), 0, "{}", said());
    let mut about = megapage_segment_info::default();
    assert_eq!(megapage_segment_about(segment, &raw mut about), 0);
    assert_eq!((about.size, about.most, about.fresh_pages), (6 << 20, 8 << 20, 2));
    assert!(megapage_segment_grow(segment, 16 << 20) < 0);
    let mut backing = megapage_backing::default();
    assert_eq!(megapage_backing_of(address, length as usize, &raw mut backing), 0, "{}", said());
    let sum = backing.thp + backing.base + backing.absent;
    assert!(sum >= length && backing.hugetlb_1g + backing.hugetlb_2m == 0, "{backing:?}");
    assert_eq!(megapage_segment_close(segment), 0);
}

#[test]
fn who_shares_a_heap_reads_and_does_not_allocate() {
    let (_tree, pool) = pool();
    let (owner, _) = heap(pool, options(4 << 20));
    let mut shared = 0;
    // The owner is this process, so that its addresses are taken.
    assert!(megapage_heap_share(pool, c"one".as_ptr(), &raw mut shared) < 0);
    assert_eq!(megapage_heap_share(pool, c"two".as_ptr(), &raw mut shared), -ENOENT);
    assert_eq!(megapage_heap_close(owner), 0);
    let answer = megapage_heap_share(pool, c"one".as_ptr(), &raw mut shared);
    // Another test of this process may have taken these addresses by now.
    if answer == 0 {
        let mut handle = NONE;
        assert_eq!(megapage_heap_allocate(shared, 8, 0, 0, 1, &raw mut handle), -EPERM);
        assert_eq!(megapage_heap_close(shared), 0);
    }
}

#[test]
fn advice_keeps_contents_and_tells_the_backing() {
    let memory = vec![0x5au8; 8 << 20];
    let mut backing = megapage_backing::default();
    let flags = MEGAPAGE_ADVISE_NOW | MEGAPAGE_ADVISE_POPULATE;
    let answer = megapage_advise(memory.as_ptr().cast(), memory.len(), flags, &raw mut backing);
    assert!(memory.iter().all(|byte| *byte == 0x5a));
    // A kernel without transparent huge pages says so; no other error is allowed.
    if answer == 0 {
        let sum = backing.thp + backing.base + backing.absent;
        let pages = (memory.len() + 4096) as u64;
        assert!((memory.len() as u64..=pages).contains(&sum) || backing.exact == 0, "{backing:?}");
        assert_eq!(backing.hugetlb_2m + backing.hugetlb_1g, 0);
    } else {
        assert_eq!(answer, -EINVAL, "{}", said());
    }
    assert_eq!(megapage_advise(memory.as_ptr().cast(), memory.len(), 4, null_mut()), -EINVAL);
}

#[test]
fn threads_may_call_at_the_same_time() {
    let (_tree, pool) = pool();
    let asked = megapage_options { most: 32 << 20, ..options(8 << 20) };
    let (heap, _) = heap(pool, asked);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..50 {
                    let handles: Vec<_> =
                        (0..10).map(|number| allocate(heap, 100 + 64 * number, thread)).collect();
                    for handle in handles {
                        let (mut address, mut length) = (null_mut(), 0);
                        let answer =
                            megapage_heap_block(heap, handle, thread, &raw mut address, &raw mut length);
                        assert_eq!(answer, 0, "{round}: {}", said());
                        assert_eq!(megapage_heap_free(heap, handle), 0, "{round}: {}", said());
                    }
                }
            });
        }
    });
    // Closed while others use it: they are served, or get an error.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let mut handle = NONE;
                let mut answer = 0;
                while answer == 0 {
                    answer = megapage_heap_allocate(heap, 8, 0, 0, 1, &raw mut handle);
                }
                assert!(answer == -EBADF || answer == -crate::failure::errno::ENOSPC, "{answer}");
            });
        }
        assert_eq!(megapage_heap_close(heap), 0);
    });
}

#[test]
fn messages_end_in_a_zero_byte() {
    megapage_pool_close(0);
    assert_eq!(said(), "0 is no open pool");
}
