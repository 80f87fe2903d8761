// mimalloc as one translation unit (after its own src/static.c), with eight of its primitives
// (memory, environment, messages) replaced by ours. The vendored sources need no change for that:
// their definitions of the eight are compiled under other names. Ours call some of them, and the
// compiler drops the others.

#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>

// This library exports these names for the program, and another library may export them too. So
// mimalloc's own calls go to the kernel. Its other calls are bound within the library (names.rs of
// crates/kernel/inside).
extern void* megapage_system_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset);
extern int megapage_system_munmap(void* address, size_t size);
extern int megapage_system_mprotect(void* address, size_t size, int protection);
#define mmap megapage_system_mmap
#define munmap megapage_system_munmap
#define mprotect megapage_system_mprotect
// mimalloc names mappings by it, which is not needed.
#define prctl(...) (-1)

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/prim.h"

// Ours also wants to know how much of the range is committed already.
static int commit_rest(void* addr, size_t size, size_t already, bool* is_zero);
#define _mi_prim_commit(addr, size, is_zero) commit_rest(addr, size, stat_already_committed, is_zero)
#include "prim/os.c"
#undef _mi_prim_commit

#define _mi_prim_mem_init upstream_prim_mem_init
#define _mi_prim_alloc static __attribute__((unused)) upstream_prim_alloc
#define _mi_prim_free static __attribute__((unused)) upstream_prim_free
#define _mi_prim_commit static __attribute__((unused)) upstream_prim_commit
#define _mi_prim_decommit static __attribute__((unused)) upstream_prim_decommit
#define _mi_prim_reset static __attribute__((unused)) upstream_prim_reset
#define _mi_prim_getenv static __attribute__((unused)) upstream_prim_getenv
#define _mi_prim_out_stderr static __attribute__((unused)) upstream_prim_out_stderr
// The end of a thread comes to us first.
static void thread_done(mi_theap_t* theap);
#define _mi_thread_done thread_done
#include "prim/prim.c"
#undef _mi_thread_done
#undef _mi_prim_mem_init
#undef _mi_prim_alloc
#undef _mi_prim_free
#undef _mi_prim_commit
#undef _mi_prim_decommit
#undef _mi_prim_reset
#undef _mi_prim_getenv
#undef _mi_prim_out_stderr

#include "prim/prim-tls.c"
#include "util/libc.c"
#include "util/options.c"
#include "util/random.c"
#include "util/stats.c"
#include "util/threadlocal.c"

// Size of the base pages that the primitives work with. On a kernel with others the library stays
// out of the way. mimalloc then takes its memory from the system, in that kernel's pages, and gives
// it back as it does upstream. No page is huge on our request.
enum { BASE_PAGE = 4096 };
static bool other_pages;
// True if a limit counts what is reserved or accessible (RLIMIT_AS, RLIMIT_DATA,
// vm.overcommit_memory of 2), or if the program has needed addresses that arenas do not use.
static _Atomic(bool) few_addresses;
// Defined in primitives.rs: true if `size` bytes of addresses can be reserved now.
extern bool megapage_has_addresses(size_t size);

// Bytes of the smallest arena: one chunk of bits. After every eight arenas the size doubles. If
// addresses are short, an arena takes them 2 MiB at a time.
#define LEAST_ARENA (MI_BCHUNK_BITS * MI_ARENA_SLICE_SIZE)
// While addresses are few, larger blocks come from the system. Small blocks do so once this many
// addresses are not left.
#define LARGEST_IN_LEAST_ARENA (4 * MI_MiB)
// Defined in primitives.rs: true if large blocks of zeros lie apart from the arenas.
extern bool megapage_puts_zeros_apart(void);
// The program may touch little of a block of zeros of at least this size.
#define LEAST_APART (32 * MI_MiB)
// Returns true if a block of zeros lies apart. The answer needs files. They are read only once,
// because other threads may rely on the numbers of the program's descriptors.
static bool lies_apart(size_t size) {
  enum { UNKNOWN, YES, NO };
  static _Atomic(size_t) answer = UNKNOWN;
  if (size < LEAST_APART || size > PTRDIFF_MAX) return false;
  if (mi_atomic_load_relaxed(&answer) == UNKNOWN) mi_atomic_store_relaxed(&answer, megapage_puts_zeros_apart() ? YES : NO);
  return mi_atomic_load_relaxed(&answer) == YES;
}
// True while the calling thread wants a block that lies apart from the arenas. The first memory
// that mimalloc then asks for is the block's.
static __thread bool apart;
// Returns the value of an option. The first arena is always the smallest: a small program does not
// touch the tables of a large one.
static size_t arena_option(mi_option_t option) {
  const size_t usual = mi_option_get_size(option);
  const bool few = mi_atomic_load_relaxed(&few_addresses);
  if (option != mi_option_arena_reserve) return (few || apart ? LARGEST_IN_LEAST_ARENA : usual);
  // An arena is for others, such as a signal handler's blocks.
  apart = false;
  if (few) return (megapage_has_addresses(LARGEST_IN_LEAST_ARENA + 2 * MI_MiB) ? LEAST_ARENA : 0);
  return (mi_atomic_load_relaxed(&_mi_subproc_main()->arena_count) == 0 ? LEAST_ARENA : usual);
}
#define mi_option_get_size(option) arena_option(option)
#include "arena/arena.c"
#undef mi_option_get_size

// Returns the number of slices of a page of larger blocks: a quarter while addresses are few.
static size_t slices_of_page(size_t size) {
  return _mi_slice_count_of_size(mi_atomic_load_relaxed(&few_addresses) ? size / 4 : size);
}
// True while the calling thread wants a page out of an arena or none.
static __thread bool only_in_arenas;
// Slices that pages of medium blocks have touched, by their index in an arena. Arenas share a bit:
// at worst a slice is cleaned without need, or a slice that needs it is not.
static _Atomic(uint64_t) touched_slices[MI_BCHUNK_BITS / 64];

// Notes the slices of a range that is being freed. Returns the number of its committed slices.
static size_t note_freed(mi_arena_t* arena, size_t first, size_t count) {
  const bool is_medium = (count == slices_of_page(MI_MEDIUM_PAGE_SIZE));
  for (size_t at = first; is_medium && at < first + count; at++) {
    if (!mi_bitmap_is_setN(arena->slices_committed, at, 1)) continue;
    mi_atomic_or_relaxed(&touched_slices[at % MI_BCHUNK_BITS / 64], (uint64_t)1 << (at % 64));
  }
  return mi_bitmap_popcountN(arena->slices_committed, first, count);
}

// Forgets that such pages have touched slices. Returns true if they have.
static bool take_touched(size_t first, size_t count) {
  bool any = false;
  for (size_t at = first; at < first + count; at++) {
    const uint64_t bit = (uint64_t)1 << (at % 64);
    _Atomic(uint64_t)* const bits = &touched_slices[at % MI_BCHUNK_BITS / 64];
    if ((mi_atomic_load_relaxed(bits) & bit) != 0) any |= (mi_atomic_and_relaxed(bits, ~bit) & bit) != 0;
  }
  return any;
}
// Upstream has an option here; waiting.c decides instead.
#include "waiting.c"
// Returns true if the calling thread wants slices for a large block.
static bool is_for_block(size_t count) {
  const bool is_medium_page = (count == slices_of_page(MI_MEDIUM_PAGE_SIZE) && !only_in_arenas);
  return count > 1 && count <= MI_BCHUNK_BITS && !is_medium_page;
}
// True while the calling thread takes only committed slices.
static __thread bool only_waiting;
// Returns true if as much waits as a block needs: then a search among that comes first. A smaller
// block would split a longer range that waits, though another one fits.
static bool begin_with_waiting(size_t count) {
  only_waiting = count > MI_BFIELD_BITS && is_for_block(count) && mi_atomic_load_relaxed(&waiting_at_most) >= _mi_size_of_slices(count);
  return only_waiting;
}
static bool claim_slices(mi_arena_t* arena, size_t tseq, size_t count, size_t* first);
#define mi_option_get_size(option) \
  immediate_purge_size(note_freed(arena, slice_index, slice_count))
#define mi_bbitmap_try_find_and_clearN(bitmap, tseq, count, first) claim_slices(arena, tseq, count, first)
#include "arena/arena-alloc.c"
#undef mi_option_get_size
#undef mi_bbitmap_try_find_and_clearN
// Defined in primitives.rs.
extern void megapage_forget(void* addr, size_t size);

// Memory is tight if a limit leaves less than four times this many bytes.
#define TIGHT MI_MiB
static bool is_tight(void) { return room_for_waiting(0) < TIGHT; }

// Notes a fresh page, and forgets its contents if a page of larger blocks has touched it: they
// would stay, whatever the program touches of this page. Done only from this many threads on, each
// of which has a page of each size.
enum { SEVERAL_THREADS = 4, LARGEST_CLEANED = MI_ARENA_SLICE_SIZE / 4 };
static void clean_page(const mi_page_t* page) {
  const mi_memid_t* const memid = &page->memid;
  const size_t block_size = mi_page_block_size(page);
  note_new(page);
  if (other_pages || (block_size > LARGEST_CLEANED && !is_tight()) || memid->memkind != MI_MEM_ARENA) return;
  if (!take_touched(memid->mem.arena.slice_index, memid->mem.arena.slice_count)) return;
  if (mi_atomic_load_relaxed(&mi_page_subproc(page)->thread_count) < SEVERAL_THREADS) return;
  uint8_t* const start = (uint8_t*)mi_align_up((uintptr_t)mi_page_start(page) + block_size, BASE_PAGE);
  uint8_t* const end = mi_page_slice_start(page) + _mi_size_of_slices(memid->mem.arena.slice_count);
  if (start < end) megapage_forget(start, end - start);
}
static mi_page_t* mi_arenas_page_regular_alloc(mi_theap_t* theap, size_t slice_count, size_t block_size);

// Returns the slices of a page of large blocks. It is for one block, so that freed memory goes back
// or serves for blocks of all sizes. If the class has many blocks, the page is for the least number
// of them that fills its slices but for a small part, which keeps huge pages dense.
enum { UNFILLED_SHARE = 32 };
static size_t slices_of_large_page(size_t block_size) {
  const size_t blocks = mi_atomic_load_relaxed(&large_blocks[_mi_bin(block_size)]);
  const bool are_many = (blocks >= MANY_BLOCKS && blocks * block_size >= mi_atomic_load_relaxed(&linked) / MUCH_SHARE);
  size_t size = block_size;
  while (are_many && size < MI_MiB && mi_align_up(size, MI_ARENA_SLICE_SIZE) - size > size / UNFILLED_SHARE) size += block_size;
  return _mi_slice_count_of_size(size);
}

// Returns a page of large blocks. mimalloc takes a page of one block from the system for that of an
// aligned block.
static mi_page_t* large_page_alloc(mi_theap_t* theap, size_t block_size) {
  only_in_arenas = true;
  mi_page_t* const page = mi_arenas_page_regular_alloc(theap, slices_of_large_page(block_size), block_size);
  only_in_arenas = false;
  return page != NULL ? page : mi_arenas_page_regular_alloc(theap, slices_of_page(MI_LARGE_PAGE_SIZE), block_size);
}
// Pages of large blocks are committed as a whole, so that their slices are counted.
#define mi_option_get(option) (only_in_arenas ? 0 : mi_option_get(option))
#define _mi_arena_os_alloc_aligned(...) (only_in_arenas ? NULL : _mi_arena_os_alloc_aligned(__VA_ARGS__))
#include "arena/arena-page.c"
#undef _mi_arena_os_alloc_aligned
#undef mi_option_get

#include "arena/bitmap-chunk.c"
#include "arena/bitmap.c"
#include "alloc/alloc.c"
void megapage_flush_thread_cache(void);

// A page of each size costs a thread at least a base page. So the first small blocks of a size come
// from a page of a larger size, if the thread has one. A thread with a few blocks of each of many
// sizes then touches less memory.
enum { MOST_BORROWED = 64 };
static __thread uint8_t borrowed[MI_BIN_COUNT];

static bool has_free(const mi_page_queue_t* queue) {
  return queue->first != NULL && (queue->first->free != NULL || queue->first->local_free != NULL);
}

// Returns true if a block of the queue needs a new page, as far as is seen without a search.
static bool needs_page(const mi_theap_t* theap, const mi_page_queue_t* queue) {
  if (has_free(queue) || (queue->first != NULL && mi_page_is_expandable(queue->first))) return false;
  return mi_atomic_load_relaxed(&mi_theap_heap(theap)->abandoned_count[queue - theap->pages]) == 0;
}

// Returns the queue that a block of a class comes from: its own, or a larger one that has blocks.
// Medium blocks come from free blocks of up to twice the size, instead of from a new page: a
// program that replaces blocks of all sizes has some of each class. Blocks of the larger class lie
// on the same alignment. Once realloc(3) has moved a block to its own class, the thread no longer
// does so for that class.
static mi_page_queue_t* own_or_larger(mi_theap_t* theap, mi_page_queue_t* own) {
  uint8_t* const count = &borrowed[own - theap->pages];
  const size_t size = own->block_size;
  const bool is_small = (size <= MI_SMALL_MAX_OBJ_SIZE);
  if (size > MI_MEDIUM_MAX_OBJ_SIZE || *count >= MOST_BORROWED) return own;
  if (is_small ? own->first != NULL : !needs_page(theap, own)) return own;
  const size_t largest = (is_small ? mi_min(size + size / 2 + 64, MI_SMALL_MAX_OBJ_SIZE) : mi_min(2 * size, MI_MEDIUM_MAX_OBJ_SIZE));
  for (mi_page_queue_t* queue = own + 1; queue->block_size <= largest; queue++) {
    if (is_small && (has_free(queue) || (queue->first != NULL && mi_page_is_expandable(queue->first)))) {
      (*count)++;
      return queue;
    }
    if (!is_small && has_free(queue) && mi_ctz(queue->block_size) >= mi_ctz(size)) return queue;
  }
  return own;
}

// A block that a thread keeps may be the only one of its page. So all kept blocks go back at each
// collection: after 10,000 requests that found no free block, and before a request is refused.
static void collect(mi_theap_t* theap, bool force) {
  megapage_flush_thread_cache();
  mi_theap_collect(theap, force);
}
static void* malloc_shared(const mi_theap_t* theap, size_t size, bool zero, mi_page_t** page);
// Follows what mimalloc does for a new thread, which allocates.
#define PLACE_APART apart = zero && !other_pages && lies_apart(size);
#define TRY_SHARED \
  void* const shared = (huge_alignment == 0 ? malloc_shared(theap, size, zero, ppage) : NULL); \
  if (shared != NULL) return shared;
static mi_page_queue_t* queue_for(mi_theap_t* theap, size_t size) {
  note_asked(size);
  return own_or_larger(theap, mi_page_queue(theap, size));
}
#define mi_page_queue(theap, size) queue_for(theap, size)
#define mi_theap_collect(theap, force) collect(theap, force)
#include "alloc/alloc-generic.c"
#undef mi_page_queue
#undef mi_theap_collect
#include "young.c"
// Pages of shared heaps hold no blocks for which an alignment was asked.
#define _mi_theap_default() mi_theap_get_default()
#include "alloc/alloc-aligned.c"
#undef _mi_theap_default
#include "alloc/alloc-posix.c"
// True once the program has asked for its memory to be locked (mlockall(2)): then all of a page is
// present.
static _Atomic(bool) memory_is_locked;
// Threads keep pages that have become empty, for a while. These limits are in bytes that blocks
// have touched. Upstream keeps 512 KiB of each of 12 sizes in each thread.
enum {
  // Limit for all threads together.
  KEPT_EMPTY = MI_MiB,
  // Least limit for each thread; near a limit on memory, its only one.
  LEAST_KEPT_EMPTY = 8 * MI_KiB,
  // Limit for one page.
  LARGEST_KEPT_EMPTY = 128 * MI_KiB,
};
void _mi_theap_collect_retired(mi_theap_t* theap, bool force);

static size_t touched(const mi_page_t* page) { return page->capacity * mi_page_block_size(page); }

// Returns true if a page that has just become empty goes at once. Otherwise it stays, because it
// may be asked for again soon. If the thread's empty pages are then too many, its others go.
static bool is_not_kept(mi_page_t* page) {
  mi_theap_t* const theap = mi_page_theap(page);
  const size_t threads = mi_atomic_load_relaxed(&mi_theap_subproc(theap)->thread_count);
  const bool is_short = (room_for_waiting(0) != SIZE_MAX);
  const size_t most = mi_max(is_short ? 0 : KEPT_EMPTY / mi_max(threads, 1), LEAST_KEPT_EMPTY);
  size_t kept = touched(page);
  if (mi_atomic_load_relaxed(&memory_is_locked) || kept > (is_short ? most : LARGEST_KEPT_EMPTY)) return true;
  for (size_t bin = theap->page_retired_min; bin <= theap->page_retired_max; bin++) {
    const mi_page_t* const other = theap->pages[bin].first;
    if (other != NULL && other->retire_expire != 0) kept += touched(other);
  }
  if (kept > most) _mi_theap_collect_retired(theap, true /* force */);
  return false;
}
#define mi_page_queue_is_special(pq) (mi_page_queue_is_special(pq) || is_not_kept(page))
#include "alloc/page.c"
#undef mi_page_queue_is_special
#include "alloc/page-queue.c"
#include "heap/heap.c"
// Heaps and thread data of threads that have ended, for threads that start. To allocate them takes
// a lock, and page faults while it is held.
enum { SPARE_BLOCKS = 8 };
static _Atomic(void*) spare_theaps[SPARE_BLOCKS], spare_tlds[SPARE_BLOCKS];

// Returns a spare block or a new one. Its memory is not cleared.
static void* spare_or_new(_Atomic(void*)* spares, mi_subproc_t* subproc, size_t size, mi_memid_t* memid) {
  void* block = NULL;
  for (size_t at = 0; at < SPARE_BLOCKS && block == NULL; at++) {
    if (mi_atomic_load_relaxed(&spares[at]) != NULL) block = mi_atomic_exchange_acq_rel(&spares[at], NULL);
  }
  if (block == NULL) {
    mi_lock(&subproc->theap_meta_lock) block = mi_theap_malloc(subproc->theap_meta, size);
  }
  *memid = (block == NULL ? _mi_memid_none() : _mi_memid_create_malloc(block, size, false));
  return block;
}

static void keep_or_free(_Atomic(void*)* spares, mi_subproc_t* subproc, void* block, mi_memid_t memid) {
  for (size_t at = 0; at < SPARE_BLOCKS && memid.memkind == MI_MEM_MALLOC; at++) {
    void* none = NULL;
    if (mi_atomic_cas_strong_acq_rel(&spares[at], &none, block)) return;
  }
  _mi_meta_free(subproc, block, memid);
}
static mi_tld_t* tld_or_new(mi_subproc_t* subproc, size_t size, mi_memid_t* memid) {
  mi_tld_t* const tld = spare_or_new(spare_tlds, subproc, size, memid);
  if (tld != NULL) memset(tld, 0, size);
  return tld;
}
#define _mi_meta_zalloc(subproc, size, memid) tld_or_new(subproc, size, memid)
#define _mi_meta_free(subproc, tld, memid) keep_or_free(spare_tlds, subproc, tld, memid)
#include "heap/process.c"
#undef _mi_meta_zalloc
#undef _mi_meta_free
#include "heap/page-map.c"
#include "heap/subproc.c"
#define _mi_meta_zalloc(subproc, size, memid) spare_or_new(spare_theaps, subproc, size, memid)
#define _mi_meta_free(subproc, theap, memid) keep_or_free(spare_theaps, subproc, theap, memid)
#include "heap/theap.c"
#undef _mi_meta_zalloc
#undef _mi_meta_free
static void collect_pages(mi_theap_t* theap) {
  mi_collect_t collect = MI_NORMAL;
  mi_theap_visit_pages(theap, &mi_theap_page_collect, false /* full ones too */, &collect, NULL);
}
#include "profile/sample-guarded.c"
#include "profile/sample-profile.c"
#include "profile/pprof.c"

// Defined in primitives.rs.
extern void megapage_configure(void);
extern int megapage_reserve(size_t size, size_t alignment, bool commit, bool apart, bool* is_zero, void** addr);
extern int megapage_release(void* addr, size_t size);
extern int megapage_commit(void* addr, size_t size, size_t threads, bool* is_zero);
extern int megapage_decommit(void* addr, size_t size, bool* needs_recommit);
extern bool megapage_give_up(void* addr, size_t size);
extern int megapage_take_addresses(void* addr, size_t size);
bool megapage_give_up_addresses(void);

#include "thread_cache.c"
#include "statistics.c"

void _mi_prim_mem_init(mi_os_mem_config_t* config) {
  upstream_prim_mem_init(config);
  other_pages = (config->page_size != BASE_PAGE);
  if (!other_pages) config->has_partial_free = false;  // a span goes back whole
  waiting_init(config->physical_memory_in_kib * MI_KiB);
  thread_cache_init();
  megapage_configure();
}

// Aligned at once: otherwise mimalloc would warn on the program's standard error.
static int plain_alloc(size_t size, size_t alignment, bool commit, bool* is_zero, void** addr) {
  const size_t spare = (alignment > BASE_PAGE ? alignment - BASE_PAGE : 0);
  *addr = NULL;
  if (size > PTRDIFF_MAX - spare) return ENOMEM;
  const int protection = (commit ? PROT_READ | PROT_WRITE : PROT_NONE);
  uint8_t* const start = mmap(NULL, size + spare, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return errno;
  const size_t before = (spare == 0 ? 0 : -(uintptr_t)start & (alignment - 1));
  // If the kernel cannot cut the mapping (it has too many mappings), address space is lost, but no
  // memory.
  if (before > 0) (void)munmap(start, before);
  if (before < spare) (void)munmap(start + before + size, spare - before);
  *is_zero = true;
  *addr = start + before;
  return 0;
}

// Slices of a huge page.
enum { HUGE_SLICES = (2 * MI_MiB) / MI_ARENA_SLICE_SIZE };

// Gives back memory that arenas hold and do not use, before the program is refused memory.
static void free_unused(void) {
  mi_arenas_try_purge(true /* force */, true /* visit all */, _mi_subproc_main(), 0);
  if (mi_atomic_load_relaxed(&few_addresses)) megapage_give_up_addresses();
}

static int take_addresses(mi_arena_t* arena, size_t first, size_t count) {
  if mi_likely(!mi_atomic_load_relaxed(&few_addresses)) return 0;
  return megapage_take_addresses(mi_arena_slice_start(arena, first), _mi_size_of_slices(count));
}

// Claims `count` free slices of an arena, with their addresses. Slices where the program has mapped
// something stay claimed. If a limit refuses addresses, the function looks for slices that have
// theirs.
enum { MOST_WITHOUT = 32 };

// The shortest run of free slices that is long enough.
typedef struct {
  size_t first;
  size_t length;
  bool is_committed;
} shortest_t;

// Considers a run that ends before `end`. Of equal ones, one that is committed is better.
static void consider(const mi_arena_t* arena, size_t count, size_t end, size_t length, shortest_t* best) {
  if (length < count || length > best->length || (length == best->length && best->is_committed)) return;
  const bool is_committed = mi_bitmap_is_setN(arena->slices_committed, end - length, count);
  if (length < best->length || is_committed) *best = (shortest_t){end - length, length, is_committed};
}

// Considers the runs of a chunk.
static void consider_chunk(const mi_arena_t* arena, size_t count, size_t chunk, shortest_t* best) {
  size_t length = 0;
  for (size_t j = 0; j < MI_BCHUNK_FIELDS; j++) {
    mi_bfield_t field = mi_atomic_load_relaxed(&arena->slices_free->chunks[chunk].bfields[j]);
    if (only_waiting) field &= mi_atomic_load_relaxed(&arena->slices_committed->chunks[chunk].bfields[j]);
    size_t left = MI_BFIELD_BITS;
    while (left > 0) {
      const size_t free = mi_min(mi_ctz(~field), left);
      length += free;
      left -= free;
      // The run may go on in the next field.
      if (left == 0) break;
      consider(arena, count, chunk * MI_BCHUNK_BITS + (j + 1) * MI_BFIELD_BITS - left, length, best);
      length = 0;
      field >>= free;
      const size_t used = mi_min(mi_ctz(field), left);
      left -= used;
      if (left > 0) field >>= used;
    }
  }
  consider(arena, count, (chunk + 1) * MI_BCHUNK_BITS, length, best);
}

// Returns true if the chunk is kept for pages of certain sizes.
static bool has_bin(const mi_bbitmap_t* bitmap, size_t chunk) {
  mi_bfield_t kept = 0;
  for (mi_chunkbin_t bin = MI_CBIN_SMALL; bin < MI_CBIN_NONE; bin = mi_chunkbin_inc(bin)) {
    kept |= mi_atomic_load_relaxed(&bitmap->chunkmap_bins[bin].bfields[chunk / MI_BFIELD_BITS]);
  }
  return ((kept >> (chunk % MI_BFIELD_BITS)) & 1) != 0;
}

// Claims the shortest run of free slices that is long enough, of those in the first chunks with
// free ones. Upstream takes the first run that is long enough: blocks of several sizes that come
// and go would need a twentieth more memory.
enum { CHUNKS_SEEN = 64 };
static bool claim_shortest(mi_arena_t* arena, size_t count, size_t* first) {
  mi_bbitmap_t* const bitmap = arena->slices_free;
  const size_t chunks = mi_bbitmap_chunk_count(bitmap);
  shortest_t best = {0, SIZE_MAX, false};
  size_t seen = 0;
  for (size_t i = 0; i < chunks && seen < CHUNKS_SEEN; i++) {
    const mi_bfield_t entry = mi_atomic_load_relaxed(&bitmap->chunkmap.bfields[i / MI_BFIELD_BITS]);
    if (((entry >> (i % MI_BFIELD_BITS)) & 1) == 0) continue;
    seen++;
    consider_chunk(arena, count, i, &best);
    if (best.length == count && best.is_committed) break;
  }
  if (best.length == SIZE_MAX || !mi_bbitmap_try_clearNC(bitmap, best.first, count)) return false;
  // As upstream does for what it finds: pages of small and medium blocks go elsewhere.
  if (best.first % MI_BCHUNK_BITS == 0 && !has_bin(bitmap, best.first / MI_BCHUNK_BITS)) {
    mi_bbitmap_set_chunk_bin(bitmap, best.first / MI_BCHUNK_BITS, MI_CBIN_OTHER);
  }
  *first = best.first;
  return true;
}

static bool claim_slices(mi_arena_t* arena, size_t tseq, size_t count, size_t* first) {
  // First slices of free huge pages without addresses; the function claims them meanwhile.
  size_t without[MOST_WITHOUT], n = 0;
  bool claimed = false, more = true;
  while (more && ((is_for_block(count) && claim_shortest(arena, count, first)) ||
                  (!only_waiting && mi_bbitmap_try_find_and_clearN(arena->slices_free, tseq, count, first)))) {
    int error = take_addresses(arena, *first, count);
    if (error == ENOMEM && n == 0) {
      free_unused();
      error = take_addresses(arena, *first, count);
    }
    claimed = (error == 0);
    if mi_likely(claimed) break;
    more = (error == EEXIST);
    // The parts in which the program has mapped nothing become free again.
    for (size_t at = *first, end = *first + count, next; at < end; at = next) {
      next = mi_min(end, mi_align_up(at + 1, HUGE_SLICES));
      error = take_addresses(arena, at, next - at);
      if (error == EEXIST) continue;
      mi_bbitmap_setN(arena->slices_free, at, next - at);
      const size_t page = mi_align_down(at, HUGE_SLICES);
      if (error == 0 || n == MOST_WITHOUT || !mi_bbitmap_try_clearNC(arena->slices_free, page, HUGE_SLICES)) continue;
      without[n++] = page;
      more = true;
    }
  }
  while (n > 0) mi_bbitmap_setN(arena->slices_free, without[--n], HUGE_SLICES);
  return claimed;
}

int _mi_prim_alloc(void* hint_addr, size_t size, size_t try_alignment, bool commit, bool allow_large,
                   bool* is_large, bool* is_zero, void** addr) {
  (void)hint_addr;
  (void)allow_large;
  // "Large" would mean pinned: never decommitted. Our memory can be decommitted, a huge page at a
  // time.
  *is_large = false;
  if (other_pages) return plain_alloc(size, try_alignment, commit, is_zero, addr);
  if (commit) make_room(size, 0);
  const bool is_apart = apart;
  apart = false;
  const int error = megapage_reserve(size, try_alignment, commit, is_apart, is_zero, addr);
  if mi_likely(error != ENOMEM) return error;
  free_unused();
  return megapage_reserve(size, try_alignment, commit, is_apart, is_zero, addr);
}

int _mi_prim_free(void* addr, size_t size) {
  if (other_pages) return upstream_prim_free(addr, size);
  return size == 0 ? 0 : megapage_release(addr, size);
}

static int commit_rest(void* addr, size_t size, size_t already, bool* is_zero) {
  if (other_pages) return upstream_prim_commit(addr, size, is_zero);
  make_room(size, already);
  const size_t threads = mi_atomic_load_relaxed(&_mi_subproc_main()->thread_count);
  const int error = megapage_commit(addr, size, threads, is_zero);
  if mi_likely(error != ENOMEM) return error;
  free_unused();
  return megapage_commit(addr, size, threads, is_zero);
}

int _mi_prim_decommit(void* addr, size_t size, bool* needs_recommit) {
  if (other_pages) return upstream_prim_decommit(addr, size, needs_recommit);
  return megapage_decommit(addr, size, needs_recommit);
}

// Resetting is optional ("might be reset at any moment"), and decommitting is configured instead.
int _mi_prim_reset(void* addr, size_t size) {
  (void)addr;
  (void)size;
  return 0;
}

// Prints nothing.
void _mi_prim_out_stderr(const char* message) {
  (void)message;
}

// Hides all MIMALLOC_* variables from the allocator: one could make it print or work around our
// primitives.
int _mi_prim_getenv(const char* name, char* result, size_t result_size) {
  (void)name;
  (void)result;
  (void)result_size;
  return 0;
}

// Purges memory that has been free for longer than the delay, or all free memory. Unlike
// mi_collect, it gives the calling thread no heap. Returns the milliseconds after which more will
// have expired; 0 if nothing waits to be purged.
long megapage_purge_expired(bool all) {
  collect_shared(SHARED_HEAPS);
  mi_subproc_t* const subproc = _mi_subproc_main();
  mi_arenas_try_purge(all /* force */, true /* visit all */, subproc, 0);
  mi_msecs_t first = 0;
  const size_t count = mi_arenas_get_count(subproc);
  for (size_t i = 0; i < count; i++) {
    mi_arena_t* const arena = mi_arena_from_index(subproc, i);
    const mi_msecs_t expire = (arena == NULL ? 0 : mi_atomic_loadi64_relaxed(&arena->purge_expire));
    if (expire != 0 && (first == 0 || expire < first)) first = expire;
  }
  if (first == 0) return 0;
  const mi_msecs_t wait = first - _mi_clock_now();
  return (wait < 1 ? 1 : (long)wait);
}

// Makes new arenas small from now on.
void megapage_keep_addresses(void) {
  mi_atomic_store_relaxed(&few_addresses, true);
}

// Gives back the addresses of whole huge pages that arenas do not use. Returns true if any went.
bool megapage_give_up_addresses(void) {
  if (other_pages) return false;
  megapage_keep_addresses();
  bool any = false;
  mi_subproc_t* const subproc = _mi_subproc_main();
  const size_t count = mi_arenas_get_count(subproc);
  for (size_t i = 0; i < count; i++) {
    mi_arena_t* const arena = mi_arena_from_index(subproc, i);
    if (arena == NULL) continue;
    const size_t first = mi_align_up(mi_arena_info_slices(arena), HUGE_SLICES);
    for (size_t slice = first; slice + HUGE_SLICES <= arena->slice_count; slice += HUGE_SLICES) {
      // The description of the pages of 256 MiB lies before them. It is never free, and exists only
      // if one of the pages does.
      const size_t meta = (slice % MI_PAGE_META_ALIGNED_COUNT == 0 ? mi_arena_page_meta_aligned_slice_count() : 0);
      if (!mi_bbitmap_try_clearNC(arena->slices_free, slice + meta, HUGE_SLICES - meta)) continue;
      any |= megapage_give_up(mi_arena_slice_start(arena, slice), HUGE_SLICES * MI_ARENA_SLICE_SIZE);
      mi_bbitmap_setN(arena->slices_free, slice + meta, HUGE_SLICES - meta);
    }
  }
  return any;
}

// Lists the locks that a forked child may need, and that another thread may hold when it is made.
// Each is held for as long as a system call takes, at most while an arena is reserved.
static size_t fork_locks(mi_lock_t** locks) {
  mi_subproc_t* const subproc = _mi_subproc_main();
  mi_heap_t* const heap = mi_heap_main();
  size_t n = 0;
  locks[n++] = &subproc->arena_reserve_lock;
  locks[n++] = &subproc->heaps_lock;
  locks[n++] = &subproc->theap_meta_lock;
  locks[n++] = &heap->theaps_lock;
  locks[n++] = &heap->arena_pages_lock;
  locks[n++] = &heap->os_abandoned_pages_lock;
  locks[n++] = &_mi_process.thread_locals_lock;
  locks[n++] = &_mi_process.subprocs_lock;
  mi_page_map_t* const map = mi_atomic_load_ptr_acquire(mi_page_map_t, &_mi_process.page_map);
  if (map != NULL) locks[n++] = &map->lock;
  for (size_t at = 0; at < SHARED_HEAPS; at++) locks[n++] = &shared_heaps[at].lock;
  return n;
}

enum { FORK_LOCKS = 9 + SHARED_HEAPS, FORK_ATTEMPTS = 100000, FORK_PAUSE_US = 100 };
static bool fork_locked;

// Takes all of them or none, whatever the order in which mimalloc nests them. After at most 10 s of
// attempts, the fork goes ahead as mimalloc alone would let it.
void megapage_lock_for_fork(void) {
  mi_lock_t* locks[FORK_LOCKS];
  const size_t count = fork_locks(locks);
  for (int attempt = 0; attempt < FORK_ATTEMPTS; attempt++) {
    size_t taken = 0;
    while (taken < count && mi_lock_try_acquire(locks[taken])) taken++;
    if (taken == count) {
      fork_locked = true;
      return;
    }
    while (taken > 0) mi_lock_release(locks[--taken]);
    usleep(FORK_PAUSE_US);
  }
}

void megapage_unlock_after_fork(void) {
  if (!fork_locked) return;
  fork_locked = false;
  mi_lock_t* locks[FORK_LOCKS];
  for (size_t i = fork_locks(locks); i > 0; i--) mi_lock_release(locks[i - 1]);
}

// Frees the locks in a child of a fork that took none of them: it has one thread.
void megapage_free_locks_in_child(void) {
  lose_shared();
  mi_lock_t* locks[FORK_LOCKS];
  for (size_t i = fork_locks(locks); i > 0; i--) mi_lock_init(locks[i - 1]);
}

// Sets the milliseconds after which freed memory is purged. Negative: never, except near a limit on
// memory.
void megapage_set_return_after(long milliseconds) {
  waits_on = (milliseconds < 0);
  mi_option_set(mi_option_purge_delay, waits_on ? LONGEST_DELAY : milliseconds);
  mi_option_set(mi_option_arena_purge_mult, 1);
  // Pages are committed as far as blocks were handed out: the committed bytes show what is in use.
  mi_option_set(mi_option_page_commit_on_demand, 1);
}
