// mallinfo(3), mallinfo2(3), malloc_info(3) and malloc_stats(3), which would otherwise report the C
// library's heap, which is empty. Included by mimalloc.c.
//
// Blocks are counted page by page. In a page of small blocks of another thread, or of no thread,
// all blocks count as in use. The knowledge about them lies in the page, which may go meanwhile.

#include <stdio.h>

// Bytes that the heap holds from the kernel. Defined in primitives.rs.
extern size_t megapage_held(void);

typedef struct {
  size_t in_use;
  // Bytes held besides, and the part of them that goes back after the delay.
  size_t rest;
  size_t waiting;
  // Blocks that are too large for an arena: their bytes, and their number.
  size_t mapped;
  size_t mappings;
  // The part of their bytes that the heap holds. Others lie apart.
  size_t held_mapped;
} heap_bytes_t;

static bool is_of_small_blocks(const mi_page_t* page) {
  return mi_aligned_ptr_page0(mi_page_start(page)) != page;
}

// Counts a page of one block that is too large for an arena.
static void count_mapped(heap_bytes_t* bytes, const mi_page_t* page) {
  const size_t size = mi_page_block_size(page);
  bytes->held_mapped += (megapage_has_chunk(mi_page_start(page)) ? size : 0);
  bytes->mapped += size;
  bytes->mappings++;
}

// Counts a page of the calling thread, about which all is known.
static bool count_own(mi_theap_t* theap, mi_page_queue_t* pq, mi_page_t* page, void* arg, void* unused) {
  (void)theap;
  (void)pq;
  (void)unused;
  heap_bytes_t* const bytes = (heap_bytes_t*)arg;
  const size_t blocks = mi_page_used(page) * mi_page_block_size(page);
  if (page->memid.memkind != MI_MEM_ARENA) {
    count_mapped(bytes, page);
  } else if (is_of_small_blocks(page)) {
    // The page was counted whole before.
    bytes->in_use -= mi_min(bytes->in_use, MI_ARENA_SLICE_SIZE - blocks);
  }
  return true;
}

static size_t count_arenas(void) {
  size_t bytes = 0;
  mi_subproc_t* const subproc = _mi_subproc_main();
  const size_t arenas = mi_arenas_get_count(subproc);
  for (size_t a = 0; a < arenas; a++) {
    mi_arena_t* const arena = mi_arena_from_index(subproc, a);
    if (arena == NULL) continue;
    for (size_t slice = arena->info_slices; slice < arena->slice_count; slice++) {
      if (!mi_bitmap_is_set(arena->pages_main.pages, slice)) continue;
      // This stays readable after the page has gone.
      mi_page_t* const page = mi_aligned_ptr_page0(mi_arena_slice_start(arena, slice));
      const bool is_small = (mi_atomic_load_ptr_acquire(mi_page_t, &page->self) != page);
      bytes += (is_small ? MI_ARENA_SLICE_SIZE : mi_page_used(page) * mi_page_block_size(page));
    }
  }
  return bytes;
}

// Returns the bytes of blocks that the calling thread keeps, which are in use to mimalloc.
static size_t kept_bytes(void) {
  size_t bytes = 0;
  for (size_t class = 1; class < CACHED_CLASSES; class++) {
    const size_t most = (class < TINY_CLASSES ? MOST_TINY : MOST_KEPT);
    bytes += (most - thread_cache[class].room) * _mi_bin_size(class);
  }
  return bytes;
}

static heap_bytes_t heap_bytes(void) {
  heap_bytes_t bytes = {.in_use = count_arenas(), .waiting = count_bytes().waiting};
  mi_theap_t* const theap = _mi_theap_default();
  if (mi_theap_is_initialized(theap)) mi_theap_visit_pages(theap, &count_own, true, &bytes, NULL);
  // Pages of one block in use belong to no thread.
  mi_heap_t* const heap = mi_heap_main();
  mi_lock(&heap->os_abandoned_pages_lock) {
    for (const mi_page_t* page = heap->os_abandoned_pages; page != NULL; page = page->next) count_mapped(&bytes, page);
  }
  bytes.in_use -= mi_min(bytes.in_use, kept_bytes());
  const size_t all = bytes.in_use + bytes.held_mapped;
  const size_t held = megapage_held();
  bytes.rest = held - mi_min(held, all);
  return bytes;
}

// struct mallinfo2 of malloc.h, which older C libraries do not have, and struct mallinfo.
typedef struct {
  size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
} mallinfo2_t;
typedef struct {
  int arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
} mallinfo_t;

mallinfo2_t megapage_mallinfo2(void) {
  const heap_bytes_t bytes = heap_bytes();
  return (mallinfo2_t){
    .arena = bytes.in_use + bytes.rest,
    .hblks = bytes.mappings,
    .hblkhd = bytes.mapped,
    .uordblks = bytes.in_use,
    .fordblks = bytes.rest,
    .keepcost = bytes.waiting,
  };
}

mallinfo_t megapage_mallinfo(void) {
  const mallinfo2_t wide = megapage_mallinfo2();
  // Beyond 2 GiB the values wrap, as the C library's do.
  return (mallinfo_t){
    .arena = (int)wide.arena,
    .hblks = (int)wide.hblks,
    .hblkhd = (int)wide.hblkhd,
    .uordblks = (int)wide.uordblks,
    .fordblks = (int)wide.fordblks,
    .keepcost = (int)wide.keepcost,
  };
}

// Writes the elements of glibc's format.
int megapage_malloc_info(int options, FILE* stream) {
  if (options != 0) return EINVAL;
  const heap_bytes_t bytes = heap_bytes();
  char text[512];
  _mi_snprintf(text, sizeof text,
               "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n"
               "<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<system type=\"current\" size=\"%zu\"/>\n</heap>\n"
               "<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n"
               "<system type=\"current\" size=\"%zu\"/>\n</malloc>\n",
               bytes.rest, bytes.in_use + bytes.rest, bytes.rest, bytes.mappings,
               bytes.mapped, bytes.in_use + bytes.rest + bytes.mapped);
  fputs(text, stream);
  return 0;
}

void megapage_malloc_stats(void) {
  const heap_bytes_t bytes = heap_bytes();
  char text[256];
  _mi_snprintf(text, sizeof text,
               "Arena 0:\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
               "Total (incl. mmap):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
               "max mmap regions = %10zu\nmax mmap bytes   = %10zu\n",
               bytes.in_use + bytes.rest, bytes.in_use, bytes.in_use + bytes.rest + bytes.mapped, bytes.in_use + bytes.mapped,
               bytes.mappings, bytes.mapped);
  (void)!write(STDERR_FILENO, text, strlen(text));
}
