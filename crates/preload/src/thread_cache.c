// Freed small blocks, kept for each thread and size class and handed out again last in first out, as glibc does ("tcache" in
// its malloc/malloc.c). Included by mimalloc.c.
//
// mimalloc hands a freed block out again only when the page that it allocates from is used up. A program that frees one
// block and asks for the next, all over a large heap, then writes to memory that no cache of the processor holds, twice for
// each pair: 1.4 times the time of hash chains with 3 million nodes.
//
// To mimalloc these blocks are in use. What a thread keeps is bounded: MOST_CACHED blocks of each class, 138 KiB in all.

// The last class is that of MI_SMALL_SIZE_MAX, 1 KiB.
enum { CACHED_CLASSES = 37, MOST_CACHED = 12 };

typedef struct {
  mi_block_t* first;
  size_t count;
} cached_class_t;

// Class 0 stands for what is not kept: always empty, and always full.
static __thread cached_class_t thread_cache[CACHED_CLASSES] = {[0] = {.count = MOST_CACHED}};

// mimalloc's size class, by the size in words.
static uint8_t class_of_words[MI_SMALL_WSIZE_MAX + 1];

// Before threads exist. Until then every size is of class 0.
static void thread_cache_init(void) {
  for (size_t words = 0; words <= MI_SMALL_WSIZE_MAX; words++) {
    const size_t class = mi_bin(words * MI_SIZE_SIZE);
    class_of_words[words] = (class < CACHED_CLASSES ? (uint8_t)class : 0);
  }
}

// malloc(3), but for errno: the block that the thread freed last of those that such a request gets, or one of mimalloc's.
void* megapage_malloc(size_t size) {
  if mi_likely(size <= MI_SMALL_SIZE_MAX) {
    cached_class_t* const class = &thread_cache[class_of_words[mi_wsize_from_size(size)]];
    mi_block_t* const block = class->first;
    if mi_likely(block != NULL) {
      class->first = (mi_block_t*)block->next;
      class->count--;
      return block;
    }
  }
  return mi_malloc(size);
}

// free(3). Kept are blocks of pages that belong to the calling thread and hold no blocks with an alignment of their own.
void megapage_free(void* p) {
  mi_page_t* page = NULL;
  if mi_unlikely(!mi_ptr_page_is_valid(p, "free", &page)) return;
  const mi_thread_id_t other = _mi_prim_thread_id() ^ mi_page_xthread_id(page);
  if mi_likely((other & ~MI_PAGE_IN_FULL_QUEUE) == 0) {
    const size_t size = mi_page_block_size(page);
    mi_block_t* const block = (mi_block_t*)p;
    if mi_likely(size <= MI_SMALL_SIZE_MAX) {
      cached_class_t* const class = &thread_cache[class_of_words[size / MI_SIZE_SIZE]];
      if mi_likely(class->count < MOST_CACHED) {
        block->next = (mi_encoded_t)class->first;
        class->first = block;
        class->count++;
        return;
      }
    }
    if mi_likely(other == 0) {
      mi_free_block_local(page, block, false /* was guarded */, false /* is in no full page */);
      return;
    }
  }
  mi_free_nonnull(p, page, NULL, true /* allow reclaim */);
}

// From so many bytes on, what was copied of a block that moves goes at once, so many bytes at a time.
#define COPIED_IN_PARTS (8 * MI_MiB)
#define COPIED_PART (2 * MI_MiB)

// Copies a block that is freed next. An array that grows by realloc would be in memory twice at each move. glibc moves its page
// tables instead (mremap(2)); where the kernel refuses that half-way, it leaves a hole in a heap.
static void move_contents(void* to, const void* from, size_t size) {
  if mi_likely(size < COPIED_IN_PARTS || other_pages) {
    memcpy(to, from, size);
    return;
  }
  const uintptr_t start = (uintptr_t)from;
  size_t done = -start & (COPIED_PART - 1);
  memcpy(to, from, done);
  for (; size - done >= COPIED_PART; done += COPIED_PART) {
    memcpy((uint8_t*)to + done, (const uint8_t*)from + done, COPIED_PART);
    megapage_forget((void*)(start + done), COPIED_PART);
  }
  memcpy((uint8_t*)to + done, (const uint8_t*)from + done, size - done);
}

// realloc(3) to a size that is not 0, but for errno. A block that shrinks by more than an eighth moves: mimalloc would keep it up
// to twice as large, as Redis, which trims what it reads from its clients, has most of its values.
void* megapage_realloc(void* p, size_t size) {
  if (p == NULL) return megapage_malloc(size);
  mi_page_t* page = NULL;
  if mi_unlikely(!mi_ptr_page_is_valid(p, "realloc", &page)) return NULL;
  const size_t usable = _mi_page_usable_size(page, p);
  const bool fits = (size <= usable);
  if (fits && mi_good_size(size) + usable / 8 >= usable) return p;
  void* const moved = megapage_malloc(size);
  // Nothing is lost where a smaller one cannot be had.
  if mi_unlikely(moved == NULL) return (fits ? p : NULL);
  move_contents(moved, p, fits ? size : usable);
  megapage_free(p);
  return moved;
}

// Frees what the calling thread keeps.
void megapage_flush_thread_cache(void) {
  for (size_t class = 1; class < CACHED_CLASSES; class++) {
    mi_block_t* block = thread_cache[class].first;
    thread_cache[class] = (cached_class_t){NULL, 0};
    while (block != NULL) {
      mi_block_t* const next = (mi_block_t*)block->next;
      mi_free(block);
      block = next;
    }
  }
}

// When a thread ends, and once more where what runs after that allocates: before mimalloc gives up the thread's pages.
static void thread_done(mi_theap_t* theap) {
  megapage_flush_thread_cache();
  _mi_thread_done(theap);
}
