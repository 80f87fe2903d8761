/* megapage.h: huge memory with a name that outlives its program, and advice for huge pages.
 *
 * Made by `cargo xtask header` from crates/segment/capi/src; do not edit. Link with `pkg-config --cflags --libs megapage`. The
 * library is libmegapage_c.so; it does not replace malloc, as libmegapage.so does.
 *
 * Units       Lengths, sizes and offsets are in bytes.
 *
 * Errors      A function that returns int returns 0, or a negative errno. The message for people, one line, is given by
 *             megapage_message(), for each thread. On an error, results are not written, and nothing has changed unless
 *             the function says otherwise. Everywhere: -EINVAL for a null or misaligned pointer, a name that is none, or
 *             values that make no sense; -EBADF for a handle that is not open, or of another kind; -EBADMSG for memory
 *             that is damaged; the errno of a system call that failed; -EIO for what should never happen.
 *
 * Ownership   Pools, segments and heaps are numbers, as file descriptors are; the caller closes what it opens. Pointers that
 *             are given out lead into a segment and are valid until it (or its heap) is closed; nothing is to be freed.
 *             Strings that are passed in end in a zero byte, are UTF-8, and are not kept.
 *
 * Threads     Every function may be called by any thread at any time. Closing does not wait, but what another thread
 *             does with that handle at the same time is completed first. What is in a block is the program's: threads,
 *             and processes that share it, order their accesses themselves.
 *
 * Processes   One process owns a segment; others may share it. A child of fork(2) has its memory, too, and must leave the
 *             functions of the heap alone. When the process ends, however that comes about, segments are closed.
 *
 * Signals     No function is async-signal-safe.
 */

#ifndef MEGAPAGE_H
#define MEGAPAGE_H

#include <stddef.h>
#include <stdint.h>

/**
 * The most segments that are handed over at once.
 */
#define MEGAPAGE_UPGRADE_MOST 64

/**
 * Pages of 2 MiB, for page_size.
 */
#define MEGAPAGE_2M 2097152

/**
 * Pages of 1 GiB, for page_size.
 */
#define MEGAPAGE_1G 1073741824

/**
 * Removes existing files of that name first: the memory is fresh. The new files stay behind.
 */
#define MEGAPAGE_UNLINK_EXISTING 0

/**
 * As MEGAPAGE_UNLINK_EXISTING, and the new files lose their names at once: nothing stays behind.
 */
#define MEGAPAGE_UNLINK_ALWAYS 1

/**
 * Reuses existing files, old bytes included. A process that can become the user can read the data
 * that the program left.
 */
#define MEGAPAGE_UNLINK_NEVER 2

/**
 * All pages in one file.
 */
#define MEGAPAGE_SINGLE_FILE 0

/**
 * Each page in a separate file.
 */
#define MEGAPAGE_FILE_PER_PAGE 1

/**
 * For node: any node that the kernel chooses.
 */
#define MEGAPAGE_ANY_NODE -1

/**
 * Flag of megapage_options: also fills the page tables for reused pages. This takes about 0.3 ms
 * for each GiB on pages of 2 MiB. Without it the time to open does not depend on the size, and the
 * first access to each page takes a minor fault.
 */
#define MEGAPAGE_POPULATE 1

/**
 * Flag of megapage_heap_allocate: all bytes are zero.
 */
#define MEGAPAGE_ZEROED 1

/**
 * Flag of megapage_advise: moves present memory onto huge pages now, as far as the kernel finds
 * any.
 */
#define MEGAPAGE_ADVISE_NOW 1

/**
 * Flag of megapage_advise: makes all memory of the range present, as if it had been written to.
 */
#define MEGAPAGE_ADVISE_POPULATE 2

/**
 * For megapage_remap_self: transparent huge pages.
 */
#define MEGAPAGE_REMAP_THP 1

/**
 * For megapage_remap_self: pages of 2 MiB from the pool for memory that is never written,
 * transparent huge pages for data.
 */
#define MEGAPAGE_REMAP_2M 2

/**
 * For megapage_remap_self: as MEGAPAGE_REMAP_2M, with pages of 1 GiB from the pool for each whole
 * GiB of a segment.
 */
#define MEGAPAGE_REMAP_1G 3

/**
 * Flag of megapage_remap_self: fails if anything is not obtained.
 */
#define MEGAPAGE_REMAP_REQUIRE 1

/**
 * An open pool: the directory of one application. 0 is none. The number of a closed pool, segment,
 * heap or listener is never used again.
 */
typedef uint64_t megapage_pool;

/**
 * Options for opening a segment. Fill them in with megapage_options_init, then change some.
 */
typedef struct megapage_options {
  /**
   * Size in bytes, rounded up to whole pages. A reused segment that is larger keeps its size.
   */
  uint64_t size;
  /**
   * The most bytes that it may ever grow to, fixed when it is made; 0: its size.
   */
  uint64_t most;
  /**
   * One of MEGAPAGE_UNLINK_...; init gives MEGAPAGE_UNLINK_EXISTING.
   */
  uint32_t unlink;
  /**
   * MEGAPAGE_SINGLE_FILE (init) or MEGAPAGE_FILE_PER_PAGE.
   */
  uint32_t layout;
  /**
   * The NUMA node that its pages must come from, or MEGAPAGE_ANY_NODE (init).
   */
  int32_t node;
  /**
   * The permission bits of its files; init gives 0600. Their directory admits only the user in
   * any case.
   */
  uint32_t mode;
  /**
   * 0 (init) or MEGAPAGE_POPULATE.
   */
  uint32_t flags;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_options;

/**
 * An open segment. 0 is none.
 */
typedef uint64_t megapage_segment;

/**
 * Properties of a segment.
 */
typedef struct megapage_segment_info {
  /**
   * The address of its first byte in this process.
   */
  uint64_t address;
  /**
   * Its size in bytes, including what it keeps for itself.
   */
  uint64_t size;
  /**
   * The most bytes that it may grow to.
   */
  uint64_t most;
  /**
   * Bytes of a page.
   */
  uint64_t page_size;
  /**
   * Pages that the kernel gave when it was opened: zeros.
   */
  uint64_t fresh_pages;
  /**
   * Pages of an earlier opening that were never handed out: zeros.
   */
  uint64_t clean_pages;
  /**
   * Pages of an earlier opening that may hold old bytes.
   */
  uint64_t dirty_pages;
  /**
   * Number of times that owners have opened it again since it was made.
   */
  uint64_t openings;
  /**
   * 1 if its pages come from a hugetlb pool, 0 if it is on base pages.
   */
  uint32_t hugetlb;
  /**
   * 1 for its owner, 0 for a process that maps another's segment.
   */
  uint32_t owner;
  /**
   * 1 if it is at the same address as the last time, or as in its owner.
   */
  uint32_t same_address;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_segment_info;

/**
 * An open heap. 0 is none.
 */
typedef uint64_t megapage_heap;

/**
 * Leads to a block of a heap, in this run and after a restart. It may be stored anywhere, also in
 * other blocks. {0, 0} is none.
 */
typedef struct megapage_handle {
  /**
   * Bytes from the start of the segment.
   */
  uint64_t offset;
  /**
   * A number that is never given twice in one heap.
   */
  uint64_t serial;
} megapage_handle;

/**
 * A socket at which this process waits for its successor. 0 is none.
 */
typedef uint64_t megapage_listener;

/**
 * Backing of a range of addresses, as the kernel reports it. In bytes; the sizes do not overlap.
 */
typedef struct megapage_backing {
  /**
   * Bytes on pages of 1 GiB from a pool.
   */
  uint64_t hugetlb_1g;
  /**
   * Bytes on pages of 2 MiB from a pool.
   */
  uint64_t hugetlb_2m;
  /**
   * Bytes on transparent huge pages of 2 MiB.
   */
  uint64_t thp;
  /**
   * Bytes on smaller pages.
   */
  uint64_t base;
  /**
   * Bytes not present: never touched, given back, or swapped out.
   */
  uint64_t absent;
  /**
   * 1 if the kernel reports each page (Linux 6.7). 0 if these are the totals of the mappings
   * that the range touches, each at most the range.
   */
  uint32_t exact;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_backing;

/**
 * Result of megapage_remap_self. In bytes, unless stated otherwise.
 */
typedef struct megapage_remapped {
  /**
   * Bytes in whole blocks of 2 MiB of the inspected segments.
   */
  uint64_t possible;
  /**
   * Those of them on huge pages now, as the kernel reports (smaps): moved by this call or
   * before.
   */
  uint64_t huge;
  /**
   * Those of them that the kernel was asked to back with huge pages on first touch (.bss).
   */
  uint64_t advised;
  /**
   * Nanoseconds that the call took.
   */
  uint64_t nanoseconds;
  /**
   * Those of them that the kernel took for the pages.
   */
  uint64_t pages_nanoseconds;
  /**
   * Threads of the process when the call began. With more than one, data was not moved.
   */
  uint32_t threads;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_remapped;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the message of this thread's last failed call, in one line; empty if none has failed.
 * The string belongs to the library. It is valid until the next failed call of this thread.
 */
const char *megapage_message(void);

/**
 * Returns the version of the library, such as "0.1.0". The string belongs to the library.
 */
const char *megapage_version(void);

/**
 * Returns the type number for a name such as "index/2" (FNV-1a, 64 bits); 0 for a null pointer.
 */
uint64_t megapage_tag(const char *name);

/**
 * Opens the pool of this user and application, on a hugetlbfs with pages of page_size. Makes the
 * pool if there is none. A mount that holds the pool already is preferred. If no such hugetlbfs is
 * mounted, root mounts one below /run/megapage.
 *
 * application: 1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit.
 *
 * Errors: -ENODEV no hugetlbfs; -EPERM the pool is not this user's own; -EINVAL.
 */
int megapage_pool_open(const char *application, uint64_t page_size, megapage_pool *pool);

/**
 * Opens or makes a pool, as megapage_pool_open does, in a directory of the caller's choice. The
 * directory is an absolute path without symbolic links. If it is not on hugetlbfs, segments are on
 * base pages, in units of page_size. Programs then run without huge pages, only slower.
 */
int megapage_pool_open_in(const char *directory,
                          const char *application,
                          uint64_t page_size,
                          megapage_pool *pool);

/**
 * Closes a pool. Its open segments stay open.
 */
int megapage_pool_close(megapage_pool pool);

/**
 * Removes a segment, whatever state it is in. memory: receives the bytes that its files held; may
 * be null.
 *
 * Errors: -ENOENT there is none; -EBUSY it is open somewhere; -EPERM it holds a foreign file.
 */
int megapage_pool_remove(megapage_pool pool, const char *segment, uint64_t *memory);

/**
 * Fills in the defaults: fresh memory of size bytes, in one file, on any node, for its user only.
 */
int megapage_options_init(struct megapage_options *options, uint64_t size);

/**
 * Opens a segment as its owner, and makes it if there is none. All its pages are allocated when
 * this returns: no access raises SIGBUS for lack of a page. Reused pages are mapped without being
 * touched (see MEGAPAGE_POPULATE).
 *
 * Errors: -ENOMEM the pool is too small; -EBUSY another process has it; -EEXIST the segment to be
 * reused has another shape; -EBADMSG the segment to be reused is damaged; -EINVAL.
 */
int megapage_segment_open(megapage_pool pool,
                          const char *name,
                          const struct megapage_options *options,
                          megapage_segment *segment);

/**
 * Maps a segment at its owner's address, to read and write its contents. It cannot be removed
 * while it is open.
 *
 * Errors: -ENOENT; -EADDRINUSE this process already uses that address.
 */
int megapage_segment_share(megapage_pool pool, const char *name, megapage_segment *segment);

/**
 * Makes a segment that ends with this process: on hugetlb pages of page_size, or on base pages if
 * hugetlb is 0. It may grow to most bytes; 0: its size.
 */
int megapage_segment_in_memory(const char *name,
                               uint64_t page_size,
                               int hugetlb,
                               uint64_t size,
                               uint64_t most,
                               megapage_segment *segment);

/**
 * Returns the properties of a segment.
 */
int megapage_segment_about(megapage_segment segment, struct megapage_segment_info *about);

/**
 * Returns all memory of a segment except its header, as one piece: for programs that keep no heap
 * in it. All its pages count as dirty from then on. The memory is valid until the segment is
 * closed.
 */
int megapage_segment_memory(megapage_segment segment, void **address, uint64_t *length);

/**
 * Grows a segment to at least size bytes, with fresh pages. On an error its size is unchanged.
 *
 * Errors: -ENOSPC size exceeds its maximum; -ENOMEM the pool is too small.
 */
int megapage_segment_grow(megapage_segment segment, uint64_t size);

/**
 * Unmaps a segment. Its files stay, unless they were unlinked. All pointers into it are invalid
 * from then on.
 */
int megapage_segment_close(megapage_segment segment);

/**
 * Opens a segment, as megapage_segment_open does, and the heap in it. Makes a heap if there is
 * none. found: receives 1 if there was a heap, else 0; may be null. An operation that a killed
 * process has left unfinished is completed.
 *
 * Errors: as megapage_segment_open.
 */
int megapage_heap_open(megapage_pool pool,
                       const char *name,
                       const struct megapage_options *options,
                       megapage_heap *heap,
                       uint32_t *found);

/**
 * Maps another process's heap at its owner's address, to read and write its contents.
 * megapage_heap_block and megapage_heap_root work; allocating and freeing fail with -EPERM.
 *
 * Errors: -ENOENT; -ENODATA the segment holds no heap; -EADDRINUSE.
 */
int megapage_heap_share(megapage_pool pool, const char *name, megapage_heap *heap);

/**
 * Returns the properties of the segment that holds a heap.
 */
int megapage_heap_about(megapage_heap heap, struct megapage_segment_info *about);

/**
 * Allocates length bytes. The heap grows if it has to and may.
 *
 * alignment: a power of two up to 1 GiB, in the segment and in memory; 0: 64. flags: 0 or
 * MEGAPAGE_ZEROED; without it the bytes may hold old contents. tag: the type of the contents, a
 * number that the program chooses (see megapage_tag).
 *
 * Errors: -ENOSPC; -ENOMEM the pool is too small to grow; -EINVAL; -EPERM another process owns the
 * heap.
 */
int megapage_heap_allocate(megapage_heap heap,
                           uint64_t length,
                           uint64_t alignment,
                           uint32_t flags,
                           uint64_t tag,
                           struct megapage_handle *handle);

/**
 * Frees the block that a handle leads to. The handle and all copies of it lead to nothing from
 * then on. Pointers into the block are invalid.
 *
 * Errors: -ESTALE the handle leads to nothing; -EBUSY the block is the root.
 */
int megapage_heap_free(megapage_heap heap, struct megapage_handle handle);

/**
 * Makes the block that a handle leads to length bytes long. A block that cannot grow in its place
 * is copied, to a multiple of 64. The handle is then changed, and the root if it was this block.
 * Bytes beyond the old length may be anything. On an error nothing has changed.
 *
 * Errors: -ESTALE; -ENOSPC; -EINVAL.
 */
int megapage_heap_resize(megapage_heap heap, struct megapage_handle *handle, uint64_t length);

/**
 * Returns the address of a block, and its length in bytes. length may be null. Both are valid
 * until the block is freed or resized, or the heap is closed. The address may be another after a
 * restart: store handles, not pointers.
 *
 * Errors: -ESTALE the block was freed, or is of another heap; -EPROTOTYPE its type is not tag.
 */
int megapage_heap_block(megapage_heap heap,
                        struct megapage_handle handle,
                        uint64_t tag,
                        void **address,
                        uint64_t *length);

/**
 * Returns the first block of a type, by address; {0, 0} if there is none. It is for blocks to
 * which the program has stored no handle. Looks at every block.
 */
int megapage_heap_find(megapage_heap heap, uint64_t tag, struct megapage_handle *handle);

/**
 * Returns the root: the block that megapage_heap_set_root was given last, in this run or before.
 * {0, 0} if there is none. No other handle is needed to find it.
 */
int megapage_heap_root(megapage_heap heap, struct megapage_handle *handle);

/**
 * Sets the root: the block that a later process finds with megapage_heap_root. This is one step: a
 * kill leaves the old root or the new one. {0, 0}: no root.
 *
 * Errors: -ESTALE; -EPERM another process owns the heap.
 */
int megapage_heap_set_root(megapage_heap heap, struct megapage_handle handle);

/**
 * Unmaps a heap and its segment. All pointers into it are invalid from then on.
 */
int megapage_heap_close(megapage_heap heap);

/**
 * Opens the heap in a segment that was taken over, or makes one if there is none. Closes the
 * segment's handle; the heap's takes its place. found may be null: see megapage_heap_open.
 *
 * Errors that keep the segment's handle open: -EPERM another process owns the segment; -EBUSY
 * another thread uses it. An error that closes it: -EBADMSG the heap is damaged.
 */
int megapage_heap_of_segment(megapage_segment segment, megapage_heap *heap, uint32_t *found);

/**
 * Listens on the socket path for the next version of this program, which takes over its segments
 * without needing more pages. Replaces an existing socket at path. Accepts only processes of this
 * user.
 *
 * Errors: -EPERM path exists and is no socket.
 */
int megapage_upgrade_listen(const char *path, megapage_listener *listener);

/**
 * Returns a descriptor for poll(2), readable when a successor has connected. It belongs to the
 * library: do not close it. It is valid until the listener is closed or has handed over.
 */
int megapage_upgrade_descriptor(megapage_listener listener);

/**
 * Waits up to milliseconds for a successor. Returns 1 if there is one, 0 if there is none yet.
 */
int megapage_upgrade_wait(megapage_listener listener, uint32_t milliseconds);

/**
 * Hands segments and heaps over to the successor that megapage_upgrade_wait has met: all, or none.
 * handles: count handles of segments and heaps that this process owns, at most
 * MEGAPAGE_UPGRADE_MOST. Stop using them first: no pointer into them may be followed any more.
 * Waits for each step of the successor, until milliseconds are over.
 *
 * Returns 0 if the successor owns them; all these handles and the listener's are closed. Returns 1
 * if they were given to the successor, but it did not answer in time. The handles are closed then,
 * too, and this process must not open the segments again.
 *
 * On an error nothing was handed over. All handles stand for the same objects, as after a restart:
 * obtain pointers again.
 *
 * Errors: -ENOTCONN no successor waits; -EPROTO it ended, refused, or did not answer in time;
 * -EBUSY another thread uses a handle; -EINVAL an object cannot be handed over
 * (MEGAPAGE_UNLINK_ALWAYS with MEGAPAGE_FILE_PER_PAGE, or another process's).
 */
int megapage_upgrade_hand_over(megapage_listener listener,
                               const uint64_t *handles,
                               size_t count,
                               uint32_t milliseconds);

/**
 * Takes over the segments of the process that listens on path. segments: room for
 * MEGAPAGE_UPGRADE_MOST handles, filled in the order in which they were handed over. count:
 * receives their number. With a count of 0, start as usual: no process listens, or it ended before
 * it had offered all. Open heaps with megapage_heap_of_segment.
 *
 * Errors: -EPROTO the predecessor refused, or did not answer within milliseconds; it goes on as
 * the owner.
 */
int megapage_upgrade_take_over(const char *path,
                               uint32_t milliseconds,
                               megapage_segment *segments,
                               size_t *count);

/**
 * Stops listening, and removes the socket.
 */
int megapage_upgrade_close(megapage_listener listener);

/**
 * Asks for huge pages for the base pages in which length bytes from address on lie. Returns their
 * backing. Their contents stay. flags: 0, MEGAPAGE_ADVISE_NOW, MEGAPAGE_ADVISE_POPULATE, or both.
 * backing may be null. Success means that the advice was given; backing shows the result.
 *
 * Errors: -EINVAL no range, or the kernel has no transparent huge pages; -ENOMEM a part is not
 * mapped.
 */
int megapage_advise(const void *address,
                    size_t length,
                    uint32_t flags,
                    struct megapage_backing *backing);

/**
 * Returns the backing of the base pages in which length bytes from address on lie, as the kernel
 * reports it. Reads the list of all mappings of the process: some microseconds for each.
 */
int megapage_backing_of(const void *address, size_t length, struct megapage_backing *backing);

/**
 * Moves the ELF segments of the calling program onto huge pages: its code, its constants and, if
 * it has one thread, its data. Their addresses, contents and access stay. The memory is the
 * process's own from then on, and /proc/PID/maps names no file for it. The program may go on while
 * it is moved. Calling it again is harmless.
 *
 * pages: MEGAPAGE_REMAP_THP, MEGAPAGE_REMAP_2M or MEGAPAGE_REMAP_1G. libraries: names of libraries
 * to move besides, as the loader opens them, separated by colons, such as "libpython3.11.so.1.0";
 * null: none. flags: 0 or MEGAPAGE_REMAP_REQUIRE. remapped may be null. Success means that all was
 * tried; remapped shows the result.
 *
 * Threads: call it first in main, while there is one thread. Data is moved only then: writes by
 * other threads meanwhile would be lost. With more threads only code and constants are moved. No
 * thread may change these during the call (a debugger's or the program's own patches, mprotect).
 * No I/O by the kernel itself (io_uring, AIO) into static data may be under way. Concurrent calls
 * wait for each other.
 *
 * Ownership: do not close a library opened with dlopen during the call. Never close one that is on
 * pages of the pool: its addresses could not be given back. On pages of the pool, mprotect and
 * munmap of single base pages fail (EINVAL). Locks (mlock) and advice (madvise) on the moved
 * memory are lost: give them afterwards.
 *
 * Errors: -ENOENT no library of that name is loaded; -EACCES the process may not make executable
 * what it has written (PR_SET_MDWE, a security module), other numbers if a seccomp filter refuses
 * it; -EOPNOTSUPP the program was built with a sanitizer; -ENOMEM control groups leave no room for
 * the copy; -EINVAL. With MEGAPAGE_REMAP_REQUIRE also -ENOMEM if the kernel lacks pages for all of
 * it, and -EBUSY if a part has to stay as it is. What was moved then stays moved, and remapped is
 * filled in.
 */
int megapage_remap_self(uint32_t pages,
                        const char *libraries,
                        uint32_t flags,
                        struct megapage_remapped *remapped);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEGAPAGE_H */
