// Heaps that threads share while they have asked for little, as the C library's threads share its
// arenas. Included by mimalloc.c, after alloc/alloc-generic.c.
//
// A heap has pages of each size that was asked for, and each page has a base page at least. So 50
// threads with separate heaps take 270 KiB each for 78 KiB of blocks. A thread gets a separate heap
// once sharing would slow it down.

enum {
  // Heaps while threads find one that is free, and the waits after which there is one more.
  LEAST_SHARED = 3,
  WAITS_FOR_ONE = 1024,
  SHARED_HEAPS = 64,
  // Requests and bytes up to which a thread is young.
  YOUNG_REQUESTS = 1024,
  YOUNG_BYTES = 2 * MI_MiB,
  // Requests after which blocks are collected that other threads have freed.
  COLLECT_AFTER = 64,
};

typedef struct {
  mi_lock_t lock;
  bool made;
  // True in a forked child if the thread that was at work on the heap does not exist there.
  bool lost;
  unsigned requests;
  mi_theap_t theap;
} shared_heap_t;

static shared_heap_t shared_heaps[SHARED_HEAPS];
static __thread unsigned young_requests;
static __thread size_t young_bytes;
// True while the thread may hold the lock of a shared heap: a signal handler above it then waits
// for none.
static __thread volatile bool in_shared;

// Defined after heap/theap.c.
static void collect_pages(mi_theap_t* theap);

// Returns a shared heap with its lock held. While there are few heaps it is the first free one, so
// that the others are empty. Returns null if all are in use, and the thread must not wait.
static shared_heap_t* lock_shared(bool may_wait) {
  static _Atomic(size_t) waits;
  const size_t count = mi_min(LEAST_SHARED + mi_atomic_load_relaxed(&waits) / WAITS_FOR_ONE, SHARED_HEAPS);
  // A hash spreads the threads: their stacks lie at equal distances.
  const size_t own = ((_mi_thread_id() * 0x9E3779B97F4A7C15) >> 48) % count;
  for (size_t at = 0; at < count; at++) {
    shared_heap_t* const heap = &shared_heaps[count == LEAST_SHARED ? at : (own + at) % count];
    if (!heap->lost && mi_lock_try_acquire(&heap->lock)) return heap;
  }
  if (!may_wait || shared_heaps[own].lost) return NULL;
  mi_atomic_increment_relaxed(&waits);
  mi_lock_acquire(&shared_heaps[own].lock);
  return &shared_heaps[own];
}

// Gives back the pages of the first `count` shared heaps whose blocks are all free.
static void collect_shared(size_t count) {
  const bool was_in = in_shared;
  in_shared = true;
  for (size_t at = 0; at < count; at++) {
    shared_heap_t* const heap = &shared_heaps[at];
    if (!heap->made || heap->lost || !mi_lock_try_acquire(&heap->lock)) continue;
    collect_pages(&heap->theap);
    mi_lock_release(&heap->lock);
  }
  in_shared = was_in;
}

static void* malloc_from(shared_heap_t* heap, size_t size, bool zero, mi_page_t** page) {
  if (!heap->made) {
    mi_subproc_t* const subproc = _mi_subproc_main();
    heap->theap.memid = _mi_memid_create(MI_MEM_STATIC);
    _mi_theap_init(&heap->theap, _mi_subproc_heap_main(subproc), subproc->theap_meta->tld);
    heap->made = true;
  }
  if (++heap->requests % COLLECT_AFTER == 0) collect_pages(&heap->theap);
  return mi_malloc_generic_from_page(&heap->theap, size, zero, 0, page, 0);
}

// Returns a block of a shared heap. Returns null if the thread has a separate heap, or is to get
// one.
static void* malloc_shared(const mi_theap_t* theap, size_t size, bool zero, mi_page_t** page) {
  if (theap != &_mi_theap_empty || size > MI_MEDIUM_MAX_OBJ_SIZE) return NULL;
  if (young_requests >= YOUNG_REQUESTS || young_bytes >= YOUNG_BYTES) return NULL;
  // The first thread of the program shares nothing.
  if (mi_atomic_load_relaxed(&_mi_subproc_main()->thread_total_count) == 0) return NULL;
  // Threads that have ended may have freed all that they had.
  if (young_requests == 0) collect_shared(LEAST_SHARED);
  const bool was_in = in_shared;
  in_shared = true;
  void* block = NULL;
  shared_heap_t* const heap = lock_shared(!was_in);
  if (heap != NULL) {
    block = malloc_from(heap, size, zero, page);
    mi_lock_release(&heap->lock);
    young_requests++;
    young_bytes += size;
  }
  in_shared = was_in;
  return block;
}

// Marks the locked heaps as lost, in a forked child that has not taken the locks before.
static void lose_shared(void) {
  for (size_t at = 0; at < SHARED_HEAPS; at++) {
    shared_heap_t* const heap = &shared_heaps[at];
    if (mi_lock_try_acquire(&heap->lock)) mi_lock_release(&heap->lock);
    else heap->lost = true;
  }
}
