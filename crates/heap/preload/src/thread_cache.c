// Freed small blocks, kept for each thread and size class. They are handed out again last in first
// out, as glibc does ("tcache" in its malloc/malloc.c). Included by mimalloc.c.
//
// mimalloc hands a freed block out again only when the page that it allocates from is used up. A
// program may free one block and ask for the next, all over a large heap. It then writes to memory
// that no cache of the processor holds, twice for each pair. Hash chains with 3 million nodes take
// 1.4 times as long.
//
// To mimalloc these blocks are in use. A thread keeps at most MOST_TINY blocks of each class of up
// to 64 bytes and MOST_KEPT of each other, 141 KiB in all. A program that replaces blocks of a few
// sizes at random walks between an empty and a full class. Each end costs a branch that the
// processor did not foresee.

// The last class is that of MI_SMALL_SIZE_MAX, 1 KiB; the last tiny one is that of 64 bytes.
enum { CACHED_CLASSES = 37, TINY_CLASSES = 9, MOST_TINY = 32, MOST_KEPT = 12 };

typedef struct {
  mi_block_t* first;
  // Further blocks that may be kept.
  size_t room;
} cached_class_t;

// Class 0 stands for blocks that are not kept: always empty, and always full.
static __thread cached_class_t thread_cache[CACHED_CLASSES] = {
  [1 ... TINY_CLASSES - 1] = {.room = MOST_TINY},
  [TINY_CLASSES ... CACHED_CLASSES - 1] = {.room = MOST_KEPT},
};

// mimalloc's size class, by the size in words.
static uint8_t class_of_words[MI_SMALL_WSIZE_MAX + 1];

// Fills the table, before threads exist. Earlier, every size is of class 0.
static void thread_cache_init(void) {
  for (size_t words = 0; words <= MI_SMALL_WSIZE_MAX; words++) {
    const size_t class = mi_bin(words * MI_SIZE_SIZE);
    class_of_words[words] = (class < CACHED_CLASSES ? (uint8_t)class : 0);
  }
}

// True if the next call of malloc starts a thread of ours (threads.rs). Then all of malloc goes by
// way of entry.rs.
_Atomic(bool) megapage_thread_wanted;

// Defined in entry.rs: malloc(3) of a block that is not kept. Hidden, so that calls make no detour
// by the procedure linkage table.
extern void* megapage_malloc_uncached(size_t size) __attribute__((visibility("hidden")));

// Takes the block of the class that the thread freed last. Returns null if there is none.
static inline mi_block_t* take(cached_class_t* class) {
  mi_block_t* const block = class->first;
  if mi_likely(block != NULL) {
    class->first = (mi_block_t*)block->next;
    class->room++;
  }
  return block;
}

// Takes a kept block for a request of `size` bytes. Returns null if there is none.
static inline void* take_cached(size_t size) {
  if mi_unlikely(size > MI_SMALL_SIZE_MAX) return NULL;
  return take(&thread_cache[class_of_words[mi_wsize_from_size(size)]]);
}

// Stands in for malloc(3).
void* megapage_malloc(size_t size) {
  if mi_likely(!mi_atomic_load_relaxed(&megapage_thread_wanted)) {
    void* const block = take_cached(size);
    if mi_likely(block != NULL) return block;
  }
  return megapage_malloc_uncached(size);
}

// Ends the program because it frees the block that the thread has freed last: the block would be
// handed out twice. Ends it as glibc does, with glibc's words for a block of this size.
static mi_decl_noinline mi_decl_cold void freed_twice(size_t size) {
  static char small[] = "free(): double free detected in tcache 2\n";
  static char large[] = "double free or corruption (!prev)\n";
  const struct iovec parts[] = {{small, sizeof small - 1}, {large, sizeof large - 1}};
  (void)!writev(STDERR_FILENO, &parts[size > 1032], 1);
  abort();
}

// Gives back the contents of a large block that is about to be freed, if memory is short and other
// blocks keep its page.
enum { LEAST_FORGOTTEN = 16 * MI_KiB };
static mi_decl_noinline void forget_block(const mi_page_t* page, void* block, size_t size) {
  if (other_pages || mi_page_used(page) == 1 || !is_tight()) return;
  const uintptr_t start = mi_align_up((uintptr_t)block + sizeof(mi_block_t), BASE_PAGE);
  const uintptr_t end = mi_align_down((uintptr_t)block + size, BASE_PAGE);
  if (end > start) megapage_forget((void*)start, end - start);
}

// Stands in for free(3). Keeps blocks of pages that belong to the calling thread and hold no blocks
// for which an alignment was asked.
void megapage_free(void* p) {
  mi_page_t* page = NULL;
  if mi_unlikely(!mi_ptr_page_is_valid(p, "free", &page)) return;
  const mi_thread_id_t other = _mi_prim_thread_id() ^ mi_page_xthread_id(page);
  if mi_likely((other & ~MI_PAGE_IN_FULL_QUEUE) == 0) {
    const size_t size = mi_page_block_size(page);
    mi_block_t* const block = (mi_block_t*)p;
    if mi_likely(size <= MI_SMALL_SIZE_MAX) {
      cached_class_t* const class = &thread_cache[class_of_words[size / MI_SIZE_SIZE]];
      mi_block_t* const last = class->first;
      if mi_unlikely(block == last) freed_twice(size);
      if mi_likely(class->room > 0) {
        block->next = (mi_encoded_t)last;
        class->first = block;
        class->room--;
        return;
      }
    }
    if mi_likely(other == 0) {
      if mi_unlikely(block == page->local_free) freed_twice(size);
      if mi_unlikely(size >= LEAST_FORGOTTEN) forget_block(page, block, size);
      mi_free_block_local(page, block, false /* was guarded */, false /* is in no full page */);
      return;
    }
  }
  // The page went with its last block.
  if mi_unlikely(mi_page_block_size(page) == 0) freed_twice(SIZE_MAX);
  mi_free_nonnull(p, page, NULL, true /* allow reclaim */);
}

// From this size on, a block that moves gives back at once what was copied of it, in parts of this
// size.
#define COPIED_IN_PARTS (8 * MI_MiB)
#define COPIED_PART (2 * MI_MiB)

// Copies a block that is freed next, and returns true if the block holds nothing then. Otherwise an
// array that grows by realloc would be in memory twice at each move. glibc moves its page tables
// instead (mremap(2)). If the kernel refuses that half-way, it leaves a hole in a heap.
static bool move_contents(void* to, const void* from, size_t size) {
  if mi_likely(size < COPIED_IN_PARTS || other_pages) {
    memcpy(to, from, size);
    return false;
  }
  const uintptr_t start = (uintptr_t)from;
  size_t done = -start & (COPIED_PART - 1);
  memcpy(to, from, done);
  for (; size - done >= COPIED_PART; done += COPIED_PART) {
    memcpy((uint8_t*)to + done, (const uint8_t*)from + done, COPIED_PART);
    megapage_forget((void*)(start + done), COPIED_PART);
  }
  memcpy((uint8_t*)to + done, (const uint8_t*)from + done, size - done);
  return true;
}

// Does the same as malloc(3), except for errno and the threads that are wanted.
static void* kept_or_new(size_t size) {
  void* const block = take_cached(size);
  return (block != NULL ? block : mi_malloc(size));
}

// Does the same as realloc(3), except for errno; a size of 0 frees. A block that shrinks by more
// than an eighth moves: mimalloc would keep it up to twice as large. Redis, which trims what it
// reads from its clients, has most of its values so.
void* megapage_realloc(void* p, size_t size) {
  if (p == NULL) return kept_or_new(size);
  if (size == 0) {
    megapage_free(p);
    return NULL;
  }
  mi_page_t* page = NULL;
  if mi_unlikely(!mi_ptr_page_is_valid(p, "realloc", &page)) return NULL;
  const size_t usable = _mi_page_usable_size(page, p);
  const bool fits = (size <= usable);
  if (fits && mi_good_size(size) + usable / 8 >= usable) return p;
  // A block that fits and takes much more gets the size class of its new size, now and later.
  if (fits) borrowed[mi_bin(size)] = MOST_BORROWED;
  // A large block that grows may grow again.
  const bool may_grow = (!fits && size > MI_LARGE_MAX_OBJ_SIZE);
  void* const moved = kept_or_new(may_grow ? _mi_os_good_alloc_size(size) : size);
  // If no smaller block is available, the old one stays.
  if mi_unlikely(moved == NULL) return (fits ? p : NULL);
  is_emptied = move_contents(moved, p, fits ? size : usable);
  megapage_free(p);
  is_emptied = false;
  return moved;
}

// Frees the blocks that the calling thread keeps, and the empty pages of heaps that threads share.
void megapage_flush_thread_cache(void) {
  for (size_t class = 1; class < CACHED_CLASSES; class++) {
    mi_block_t* block;
    while ((block = take(&thread_cache[class])) != NULL) mi_free(block);
  }
  collect_shared(SHARED_HEAPS);
}

// Frees the blocks that the calling thread keeps, and makes no thread keep any from now on. A kept
// block keeps a page, all of which is present.
void megapage_memory_is_locked(void) {
  mi_atomic_store_relaxed(&memory_is_locked, true);
  memset(class_of_words, 0, sizeof class_of_words);
  megapage_flush_thread_cache();
}

// Ends a thread's cache, before mimalloc gives up the thread's pages. Runs once more if later code
// of the thread allocates.
static void thread_done(mi_theap_t* theap) {
  megapage_flush_thread_cache();
  _mi_thread_done(theap);
}
