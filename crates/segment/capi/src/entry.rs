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

/// What went wrong in the last call of this thread that failed, in one line. Empty where none has failed. The string
/// is the library's, and valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_message() -> *const c_char {
    message()
}

/// The version of the library, such as "0.1.0". The string is the library's.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The type number for a name such as "index/2" (FNV-1a, 64 bits); 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_tag(name: *const c_char) -> u64 {
    text(name, "the name").map_or(0, |name| Tag::named(&name).0)
}

/// Opens the pool of this user and application on a hugetlbfs with pages of page_size, and makes it where there is none.
/// A mount that has it already is taken first. Where none is mounted, root mounts one below /run/megapage.
///
/// application: 1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit.
/// Errors: -ENODEV no hugetlbfs, -EPERM it is not this user's own, -EINVAL.
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

/// The same in a directory of the caller's choice, an absolute path without symbolic links. Where it is not on
/// hugetlbfs, segments are on base pages, in units of page_size: so programs run, slower, where no huge page is.
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

/// Closes a pool. Segments of it that are open stay so.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_pool_close(pool: megapage_pool) -> c_int {
    done(|| POOLS.close(pool))
}

/// Removes a segment, whatever state it is in. memory: the bytes that its files held; may be null.
///
/// Errors: -ENOENT there is none, -EBUSY it is open somewhere, -EPERM it holds what is not ours.
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

/// Fills in what is wanted mostly: fresh memory of size bytes, in one file, of any node, for its user alone.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_options_init(options: *mut megapage_options, size: u64) -> c_int {
    give(options, "the options", || Ok(default_options(size)))
}

/// Opens a segment as its owner, and makes it where there is none. All its pages are there when this returns: no access
/// raises SIGBUS for want of them. Those that are reused are mapped without being touched (see MEGAPAGE_POPULATE).
///
/// Errors: -ENOMEM the pool is too small, -EBUSY another process has it, -EEXIST one of another shape is to be reused,
/// -EBADMSG what is to be reused is damaged, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_open(
    pool: megapage_pool,
    name: *const c_char,
    options: *const megapage_options,
    segment: *mut megapage_segment,
) -> c_int {
    give(segment, "the segment", || Ok(SEGMENTS.add(open_segment(pool, name, options)?)))
}

/// Maps a segment where its owner has it, to read and write what is in it. While it is open it is not removed.
///
/// Errors: -ENOENT, -EADDRINUSE something of this process is at that address.
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

/// Makes a segment that ends with this process: on hugetlb pages of page_size, or with hugetlb 0 on base pages. It may
/// grow to most bytes; 0: its size.
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

/// What is known of a segment.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_about(
    segment: megapage_segment,
    about: *mut megapage_segment_info,
) -> c_int {
    give(about, "what is known", || Ok(info(&*SEGMENTS.get(segment)?)))
}

/// All memory of a segment that is not its own, as one piece: for programs that keep no heap in it. From then on all of
/// its pages count as dirty. The memory is valid until the segment is closed.
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

/// Has a segment grow to at least size bytes, with fresh pages. On an error it is as large as before.
///
/// Errors: -ENOSPC beyond what it may grow to, -ENOMEM the pool is too small.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_grow(segment: megapage_segment, size: u64) -> c_int {
    done(|| Ok(SEGMENTS.get(segment)?.grow(Bytes(size))?))
}

/// Unmaps a segment. Its files stay, unless they were unlinked. All pointers into it are invalid from then on.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_segment_close(segment: megapage_segment) -> c_int {
    done(|| SEGMENTS.close(segment))
}

/// Opens a segment, as megapage_segment_open does, and the heap in it, or makes one where there is none. found, which may
/// be null, is 1 for a heap that was there. What a process that was killed has left half done is completed.
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

/// Maps the heap of another process where that has it, to read and write what is in it: megapage_heap_block and
/// megapage_heap_root work, nothing is allocated or freed (-EPERM).
///
/// Errors: -ENOENT, -ENODATA there is no heap in it, -EADDRINUSE.
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

/// What is known of the segment that a heap is in.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_about(heap: megapage_heap, about: *mut megapage_segment_info) -> c_int {
    give(about, "what is known", || Ok(info(HEAPS.get(heap)?.segment())))
}

/// Allocates length bytes at a multiple of alignment (a power of two up to 1 GiB, in the segment and in memory; 0: 64).
/// flags: 0 or MEGAPAGE_ZEROED; without it the bytes may be anything that was there before. tag: the type of what
/// will be in it, a number of the program's own (megapage_tag). The heap grows where it may and has to.
///
/// Errors: -ENOSPC, -ENOMEM the pool is too small to grow, -EINVAL, -EPERM the heap is another process's.
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

/// Gives back what a handle leads to. It, and every copy of it, leads to nothing from then on, and pointers to it to
/// whatever comes there.
///
/// Errors: -ESTALE it leads to nothing, -EBUSY it is the root.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_free(heap: megapage_heap, handle: megapage_handle) -> c_int {
    done(|| Ok(HEAPS.get(heap)?.free(ours(handle))?))
}

/// Makes what a handle leads to length bytes long. Where it cannot grow in its place it is copied, to a multiple of 64,
/// and the handle is changed; a root moves along. Bytes beyond the old length may be anything. On an error all is as
/// before.
///
/// Errors: -ESTALE, -ENOSPC, -EINVAL.
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

/// Where a block is: its address, and its length in bytes (which may be null). Valid until it is freed or resized, or the
/// heap is closed. After a restart the address may be another: keep handles, not pointers.
///
/// Errors: -ESTALE it was freed, or is of another heap, -EPROTOTYPE it is of another type than tag.
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

/// The first block of a type, in the order in which they lie: how a program finds what it had not stored a handle to.
/// Looks at every block. {0, 0} where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_find(heap: megapage_heap, tag: u64, handle: *mut megapage_handle) -> c_int {
    give(handle, "the handle", || Ok(find(&*HEAPS.get(heap)?, tag)?.map(theirs).unwrap_or_default()))
}

/// What megapage_heap_set_root was given last, in this run or before: the one handle that is found without another.
/// {0, 0} where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_heap_root(heap: megapage_heap, handle: *mut megapage_handle) -> c_int {
    give(handle, "the handle", || Ok(HEAPS.get(heap)?.root()?.map(theirs).unwrap_or_default()))
}

/// Lets a later process find a block. One step: a kill leaves the old root or the new one. {0, 0}: no root.
///
/// Errors: -ESTALE, -EPERM the heap is another process's.
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

/// Opens the heap in a segment that was taken over, or makes one where there is none. The segment's handle is closed, and the
/// heap's takes its place. found may be null: see megapage_heap_open.
///
/// Errors: -EPERM it is another process's, -EBUSY another thread uses it; then the handle stays open. -EBADMSG the heap is
/// damaged; then it is closed.
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

/// Listens on the socket path for the next version of this program, which takes its segments over without a page more. What
/// listened there before is replaced. Only processes of this user are heard.
///
/// Errors: -EPERM what is there is no socket.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_listen(path: *const c_char, listener: *mut megapage_listener) -> c_int {
    give(listener, "the listener", || {
        let path = text(path, "the path")?;
        Ok(LISTENERS.add(Waiting::on(Path::new(&path))?))
    })
}

/// A descriptor for poll(2), readable when a successor has connected. It is the library's: not to be closed, and valid until
/// the listener is closed or has handed over.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_descriptor(listener: megapage_listener) -> c_int {
    answer(|| Ok(LISTENERS.get(listener)?.descriptor()))
}

/// Waits up to milliseconds for a successor. Returns 1 where there is one, 0 where there is none yet.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_upgrade_wait(listener: megapage_listener, milliseconds: u32) -> c_int {
    answer(|| {
        let patience = Duration::from_millis(milliseconds.into());
        Ok(c_int::from(LISTENERS.get(listener)?.wait(patience)?))
    })
}

/// Hands segments and heaps over to the successor that megapage_upgrade_wait has met: all, or none. handles: count handles
/// of segments and heaps that this process owns, at most MEGAPAGE_UPGRADE_MOST. The program stops using them first: no pointer
/// into them may be followed any more. Each step of the successor is waited for, until milliseconds are over.
///
/// Returns 0: the successor owns them; all these handles and the listener's are closed. 1: the same, but it has not answered in
/// time after they were given to it. Then this process must not open them again.
///
/// Errors: nothing was handed over and all handles stand for what they did, as after a restart: a pointer is to be obtained
/// again. -ENOTCONN no successor waits, -EPROTO it ended, refused, or did not answer in time; -EBUSY another thread uses one;
/// -EINVAL one cannot be handed over (MEGAPAGE_UNLINK_ALWAYS with MEGAPAGE_FILE_PER_PAGE, or another process's).
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

/// Takes over the segments of the process that listens on path. segments: room for MEGAPAGE_UPGRADE_MOST handles; count: how
/// many were taken over, in the order in which they were handed over. 0: no process listens, or it ended before it had
/// offered all; then start as usual. Heaps are opened with megapage_heap_of_segment.
///
/// Errors: -EPROTO the predecessor refused, or did not answer within milliseconds; it goes on as the owner.
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

/// Asks for huge pages for the base pages in which length bytes from address on lie, and says what they are mapped with.
/// Their contents stay. flags: 0, or MEGAPAGE_ADVISE_NOW and MEGAPAGE_ADVISE_POPULATE or both. backing may be null.
/// Success means that the advice was given; what came of it is in backing.
///
/// Errors: -EINVAL no range, or the kernel has no transparent huge pages; -ENOMEM some of it is not mapped.
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

/// What the base pages in which length bytes from address on lie are mapped with, as the kernel says. Reads the list of
/// all mappings of the process: some microseconds for each.
#[unsafe(no_mangle)]
pub extern "C" fn megapage_backing_of(
    address: *const c_void,
    length: usize,
    backing: *mut megapage_backing,
) -> c_int {
    give(backing, "the backing", || advice::backing(address.addr(), length))
}

/// Moves the segments of the calling program onto huge pages: its code, its constants and, where it has one thread, its
/// data. Their addresses, contents and access stay; the memory is the process's own from then on, with no file's name in
/// /proc/PID/maps. The program may go on while it is moved. Calling it again is harmless.
///
/// pages: MEGAPAGE_REMAP_THP, MEGAPAGE_REMAP_2M or MEGAPAGE_REMAP_1G. libraries: names of libraries besides, as the loader
/// opens them, separated by colons, such as "libpython3.11.so.1.0"; null: none. flags: 0 or MEGAPAGE_REMAP_REQUIRE. remapped may be
/// null. Success means that all was tried; what came of it is in remapped.
///
/// Threads: call it first of all, in main, while there is one thread: data is moved then alone, for what another thread
/// wrote meanwhile would be lost. With more threads code and constants are moved, which no thread may change (a debugger's
/// or a program's own patches, mprotect) during the call. No I/O of the kernel's own (io_uring, AIO) may be under way into
/// static data. Calls wait for each other.
///
/// Ownership: a library that was opened with dlopen must not be closed during the call; one on pages of the pool, never: its
/// addresses could not be given back. On these, mprotect and munmap of single pages fail (EINVAL). Locks (mlock)
/// and advice (madvise) on what is moved are lost: give them afterwards.
///
/// Errors: -ENOENT a library of that name is not loaded; -EACCES the process may not make executable what it has written
/// (PR_SET_MDWE, a security module), other numbers where a seccomp filter refuses it; -EOPNOTSUPP it was built with a sanitizer;
/// -ENOMEM control groups leave no room for the copy; -EINVAL. With MEGAPAGE_REMAP_REQUIRE also -ENOMEM where the kernel has
/// no pages for it all and -EBUSY where a part has to stay as it is; what was moved stays so, and remapped is filled in.
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
