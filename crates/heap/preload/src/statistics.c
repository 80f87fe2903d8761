// mallinfo(3), mallinfo2(3), malloc_info(3) and malloc_stats(3), which would otherwise tell of the C library's heap, where
// nothing is. Included by mimalloc.c.
//
// What is committed is counted in the arenas, where nothing has to stand still. Blocks are counted in the calling thread's
// pages; of another thread's all count as in use, for it changes them meanwhile.

#include <stdio.h>

typedef struct {
  size_t committed;
  size_t in_use;
  // Free, and given back to the kernel after the delay.
  size_t waiting;
  // Blocks that are too large for an arena, and how many there are.
  size_t mapped;
  size_t mappings;
} heap_bytes_t;

// What the calling thread's pages take of the arenas, and the blocks in them.
typedef struct {
  size_t committed;
  size_t blocks;
  size_t mapped;
  size_t mappings;
} own_bytes_t;

static bool count_page(mi_theap_t* theap, mi_page_queue_t* pq, mi_page_t* page, void* arg, void* unused) {
  (void)theap;
  (void)pq;
  (void)unused;
  own_bytes_t* const own = (own_bytes_t*)arg;
  const size_t blocks = mi_page_used(page) * mi_page_block_size(page);
  if (page->memid.memkind != MI_MEM_ARENA) {
    own->mapped += blocks;
    own->mappings++;
    return true;
  }
  const size_t pages = page->slice_pcommitted;
  own->committed += (pages == 0 ? _mi_size_of_slices(page->memid.mem.arena.slice_count) : pages * BASE_PAGE);
  own->blocks += blocks;
  return true;
}

// Bytes of blocks that the calling thread keeps, which are in use to mimalloc.
static size_t kept_bytes(void) {
  size_t bytes = 0;
  for (size_t class = 1; class < CACHED_CLASSES; class++) {
    const size_t most = (class < TINY_CLASSES ? MOST_TINY : MOST_KEPT);
    bytes += (most - thread_cache[class].room) * _mi_bin_size(class);
  }
  return bytes;
}

static heap_bytes_t heap_bytes(void) {
  const bytes_t all = count_bytes();
  own_bytes_t own = {0};
  mi_theap_t* const theap = _mi_theap_default();
  if (mi_theap_is_initialized(theap)) mi_theap_visit_pages(theap, &count_page, true, &own, NULL);
  const size_t others = all.committed - mi_min(all.committed, all.waiting + own.committed);
  const size_t in_use = others + own.blocks - mi_min(own.blocks, kept_bytes());
  return (heap_bytes_t){all.committed, mi_min(in_use, all.committed), all.waiting, own.mapped, own.mappings};
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
    .arena = bytes.committed,
    .hblks = bytes.mappings,
    .hblkhd = bytes.mapped,
    .uordblks = bytes.in_use,
    .fordblks = bytes.committed - bytes.in_use,
    .keepcost = bytes.waiting,
  };
}

mallinfo_t megapage_mallinfo(void) {
  const mallinfo2_t wide = megapage_mallinfo2();
  // Beyond 2 GiB they wrap, as the C library's.
  return (mallinfo_t){
    .arena = (int)wide.arena,
    .hblks = (int)wide.hblks,
    .hblkhd = (int)wide.hblkhd,
    .uordblks = (int)wide.uordblks,
    .fordblks = (int)wide.fordblks,
    .keepcost = (int)wide.keepcost,
  };
}

// Elements of glibc's format.
int megapage_malloc_info(int options, FILE* stream) {
  if (options != 0) return EINVAL;
  const heap_bytes_t bytes = heap_bytes();
  char text[512];
  _mi_snprintf(text, sizeof text,
               "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n"
               "<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<system type=\"current\" size=\"%zu\"/>\n</heap>\n"
               "<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n"
               "<system type=\"current\" size=\"%zu\"/>\n</malloc>\n",
               bytes.committed - bytes.in_use, bytes.committed, bytes.committed - bytes.in_use, bytes.mappings,
               bytes.mapped, bytes.committed + bytes.mapped);
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
               bytes.committed, bytes.in_use, bytes.committed + bytes.mapped, bytes.in_use + bytes.mapped,
               bytes.mappings, bytes.mapped);
  (void)!write(STDERR_FILENO, text, strlen(text));
}
