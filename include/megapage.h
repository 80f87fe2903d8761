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
 * What is left of that name is removed first, the memory is fresh; files stay behind.
 */
#define MEGAPAGE_UNLINK_EXISTING 0

/**
 * As before, and the files lose their names at once: nothing stays behind.
 */
#define MEGAPAGE_UNLINK_ALWAYS 1

/**
 * What is there is reused, old bytes included. A process that can become the user can read what the program left.
 */
#define MEGAPAGE_UNLINK_NEVER 2

/**
 * All pages in one file.
 */
#define MEGAPAGE_SINGLE_FILE 0

/**
 * A file for each page.
 */
#define MEGAPAGE_FILE_PER_PAGE 1

/**
 * For node: wherever the kernel takes pages from.
 */
#define MEGAPAGE_ANY_NODE -1

/**
 * Flag of megapage_options: the page tables are filled for pages that are reused, too, about 0.3 ms for each GiB on pages
 * of 2 MiB. Without it opening them takes the same time whatever the size, and the first access to each page takes a minor
 * fault.
 */
#define MEGAPAGE_POPULATE 1

/**
 * Flag of megapage_heap_allocate: all bytes are zero.
 */
#define MEGAPAGE_ZEROED 1

/**
 * Flag of megapage_advise: what is there already is put on huge pages now, as far as the kernel finds any.
 */
#define MEGAPAGE_ADVISE_NOW 1

/**
 * Flag of megapage_advise: all memory of the range is made present, as if it had been written to.
 */
#define MEGAPAGE_ADVISE_POPULATE 2

/**
 * For megapage_remap_self: transparent huge pages.
 */
#define MEGAPAGE_REMAP_THP 1

/**
 * For megapage_remap_self: pages of 2 MiB from the pool for what is never written, transparent huge pages for data.
 */
#define MEGAPAGE_REMAP_2M 2

/**
 * For megapage_remap_self: the same, with pages of 1 GiB from the pool for the whole GiB of a segment.
 */
#define MEGAPAGE_REMAP_1G 3

/**
 * Flag of megapage_remap_self: it fails where anything is not obtained.
 */
#define MEGAPAGE_REMAP_REQUIRE 1

/**
 * A pool that is open: the directory of one application. 0 is none. Whatever was closed is never given again.
 */
typedef uint64_t megapage_pool;

/**
 * What segment is wanted. Fill it with megapage_options_init, then change what should differ.
 */
typedef struct megapage_options {
  /**
   * Bytes, rounded up to whole pages. One that is reused and larger stays as it is.
   */
  uint64_t size;
  /**
   * Bytes that it may ever grow to, fixed when it is made; 0: its size.
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
   * The permission bits of its files; init gives 0600. Their directory lets in the user alone all the same.
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
 * A segment that is open. 0 is none.
 */
typedef uint64_t megapage_segment;

/**
 * What is known of a segment.
 */
typedef struct megapage_segment_info {
  /**
   * The address of its first byte in this process.
   */
  uint64_t address;
  /**
   * Bytes that it has, what it keeps for itself included.
   */
  uint64_t size;
  /**
   * Bytes that it may grow to.
   */
  uint64_t most;
  /**
   * Bytes of a page.
   */
  uint64_t page_size;
  /**
   * Pages that the kernel has just given when it was opened: zeros.
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
   * How many times it has been opened again since it was made.
   */
  uint64_t openings;
  /**
   * 1 where its pages come from a hugetlb pool, 0 where it is on base pages.
   */
  uint32_t hugetlb;
  /**
   * 1 for its owner, 0 for who maps what another owns.
   */
  uint32_t owner;
  /**
   * 1 where it lies at the address at which it lay the last time, or where its owner has it.
   */
  uint32_t same_address;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_segment_info;

/**
 * A heap that is open. 0 is none.
 */
typedef uint64_t megapage_heap;

/**
 * Leads to a block of a heap, in this run and after a restart. It may be stored anywhere, in other blocks, too.
 * {0, 0} is none.
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
 * Where this process waits for its successor. 0 is none.
 */
typedef uint64_t megapage_listener;

/**
 * What a range of addresses is mapped with, as the kernel says. In bytes; they do not overlap.
 */
typedef struct megapage_backing {
  /**
   * On pages of 1 GiB from a pool.
   */
  uint64_t hugetlb_1g;
  /**
   * On pages of 2 MiB from a pool.
   */
  uint64_t hugetlb_2m;
  /**
   * On transparent huge pages of 2 MiB.
   */
  uint64_t thp;
  /**
   * On smaller pages.
   */
  uint64_t base;
  /**
   * Not present: never touched, given back, or swapped out.
   */
  uint64_t absent;
  /**
   * 1 where the kernel tells it page by page (Linux 6.7); 0 where what the mappings of the range have in all was taken
   * for it.
   */
  uint32_t exact;
  /**
   * Always 0.
   */
  uint32_t reserved;
} megapage_backing;

/**
 * What came of megapage_remap_self. In bytes, where nothing else is said.
 */
typedef struct megapage_remapped {
  /**
   * What lies in whole blocks of 2 MiB of the segments that were looked at.
   */
  uint64_t possible;
  /**
   * What of it is on huge pages now, as the kernel says (smaps), moved by this call or before.
   */
  uint64_t huge;
  /**
   * What of it the kernel was asked to give huge pages when it is touched (.bss).
   */
  uint64_t advised;
  /**
   * Nanoseconds that the call took.
   */
  uint64_t nanoseconds;
  /**
   * Nanoseconds of them that the kernel took for the pages.
   */
  uint64_t pages_nanoseconds;
  /**
   * Threads of the process when it began: with more than one, data was left where it is.
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
 * What went wrong in the last call of this thread that failed, in one line. Empty where none has failed. The string
 * is the library's, and valid until the next call of this thread that fails.
 */
const char *megapage_message(void);

/**
 * The version of the library, such as "0.1.0". The string is the library's.
 */
const char *megapage_version(void);

/**
 * The type number for a name such as "index/2" (FNV-1a, 64 bits); 0 for a null pointer.
 */
uint64_t megapage_tag(const char *name);

/**
 * Opens the pool of this user and application on a hugetlbfs with pages of page_size, and makes it where there is none.
 * A mount that has it already is taken first. Where none is mounted, root mounts one below /run/megapage.
 *
 * application: 1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit.
 * Errors: -ENODEV no hugetlbfs, -EPERM it is not this user's own, -EINVAL.
 */
int megapage_pool_open(const char *application,
                       uint64_t page_size,
                       megapage_pool *pool);

/**
 * The same in a directory of the caller's choice, an absolute path without symbolic links. Where it is not on
 * hugetlbfs, segments are on base pages, in units of page_size: so programs run, slower, where no huge page is.
 */
int megapage_pool_open_in(const char *directory,
                          const char *application,
                          uint64_t page_size,
                          megapage_pool *pool);

/**
 * Closes a pool. Segments of it that are open stay so.
 */
int megapage_pool_close(megapage_pool pool);

/**
 * Removes a segment, whatever state it is in. memory: the bytes that its files held; may be null.
 *
 * Errors: -ENOENT there is none, -EBUSY it is open somewhere, -EPERM it holds what is not ours.
 */
int megapage_pool_remove(megapage_pool pool, const char *segment, uint64_t *memory);

/**
 * Fills in what is wanted mostly: fresh memory of size bytes, in one file, of any node, for its user alone.
 */
int megapage_options_init(struct megapage_options *options,
                          uint64_t size);

/**
 * Opens a segment as its owner, and makes it where there is none. All its pages are there when this returns: no access
 * raises SIGBUS for want of them. Those that are reused are mapped without being touched (see MEGAPAGE_POPULATE).
 *
 * Errors: -ENOMEM the pool is too small, -EBUSY another process has it, -EEXIST one of another shape is to be reused,
 * -EBADMSG what is to be reused is damaged, -EINVAL.
 */
int megapage_segment_open(megapage_pool pool,
                          const char *name,
                          const struct megapage_options *options,
                          megapage_segment *segment);

/**
 * Maps a segment where its owner has it, to read and write what is in it. While it is open it is not removed.
 *
 * Errors: -ENOENT, -EADDRINUSE something of this process is at that address.
 */
int megapage_segment_share(megapage_pool pool,
                           const char *name,
                           megapage_segment *segment);

/**
 * Makes a segment that ends with this process: on hugetlb pages of page_size, or with hugetlb 0 on base pages. It may
 * grow to most bytes; 0: its size.
 */
int megapage_segment_in_memory(const char *name,
                               uint64_t page_size,
                               int hugetlb,
                               uint64_t size,
                               uint64_t most,
                               megapage_segment *segment);

/**
 * What is known of a segment.
 */
int megapage_segment_about(megapage_segment segment, struct megapage_segment_info *about);

/**
 * All memory of a segment that is not its own, as one piece: for programs that keep no heap in it. From then on all of
 * its pages count as dirty. The memory is valid until the segment is closed.
 */
int megapage_segment_memory(megapage_segment segment,
                            void **address,
                            uint64_t *length);

/**
 * Has a segment grow to at least size bytes, with fresh pages. On an error it is as large as before.
 *
 * Errors: -ENOSPC beyond what it may grow to, -ENOMEM the pool is too small.
 */
int megapage_segment_grow(megapage_segment segment,
                          uint64_t size);

/**
 * Unmaps a segment. Its files stay, unless they were unlinked. All pointers into it are invalid from then on.
 */
int megapage_segment_close(megapage_segment segment);

/**
 * Opens a segment, as megapage_segment_open does, and the heap in it, or makes one where there is none. found, which may
 * be null, is 1 for a heap that was there. What a process that was killed has left half done is completed.
 *
 * Errors: as megapage_segment_open.
 */
int megapage_heap_open(megapage_pool pool,
                       const char *name,
                       const struct megapage_options *options,
                       megapage_heap *heap,
                       uint32_t *found);

/**
 * Maps the heap of another process where that has it, to read and write what is in it: megapage_heap_block and
 * megapage_heap_root work, nothing is allocated or freed (-EPERM).
 *
 * Errors: -ENOENT, -ENODATA there is no heap in it, -EADDRINUSE.
 */
int megapage_heap_share(megapage_pool pool,
                        const char *name,
                        megapage_heap *heap);

/**
 * What is known of the segment that a heap is in.
 */
int megapage_heap_about(megapage_heap heap, struct megapage_segment_info *about);

/**
 * Allocates length bytes at a multiple of alignment (a power of two up to 1 GiB, in the segment and in memory; 0: 64).
 * flags: 0 or MEGAPAGE_ZEROED; without it the bytes may be anything that was there before. tag: the type of what
 * will be in it, a number of the program's own (megapage_tag). The heap grows where it may and has to.
 *
 * Errors: -ENOSPC, -ENOMEM the pool is too small to grow, -EINVAL, -EPERM the heap is another process's.
 */
int megapage_heap_allocate(megapage_heap heap,
                           uint64_t length,
                           uint64_t alignment,
                           uint32_t flags,
                           uint64_t tag,
                           struct megapage_handle *handle);

/**
 * Gives back what a handle leads to. It, and every copy of it, leads to nothing from then on, and pointers to it to
 * whatever comes there.
 *
 * Errors: -ESTALE it leads to nothing, -EBUSY it is the root.
 */
int megapage_heap_free(megapage_heap heap,
                       struct megapage_handle handle);

/**
 * Makes what a handle leads to length bytes long. Where it cannot grow in its place it is copied, to a multiple of 64,
 * and the handle is changed; a root moves along. Bytes beyond the old length may be anything. On an error all is as
 * before.
 *
 * Errors: -ESTALE, -ENOSPC, -EINVAL.
 */
int megapage_heap_resize(megapage_heap heap,
                         struct megapage_handle *handle,
                         uint64_t length);

/**
 * Where a block is: its address, and its length in bytes (which may be null). Valid until it is freed or resized, or the
 * heap is closed. After a restart the address may be another: keep handles, not pointers.
 *
 * Errors: -ESTALE it was freed, or is of another heap, -EPROTOTYPE it is of another type than tag.
 */
int megapage_heap_block(megapage_heap heap,
                        struct megapage_handle handle,
                        uint64_t tag,
                        void **address,
                        uint64_t *length);

/**
 * The first block of a type, in the order in which they lie: how a program finds what it had not stored a handle to.
 * Looks at every block. {0, 0} where there is none.
 */
int megapage_heap_find(megapage_heap heap,
                       uint64_t tag,
                       struct megapage_handle *handle);

/**
 * What megapage_heap_set_root was given last, in this run or before: the one handle that is found without another.
 * {0, 0} where there is none.
 */
int megapage_heap_root(megapage_heap heap,
                       struct megapage_handle *handle);

/**
 * Lets a later process find a block. One step: a kill leaves the old root or the new one. {0, 0}: no root.
 *
 * Errors: -ESTALE, -EPERM the heap is another process's.
 */
int megapage_heap_set_root(megapage_heap heap,
                           struct megapage_handle handle);

/**
 * Unmaps a heap and its segment. All pointers into it are invalid from then on.
 */
int megapage_heap_close(megapage_heap heap);

/**
 * Opens the heap in a segment that was taken over, or makes one where there is none. The segment's handle is closed, and the
 * heap's takes its place. found may be null: see megapage_heap_open.
 *
 * Errors: -EPERM it is another process's, -EBUSY another thread uses it; then the handle stays open. -EBADMSG the heap is
 * damaged; then it is closed.
 */
int megapage_heap_of_segment(megapage_segment segment,
                             megapage_heap *heap,
                             uint32_t *found);

/**
 * Listens on the socket path for the next version of this program, which takes its segments over without a page more. What
 * listened there before is replaced. Only processes of this user are heard.
 *
 * Errors: -EPERM what is there is no socket.
 */
int megapage_upgrade_listen(const char *path,
                            megapage_listener *listener);

/**
 * A descriptor for poll(2), readable when a successor has connected. It is the library's: not to be closed, and valid until
 * the listener is closed or has handed over.
 */
int megapage_upgrade_descriptor(megapage_listener listener);

/**
 * Waits up to milliseconds for a successor. Returns 1 where there is one, 0 where there is none yet.
 */
int megapage_upgrade_wait(megapage_listener listener,
                          uint32_t milliseconds);

/**
 * Hands segments and heaps over to the successor that megapage_upgrade_wait has met: all, or none. handles: count handles
 * of segments and heaps that this process owns, at most MEGAPAGE_UPGRADE_MOST. The program stops using them first: no pointer
 * into them may be followed any more. Each step of the successor is waited for, until milliseconds are over.
 *
 * Returns 0: the successor owns them; all these handles and the listener's are closed. 1: the same, but it has not answered in
 * time after they were given to it. Then this process must not open them again.
 *
 * Errors: nothing was handed over and all handles stand for what they did, as after a restart: a pointer is to be obtained
 * again. -ENOTCONN no successor waits, -EPROTO it ended, refused, or did not answer in time; -EBUSY another thread uses one;
 * -EINVAL one cannot be handed over (MEGAPAGE_UNLINK_ALWAYS with MEGAPAGE_FILE_PER_PAGE, or another process's).
 */
int megapage_upgrade_hand_over(megapage_listener listener,
                               const uint64_t *handles,
                               size_t count,
                               uint32_t milliseconds);

/**
 * Takes over the segments of the process that listens on path. segments: room for MEGAPAGE_UPGRADE_MOST handles; count: how
 * many were taken over, in the order in which they were handed over. 0: no process listens, or it ended before it had
 * offered all; then start as usual. Heaps are opened with megapage_heap_of_segment.
 *
 * Errors: -EPROTO the predecessor refused, or did not answer within milliseconds; it goes on as the owner.
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
 * Asks for huge pages for the base pages in which length bytes from address on lie, and says what they are mapped with.
 * Their contents stay. flags: 0, or MEGAPAGE_ADVISE_NOW and MEGAPAGE_ADVISE_POPULATE or both. backing may be null.
 * Success means that the advice was given; what came of it is in backing.
 *
 * Errors: -EINVAL no range, or the kernel has no transparent huge pages; -ENOMEM some of it is not mapped.
 */
int megapage_advise(const void *address,
                    size_t length,
                    uint32_t flags,
                    struct megapage_backing *backing);

/**
 * What the base pages in which length bytes from address on lie are mapped with, as the kernel says. Reads the list of
 * all mappings of the process: some microseconds for each.
 */
int megapage_backing_of(const void *address,
                        size_t length,
                        struct megapage_backing *backing);

/**
 * Moves the segments of the calling program onto huge pages: its code, its constants and, where it has one thread, its
 * data. Their addresses, contents and access stay; the memory is the process's own from then on, with no file's name in
 * /proc/PID/maps. The program may go on while it is moved. Calling it again is harmless.
 *
 * pages: MEGAPAGE_REMAP_THP, MEGAPAGE_REMAP_2M or MEGAPAGE_REMAP_1G. libraries: names of libraries besides, as the loader
 * opens them, separated by colons, such as "libpython3.11.so.1.0"; null: none. flags: 0 or MEGAPAGE_REMAP_REQUIRE. remapped may be
 * null. Success means that all was tried; what came of it is in remapped.
 *
 * Threads: call it first of all, in main, while there is one thread: data is moved then alone, for what another thread
 * wrote meanwhile would be lost. With more threads code and constants are moved, which no thread may change (a debugger's
 * or a program's own patches, mprotect) during the call. No I/O of the kernel's own (io_uring, AIO) may be under way into
 * static data. Calls wait for each other.
 *
 * Ownership: a library that was opened with dlopen must not be closed during the call; one on pages of the pool, never: its
 * addresses could not be given back. On these, mprotect and munmap of single pages fail (EINVAL). Locks (mlock)
 * and advice (madvise) on what is moved are lost: give them afterwards.
 *
 * Errors: -ENOENT a library of that name is not loaded; -EACCES the process may not make executable what it has written
 * (PR_SET_MDWE, a security module), other numbers where a seccomp filter refuses it; -EOPNOTSUPP it was built with a sanitizer;
 * -ENOMEM control groups leave no room for the copy; -EINVAL. With MEGAPAGE_REMAP_REQUIRE also -ENOMEM where the kernel has
 * no pages for it all and -EBUSY where a part has to stay as it is; what was moved stays so, and remapped is filled in.
 */
int megapage_remap_self(uint32_t pages,
                        const char *libraries,
                        uint32_t flags,
                        struct megapage_remapped *remapped);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEGAPAGE_H */
