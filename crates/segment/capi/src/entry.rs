//! The entry points.
//!
//! File-level obligation: an entry point follows no pointer itself: `pointers` does. Pointers that
//! it returns lead into a segment, which stays mapped until its handle is closed.

#![allow(unsafe_code)]

use crate::advice;
use crate::failure::{Failure, answer, done, give, message};
use crate::memory::{
    allocate, block, contents, default_options, find, info, name, options, ours, page_size, theirs,
};
use crate::pointers::{Out, array, optional, read, text};
use crate::remap;
use crate::tables::{HEAPS, LISTENERS, POOLS, SEGMENTS};
use crate::types::{
    MEGAPAGE_UPGRADE_MOST, megapage_backing, megapage_handle, megapage_heap, megapage_listener,
    megapage_options, megapage_pool, megapage_remapped, megapage_segment, megapage_segment_info,
};
use crate::upgrade;
use crate::waiting::Waiting;
use ::megapage_segment::heap::Tag;
use ::megapage_segment::{Heap, Pool, Segment};
use megapage_units::Bytes;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

/// Returns the message of this thread's last failed call, in one line; empty if none has failed.
/// The string belongs to the library. It is valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_message() -> *const c_char {
    message()
}

/// Returns the version of the library, such as "0.1.0". The string belongs to the library.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns the type number for a name such as "index/2" (FNV-1a, 64 bits); 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_tag(name: *const c_char) -> u64 {
    text(name, "the name").map_or(0, |name| Tag::named(&name).0)
}

/// Opens the pool of this user and application, on a hugetlbfs with pages of page_size. Makes the
/// pool if there is none. A mount that holds the pool already is preferred. If no such hugetlbfs is
/// mounted, root mounts one below /run/megapage.
///
/// application: 1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit.
///
/// Errors: -ENODEV no hugetlbfs; -EPERM the pool is not this user's own; -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_pool_open(
    application: *const c_char,
    page_size: u64,
    pool: *mut megapage_pool,
) -> c_int {
    give(pool, "the pool", || {
        let application = name(&text(application, "the application")?)?;
        Ok(POOLS.add(Pool::open(&application, self::page_size(page_size)?)?))
    })
}

/// Opens or makes a pool, as megapage_pool_open does, in a directory of the caller's choice. The
/// directory is an absolute path without symbolic links. If it is not on hugetlbfs, segments are on
/// base pages, in units of page_size. Programs then run without huge pages, only slower.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_pool_open_in(
    directory: *const c_char,
    application: *const c_char,
    page_size: u64,
    pool: *mut megapage_pool,
) -> c_int {
    give(pool, "the pool", || {
        let directory = text(directory, "the directory")?;
        let application = name(&text(application, "the application")?)?;
        let size = self::page_size(page_size)?;
        Ok(POOLS.add(Pool::open_in(Path::new(&directory), &application, size)?))
    })
}

/// Closes a pool. Its open segments stay open.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_pool_close(pool: megapage_pool) -> c_int {
    done(|| POOLS.close(pool))
}

/// Removes a segment, whatever state it is in. memory: receives the bytes that its files held; may
/// be null.
///
/// Errors: -ENOENT there is none; -EBUSY it is open somewhere; -EPERM it holds a foreign file.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_pool_remove(
    pool: megapage_pool,
    segment: *const c_char,
    memory: *mut u64,
) -> c_int {
    answer(|| {
        let out = optional(memory, "the memory")?;
        let removed = POOLS.get(pool)?.remove_segment(&name(&text(segment, "the name")?)?)?;
        if let Some(out) = out {
            out.write(removed.memory.0);
        }
        Ok(0)
    })
}

/// Fills in the defaults: fresh memory of size bytes, in one file, on any node, for its user only.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_options_init(options: *mut megapage_options, size: u64) -> c_int {
    give(options, "the options", || Ok(default_options(size)))
}

/// Opens a segment as its owner, and makes it if there is none. All its pages are allocated when
/// this returns: no access raises SIGBUS for lack of a page. Reused pages are mapped without being
/// touched (see MEGAPAGE_POPULATE).
///
/// Errors: -ENOMEM the pool is too small; -EBUSY another process has it; -EEXIST the segment to be
/// reused has another shape; -EBADMSG the segment to be reused is damaged; -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_open(
    pool: megapage_pool,
    name: *const c_char,
    options: *const megapage_options,
    segment: *mut megapage_segment,
) -> c_int {
    give(segment, "the segment", || Ok(SEGMENTS.add(open_segment(pool, name, options)?)))
}

/// Maps a segment at its owner's address, to read and write its contents. It cannot be removed
/// while it is open.
///
/// Errors: -ENOENT; -EADDRINUSE this process already uses that address.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_share(
    pool: megapage_pool,
    name: *const c_char,
    segment: *mut megapage_segment,
) -> c_int {
    give(segment, "the segment", || {
        let name = self::name(&text(name, "the name")?)?;
        Ok(SEGMENTS.add(POOLS.get(pool)?.share_segment(&name)?))
    })
}

/// Makes a segment that ends with this process: on hugetlb pages of page_size, or on base pages if
/// hugetlb is 0. It may grow to most bytes; 0: its size.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_in_memory(
    name: *const c_char,
    page_size: u64,
    hugetlb: c_int,
    size: u64,
    most: u64,
    segment: *mut megapage_segment,
) -> c_int {
    give(segment, "the segment", || {
        let name = self::name(&text(name, "the name")?)?;
        let (pages, most) = (self::page_size(page_size)?, Bytes(most.max(size)));
        Ok(SEGMENTS.add(Segment::in_memory(name, pages, hugetlb != 0, Bytes(size), most)?))
    })
}

/// Returns the properties of a segment.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_about(
    segment: megapage_segment,
    about: *mut megapage_segment_info,
) -> c_int {
    give(about, "what is known", || Ok(info(&*SEGMENTS.get(segment)?)))
}

/// Returns all memory of a segment except its header, as one piece: for programs that keep no heap
/// in it. All its pages count as dirty from then on. The memory is valid until the segment is
/// closed.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_memory(
    segment: megapage_segment,
    address: *mut *mut c_void,
    length: *mut u64,
) -> c_int {
    answer(|| {
        let (address, length) = (Out::new(address, "the address")?, Out::new(length, "the length")?);
        let (start, bytes) = contents(&*SEGMENTS.get(segment)?)?;
        address.write(start);
        length.write(bytes);
        Ok(0)
    })
}

/// Grows a segment to at least size bytes, with fresh pages. On an error its size is unchanged.
///
/// Errors: -ENOSPC size exceeds its maximum; -ENOMEM the pool is too small.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_grow(segment: megapage_segment, size: u64) -> c_int {
    done(|| Ok(SEGMENTS.get(segment)?.grow(Bytes(size))?))
}

/// Unmaps a segment. Its files stay, unless they were unlinked. All pointers into it are invalid
/// from then on.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_close(segment: megapage_segment) -> c_int {
    done(|| SEGMENTS.close(segment))
}

/// Opens a segment, as megapage_segment_open does, and the heap in it. Makes a heap if there is
/// none. found: receives 1 if there was a heap, else 0; may be null. An operation that a killed
/// process has left unfinished is completed.
///
/// Errors: as megapage_segment_open.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_open(
    pool: megapage_pool,
    name: *const c_char,
    options: *const megapage_options,
    heap: *mut megapage_heap,
    found: *mut u32,
) -> c_int {
    answer(|| {
        let (out, found_out) = (Out::new(heap, "the heap")?, optional(found, "found")?);
        let (heap, found) = Heap::open_or_format(open_segment(pool, name, options)?)?;
        out.write(HEAPS.add(heap));
        if let Some(out) = found_out {
            out.write(u32::from(found));
        }
        Ok(0)
    })
}

/// Maps another process's heap at its owner's address, to read and write its contents.
/// megapage_heap_block and megapage_heap_root work; allocating and freeing fail with -EPERM.
///
/// Errors: -ENOENT; -ENODATA the segment holds no heap; -EADDRINUSE.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_share(
    pool: megapage_pool,
    name: *const c_char,
    heap: *mut megapage_heap,
) -> c_int {
    give(heap, "the heap", || {
        let name = self::name(&text(name, "the name")?)?;
        Ok(HEAPS.add(Heap::open(POOLS.get(pool)?.share_segment(&name)?)?))
    })
}

/// Returns the properties of the segment that holds a heap.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_about(heap: megapage_heap, about: *mut megapage_segment_info) -> c_int {
    give(about, "what is known", || Ok(info(HEAPS.get(heap)?.segment())))
}

/// Allocates length bytes. The heap grows if it has to and may.
///
/// alignment: a power of two up to 1 GiB, in the segment and in memory; 0: 64. flags: 0 or
/// MEGAPAGE_ZEROED; without it the bytes may hold old contents. tag: the type of the contents, a
/// number that the program chooses (see megapage_tag).
///
/// Errors: -ENOSPC; -ENOMEM the pool is too small to grow; -EINVAL; -EPERM another process owns the
/// heap.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_allocate(
    heap: megapage_heap,
    length: u64,
    alignment: u64,
    flags: u32,
    tag: u64,
    handle: *mut megapage_handle,
) -> c_int {
    give(handle, "the handle", || Ok(theirs(allocate(&*HEAPS.get(heap)?, length, alignment, flags, tag)?)))
}

/// Frees the block that a handle leads to. The handle and all copies of it lead to nothing from
/// then on. Pointers into the block are invalid.
///
/// Errors: -ESTALE the handle leads to nothing; -EBUSY the block is the root.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_free(heap: megapage_heap, handle: megapage_handle) -> c_int {
    done(|| Ok(HEAPS.get(heap)?.free(ours(handle))?))
}

/// Makes the block that a handle leads to length bytes long. A block that cannot grow in its place
/// is copied, to a multiple of 64. The handle is then changed, and the root if it was this block.
/// Bytes beyond the old length may be anything. On an error nothing has changed.
///
/// Errors: -ESTALE; -ENOSPC; -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_resize(
    heap: megapage_heap,
    handle: *mut megapage_handle,
    length: u64,
) -> c_int {
    answer(|| {
        let former = read(handle, "the handle")?;
        let out = Out::new(handle, "the handle")?;
        out.write(theirs(HEAPS.get(heap)?.resize(ours(former), length)?));
        Ok(0)
    })
}

/// Returns the address of a block, and its length in bytes. length may be null. Both are valid
/// until the block is freed or resized, or the heap is closed. The address may be another after a
/// restart: store handles, not pointers.
///
/// Errors: -ESTALE the block was freed, or is of another heap; -EPROTOTYPE its type is not tag.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_block(
    heap: megapage_heap,
    handle: megapage_handle,
    tag: u64,
    address: *mut *mut c_void,
    length: *mut u64,
) -> c_int {
    answer(|| {
        let (out, length) = (Out::new(address, "the address")?, optional(length, "the length")?);
        let (address, bytes) = block(&*HEAPS.get(heap)?, ours(handle), tag)?;
        out.write(address);
        if let Some(length) = length {
            length.write(bytes);
        }
        Ok(0)
    })
}

/// Returns the first block of a type, by address; {0, 0} if there is none. It is for blocks to
/// which the program has stored no handle. Looks at every block.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_find(heap: megapage_heap, tag: u64, handle: *mut megapage_handle) -> c_int {
    give(handle, "the handle", || Ok(find(&*HEAPS.get(heap)?, tag)?.map(theirs).unwrap_or_default()))
}

/// Returns the root: the block that megapage_heap_set_root was given last, in this run or before.
/// {0, 0} if there is none. No other handle is needed to find it.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_root(heap: megapage_heap, handle: *mut megapage_handle) -> c_int {
    give(handle, "the handle", || Ok(HEAPS.get(heap)?.root()?.map(theirs).unwrap_or_default()))
}

/// Sets the root: the block that a later process finds with megapage_heap_root. This is one step: a
/// kill leaves the old root or the new one. {0, 0}: no root.
///
/// Errors: -ESTALE; -EPERM another process owns the heap.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_set_root(heap: megapage_heap, handle: megapage_handle) -> c_int {
    done(|| {
        let root = (handle != megapage_handle::default()).then(|| ours(handle));
        Ok(HEAPS.get(heap)?.set_root(root)?)
    })
}

/// Unmaps a heap and its segment. All pointers into it are invalid from then on.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_close(heap: megapage_heap) -> c_int {
    done(|| HEAPS.close(heap))
}

/// Opens the heap in a segment that was taken over, or makes one if there is none. Closes the
/// segment's handle; the heap's takes its place. found may be null: see megapage_heap_open.
///
/// Errors that keep the segment's handle open: -EPERM another process owns the segment; -EBUSY
/// another thread uses it. An error that closes it: -EBADMSG the heap is damaged.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_of_segment(
    segment: megapage_segment,
    heap: *mut megapage_heap,
    found: *mut u32,
) -> c_int {
    answer(|| {
        let (out, found_out) = (Out::new(heap, "the heap")?, optional(found, "found")?);
        let (heap, found) = upgrade::heap_of(segment)?;
        out.write(heap);
        if let Some(out) = found_out {
            out.write(u32::from(found));
        }
        Ok(0)
    })
}

/// Listens on the socket path for the next version of this program, which takes over its segments
/// without needing more pages. Replaces an existing socket at path. Accepts only processes of this
/// user.
///
/// Errors: -EPERM path exists and is no socket.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_listen(path: *const c_char, listener: *mut megapage_listener) -> c_int {
    give(listener, "the listener", || {
        let path = text(path, "the path")?;
        Ok(LISTENERS.add(Waiting::on(Path::new(&path))?))
    })
}

/// Returns a descriptor for poll(2), readable when a successor has connected. It belongs to the
/// library: do not close it. It is valid until the listener is closed or has handed over.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_descriptor(listener: megapage_listener) -> c_int {
    answer(|| Ok(LISTENERS.get(listener)?.descriptor()))
}

/// Waits up to milliseconds for a successor. Returns 1 if there is one, 0 if there is none yet.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_wait(listener: megapage_listener, milliseconds: u32) -> c_int {
    answer(|| {
        let patience = Duration::from_millis(milliseconds.into());
        Ok(c_int::from(LISTENERS.get(listener)?.wait(patience)?))
    })
}

/// Hands segments and heaps over to the successor that megapage_upgrade_wait has met: all, or none.
/// handles: count handles of segments and heaps that this process owns, at most
/// MEGAPAGE_UPGRADE_MOST. Stop using them first: no pointer into them may be followed any more.
/// Waits for each step of the successor, until milliseconds are over.
///
/// Returns 0 if the successor owns them; all these handles and the listener's are closed. Returns 1
/// if they were given to the successor, but it did not answer in time. The handles are closed then,
/// too, and this process must not open the segments again.
///
/// On an error nothing was handed over. All handles stand for the same objects, as after a restart:
/// obtain pointers again.
///
/// Errors: -ENOTCONN no successor waits; -EPROTO it ended, refused, or did not answer in time;
/// -EBUSY another thread uses a handle; -EINVAL an object cannot be handed over
/// (MEGAPAGE_UNLINK_ALWAYS with MEGAPAGE_FILE_PER_PAGE, or another process's).
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_hand_over(
    listener: megapage_listener,
    handles: *const u64,
    count: usize,
    milliseconds: u32,
) -> c_int {
    answer(|| {
        let handles = array(handles, count.min(MEGAPAGE_UPGRADE_MOST + 1), "the handles")?;
        let confirmed = upgrade::hand_over(listener, &handles, Duration::from_millis(milliseconds.into()))?;
        Ok(c_int::from(!confirmed))
    })
}

/// Takes over the segments of the process that listens on path. segments: room for
/// MEGAPAGE_UPGRADE_MOST handles, filled in the order in which they were handed over. count:
/// receives their number. With a count of 0, start as usual: no process listens, or it ended before
/// it had offered all. Open heaps with megapage_heap_of_segment.
///
/// Errors: -EPROTO the predecessor refused, or did not answer within milliseconds; it goes on as
/// the owner.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_take_over(
    path: *const c_char,
    milliseconds: u32,
    segments: *mut megapage_segment,
    count: *mut usize,
) -> c_int {
    answer(|| {
        let (segments, count) = (Out::new(segments, "the segments")?, Out::new(count, "the count")?);
        let path = text(path, "the path")?;
        let taken = upgrade::taken_over(Path::new(&path), Duration::from_millis(milliseconds.into()))?;
        segments.write_all(&taken);
        count.write(taken.len());
        Ok(0)
    })
}

/// Stops listening, and removes the socket.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_close(listener: megapage_listener) -> c_int {
    done(|| LISTENERS.close(listener))
}

/// Asks for huge pages for the base pages in which length bytes from address on lie. Returns their
/// backing. Their contents stay. flags: 0, MEGAPAGE_ADVISE_NOW, MEGAPAGE_ADVISE_POPULATE, or both.
/// backing may be null. Success means that the advice was given; backing shows the result.
///
/// Errors: -EINVAL no range, or the kernel has no transparent huge pages; -ENOMEM a part is not
/// mapped.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_advise(
    address: *const c_void,
    length: usize,
    flags: u32,
    backing: *mut megapage_backing,
) -> c_int {
    answer(|| {
        let out = optional(backing, "the backing")?;
        advice::advise(address.addr(), length, flags)?;
        if let Some(out) = out {
            out.write(advice::backing(address.addr(), length)?);
        }
        Ok(0)
    })
}

/// Returns the backing of the base pages in which length bytes from address on lie, as the kernel
/// reports it. Reads the list of all mappings of the process: some microseconds for each.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_backing_of(
    address: *const c_void,
    length: usize,
    backing: *mut megapage_backing,
) -> c_int {
    give(backing, "the backing", || advice::backing(address.addr(), length))
}

/// Moves the ELF segments of the calling program onto huge pages: its code, its constants and, if
/// it has one thread, its data. Their addresses, contents and access stay. The memory is the
/// process's own from then on, and /proc/PID/maps names no file for it. The program may go on while
/// it is moved. Calling it again is harmless.
///
/// pages: MEGAPAGE_REMAP_THP, MEGAPAGE_REMAP_2M or MEGAPAGE_REMAP_1G. libraries: names of libraries
/// to move besides, as the loader opens them, separated by colons, such as "libpython3.11.so.1.0";
/// null: none. flags: 0 or MEGAPAGE_REMAP_REQUIRE. remapped may be null. Success means that all was
/// tried; remapped shows the result.
///
/// Threads: call it first in main, while there is one thread. Data is moved only then: writes by
/// other threads meanwhile would be lost. With more threads only code and constants are moved. No
/// thread may change these during the call (a debugger's or the program's own patches, mprotect).
/// No I/O by the kernel itself (io_uring, AIO) into static data may be under way. Concurrent calls
/// wait for each other.
///
/// Ownership: do not close a library opened with dlopen during the call. Never close one that is on
/// pages of the pool: its addresses could not be given back. On pages of the pool, mprotect and
/// munmap of single base pages fail (EINVAL). Locks (mlock) and advice (madvise) on the moved
/// memory are lost: give them afterwards.
///
/// Errors: -ENOENT no library of that name is loaded; -EACCES the process may not make executable
/// what it has written (PR_SET_MDWE, a security module), other numbers if a seccomp filter refuses
/// it; -EOPNOTSUPP the program was built with a sanitizer; -ENOMEM control groups leave no room for
/// the copy; -EINVAL. With MEGAPAGE_REMAP_REQUIRE also -ENOMEM if the kernel lacks pages for all of
/// it, and -EBUSY if a part has to stay as it is. What was moved then stays moved, and remapped is
/// filled in.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_remap_self(
    pages: u32,
    libraries: *const c_char,
    flags: u32,
    remapped: *mut megapage_remapped,
) -> c_int {
    answer(|| {
        let out = optional(remapped, "the result")?;
        let libraries = if libraries.is_null() { None } else { Some(text(libraries, "the libraries")?) };
        let done = remap::remap_self(pages, libraries.as_deref(), flags)?;
        if let Some(out) = out {
            out.write(done.remapped);
        }
        done.missing.map_or(Ok(0), Err)
    })
}

fn open_segment(
    pool: megapage_pool,
    name: *const c_char,
    options: *const megapage_options,
) -> Result<Segment, Failure> {
    let name = self::name(&text(name, "the name")?)?;
    let asked = self::options(name, &read(options, "the options")?)?;
    Ok(POOLS.get(pool)?.open_segment(&asked)?)
}
